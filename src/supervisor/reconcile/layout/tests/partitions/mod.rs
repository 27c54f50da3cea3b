//! Static partitions, one decision at a time, on a GPU that gives the lowest free chunks.

mod histories;

use super::*;
use crate::domain::client::ClientId;
use crate::domain::condition::ConditionType;
use crate::domain::daemon::DaemonSpec;
use crate::domain::layout::Layout;
use crate::domain::layout::active::{ActiveLayout, DesiredLayout, PartitionPolicy};
use crate::domain::layout::execution::{CommandAnswer, MoveAction};
use crate::domain::layout::record::Degraded;
use crate::domain::partitions::ListedPartition;
use crate::domain::{DaemonName, GpuUuid, LayoutName, PartitionId};
use crate::supervisor::recent::SHOWN_MS;
use crate::supervisor::reconcile::layout::conditions::conditions;

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

/// GPU of 15 chunks; another `skew` makes it another die, which gives other IDs.
#[derive(Debug, Default)]
pub(super) struct Die {
    partitions: Vec<(PartitionId, Vec<usize>)>,
    held: Vec<PartitionId>,
    skew: usize,
}

impl Die {
    fn add(&mut self, chunks: u32) -> PartitionId {
        let taken: Vec<usize> = self.partitions.iter().flat_map(|(_, chunks)| chunks.clone()).collect();
        let free = (0..15).filter(|chunk| !taken.contains(chunk));
        let chunks: Vec<usize> = free.take(chunks as usize).collect();
        let text: Vec<String> = chunks.iter().map(|chunk| (chunk + self.skew).to_string()).collect();
        let id = PartitionId::parse(&text.join("+")).expect("an ID");
        self.partitions.push((id.clone(), chunks));
        id
    }

    fn remove(&mut self, id: &PartitionId) {
        self.partitions.retain(|(known, _)| known != id);
    }

    pub(super) fn list(&self) -> Vec<GpuPartitions> {
        let count = |chunks: &Vec<usize>| u32::try_from(chunks.len()).expect("few");
        let used: u32 = self.partitions.iter().map(|(_, chunks)| count(chunks)).sum();
        let listed = |(id, chunks): &(PartitionId, Vec<usize>)| ListedPartition {
            id: id.clone(),
            chunks: count(chunks),
            sms: 8 * count(chunks),
            in_use: Some(self.held.contains(id)),
            clients: Vec::<ClientId>::new(),
        };
        vec![GpuPartitions {
            gpu: uuid(),
            free_chunks: 15 - used,
            used_chunks: used,
            free_sms: 132 - 8 * used,
            used_sms: 8 * used,
            partitions: self.partitions.iter().map(listed).collect(),
        }]
    }

    fn do_it(&mut self, action: &MoveAction, chunks: u32) -> CommandAnswer {
        match action {
            // An outsider may have taken the room.
            MoveAction::Add { .. } if self.list()[0].free_chunks < chunks => {
                CommandAnswer::Refused("no room".into())
            }
            MoveAction::Add { .. } => CommandAnswer::Named(self.add(chunks)),
            MoveAction::Remove { id } => {
                self.remove(id);
                CommandAnswer::Silent
            }
        }
    }
}

/// Returns a desired state with partitions of these sizes, named `p0`, `p1` and so on.
fn desired(version: u32, chunks: &[u32]) -> Desired {
    let steps: Vec<_> = chunks
        .iter()
        .enumerate()
        .map(|(number, chunks)| {
            serde_json::json!({"add": {"gpu": 0, "partition": format!("p{number}"), "chunks": chunks}})
        })
        .collect();
    let layout: Layout = serde_json::from_value(serde_json::json!({ "steps": steps })).expect("a layout");
    let active = ActiveLayout {
        name: LayoutName::parse("main").expect("a name"),
        version,
        gpu_map: [(0, uuid())].into(),
        drift_policy: PartitionPolicy::Report,
    };
    Desired { layout: Some(DesiredLayout::of(&active, &layout, None, None, &[]).expect("it fits")), ..bare() }
}

fn daemon() -> DaemonName {
    DaemonName::parse("gpu0").expect("a name")
}

