//! Replays: a layout taken from empty GPUs, with the ID of each step compared with the recorded one.

use serde::{Deserialize, Serialize};

use super::active::{ActiveLayout, AppliedLayout, PartitionIdSource};
use super::document::{FingerprintDifference, PartitionShare, Provenance};
use super::execution::LayoutFailureCause;
use super::record::{ExecutedStep, Record, RecordedStep};
use super::status::LayoutStatus;
use super::{GpuMap, Layout, VersionRef};
use crate::count::counted;
use crate::daemon::DaemonSpec;
use crate::{DaemonName, InvalidValue, LayoutName, PartitionId};

/// Reason for which a replay is given up if another layout is requested for its daemon.
pub const ANOTHER_LAYOUT: &str = "another layout was requested before this one was applied";

/// The record of a replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Replay {
    /// Its ID, a UUID of version 7.
    pub id: uuid::Uuid,
    /// The daemon.
    pub daemon: DaemonName,
    /// The layout.
    pub layout: LayoutName,
    /// Its version here.
    pub version: u32,
    /// The GPU of each role.
    #[schema(schema_with = crate::layout::roles_by_uuid)]
    pub gpu_map: GpuMap,
    /// Cause of the replay.
    pub cause: ReplayCause,
    /// The operation, where it was requested.
    pub operation: Option<uuid::Uuid>,
    /// The recorded ID of each step; `null` where none is recorded.
    pub expected: Option<Vec<PartitionId>>,
    /// The recorded shares that the partitions are to have, where the enforcement is a percentage.
    #[serde(default)]
    pub shares: Vec<PartitionShare>,
    /// The shares that CUDA clients of verified tenants saw, where the enforcement is a percentage.
    #[serde(default)]
    pub seen: Vec<PartitionShare>,
    /// Source of the recorded IDs, if they came with a document.
    pub provenance: Option<Provenance>,
    /// Differences from the document's fingerprint that `force` passed over.
    pub forced: Vec<FingerprintDifference>,
    /// Its outcome.
    pub verdict: Verdict,
    /// Reason for which it did not complete.
    pub error: Option<String>,
    /// Every command with its expected ID and the ID that it gave. Commands that undid a step have `undo`. If the manager was restarted
    /// before they ended, the commands are those of the run that was then taken from the beginning.
    pub steps: Vec<ExecutedStep>,
    /// Time at which it was created.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// Time at which it ended.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<i64>,
    /// Duration of its commands, in microseconds; `null` where it is not known.
    pub duration_us: Option<u64>,
}

impl Replay {
    /// A record that begins now.
    pub fn new(
        id: uuid::Uuid,
        daemon: DaemonName,
        active: ActiveLayout,
        cause: ReplayCause,
        expected: Option<Vec<PartitionId>>,
        now: i64,
    ) -> Self {
        Self {
            id,
            daemon,
            layout: active.name,
            version: active.version,
            gpu_map: active.gpu_map,
            cause,
            operation: None,
            expected,
            shares: Vec::new(),
            seen: Vec::new(),
            provenance: None,
            forced: Vec::new(),
            verdict: Verdict::Pending,
            error: None,
            steps: Vec::new(),
            created_at: now,
            finished_at: None,
            duration_us: None,
        }
    }
}

/// Cause of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplayCause {
    /// It was requested.
    Requested,
    /// The control process of the daemon was started again.
    Restart,
}

/// Outcome of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It is under way.
    Pending,
    /// Every step gave the recorded ID, or every percentage the recorded SMs.
    Same,
    /// All steps were done, and there was no record to compare with. IDs are recorded from now on.
    First,
    /// A step gave another ID than the recorded one, or a percentage other SMs; everything was undone.
    Differs,
    /// It did not complete for another reason.
    Failed,
}

api_words!(Verdict: Pending "pending", Same "same", First "first", Differs "differs", Failed "failed");

impl Replay {
    /// Returns the number of steps that gave the recorded ID, and the number of steps with a recorded ID. Both are equal where nothing is
    /// recorded.
    pub fn identical_steps(&self) -> (usize, usize) {
        // A step that removes a partition has an ID, and none to compare it with.
        let is_same =
            |step: &&ExecutedStep| step.id.is_some() && (step.expected.is_none() || step.expected == step.id);
        let same = self.steps.iter().filter(|step| !step.undo).filter(is_same).count();
        (same, self.expected.as_ref().map_or(same, Vec::len))
    }

    /// Returns the layout's name and version.
    pub fn version_ref(&self) -> VersionRef {
        VersionRef { name: self.layout.clone(), version: self.version }
    }

