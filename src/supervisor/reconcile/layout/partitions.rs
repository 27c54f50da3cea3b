//! The static partitions of a daemon: made by commands, and compared by ID with the recorded ones.
//!
//! Changes by others are remembered before they are restored, and restored ever more slowly while others undo it (drift.rs).
//!
//! Only the list that was read last proves that a partition exists. IDs here are those that the steps of the layout gave in
//! the present control process, and never in another one.

use std::collections::{BTreeMap, BTreeSet};

use super::drift::DriftTracker;
use super::progress::LayoutProgress;
use super::run::LastRun;
use crate::domain::daemon::Mode;
use crate::domain::layout::active::{DesiredLayout, PartitionPolicy};
use crate::domain::layout::execution::{Execution, ExecutionOutcome, LayoutFailureCause};
use crate::domain::layout::handout::{PartitionEvidence, may_hand_out};
use crate::domain::layout::plan::{Plan, PlanInput, Reason, plan};
use crate::domain::layout::record::{Degraded, PartitionDrift, PartitionRun, Record};
use crate::domain::layout::status::{DriftSeen, PartitionStatus};
use crate::domain::layout::{Enforcement, ResolvedStep, VersionRef, final_steps};
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;
use crate::domain::{GpuUuid, PartitionId};

/// State of the static partitions of one daemon between two runs.
#[derive(Debug, Clone, Default)]
pub(super) struct PartitionRuntime {
    /// Partitions made in the present control process; `None` before its first run.
    pub(super) run: Option<PartitionRun>,
    /// IDs that the steps of a layout gave in an earlier process, which the desired state may not know yet.
    earlier: Option<(VersionRef, Record)>,
    /// True if the layout was requested again: drift is then restored under any policy.
    requested: bool,
    /// True if the end of the last run has yet to be written down, without which the next manager would undo the run.
    unwritten: bool,
    /// Present or last run that restores partitions that others changed.
    repair: Option<LastRun>,
    /// True if the run under way, or the interrupted one, is a repair.
    repairing: bool,
    drifts: DriftTracker,
}

impl PartitionRuntime {
    /// Creates the state that an earlier manager has written down.
    pub(super) fn remembered(run: Option<PartitionRun>) -> Self {
        Self { run, ..Self::default() }
    }

    /// Takes a control process that was started or found; returns false if it is the known one. Partitions of another process
    /// are gone, and the layout's steps are to give the same IDs again.
    pub(super) fn begin(&mut self, token: &str) -> bool {
        if self.run.as_ref().is_some_and(|run| run.token == token) {
            return false;
        }
        if let Some(PartitionRun { layout: Some(layout), record, before: None, degraded, .. }) =
            self.run.take()
            && degraded.is_empty()
        {
            self.earlier = Some((layout, record));
        }
        self.unwritten = false;
        self.repairing = false;
        self.drifts.over();
        true
    }

    /// Retries a failed layout.
    pub(super) fn retry(&mut self, failed: bool) {
        self.requested |= failed;
        self.drifts.at_once();
    }

    /// Requests the layout again, in this generation, in which a run may have failed.
    pub(super) fn request(&mut self, generation: i64, failed: bool) {
        let done = self.run.as_ref().is_some_and(|run| run.generation >= generation);
        if !done && !failed {
            self.requested = true;
            self.drifts.at_once();
        }
    }

    /// Notes that nothing is left to do for the request.
    pub(super) fn fulfilled(&mut self) {
        self.requested = false;
    }

    /// Remembers changes by others.
    pub(super) fn note_drift(&mut self, desired: &Desired, present: &[GpuPartitions], now: i64) {
        if !self.is_cut_short() {
            self.drifts.found(self.drift(desired, present), now);
        }
    }

    /// Ends the postponement of a repair if its time has come.
    pub(super) fn end_pause(&mut self, now: i64) {
        self.drifts.end_pause(now);
    }

    /// Returns the time at which the next repair may begin, if it is postponed.
    pub(super) fn repair_postponed_until(&self) -> Option<i64> {
        self.drifts.postponed_until()
    }

    /// Returns the last run that restored partitions that others changed.
    pub(super) fn repair(&self) -> Option<&LastRun> {
        self.repair.as_ref()
    }

