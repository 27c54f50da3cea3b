//! Daemons as several pages read and show them.

use crate::domain::layout::VersionRef;
use crate::http::extract::Call;
use crate::http::pages::format::{self, Badge};
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;
use crate::service::tenants::clients::ClientFilter;

/// A daemon in one line.
pub(in crate::http::pages) struct DaemonSummary {
    pub(in crate::http::pages) daemon: DaemonView,
    pub(in crate::http::pages) badge: Badge,
    /// Its connected clients.
    pub(in crate::http::pages) clients: usize,
}

impl DaemonSummary {
    pub(in crate::http::pages) fn of(daemon: DaemonView, clients: usize) -> Self {
        Self { badge: format::daemon(daemon.status.as_ref()), clients, daemon }
    }

    pub(in crate::http::pages) fn layout(&self) -> Option<(Option<VersionRef>, Badge)> {
        let status = self.daemon.status.as_ref()?.layout.as_ref()?;
        Some((status.version_ref(), Badge::of(status.state.as_str())))
    }
}

/// All daemons with their numbers of clients.
pub(in crate::http::pages) async fn daemon_rows(call: &Call) -> Result<Vec<DaemonSummary>, ServiceError> {
    let clients = call.clients(ClientFilter::default()).await?;
    let row = |daemon: DaemonView| {
        let clients = clients.iter().filter(|client| client.daemon == daemon.name).count();
        DaemonSummary::of(daemon, clients)
    };
    Ok(call.daemons().await?.into_iter().map(row).collect())
}
