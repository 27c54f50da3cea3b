//! Readings of this host and of the others.

use std::sync::Arc;

use futures_util::future::join_all;
use serde::de::IgnoredAny;
use tokio::task::JoinHandle;

use super::NO_TOKEN;
use super::answers::{RemoteDaemon, RemoteHostFacts};
use super::remote::{RemoteError, RemoteHost, RemoteList};
use super::row::{HostReading, HostState, Kept};
use crate::domain::access::Right;
use crate::domain::daemon::Phase;
use crate::domain::layout::comparison::HeldLayout;
use crate::service::access::context::RequestContext;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::ClientFilter;
use crate::service::{Backend, Result, Service};
use crate::store;
use crate::store::saved_hosts::SavedHostRow;

impl Service {
    /// This host and the saved ones, each with its state.
    pub async fn host_rows(&self, ctx: &RequestContext) -> Result<Vec<HostState>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let every = Page::first(MAX_LIMIT);
        let (host, daemons) = (self.host(ctx).await?, self.daemons(ctx, &every).await?.items);
        let statuses = || daemons.iter().filter_map(|daemon| Some((&daemon.name, daemon.status.as_ref()?)));
        let own = HostReading {
            hostname: host.hostname,
            simulated: host.simulated,
            manager_version: host.manager_version,
            gpus: host.gpus,
            daemons: daemons.len(),
            ready_daemons: statuses().filter(|(_, status)| status.phase == Phase::Ready).count(),
            open_incidents: usize::try_from(self.open_incidents(ctx).await?).unwrap_or(usize::MAX),
            clients: self.clients(ctx, &ClientFilter::default(), false, &every).await?.items.len(),
            layouts: statuses()
                .filter_map(|(name, status)| HeldLayout::of(name, status.layout.as_ref()))
                .collect(),
        };
        let stored = store::saved_hosts::all(&mut *backend.parts.store.read().await?).await?;
        let others = join_all(stored.into_iter().map(|stored| backend.other_host(stored))).await;
        Ok(std::iter::once(HostState { saved: None, reading: Ok(own) }).chain(others).collect())
    }
}

impl Backend {
    /// The state of a saved host. One that could not be read a moment ago keeps nobody waiting: it is read again beside the caller.
    pub(super) async fn other_host(self: &Arc<Self>, stored: SavedHostRow) -> HostState {
        let saved = stored.host.clone();
        let kept = self.others.kept(&saved);
        let down = kept.as_ref().and_then(Kept::why_down).cloned();
        let reading = match (kept, down) {
            (Some(kept), _) if kept.is_fresh() => kept.reading,
            (_, Some(why)) => {
                if self.others.turn(&saved.name).try_lock().is_ok() {
                    drop(self.read_in_turn(stored));
                }
                Err(why)
            }
            // A task of its own: the reading is kept, also if the caller leaves before it is made.
            _ => self.read_in_turn(stored).await.unwrap_or_else(|error| Err(error.to_string())),
        };
        HostState { saved: Some(saved), reading }
    }

    /// Reads a host, unless another caller has read it when its turn comes.
    fn read_in_turn(self: &Arc<Self>, stored: SavedHostRow) -> JoinHandle<Result<HostReading, String>> {
        let backend = Arc::clone(self);
        let since = self.others.changes(&stored.host.name);
        self.parts.tasks.spawn(async move {
            let turn = backend.others.turn(&stored.host.name);
            let _turn = turn.lock().await;
            if let Some(kept) = backend.others.kept(&stored.host).filter(Kept::is_fresh) {
                return kept.reading;
            }
            let (saved, connection) = backend.connected(stored);
            let reading = match connection {
                Some(host) => host.reading().await.map_err(|error| error.in_full()),
                None => Err(NO_TOKEN.to_owned()),
            };
            backend.others.keep(&saved, since, reading.clone());
            reading
        })
    }
}

impl RemoteHost<'_> {
    pub(super) async fn daemons(&self) -> Result<Vec<RemoteDaemon>, RemoteError> {
        Ok(self.get::<RemoteList<RemoteDaemon>>("/daemons?limit=1000").await?.items)
    }

    async fn reading(&self) -> Result<HostReading, RemoteError> {
        let (host, daemons, incidents, clients) = tokio::try_join!(
            self.get::<RemoteHostFacts>("/host"),
            self.daemons(),
            self.get::<RemoteList<IgnoredAny>>("/incidents?state=open&limit=1000"),
            self.get::<RemoteList<IgnoredAny>>("/clients?limit=1000"),
        )?;
        Ok(HostReading {
            hostname: host.hostname,
            simulated: host.simulated,
            manager_version: host.manager_version,
            gpus: host.gpus,
            daemons: daemons.len(),
            ready_daemons: daemons.iter().filter(|daemon| daemon.is_ready()).count(),
            open_incidents: incidents.items.len(),
            clients: clients.items.len(),
            layouts: daemons.iter().filter_map(RemoteDaemon::layout).collect(),
        })
    }
}
