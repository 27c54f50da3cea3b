//! The core of layouts against the simulated allocator, in process: thousands of random layouts.
//!
//! The plan and its execution are the product's; the allocator is the simulated host's, which shares no code with it.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use mps_manager::domain::client::ClientId;
use mps_manager::domain::layout::blocked::Blocked;
use mps_manager::domain::layout::execution::{
    CommandAnswer, Execution, ExecutionOutcome, LayoutFailureCause, MoveAction,
};
use mps_manager::domain::layout::plan::{Action, Plan, PlanInput, plan};
use mps_manager::domain::layout::record::Record;
use mps_manager::domain::layout::{PartitionChange, ResolvedStep};
use mps_manager::domain::partitions::{GpuPartitions, ListedPartition};
use mps_manager::domain::{GpuUuid, PartitionId, PartitionName};
use mps_manager::sim::partition::Partitions;

use crate::harness::setting;

pub(crate) const USUAL: &str = "h200x2@13.1";
/// The same SKU with its small GPCs elsewhere.
pub(crate) const OTHER_DIE: &str = "h200x2@13.1:gpcs=9.9.8.9.9.4.9.9";
const CHUNKS: u32 = 15;
const SEED: u64 = 20_261_121;

/// What goes wrong with a command, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// It is done, and the reply is lost.
    LostDone(usize),
    /// It is not done, and there is no reply.
    LostUndone(usize),
    /// It is refused, however often it is sent.
    Refused(usize),
    /// Its sender dies after it.
    CutShort(usize),
}

/// A control daemon without its process.
pub(crate) struct Daemon {
    partitions: Partitions,
    uuids: Vec<String>,
    used: BTreeSet<String>,
}

impl Daemon {
    pub(crate) fn new(profile: &str) -> Self {
        let partitions = Partitions::of_host(profile, "seed").expect("a profile");
        let uuids = partitions.summaries().into_iter().map(|gpu| gpu.uuid).collect();
        Self { partitions, uuids, used: BTreeSet::new() }
    }

    pub(crate) fn gpus(&self) -> Vec<GpuUuid> {
        self.uuids.iter().map(|uuid| GpuUuid::parse(uuid).expect("a UUID")).collect()
    }

    fn listed(&self) -> Vec<GpuPartitions> {
        let summaries = self.partitions.summaries().into_iter();
        summaries
            .map(|gpu| GpuPartitions {
                gpu: GpuUuid::parse(&gpu.uuid).expect("a UUID"),
                free_chunks: gpu.free_chunks,
                used_chunks: gpu.used_chunks,
                free_sms: gpu.free_sms,
                used_sms: gpu.used_sms,
                partitions: gpu
                    .partitions
                    .iter()
                    .map(|partition| ListedPartition {
                        id: PartitionId::parse(&partition.id).expect("an ID"),
                        chunks: partition.chunks,
                        sms: partition.sms,
                        in_use: Some(self.used.contains(&partition.name)),
                        clients: if self.used.contains(&partition.name) {
                            vec![ClientId { pid: 7, start_time: 7 }]
                        } else {
                            Vec::new()
                        },
                    })
                    .collect(),
            })
            .collect()
    }

    /// `GPU/ID` of all partitions.
    fn names(&self) -> BTreeSet<String> {
        self.partitions
            .summaries()
            .into_iter()
            .flat_map(|gpu| gpu.partitions)
            .map(|partition| partition.name)
            .collect()
    }

    fn ordinal(&self, gpu: &GpuUuid) -> usize {
        self.uuids.iter().position(|uuid| uuid == gpu.as_str()).expect("one of its GPUs")
    }

    fn perform(&mut self, next: &mps_manager::domain::layout::execution::Move) -> CommandAnswer {
        match &next.action {
            MoveAction::Add { .. } => match self.partitions.add(self.ordinal(&next.gpu), next.chunks) {
                Ok(name) => {
                    let (_, id) = name.split_once('/').expect("GPU/ID");
                    CommandAnswer::Named(PartitionId::parse(id).expect("an ID"))
                }
                Err(error) => CommandAnswer::Refused(format!("{error:?}")),
            },
            MoveAction::Remove { id } => {
                let name = format!("{}/{id}", next.gpu);
                match self.partitions.remove(&name, self.used.contains(&name)) {
                    Ok(()) => CommandAnswer::Silent,
                    Err(error) => CommandAnswer::Refused(format!("{error:?}")),
                }
            }
        }
    }

