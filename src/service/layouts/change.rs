//! Planning, asserting and applying a layout on a daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{check_note, invalid, no_version, put_if_new};
use crate::clock::Clock;
use crate::domain::access::Right;
use crate::domain::daemon::Daemon;
use crate::domain::gpu::GpuRef;
use crate::domain::layout::active::{ActiveLayout, PartitionPolicy};
use crate::domain::layout::assertion::{
    Asserted, Assertion, differences, not_listed, share_differences, spec_difference,
};
use crate::domain::layout::moves::moves;
use crate::domain::layout::outlook::{Allowed, LayoutPlan};
use crate::domain::layout::{Enforcement, GpuMap, Layout, Role, VersionRef, map_roles};
use crate::domain::maintenance::DrainLimit;
use crate::domain::operation::{Operation, OperationRequest};
use crate::domain::{DaemonName, LayoutName};
use crate::operations::OutlookError;
use crate::service::access::context::{Permit, RequestContext};
use crate::service::daemons::layout_fit::{refuse_mode, refuse_strategy};
use crate::service::daemons::maintenance::{checked_drain, refuse_in_maintenance};
use crate::service::error::{Found as _, conflict};
use crate::service::{Backend, FieldError, Result, Service, ServiceError, WriteOptions};
use crate::store::{self, layouts::NewVersion, transact};

/// A daemon, and the mapping of a layout to its GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LayoutTarget {
    /// The daemon.
    pub daemon: DaemonName,
    /// The version; by default the newest.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub version: Option<u32>,
    /// The GPU of each role, by UUID, unique prefix, index or PCI address. By default a role keeps its GPU if the daemon has
    /// the layout, and otherwise is the host's GPU of that index among those of the layout's SKU.
    #[serde(default)]
    #[schema(schema_with = crate::domain::layout::roles_by_any_name)]
    pub gpu_map: BTreeMap<Role, GpuRef>,
    /// The content of the layout instead of a version; it need not be stored.
    #[serde(default)]
    pub layout: Option<Layout>,
}

/// A layout as it would be on a daemon.
pub(in crate::service) struct Projected {
    pub(in crate::service) daemon: Daemon,
    pub(in crate::service) active: ActiveLayout,
    pub(in crate::service) layout: Layout,
}

/// A request to apply a layout to a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// The daemon.
    pub daemon: DaemonName,
    /// The version; by default the newest.
    #[serde(default)]
    #[schema(minimum = 1)]
    pub version: Option<u32>,
    /// The content of the layout instead of a version: stored as a new version if it differs, together with the operation,
    /// and not at all if the request is refused.
    #[serde(default)]
    pub layout: Option<Layout>,
    /// The GPU of each role, as for a plan.
    #[serde(default)]
    #[schema(schema_with = crate::domain::layout::roles_by_any_name)]
    pub gpu_map: BTreeMap<Role, GpuRef>,
    /// True to allow that partitions that stay are recreated, which may change their IDs.
    #[serde(default)]
    pub recreate: bool,
    /// Limit of the wait for the clients of partitions that are removed, in one operation with the change: the tenants bound to them admit
    /// no process meanwhile. Left out, such clients block the change.
    #[serde(default)]
    pub drain: Option<DrainLimit>,
    /// Reaction to drift of partitions; by default, the daemon's present setting.
    #[serde(default)]
    pub drift_policy: Option<PartitionPolicy>,
    /// The `digest` of the plan that the caller has seen: refused, with nothing changed, if the plan is now a different one.
    #[serde(default)]
    #[schema(pattern = "^[0-9a-f]{64}$")]
    pub plan: Option<String>,
    /// The reason, which is also the note of a version that is created.
    #[serde(default)]
    #[schema(
        max_length = 1024,
        pattern = "^[^\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb]*$"
    )]
    pub note: Option<String>,
}

impl ApplyRequest {
    fn target(&self) -> LayoutTarget {
        let Self { daemon, version, layout, gpu_map, .. } = self.clone();
        LayoutTarget { daemon, version, gpu_map, layout }
    }
}

/// The content that a request contains.
pub(in crate::service) struct OwnedVersion {
    layout: Layout,
    author: String,
    note: Option<String>,
}

