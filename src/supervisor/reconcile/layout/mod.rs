//! The next step for the layout of one daemon: pure, from the desired layout, the work done for it in the present control
//! process, and the observed partitions.
//!
//! ```text
//!   a new control process, another layout, a run that was cut short
//!      ▼
//!    due ──run──► unwritten ──► complete ──others change partitions──► drifted ──policy `repair`, where it may──► due
//!      │ │
//!      │ └─ something blocks it: refused, and due as soon as it is gone
//!      ▼
//!   failed: not tried again before a retry is requested, the desired layout changes, or another process starts
//! ```
//!
//! Static partitions are made by commands and compared by ID (partitions.rs): a run is one session. The state is about the
//! present control process, and never about another one; the IDs of an earlier process are only what the next run is compared
//! with. A layout of thread percentages needs no run: its tenants' shares are in force with the daemon's settings.

pub(crate) mod conditions;
mod drift;
mod partitions;
pub(crate) mod progress;
mod run;

use self::partitions::{PartitionRuntime, static_layout};
use self::progress::{LayoutAction, LayoutProgress};
use self::run::LastRun;
use crate::domain::daemon::Mode;
use crate::domain::layout::Enforcement;
use crate::domain::layout::active::DesiredLayout;
use crate::domain::layout::execution::{Execution, ExecutionOutcome, LayoutFailureCause};
use crate::domain::layout::percentage::PlannedShare;
use crate::domain::layout::plan::Plan;
use crate::domain::layout::record::{ExecutedStep, PartitionRun};
use crate::domain::layout::status::{DriftSeen, LayoutFailure, LayoutState, LayoutStatus, PartitionStatus};
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;

/// Pause before a failed write to the store is tried again.
const UNWRITTEN_RETRY_MS: i64 = 1_000;

/// State of the layout of one daemon between two steps.
#[derive(Debug, Clone, Default)]
pub struct LayoutReconciler {
    partitions: PartitionRuntime,
    /// Reason why the last run failed; it counts for the generation of that run.
    failure: Option<LayoutFailure>,
    /// Present or last run that applies the layout.
    last: Option<LastRun>,
    /// Time at which a failed write is tried again; 0 if none failed.
    write_retry_at: i64,
}

impl LayoutReconciler {
    /// Creates the state that an earlier manager has written down.
    pub fn remembered(run: Option<PartitionRun>) -> Self {
        // Of an interrupted run, only the listing counts.
        let ended = run.as_ref().filter(|run| run.before.is_none());
        let last = ended.and_then(|run| run.last.clone()).map(LastRun::from);
        Self { partitions: PartitionRuntime::remembered(run), last, ..Self::default() }
    }

    /// Notes that a control process was started or found: the work done in another one is gone.
    pub fn begin(&mut self, token: &str) {
        if self.partitions.begin(token) {
            self.failure = None;
            self.write_retry_at = 0;
        }
    }

    /// Retries a failed layout.
    pub fn try_again(&mut self) {
        self.write_retry_at = 0;
        self.partitions.retry(self.failure.is_some());
        self.failure = None;
    }

    /// Requests the layout again, in this generation. Partitions are left alone if a run for this generation has ended, whether
    /// the desired state itself or an earlier manager began it: nobody requested that later changes by others be undone.
    pub fn request(&mut self, generation: i64) {
        self.write_retry_at = 0;
        let failed = self.failure.as_ref().is_some_and(|failure| failure.generation >= generation);
        self.partitions.request(generation, failed);
    }

    /// Takes the partitions of a poll: remembers drift, and fulfils the request once nothing is left to do.
    pub fn polled(&mut self, desired: &Desired, present: Option<&[GpuPartitions]>, now: i64) {
        if let Some(present) = present {
            self.partitions.note_drift(desired, present, now);
        }
        if self.progress(desired, present).is_complete() {
            self.partitions.fulfilled();
        }
    }