/// Returns the desired state of a daemon in static mode without a layout.
fn bare() -> Desired {
    let spec: DaemonSpec =
        serde_json::from_value(serde_json::json!({"gpus": [uuid()], "mode": "static"})).expect("a spec");
    let name = daemon();
    crate::domain::plan::desired(&name, 1, &spec, &[], &[], 0, None).expect("a plan")
}

fn repairing(mut desired: Desired) -> Desired {
    desired.layout.as_mut().expect("a layout").drift_policy = PartitionPolicy::Repair;
    desired
}

fn progress(reconciler: &LayoutReconciler, desired: &Desired, die: &Die) -> LayoutProgress {
    reconciler.progress(desired, Some(&die.list()))
}

impl Die {
    /// Returns the desired state of a daemon with two partitions.
    pub(super) fn desired(generation: i64) -> Desired {
        Desired { generation, ..desired(1, &[7, 3]) }
    }

    /// Performs a run to its end, from 10 to 20 ms; the run fails unless it `works`.
    pub(super) fn run(&mut self, reconciler: &mut LayoutReconciler, desired: &Desired, works: bool) {
        let present = self.list();
        reconciler.prepare_run(desired, &present, 10);
        let LayoutProgress::Due(plan) = reconciler.progress(desired, Some(&present)) else {
            panic!("nothing is due")
        };
        let written = reconciler.before("first", &present);
        let mut execution = reconciler.began(written, &plan, desired, &present, 10);
        assert_eq!(super::state(self, reconciler, desired), LayoutState::Applying);
        while let Some(step) = execution.next() {
            let answer = if works {
                self.do_it(&step.action, step.chunks)
            } else {
                CommandAnswer::Refused("no".into())
            };
            execution.answered(&answer, &self.list(), 1);
            reconciler.commands_sent(execution.executed_steps());
        }
        reconciler.ended(execution.outcome(), desired, 10_000, 20);
    }
}

/// Performs a run to its end, or until `broken` commands were sent.
fn run(reconciler: &mut LayoutReconciler, desired: &Desired, die: &mut Die, broken: Option<usize>) {
    let present = die.list();
    reconciler.prepare_run(desired, &present, 0);
    let LayoutProgress::Due(plan) = reconciler.progress(desired, Some(&present)) else {
        panic!("nothing is due: {:?}", reconciler.progress(desired, Some(&present)))
    };
    let written = reconciler.before("first", &present);
    let mut execution = reconciler.began(written, &plan, desired, &present, 0);
    assert!(reconciler.is_under_way());
    for sent in 0.. {
        let Some(step) = execution.next() else { break };
        if broken == Some(sent) {
            execution.unreachable("it hangs".into());
            continue;
        }
        let answer = die.do_it(&step.action, step.chunks);
        execution.answered(&answer, &die.list(), 1);
        reconciler.commands_sent(execution.executed_steps());
    }
    reconciler.ended(execution.outcome(), desired, 1, 0);
    assert!(!reconciler.is_under_way());
}

/// Performs a run and writes its end.
fn done(reconciler: &mut LayoutReconciler, desired: &Desired, die: &mut Die) {
    run(reconciler, desired, die, None);
    assert_eq!(progress(reconciler, desired, die), LayoutProgress::Unwritten);
    write_end(reconciler, desired);
}

fn write_end(reconciler: &mut LayoutReconciler, desired: &Desired) {
    let run = reconciler.to_write(desired).expect("a run");
    reconciler.written(run);
}

/// Returns a reconciler in whose process a layout of these sizes is in force.
fn applied(chunks: &[u32]) -> (LayoutReconciler, Desired, Die) {
    let (mut reconciler, mut desired, mut die) =
        (LayoutReconciler::default(), desired(1, chunks), Die::default());
    reconciler.begin("first");
    done(&mut reconciler, &desired, &mut die);
    assert_eq!(progress(&reconciler, &desired, &die), LayoutProgress::Complete);
    // From here on as the store has it.
    let layout = desired.layout.as_mut().expect("a layout");
    layout.expected = reconciler.partitions.run.as_ref().map(|run| run.record.ids());
    (reconciler, desired, die)
}

fn state(reconciler: &LayoutReconciler, desired: &Desired, die: &Die) -> LayoutState {
    reconciler.status(desired, Some(&die.list())).expect("a status").state
}