impl OwnedVersion {
    /// Its version number: `candidate` if that version is equal, otherwise a new one.
    async fn written(
        &self,
        db: store::Transaction<'_>,
        name: &LayoutName,
        candidate: u32,
        clock: Clock,
    ) -> Result<u32> {
        let wanted = VersionRef { name: name.clone(), version: candidate };
        let stored = store::layouts::version(&mut *db, &wanted).await?;
        if stored.is_some_and(|stored| stored.layout == self.layout) {
            return Ok(candidate);
        }
        let before = store::layouts::newest(&mut *db, name).await?;
        let Self { layout, author, note } = self;
        let new = NewVersion { layout, author, note: note.as_deref(), provenance: None };
        Ok(put_if_new(db, name, before.as_ref(), &new, clock.unix_ms()).await?.version)
    }
}

impl From<OutlookError> for ServiceError {
    fn from(error: OutlookError) -> Self {
        match error {
            OutlookError::Fresh(error) => error.into(),
            OutlookError::Store(error) => error.into(),
            OutlookError::Unfit(why) => Self::Conflict(why),
        }
    }
}

impl Service {
    /// Plans a layout for a daemon on a poll that is no older than `age`.
    pub async fn plan_layout(
        &self,
        ctx: &RequestContext,
        name: &LayoutName,
        target: &LayoutTarget,
        age: Duration,
    ) -> Result<LayoutPlan> {
        let backend = self.with(&ctx.require(Right::View)?);
        let projected = backend.projected(name, target).await?;
        backend.plan_of(&projected, age).await
    }

    /// Compares a daemon with a layout on a fresh poll.
    pub async fn assert_layout(
        &self,
        ctx: &RequestContext,
        name: &LayoutName,
        target: &LayoutTarget,
    ) -> Result<Assertion> {
        let backend = self.with(&ctx.require(Right::View)?);
        let Projected { daemon, active, layout } = backend.projected(name, target).await?;
        let timeout = backend.parts.timeout;
        let polled = backend
            .parts
            .engine
            .poll_for_layout(&target.daemon, &active, &layout, Duration::ZERO, timeout)
            .await?;
        let status = &polled.observed.status;
        let effective = status.effective.as_ref();
        let spec = daemon.spec.layout.as_ref();
        let differences = if layout.enforcement == Enforcement::Percentage {
            let shares = backend.parts.engine.shares(&active, &layout).await?;
            share_differences(&active, spec, &shares, status)
        } else {
            match effective.and_then(|effective| effective.partitions.as_deref()) {
                None => spec_difference(&active, spec)
                    .into_iter()
                    .chain([not_listed(&target.daemon, status)])
                    .collect(),
                Some(present) => differences(&Asserted {
                    active: &active,
                    steps: &polled.desired.steps,
                    expected: polled.desired.expected.as_deref(),
                    spec,
                    run: polled.run.as_ref(),
                    present,
                }),
            }
        };
        let observed_at = effective.map_or_else(|| backend.parts.clock.unix_ms(), |read| read.observed_at);
        let partitions = layout.partitions().count();
        Ok(Assertion { matches: differences.is_empty(), partitions, differences, observed_at })
    }

    /// Requests that a layout be applied to a daemon; if its plan is blocked, that is refused at once.
    pub async fn apply_layout(
        &self,
        ctx: &RequestContext,
        name: LayoutName,
        request: ApplyRequest,
        options: WriteOptions,
    ) -> Result<Operation> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let author = ctx.actor.subject.to_string();
        check_note(request.note.as_deref())?;
        check_digest(request.plan.as_deref())?;
        if let Some(limit) = request.drain {
            checked_drain("/drain/timeout_s", limit.timeout_s)?;
        }
        if let Some(answered) = backend.answered(ctx).await? {
            return Ok(answered);
        }
        let projected = backend.projected(&name, &request.target()).await?;
        let plan = backend.plan_of(&projected, Duration::ZERO).await?;
        refuse_blocked(&plan, Allowed { recreate: request.recreate, drain: request.drain.is_some() })?;
        refuse_another(&plan, request.plan.as_deref())?;
        let Projected { daemon, active, .. } = projected;
        let permit = permit.applying(&active.version_ref(), &daemon.name);
        let before = daemon.spec.layout.map(|layout| layout.drift_policy);
        let drift_policy = request.drift_policy.or(before).unwrap_or_default();
        let ActiveLayout { name, version, gpu_map, .. } = active;
        let ApplyRequest { layout, recreate, drain, note, .. } = request;
        let operation = OperationRequest::ApplyLayout {
            layout: name,
            version,
            gpu_map,
            drift_policy,
            recreate,
            drain,
            note: note.clone(),
        };
        let new = layout.map(|layout| OwnedVersion { layout, author, note });
        backend.request_layout(&permit, daemon.name, operation, new, options).await
    }
}

