//! What to do about the partitions of one daemon: pure, from the layout that is wanted, what was made in its control
//! process, and what is listed now.
//!
//! ```text
//!   a new control process, another layout, a run that was cut short
//!      ▼
//!    due ──run──► complete ──others make or remove partitions──► drifted ──policy `repair`, where it may──► due
//!      │ │                                                         ▲
//!      │ └─ something blocks it: refused, and due as soon as it is gone
//!      ▼
//!   failed: undone, and not tried again before a retry is requested, the desired layout changes, or another process starts
//! ```
//!
//! What others do is remembered before it is put back, and put back ever more slowly while they undo it (drift.rs).
//!
//! A partition is proven only by the list that was read last. What this says of IDs is what was given by the steps of the
//! layout in the control process that runs now, and never what they gave in another.

mod conditions;
mod drift;

use std::collections::{BTreeMap, BTreeSet};

pub use self::conditions::conditions;
use self::drift::DriftTracker;
use crate::domain::GpuUuid;
use crate::domain::PartitionId;
use crate::domain::daemon::Mode;
use crate::domain::layout::active::{DesiredLayout, PartitionPolicy};
use crate::domain::layout::execution::{Cause, Execution, ExecutionOutcome};
use crate::domain::layout::handout::{Evidence, may_hand_out};
use crate::domain::layout::plan::{Given, Plan, Reason, plan};
use crate::domain::layout::record::{ExecutedStep, PartitionDrift, PartitionRun, Record, RunLog};
use crate::domain::layout::status::{LayoutFailure, LayoutState, LayoutStatus, PartitionStatus};
use crate::domain::layout::{Enforcement, PartitionChange, ResolvedStep, VersionRef};
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;

/// Pause before a run that could not be written down is tried again.
const UNWRITTEN_RETRY_MS: i64 = 1_000;

/// Everything known about the partitions of one daemon between two runs.
#[derive(Debug, Clone, Default)]
pub struct PartitionReconciler {
    /// What was made in the present control process; `None` before its first run.
    run: Option<PartitionRun>,
    /// What the steps of a layout gave in an earlier process, which the desired state may not know yet.
    earlier: Option<(VersionRef, Record)>,
    /// Why the last run was undone.
    failure: Option<LayoutFailure>,
    /// Whether the layout was requested again: then what drifted is put right whatever the policy.
    requested: bool,
    /// Whether the end of the last run has yet to be written down, without which the next manager would undo it.
    unwritten: bool,
    retry_at: i64,
    /// The run that applies the layout, or the last that did.
    last: Option<LastRun>,
    /// The run that puts back what others changed, or the last that did.
    repair: Option<LastRun>,
    /// Whether the run under way, or the one that was cut short, is of the second kind.
    repairing: bool,
    drifts: DriftTracker,
}

/// A run under way, or over.
#[derive(Debug, Clone)]
struct LastRun {
    generation: i64,
    began: i64,
    /// The commands and the time that it took before it was cut short.
    earlier: (usize, u64),
    taken: Vec<ExecutedStep>,
    duration_us: Option<u64>,
}

impl LastRun {
    fn new(generation: i64, now: i64) -> Self {
        Self { generation, began: now, earlier: (0, 0), taken: Vec::new(), duration_us: None }
    }

    /// It was interrupted, and continues.
    fn resume(&mut self) {
        let took = self.duration_us.take().unwrap_or_default();
        self.earlier = (self.taken.len(), took);
    }

    fn progress(&mut self, taken: &[ExecutedStep]) {
        self.taken.truncate(self.earlier.0);
        self.taken.extend_from_slice(taken);
    }

    fn is_under_way(&self) -> bool {
        self.duration_us.is_none()
    }

    fn log(&self) -> RunLog {
        let Self { generation, began, ref taken, duration_us, .. } = *self;
        RunLog { generation, began, taken: taken.clone(), duration_us }
    }
}

impl From<RunLog> for LastRun {
    fn from(log: RunLog) -> Self {
        let RunLog { generation, began, taken, duration_us } = log;
        Self { generation, began, earlier: (0, 0), taken, duration_us: duration_us.or(Some(0)) }
    }
}

/// The state of the layout, by one list.
#[derive(Debug, Clone, PartialEq)]
pub enum PartitionLayoutState {
    /// There is nothing to do.
    Complete,
    /// It was there, and others have made or removed partitions since, which stays; with why it is not repaired where
    /// the policy says that it is to be.
    Drifted(Vec<PartitionDrift>, Option<String>),
    /// It has to be applied like this.
    Due(Box<Plan>),
    /// It has to be written down first that the last run has ended.
    Unwritten,
    /// Something blocks it.
    Refused(Cause),
    /// It failed, and is not tried again by itself.
    Failed,
    /// Nothing was listed yet.
    Unread,
}