#[test]
fn partitions_are_untouched_without_layout_or_listing() {
    let (reconciler, target) = (LayoutReconciler::default(), desired(1, &[7]));
    assert_eq!(reconciler.progress(&target, None), LayoutProgress::Waiting);
    assert_eq!(reconciler.status(&target, None).expect("a status").state, LayoutState::Pending);
    assert_eq!(reconciler.progress(&bare(), None), LayoutProgress::Complete);
    assert_eq!(reconciler.status(&bare(), None), None);
    let shared = Desired { mode: Mode::Shared, ..target.clone() };
    assert_eq!(reconciler.progress(&shared, None), LayoutProgress::Complete);
    let mut percentage = target;
    percentage.layout.as_mut().expect("a layout").enforcement = Enforcement::Percentage;
    assert!(matches!(
        progress(&reconciler, &percentage, &Die::default()),
        LayoutProgress::Refused(LayoutFailureCause::Blocked { .. })
    ));
}

#[test]
fn layout_is_applied_once_recorded_and_listed() {
    let (mut reconciler, target, mut die) =
        (LayoutReconciler::default(), desired(1, &[7, 3]), Die::default());
    reconciler.begin("first");
    run(&mut reconciler, &target, &mut die, None);
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Pending);
    assert!(status.partitions.iter().all(|one| one.id.is_none()), "{status:?}");
    assert_eq!(reconciler.to_write(&target).expect("a run").record.0.len(), 2);
    reconciler.not_written(5_000);
    assert!(reconciler.write_retry_at > 5_000);
    write_end(&mut reconciler, &target);
    assert_eq!((reconciler.write_retry_at, reconciler.to_write(&target)), (0, None));
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.executed_steps.len()), (LayoutState::Applied, 2));
    let ids: Vec<_> = status.partitions.iter().filter_map(|one| one.id.clone()).collect();
    assert_eq!(ids, die.partitions.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    // The next manager finds the same state.
    let mut next = LayoutReconciler::remembered(reconciler.partitions.run.clone());
    next.begin("first");
    assert_eq!(progress(&next, &target, &die), LayoutProgress::Complete);
}

#[test]
fn partition_drift_is_repaired_only_on_request() {
    let (mut reconciler, target, mut die) = applied(&[7, 3]);
    let tail = die.partitions[1].0.clone();
    die.remove(&tail);
    let state = progress(&reconciler, &target, &die);
    assert!(
        matches!(&state, LayoutProgress::Drifted(drift, None) if drift.len() == 1) && state.is_complete()
    );
    let later = Desired { generation: 2, ..target.clone() };
    assert!(progress(&reconciler, &later, &die).is_complete(), "another generation requests no repair");
    assert!(matches!(progress(&reconciler, &repairing(target.clone()), &die), LayoutProgress::Due(_)));

    reconciler.request(2);
    done(&mut reconciler, &later, &mut die);
    assert_eq!(progress(&reconciler, &later, &die), LayoutProgress::Complete);
    assert_eq!(die.partitions[1].0, tail);
    die.remove(&tail);
    assert!(progress(&reconciler, &later, &die).is_complete(), "it was requested once");

    // A request while there is nothing to do is not carried out later.
    let (mut reconciler, target, mut die) = applied(&[7, 3]);
    reconciler.request(2);
    reconciler.polled(&target, Some(&die.list()), 0);
    die.remove(&tail);
    assert!(matches!(progress(&reconciler, &target, &die), LayoutProgress::Drifted(_, None)));
}

#[test]
fn repair_neither_removes_used_nor_recreates_partitions() {
    let (reconciler, target, mut die) = applied(&[7, 3]);
    let target = repairing(target);
    let strange = die.add(2);
    assert!(matches!(progress(&reconciler, &target, &die), LayoutProgress::Due(_)));
    die.held = vec![strange.clone()];
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Drifted);
    assert!(status.not_repaired.expect("a reason").contains("in use"));
    die.held.clear();
    die.remove(&strange);
    let first = die.partitions[0].0.clone();
    die.remove(&first);
    let mut again = target.clone();
    again.layout.as_mut().expect("a layout").recreate = true;
    for target in [&target, &again] {
        let state = progress(&reconciler, target, &die);
        assert!(
            matches!(&state, LayoutProgress::Drifted(_, Some(why)) if why.contains("must be recreated")),
            "who recreates with an apply does not with a repair: {state:?}"
        );
    }
    let mut requested = reconciler;
    requested.request(2);
    assert!(matches!(
        progress(&requested, &target, &die),
        LayoutProgress::Refused(LayoutFailureCause::Blocked { .. })
    ));
    assert!(matches!(progress(&requested, &again, &die), LayoutProgress::Due(_)));
}

