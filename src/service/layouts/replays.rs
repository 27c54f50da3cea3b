//! Replays: requested and read.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::access::Right;
use crate::domain::gpu::GpuRef;
use crate::domain::layout::document::{DocumentLayout, FingerprintDifference, Recorded};
use crate::domain::layout::outlook::Allowed;
use crate::domain::layout::replay::{Replay, ReplayCause};
use crate::domain::layout::text::{self, LayoutFormat};
use crate::domain::layout::{Enforcement, GpuMap, Layout, Role};
use crate::domain::operation::{Operation, OperationRequest};
use crate::domain::{DaemonName, LayoutName};
use crate::service::access::context::RequestContext;
use crate::service::error::{Found as _, field};
use crate::service::layouts::{LayoutTarget, Projected, invalid, may_change, refuse_blocked, take};
use crate::service::page::{Page, Paged};
use crate::service::{Backend, FieldError, Result, Service, ServiceError, WriteOptions};
use crate::store::{self, transact};

/// A layout to replay: from a document, or stored here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReplayRequest {
    /// The document; the results of the steps are compared with its record.
    #[serde(default)]
    #[schema(value_type = Option<crate::domain::layout::document::Document>)]
    pub document: Option<serde_json::Value>,
    /// The layout in the document; by default its only one.
    #[serde(default)]
    pub entry: Option<LayoutName>,
    /// A stored layout, instead of a document.
    #[serde(default)]
    pub layout: Option<LayoutName>,
    /// Its version; by default the newest.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub version: Option<u32>,
    /// The daemon; the GPUs of the layout must be empty.
    pub daemon: DaemonName,
    /// The GPU of each role, as for a plan.
    #[serde(default)]
    #[schema(schema_with = crate::domain::layout::roles_by_any_name)]
    pub gpu_map: BTreeMap<Role, GpuRef>,
    /// True to continue although versions differ from those of the document; the hardware must match in any case.
    #[serde(default)]
    pub force: bool,
}

/// A requested replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ReplayAccepted {
    /// The record of the replay.
    pub replay: Uuid,
    /// The operation that runs it.
    pub operation: Operation,
}

/// The layout to replay.
struct ReplaySource {
    name: LayoutName,
    target: LayoutTarget,
    /// From a document.
    entry: Option<DocumentLayout>,
}

impl ReplayRequest {
    fn source(self) -> Result<ReplaySource> {
        let Self { document, entry, layout, version, daemon, gpu_map, force: _ } = self;
        let target = LayoutTarget { daemon, version, gpu_map, layout: None };
        let (document, name) = match (document, layout) {
            (Some(document), None) => (document, entry),
            (None, Some(name)) if entry.is_none() => return Ok(ReplaySource { name, target, entry: None }),
            (None, Some(_)) => {
                return Err(ServiceError::field(
                    "/entry",
                    "an entry belongs to a document: give a document, or leave the entry out",
                ));
            }
            (None, None) => {
                return Err(ServiceError::field(
                    "/document",
                    "there is nothing to replay: give a document or a layout",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(ServiceError::field("/layout", "give a document or a layout, and not both"));
            }
        };
        if target.version.is_some() {
            return Err(ServiceError::field(
                "/version",
                "a document has one version of a layout: leave it out",
            ));
        }
        let document = text::read(&document.to_string(), LayoutFormat::Json)
            .map_err(|error| invalid("/document", error))?;
        let names: Vec<&str> = document.layouts.keys().map(LayoutName::as_str).collect();
        let several = || field!("/entry", "name a layout of the document, which has {}", names.join(", "));
        let name = match (name, document.layouts.len()) {
            (Some(name), _) => name,
            (None, 1) => document.layouts.keys().next().cloned().ok_or_else(several)?,
            (None, _) => return Err(several()),
        };
        let entry = document.layouts.get(&name).cloned().ok_or_else(several)?;
        let target = LayoutTarget { layout: Some(entry.layout()), ..target };
        Ok(ReplaySource { name, target, entry: Some(entry) })
    }
}

impl Service {
    /// Requests the replay of a layout; differences and blockers are refused at once.
    pub async fn replay(
        &self,
        ctx: &RequestContext,
        request: ReplayRequest,
        options: WriteOptions,
    ) -> Result<ReplayAccepted> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let author = ctx.actor.subject.to_string();
        if let Some(answered) = backend.answered(ctx).await? {
            return accepted(answered);
        }
        let force = request.force;
        let ReplaySource { name, target, entry } = request.source()?;
        let recorded = entry.as_ref().and_then(|entry| entry.recorded.as_ref());
        let projected = match backend.projected(&name, &target).await {
            Ok(projected) => projected,
            Err(error) => return Err(backend.other_sku(&name, &target, recorded, error).await),
        };
        let plan = backend.plan_of(&projected, Duration::ZERO).await?;
        let forced = match recorded {
            Some(recorded) => {
                let (daemon, map) = (&projected.daemon.name, &projected.active.gpu_map);
                backend.compare(daemon, map, &projected.layout, recorded, &name, force).await?
            }
            None => Vec::new(),
        };
        if let Some(message) = plan.not_empty() {
            return Err(ServiceError::Conflict(message));
        }
        refuse_blocked(&plan, Allowed::default())?;
        let Projected { daemon, active, layout } = projected;
        let (expected, shares) = match recorded {
            Some(recorded) if layout.enforcement == Enforcement::Static => {
                (Some(recorded.ids.clone()), Vec::new())
            }
            Some(recorded) => (None, recorded.shares.clone()),
            None => {
                let mut reader = backend.parts.store.read().await?;
                let expected = store::restarts::expected_ids(&mut reader, &daemon.name, &active).await?;
                (expected, Vec::new())
            }
        };
        let clock = ctx.clock;
        let permit = permit.applying(&active.version_ref(), &daemon.name);
        let (id, cause, now) = (clock.new_id(), ReplayCause::Requested, clock.unix_ms());
        let provenance = recorded.map(|recorded| recorded.provenance.clone());
        let replay = Replay::new(id, daemon.name, active, cause, expected, now);
        let replay = Replay { shares, provenance, forced, ..replay };
        let requested = transact!(backend, request_operation(&permit, options), |db, operation| {
            let mut replay = Replay { operation: Some(operation), ..replay };
            if let Some(entry) = &entry {
                replay.version = take(&mut *db, &replay.layout, entry, &author, clock).await?.version;
            }
            let (layout, version) = (replay.layout.clone(), replay.version);
            let request = OperationRequest::ReplayLayout { replay: replay.id, layout, version };
            may_change(&mut *db, &replay.daemon, &request).await?;
            store::replays::put(db, &replay).await?;
            Ok((request, vec![replay.daemon]))
        });
        accepted(requested?)
    }

    /// One replay.
    pub async fn replay_record(&self, ctx: &RequestContext, id: Uuid) -> Result<Replay> {
        let backend = self.with(&ctx.require(Right::View)?);
        let replay = store::replays::get(&mut *backend.parts.store.read().await?, id).await?;
        replay.found("replay", &id)
    }

    /// Replays, newest first.
    pub async fn replays(&self, ctx: &RequestContext, page: &Page) -> Result<Paged<Replay>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let before = page.key::<Uuid>()?.map(|id| id.to_string());
        let mut reader = backend.parts.store.read().await?;
        let replays = store::replays::page(&mut reader, before.as_deref(), page.rows()).await?;
        Ok(page.cut(replays, |replay| replay.id.to_string()))
    }
}

