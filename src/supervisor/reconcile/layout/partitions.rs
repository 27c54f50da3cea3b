//! The static partitions of a daemon: made by commands, and compared by ID with what is recorded.
//!
//! What others do is remembered before it is restored, and restored ever more slowly while they undo it (drift.rs).
//!
//! A partition is proven only by the list that was read last. What this says of IDs is what was given by the steps of the
//! layout in the control process that runs now, and never what they gave in another.

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
use crate::domain::layout::{Enforcement, PartitionChange, ResolvedStep, VersionRef};
use crate::domain::partitions::GpuPartitions;
use crate::domain::plan::Desired;
use crate::domain::{GpuUuid, PartitionId};

/// Everything known about the static partitions of one daemon between two runs.
#[derive(Debug, Clone, Default)]
pub(super) struct PartitionRuntime {
    /// What was made in the present control process; `None` before its first run.
    pub(super) run: Option<PartitionRun>,
    /// What the steps of a layout gave in an earlier process, which the desired state may not know yet.
    earlier: Option<(VersionRef, Record)>,
    /// Whether the layout was requested again: then what drifted is restored whatever the policy.
    requested: bool,
    /// Whether the end of the last run has yet to be written down, without which the next manager would undo it.
    unwritten: bool,
    /// The run that restores what others changed, or the last that did.
    repair: Option<LastRun>,
    /// Whether the run under way, or the one that was cut short, is a repair.
    repairing: bool,
    drifts: DriftTracker,
}

impl PartitionRuntime {
    /// What an earlier manager has written down.
    pub(super) fn remembered(run: Option<PartitionRun>) -> Self {
        Self { run, ..Self::default() }
    }

    /// A control process was started or found: partitions of another one are gone, and what its steps gave is what they
    /// are to give again. False where it is the one that is known.
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

    /// Retries what failed.
    pub(super) fn retry(&mut self, failed: bool) {
        self.requested |= failed;
        self.drifts.at_once();
    }

    /// A caller requests the layout again, in this generation, in which a run may have failed.
    pub(super) fn request(&mut self, generation: i64, failed: bool) {
        let done = self.run.as_ref().is_some_and(|run| run.generation >= generation);
        if !done && !failed {
            self.requested = true;
            self.drifts.at_once();
        }
    }

    /// There is nothing left to do of what was requested.
    pub(super) fn fulfilled(&mut self) {
        self.requested = false;
    }

    /// What others did is remembered.
    pub(super) fn note_drift(&mut self, desired: &Desired, present: &[GpuPartitions], now: i64) {
        if !self.is_cut_short() {
            self.drifts.found(self.drift(desired, present), now);
        }
    }

    /// The time for a repair that was put off has come, if it has.
    pub(super) fn end_pause(&mut self, now: i64) {
        self.drifts.end_pause(now);
    }

    /// When the next repair may begin, where it is put off.
    pub(super) fn repair_postponed_until(&self) -> Option<i64> {
        self.drifts.postponed_until()
    }

    /// The last run that restored what others changed.
    pub(super) fn repair(&self) -> Option<&LastRun> {
        self.repair.as_ref()
    }