#[test]
fn restarted_daemon_must_give_same_partition_ids() {
    let (mut reconciler, target, die) = applied(&[7, 3]);
    let before: Vec<_> = die.partitions.iter().map(|(id, _)| id.clone()).collect();
    reconciler.begin("second");
    assert!(matches!(progress(&reconciler, &target, &Die::default()), LayoutProgress::Due(_)));
    let mut same = Die::default();
    let mut twin = reconciler.clone();
    done(&mut twin, &target, &mut same);
    assert_eq!(state(&twin, &target, &same), LayoutState::Applied);

    let mut other = Die { skew: 1, ..Die::default() };
    done(&mut reconciler, &target, &mut other);
    assert!(other.partitions.is_empty(), "it is undone");
    let status = reconciler.status(&target, Some(&other.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Failed);
    let Some(LayoutFailureCause::OtherId { step: 0, expected, .. }) =
        status.failure.map(|failure| failure.cause)
    else {
        panic!("another cause")
    };
    assert_eq!(expected, before[0]);
    assert_eq!(progress(&reconciler, &target, &other), LayoutProgress::Failed);
    for again in [
        {
            let mut requested = reconciler.clone();
            requested.try_again();
            (requested, target.clone())
        },
        (reconciler.clone(), Desired { generation: 2, ..target.clone() }),
        {
            let mut third = reconciler.clone();
            third.begin("third");
            (third, target.clone())
        },
    ] {
        assert!(matches!(progress(&again.0, &again.1, &other), LayoutProgress::Due(_)));
    }
}

#[test]
fn interrupted_run_is_finished_from_listing() {
    let (mut reconciler, target, mut die) =
        (LayoutReconciler::default(), desired(1, &[7, 3, 2]), Die::default());
    reconciler.begin("first");
    let theirs = die.add(1);
    run(&mut reconciler, &target, &mut die, Some(3));
    assert_eq!(die.partitions.len(), 2, "theirs went, and two were made");
    assert!(!die.partitions.iter().any(|(id, _)| *id == theirs));
    let left = reconciler.partitions.run.clone();
    let before = left.as_ref().and_then(|run| run.before.clone()).expect("it is under way");
    assert_eq!(before[&uuid()], [theirs].into());
    assert_eq!(state(&reconciler, &target, &die), LayoutState::Pending);

    // Continued by this manager or by the next.
    let mut next = LayoutReconciler::remembered(left);
    next.begin("first");
    for mut one in [reconciler, next] {
        let mut die = Die { partitions: die.partitions.clone(), ..Die::default() };
        done(&mut one, &target, &mut die);
        assert_eq!(die.partitions.len(), 3);
        assert_eq!(state(&one, &target, &die), LayoutState::Applied);
        let ids: Vec<&str> = die.partitions.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!(ids, ["0+1+2+3+4+5+6", "7+8+9", "10+11"], "as from empty");
    }
}

#[test]
fn removed_layout_keeps_external_partitions() {
    let (mut reconciler, _, mut die) = applied(&[7, 3]);
    let theirs = die.add(2);
    done(&mut reconciler, &bare(), &mut die);
    assert_eq!(die.partitions.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&theirs]);
    assert_eq!(progress(&reconciler, &bare(), &die), LayoutProgress::Complete);
    assert_eq!(reconciler.status(&bare(), Some(&die.list())), None);
}

