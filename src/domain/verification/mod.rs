//! Verification: what a CUDA client saw in the environment of a tenant, beside what was configured.
//!
//! A client is the only witness that owes the daemon nothing: settings that were read back may still not reach it. What is
//! compared is pure ([`compare`]); who sends the client is `service/tenants/verification.rs`.

mod comparing;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::client::ClientId;
use super::memory::Bytes;
use super::{DaemonName, GpuUuid, Priority};

pub use comparing::{ClientSight, Expectation, ExpectedGpu, SeenGpu, TOLERANCE, compare};

/// Verification of a tenant: the client that is on its way, and the result of the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Verification {
    /// Since when a client is on its way; `null` while none is.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub running_since: Option<i64>,
    /// The result of the last one; `null` before the first.
    pub last: Option<VerificationResult>,
}

/// The result of one verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerificationResult {
    /// In a word.
    pub outcome: VerificationOutcome,
    /// When it was requested.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: i64,
    /// When the client had reported, or was given up.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub observed_at: i64,
    /// The tenant's generation that was compared.
    pub generation: i64,
    /// The tenant's daemon.
    pub daemon: DaemonName,
    /// The revision of the daemon's spec.
    pub daemon_revision: i64,
    /// The server that the client was connected to, by its process; `null` where none was.
    pub server: Option<ClientId>,
    /// Since when it is no longer about what is there now; left out where it still is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<Staleness>,
    /// Why no client could run, where `outcome` is `not_verified`.
    pub blocker: Option<VerificationBlocker>,
    /// Each setting; empty where no client could run.
    pub comparisons: Vec<SettingComparison>,
    /// The variables that the client was started with.
    pub environment: BTreeMap<String, String>,
}

impl VerificationResult {
    /// The settings that differ, each once.
    pub fn differing(&self) -> Vec<VerifiedSetting> {
        let mut settings: Vec<VerifiedSetting> = self
            .comparisons
            .iter()
            .filter(|one| one.verdict == ComparisonVerdict::Differs)
            .map(|one| one.setting)
            .collect();
        settings.dedup();
        settings
    }
}

/// The result of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationOutcome {
    /// A client ran, and nothing that it can see differs.
    Verified,
    /// A client saw something else than configured.
    Differs,
    /// No client could run.
    NotVerified,
}

/// Why a result is no longer about what is there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Staleness {
    /// The tenant's spec was written since.
    TenantChanged,
    /// The daemon's spec was written since, or the tenant has another daemon.
    DaemonChanged,
    /// The server that it was about is gone: the daemon was started again, or MPS replaced it.
    ServerReplaced,
    /// The daemon's strategy gives the tenant another share since.
    ShareChanged,
}

impl Staleness {
    /// The same in words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::TenantChanged => "the tenant was changed since",
            Self::DaemonChanged => "its daemon was changed since",
            Self::ServerReplaced => "its daemon or server was started again since",
            Self::ShareChanged => "its share was changed since, because other tenants came or went",
        }
    }
}

/// What blocked a client.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerificationBlocker {
    /// In a word.
    pub code: BlockerCode,
    /// What happened, with the remedy.
    pub message: String,
}

/// What blocked a client, as a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockerCode {
    /// The daemon does not run, or does not hold the tenant's limits.
    DaemonNotReady,
    /// The daemon takes no new clients.
    Cordoned,
    /// The host is in maintenance.
    Maintenance,
    /// Clients of another user are connected, for whose end the tenant's would wait.
    OtherUser,
    /// The manager is not root, and cannot be the tenant's user.
    NotRoot,
    /// No environment is handed out.
    NoEnvironment,
    /// The client was not admitted in time, and still waits.
    ClientWaits,
    /// CUDA refused the client, or it ended without an answer.
    ClientFailed,
    /// The tenant or its daemon was changed while the client ran.
    Changed,
    /// The manager was restarted while the client ran.
    Interrupted,
    /// A fault on the host.
    Fault,
}

