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
//!   failed: not tried again before a retry is requested, the desired layout changes, or another process starts; only a CUDA
//!           client that could not run is followed by another one after a pause
//! ```
//!
//! There are two runtimes. Static partitions are made by commands and compared by ID (partitions.rs): a run is one session.
//! Thread percentages are proven by CUDA clients (percentages.rs): a run is one client for each size of partition. The state
//! of either is about the present control process, and never about another one. The IDs and proofs of an earlier process are
//! only what the next run is compared with, or begins with.

pub(crate) mod conditions;
mod drift;
mod partitions;
mod percentages;
pub(crate) mod progress;
mod run;

use self::partitions::{PartitionRuntime, static_layout};
use self::percentages::{PercentageRuntime, percentage_layout, useless};
use self::progress::{LayoutAction, LayoutProgress, LayoutRecord};
use self::run::LastRun;
use crate::domain::ThreadPercentage;
use crate::domain::daemon::Mode;
use crate::domain::layout::Enforcement;
use crate::domain::layout::execution::{Execution, ExecutionOutcome, LayoutFailureCause};
use crate::domain::layout::percentage::proof::ShareFailure;
use crate::domain::layout::plan::Plan;
use crate::domain::layout::record::{ExecutedStep, PartitionRun};
use crate::domain::layout::status::{DriftSeen, LayoutFailure, LayoutState, LayoutStatus};
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::gpu::report::Report;

/// Pause before a failed write to the store is tried again.
const UNWRITTEN_RETRY_MS: i64 = 1_000;

/// State of the layout of one daemon between two steps.
#[derive(Debug, Clone, Default)]
pub struct LayoutReconciler {
    partitions: PartitionRuntime,
    percentages: PercentageRuntime,
    /// Reason why the last run failed; it counts for the generation of that run.
    failure: Option<LayoutFailure>,
    /// Present or last run that applies the layout.
    last: Option<LastRun>,
    /// Time at which a failed write is tried again; 0 if none failed.
    write_retry_at: i64,
    timings: Timings,
}

impl LayoutReconciler {
    /// Creates the state that an earlier manager has written down.
    pub fn remembered(run: Option<PartitionRun>, timings: Timings) -> Self {
        // Of an interrupted run, only the listing counts.
        let ended = run.as_ref().filter(|run| run.before.is_none());
        let last = ended.and_then(|run| run.last.clone()).map(LastRun::from);
        Self { partitions: PartitionRuntime::remembered(run), last, timings, ..Self::default() }
    }

    /// Notes that the control process is gone, and with it the proofs made in it.
    pub fn process_gone(&mut self) {
        if self.percentages.process_gone() {
            (self.failure, self.last) = (None, None);
        }
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
        self.percentages.restart();
    }

    /// Requests the layout again, in this generation. CUDA clients prove all of it once more. Partitions are left alone if a
    /// run for this generation has ended, whether the desired state itself or an earlier manager began it: nobody requested
    /// that later changes by others be undone.
    pub fn request(&mut self, generation: i64) {
        self.write_retry_at = 0;
        let failed = self.failure.as_ref().is_some_and(|failure| failure.generation >= generation);
        self.partitions.request(generation, failed);
        self.percentages.forget_proof();
        if self.percentages.restart() {
            self.failure = None;
        }
    }