impl Backend {
    pub(in crate::service) async fn request_layout(
        &self,
        permit: &Permit,
        name: DaemonName,
        mut request: OperationRequest,
        new: Option<OwnedVersion>,
        options: WriteOptions,
    ) -> Result<Operation> {
        let clock = self.parts.clock;
        transact!(self, request_operation(permit, options), |db, _| {
            may_change(&mut *db, &name, &request).await?;
            if let (Some(new), OperationRequest::ApplyLayout { layout, version, .. }) = (&new, &mut request) {
                *version = new.written(db, layout, *version, clock).await?;
            }
            Ok((request, vec![name]))
        })
    }

    /// Plans a layout for its daemon on a poll that is no older than `age`, with the processes that have to move.
    pub(in crate::service) async fn plan_of(
        &self,
        projected: &Projected,
        age: Duration,
    ) -> Result<LayoutPlan> {
        let Projected { daemon, active, layout } = projected;
        let plan =
            self.parts.engine.layout_plan(&daemon.name, active, layout, age, self.parts.timeout).await?;
        let status = self
            .parts
            .fleet
            .get(&daemon.name)
            .and_then(|handle| handle.of_observed(|observed| observed.status.layout.clone()));
        let before = status.map(|layout| layout.partitions).unwrap_or_default();
        // With percentages, no process can block another.
        let partitioned = layout.enforcement == Enforcement::Static && !before.is_empty();
        let daemons = partitioned.then(|| daemon.name.clone()).into_iter().collect();
        let occupants = self.occupants(&daemons).await?;
        let moves = moves(&before, &plan.tenants, |partition, bound| {
            occupants.foreign_occupants(&daemon.name, partition, bound)
        });
        Ok(plan.moving(moves))
    }

    /// The layout as it would be in the daemon's spec; refused if the daemon cannot hold it.
    pub(in crate::service) async fn projected(
        &self,
        name: &LayoutName,
        target: &LayoutTarget,
    ) -> Result<Projected> {
        let mut reader = self.parts.store.read().await?;
        let daemon = store::daemons::get(&mut reader, &target.daemon).await?;
        let daemon = daemon.found("daemon", &target.daemon)?;
        let newest = store::layouts::newest(&mut reader, name).await?;
        let (version, layout) = match (&target.layout, target.version) {
            (Some(_), Some(_)) => {
                return Err(ServiceError::field("/version", "give a version or a layout, and not both"));
            }
            (Some(layout), None) => {
                layout.check().map_err(|error| invalid("/layout", error))?;
                // Content equal to the daemon's version is that version.
                let held = match daemon.spec.layout.as_ref().filter(|held| held.name == *name) {
                    Some(held) => store::layouts::version(&mut reader, &held.version_ref()).await?,
                    None => None,
                };
                let same = held.iter().chain(&newest).find(|version| version.layout == *layout);
                let next = match same {
                    Some(same) => same.version,
                    None => store::layouts::next_number(&mut reader, name).await?,
                };
                (next, layout.clone())
            }
            (None, None) => {
                let newest = newest.found("layout", name)?;
                (newest.version, newest.layout)
            }
            (None, Some(version)) => {
                let wanted = VersionRef { name: name.clone(), version };
                let stored = store::layouts::version(&mut reader, &wanted).await?;
                (version, stored.ok_or_else(|| no_version(&wanted))?.layout)
            }
        };
        drop(reader);
        // A role keeps its GPU unless the request names another.
        let held = daemon.spec.layout.as_ref().filter(|held| held.name == *name);
        let held = held.map(|held| held.gpu_map.clone()).unwrap_or_default();
        let gpu_map = self.mapped(&daemon, &layout, held, &target.gpu_map).await?;
        let drift_policy = daemon.spec.layout.as_ref().map(|layout| layout.drift_policy).unwrap_or_default();
        let active = ActiveLayout { name: name.clone(), version, gpu_map, drift_policy };
        Ok(Projected { daemon, active, layout })
    }