impl Backend {
    /// Returns the error for a document that does not fit a daemon without GPUs for its roles: the differences of the intended GPUs, or of
    /// the daemon's; without differences, the error itself.
    async fn other_sku(
        &self,
        name: &LayoutName,
        target: &LayoutTarget,
        recorded: Option<&Recorded>,
        error: ServiceError,
    ) -> ServiceError {
        let unmapped = matches!(&error, ServiceError::Invalid(errors) if errors.iter().all(|error| error.pointer == "/gpu_map"));
        let (Some(recorded), Some(layout), true) = (recorded, &target.layout, unmapped) else { return error };
        match self.intended_gpus(target).await {
            Ok(map) if !map.is_empty() => {
                let compared = self.compare(&target.daemon, &map, layout, recorded, name, true).await;
                match compared {
                    Err(differs @ ServiceError::OtherHardware { .. }) => differs,
                    Ok(_) | Err(_) => error,
                }
            }
            Ok(_) | Err(_) => error,
        }
    }

    /// The GPUs that a request names, otherwise the daemon's first.
    async fn intended_gpus(&self, target: &LayoutTarget) -> Result<GpuMap> {
        let daemon = store::daemons::get(&mut *self.parts.store.read().await?, &target.daemon).await?;
        let offered = daemon.map(|daemon| daemon.spec.gpus).unwrap_or_default();
        let gpus = self.gpus().await?;
        let mut map = GpuMap::new();
        for (role, named) in &target.gpu_map {
            map.extend(named.resolve(&gpus).ok().map(|gpu| (*role, gpu.uuid.clone())));
        }
        // Another daemon's GPUs do not matter here.
        map.retain(|_, gpu| offered.contains(gpu));
        if map.is_empty() {
            map.extend(offered.into_iter().next().map(|gpu| (0, gpu)));
        }
        Ok(map)
    }

    /// Refuses GPUs that differ from those of the document; returns the version differences that were accepted.
    async fn compare(
        &self,
        daemon: &DaemonName,
        map: &GpuMap,
        layout: &Layout,
        recorded: &Recorded,
        name: &LayoutName,
        force: bool,
    ) -> Result<Vec<FingerprintDifference>> {
        let current = self.fingerprint(daemon, map, layout.enforcement).await?;
        let differences = recorded.fingerprint.differences(&current);
        if differences.iter().all(|difference| force && difference.forceable) {
            return Ok(differences);
        }
        let errors: Vec<FieldError> = differences
            .iter()
            .map(|difference| FieldError {
                pointer: format!("/document/layouts/{name}/recorded/fingerprint/{}", difference.field),
                detail: if difference.forceable {
                    format!("{difference}: set force to continue with another version")
                } else {
                    format!("{difference}: the IDs would not be comparable")
                },
            })
            .collect();
        let fields: Vec<&str> = differences.iter().map(|difference| difference.field.as_str()).collect();
        let detail = format!(
            "layout {name} was recorded on a configuration other than that of daemon {daemon}, and nothing was changed: they differ in {}",
            fields.join(", ")
        );
        Err(ServiceError::OtherHardware { detail, errors })
    }
}

fn accepted(operation: Operation) -> Result<ReplayAccepted> {
    match operation.request {
        OperationRequest::ReplayLayout { replay, .. } => Ok(ReplayAccepted { replay, operation }),
        _ => Err(ServiceError::Internal(format!("operation {} is not a replay", operation.id))),
    }
}
