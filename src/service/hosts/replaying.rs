//! Replays of a layout of this host on others: which of them are ready for it, what would make one ready, and the replay itself.

use futures_util::future::join_all;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::answers::{RemoteDaemon, RemoteGpu, RemoteReplayAccepted};
use super::remote::{LONGEST, RemoteError, RemoteHost, RemoteList, no_answer};
use super::{NO_TOKEN, target};
use crate::domain::access::Right;
use crate::domain::count::counted;
use crate::domain::daemon::Mode;
use crate::domain::layout::comparison::{HeldLayout, LayoutComparison};
use crate::domain::layout::document::Document;
use crate::domain::layout::replay::Replay;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::layout::{Enforcement, VersionRef};
use crate::domain::saved_host::SavedHost;
use crate::domain::{DaemonName, HostName, LayoutName};
use crate::service::access::context::RequestContext;
use crate::service::error::conflict;
use crate::service::{Result, Service, ServiceError};
use crate::store::saved_hosts::SavedHostRow;
use crate::store::{self, TransactionEnd, transact};

/// Daemons of a host that are asked if they could take a layout.
const MOST_TARGETS: usize = 4;
/// Prospect of a replay on another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplayOutlook {
    /// A daemon has the layout already, as `5/5 IDs` say.
    Same(DaemonName, String),
    /// It can begin on this daemon.
    Ready(DaemonName),
    /// It could begin after this change.
    Preparable(Preparation),
    /// It would be refused, or the host cannot be read.
    Blocked(String),
}

/// A change of another host that gives it a daemon for the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preparation {
    /// The daemon that is changed or created.
    pub daemon: DaemonName,
    /// The change in words.
    pub words: String,
    spec: Value,
    if_match: Option<String>,
}

/// A layout as it is in force on a daemon of this host.
struct LayoutInForce {
    document: Document,
    here: HeldLayout,
    enforcement: Enforcement,
    version: VersionRef,
}

impl LayoutInForce {
    /// The mode that a daemon needs for it.
    fn mode(&self) -> Mode {
        match self.enforcement {
            Enforcement::Static => Mode::Static,
            Enforcement::Percentage => Mode::Shared,
        }
    }

    /// The product of its GPUs, and their number.
    fn gpus(&self) -> (Option<&str>, usize) {
        let entry = &self.document.layouts[&self.here.name];
        let recorded = entry.recorded.as_ref().map(|recorded| recorded.fingerprint.sku.as_str());
        (recorded.or(entry.sku.as_deref()), entry.layout().roles().len())
    }

    /// Returns the daemons of another host that it could be replayed on: those in the right mode, first the one of the same name and those
    /// without a layout; a few.
    fn targets<'d>(&self, daemons: &'d [RemoteDaemon]) -> Vec<&'d RemoteDaemon> {
        let mut fit: Vec<&RemoteDaemon> =
            daemons.iter().filter(|daemon| daemon.spec.is_in(self.mode()) && daemon.is_managed()).collect();
        fit.sort_by_key(|daemon| (daemon.name != self.here.daemon, daemon.spec.layout.is_some()));
        fit.truncate(MOST_TARGETS);
        fit
    }

    fn request(&self, daemon: &DaemonName) -> Value {
        json!({ "document": self.document, "entry": self.here.name, "daemon": daemon })
    }
}

