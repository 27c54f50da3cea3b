//! Clients, as they are shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::attribution::AttributedBy;
use crate::domain::client::{ClientId, ClientMemory};
use crate::domain::daemon::Mode;
use crate::domain::resolution::Resolved;
use crate::domain::{DaemonName, GpuUuid, MemoryLimit, TenantName, ThreadPercentage};

/// A process connected to an MPS server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ClientView {
    /// Its process ID and start time, which identify the process.
    pub id: ClientId,
    /// Its process ID.
    pub pid: u32,
    /// The daemon that serves it.
    pub daemon: DaemonName,
    /// The server it is connected to, by process ID.
    pub server: u32,
    /// Its tenant; `null` if unknown.
    pub tenant: Option<TenantName>,
    /// Workload of its tenant, by the tenant's labels: `pod prod/web-0/app`, `job 4711 of alice`; `null` if they name none.
    #[serde(default)]
    pub workload: Option<String>,
    /// Evidence by which the tenant is known.
    pub attributed_by: AttributedBy,
    /// Its user.
    pub uid: Option<u32>,
    /// Its command line.
    pub command: String,
    /// When it started.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub since: i64,
    /// Its memory on each GPU.
    pub memory: Vec<ClientMemory>,
    /// The container it is in, by the ID that its engine gave; `null` outside of containers.
    #[serde(default)]
    pub container: Option<String>,
    /// True if the process that started it has ended, and no service of systemd and no container would keep it running: it may be left over
    /// from something that was killed.
    #[serde(default)]
    pub orphaned: bool,
    /// Its parent processes, nearest first.
    #[serde(skip)]
    pub(super) ancestors: Vec<ClientId>,
    /// Device connections that it takes.
    #[serde(skip)]
    pub(super) connections: u32,
    /// Its limits in the environment it was started with.
    #[serde(skip)]
    pub(in crate::service) started_with: StartingLimits,
}

/// The limits in the environment that a client was started with, which it keeps; `None` where that cannot be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::service) struct StartingLimits {
    /// Its thread percentage.
    pub(in crate::service) percentage: Option<ThreadPercentage>,
    /// Its memory limit on each GPU that is named there.
    pub(in crate::service) memory_limits: Option<BTreeMap<GpuUuid, MemoryLimit>>,
}

impl StartingLimits {
    /// Returns true if they are known to differ from those that the tenant's environment would have now.
    pub(super) fn differ_from(&self, now: &Resolved) -> bool {
        // In static mode the partition decides, whatever the percentage.
        let shares = now.mode == Mode::Shared && self.percentage.is_some_and(|with| with != now.percentage);
        shares || self.memory_limits.as_ref().is_some_and(|with| *with != now.memory)
    }
}