impl PartitionLayoutState {
    /// Whether what could be done was done: what drifted is reported and left.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Complete | Self::Drifted(..))
    }
}

impl PartitionReconciler {
    /// What an earlier manager has written down.
    pub fn remembered(run: Option<PartitionRun>) -> Self {
        // Of a run that was cut short, only the listing counts.
        let ended = run.as_ref().filter(|run| run.before.is_none());
        let last = ended.and_then(|run| run.last.clone()).map(LastRun::from);
        Self { run, last, ..Self::default() }
    }

    /// A control process was started or found: partitions of another one are gone, and what its steps gave is what they
    /// are to give again.
    pub fn begin(&mut self, token: &str) {
        if self.run.as_ref().is_some_and(|run| run.token == token) {
            return;
        }
        if let Some(PartitionRun { layout: Some(layout), record, before: None, degraded, .. }) =
            self.run.take()
            && degraded.is_empty()
        {
            self.earlier = Some((layout, record));
        }
        self.failure = None;
        self.unwritten = false;
        self.retry_at = 0;
        self.repairing = false;
        self.drifts.over();
    }

    /// Retries what failed.
    pub fn try_again(&mut self) {
        self.requested |= self.failure.is_some();
        self.retry_at = 0;
        self.drifts.at_once();
    }

    /// A caller requests the layout again, in this generation: nothing where a run of it has ended, whether that was begun by
    /// the desired state itself or by an earlier manager. Nobody requested that what others have done since be undone.
    pub fn request(&mut self, generation: i64) {
        self.retry_at = 0;
        let done = self.run.as_ref().is_some_and(|run| run.generation >= generation);
        let failed = self.failure.as_ref().is_some_and(|failure| failure.generation >= generation);
        if !done && !failed {
            self.requested = true;
            self.drifts.at_once();
        }
    }

    /// A poll was taken: what others did is remembered, and what was requested is done once there is nothing left to do.
    pub fn polled(&mut self, desired: &Desired, present: Option<&[GpuPartitions]>, now: i64) {
        if let Some(present) = present {
            self.note_drift(desired, present, now);
        }
        self.requested &= !self.layout_state(desired, present).is_complete();
    }

    /// A run may begin by this list: what others did is remembered before it is put back.
    pub fn prepare_run(&mut self, desired: &Desired, present: &[GpuPartitions], now: i64) {
        self.note_drift(desired, present, now);
        self.drifts.end_pause(now);
    }

    fn note_drift(&mut self, desired: &Desired, present: &[GpuPartitions], now: i64) {
        if !self.is_cut_short() {
            self.drifts.found(self.drift(desired, present), now);
        }
    }

    /// When the next repair may begin, where it is put off.
    pub fn repair_postponed_until(&self) -> Option<i64> {
        self.drifts.postponed_until()
    }

    /// Whether a run is under way.
    pub fn is_under_way(&self) -> bool {
        self.last.iter().chain(&self.repair).any(LastRun::is_under_way)
    }