impl Service {
    /// The saved hosts, each with the prospect of a replay of a layout that a daemon of this host has.
    pub async fn replay_outlooks(
        &self,
        ctx: &RequestContext,
        name: &LayoutName,
        daemon: &DaemonName,
    ) -> Result<Vec<(SavedHost, ReplayOutlook)>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let layout = self.replayed(ctx, name, daemon).await?;
        let stored = store::saved_hosts::all(&mut *backend.parts.store.read().await?).await?;
        let layout = &layout;
        let prospect = |stored: SavedHostRow| async move {
            match backend.other_host(stored.clone()).await.reading {
                Ok(_) => prospect(backend.connected(stored), layout).await,
                Err(why) => (stored.host, ReplayOutlook::Blocked(why)),
            }
        };
        Ok(join_all(stored.into_iter().map(prospect)).await)
    }

    /// Gives another host a daemon for a layout, by the change that was `shown`; the next outlook shows if it was enough.
    pub async fn prepare_host(
        &self,
        ctx: &RequestContext,
        host: &HostName,
        name: &LayoutName,
        daemon: &DaemonName,
        shown: &str,
    ) -> Result<()> {
        let permit = ctx.require(Right::Operate)?.on(target(host));
        let backend = self.with(&permit);
        backend.refuse_sealed().await?;
        let layout = self.replayed(ctx, name, daemon).await?;
        let remote = backend.remote_host(host).await?;
        let change = match remote.outlook(&layout).await.map_err(|error| error.on(host))? {
            ReplayOutlook::Preparable(change) if change.words == shown => change,
            _ => return Err(conflict!("{host} has changed meanwhile: see below what would be done now")),
        };
        remote.put(&change, false).await.map_err(|error| error.on(host))?;
        transact!(backend, write(&permit), |_db| Ok(((), TransactionEnd::Commit)))?;
        backend.others.forget(host);
        Ok(())
    }

    /// Replays a layout on a daemon of another host, and waits a few seconds for the end of it.
    pub async fn replay_to(
        &self,
        ctx: &RequestContext,
        host: &HostName,
        name: &LayoutName,
        daemon: &DaemonName,
        target: &DaemonName,
    ) -> Result<Replay> {
        let permit = ctx.require(Right::Operate)?.on(super::target(host));
        let backend = self.with(&permit);
        backend.refuse_sealed().await?;
        let layout = self.replayed(ctx, name, daemon).await?;
        let remote = backend.remote_host(host).await?;
        let on = |error: RemoteError| error.on(host);
        // The other host refuses what has changed since its outlook was shown.
        let request = Some(layout.request(target));
        let (accepted, _) =
            remote.send::<RemoteReplayAccepted>("POST", "/replays", request, None).await.map_err(on)?;
        let permit = permit.applying(&layout.version, target);
        transact!(backend, write(&permit), |_db| Ok(((), TransactionEnd::Commit)))?;
        let ended = format!("/operations/{}?wait_s=5", accepted.operation.id);
        remote.get::<IgnoredAny>(&ended).await.map_err(on)?;
        backend.others.forget(host);
        let record = remote.get(&format!("/replays/{}", accepted.replay)).await;
        record.map_err(|error| match error {
            RemoteError::Unreadable(_) => ServiceError::Unavailable(format!(
                "{host}: the replay was made there, but its record cannot be read here: {error}. See replay {} there",
                accepted.replay
            )),
            error => on(error),
        })
    }

    /// The record of a replay on another host.
    pub async fn remote_replay(
        &self,
        ctx: &RequestContext,
        host: &HostName,
        id: uuid::Uuid,
    ) -> Result<Replay> {
        let backend = self.with(&ctx.require(Right::View)?);
        let remote = backend.remote_host(host).await?;
        remote.get(&format!("/replays/{id}")).await.map_err(|error| error.on(host))
    }

    async fn replayed(
        &self,
        ctx: &RequestContext,
        name: &LayoutName,
        daemon: &DaemonName,
    ) -> Result<LayoutInForce> {
        let document = self.export_layout(ctx, name, daemon).await?;
        let layout = self.daemon(ctx, daemon, false).await?.status.and_then(|status| status.layout);
        let here = HeldLayout::of(daemon, layout.as_ref()).filter(|here| here.name == *name);
        let version = layout.as_ref().and_then(LayoutStatus::version_ref);
        let (Some(here), Some(layout), Some(version)) = (here, layout, version) else {
            return Err(conflict!("daemon {daemon} does not have layout {name} now: apply it there first"));
        };
        Ok(LayoutInForce { document, here, enforcement: layout.enforcement, version })
    }
}

