//! The layout that a daemon holds, or is to hold.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::percentage::PlannedShare;
use super::record::{PartitionRun, Record};
use super::{Enforcement, GpuMap, Layout, ResolvedStep, VersionRef};
use crate::gpu::Gpu;
use crate::{GpuUuid, InvalidValue, LayoutName, PartitionId, PartitionName, TenantName};

/// The layout in a daemon's spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActiveLayout {
    /// The layout.
    pub name: LayoutName,
    /// Its version.
    #[schema(minimum = 1)]
    pub version: u32,
    /// The GPU of each role. A role that is left out is played by the host's GPU of that index among those of the layout's SKU.
    #[serde(default)]
    #[schema(schema_with = crate::layout::roles_by_uuid)]
    pub gpu_map: GpuMap,
    /// Policy for partitions that another program makes or removes.
    #[serde(default)]
    pub drift_policy: PartitionPolicy,
}

impl ActiveLayout {
    /// Returns the layout's name and version.
    pub fn version_ref(&self) -> VersionRef {
        VersionRef { name: self.name.clone(), version: self.version }
    }
}

/// Policy for partitions that another program made or removed.
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
    /// Its name and version.
    pub version: VersionRef,
    /// The mechanism that enforces its partitions.
    pub enforcement: Enforcement,
    /// Its steps on the daemon's GPUs, from empty.
    pub steps: Vec<ResolvedStep>,
    /// The ID of each step, where they are recorded for these GPUs. Without a record, the IDs of the first run are recorded as soon as it
    /// has completed, and later runs have to give the same.
    pub expected: Option<Vec<PartitionId>>,
    /// True if partitions that stay may be recreated.
    pub recreate: bool,
    /// Policy for partitions that another program made or removed.
    pub drift_policy: PartitionPolicy,
    /// SMs of a chunk of each GPU.
    pub chunk_sms: BTreeMap<GpuUuid, u32>,
    /// Tenants bound to each partition that is there at its end.
    pub tenants: BTreeMap<PartitionName, Vec<TenantName>>,
    /// With `enforcement: percentage`, the shares of its partitions.
    pub shares: Vec<PlannedShare>,
}

/// The IDs that the steps of a layout give on the GPUs of a daemon, with which each later run is compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AppliedLayout {
    /// The layout's name and version.
    pub version: VersionRef,
    /// The GPU of each role.
    pub gpu_map: GpuMap,
    /// Its steps, with the ID of each.
    pub record: Record,
    /// Source of the IDs.
    pub source: PartitionIdSource,
}

/// Source of the recorded IDs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PartitionIdSource {
    /// The first run of the layout on these GPUs gave them.
    Applied,
    /// A replay brought them along.
    Replayed,
}

api_words!(PartitionIdSource: Applied "applied", Replayed "replayed");

impl AppliedLayout {
    /// Returns the record to write after a run: the IDs that the layout in force gave on its GPUs. Returns `None` unless all steps were
    /// done and nothing was left degraded, or if there is a record of this layout on these GPUs.
    pub fn after(
        run: &PartitionRun,
        active: &ActiveLayout,
        layout: &Layout,
        stored: Option<&Self>,
    ) -> Result<Option<Self>, InvalidValue> {
        let version = active.version_ref();
        let given = run.given(&version, &layout.resolve(&active.gpu_map)?);
        if given.is_none() || stored.is_some_and(|stored| stored.is_of(active)) {
            return Ok(None);
        }
        let (gpu_map, record) = (active.gpu_map.clone(), run.record.clone());
        Ok(Some(Self { version, gpu_map, record, source: PartitionIdSource::Applied }))
    }

    /// Returns true if it belongs to this layout on these GPUs.
    pub fn is_of(&self, active: &ActiveLayout) -> bool {
        self.version == active.version_ref() && self.gpu_map == active.gpu_map
    }
}

/// A change of a daemon's layout that is under way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutChange {
    /// The state before the change, to which a failed change goes back.
    pub previous: Previous,
    /// True if partitions that stay may be recreated.
    pub recreate: bool,
}

/// The layout of a daemon before a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Previous {
    /// Its layout.
    pub layout: Option<ActiveLayout>,
    /// The record of that layout.
    pub applied: Option<AppliedLayout>,
}

impl DesiredLayout {
    /// Creates the layout as the driver applies it, with the recorded IDs if they belong to these steps.
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
            shares: Vec::new(),
        })
    }
}

/// Returns the SMs of a chunk of each wanted GPU whose compute capability is known.
pub fn chunk_sms<'g>(host: &[Gpu], wanted: impl Iterator<Item = &'g GpuUuid>) -> BTreeMap<GpuUuid, u32> {
    wanted
        .filter_map(|uuid| {
            let gpu = host.iter().find(|gpu| gpu.uuid == *uuid)?;
            Some((uuid.clone(), gpu.compute_capability?.chunk_sms()))
        })
        .collect()
}
