//! What was read back from a daemon: its defaults, its servers, and its partitions.

use serde::{Deserialize, Serialize};

use super::client::ClientId;
use super::partitions::GpuPartitions;
use super::{GpuUuid, Priority, ThreadPercentage};

/// What a daemon answered when its settings were read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Effective {
    /// When it was read.
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
    /// Whether `bytes` is known exactly: from 1 GiB on, the daemon prints whole GiB, rounded down.
    pub exact: bool,
    /// What the daemon printed, where it is no whole number of MiB: another program set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Whether server.log has the server's own word for this limit; `null` where no server is queried.
    pub in_server_log: Option<bool>,
}

impl Effective {
    /// Whether a server takes clients.
    pub fn is_serving(&self) -> bool {
        self.servers.iter().any(Server::is_active)
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
    /// `ACTIVE`, `INITIALIZING`, `FAULT`, or another word of the daemon's.
    #[schema(value_type = String)]
    pub status: ServerStatus,
    /// Its thread percentage.
    pub active_thread_percentage: Option<ThreadPercentage>,
    /// Its memory limits, one a GPU.
    pub memory_limits: Vec<MemoryReading>,
    /// Clients that keep a server with a fatal GPU error from taking others: those it affects and that are still connected.
    #[serde(default)]
    pub held_by: Vec<FaultHolder>,
}

/// What a server says of itself.
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

/// As the daemon prints it.
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
    /// Whether it takes clients.
    pub fn is_active(&self) -> bool {
        self.status == ServerStatus::Active
    }

    /// Whether a fatal GPU error keeps it from taking clients.
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
    /// Whether it is stopped (SIGSTOP), so that it does not end by itself.
    pub stopped: bool,
}