async fn prospect(
    (saved, host): (SavedHost, Option<RemoteHost<'_>>),
    layout: &LayoutInForce,
) -> (SavedHost, ReplayOutlook) {
    let outlook = match host {
        Some(host) => match timeout(LONGEST, host.outlook(layout)).await {
            Ok(outlook) => outlook.map_err(|error| error.in_full()),
            Err(_) => Err(no_answer(&saved.url)),
        },
        None => Err(NO_TOKEN.to_owned()),
    };
    (saved, outlook.unwrap_or_else(ReplayOutlook::Blocked))
}

impl RemoteHost<'_> {
    async fn outlook(&self, layout: &LayoutInForce) -> Result<ReplayOutlook, RemoteError> {
        let daemons = self.daemons().await?;
        for daemon in &daemons {
            let Some(there) = daemon.layout() else { continue };
            if there.name != layout.here.name || !there.is_in_force() {
                continue;
            }
            let comparison = LayoutComparison::of(&layout.here, &there);
            if comparison.is_same() {
                return Ok(ReplayOutlook::Same(there.daemon, comparison.words()));
            }
        }
        let mut refusal = None;
        for daemon in layout.targets(&daemons) {
            let request = Some(layout.request(&daemon.name));
            match self.send::<Value>("POST", "/replays?dry_run=true", request, None).await {
                Ok(_) => return Ok(ReplayOutlook::Ready(daemon.name.clone())),
                Err(error @ RemoteError::Refused { .. }) => refusal = refusal.or(Some(error.in_full())),
                Err(error) => return Err(error),
            }
        }
        match (self.preparation(layout, &daemons).await?, refusal) {
            // A daemon in the right mode says better what is in the way.
            (ReplayOutlook::Blocked(_), Some(refusal)) => Ok(ReplayOutlook::Blocked(refusal)),
            (outlook, _) => Ok(outlook),
        }
    }

    /// Returns the change that gives the host a daemon for a layout: on GPUs that no daemon has, or of a daemon in another mode.
    async fn preparation(
        &self,
        layout: &LayoutInForce,
        daemons: &[RemoteDaemon],
    ) -> Result<ReplayOutlook, RemoteError> {
        let (sku, count) = layout.gpus();
        let gpus = self.get::<RemoteList<RemoteGpu>>("/gpus").await?.items;
        let of_product = || gpus.iter().filter(|gpu| gpu.present && gpu.name.as_deref() == sku);
        let free: Vec<&RemoteGpu> = of_product().filter(|gpu| gpu.daemon.is_none()).take(count).collect();
        let (own, mode) = (&layout.here.daemon, layout.mode());
        let is_taken = daemons.iter().any(|daemon| daemon.name == *own);
        let change = if free.len() == count && !is_taken {
            let uuids: Vec<_> = free.iter().map(|gpu| &gpu.uuid).collect();
            Preparation {
                daemon: own.clone(),
                words: format!("create daemon {own} in {} mode on {}", mode.as_str(), counted(count, "GPU")),
                spec: json!({ "gpus": uuids, "mode": mode }),
                if_match: None,
            }
        } else {
            let holds = |daemon: &&RemoteDaemon| {
                if daemon.spec.is_in(mode) {
                    return false;
                }
                let held = daemon.spec.gpus.iter().filter(|uuid| of_product().any(|gpu| gpu.uuid == **uuid));
                held.count() >= count && daemon.is_managed()
            };
            let mut holders = daemons.iter().filter(holds);
            let named = holders.clone().find(|daemon| daemon.name == *own);
            let Some(daemon) = named.or_else(|| holders.next()) else {
                let product = sku.unwrap_or("the same product");
                return Ok(ReplayOutlook::Blocked(format!(
                    "it has no daemon with {} of {product}",
                    counted(count, "GPU")
                )));
            };
            let (mut view, tag) =
                self.send::<Value>("GET", &format!("/daemons/{}", daemon.name), None, None).await?;
            view["spec"]["mode"] = json!(mode);
            Preparation {
                daemon: daemon.name.clone(),
                words: format!("switch daemon {} to {} mode", daemon.name, mode.as_str()),
                spec: view["spec"].take(),
                if_match: tag,
            }
        };
        match self.put(&change, true).await {
            Ok(()) => Ok(ReplayOutlook::Preparable(change)),
            Err(error @ RemoteError::Refused { .. }) => {
                Ok(ReplayOutlook::Blocked(format!("to {}: {}", change.words, error.in_full())))
            }
            Err(error) => Err(error),
        }
    }

    async fn put(&self, change: &Preparation, dry_run: bool) -> Result<(), RemoteError> {
        let path = format!("/daemons/{}?dry_run={dry_run}&wait_s=3", change.daemon);
        self.send::<Value>("PUT", &path, Some(change.spec.clone()), change.if_match.clone()).await.map(drop)
    }
}
