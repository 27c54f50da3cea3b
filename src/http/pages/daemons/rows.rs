//! Daemons as several pages read and show them.

use crate::domain::{DaemonName, GpuUuid};
use crate::http::AppState;
use crate::http::pages::format::{self, Badge, layout};
use crate::http::pages::gpus::{GpuRow, named};
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::{ClientFilter, ClientView};

/// A daemon in one line.
pub(in crate::http::pages) struct DaemonSummary {
    pub(in crate::http::pages) daemon: DaemonView,
    pub(in crate::http::pages) badge: Badge,
    /// The display names of its GPUs.
    pub(in crate::http::pages) gpus: Vec<(GpuUuid, String)>,
    /// Its connected clients.
    pub(in crate::http::pages) clients: usize,
}

impl DaemonSummary {
    /// A daemon with this number of clients, on a host with these GPUs.
    pub(in crate::http::pages) fn of(daemon: DaemonView, gpus: &[GpuRow], clients: usize) -> Self {
        Self {
            badge: format::daemon(daemon.status.as_ref()),
            gpus: named(gpus, &daemon.spec.gpus),
            clients,
            daemon,
        }
    }

    pub(in crate::http::pages) fn layout(&self) -> Option<(String, Badge)> {
        let status = self.daemon.status.as_ref()?.layout.as_ref()?;
        let version =
            status.version_ref().map_or_else(|| "being removed".to_owned(), |version| version.to_string());
        Some((version, layout(status.state)))
    }
}

/// The daemons with their numbers of clients.
pub(in crate::http::pages) async fn daemon_rows(
    app: &AppState,
    ctx: &RequestContext,
    gpus: &[GpuRow],
    page: &Page,
) -> Result<Vec<DaemonSummary>, Problem> {
    let mut daemons = app.service.daemons(ctx, page).await?.items;
    daemons.sort_by_cached_key(|daemon| daemon.name.natural_key());
    let clients = app.service.clients(ctx, &ClientFilter::default(), false, page).await?.items;
    let row = |daemon: DaemonView| {
        let clients = clients.iter().filter(|client| client.daemon == daemon.name).count();
        DaemonSummary::of(daemon, gpus, clients)
    };
    Ok(daemons.into_iter().map(row).collect())
}

/// The names of the daemons, for a filter or a form.
pub(in crate::http::pages) async fn daemon_names(
    app: &AppState,
    ctx: &RequestContext,
) -> Result<Vec<DaemonName>, Problem> {
    let mut daemons = app.service.daemons(ctx, &Page::first(MAX_LIMIT)).await?.items;
    daemons.sort_by_cached_key(|daemon| daemon.name.natural_key());
    Ok(daemons.into_iter().map(|daemon| daemon.name).collect())
}

/// The clients of a daemon.
pub(super) async fn clients(
    app: &AppState,
    ctx: &RequestContext,
    name: &DaemonName,
) -> Result<Vec<ClientView>, Problem> {
    let filter = ClientFilter { daemon: Some(name.clone()), tenant: None };
    let all = Page::first(MAX_LIMIT);
    Ok(app.service.clients(ctx, &filter, false, &all).await?.items)
}