    fn planned(&self, steps: &[ResolvedStep], expected: Option<&[PartitionId]>, record: &Record) -> Plan {
        self.planned_after(steps, expected, record, None)
    }

    fn planned_after(
        &self,
        steps: &[ResolvedStep],
        expected: Option<&[PartitionId]>,
        record: &Record,
        before: Option<&BTreeMap<GpuUuid, BTreeSet<PartitionId>>>,
    ) -> Plan {
        let chunk_sms = self.gpus().into_iter().map(|gpu| (gpu, 8)).collect();
        let present = self.listed();
        let admitted = BTreeMap::new();
        plan(&PlanInput {
            steps,
            expected,
            record,
            before,
            present: &present,
            chunk_sms: &chunk_sms,
            admitted: &admitted,
        })
    }

    /// Does a plan; `None` when it was cut short.
    fn execute(
        &mut self,
        plan: &Plan,
        steps: &[ResolvedStep],
        record: &Record,
        fault: Option<Fault>,
    ) -> Option<ExecutionOutcome> {
        let mut execution = Execution::new(plan, steps, record, &self.listed());
        let (mut sent, mut refusing) = (0, None);
        while let Some(next) = execution.next() {
            let answer = match fault {
                Some(Fault::LostDone(at)) if at == sent => {
                    self.perform(&next);
                    CommandAnswer::Lost("lost".into())
                }
                Some(Fault::LostUndone(at)) if at == sent => CommandAnswer::Lost("lost".into()),
                Some(Fault::Refused(at)) if at == sent || refusing == Some(next.command()) => {
                    refusing = Some(next.command());
                    CommandAnswer::Refused("no".into())
                }
                Some(Fault::CutShort(at)) if at == sent => {
                    self.perform(&next);
                    return None;
                }
                _ => self.perform(&next),
            };
            sent += 1;
            assert!(sent < 2000, "it comes to an end");
            execution.answered(&answer, &self.listed(), 1);
        }
        Some(execution.outcome())
    }

    /// Plans and does a layout without faults.
    fn apply(&mut self, steps: &[ResolvedStep], record: &Record) -> ExecutionOutcome {
        let plan = self.planned(steps, None, record);
        assert_eq!(plan.refusals(true).next(), None, "{plan:?}");
        self.execute(&plan, steps, record, None).expect("not cut short")
    }
}

/// A random layout that fits, continued from `steps`.
fn continued(
    rng: &mut Rng,
    gpus: &[GpuUuid],
    mut steps: Vec<ResolvedStep>,
    more: usize,
) -> Vec<ResolvedStep> {
    for _ in 0..more {
        let live: Vec<ResolvedStep> = live(&steps);
        let gpu = rng.choice(gpus).expect("a GPU").clone();
        let used: u32 = live.iter().filter(|step| step.gpu == gpu).map(|step| step.chunks).sum();
        if !live.is_empty() && (used == CHUNKS || rng.u8(0..4) == 0) {
            let gone = rng.choice(&live).expect("one").clone();
            steps.push(ResolvedStep { change: PartitionChange::Remove, ..gone });
        } else if used < CHUNKS {
            let partition = PartitionName::parse(&format!("p{}", steps.len())).expect("a name");
            let chunks = rng.u32(1..=(CHUNKS - used).min(8));
            steps.push(ResolvedStep { gpu, partition, chunks, change: PartitionChange::Add });
        }
    }
    steps
}

pub(crate) fn random(rng: &mut Rng, gpus: &[GpuUuid]) -> Vec<ResolvedStep> {
    let length = rng.usize(1..20);
    continued(rng, gpus, Vec::new(), length)
}

fn live(steps: &[ResolvedStep]) -> Vec<ResolvedStep> {
    let removed: BTreeSet<&PartitionName> = steps
        .iter()
        .filter(|step| step.change == PartitionChange::Remove)
        .map(|step| &step.partition)
        .collect();
    steps.iter().filter(|step| !removed.contains(&step.partition)).cloned().collect()
}