#[test]
fn blocker_is_named_until_it_is_gone() {
    let (reconciler, _, mut die) = applied(&[7, 3]);
    let next = Desired { generation: 2, ..desired(2, &[7]) };
    die.held = vec![die.partitions[1].0.clone()];
    let LayoutProgress::Refused(LayoutFailureCause::Blocked { why }) = progress(&reconciler, &next, &die)
    else {
        panic!("it is in use")
    };
    assert!(why.contains("in use"), "{why}");
    assert_eq!(state(&reconciler, &next, &die), LayoutState::Failed);
    die.held.clear();
    assert!(matches!(progress(&reconciler, &next, &die), LayoutProgress::Due(_)));
    let large = Desired { generation: 3, ..desired(3, &[16]) };
    let state = reconciler.status(&large, Some(&die.list())).and_then(|status| status.failure);
    assert!(state.expect("it does not fit").message.contains("16 chunks"), "requested and free are reported");
}

/// Returns a layout in force in which one partition has another ID than the recorded one, because of an undo.
fn degraded() -> (LayoutReconciler, Desired, Die) {
    let (mut reconciler, desired, mut die) = applied(&[2, 3]);
    // The last one comes back elsewhere.
    let (id, _) = die.partitions.pop().expect("the last");
    die.skew = 1;
    let got = die.add(3);
    let run = reconciler.partitions.run.as_mut().expect("a run");
    run.record.0[1].id = got.clone();
    let name = run.record.0[1].partition.clone();
    let (expected, got) = (Some(id), Some(got));
    run.degraded = vec![Degraded { gpu: uuid(), partition: Some(name), expected, got, why: None }];
    (reconciler, desired, die)
}

#[test]
fn degraded_partition_is_withheld_and_others_stay() {
    let (reconciler, target, die) = degraded();
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.degraded.len()), (LayoutState::Degraded, 1));
    let handed_out: Vec<bool> = status.partitions.iter().map(|one| one.id.is_some()).collect();
    assert_eq!(handed_out, [true, false], "{status:?}");
    let why = status.partitions[1].withheld.as_ref().expect("a reason");
    assert!(why.contains("is recorded") && why.contains("recreate"), "{why}");
    assert_eq!(conditions(&daemon(), &status, 0)[0].kind, ConditionType::PartitionsDegraded);
    assert!(progress(&reconciler, &target, &die).is_complete());
}

#[test]
fn recreate_makes_a_degraded_layout_again() {
    let (mut reconciler, target, mut die) = degraded();
    die.skew = 0;
    let mut again = Desired { generation: 2, ..target };
    reconciler.request(2);
    assert!(progress(&reconciler, &again, &die).is_complete(), "without recreate nothing is made again");
    again.layout.as_mut().expect("a layout").recreate = true;
    done(&mut reconciler, &again, &mut die);
    let status = reconciler.status(&again, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.degraded.len()), (LayoutState::Applied, 0));
    assert!(status.partitions.iter().all(|one| one.id.is_some() && one.id == one.expected), "{status:?}");
}