    /// Whether a run is under way, or was cut short.
    fn is_cut_short(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.before.is_some())
    }

    /// What others changed of what was applied.
    fn drift(&self, desired: &Desired, present: &[GpuPartitions]) -> Vec<PartitionDrift> {
        let layout = static_layout(desired);
        if desired.is_observed() || desired.mode == Mode::Shared || layout.is_none() {
            return Vec::new();
        }
        if self.is_applied(layout) { self.record().drift(present) } else { Vec::new() }
    }

    /// What is listed otherwise than it was made, as far as it has not been restored.
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

    /// What others did, and what was done about it.
    pub(super) fn drift_seen(&self) -> DriftSeen {
        self.drifts.seen(self.repair.as_ref().map_or_else(Vec::new, |repair| repair.executed_steps.clone()))
    }

    /// What is not as it was, since something had to be undone.
    pub(super) fn degraded(&self) -> &[Degraded] {
        self.run.as_ref().map_or(&[], |run| &run.degraded)
    }

    /// How far the partitions are; `failed` is whether a run has failed in this generation.
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
        // A repair alone makes nothing again.
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

    /// Whether something of a layout is, or may be, left.
    pub(super) fn has_remains(&self) -> bool {
        self.run.as_ref().is_some_and(|run| !run.record.0.is_empty() || run.before.is_some())
    }

    /// What was made in the present process.
    fn record(&self) -> &Record {
        const NONE: &Record = &Record(Vec::new());
        self.run.as_ref().map_or(NONE, |run| &run.record)
    }

    /// Whether the steps of the layout were taken in the present process, to their end and with the recorded IDs.
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
            // Without a layout, what others made is theirs.
            plan.steps.retain(|step| step.reason != Reason::Unknown);
        }
        plan
    }

    /// The ID of each step, where it is known what they give here: recorded, or since they were taken before.
    fn expected(&self, layout: &DesiredLayout) -> Option<Vec<PartitionId>> {
        let own = self.run.iter().filter(|run| run.before.is_none() && run.degraded.is_empty());
        let own = own.filter_map(|run| Some((run.layout.as_ref()?, &run.record)));
        let earlier = self.earlier.iter().map(|(version, record)| (version, record));
        let mut taken = own.chain(earlier);
        let same = taken.find(|(version, record)| **version == layout.version && record.is_of(&layout.steps));
        layout.expected.clone().or_else(|| same.map(|(_, record)| record.ids()))
    }

    /// What is to be written down before a run.
    pub(super) fn before(&self, token: &str, present: &[GpuPartitions]) -> PartitionRun {
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

    /// A run begins, and was written down; `last` is the run that applies the layout, or the last that did.
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

    /// A run begins, or an interrupted one continues.
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

    /// The run under way, or the one that ended last of its kind.
    pub(super) fn current<'a>(&'a mut self, last: &'a mut Option<LastRun>) -> Option<&'a mut LastRun> {
        if self.repairing { self.repair.as_mut() } else { last.as_mut() }
    }

    /// A run ended; it has yet to be written down. Gives why it failed.
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

    /// Whether the layout is in force by a run for an earlier generation, and what its steps gave is not recorded: an
    /// operation that was taken back may have begun that run.
    fn is_unrecorded(&self, desired: &Desired) -> bool {
        let Some(layout) = static_layout(desired).filter(|layout| layout.expected.is_none()) else {
            return false;
        };
        let earlier = self.run.as_ref().is_some_and(|run| run.generation < desired.generation);
        earlier && !layout.steps.is_empty() && self.is_applied(Some(layout))
    }

    /// Whether the end of a run, or what is in force for this generation too, has yet to be written down.
    pub(super) fn is_unwritten(&self, desired: &Desired) -> bool {
        self.unwritten || self.is_unrecorded(desired)
    }

    /// What has yet to be written down: the end of a run, or what is in force for this generation too.
    pub(super) fn to_write(&self, desired: &Desired) -> Option<PartitionRun> {
        let run = self.run.clone()?;
        if self.unwritten {
            return Some(run);
        }
        let generation = desired.generation;
        self.is_unrecorded(desired).then_some(PartitionRun { generation, ..run })
    }

    /// That was written down.
    pub(super) fn written(&mut self, run: PartitionRun) {
        self.run = Some(run);
        self.unwritten = false;
    }

    /// The partitions of the layout, each with its ID only where it may be handed out.
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

/// The desired layout, if its partitions are the daemon's own.
pub(super) fn static_layout(desired: &Desired) -> Option<&DesiredLayout> {
    desired.layout.as_ref().filter(|layout| layout.enforcement == Enforcement::Static)
}

fn steps(layout: Option<&DesiredLayout>) -> &[ResolvedStep] {
    layout.map_or(&[], |layout| &layout.steps)
}