/// What the steps give, by hand.
pub(crate) fn by_hand(profile: &str, steps: &[ResolvedStep]) -> (Vec<PartitionId>, BTreeSet<String>) {
    let mut daemon = Daemon::new(profile);
    let mut given: BTreeMap<PartitionName, PartitionId> = BTreeMap::new();
    let ids = steps
        .iter()
        .map(|step| {
            let ordinal = daemon.ordinal(&step.gpu);
            if step.change == PartitionChange::Add {
                let name = daemon.partitions.add(ordinal, step.chunks).expect("it fits");
                let (_, id) = name.split_once('/').expect("GPU/ID");
                given.insert(step.partition.clone(), PartitionId::parse(id).expect("an ID"));
            } else {
                let name = format!("{}/{}", step.gpu, given[&step.partition]);
                daemon.partitions.remove(&name, false).expect("it is there");
            }
            given[&step.partition].clone()
        })
        .collect();
    (ids, daemon.names())
}

/// The same steps on the host with the other die. The UUIDs of a simulated host follow from its profile, so the GPUs are
/// named anew.
pub(crate) fn on_the_other_die(steps: &[ResolvedStep]) -> Vec<ResolvedStep> {
    let (here, there) = (Daemon::new(USUAL).gpus(), Daemon::new(OTHER_DIE).gpus());
    let moved = |gpu: &GpuUuid| there[here.iter().position(|known| known == gpu).expect("known")].clone();
    steps.iter().map(|step| ResolvedStep { gpu: moved(&step.gpu), ..step.clone() }).collect()
}

/// The first addition that gave another ID.
pub(crate) fn first_that_differs(
    steps: &[ResolvedStep],
    expected: &[PartitionId],
    got: &[PartitionId],
) -> Option<usize> {
    (0..steps.len()).find(|&step| steps[step].change == PartitionChange::Add && expected[step] != got[step])
}

/// How many random layouts a test tries: `share` times what the environment says, or a sample.
fn rounds(share: usize) -> usize {
    share * setting("MPS_MANAGER_MODEL").map_or(60, |all| usize::try_from(all).expect("a number of layouts"))
}

#[test]
fn same_layout_and_die_give_same_ids() {
    let mut rng = Rng::with_seed(SEED);
    for _ in 0..rounds(10) {
        let mut first = Daemon::new(USUAL);
        let steps = random(&mut rng, &first.gpus());
        let made = first.apply(&steps, &Record::default());
        assert_eq!((made.cause, made.degraded.len()), (None, 0));
        assert!(made.record.is_of(&steps));
        assert_eq!((made.record.ids(), first.names()), by_hand(USUAL, &steps));

        let mut second = Daemon::new(USUAL);
        let ids = made.record.ids();
        let plan = second.planned(&steps, Some(&ids), &Record::default());
        let empty = Record::default();
        let replayed = second.execute(&plan, &steps, &empty, None).expect("whole");
        assert_eq!(replayed.cause, None);
        assert_eq!((replayed.record, second.names()), (made.record, first.names()));
    }
}

#[test]
fn other_die_stops_at_first_differing_step() {
    let mut rng = Rng::with_seed(SEED + 1);
    let here = Daemon::new(USUAL).gpus();
    let (mut differed, mut equal) = (0, 0);
    for _ in 0..rounds(10) {
        let steps = random(&mut rng, &here);
        let (expected, _) = by_hand(USUAL, &steps);
        let moved = on_the_other_die(&steps);
        let (got, _) = by_hand(OTHER_DIE, &moved);
        let first = first_that_differs(&steps, &expected, &got);

        let mut daemon = Daemon::new(OTHER_DIE);
        let empty = Record::default();
        let plan = daemon.planned(&moved, Some(&expected), &empty);
        let outcome = daemon.execute(&plan, &moved, &empty, None).expect("whole");
        match first {
            None => {
                equal += 1;
                assert_eq!(outcome.cause, None);
            }
            Some(step) => {
                differed += 1;
                let partition = moved[step].partition.clone();
                let (expected, got) = (expected[step].clone(), got[step].clone());
                assert_eq!(
                    outcome.cause,
                    Some(LayoutFailureCause::OtherId { step, partition, expected, got })
                );
                assert_eq!((outcome.degraded.len(), daemon.names().len()), (0, 0));
            }
        }
    }
    assert!(differed > rounds(5) && equal > 0, "{differed} differed, {equal} did not");
}

