//! The record of a layout's steps on a daemon, and the state that is kept while they are taken.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{PartitionChange, ResolvedStep, VersionRef};
use crate::count::counted;
use crate::partitions::GpuPartitions;
use crate::{GpuUuid, PartitionId, PartitionName, short_id};

/// A step that was taken, with the ID that it gave or took away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RecordedStep {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition.
    pub partition: PartitionName,
    /// Its chunks.
    pub chunks: u32,
    /// The change of the partition.
    pub change: PartitionChange,
    /// Its ID.
    pub id: PartitionId,
}

/// The steps of a layout as they were taken from empty GPUs, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(transparent)]
pub struct Record(pub Vec<RecordedStep>);

impl Record {
    /// Returns the partitions that are there at its end, by name.
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

    /// Returns the ID that each step gave or took away.
    pub fn ids(&self) -> Vec<PartitionId> {
        self.0.iter().map(|step| step.id.clone()).collect()
    }

    /// Returns true if it is the record of these steps.
    pub fn is_of(&self, steps: &[ResolvedStep]) -> bool {
        self.0.len() == steps.len()
            && self.0.iter().zip(steps).all(|(taken, step)| {
                (&taken.gpu, &taken.partition, taken.chunks, taken.change)
                    == (&step.gpu, &step.partition, step.chunks, step.change)
            })
    }

    /// Returns the differences between the record and the daemon's list.
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
    /// Kind of the difference.
    pub kind: DriftKind,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its name; `null` for a partition that the layout does not know.
    pub partition: Option<PartitionName>,
    /// Its ID.
    pub id: PartitionId,
    /// Its number of chunks, as listed if it is listed.
    pub chunks: u32,
}

/// Kinds of differences between a partition and the state that the active layout left.
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

impl PartitionDrift {
    /// Returns the difference in words, with the beginning of the ID alone, which most IDs of a GPU differ in.
    pub fn brief(&self) -> String {
        self.words(&short_id(self.id.as_str()))
    }

    fn words(&self, id: &str) -> String {
        let chunks = counted(self.chunks, "chunk");
        match (self.kind, &self.partition) {
            (DriftKind::Missing, Some(name)) => format!("partition {name} ({id}) was removed"),
            (DriftKind::OtherSize, Some(name)) => format!("partition {name} ({id}) now has {chunks}"),
            (_, Some(name)) => format!("partition {name} of {chunks} ({id}) was added"),
            (_, None) => format!("a partition of {chunks} ({id}) was added"),
        }
    }
}

impl std::fmt::Display for PartitionDrift {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words(&format!("{}/{}", self.gpu, self.id)))
    }
}

/// A partition that is there under another ID than the recorded one, or not there though it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Degraded {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its name; `null` for a partition that no layout of this manager made.
    pub partition: Option<PartitionName>,
    /// The ID that it had, or should have.
    pub expected: Option<PartitionId>,
    /// The ID that it has; `null` where it is not there.
    pub got: Option<PartitionId>,
    /// Reason for the failure to restore it, where there is one.
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

/// A command that was sent, with its result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ExecutedStep {
    /// The step of the layout, counted from 0; `null` for the removal of a partition that the layout does not have, and while a run is
    /// undone.
    pub step: Option<usize>,
    /// The change of the partition.
    pub change: PartitionChange,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition; `null` for one that no layout of this manager made.
    pub partition: Option<PartitionName>,
    /// Its chunks.
    pub chunks: u32,
    /// The command.
    pub command: String,
    /// The recorded ID.
    pub expected: Option<PartitionId>,
    /// The ID that the command gave or took away; `null` if it did nothing.
    pub id: Option<PartitionId>,
    /// SMs that the daemon lists for the partition.
    pub sms: Option<u32>,
    /// True if the command undid a step of a run that failed.
    pub undo: bool,
    /// Failure of the command, if it failed.
    pub problem: Option<String>,
    /// Microseconds from the command to the list that shows its effect.
    pub duration_us: u64,
}

/// The state of the partitions of one control process, which outlives the manager.
///
/// It is written before a session that changes partitions and after it, so that a manager that starts in between knows which partitions
/// were there before: all others that are listed were made by steps whose end was not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionRun {
    /// The incarnation of the control process: partitions vanish with it.
    pub token: String,
    /// The version of the layout that the record belongs to.
    pub layout: Option<VersionRef>,
    /// The steps that were taken, as of the last session that ended.
    pub record: Record,
    /// Partitions that are not as they were, since something had to be undone.
    pub degraded: Vec<Degraded>,
    /// The IDs that were there before the session under way; `None` if there is none.
    pub before: Option<BTreeMap<GpuUuid, BTreeSet<PartitionId>>>,
    /// The generation of the daemon for which the last session completed; 0 before any did.
    #[serde(default)]
    pub generation: i64,
    /// The run that brought the layout in force, with its commands. It is written in one transaction with the record that it led to, so
    /// that no manager has one without the other.
    #[serde(default)]
    pub last: Option<RunLog>,
}

/// The commands of a run that completed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunLog {
    /// The generation of the daemon that it was for.
    pub generation: i64,
    /// Time at which it began, in unix milliseconds.
    pub began: i64,
    /// Its commands.
    pub executed_steps: Vec<ExecutedStep>,
    /// Duration of the commands, in microseconds.
    pub duration_us: Option<u64>,
}

impl PartitionRun {
    /// Creates the state of a control process that has no partitions of this manager.
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

    /// Returns the ID that each of these steps gave or took away in this control process; `None` unless they were taken to their end and
    /// nothing had to be undone since.
    pub fn given(&self, version: &VersionRef, steps: &[ResolvedStep]) -> Option<Vec<PartitionId>> {
        let whole = self.before.is_none() && self.degraded.is_empty();
        let same = self.layout.as_ref() == Some(version) && self.record.is_of(steps);
        (whole && same).then(|| self.record.ids())
    }
}