    /// Returns true if a run is under way or was interrupted.
    fn is_cut_short(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.before.is_some())
    }

    /// Returns the changes by others to the applied layout.
    fn drift(&self, desired: &Desired, present: &[GpuPartitions]) -> Vec<PartitionDrift> {
        let layout = static_layout(desired);
        if desired.is_observed() || desired.mode == Mode::Shared || layout.is_none() {
            return Vec::new();
        }
        if self.is_applied(layout) { self.record().drift(present) } else { Vec::new() }
    }

    /// Returns the differences between the listed and the made partitions, as far as they have not been restored.
    pub(super) fn drift_found(
        &self,
        desired: &Desired,
        present: Option<&[GpuPartitions]>,
    ) -> Vec<PartitionDrift> {
        if self.is_cut_short() {
            return self.drifts.present();
        }
        present.map_or_else(Vec::new, |present| self.drift(desired, present))
    }

    /// Returns the changes by others and the steps of the last repair.
    pub(super) fn drift_seen(&self) -> DriftSeen {
        self.drifts.seen(self.repair.as_ref().map_or_else(Vec::new, |repair| repair.executed_steps.clone()))
    }

    /// Returns the partitions that differ from before, because something had to be undone.
    pub(super) fn degraded(&self) -> &[Degraded] {
        self.run.as_ref().map_or(&[], |run| &run.degraded)
    }

    /// Returns the progress of the partitions; `failed` is true if a run has failed in this generation.
    pub(super) fn progress(
        &self,
        desired: &Desired,
        present: Option<&[GpuPartitions]>,
        failed: bool,
    ) -> LayoutProgress {
        let layout = static_layout(desired);
        if desired.is_observed() || desired.mode == Mode::Shared || (layout.is_none() && !self.has_remains())
        {
            return LayoutProgress::Complete;
        }
        let Some(present) = present else { return LayoutProgress::Waiting };
        if failed && !self.requested {
            return LayoutProgress::Failed;
        }
        let applied = self.is_applied(layout);
        let drift = if applied { self.record().drift(present) } else { Vec::new() };
        if applied && drift.is_empty() {
            return LayoutProgress::Complete;
        }
        let report = layout.is_none_or(|layout| layout.drift_policy == PartitionPolicy::Report);
        if applied && report && !self.requested {
            return LayoutProgress::Drifted(drift, None);
        }
        let plan = self.plan(layout, present);
        let repairs = applied && !self.requested;
        // A repair alone recreates nothing.
        let recreate = !repairs && layout.is_some_and(|layout| layout.recreate);
        let refusals: Vec<String> = plan.refusals(recreate).map(ToString::to_string).collect();
        if refusals.is_empty() && !(applied && plan.is_empty()) {
            return match self.drifts.why_postponed().filter(|_| repairs) {
                Some(why) => LayoutProgress::Drifted(drift, Some(why)),
                None => LayoutProgress::Due(Box::new(plan)),
            };
        }
        let why = if refusals.is_empty() {
            "it is on a GPU for which the layout has no steps".to_owned()
        } else {
            refusals.join("; ")
        };
        if repairs || refusals.is_empty() {
            LayoutProgress::Drifted(drift, Some(why))
        } else {
            LayoutProgress::Refused(LayoutFailureCause::Blocked { why })
        }
    }

    /// Returns true if partitions of a layout are left, or may be.
    pub(super) fn has_remains(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.record.0.is_empty() || run.before.is_some())
    }

    /// Returns the partitions made in the present process.
    fn record(&self) -> &Record {
        const NONE: &Record = &Record(Vec::new());
        self.run.as_ref().map_or(NONE, |run| &run.record)
    }

    /// Returns true if the steps of the layout were taken in the present process, completely and with the recorded IDs.
    fn is_applied(&self, layout: Option<&DesiredLayout>) -> bool {
        match (layout, &self.run) {
            (None, _) => !self.has_remains(),
            (Some(layout), Some(run)) => {
                let named = |step: usize| {
                    run.degraded.iter().any(|degraded| {
                        degraded.partition.as_ref() == run.record.0.get(step).map(|step| &step.partition)
                    })
                };
                // Recreation demands the recorded IDs, and not those that an undo has left.
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
        let given = PlanInput {
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
            // Without a layout, partitions that others made are left to them.
            plan.steps.retain(|step| step.reason != Reason::Unknown);
        }
        plan
    }

    /// Returns the ID of each step if it is known, from the record or because the steps were taken before.
    fn expected(&self, layout: &DesiredLayout) -> Option<Vec<PartitionId>> {
        let current = self.run.iter().filter(|run| run.before.is_none() && run.degraded.is_empty());
        let current = current.filter_map(|run| Some((run.layout.as_ref()?, &run.record)));
        let earlier = self.earlier.iter().map(|(version, record)| (version, record));
        let mut taken = current.chain(earlier);
        let same = taken.find(|(version, record)| **version == layout.version && record.is_of(&layout.steps));
        layout.expected.clone().or_else(|| same.map(|(_, record)| record.ids()))
    }

    /// Returns the record to write before a run.
    pub(super) fn before(&self, token: &str, present: &[GpuPartitions]) -> PartitionRun {
        let mut run = self.run.clone().unwrap_or_else(|| PartitionRun::new(token.to_owned()));
        // The list from before an interrupted run is kept.
        run.before.get_or_insert_with(|| {
            let ids = |gpu: &GpuPartitions| gpu.partitions.iter().map(|listed| listed.id.clone()).collect();
            present
                .iter()
                .map(|gpu| (gpu.gpu.clone(), ids(gpu)))
                .collect::<BTreeMap<GpuUuid, BTreeSet<PartitionId>>>()
        });
        run
    }

    /// Begins a run that was written down; `last` is the present or last run that applies the layout.
    pub(super) fn began(
        &mut self,
        run: PartitionRun,
        last: &mut Option<LastRun>,
        plan: &Plan,
        desired: &Desired,
        present: &[GpuPartitions],
        now: i64,
    ) -> Execution {
        let execution = Execution::new(plan, steps(static_layout(desired)), &run.record, present);
        self.begin_run(last, desired, now);
        self.run = Some(run);
        execution
    }

    /// Begins a run, or continues an interrupted one.
    fn begin_run(&mut self, last: &mut Option<LastRun>, desired: &Desired, now: i64) {
        let of_now = |run: &LastRun| run.generation == desired.generation;
        let goes_on = self.is_cut_short() && self.current(last).is_some_and(|run| of_now(run));
        if !goes_on {
            let applied = self.is_applied(static_layout(desired));
            self.repairing = applied && !self.requested;
            if !applied {
                self.drifts.over();
            }
        }
        let slot = if self.repairing { &mut self.repair } else { last };
        match slot {
            Some(run) if goes_on => run.resume(),
            _ => *slot = Some(LastRun::new(desired.generation, now)),
        }
    }

    /// Returns the run under way, or the last one of its kind.
    pub(super) fn current<'a>(&'a mut self, last: &'a mut Option<LastRun>) -> Option<&'a mut LastRun> {
        if self.repairing { self.repair.as_mut() } else { last.as_mut() }
    }

    /// Ends a run, whose end has yet to be written down; returns the cause if it failed.
    pub(super) fn ended(
        &mut self,
        outcome: ExecutionOutcome,
        last: Option<&LastRun>,
        desired: &Desired,
        now: i64,
    ) -> Option<LayoutFailureCause> {
        let run = self.run.as_mut()?;
        if matches!(outcome.cause, Some(LayoutFailureCause::Unreachable { .. })) {
            return None;
        }
        self.requested = false;
        run.before = None;
        run.last = last.map(LastRun::log);
        run.record = outcome.record;
        run.degraded = outcome.degraded;
        if outcome.cause.is_none() {
            run.layout = static_layout(desired).map(|layout| layout.version.clone());
            run.generation = desired.generation;
            self.drifts.record_repair(now);
        }
        self.unwritten = true;
        outcome.cause
    }

    /// Returns true if the layout is in force by a run for an earlier generation, and the IDs of its steps are not recorded.
    /// An operation that was cancelled may have begun that run.
    fn is_unrecorded(&self, desired: &Desired) -> bool {
        let Some(layout) = static_layout(desired).filter(|layout| layout.expected.is_none()) else {
            return false;
        };
        let earlier = self.run.as_ref().is_some_and(|run| run.generation < desired.generation);
        earlier && !layout.steps.is_empty() && self.is_applied(Some(layout))
    }

    /// Returns true if a run that ended, or an earlier one that is in force for this generation too, has yet to be written down.
    pub(super) fn is_unwritten(&self, desired: &Desired) -> bool {
        self.unwritten || self.is_unrecorded(desired)
    }

    /// Returns the record that has yet to be written: of a run that ended, or of an earlier one that is in force for this generation too.
    pub(super) fn to_write(&self, desired: &Desired) -> Option<PartitionRun> {
        let run = self.run.clone()?;
        if self.unwritten {
            return Some(run);
        }
        let generation = desired.generation;
        self.is_unrecorded(desired).then_some(PartitionRun { generation, ..run })
    }

    /// Notes that the record was written.
    pub(super) fn written(&mut self, run: PartitionRun) {
        self.run = Some(run);
        self.unwritten = false;
    }

    /// Returns the partitions of the layout, each with its ID only if it may be handed out.
    pub(super) fn statuses(
        &self,
        desired: &Desired,
        complete: bool,
        present: Option<&[GpuPartitions]>,
    ) -> Vec<PartitionStatus> {
        let Some(layout) = static_layout(desired) else { return Vec::new() };
        let expected = self.expected(layout);
        let live = self.record().live();
        let listed = present.filter(|_| complete).unwrap_or_default();
        final_steps(&layout.steps)
            .map(|(number, step)| {
                let expected = expected.as_ref().and_then(|ids| ids.get(number));
                let made = live.get(&step.partition).copied();
                let proven = may_hand_out(&PartitionEvidence { step, made, expected, present: listed });
                let withheld = proven.as_ref().err().filter(|_| complete);
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

/// Returns the desired layout, if it consists of static partitions of the daemon.
pub(super) fn static_layout(desired: &Desired) -> Option<&DesiredLayout> {
    desired.layout.as_ref().filter(|layout| layout.enforcement == Enforcement::Static)
}

fn steps(layout: Option<&DesiredLayout>) -> &[ResolvedStep] {
    layout.map_or(&[], |layout| &layout.steps)
}