#[test]
fn lost_reply_is_resolved_from_the_listing() {
    let mut rng = Rng::with_seed(SEED + 2);
    for round in 0..rounds(5) {
        let mut daemon = Daemon::new(USUAL);
        let steps = random(&mut rng, &daemon.gpus());
        let empty = Record::default();
        let plan = daemon.planned(&steps, None, &empty);
        let at = rng.usize(0..steps.len());
        let fault = if round % 2 == 0 { Fault::LostDone(at) } else { Fault::LostUndone(at) };
        let outcome = daemon.execute(&plan, &steps, &empty, Some(fault)).expect("whole");
        assert_eq!(outcome.cause, None, "{fault:?}");
        assert_eq!((outcome.record.ids(), daemon.names()), by_hand(USUAL, &steps));
    }
}

/// Whatever was there before, the layout comes out as from empty, and what stays in its place is not touched.
#[test]
fn layout_change_ends_as_if_from_empty() {
    let mut rng = Rng::with_seed(SEED + 3);
    let (mut kept, mut again) = (0, 0);
    for _ in 0..rounds(10) {
        let mut daemon = Daemon::new(USUAL);
        let gpus = daemon.gpus();
        let first = random(&mut rng, &gpus);
        let made = daemon.apply(&first, &Record::default());
        let there = daemon.names();
        let keep = rng.usize(0..=first.len());
        let more = rng.usize(0..8);
        let second = continued(&mut rng, &gpus, first[..keep].to_vec(), more);
        let plan = daemon.planned(&second, None, &made.record);
        for step in plan.steps.iter().filter(|step| step.action == Action::Keep) {
            let name = format!("{}/{}", step.gpu, step.id.as_ref().expect("it is there"));
            assert!(there.contains(&name));
            assert!(plan.steps.iter().all(|other| other.action != Action::Remove
                || (&other.gpu, &other.id) != (&step.gpu, &step.id)
                || other.step.is_some()));
            kept += 1;
        }
        again += plan.blocked.iter().filter(|blocked| matches!(blocked, Blocked::MadeAgain { .. })).count();
        let outcome = daemon.apply(&second, &made.record);
        assert_eq!(outcome.cause, None);
        assert!(outcome.record.is_of(&second), "{:?}\n{second:?}", outcome.record);
        assert_eq!((outcome.record.ids(), daemon.names()), by_hand(USUAL, &second));
        // And once more there is nothing to do.
        assert!(daemon.planned(&second, Some(&outcome.record.ids()), &outcome.record).is_empty());
    }
    assert!(kept > rounds(10) && again > rounds(1) / 10, "{kept} kept, {again} made again");
}

#[test]
fn failed_step_undoes_the_run() {
    let mut rng = Rng::with_seed(SEED + 4);
    let (mut restored, mut degraded) = (0, 0);
    for _ in 0..rounds(10) {
        let mut daemon = Daemon::new(USUAL);
        let gpus = daemon.gpus();
        let first = random(&mut rng, &gpus);
        let made = daemon.apply(&first, &Record::default());
        let there = daemon.names();
        let second = random(&mut rng, &gpus);
        let plan = daemon.planned(&second, None, &made.record);
        let moves = plan.steps.iter().filter(|step| step.action != Action::Keep).count();
        if moves == 0 {
            continue;
        }
        let fault = Fault::Refused(rng.usize(0..moves));
        let outcome = daemon.execute(&plan, &second, &made.record, Some(fault)).expect("whole");
        let Some(cause) = &outcome.cause else {
            panic!("a refused step is no success: {fault:?}");
        };
        assert!(matches!(cause, LayoutFailureCause::NotDone { .. }), "{cause}");
        for step in plan.steps.iter().filter(|step| step.action == Action::Keep) {
            let touched = second.iter().any(|other| {
                other.change == PartitionChange::Remove && Some(&other.partition) == step.partition.as_ref()
            });
            let name = format!("{}/{}", step.gpu, step.id.as_ref().expect("it is there"));
            assert!(touched || daemon.names().contains(&name), "what was never touched keeps its ID");
        }
        if outcome.degraded.is_empty() {
            restored += 1;
            assert_eq!(daemon.names(), there);
            assert_eq!(outcome.record, made.record);
        } else {
            degraded += 1;
            let here = daemon.names();
            for lost in there.difference(&here) {
                let (_, id) = lost.split_once('/').expect("GPU/ID");
                assert!(
                    outcome.degraded.iter().any(|degraded| degraded
                        .expected
                        .as_ref()
                        .is_some_and(|expected| expected.as_str() == id)),
                    "{lost} is gone and not named: {:?}",
                    outcome.degraded
                );
            }
            for came in here.difference(&there) {
                let (_, id) = came.split_once('/').expect("GPU/ID");
                assert!(
                    outcome
                        .degraded
                        .iter()
                        .any(|degraded| degraded.got.as_ref().is_some_and(|got| got.as_str() == id)),
                    "{came} is there and not named: {:?}",
                    outcome.degraded
                );
            }
        }
    }
    assert!(restored > rounds(1) && degraded > rounds(1) / 100, "{restored} restored, {degraded} degraded");
}

