//! Observed state of a daemon's layout.

use serde::{Deserialize, Serialize};

use super::execution::LayoutFailureCause;
use super::record::{Degraded, ExecutedStep, PartitionDrift};
use super::{Enforcement, VersionRef};
use crate::condition::ConditionReason;
use crate::{GpuUuid, LayoutName, PartitionId, PartitionName, TenantName, ThreadPercentage};

/// Observed state of the layout of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutStatus {
    /// The desired layout; `null` while the partitions of one that is no longer desired are removed.
    pub name: Option<LayoutName>,
    /// Its version.
    pub version: Option<u32>,
    /// The mechanism that enforces its partitions; a percentage reserves nothing.
    pub enforcement: Enforcement,
    /// Its state.
    pub state: LayoutState,
    /// The generation of the daemon that this status belongs to.
    pub generation: i64,
    /// The partitions that are there at the end of the layout, in the order in which they are made.
    pub partitions: Vec<PartitionStatus>,
    /// Differences between the listed partitions and those that were made.
    pub drift: Vec<PartitionDrift>,
    /// Reason for which drift is not repaired, or not yet, although the policy is to repair it.
    pub not_repaired: Option<String>,
    /// Changes by other programs since this manager took the daemon.
    #[serde(default)]
    pub drift_seen: DriftSeen,
    /// Partitions that are not as they were, since something had to be undone or restored.
    pub degraded: Vec<Degraded>,
    /// Failure of a layout that is not in force. The layout is not tried again before something changes.
    pub failure: Option<LayoutFailure>,
    /// The commands of the run that applies it, or of the last that did; those of a repair are in `drift_seen`.
    pub executed_steps: Vec<ExecutedStep>,
    /// Time at which that run began.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ran_at: Option<i64>,
    /// Duration of that run, in microseconds; `null` while it is under way.
    pub duration_us: Option<u64>,
}

impl LayoutStatus {
    /// Returns the name and version of the layout that is in force or is to be; `None` where a layout is only removed.
    pub fn version_ref(&self) -> Option<VersionRef> {
        Some(VersionRef { name: self.name.clone()?, version: self.version? })
    }

    /// Returns the number of its partitions that exist.
    pub fn made(&self) -> usize {
        self.partitions.iter().filter(|one| one.id.is_some()).count()
    }

    /// Returns true if the layout is in force, or will not be before long without a change.
    pub fn is_decided(&self) -> bool {
        !matches!(self.state, LayoutState::Pending | LayoutState::Applying)
    }
}

/// Changes of a layout's partitions by other programs, and their repairs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DriftSeen {
    /// Number of times that partitions were found changed.
    pub count: u64,
    /// Time at which they were last found changed.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_at: Option<i64>,
    /// Differences that were found at that time.
    pub last: Vec<PartitionDrift>,
    /// Number of repairs.
    pub repairs: u64,
    /// Time of the last repair.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub repaired_at: Option<i64>,
    /// The commands of the repair under way, or of the last one.
    pub executed_steps: Vec<ExecutedStep>,
    /// Time at which the next repair begins, if it is put off since other programs undo the repairs.
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

api_words!(LayoutState:
    Pending "pending", Applying "applying", Applied "applied", Drifted "drifted", Degraded "degraded", Failed "failed",
);

/// A partition of the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PartitionStatus {
    /// Its name.
    pub partition: PartitionName,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its ID, as the last poll lists it and as it is recorded; `null` where it is not handed out.
    pub id: Option<PartitionId>,
    /// Reason for withholding the partition although the layout is in force; left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// The recorded ID.
    pub expected: Option<PartitionId>,
    /// Its chunks.
    pub chunks: u32,
    /// Its number of SMs: as listed, `null` before that; with `enforcement: percentage`, those that its percentage gives by the formula,
    /// which the verification of a tenant proves.
    pub sms: Option<u32>,
    /// With `enforcement: percentage`, the thread percentage of its tenants; left out where the partition is static.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentage: Option<ThreadPercentage>,
    /// Tenants bound to it.
    pub tenants: Vec<TenantName>,
}

/// Failure of a layout that is not in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutFailure {
    /// The generation of the daemon in which it was tried.
    pub generation: i64,
    /// Cause of the failure.
    pub cause: LayoutFailureCause,
    /// Description of the failure, with the remedy.
    pub message: String,
}

impl LayoutFailure {
    /// Creates a failure with its message.
    pub fn new(generation: i64, cause: LayoutFailureCause) -> Self {
        let remedy = match &cause {
            LayoutFailureCause::OtherId { .. } => {
                "; whatever named partitions of the old ID would be in other SMs, so nothing is handed out: apply another \
                 layout, or a new version of this one, whose IDs are then taken as they come"
            }
            LayoutFailureCause::NotDone { .. } => "; see control.log, and apply the layout again",
            LayoutFailureCause::Interference { .. } => ": have them stop, and apply the layout again",
            LayoutFailureCause::Unreachable { .. } | LayoutFailureCause::Blocked { .. } => "",
        };
        Self { generation, message: format!("{cause}{remedy}"), cause }
    }

    /// Returns the reason for the daemon's condition.
    pub fn reason(&self) -> ConditionReason {
        match self.cause {
            LayoutFailureCause::OtherId { .. } => ConditionReason::PartitionIdDiffers,
            LayoutFailureCause::NotDone { .. } => ConditionReason::PartitionNotMade,
            LayoutFailureCause::Interference { .. } => ConditionReason::PartitionsInterfered,
            LayoutFailureCause::Unreachable { .. } => ConditionReason::DaemonUnreachable,
            LayoutFailureCause::Blocked { .. } => ConditionReason::LayoutBlocked,
        }
    }
}