impl BlockerCode {
    /// The same for a user who is limited to the tenant: it names no process and no user.
    pub fn redacted_message(self) -> &'static str {
        match self {
            Self::DaemonNotReady => {
                "the daemon does not run, or does not hold the tenant's limits: try again, or ask the host's operator"
            }
            Self::Cordoned => "the daemon takes no new clients: ask the host's operator",
            Self::Maintenance => "the host is in maintenance: verify again when it is over",
            Self::OtherUser => {
                "another user's processes are connected, and the daemon serves one user at a time: verify again when they are gone"
            }
            Self::NotRoot => {
                "the manager cannot start a process of the tenant's user: ask the host's operator"
            }
            Self::NoEnvironment => {
                "the tenant is given no environment at the moment: its page and GET …/environment say why"
            }
            Self::ClientWaits => {
                "the client was not admitted in time: verify again, or ask the host's operator"
            }
            Self::ClientFailed => "CUDA refused the client: ask the host's operator, who can see the details",
            Self::Changed => "the tenant or its daemon was changed meanwhile: verify again",
            Self::Interrupted => "the manager was restarted meanwhile: verify again",
            Self::Fault => "something on the host failed: ask the host's operator, who can see the details",
        }
    }
}

/// A setting that a client can verify.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerifiedSetting {
    /// Whether it is a client of MPS at all.
    Mps,
    /// The GPUs, by UUID.
    Gpus,
    /// The SMs.
    Sms,
    /// The memory that is left to a client of its limit, its context paid, in bytes; without a limit, of the GPU.
    DeviceMemoryLimit,
    /// The largest single allocation that succeeded of one as large as the limit, in bytes; at most `expected`.
    LargestAllocation,
    /// The priority.
    Priority,
}

impl VerifiedSetting {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mps => "mps",
            Self::Gpus => "gpus",
            Self::Sms => "sms",
            Self::DeviceMemoryLimit => "device_memory_limit",
            Self::LargestAllocation => "largest_allocation",
            Self::Priority => "priority",
        }
    }
}

/// A value of a setting, of the kind that the setting says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum SettingValue {
    /// Whether it is so.
    Flag(bool),
    /// SMs, or bytes.
    Number(u64),
    /// GPUs in the order of their UUIDs.
    Gpus(Vec<GpuUuid>),
    /// A priority.
    Priority(Priority),
}

impl SettingValue {
    /// In words: with memory in units, and GPUs as their reader calls them.
    pub fn words(&self, setting: VerifiedSetting, called: impl Fn(&GpuUuid) -> String) -> String {
        match self {
            Self::Flag(is_so) => if *is_so { "yes" } else { "no" }.to_owned(),
            Self::Number(sms) if setting == VerifiedSetting::Sms => sms.to_string(),
            Self::Number(bytes) => Bytes(*bytes).to_string(),
            Self::Gpus(gpus) => gpus.iter().map(called).collect::<Vec<_>>().join(", "),
            Self::Priority(priority) => priority.as_str().replace('_', " "),
        }
    }
}

/// A setting as it was configured beside what the client saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SettingComparison {
    /// The setting.
    pub setting: VerifiedSetting,
    /// The GPU, for a setting of each.
    pub gpu: Option<GpuUuid>,
    /// What should be seen; `null` where that is not known.
    pub expected: Option<SettingValue>,
    /// What the client saw; `null` where it saw nothing of it.
    pub seen: Option<SettingValue>,
    /// Whether that fits.
    pub verdict: ComparisonVerdict,
    /// Why it does not fit, or could not be seen.
    pub reason: Option<String>,
    /// What to do about it, where it differs.
    pub remedy: Option<String>,
}

/// Whether what was seen fits what was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonVerdict {
    /// It does.
    Holds,
    /// It does not.
    Differs,
    /// A client cannot see it, or could not this time.
    NotSeen,
}