#[test]
fn interrupted_run_is_resumed_or_undone() {
    let mut rng = Rng::with_seed(SEED + 5);
    for round in 0..rounds(5) {
        let mut daemon = Daemon::new(USUAL);
        let gpus = daemon.gpus();
        let first = random(&mut rng, &gpus);
        let made = daemon.apply(&first, &Record::default());
        let before: BTreeMap<GpuUuid, BTreeSet<PartitionId>> = daemon
            .listed()
            .into_iter()
            .map(|gpu| (gpu.gpu, gpu.partitions.into_iter().map(|listed| listed.id).collect()))
            .collect();
        let second = random(&mut rng, &gpus);
        let plan = daemon.planned(&second, None, &made.record);
        let moves = plan.steps.iter().filter(|step| step.action != Action::Keep).count();
        if moves == 0 {
            continue;
        }
        let fault = Fault::CutShort(rng.usize(0..moves));
        assert!(daemon.execute(&plan, &second, &made.record, Some(fault)).is_none());

        let (wanted, expected) =
            if round % 2 == 0 { (&second, None) } else { (&first, Some(made.record.ids())) };
        let plan = daemon.planned_after(wanted, expected.as_deref(), &made.record, Some(&before));
        assert_eq!(plan.refusals(true).next(), None);
        let outcome = daemon.execute(&plan, wanted, &made.record, None).expect("whole");
        assert_eq!((outcome.cause, outcome.degraded.len()), (None, 0));
        assert_eq!((outcome.record.ids(), daemon.names()), by_hand(USUAL, wanted));
    }
}

#[test]
fn partition_in_use_is_never_removed() {
    let mut rng = Rng::with_seed(SEED + 6);
    let mut blocked = 0;
    for _ in 0..rounds(5) {
        let mut daemon = Daemon::new(USUAL);
        let gpus = daemon.gpus();
        let first = random(&mut rng, &gpus);
        let made = daemon.apply(&first, &Record::default());
        let Some(used) = rng.choice(daemon.names()) else { continue };
        daemon.used.insert(used.clone());
        let second = random(&mut rng, &gpus);
        let plan = daemon.planned(&second, None, &made.record);
        let goes = plan.steps.iter().any(|step| {
            step.action == Action::Remove
                && step.id.as_ref().is_some_and(|id| format!("{}/{id}", step.gpu) == used)
        });
        let refused = plan.refusals(true).any(|blocked| matches!(blocked, Blocked::InUse { .. }));
        assert_eq!(goes, refused, "{plan:?}");
        blocked += usize::from(refused);
        // A caller that does it all the same is refused by the daemon, and puts everything back.
        let outcome = daemon.execute(&plan, &second, &made.record, None).expect("whole");
        assert_eq!(outcome.cause.is_some(), refused);
        assert!(daemon.names().contains(&used));
    }
    assert!(blocked > rounds(1) / 10, "{blocked}");
}

#[test]
fn too_many_chunks_name_the_fitting_number() {
    let daemon = Daemon::new(USUAL);
    let gpu = daemon.gpus()[0].clone();
    let add = |name: &str, chunks| ResolvedStep {
        gpu: gpu.clone(),
        partition: PartitionName::parse(name).expect("a name"),
        chunks,
        change: PartitionChange::Add,
    };
    let plan = daemon.planned(&[add("a", 10), add("b", 6), add("c", 5)], None, &Record::default());
    let [Blocked::TooManyChunks { step: 1, requested: 6, free: 5, .. }] = plan.blocked.as_slice() else {
        panic!("{:?}", plan.blocked);
    };
    assert_eq!((plan.gpus[0].left_over_sms, plan.gpus[0].sms), (12, 132));
}
