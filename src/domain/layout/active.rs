//! The layout that a daemon holds, or is to hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::execution::OnDifference;
use super::{Enforcement, GpuMap, ResolvedStep, VersionRef};
use crate::domain::{GpuUuid, LayoutName, PartitionId};

/// What a daemon's spec says of its layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActiveLayout {
    /// The layout.
    pub name: LayoutName,
    /// Its version.
    #[schema(minimum = 1)]
    pub version: u32,
    /// Which GPU plays which role; a role that is left out is the host's GPU of that index among those of the layout's SKU.
    #[serde(default)]
    #[schema(value_type = BTreeMap<String, String>)]
    pub gpu_map: GpuMap,
    /// What to do about partitions that somebody else makes or removes.
    #[serde(default)]
    pub drift_policy: PartitionPolicy,
}

impl ActiveLayout {
    /// Which version of which layout.
    pub fn version_ref(&self) -> VersionRef {
        VersionRef { name: self.name.clone(), version: self.version }
    }
}

/// What to do about partitions that somebody else made or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionPolicy {
    /// It is said, and they stay as they are.
    #[default]
    Report,
    /// They are put back as the layout says, where that touches nothing that is in use and makes nothing again that is there.
    Repair,
}

/// A layout as the driver of a daemon brings it about.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredLayout {
    /// Which version of which layout.
    pub version: VersionRef,
    /// What makes its partitions hold.
    pub enforcement: Enforcement,
    /// Its steps on the daemon's GPUs, from empty.
    pub steps: Vec<ResolvedStep>,
    /// The ID of each step, where it is on record what they give here.
    pub expected: Option<Vec<PartitionId>>,
    /// Whether partitions that stay may be made again.
    pub recreate: bool,
    /// What an ID that differs from the one on record leads to.
    pub on_difference: OnDifference,
    /// What to do about partitions that somebody else made or removed.
    pub drift_policy: PartitionPolicy,
    /// SMs of a chunk of each GPU.
    pub chunk_sms: BTreeMap<GpuUuid, u32>,
}
