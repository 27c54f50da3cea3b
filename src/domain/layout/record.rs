//! What the steps of a layout gave on a daemon, and what is remembered while they are taken.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{PartitionChange, ResolvedStep, VersionRef};
use crate::count::counted;
use crate::partitions::GpuPartitions;
use crate::{GpuUuid, PartitionId, PartitionName};

/// A step that was taken, with the ID that it gave or took away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RecordedStep {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition.
    pub partition: PartitionName,
    /// Its chunks.
    pub chunks: u32,
    /// What was done to it.
    pub change: PartitionChange,
    /// Its ID.
    pub id: PartitionId,
}

/// The steps of a layout as they were taken from empty GPUs, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct Record(pub Vec<RecordedStep>);

impl Record {
    /// The partitions that are there at its end, by name.
    pub fn live(&self) -> BTreeMap<&PartitionName, &RecordedStep> {
        let mut live = BTreeMap::new();
        for step in &self.0 {
            match step.change {
                PartitionChange::Add => live.insert(&step.partition, step),
                PartitionChange::Remove => live.remove(&step.partition),
            };
        }
        live
    }

    /// The ID that each step gave or took away.
    pub fn ids(&self) -> Vec<PartitionId> {
        self.0.iter().map(|step| step.id.clone()).collect()
    }

    /// Whether these are the steps that it is of.
    pub fn is_of(&self, steps: &[ResolvedStep]) -> bool {
        self.0.len() == steps.len()
            && self.0.iter().zip(steps).all(|(taken, step)| {
                (&taken.gpu, &taken.partition, taken.chunks, taken.change)
                    == (&step.gpu, &step.partition, step.chunks, step.change)
            })
    }

    /// What the daemon lists otherwise than it says.
    pub fn drift(&self, present: &[GpuPartitions]) -> Vec<PartitionDrift> {
        let live = self.live();
        let mut found: Vec<PartitionDrift> = live
            .values()
            .filter_map(|step| {
                let listed = present.iter().find(|gpu| gpu.gpu == step.gpu).and_then(|gpu| gpu.get(&step.id));
                let kind = match listed {
                    None => DriftKind::Missing,
                    Some(listed) if listed.chunks != step.chunks => DriftKind::OtherSize,
                    Some(_) => return None,
                };
                Some(PartitionDrift {
                    kind,
                    gpu: step.gpu.clone(),
                    partition: Some(step.partition.clone()),
                    id: step.id.clone(),
                    chunks: listed.map_or(step.chunks, |listed| listed.chunks),
                })
            })
            .collect();
        let known: BTreeSet<(&GpuUuid, &PartitionId)> =
            live.values().map(|step| (&step.gpu, &step.id)).collect();
        for gpu in present {
            let strange = gpu.partitions.iter().filter(|listed| !known.contains(&(&gpu.gpu, &listed.id)));
            found.extend(strange.map(|listed| PartitionDrift {
                kind: DriftKind::Unknown,
                gpu: gpu.gpu.clone(),
                partition: None,
                id: listed.id.clone(),
                chunks: listed.chunks,
            }));
        }
        found
    }
}

/// A partition that is not as the active layout left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PartitionDrift {
    /// How it differs.
    pub kind: DriftKind,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its name; `null` for one that the layout does not know.
    pub partition: Option<PartitionName>,
    /// Its ID.
    pub id: PartitionId,
    /// Its chunks, as listed where it is listed.
    pub chunks: u32,
}

/// How a partition differs from what the active layout left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftKind {
    /// It is gone.
    Missing,
    /// It is there, and the layout did not make it.
    Unknown,
    /// It is there with another number of chunks.
    OtherSize,
}

impl std::fmt::Display for PartitionDrift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { gpu, id, chunks, .. } = self;
        match (self.kind, &self.partition) {
            (DriftKind::Missing, Some(name)) => write!(f, "partition {name} ({gpu}/{id}) is gone"),
            (DriftKind::OtherSize, Some(name)) => {
                write!(f, "partition {name} ({gpu}/{id}) has {}", counted(*chunks, "chunk"))
            }
            (_, Some(name)) => write!(f, "partition {name} ({gpu}/{id}) is not the layout's"),
            (_, None) => {
                write!(f, "partition {gpu}/{id} of {} is not the layout's", counted(*chunks, "chunk"))
            }
        }
    }
}

