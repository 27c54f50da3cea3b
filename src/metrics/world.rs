//! What there is at the moment of a request, from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::control::Commands;
use super::families::{Families, number, seconds, truth};
use super::{daemons, tenants};
use crate::domain::client::{ClientFacts, Lease};
use crate::domain::daemon::{Daemon, DaemonStatus};
use crate::domain::gpu::Gpu;
use crate::domain::listening::Listening;
use crate::domain::tenant::Tenant;
use crate::domain::{GpuUuid, TenantName};

/// What there is.
#[derive(Debug)]
pub struct World {
    /// What was committed.
    pub committed: Arc<CommittedSnapshot>,
    /// What was seen of each daemon, by its name.
    pub seen: Vec<ObservedDaemon>,
    /// The GPUs that the driver listed last; `None` before the first list.
    pub present: Option<BTreeSet<GpuUuid>>,
    /// How many processes of each tenant wait for its daemon, where there are any.
    pub waiting: BTreeMap<TenantName, u64>,
    /// Jobs that wait for the database's writer.
    pub queue: usize,
    /// How the API is reached.
    pub listening: Listening,
    /// Whether the database belongs to another machine, so that nothing is managed.
    pub read_only: bool,
}

/// A daemon as it was seen last.
#[derive(Debug)]
pub struct ObservedDaemon {
    /// Its name.
    pub name: String,
    /// The generation that is wanted.
    pub generation: i64,
    /// What was seen.
    pub status: DaemonStatus,
    /// Its clients.
    pub clients: Vec<ClientFacts>,
    /// What talking to it took.
    pub commands: Arc<Commands>,
}

/// What was committed when it was read last: after each commit, and never in a request.
#[derive(Debug, Clone, Default)]
pub struct CommittedSnapshot {
    /// When it was read, in unix milliseconds.
    pub read_at: i64,
    /// All daemons.
    pub daemons: Vec<Daemon>,
    /// All tenants.
    pub tenants: Arc<Vec<Tenant>>,
    /// All leases of this boot.
    pub leases: Vec<Lease>,
    /// The GPUs that daemons hold, as they were seen last.
    pub gpus: Vec<Gpu>,
    /// Operations that have not ended, by state.
    pub unfinished: Vec<(&'static str, u64)>,
    /// Bytes of the database, its log not included.
    pub database_bytes: u64,
    /// Whether the host is in maintenance, or on its way there or back.
    pub maintenance: bool,
}

impl Collector for World {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        self.of_the_manager(&mut families)?;
        daemons::encode(self, &mut families)?;
        tenants::encode(self, &mut families)
    }
}

impl World {
    fn of_the_manager(&self, families: &mut Families<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        families.gauges(
            "build_info",
            "Always 1, with the version of the manager",
            None,
            [([("version", version)], 1.0)],
        )?;
        families.gauges::<0>(
            "read_only",
            "1 while the database belongs to another machine and nothing is managed",
            None,
            [([], truth(self.read_only))],
        )?;
        families.gauges::<0>(
            "maintenance",
            "1 while the host is in maintenance, or on its way there or back",
            None,
            [([], truth(self.committed.maintenance))],
        )?;
        families.gauges(
            "operations_unfinished",
            "Operations that have not ended, by state (pending, running)",
            None,
            self.committed
                .unfinished
                .iter()
                .map(|(state, count)| ([("state", (*state).to_owned())], number(*count))),
        )?;
        families.gauges::<0>(
            "store_queue_length",
            "Changes that wait for the database's writer",
            None,
            [([], number(u64::try_from(self.queue).unwrap_or(u64::MAX)))],
        )?;
        families.gauges::<0>(
            "store_file_size",
            "Size of the database, its log not included",
            Some(&Unit::Bytes),
            [([], number(self.committed.database_bytes))],
        )?;
        families.gauges::<0>(
            "store_read_timestamp",
            "When what is configured was read for these metrics, as Unix time; it is read after each commit, and each half minute",
            Some(&Unit::Seconds),
            [([], seconds(self.committed.read_at))],
        )?;
        let tls = self.listening.tls.as_ref();
        families.gauges::<0>(
            "tls_certificate_expiry_timestamp",
            "When the certificate that is served expires, as Unix time; absent without TLS",
            Some(&Unit::Seconds),
            tls.map(|tls| ([], seconds(tls.not_after))),
        )?;
        families.gauges::<0>(
            "tls_certificate_reload_failed",
            "1 while the certificate's files cannot be used, and the one from before is served; absent without TLS",
            None,
            tls.map(|tls| ([], truth(tls.reload_error.is_some()))),
        )?;
        families.gauges::<0>(
            "listening_insecure",
            "1 while callers beyond this host are served without TLS",
            None,
            [([], truth(self.listening.insecure))],
        )
    }
}
