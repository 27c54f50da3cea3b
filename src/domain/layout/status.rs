//! What is seen of a daemon's layout.

use serde::{Deserialize, Serialize};

use super::execution::LayoutFailureCause;
use super::percentage::proof::ShareFailure;
use super::record::{Degraded, ExecutedStep, PartitionDrift};
use super::{Enforcement, VersionRef};
use crate::condition::ConditionReason;
use crate::{GpuUuid, LayoutName, PartitionId, PartitionName, TenantName, ThreadPercentage};

/// What is seen of the layout of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutStatus {
    /// The desired layout; `null` while the partitions of one that is no longer desired are removed.
    pub name: Option<LayoutName>,
    /// Its version.
    pub version: Option<u32>,
    /// What makes its partitions hold; a percentage reserves nothing.
    pub enforcement: Enforcement,
    /// Its state.
    pub state: LayoutState,
    /// The generation of the daemon that this is about.
    pub generation: i64,
    /// The partitions that the layout comes to, in the order in which they are made.
    pub partitions: Vec<PartitionStatus>,
    /// What is listed otherwise than it was made.
    pub drift: Vec<PartitionDrift>,
    /// Why that is not repaired, or not yet, where the policy says that it is to be.
    pub not_repaired: Option<String>,
    /// What others did to its partitions since this manager took the daemon.
    #[serde(default)]
    pub drift_seen: DriftSeen,
    /// What is not as it was, since something had to be undone or restored.
    pub degraded: Vec<Degraded>,
    /// Why it is not in force, where it is not going to be by itself.
    pub failure: Option<LayoutFailure>,
    /// The commands of the run that applies it, or of the last that did; those of a repair are in `drift_seen`.
    pub executed_steps: Vec<ExecutedStep>,
    /// When that run began.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ran_at: Option<i64>,
    /// How long it took, in microseconds; `null` while it is under way.
    pub duration_us: Option<u64>,
}

impl LayoutStatus {
    /// What is in force or is to be; `None` where a layout is only taken away.
    pub fn version_ref(&self) -> Option<VersionRef> {
        Some(VersionRef { name: self.name.clone()?, version: self.version? })
    }

    /// Whether it is in force, or not going to be by itself before long.
    pub fn is_decided(&self) -> bool {
        match self.state {
            LayoutState::Pending | LayoutState::Applying => false,
            LayoutState::Applied | LayoutState::Drifted | LayoutState::Degraded => true,
            LayoutState::Failed => !self.failure.as_ref().is_some_and(LayoutFailure::is_tried_again),
        }
    }
}

/// What others did to the partitions of a layout, and what was done about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DriftSeen {
    /// How many times partitions were found changed.
    pub count: u64,
    /// When that was last.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_at: Option<i64>,
    /// What was found then.
    pub last: Vec<PartitionDrift>,
    /// How many times it was restored.
    pub repairs: u64,
    /// When that was last.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub repaired_at: Option<i64>,
    /// The commands of the repair under way, or of the last one.
    pub executed_steps: Vec<ExecutedStep>,
    /// When the next repair begins, where it is put off since others undo what is restored.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_repair_at: Option<i64>,
}

/// The state of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LayoutState {
    /// It waits for the daemon to be ready for it.
    Pending,
    /// Its partitions are being made.
    Applying,
    /// It is there, as was read back.
    Applied,
    /// Another program has made or removed partitions since.
    Drifted,
    /// It is there, and some partitions have other IDs than they had.
    Degraded,
    /// It could not be applied, and is not tried again before something changes.
    Failed,
}

/// A partition of the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PartitionStatus {
    /// Its name.
    pub partition: PartitionName,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its ID, as the last poll lists it and as it is recorded; `null` where it is not handed out.
    pub id: Option<PartitionId>,
    /// Why it is not handed out though the layout is in force; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// The recorded ID.
    pub expected: Option<PartitionId>,
    /// Its chunks.
    pub chunks: u32,
    /// Its SMs, as listed, or with `enforcement: percentage` as a CUDA client saw them; `null` before that.
    pub sms: Option<u32>,
    /// With `enforcement: percentage`, the thread percentage under which a CUDA client saw these SMs since the control process
    /// was started; left out before that, and where the partition is static.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentage: Option<ThreadPercentage>,
    /// Who is bound to it.
    pub tenants: Vec<TenantName>,
}

/// Why a layout is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutFailure {
    /// The generation of the daemon in which it was tried.
    pub generation: i64,
    /// What happened.
    pub cause: LayoutFailureCause,
    /// The same in words, with the remedy.
    pub message: String,
}

impl LayoutFailure {
    /// A failure with its words.
    pub fn new(generation: i64, cause: LayoutFailureCause) -> Self {
        let remedy = match &cause {
            LayoutFailureCause::OtherId { .. } => {
                "; whatever named partitions of the old ID would be in other SMs, so nothing is handed out: apply another \
                 layout, or a new version of this one, whose IDs are then taken as they come"
            }
            LayoutFailureCause::NotDone { .. } => "; see control.log, and apply the layout again",
            LayoutFailureCause::Interference { .. } => ": have them stop, and apply the layout again",
            LayoutFailureCause::Unreachable { .. }
            | LayoutFailureCause::NotProven { .. }
            | LayoutFailureCause::Blocked { .. } => "",
        };
        Self { generation, message: format!("{cause}{remedy}"), cause }
    }

    /// Whether it is tried again after a pause, whatever anybody does.
    pub fn is_tried_again(&self) -> bool {
        matches!(self.cause, LayoutFailureCause::NotProven { failure: ShareFailure::NotSeen { .. } })
    }

    /// One word for it.
    pub fn reason(&self) -> ConditionReason {
        match self.cause {
            LayoutFailureCause::OtherId { .. } => ConditionReason::PartitionIdDiffers,
            LayoutFailureCause::NotDone { .. } => ConditionReason::PartitionNotMade,
            LayoutFailureCause::Interference { .. } => ConditionReason::PartitionsInterfered,
            LayoutFailureCause::Unreachable { .. } => ConditionReason::DaemonUnreachable,
            // Tried again by itself.
            LayoutFailureCause::NotProven { failure: ShareFailure::NotSeen { .. } } => {
                ConditionReason::PartitionNotSeen
            }
            LayoutFailureCause::NotProven { .. } => ConditionReason::PartitionNotProven,
            LayoutFailureCause::Blocked { .. } => ConditionReason::LayoutBlocked,
        }
    }
}