    /// Whether a run is under way, or was cut short.
    fn is_cut_short(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.before.is_some())
    }

    /// What others changed of what was applied.
    fn drift(&self, desired: &Desired, present: &[GpuPartitions]) -> Vec<PartitionDrift> {
        let layout = wanted(desired);
        if desired.is_observed() || desired.mode == Mode::Shared || layout.is_none() {
            return Vec::new();
        }
        if self.is_applied(layout) { self.record().drift(present) } else { Vec::new() }
    }

    /// When the next run may begin; later than now only where the last could not be written down.
    pub fn retry_at(&self) -> i64 {
        self.retry_at
    }

    /// The state of the desired layout; `present` is what is listed now.
    pub fn layout_state(&self, desired: &Desired, present: Option<&[GpuPartitions]>) -> PartitionLayoutState {
        if self.unwritten || self.is_unrecorded(desired) {
            return PartitionLayoutState::Unwritten;
        }
        let layout = wanted(desired);
        if desired.is_observed() || desired.mode == Mode::Shared || (layout.is_none() && !self.has_remains())
        {
            return PartitionLayoutState::Complete;
        }
        let Some(present) = present else { return PartitionLayoutState::Unread };
        let failed = self.failure.as_ref().is_some_and(|failure| failure.generation == desired.generation);
        if failed && !self.requested {
            return PartitionLayoutState::Failed;
        }
        let applied = self.is_applied(layout);
        let drift = if applied { self.record().drift(present) } else { Vec::new() };
        if applied && drift.is_empty() {
            return PartitionLayoutState::Complete;
        }
        let report = layout.is_none_or(|layout| layout.drift_policy == PartitionPolicy::Report);
        if applied && report && !self.requested {
            return PartitionLayoutState::Drifted(drift, None);
        }
        let plan = self.plan(layout, present);
        let repairs = applied && !self.requested;
        // A repair alone makes nothing again.
        let recreate = !repairs && layout.is_some_and(|layout| layout.recreate);
        let refusals: Vec<String> = plan.refusals(recreate).map(ToString::to_string).collect();
        if refusals.is_empty() && !(applied && plan.is_empty()) {
            return match self.drifts.why_postponed().filter(|_| repairs) {
                Some(why) => PartitionLayoutState::Drifted(drift, Some(why)),
                None => PartitionLayoutState::Due(Box::new(plan)),
            };
        }
        let why = if refusals.is_empty() {
            "it is on a GPU for which the layout has no steps".to_owned()
        } else {
            refusals.join("; ")
        };
        if repairs || refusals.is_empty() {
            PartitionLayoutState::Drifted(drift, Some(why))
        } else {
            PartitionLayoutState::Refused(Cause::Blocked { why })
        }
    }

    /// Whether something of a layout is, or may be, left.
    fn has_remains(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.record.0.is_empty() || run.before.is_some())
    }

    /// What was made in the present process.
    fn record(&self) -> &Record {
        const NONE: &Record = &Record(Vec::new());
        self.run.as_ref().map_or(NONE, |run| &run.record)
    }

    /// Whether the steps of the layout were taken in the present process, to their end and with the IDs on record.
    fn is_applied(&self, layout: Option<&DesiredLayout>) -> bool {
        match (layout, &self.run) {
            (None, _) => !self.has_remains(),
            (Some(layout), Some(run)) => {
                let named = |step: usize| {
                    run.degraded.iter().any(|degraded| {
                        degraded.partition.as_ref() == run.record.0.get(step).map(|step| &step.partition)
                    })
                };
                // Who recreates wants the recorded IDs back, and not what an undo has left.
                let redone = self.requested && layout.recreate;
                let as_expected = |expected: &Vec<PartitionId>| {
                    let ids = run.record.ids();
                    ids.len() == expected.len()
                        && (0..ids.len()).all(|step| ids[step] == expected[step] || (named(step) && !redone))
                };
                run.before.is_none()
                    && run.layout.as_ref() == Some(&layout.version)
                    && run.record.is_of(&layout.steps)
                    && layout.expected.as_ref().is_none_or(as_expected)
            }
            (Some(layout), None) => layout.steps.is_empty(),
        }
    }

    fn plan(&self, layout: Option<&DesiredLayout>, present: &[GpuPartitions]) -> Plan {
        let (expected, chunk_sms) = (layout.and_then(|layout| self.expected(layout)), BTreeMap::new());
        // A change reports admitted clients to its caller before it is written; from then on no client is admitted.
        let admitted = BTreeMap::new();
        let given = Given {
            steps: steps(layout),
            expected: expected.as_deref(),
            record: self.record(),
            before: self.run.as_ref().and_then(|run| run.before.as_ref()),
            present,
            chunk_sms: layout.map_or(&chunk_sms, |layout| &layout.chunk_sms),
            admitted: &admitted,
        };
        let mut plan = plan(&given);
        if layout.is_none() {
            // Without a layout, what others made is theirs.
            plan.steps.retain(|step| step.reason != Reason::Unknown);
        }
        plan
    }

    /// The ID of each step, where it is known what they give here: on record, or since they were taken before.
    fn expected(&self, layout: &DesiredLayout) -> Option<Vec<PartitionId>> {
        let own = self.run.iter().filter(|run| run.before.is_none() && run.degraded.is_empty());
        let own = own.filter_map(|run| Some((run.layout.as_ref()?, &run.record)));
        let earlier = self.earlier.iter().map(|(version, record)| (version, record));
        let mut taken = own.chain(earlier);
        let same = taken.find(|(version, record)| **version == layout.version && record.is_of(&layout.steps));
        layout.expected.clone().or_else(|| same.map(|(_, record)| record.ids()))
    }

    /// What is to be written down before a run.
    pub fn before(&self, token: &str, present: &[GpuPartitions]) -> PartitionRun {
        let mut run = self.run.clone().unwrap_or_else(|| PartitionRun::new(token.to_owned()));
        // What is there of a run that was cut short stays known as that.
        run.before.get_or_insert_with(|| {
            let ids = |gpu: &GpuPartitions| gpu.partitions.iter().map(|listed| listed.id.clone()).collect();
            present
                .iter()
                .map(|gpu| (gpu.gpu.clone(), ids(gpu)))
                .collect::<BTreeMap<GpuUuid, BTreeSet<PartitionId>>>()
        });
        run
    }

    /// A run could not be written down, or its end.
    pub fn not_written(&mut self, now: i64) {
        self.retry_at = now + UNWRITTEN_RETRY_MS;
    }

    /// A run begins, and was written down.
    pub fn began(
        &mut self,
        run: PartitionRun,
        plan: &Plan,
        desired: &Desired,
        present: &[GpuPartitions],
        now: i64,
    ) -> Execution {
        let execution = Execution::new(plan, steps(wanted(desired)), &run.record, present);
        self.begin_run(desired, now);
        self.run = Some(run);
        self.failure = None;
        execution
    }

    /// A run begins, or an interrupted one continues.
    fn begin_run(&mut self, desired: &Desired, now: i64) {
        let of_now = |run: &LastRun| run.generation == desired.generation;
        let known = if self.repairing { &self.repair } else { &self.last };
        let goes_on = self.is_cut_short() && known.as_ref().is_some_and(of_now);
        if !goes_on {
            let applied = self.is_applied(wanted(desired));
            self.repairing = applied && !self.requested;
            if !applied {
                self.drifts.over();
            }
        }
        let slot = if self.repairing { &mut self.repair } else { &mut self.last };
        match slot {
            Some(run) if goes_on => run.resume(),
            _ => *slot = Some(LastRun::new(desired.generation, now)),
        }
    }

    /// The run under way, or the one that ended last of its kind.
    fn current(&mut self) -> Option<&mut LastRun> {
        if self.repairing { self.repair.as_mut() } else { self.last.as_mut() }
    }

    /// A command of the run was sent.
    pub fn progress(&mut self, taken: &[ExecutedStep]) {
        if let Some(run) = self.current() {
            run.progress(taken);
        }
    }

    /// The run ended; it has yet to be written down ([`PartitionReconciler::to_write`]). One that lost its daemon continues later.
    pub fn ended(&mut self, outcome: ExecutionOutcome, desired: &Desired, duration_us: u64, now: i64) {
        if let Some(run) = self.current() {
            run.progress(&outcome.taken);
            run.duration_us = Some(run.earlier.1.saturating_add(duration_us));
        }
        let Some(run) = &mut self.run else { return };
        if matches!(outcome.cause, Some(Cause::Unreachable { .. })) {
            return;
        }
        self.requested = false;
        run.before = None;
        run.last = self.last.as_ref().map(LastRun::log);
        run.record = outcome.record;
        run.degraded = outcome.degraded;
        match outcome.cause {
            None => {
                run.layout = wanted(desired).map(|layout| layout.version.clone());
                run.generation = desired.generation;
                self.drifts.put_back(now);
            }
            Some(cause) => self.failure = Some(LayoutFailure::new(desired.generation, cause)),
        }
        self.unwritten = true;
    }

    /// Whether the layout is in force by a run for an earlier generation, and what its steps gave is not on record: an
    /// operation that was taken back may have begun that run.
    fn is_unrecorded(&self, desired: &Desired) -> bool {
        let Some(layout) = wanted(desired).filter(|layout| layout.expected.is_none()) else { return false };
        let earlier = self.run.as_ref().is_some_and(|run| run.generation < desired.generation);
        earlier && !layout.steps.is_empty() && self.is_applied(Some(layout))
    }

    /// What has yet to be written down: the end of a run, or what is in force for this generation too.
    pub fn to_write(&self, desired: &Desired) -> Option<PartitionRun> {
        let run = self.run.clone()?;
        if self.unwritten {
            return Some(run);
        }
        let generation = desired.generation;
        self.is_unrecorded(desired).then_some(PartitionRun { generation, ..run })
    }

    /// That was written down.
    pub fn written(&mut self, run: PartitionRun) {
        self.run = Some(run);
        self.unwritten = false;
        self.retry_at = 0;
    }

    /// Why the layout is not in force, where it is not going to be by itself.
    pub fn failure(&self, desired: &Desired, layout_state: &PartitionLayoutState) -> Option<LayoutFailure> {
        match layout_state {
            PartitionLayoutState::Failed => self.failure.clone(),
            PartitionLayoutState::Refused(cause) => {
                Some(LayoutFailure::new(desired.generation, cause.clone()))
            }
            _ => None,
        }
    }

    /// The status of the layout; nothing where there is none and none is left.
    pub fn status(&self, desired: &Desired, present: Option<&[GpuPartitions]>) -> Option<LayoutStatus> {
        let layout = wanted(desired);
        if layout.is_none() && !self.has_remains() {
            return None;
        }
        let layout_state = self.layout_state(desired, present);
        let degraded = self.run.as_ref().map_or_else(Vec::new, |run| run.degraded.clone());
        let state = match &layout_state {
            _ if self.is_under_way() => LayoutState::Applying,
            PartitionLayoutState::Complete if degraded.is_empty() => LayoutState::Applied,
            PartitionLayoutState::Complete => LayoutState::Degraded,
            PartitionLayoutState::Drifted(..) => LayoutState::Drifted,
            PartitionLayoutState::Failed | PartitionLayoutState::Refused(_) => LayoutState::Failed,
            PartitionLayoutState::Due(_) | PartitionLayoutState::Unwritten | PartitionLayoutState::Unread => {
                LayoutState::Pending
            }
        };
        let partitions =
            layout.map_or_else(Vec::new, |layout| self.partitions(layout, &layout_state, present));
        let failure = self.failure(desired, &layout_state);
        let (drift, not_repaired) = match layout_state {
            PartitionLayoutState::Drifted(drift, why) => (drift, why),
            _ if self.is_cut_short() => (self.drifts.present(), None),
            _ => (present.map_or_else(Vec::new, |present| self.drift(desired, present)), None),
        };
        let repair = self.repair.as_ref().map_or_else(Vec::new, |repair| repair.taken.clone());
        Some(LayoutStatus {
            name: layout.map(|layout| layout.version.name.clone()),
            version: layout.map(|layout| layout.version.version),
            enforcement: Enforcement::Static,
            state,
            generation: desired.generation,
            partitions,
            failure,
            drift,
            not_repaired,
            drift_seen: self.drifts.seen(repair),
            degraded,
            taken: self.last.as_ref().map_or_else(Vec::new, |last| last.taken.clone()),
            ran_at: self.last.as_ref().map(|last| last.began),
            duration_us: self.last.as_ref().and_then(|last| last.duration_us),
        })
    }

    /// The partitions of the layout, each with its ID only where it may be handed out.
    fn partitions(
        &self,
        layout: &DesiredLayout,
        layout_state: &PartitionLayoutState,
        present: Option<&[GpuPartitions]>,
    ) -> Vec<PartitionStatus> {
        let expected = self.expected(layout);
        let live = self.record().live();
        let listed = present.filter(|_| layout_state.is_complete()).unwrap_or_default();
        let removed: BTreeSet<_> = layout
            .steps
            .iter()
            .filter(|step| step.change == PartitionChange::Remove)
            .map(|step| &step.partition)
            .collect();
        let stays = layout.steps.iter().enumerate().filter(|(_, step)| !removed.contains(&step.partition));
        stays
            .map(|(number, step)| {
                let expected = expected.as_ref().and_then(|ids| ids.get(number));
                let made = live.get(&step.partition).copied();
                let proven = may_hand_out(&Evidence { step, made, expected, present: listed });
                let withheld = proven.as_ref().err().filter(|_| layout_state.is_complete());
                PartitionStatus {
                    partition: step.partition.clone(),
                    gpu: step.gpu.clone(),
                    withheld: withheld.map(ToString::to_string),
                    id: proven.as_ref().ok().map(|listed| listed.id.clone()),
                    expected: expected.cloned(),
                    chunks: step.chunks,
                    sms: proven.as_ref().ok().map(|listed| listed.sms),
                    percentage: None,
                    tenants: layout.tenants.get(&step.partition).cloned().unwrap_or_default(),
                }
            })
            .collect()
    }
}

/// The layout that is wanted, if its partitions are the daemon's own.
fn wanted(desired: &Desired) -> Option<&DesiredLayout> {
    desired.layout.as_ref().filter(|layout| layout.enforcement == Enforcement::Static)
}

fn steps(layout: Option<&DesiredLayout>) -> &[ResolvedStep] {
    layout.map_or(&[], |layout| &layout.steps)
}

#[cfg(test)]
mod tests;
