//! Readings of this host and of the others.

use futures_util::future::join_all;
use serde::de::IgnoredAny;

use super::NO_TOKEN;
use super::remote::{RemoteError, RemoteHost, RemoteList};
use super::row::{HostReading, HostState};
use crate::domain::access::Right;
use crate::domain::daemon::Phase;
use crate::domain::layout::comparison::HeldLayout;
use crate::domain::saved_host::SavedHost;
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::host::HostView;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::ClientFilter;
use crate::service::{Backend, Result, Service};

impl HostReading {
    fn of(host: HostView, daemons: &[DaemonView], open_incidents: usize, clients: usize) -> Self {
        let statuses = || daemons.iter().filter_map(|daemon| Some((&daemon.name, daemon.status.as_ref()?)));
        Self {
            hostname: host.hostname,
            simulated: host.simulated,
            manager_version: host.manager_version,
            gpus: host.gpus,
            daemons: daemons.len(),
            ready_daemons: statuses().filter(|(_, status)| status.phase == Phase::Ready).count(),
            open_incidents,
            clients,
            layouts: statuses()
                .filter_map(|(name, status)| HeldLayout::of(name, status.layout.as_ref()))
                .collect(),
        }
    }
}

impl Service {
    /// This host and the saved ones, each with its state.
    pub async fn host_rows(&self, ctx: &RequestContext) -> Result<Vec<HostState>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let every = Page::first(MAX_LIMIT);
        let (host, daemons) = (self.host(ctx).await?, self.daemons(ctx, &every).await?.items);
        let open_incidents = usize::try_from(self.open_incidents(ctx).await?).unwrap_or(usize::MAX);
        let clients = self.clients(ctx, &ClientFilter::default(), false, &every).await?.items.len();
        let own = HostReading::of(host, &daemons, open_incidents, clients);
        let mut rows = vec![HostState { saved: None, reading: Ok(own) }];
        rows.extend(backend.others.read(backend.other_hosts()).await?);
        Ok(rows)
    }
}

impl Backend {
    async fn other_hosts(&self) -> Result<Vec<HostState>> {
        let hosts = self.remote_hosts().await?;
        Ok(join_all(hosts.into_iter().map(|(saved, connection)| row(saved, connection))).await)
    }
}

async fn row(saved: SavedHost, connection: Option<RemoteHost<'_>>) -> HostState {
    let reading = match connection {
        Some(host) => host.reading().await.map_err(|error| error.in_full()),
        None => Err(NO_TOKEN.to_owned()),
    };
    HostState { saved: Some(saved), reading }
}

impl RemoteHost<'_> {
    pub(super) async fn daemons(&self) -> Result<Vec<DaemonView>, RemoteError> {
        Ok(self.get::<RemoteList<DaemonView>>("/daemons?limit=1000").await?.items)
    }

    async fn reading(&self) -> Result<HostReading, RemoteError> {
        let (host, daemons, incidents, clients) = tokio::try_join!(
            self.get("/host"),
            self.daemons(),
            self.get::<RemoteList<IgnoredAny>>("/incidents?state=open&limit=1000"),
            self.get::<RemoteList<IgnoredAny>>("/clients?limit=1000"),
        )?;
        Ok(HostReading::of(host, &daemons, incidents.items.len(), clients.items.len()))
    }
}
