//! Verification: the values that a CUDA client saw in the environment of a tenant, compared with the configured ones.
//!
//! A client is the only witness that does not depend on the daemon: settings that were read back may still not reach it. The
//! comparison is pure ([`compare`]); `service/tenants/verification.rs` starts the client.

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
    /// Time since which a client is under way; `null` while none is.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub running_since: Option<i64>,
    /// The result of the last one; `null` before the first.
    pub last: Option<VerificationResult>,
}

/// The result of one verification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerificationResult {
    /// The outcome in one word.
    pub outcome: VerificationOutcome,
    /// When it was requested.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub requested_at: i64,
    /// Time at which the client had reported, or was given up.
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
    /// Reason why it no longer describes the present state; left out while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stale: Option<Staleness>,
    /// Reason why no client could run, if `outcome` is `not_verified`.
    pub blocker: Option<VerificationBlocker>,
    /// Each setting; empty where no client could run.
    pub comparisons: Vec<SettingComparison>,
    /// The devices that the client saw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<VerifiedDevice>,
    /// The variables that the client was started with.
    pub environment: BTreeMap<String, String>,
}

/// A device as a tenant's client saw it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerifiedDevice {
    /// The GPU, MIG instance or MLOPart device.
    pub gpu: GpuUuid,
    /// SMs that the client may use: those of the device, or its tenant's share of them.
    pub sms: u32,
    /// Memory of the device in bytes, whatever the limit.
    pub memory_total: u64,
}

impl VerificationResult {
    /// Returns the settings that differ, each once.
    pub fn differing(&self) -> Vec<VerifiedSetting> {
        let mut settings: Vec<VerifiedSetting> = self
            .comparisons
            .iter()
            .filter(|comparison| comparison.verdict == ComparisonVerdict::Differs)
            .map(|comparison| comparison.setting)
            .collect();
        settings.dedup();
        settings
    }

    /// Describes the SMs that the client saw, where these are not those of its share; `None` if they are, or if no client ran.
    pub fn other_sms(&self) -> Option<String> {
        let is_sms = |comparison: &&SettingComparison| comparison.setting == VerifiedSetting::Sms;
        let differs = |comparison: &&SettingComparison| comparison.verdict == ComparisonVerdict::Differs;
        let SettingComparison { setting, seen, expected, .. } =
            self.comparisons.iter().filter(is_sms).find(differs)?;
        let sms = |value: &Option<SettingValue>| {
            value.as_ref().map_or_else(String::new, |value| value.words(*setting, ToString::to_string))
        };
        Some(format!("a CUDA client saw {} SMs and should see {}", sms(seen), sms(expected)))
    }
}

/// The result of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VerificationOutcome {
    /// A client ran, and nothing that it can see differs.
    Verified,
    /// A client saw other values than the configured ones.
    Differs,
    /// No client could run.
    NotVerified,
}

api_words!(VerificationOutcome: Verified "verified", Differs "differs", NotVerified "not_verified");

/// Reason why a result no longer describes the present state.
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
    /// Returns the reason in words.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::TenantChanged => "the tenant was changed since",
            Self::DaemonChanged => "its daemon was changed since",
            Self::ServerReplaced => "its daemon or server was started again since",
            Self::ShareChanged => "its share was changed since, because other tenants came or went",
        }
    }
}

/// Reason why no client could run, with an explanation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VerificationBlocker {
    /// The reason as a code.
    pub code: BlockerCode,
    /// Explanation, with the remedy.
    pub message: String,
}

/// Code of a reason why no client could run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum BlockerCode {
    /// The daemon does not run, or does not hold the tenant's limits.
    DaemonNotReady,
    /// The daemon takes no new clients.
    Cordoned,
    /// The host is in maintenance.
    Maintenance,
    /// Clients of another user are connected, and the tenant's client would wait until they have ended.
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
    /// Returns the explanation for a user who is limited to the tenant: it names no process and no user.
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
    /// Connection to MPS: true if the process is a client of MPS.
    Mps,
    /// The GPUs, by UUID.
    Gpus,
    /// The SMs.
    Sms,
    /// The memory that is left to a client of its limit after its context was allocated, in bytes; without a limit, of the GPU.
    DeviceMemoryLimit,
    /// The largest single allocation that succeeded, up to the limit, in bytes; at most `expected`.
    LargestAllocation,
    /// The priority.
    Priority,
}

api_words!(VerifiedSetting:
    Mps "mps", Gpus "gpus", Sms "sms", DeviceMemoryLimit "device_memory_limit",
    LargestAllocation "largest_allocation", Priority "priority",
);

/// A value of a setting, of the type that the setting has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(untagged)]
pub enum SettingValue {
    /// True or false.
    Flag(bool),
    /// SMs, or bytes.
    Number(u64),
    /// GPUs in the order of their UUIDs.
    Gpus(Vec<GpuUuid>),
    /// A priority.
    Priority(Priority),
}

impl SettingValue {
    /// Describes the value, with memory in units and GPUs by the names that `called` gives.
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

/// A setting as configured, compared with what the client saw.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SettingComparison {
    /// The setting.
    pub setting: VerifiedSetting,
    /// The GPU, for a setting of each.
    pub gpu: Option<GpuUuid>,
    /// Value that the client should see; `null` if it is not known.
    pub expected: Option<SettingValue>,
    /// Value that the client saw; `null` if it saw none.
    pub seen: Option<SettingValue>,
    /// Verdict of the comparison.
    pub verdict: ComparisonVerdict,
    /// Reason why the values differ, or why the setting could not be seen.
    pub reason: Option<String>,
    /// Remedy, if the values differ.
    pub remedy: Option<String>,
}

/// Verdict on a setting: the value that the client saw fits the configured one, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonVerdict {
    /// The client saw the expected value.
    Holds,
    /// The client saw another value.
    Differs,
    /// A client cannot see it, or could not this time.
    NotSeen,
}

api_words!(ComparisonVerdict: Holds "holds", Differs "differs", NotSeen "not_seen");