    /// Applies the desired state, and lets the server hold as much as the next CUDA client needs; returns false while
    /// percentages are not proven.
    pub fn follow(&mut self, desired: &mut Desired, now: i64) -> bool {
        let Some(shares) = percentage_layout(desired).and_then(|layout| layout.shares.as_ref()) else {
            if self.percentages.restart() {
                self.failure = None;
            }
            return percentage_layout(desired).is_none();
        };
        let others = shares.others;
        if self.failure.as_ref().is_some_and(|failure| failure.generation != desired.generation) {
            self.failure = None;
            self.percentages.restart();
        }
        if self.percentages.set_target(shares) {
            (self.failure, self.last) = (None, None);
            self.conclude_proof(desired, now);
        }
        desired.percentage =
            others.max(self.percentages.server_percentage()).unwrap_or(ThreadPercentage::FULL);
        self.progress(desired, None) == LayoutProgress::Complete
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
        if self.partitions.is_unwritten(desired) || self.percentages.is_unwritten(desired) {
            return LayoutProgress::Unwritten;
        }
        match self.runtime(desired) {
            None => LayoutProgress::Complete,
            Some(Enforcement::Percentage) => self.percentages.progress(desired),
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
            // In maintenance no new client is admitted, and the probe would be one.
            LayoutProgress::ProbeDue(percentage) if desired.maintenance.is_none() => {
                Some((self.percentages.retry_at(), LayoutAction::Prove(percentage)))
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

    /// Notes that a CUDA client was started that probes this percentage.
    pub fn probe_sent(&mut self, percentage: ThreadPercentage, desired: &Desired, now: i64) {
        self.percentages.sent(percentage);
        // A failure stands until a client has reported a result.
        if self.failure.is_none() {
            self.begin_proof(desired, now);
        }
    }

    /// Discards the report of the CUDA client, which is of no use.
    pub fn probe_lost(&mut self) {
        self.percentages.lost();
    }

    /// Takes the report of the CUDA client.
    pub fn probed(&mut self, report: &Report, desired: &Desired, now: i64) {
        if let Some(why) = useless(report) {
            if self.percentages.probe_failed(now, self.timings.blocked_retry()) {
                self.fail_proof(ShareFailure::NotSeen { why }, desired, now);
            }
            return;
        }
        if self.percentages.probed(report) {
            if self.failure.take().is_some() {
                self.last.iter_mut().for_each(LastRun::resume);
            }
            self.conclude_proof(desired, now);
            self.percentages.note_unwritten();
        }
    }

    fn begin_proof(&mut self, desired: &Desired, now: i64) {
        if !self.is_under_way() {
            self.last = Some(LastRun::new(desired.generation, now));
        }
    }

    /// Notes that all is proven, or that it cannot be.
    fn conclude_proof(&mut self, desired: &Desired, now: i64) {
        match self.percentages.next() {
            Some(Ok(None)) => {
                self.percentages.complete();
                self.begin_proof(desired, now);
                self.last.iter_mut().for_each(|run| run.end_at(now));
            }
            Some(Err(failure)) => {
                self.begin_proof(desired, now);
                self.fail_proof(failure, desired, now);
            }
            Some(Ok(Some(_))) | None => {}
        }
    }

    fn fail_proof(&mut self, failure: ShareFailure, desired: &Desired, now: i64) {
        self.failure =
            Some(LayoutFailure::new(desired.generation, LayoutFailureCause::NotProven { failure }));
        if let Some(run) = self.last.as_mut().filter(|run| run.is_under_way()) {
            run.end_at(now);
        }
    }

    /// Returns the record that has yet to be written: of a run that ended, or of an earlier one that is in force for this generation too.
    pub fn to_write(&self, desired: &Desired) -> Option<LayoutRecord> {
        let run = self.partitions.to_write(desired).map(LayoutRecord::Partitions);
        run.or_else(|| self.percentages.to_write(desired).map(LayoutRecord::Percentages))
    }

    /// Notes that the record was written.
    pub fn written(&mut self, record: LayoutRecord) {
        match record {
            LayoutRecord::Partitions(run) => self.partitions.written(run),
            LayoutRecord::Percentages(_) => self.percentages.written(),
        }
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
            LayoutProgress::Failed | LayoutProgress::ProbeDue(_) | LayoutProgress::Probing => {
                self.failure.clone()
            }
            _ => None,
        }
    }

    /// Returns the status of the layout; `None` if there is no layout and none is left.
    pub fn status(&self, desired: &Desired, present: Option<&[GpuPartitions]>) -> Option<LayoutStatus> {
        let enforcement = self.runtime(desired)?;
        let progress = self.progress(desired, present);
        let failure = self.failure(desired, &progress);
        let degraded = match enforcement {
            Enforcement::Static => self.partitions.degraded().to_vec(),
            Enforcement::Percentage => Vec::new(),
        };
        let state = match &progress {
            _ if self.is_under_way() => LayoutState::Applying,
            _ if failure.is_some() => LayoutState::Failed,
            LayoutProgress::Complete if degraded.is_empty() => LayoutState::Applied,
            LayoutProgress::Complete => LayoutState::Degraded,
            LayoutProgress::Drifted(..) => LayoutState::Drifted,
            LayoutProgress::Failed | LayoutProgress::Refused(_) => LayoutState::Failed,
            LayoutProgress::Waiting
            | LayoutProgress::Due(_)
            | LayoutProgress::ProbeDue(_)
            | LayoutProgress::Probing
            | LayoutProgress::Unwritten => LayoutState::Pending,
        };
        let (layout, partitions, drift_seen) = match enforcement {
            Enforcement::Static => (
                static_layout(desired),
                self.partitions.statuses(desired, progress.is_complete(), present),
                self.partitions.drift_seen(),
            ),
            Enforcement::Percentage => (
                percentage_layout(desired),
                self.percentages.statuses(desired, progress.is_complete()),
                DriftSeen::default(),
            ),
        };
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
            executed_steps: self.last.as_ref().map_or_else(Vec::new, |last| last.executed_steps.clone()),
            ran_at: self.last.as_ref().map(|last| last.began),
            duration_us: self.last.as_ref().and_then(|last| last.duration_us),
        })
    }
}

#[cfg(test)]
mod tests;