    /// The GPU of each role; refused if the daemon cannot hold the layout.
    pub(in crate::service) async fn mapped(
        &self,
        daemon: &Daemon,
        layout: &Layout,
        held: GpuMap,
        given: &BTreeMap<Role, GpuRef>,
    ) -> Result<GpuMap> {
        let lacks_static = self.parts.fleet.context().capability.lacks_static();
        refuse_mode(&daemon.name, daemon.spec.mode, layout.enforcement, lacks_static.as_deref())?;
        refuse_strategy(&daemon.name, &daemon.spec)?;
        let gpus = self.gpus().await?;
        let roles = layout.roles();
        let mut named: GpuMap = held.into_iter().filter(|(role, _)| roles.contains(role)).collect();
        for (role, gpu) in given {
            let gpu = gpu
                .resolve(&gpus)
                .map_err(|error| ServiceError::field(&format!("/gpu_map/{role}"), error.to_string()))?;
            named.insert(*role, gpu.uuid.clone());
        }
        map_roles(layout, &named, &daemon.spec.gpus, &gpus)
            .map_err(|error| ServiceError::field("/gpu_map", error.to_string()))
    }
}

/// Refuses to change the partitions of a daemon that is only observed, in maintenance, or used by another operation.
pub(in crate::service) async fn may_change(
    db: store::Transaction<'_>,
    name: &DaemonName,
    request: &OperationRequest,
) -> Result<()> {
    let daemon = store::daemons::get(&mut *db, name).await?.found("daemon", name)?;
    refuse_strategy(name, &daemon.spec)?;
    if daemon.spec.is_observed() {
        return Err(conflict!(
            "daemon {name} is only observed and never changed ({} refused): set its management to managed first, or have its \
             owner do it",
            request.kind()
        ));
    }
    refuse_in_maintenance(&mut *db, name, &daemon.spec).await?;
    match store::operations::unfinished(db, name).await? {
        None => Ok(()),
        Some(other) => Err(conflict!(
            "operation {other} is changing daemon {name}, so a plan made now would be outdated: wait for it, or cancel it"
        )),
    }
}

/// Refuses a malformed plan digest.
fn check_digest(digest: Option<&str>) -> Result<()> {
    let is_one =
        |text: &str| text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match digest {
        Some(text) if !is_one(text) => Err(ServiceError::field(
            "/plan",
            "this is not the digest of a plan: give the digest of a plan, or none",
        )),
        _ => Ok(()),
    }
}

/// Refuses a plan that differs from the one the caller has seen.
fn refuse_another(plan: &LayoutPlan, digest: Option<&str>) -> Result<()> {
    match digest {
        Some(digest) if digest != plan.digest => Err(conflict!(
            "the plan of layout {} version {} on daemon {} has changed since it was shown, and nothing was changed: review the new \
             plan, and apply that one",
            plan.layout,
            plan.version,
            plan.daemon
        )),
        _ => Ok(()),
    }
}

/// Refuses a blocked plan, with each blocker.
pub(in crate::service) fn refuse_blocked(plan: &LayoutPlan, allowed: Allowed) -> Result<()> {
    let errors: Vec<FieldError> = plan
        .refusals(allowed)
        .map(|blocked| FieldError {
            pointer: blocked.what.pointer().to_owned(),
            detail: blocked.message.clone(),
        })
        .collect();
    let Some(first) = errors.first() else { return Ok(()) };
    let more = match errors.len() {
        1 => String::new(),
        several => format!(" (and {} more)", several - 1),
    };
    let detail = format!(
        "layout {} version {} cannot be put on daemon {}, and nothing was changed: {}{more}",
        plan.layout, plan.version, plan.daemon, first.detail
    );
    Err(ServiceError::Blocked { detail, errors })
}