#[test]
fn going_back_on_another_die_stays_blocked() {
    let (mut reconciler, target, _) = applied(&[7, 3]);
    let back = Desired { generation: 2, ..target };
    reconciler.begin("second");
    let mut other = Die { skew: 1, ..Die::default() };
    reconciler.request(2);
    done(&mut reconciler, &back, &mut other);
    assert_eq!(other.partitions, []);
    let status = reconciler.status(&back, Some(&other.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Failed);
    assert!(status.partitions.iter().all(|one| one.id.is_none()), "{status:?}");
}

#[test]
fn request_for_applied_generation_starts_no_repair() {
    // The desired state was followed before its publisher requested it; then another program made a partition of its own.
    let (mut reconciler, target, mut die) = applied(&[7, 3]);
    let theirs = die.add(2);
    let before = reconciler.status(&target, Some(&die.list())).expect("a status");
    let mut next = LayoutReconciler::remembered(reconciler.partitions.run.clone());
    next.begin("first");
    for reconciler in [&mut reconciler, &mut next] {
        reconciler.request(target.generation);
        let state = progress(reconciler, &target, &die);
        assert!(matches!(&state, LayoutProgress::Drifted(drift, None) if drift[0].id == theirs), "{state:?}");
        // A later generation that requests the layout has it repaired.
        reconciler.request(target.generation + 1);
        assert!(matches!(progress(reconciler, &target, &die), LayoutProgress::Due(_)));
    }
    assert_eq!(before.executed_steps.len(), 2);

    let (mut failed, target) = (LayoutReconciler::default(), desired(1, &[7]));
    failed.begin("first");
    done(&mut failed, &target, &mut Die::default());
    failed.begin("second");
    done(&mut failed, &target, &mut Die { skew: 1, ..Die::default() });
    failed.request(target.generation);
    assert_eq!(progress(&failed, &target, &Die::default()), LayoutProgress::Failed);
    failed.request(target.generation + 1);
    assert!(matches!(progress(&failed, &target, &Die::default()), LayoutProgress::Due(_)));
}

#[test]
fn repair_is_recorded_before_it_begins() {
    let (mut reconciler, target, mut die) = applied(&[7, 3]);
    let target = repairing(target);
    let made = reconciler.status(&target, Some(&die.list())).expect("a status").executed_steps;
    let tail = die.partitions[1].0.clone();
    die.remove(&tail);
    reconciler.polled(&target, Some(&die.list()), 5);
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.drift.len()), (LayoutState::Pending, 1));
    assert_eq!((status.drift_seen.count, status.drift_seen.last_at), (1, Some(5)));
    let message = &conditions(&daemon(), &status, 6)[0];
    assert_eq!((message.kind.as_str(), message.status), ("PartitionsDrifted", true));
    assert!(
        message.message.contains("partition p1") && message.message.contains("being restored"),
        "{message:?}"
    );

    // Interrupted, the same repair continues, and the drift is what it was.
    run(&mut reconciler, &target, &mut die, Some(0));
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.drift.len(), &status.executed_steps), (1, &made));
    done(&mut reconciler, &target, &mut die);
    reconciler.polled(&target, Some(&die.list()), 7);
    let status = reconciler.status(&target, Some(&die.list())).expect("a status");
    assert_eq!(
        (status.state, &status.drift, &status.executed_steps),
        (LayoutState::Applied, &Vec::new(), &made)
    );
    assert_eq!((status.drift_seen.count, status.drift_seen.repairs), (1, 1));
    assert!(
        status.drift_seen.executed_steps.iter().any(|taken| taken.id.as_ref() == Some(&tail)),
        "{status:?}"
    );
    assert_eq!(status.drift_seen.last[0].id, tail);

    // Another process has its own partitions; what happened in the one before is still shown, for a while.
    reconciler.begin("second");
    let mut next = Die::default();
    done(&mut reconciler, &target, &mut next);
    reconciler.polled(&target, Some(&next.list()), 9);
    let status = reconciler.status(&target, Some(&next.list())).expect("a status");
    assert_eq!((status.drift_seen.count, status.drift_seen.repairs), (1, 1));
    assert!(conditions(&daemon(), &status, SHOWN_MS + 5).is_empty());
}

#[test]
fn undone_repair_backs_off_while_daemon_serves() {
    let (mut reconciler, target, mut die) = applied(&[7, 3]);
    let target = repairing(target);
    let tail = die.partitions[1].0.clone();
    for _ in 0..3 {
        die.remove(&tail);
        assert!(matches!(progress(&reconciler, &target, &die), LayoutProgress::Due(_)));
        done(&mut reconciler, &target, &mut die);
        reconciler.polled(&target, Some(&die.list()), 0);
    }
    die.remove(&tail);
    reconciler.polled(&target, Some(&die.list()), 100);
    let state = progress(&reconciler, &target, &die);
    assert!(
        matches!(&state, LayoutProgress::Drifted(_, Some(why)) if why.contains("3 times in a row")),
        "{state:?}"
    );
    assert!(state.is_complete());
    assert_eq!(reconciler.partitions.repair_postponed_until(), Some(1_100));
    let mut requested = reconciler.clone();
    requested.request(2);
    assert!(matches!(progress(&requested, &target, &die), LayoutProgress::Due(_)), "a request does not wait");
    reconciler.prepare_run(&target, &die.list(), 1_099);
    assert!(progress(&reconciler, &target, &die).is_complete());
    reconciler.prepare_run(&target, &die.list(), 1_100);
    assert!(matches!(progress(&reconciler, &target, &die), LayoutProgress::Due(_)));
}
