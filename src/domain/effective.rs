//! Effective state of a daemon, as read back: its defaults, its servers, and its partitions.

use serde::{Deserialize, Serialize};

use super::client::ClientId;
use super::mlopart::MlopartDevice;
use super::partitions::GpuPartitions;
use super::{GpuUuid, Priority, ThreadPercentage};

/// Effective settings of a daemon, as it answered when they were read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Effective {
    /// Time at which they were read.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub observed_at: i64,
    /// Control processes that this poll took.
    pub control_processes: u32,
    /// Thread percentage of servers to come.
    pub default_active_thread_percentage: Option<ThreadPercentage>,
    /// Priority of clients to come.
    pub default_priority: Option<Priority>,
    /// Memory limits of servers to come, one a GPU.
    pub default_memory_limits: Vec<MemoryReading>,
    /// The servers, at most one of them taking clients.
    pub servers: Vec<Server>,
    /// The static SM partitions of each of its GPUs; `null` for a daemon in shared mode, which has none.
    #[serde(default)]
    pub partitions: Option<Vec<GpuPartitions>>,
}

/// A memory limit as read back for one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MemoryReading {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The limit in bytes; `null` is no limit, or one that cannot be read.
    pub bytes: Option<u64>,
    /// True if `bytes` is exact: from 1 GiB on, the daemon prints whole GiB, rounded down.
    pub exact: bool,
    /// Text in place of the value, if another program set the limit: what the daemon prints, if it is not a whole number of MiB, or
    /// `changed by others`, if it may be the desired value rounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// True if server.log confirms this limit exactly; `null` where no server is queried.
    pub in_server_log: Option<bool>,
}

impl Effective {
    /// Returns true if a server takes clients.
    pub fn is_serving(&self) -> bool {
        self.servers.iter().any(Server::is_active)
    }

    /// Returns the MLOPart devices of the server that takes clients, or else of one that does not: those with a fatal GPU error have clients too.
    pub fn mlopart_devices(&self) -> impl Iterator<Item = &MlopartDevice> {
        let active = self.servers.iter().find(|server| server.is_active());
        let server = active.or_else(|| self.servers.iter().find(|server| server.mlopart_devices.is_some()));
        server.into_iter().flat_map(|server| server.mlopart_devices.iter().flatten())
    }
}

/// An MPS server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Server {
    /// Its process ID.
    pub pid: u32,
    /// Its start time, in clock ticks since boot; with `pid` it names one process forever.
    pub start_time: u64,
    /// The user it serves; `null` where that is not known.
    pub uid: Option<u32>,
    /// Its status: `ACTIVE`, `INITIALIZING`, `FAULT`, or another word of the daemon.
    #[schema(value_type = String)]
    pub status: ServerStatus,
    /// Its thread percentage.
    pub active_thread_percentage: Option<ThreadPercentage>,
    /// Its memory limits, one a GPU.
    pub memory_limits: Vec<MemoryReading>,
    /// Its MLOPart devices: none for a server that MPS has started by itself. `null` for a server without any that is not to have any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlopart_devices: Option<Vec<MlopartDevice>>,
    /// Clients that keep a server with a fatal GPU error from taking new ones: those that the error affects and that are still connected.
    #[serde(default)]
    pub held_by: Vec<FaultHolder>,
}

/// Status of a server, as the daemon reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", from = "String")]
pub enum ServerStatus {
    /// It takes clients.
    Active,
    /// It is starting (documented, not recorded).
    Initializing,
    /// A fatal fault is being handled; new clients wait until the affected ones are gone.
    Fault,
    /// A word that a newer daemon may have.
    Other(String),
}

impl From<String> for ServerStatus {
    fn from(word: String) -> Self {
        match word.as_str() {
            "ACTIVE" => Self::Active,
            "INITIALIZING" => Self::Initializing,
            "FAULT" => Self::Fault,
            _ => Self::Other(word),
        }
    }
}

impl From<ServerStatus> for String {
    fn from(status: ServerStatus) -> Self {
        status.to_string()
    }
}

/// Writes the word that the daemon prints.
impl std::fmt::Display for ServerStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Active => "ACTIVE",
            Self::Initializing => "INITIALIZING",
            Self::Fault => "FAULT",
            Self::Other(word) => word,
        })
    }
}

impl Server {
    /// Returns true if it takes clients, and gives them the devices that they are to have.
    pub fn is_active(&self) -> bool {
        self.status == ServerStatus::Active && !self.lacks_mlopart()
    }

    /// Returns true if it gives its clients whole GPUs on a daemon whose clients are to have MLOPart devices.
    pub fn lacks_mlopart(&self) -> bool {
        self.status == ServerStatus::Active && self.mlopart_devices.as_ref().is_some_and(Vec::is_empty)
    }

    /// Returns true if a fatal GPU error keeps it from taking clients.
    pub fn is_faulty(&self) -> bool {
        self.status == ServerStatus::Fault
    }
}

/// A client that a fatal GPU error affects and that has not ended yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FaultHolder {
    /// Its process.
    #[schema(value_type = String, example = "1234-567890")]
    pub client: ClientId,
    /// True if it is stopped (SIGSTOP), so that it does not end by itself.
    pub stopped: bool,
}