    /// Returns the runtime that enforces the desired layout, or in which parts of another one are left; `None` if there are neither.
    fn runtime(&self, desired: &Desired) -> Option<Enforcement> {
        let percentages = percentage_layout(desired).is_some();
        let remains = self.partitions.has_remains() && !(percentages && desired.mode == Mode::Shared);
        if remains || static_layout(desired).is_some() {
            return Some(Enforcement::Static);
        }
        percentages.then_some(Enforcement::Percentage)
    }

    /// Returns the progress of the desired layout; `present` are the partitions listed now.
    pub fn progress(&self, desired: &Desired, present: Option<&[GpuPartitions]>) -> LayoutProgress {
        if self.partitions.is_unwritten(desired) {
            return LayoutProgress::Unwritten;
        }
        match self.runtime(desired) {
            Some(Enforcement::Percentage) if desired.mode == Mode::Static => {
                let why = "a daemon in static mode ignores thread percentages: set its mode to shared, or apply a layout of static \
                           partitions";
                LayoutProgress::Refused(LayoutFailureCause::Blocked { why: why.to_owned() })
            }
            None | Some(Enforcement::Percentage) => LayoutProgress::Complete,
            Some(Enforcement::Static) => {
                let failed =
                    self.failure.as_ref().is_some_and(|failure| failure.generation == desired.generation);
                self.partitions.progress(desired, present, failed)
            }
        }
    }

    /// Returns the next step and its time, once all settings are right.
    pub fn next_step(
        &self,
        desired: &Desired,
        present: Option<&[GpuPartitions]>,
    ) -> Option<(i64, LayoutAction)> {
        match self.progress(desired, present) {
            LayoutProgress::Unwritten => Some((self.write_retry_at, LayoutAction::Record)),
            LayoutProgress::Due(_) => Some((self.write_retry_at, LayoutAction::Partition)),
            LayoutProgress::Drifted(..) => {
                let at = self.partitions.repair_postponed_until()?;
                Some((at.max(self.write_retry_at), LayoutAction::Partition))
            }
            _ => None,
        }
    }

    /// Returns true if a run is under way.
    pub fn is_under_way(&self) -> bool {
        self.last.iter().chain(self.partitions.repair()).any(LastRun::is_under_way)
    }

    /// Prepares a run that begins with this list: remembers drift before it is restored.
    pub fn prepare_run(&mut self, desired: &Desired, present: &[GpuPartitions], now: i64) {
        self.partitions.note_drift(desired, present, now);
        self.partitions.end_pause(now);
    }

    /// Returns the record to write before a run.
    pub fn before(&self, token: &str, present: &[GpuPartitions]) -> PartitionRun {
        self.partitions.before(token, present)
    }

    /// Begins a run that was written down.
    pub fn began(
        &mut self,
        run: PartitionRun,
        plan: &Plan,
        desired: &Desired,
        present: &[GpuPartitions],
        now: i64,
    ) -> Execution {
        self.failure = None;
        self.partitions.began(run, &mut self.last, plan, desired, present, now)
    }

    /// Takes the commands that the run has sent.
    pub fn commands_sent(&mut self, executed_steps: &[ExecutedStep]) {
        if let Some(run) = self.partitions.current(&mut self.last) {
            run.progress(executed_steps);
        }
    }

    /// Ends the run, whose end has yet to be written down ([`LayoutReconciler::to_write`]). A run that lost its daemon continues later.
    pub fn ended(&mut self, outcome: ExecutionOutcome, desired: &Desired, duration_us: u64, now: i64) {
        if let Some(run) = self.partitions.current(&mut self.last) {
            run.progress(&outcome.executed_steps);
            run.end(duration_us);
        }
        if let Some(cause) = self.partitions.ended(outcome, self.last.as_ref(), desired, now) {
            self.failure = Some(LayoutFailure::new(desired.generation, cause));
        }
    }

    /// Returns the record that has yet to be written: of a run that ended, or of an earlier one that is in force for this generation too.
    pub fn to_write(&self, desired: &Desired) -> Option<PartitionRun> {
        self.partitions.to_write(desired)
    }