/// A partition that is there under another ID than the recorded one, or not there though it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Degraded {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its name; `null` for one that no layout of ours made.
    pub partition: Option<PartitionName>,
    /// The ID that it had, or should have.
    pub expected: Option<PartitionId>,
    /// The ID that it has; `null` where it is not there.
    pub got: Option<PartitionId>,
    /// What blocked it, if anything did.
    pub why: Option<String>,
}

impl std::fmt::Display for Degraded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.partition {
            Some(name) => write!(f, "partition {name}")?,
            None => write!(f, "a partition that no layout made")?,
        }
        match (&self.expected, &self.got) {
            (Some(expected), Some(got)) => write!(f, " has the ID {got} and had {expected}")?,
            (Some(expected), None) => write!(f, " ({expected}) is not there any more")?,
            (None, Some(got)) => write!(f, " ({got}) is still there")?,
            (None, None) => write!(f, " is not as it was")?,
        }
        match &self.why {
            Some(why) => write!(f, " ({why})"),
            None => Ok(()),
        }
    }
}

/// One command that was sent and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExecutedStep {
    /// The step of the layout, counted from 0; `null` for the removal of what the layout does not have, and on the way back.
    pub step: Option<usize>,
    /// What was done.
    pub change: PartitionChange,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition; `null` for one that no layout of ours made.
    pub partition: Option<PartitionName>,
    /// Its chunks.
    pub chunks: u32,
    /// The command.
    pub command: String,
    /// The recorded ID.
    pub expected: Option<PartitionId>,
    /// The ID that it gave or took away; `null` where it did nothing.
    pub id: Option<PartitionId>,
    /// SMs that the daemon lists for it.
    pub sms: Option<u32>,
    /// Whether it was sent on the way back.
    pub undo: bool,
    /// What was wrong with it.
    pub problem: Option<String>,
    /// Microseconds from the command to the list that shows what it did.
    pub duration_us: u64,
}

/// What outlives the manager of the partitions of one control process.
///
/// It is written before a session that changes partitions and after it, so that a manager that starts in between knows
/// what was there before: whatever is listed beside that was made by steps whose end was not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRun {
    /// The incarnation of the control process: partitions vanish with it.
    pub token: String,
    /// What the record is of.
    pub layout: Option<VersionRef>,
    /// What was made, as of the last session that ended.
    pub record: Record,
    /// What is not as it was, since something had to be undone.
    pub degraded: Vec<Degraded>,
    /// The session under way: the IDs that were there before it.
    pub before: Option<BTreeMap<GpuUuid, BTreeSet<PartitionId>>>,
    /// The generation of the daemon for which the last session completed; 0 before one did.
    #[serde(default)]
    pub generation: i64,
    /// The run that brought the layout in force, with its commands: in one transaction with the record that it led to, so that
    /// no manager has the one without the other.
    #[serde(default)]
    pub last: Option<RunLog>,
}

/// The commands of a run that completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLog {
    /// The generation of the daemon that it was for.
    pub generation: i64,
    /// When it began, in unix milliseconds.
    pub began: i64,
    /// Its commands.
    pub executed_steps: Vec<ExecutedStep>,
    /// How long they took, in microseconds.
    pub duration_us: Option<u64>,
}

impl PartitionRun {
    /// One for a control process that has no partitions of ours.
    pub fn new(token: String) -> Self {
        Self {
            token,
            layout: None,
            record: Record::default(),
            degraded: Vec::new(),
            before: None,
            generation: 0,
            last: None,
        }
    }

    /// The ID that each of these steps gave or took away in this control process; `None` unless they were taken to their end
    /// and nothing had to be undone since.
    pub fn given(&self, version: &VersionRef, steps: &[ResolvedStep]) -> Option<Vec<PartitionId>> {
        let whole = self.before.is_none() && self.degraded.is_empty();
        let same = self.layout.as_ref() == Some(version) && self.record.is_of(steps);
        (whole && same).then(|| self.record.ids())
    }
}
