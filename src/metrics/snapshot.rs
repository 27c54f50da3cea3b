//! The state at the moment of a request, from memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::control::Commands;
use crate::domain::client::{ClientFacts, Lease};
use crate::domain::daemon::{Daemon, DaemonStatus};
use crate::domain::gpu::Gpu;
use crate::domain::incident::IncidentKind;
use crate::domain::listening::HostListening;
use crate::domain::tenant::Tenant;
use crate::domain::vitals::GpuVitals;
use crate::domain::{GpuUuid, TenantName};

/// Stored and observed state at the moment of a request.
#[derive(Debug)]
pub struct MetricsSnapshot {
    /// State in the database after its last commit.
    pub committed: Arc<CommittedSnapshot>,
    /// Observed state of each daemon.
    pub seen: Vec<ObservedDaemon>,
    /// The GPUs that the driver listed last; `None` before the first list.
    pub present: Option<BTreeSet<GpuUuid>>,
    /// Vitals of the GPUs at the last poll.
    pub vitals: Arc<BTreeMap<GpuUuid, GpuVitals>>,
    /// Number of processes that wait for their tenant's daemon, by tenant; tenants without one are left out.
    pub waiting: BTreeMap<TenantName, u64>,
    /// Number of processes that wait for a slot of their tenant, by tenant; tenants without one are left out.
    pub queued: BTreeMap<TenantName, u64>,
    /// Jobs that wait for the database's writer.
    pub queue: usize,
    /// Address and protection of the API.
    pub listening: HostListening,
    /// True if nothing is managed: the database belongs to another machine, or the manager waits for the driver.
    pub read_only: bool,
}

/// Last observed state of a daemon.
#[derive(Debug)]
pub struct ObservedDaemon {
    /// Its name.
    pub name: String,
    /// The desired generation.
    pub generation: i64,
    /// Its status.
    pub status: DaemonStatus,
    /// Its clients.
    pub clients: Arc<Vec<ClientFacts>>,
    /// Counts and times of the commands to it.
    pub commands: Arc<Commands>,
}

/// State in the database, read after each commit and never in a request.
#[derive(Debug, Clone, Default)]
pub struct CommittedSnapshot {
    /// Time of the reading, in unix milliseconds.
    pub read_at: i64,
    /// All daemons.
    pub daemons: Vec<Daemon>,
    /// All tenants.
    pub tenants: Arc<Vec<Tenant>>,
    /// All leases of this boot.
    pub leases: Vec<Lease>,
    /// The GPUs that daemons hold, as last observed.
    pub gpus: Vec<Gpu>,
    /// Operations that have not ended, by state.
    pub unfinished: Vec<(&'static str, u64)>,
    /// Number of open incidents, by kind.
    pub open_incidents: BTreeMap<IncidentKind, u64>,
    /// Bytes of the database, its log not included.
    pub database_bytes: u64,
    /// True if the host is in maintenance, or on its way there or back.
    pub maintenance: bool,
}