    /// Returns the layout for the daemon's spec, with the drift policy that the spec has now.
    pub fn active(&self, spec: &DaemonSpec) -> ActiveLayout {
        ActiveLayout {
            name: self.layout.clone(),
            version: self.version,
            gpu_map: self.gpu_map.clone(),
            drift_policy: spec.layout.as_ref().map(|layout| layout.drift_policy).unwrap_or_default(),
        }
    }

    /// Returns true if the layout was found as recorded, but some of the commands that show it were not kept.
    pub fn lacks_steps(&self) -> bool {
        let taken = self.steps.iter().filter(|taken| !taken.undo && taken.step.is_some()).count();
        self.verdict == Verdict::Same && self.expected.as_ref().is_some_and(|ids| taken < ids.len())
    }

    /// Returns true if it is a replay of this layout on these GPUs.
    pub fn is_of(&self, active: &ActiveLayout) -> bool {
        (&self.layout, self.version, &self.gpu_map) == (&active.name, active.version, &active.gpu_map)
    }

    /// Returns the record to write before the steps are taken; `None` where no IDs came along.
    pub fn applied(&self, layout: &Layout) -> Result<Option<AppliedLayout>, InvalidValue> {
        let Some(expected) = &self.expected else { return Ok(None) };
        let steps = layout.resolve(&self.gpu_map)?;
        if steps.len() != expected.len() {
            return Err(InvalidValue(format!(
                "{} for {}",
                counted(expected.len(), "ID"),
                counted(steps.len(), "step")
            )));
        }
        let record = steps.into_iter().zip(expected).map(|(step, id)| RecordedStep {
            gpu: step.gpu,
            partition: step.partition,
            chunks: step.chunks,
            change: step.change,
            id: id.clone(),
        });
        Ok(Some(AppliedLayout {
            version: self.version_ref(),
            gpu_map: self.gpu_map.clone(),
            record: Record(record.collect()),
            source: PartitionIdSource::Replayed,
        }))
    }

    /// Describes the partitions whose percentages give other SMs than are recorded; `None` if there are none.
    pub fn other_sms(&self, given: &[PartitionShare]) -> Option<String> {
        let differs = |recorded: &PartitionShare| {
            let (partition, sms) = (&recorded.partition, recorded.sms);
            match given.iter().find(|given| given.partition == *partition) {
                None => Some(format!("there is no partition {partition}, and {sms} SMs are recorded")),
                Some(given) if given.sms != sms => {
                    Some(format!("partition {partition} has {} SMs, and {sms} are recorded", given.sms))
                }
                Some(_) => None,
            }
        };
        let differences: Vec<String> = self.shares.iter().filter_map(differs).collect();
        (!differences.is_empty()).then(|| differences.join("; "))
    }

    /// Returns the replay as completed, with the commands and the shares that were seen.
    #[must_use]
    pub fn done(self, seen: Vec<PartitionShare>, steps: Vec<ExecutedStep>, duration_us: Option<u64>) -> Self {
        let on_record = self.expected.is_some() || !self.shares.is_empty();
        let verdict = if on_record { Verdict::Same } else { Verdict::First };
        Self { seen, verdict, steps, duration_us, ..self }
    }

    /// Returns the replay as different, since partitions have other SMs than are recorded, or CUDA clients saw others.
    #[must_use]
    pub fn differed(self, why: String, seen: Vec<PartitionShare>, duration_us: Option<u64>) -> Self {
        Self { seen, verdict: Verdict::Differs, error: Some(why), duration_us, ..self }
    }

    /// Returns the replay with the outcome that the layout's status in the daemon's present control process shows.
    #[must_use]
    pub fn judged(self, status: &LayoutStatus) -> Self {
        if status.version_ref() != Some(VersionRef { name: self.layout.clone(), version: self.version }) {
            return self.given_up(ANOTHER_LAYOUT.to_owned(), None, Vec::new(), None);
        }
        // Where nothing could be done, the last run is of the process before.
        let own = status.ran_at.is_some_and(|ran_at| ran_at >= self.created_at);
        let (steps, duration_us) =
            if own { (status.executed_steps.clone(), status.duration_us) } else { (Vec::new(), None) };
        if let Some(failure) = &status.failure {
            return self.given_up(failure.cause.to_string(), Some(&failure.cause), steps, duration_us);
        }
        self.done(Vec::new(), steps, duration_us)
    }

    /// Returns the replay as given up; the cause decides between the verdicts `Differs` and `Failed`.
    #[must_use]
    pub fn given_up(
        self,
        why: String,
        cause: Option<&LayoutFailureCause>,
        steps: Vec<ExecutedStep>,
        duration_us: Option<u64>,
    ) -> Self {
        let differs = matches!(cause, Some(LayoutFailureCause::OtherId { .. }));
        let verdict = if differs { Verdict::Differs } else { Verdict::Failed };
        Self { verdict, error: Some(why), steps, duration_us, ..self }
    }
}
