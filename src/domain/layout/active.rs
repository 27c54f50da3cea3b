//! The layout that a daemon holds, or is to hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::percentage::PlannedShare;
use super::percentage::proof::ProvenShare;
use super::record::{PartitionRun, Record};
use super::{AddStep, Enforcement, GpuMap, Layout, ResolvedStep, VersionRef, document};
use crate::gpu::Gpu;
use crate::{GpuUuid, InvalidValue, LayoutName, PartitionId, PartitionName, TenantName, ThreadPercentage};

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
    #[schema(schema_with = crate::layout::roles_by_uuid)]
    pub gpu_map: GpuMap,
    /// What to do about partitions that another program makes or removes.
    #[serde(default)]
    pub drift_policy: PartitionPolicy,
}

impl ActiveLayout {
    /// Which version of which layout.
    pub fn version_ref(&self) -> VersionRef {
        VersionRef { name: self.name.clone(), version: self.version }
    }
}

/// What to do about partitions that another program made or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionPolicy {
    /// They are reported and stay as they are.
    #[default]
    Report,
    /// They are restored as the layout says, where that touches nothing that is in use and makes nothing again that is there.
    Repair,
}

/// A layout as the driver of a daemon applies it.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredLayout {
    /// Which version of which layout.
    pub version: VersionRef,
    /// What makes its partitions hold.
    pub enforcement: Enforcement,
    /// Its steps on the daemon's GPUs, from empty.
    pub steps: Vec<ResolvedStep>,
    /// The ID of each step, where what they give here is recorded. Without a record, what the first run gives is recorded as
    /// soon as it has completed, and later runs are held to it.
    pub expected: Option<Vec<PartitionId>>,
    /// Whether partitions that stay may be made again.
    pub recreate: bool,
    /// What to do about partitions that another program made or removed.
    pub drift_policy: PartitionPolicy,
    /// SMs of a chunk of each GPU.
    pub chunk_sms: BTreeMap<GpuUuid, u32>,
    /// Who is bound to the partitions that are there at its end.
    pub tenants: BTreeMap<PartitionName, Vec<TenantName>>,
    /// With `enforcement: percentage`, what its partitions come to; nothing otherwise.
    pub shares: Option<DesiredShares>,
}

/// A layout that thread percentages make hold.
#[derive(Debug, Clone, PartialEq)]
pub struct DesiredShares {
    /// Its partitions.
    pub shares: Vec<PlannedShare>,
    /// What CUDA clients saw when a layout of this daemon was applied last: where to begin, and no proof of anything.
    pub earlier: Vec<ProvenShare>,
    /// The largest percentage of the daemon's tenants that have no partition.
    pub others: Option<ThreadPercentage>,
}

/// What the steps of a layout give on the GPUs of a daemon: whatever a later run gives is compared with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedLayout {
    /// Which version of which layout.
    pub version: VersionRef,
    /// Which GPU plays which role.
    pub gpu_map: GpuMap,
    /// Its steps, with the ID of each.
    pub record: Record,
    /// Where the IDs come from.
    pub source: PartitionIdSource,
}

/// Where the recorded IDs come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionIdSource {
    /// The first run of the layout on these GPUs gave them.
    Applied,
    /// A replay brought them along.
    Replayed,
}

impl PartitionIdSource {
    /// The word in the store and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Replayed => "replayed",
        }
    }
}

impl AppliedLayout {
    /// What is to be recorded after a run: what the layout in force gave on its GPUs, when it was all done, nothing was
    /// left degraded, and nothing is recorded of it.
    pub fn after(
        run: &PartitionRun,
        active: &ActiveLayout,
        layout: &Layout,
        known: Option<&Self>,
    ) -> Result<Option<Self>, InvalidValue> {
        let version = active.version_ref();
        let given = run.given(&version, &layout.resolve(&active.gpu_map)?);
        if given.is_none() || known.is_some_and(|known| known.is_of(active)) {
            return Ok(None);
        }
        let (gpu_map, record) = (active.gpu_map.clone(), run.record.clone());
        Ok(Some(Self { version, gpu_map, record, source: PartitionIdSource::Applied }))
    }

    /// Whether it is of this layout on these GPUs.
    pub fn is_of(&self, active: &ActiveLayout) -> bool {
        self.version == active.version_ref() && self.gpu_map == active.gpu_map
    }
}

/// What was proven of a version of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenLayout {
    /// Which version of which layout.
    pub version: VersionRef,
    /// One for each size of its partitions.
    pub shares: Vec<ProvenShare>,
}

impl ProvenLayout {
    /// What was seen in each partition of a layout; `None` where it is not of that version on these GPUs.
    pub fn seen(&self, active: &ActiveLayout, layout: &Layout) -> Option<Vec<document::PartitionShare>> {
        if self.version != active.version_ref() {
            return None;
        }
        let share = |add: &AddStep| {
            let gpu = active.gpu_map.get(&add.gpu)?;
            let mut proven = self.shares.iter().filter(|proven| proven.chunks == add.chunks);
            let (percentage, sms) =
                proven.find_map(|proven| Some((proven.percentage, *proven.seen.get(gpu)?)))?;
            let partition = add.partition.clone();
            Some(document::PartitionShare { partition, active_thread_percentage: percentage, sms })
        };
        layout.adds().map(share).collect()
    }
}

/// A change of a daemon's layout that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutChange {
    /// What was before it, and what it goes back to.
    pub previous: Previous,
    /// Whether partitions that stay may be made again.
    pub recreate: bool,
}

/// What a daemon held before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// Its layout.
    pub layout: Option<ActiveLayout>,
    /// What was recorded of it.
    pub applied: Option<AppliedLayout>,
}

impl DesiredLayout {
    /// The layout as the driver applies it.
    pub fn of(
        active: &ActiveLayout,
        layout: &Layout,
        applied: Option<&AppliedLayout>,
        change: Option<&LayoutChange>,
        gpus: &[Gpu],
    ) -> Result<Self, InvalidValue> {
        let steps = layout.resolve(&active.gpu_map)?;
        let on_record = applied.filter(|applied| applied.is_of(active) && applied.record.is_of(&steps));
        let expected = on_record.map(|applied| applied.record.ids());
        Ok(Self {
            version: active.version_ref(),
            enforcement: layout.enforcement,
            expected,
            recreate: change.is_some_and(|change| change.recreate),
            drift_policy: active.drift_policy,
            chunk_sms: chunk_sms(gpus, steps.iter().map(|step| &step.gpu)),
            steps,
            tenants: layout.partitions().map(|add| (add.partition.clone(), add.tenants.clone())).collect(),
            shares: None,
        })
    }
}

/// SMs of a chunk of each of these GPUs, where it is known what they are.
pub fn chunk_sms<'g>(known: &[Gpu], wanted: impl Iterator<Item = &'g GpuUuid>) -> BTreeMap<GpuUuid, u32> {
    wanted
        .filter_map(|uuid| {
            let gpu = known.iter().find(|gpu| gpu.uuid == *uuid)?;
            Some((uuid.clone(), gpu.compute_capability?.chunk_sms()))
        })
        .collect()
}
