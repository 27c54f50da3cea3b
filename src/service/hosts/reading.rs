//! Readings of this host and of the others.

use std::sync::Arc;

use futures_util::future::join_all;
use serde::de::IgnoredAny;

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
    /// The state of a saved host. One that gave no answer keeps nobody waiting again: it is read in the background.
    async fn other_host(self: &Arc<Self>, stored: SavedHostRow) -> HostState {
        let (saved, turn) = (stored.host.clone(), self.others.turn(&stored.host.name));
        let reading = match self.others.kept(&saved.name) {
            Some(Kept { reading, is_fresh: true }) => reading,
            Some(Kept { reading: Err(why), .. }) => {
                if let Ok(turn) = turn.try_lock_owned() {
                    let backend = Arc::clone(self);
                    self.parts.tasks.spawn(async move {
                        let _ = backend.read_other(stored).await;
                        drop(turn);
                    });
                }
                Err(why)
            }
            _ => {
                let _turn = turn.lock().await;
                // Another caller may have read it in the meantime.
                match self.others.kept(&saved.name) {
                    Some(Kept { reading, is_fresh: true }) => reading,
                    _ => self.read_other(stored).await,
                }
            }
        };
        HostState { saved: Some(saved), reading }
    }

    async fn read_other(&self, stored: SavedHostRow) -> Result<HostReading, String> {
        let since = self.others.changes();
        let (saved, connection) = self.connected(stored);
        let reading = match connection {
            Some(host) => host.reading().await.map_err(|error| error.in_full()),
            None => Err(NO_TOKEN.to_owned()),
        };
        self.others.keep(saved.name, since, reading.clone());
        reading
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
