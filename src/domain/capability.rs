//! Capabilities of a host's MPS, which depend on its driver.

use serde::{Deserialize, Serialize};

/// A capability that not every version of MPS has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityName {
    /// A GPU can be divided into static SM partitions (CUDA 13.1).
    StaticPartitions,
    /// Clients get MLOPart devices in place of whole GPUs (CUDA 13.1, on ARM 13.2).
    Mlopart,
    /// A daemon takes clients of several users at once (CUDA 12.5).
    MultiUser,
    /// A daemon says whether a server takes clients (CUDA 12.4).
    ServerStatus,
    /// A daemon lists its devices (CUDA 13.0).
    DeviceQuery,
    /// Only its own user and root may change a daemon's default limits (CUDA 12.4).
    GuardedDefaults,
}

impl CapabilityName {
    /// The words for people, as a heading.
    pub fn title(self) -> &'static str {
        match self {
            Self::StaticPartitions => "Static partitions",
            Self::Mlopart => "MLOPart devices",
            Self::MultiUser => "Several users",
            Self::ServerStatus => "Server status",
            Self::DeviceQuery => "Device list",
            Self::GuardedDefaults => "Guarded defaults",
        }
    }
}

/// A capability of the host's MPS, and its availability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostCapability {
    /// The capability.
    pub name: CapabilityName,
    /// True if this host's MPS has it.
    pub available: bool,
    /// Reason why it is unavailable, with the version that has it and the consequences; `null` if it is available.
    pub reason: Option<String>,
}

/// The driver that a control program works with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningDriver {
    /// Its version, as `535.261.03`.
    pub version: String,
    /// The newest CUDA that it runs, as `12.2`; `None` where it does not say.
    pub cuda: Option<String>,
}