    /// Notes that the record was written.
    pub fn written(&mut self, run: PartitionRun) {
        self.partitions.written(run);
        self.write_retry_at = 0;
    }

    /// Notes that the beginning or end of a run could not be written.
    pub fn not_written(&mut self, now: i64) {
        self.write_retry_at = now + UNWRITTEN_RETRY_MS;
    }

    /// Returns the reason why the layout is not in force, if it will not be so soon without a change.
    pub fn failure(&self, desired: &Desired, progress: &LayoutProgress) -> Option<LayoutFailure> {
        match progress {
            LayoutProgress::Refused(cause) => Some(LayoutFailure::new(desired.generation, cause.clone())),
            LayoutProgress::Failed => self.failure.clone(),
            _ => None,
        }
    }

    /// Returns the status of the layout; `None` if there is no layout and none is left.
    pub fn status(&self, desired: &Desired, present: Option<&[GpuPartitions]>) -> Option<LayoutStatus> {
        let enforcement = self.runtime(desired)?;
        let progress = self.progress(desired, present);
        let failure = self.failure(desired, &progress);
        let is_static = enforcement == Enforcement::Static;
        let degraded = if is_static { self.partitions.degraded().to_vec() } else { Vec::new() };
        let state = match &progress {
            _ if self.is_under_way() => LayoutState::Applying,
            _ if failure.is_some() => LayoutState::Failed,
            LayoutProgress::Complete if degraded.is_empty() => LayoutState::Applied,
            LayoutProgress::Complete => LayoutState::Degraded,
            LayoutProgress::Drifted(..) => LayoutState::Drifted,
            LayoutProgress::Failed | LayoutProgress::Refused(_) => LayoutState::Failed,
            LayoutProgress::Waiting | LayoutProgress::Due(_) | LayoutProgress::Unwritten => {
                LayoutState::Pending
            }
        };
        let (layout, partitions, drift_seen) = if is_static {
            let partitions = self.partitions.statuses(desired, progress.is_complete(), present);
            (static_layout(desired), partitions, self.partitions.drift_seen())
        } else {
            let layout = percentage_layout(desired);
            (layout, layout.map(shares).unwrap_or_default(), DriftSeen::default())
        };
        let last = self.last.as_ref().filter(|_| is_static);
        let (drift, not_repaired) = match progress {
            LayoutProgress::Drifted(drift, why) => (drift, why),
            _ => (self.partitions.drift_found(desired, present), None),
        };
        Some(LayoutStatus {
            name: layout.map(|layout| layout.version.name.clone()),
            version: layout.map(|layout| layout.version.version),
            enforcement,
            state,
            generation: desired.generation,
            partitions,
            drift,
            not_repaired,
            drift_seen,
            degraded,
            failure,
            executed_steps: last.map_or_else(Vec::new, |last| last.executed_steps.clone()),
            ran_at: last.map(|last| last.began),
            duration_us: last.and_then(|last| last.duration_us),
        })
    }
}

/// Returns the desired layout, if thread percentages enforce it.
fn percentage_layout(desired: &Desired) -> Option<&DesiredLayout> {
    let layout = desired.layout.as_ref().filter(|_| !desired.is_observed());
    layout.filter(|layout| layout.enforcement == Enforcement::Percentage)
}

/// Returns the partitions of a layout that thread percentages enforce.
fn shares(layout: &DesiredLayout) -> Vec<PartitionStatus> {
    let status = |share: &PlannedShare| PartitionStatus {
        partition: share.partition.clone(),
        gpu: share.gpu.clone(),
        id: None,
        withheld: None,
        expected: None,
        chunks: share.chunks,
        sms: Some(share.sms),
        percentage: Some(share.percentage),
        tenants: share.tenants.clone(),
    };
    layout.shares.iter().map(status).collect()
}

#[cfg(test)]
mod tests;
