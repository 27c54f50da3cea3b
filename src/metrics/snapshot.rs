//! What there is at the moment of a request, from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::control::Commands;
use crate::domain::client::{ClientFacts, Lease};
use crate::domain::daemon::{Daemon, DaemonStatus};
use crate::domain::gpu::Gpu;
use crate::domain::incident::IncidentKind;
use crate::domain::listening::HostListening;
use crate::domain::tenant::Tenant;
use crate::domain::{GpuUuid, TenantName};

/// What there is.
#[derive(Debug)]
pub struct MetricsSnapshot {
    /// What was committed.
    pub committed: Arc<CommittedSnapshot>,
    /// What was seen of each daemon, by its name.
    pub seen: Vec<ObservedDaemon>,
    /// The GPUs that the driver listed last; `None` before the first list.
    pub present: Option<BTreeSet<GpuUuid>>,
    /// How many processes of each tenant wait for its daemon, where there are any.
    pub waiting: BTreeMap<TenantName, u64>,
    /// How many processes of each tenant wait for a slot, where there are any.
    pub queued: BTreeMap<TenantName, u64>,
    /// Jobs that wait for the database's writer.
    pub queue: usize,
    /// How the API is reached.
    pub listening: HostListening,
    /// Whether the database belongs to another machine, or the driver is waited for, so that nothing is managed.
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
    /// How many incidents are open, by kind.
    pub open_incidents: BTreeMap<IncidentKind, u64>,
    /// Bytes of the database, its log not included.
    pub database_bytes: u64,
    /// Whether the host is in maintenance, or on its way there or back.
    pub maintenance: bool,
}
