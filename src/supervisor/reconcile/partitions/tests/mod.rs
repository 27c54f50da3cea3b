//! The decisions of [`PartitionReconciler`], one by one, on a GPU that gives the lowest free chunks.

mod histories;

use super::*;
use crate::domain::client::ClientId;
use crate::domain::daemon::DaemonSpec;
use crate::domain::layout::Layout;
use crate::domain::layout::active::{ActiveLayout, DesiredLayout};
use crate::domain::layout::execution::{CommandAnswer, Deed};
use crate::domain::layout::record::Degraded;
use crate::domain::partitions::ListedPartition;
use crate::domain::{DaemonName, LayoutName};
use crate::supervisor::report::recent::SHOWN_MS;

fn uuid() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

/// A GPU of 15 chunks; `skew` makes it another die, which gives other IDs.
#[derive(Debug, Default)]
struct Die {
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

    fn list(&self) -> Vec<GpuPartitions> {
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

    fn do_it(&mut self, deed: &Deed, chunks: u32) -> CommandAnswer {
        match deed {
            // An outsider may have taken the room.
            Deed::Add { .. } if self.list()[0].free_chunks < chunks => {
                CommandAnswer::Refused("no room".into())
            }
            Deed::Add { .. } => CommandAnswer::Named(self.add(chunks)),
            Deed::Remove { id } => {
                self.remove(id);
                CommandAnswer::Silent
            }
        }
    }
}

/// A desired state for partitions of these sizes, named `p0`, `p1` and so on.
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

/// A daemon in static mode without a layout.
fn bare() -> Desired {
    let spec: DaemonSpec =
        serde_json::from_value(serde_json::json!({"gpus": [uuid()], "mode": "static"})).expect("a spec");
    let name = DaemonName::parse("gpu0").expect("a name");
    crate::domain::plan::desired(&name, 1, &spec, &[], &[], 0, None).expect("a plan")
}

fn repairing(mut desired: Desired) -> Desired {
    desired.layout.as_mut().expect("a layout").drift_policy = PartitionPolicy::Repair;
    desired
}

fn layout_state(partitioning: &PartitionReconciler, desired: &Desired, die: &Die) -> PartitionLayoutState {
    partitioning.layout_state(desired, Some(&die.list()))
}

/// A run to its end, or to `broken` commands and no further.
fn run(partitioning: &mut PartitionReconciler, desired: &Desired, die: &mut Die, broken: Option<usize>) {
    let present = die.list();
    partitioning.prepare_run(desired, &present, 0);
    let PartitionLayoutState::Due(plan) = partitioning.layout_state(desired, Some(&present)) else {
        panic!("nothing is due: {:?}", partitioning.layout_state(desired, Some(&present)))
    };
    let written = partitioning.before("first", &present);
    let mut execution = partitioning.began(written, &plan, desired, &present, 0);
    assert!(partitioning.is_under_way());
    for sent in 0.. {
        let Some(step) = execution.next() else { break };
        if broken == Some(sent) {
            execution.unreachable("it hangs".into());
            continue;
        }
        let answer = die.do_it(&step.deed, step.chunks);
        execution.answered(&answer, &die.list(), 1);
        partitioning.progress(execution.taken());
    }
    partitioning.ended(execution.outcome(), desired, 1, 0);
    assert!(!partitioning.is_under_way());
}

/// A run that is written down.
fn done(partitioning: &mut PartitionReconciler, desired: &Desired, die: &mut Die) {
    run(partitioning, desired, die, None);
    assert_eq!(layout_state(partitioning, desired, die), PartitionLayoutState::Unwritten);
    write_end(partitioning, desired);
}

fn write_end(partitioning: &mut PartitionReconciler, desired: &Desired) {
    let run = partitioning.to_write(desired).expect("a run");
    partitioning.written(run);
}

/// One in whose process a layout of these sizes is in force.
fn applied(chunks: &[u32]) -> (PartitionReconciler, Desired, Die) {
    let (mut partitioning, mut desired, mut die) =
        (PartitionReconciler::default(), desired(1, chunks), Die::default());
    partitioning.begin("first");
    done(&mut partitioning, &desired, &mut die);
    assert_eq!(layout_state(&partitioning, &desired, &die), PartitionLayoutState::Complete);
    // As the store has it from then on.
    let layout = desired.layout.as_mut().expect("a layout");
    layout.expected = partitioning.run.as_ref().map(|run| run.record.ids());
    (partitioning, desired, die)
}

fn state(partitioning: &PartitionReconciler, desired: &Desired, die: &Die) -> LayoutState {
    partitioning.status(desired, Some(&die.list())).expect("a status").state
}

#[test]
fn partitions_are_untouched_without_layout_or_listing() {
    let (partitioning, target) = (PartitionReconciler::default(), desired(1, &[7]));
    assert_eq!(partitioning.layout_state(&target, None), PartitionLayoutState::Unread);
    assert_eq!(partitioning.status(&target, None).expect("a status").state, LayoutState::Pending);
    assert_eq!(partitioning.layout_state(&bare(), None), PartitionLayoutState::Complete);
    assert_eq!(partitioning.status(&bare(), None), None);
    let shared = Desired { mode: Mode::Shared, ..target.clone() };
    assert_eq!(partitioning.layout_state(&shared, None), PartitionLayoutState::Complete);
    let mut percentage = target;
    percentage.layout.as_mut().expect("a layout").enforcement = Enforcement::Percentage;
    assert_eq!(layout_state(&partitioning, &percentage, &Die::default()), PartitionLayoutState::Complete);
    assert_eq!(partitioning.status(&percentage, None), None);
}

#[test]
fn layout_is_applied_once_recorded_and_listed() {
    let (mut partitioning, target, mut die) =
        (PartitionReconciler::default(), desired(1, &[7, 3]), Die::default());
    partitioning.begin("first");
    run(&mut partitioning, &target, &mut die, None);
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Pending);
    assert!(status.partitions.iter().all(|one| one.id.is_none()), "{status:?}");
    assert_eq!(partitioning.to_write(&target).expect("a run").record.0.len(), 2);
    partitioning.not_written(5_000);
    assert!(partitioning.retry_at() > 5_000);
    write_end(&mut partitioning, &target);
    assert_eq!((partitioning.retry_at(), partitioning.to_write(&target)), (0, None));
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.taken.len()), (LayoutState::Applied, 2));
    let ids: Vec<_> = status.partitions.iter().filter_map(|one| one.id.clone()).collect();
    assert_eq!(ids, die.partitions.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>());
    // The next manager finds the same.
    let mut next = PartitionReconciler::remembered(partitioning.run.clone());
    next.begin("first");
    assert_eq!(layout_state(&next, &target, &die), PartitionLayoutState::Complete);
}

#[test]
fn partition_drift_is_repaired_only_on_request() {
    let (mut partitioning, target, mut die) = applied(&[7, 3]);
    let tail = die.partitions[1].0.clone();
    die.remove(&tail);
    let state = layout_state(&partitioning, &target, &die);
    assert!(
        matches!(&state, PartitionLayoutState::Drifted(drift, None) if drift.len() == 1)
            && state.is_complete()
    );
    let later = Desired { generation: 2, ..target.clone() };
    assert!(layout_state(&partitioning, &later, &die).is_complete(), "another generation requests no repair");
    assert!(matches!(
        layout_state(&partitioning, &repairing(target.clone()), &die),
        PartitionLayoutState::Due(_)
    ));

    partitioning.request(2);
    done(&mut partitioning, &later, &mut die);
    assert_eq!(layout_state(&partitioning, &later, &die), PartitionLayoutState::Complete);
    assert_eq!(die.partitions[1].0, tail);
    die.remove(&tail);
    assert!(layout_state(&partitioning, &later, &die).is_complete(), "it was requested once");

    // A request while there is nothing to do is not carried out later.
    let (mut partitioning, target, mut die) = applied(&[7, 3]);
    partitioning.request(2);
    partitioning.polled(&target, Some(&die.list()), 0);
    die.remove(&tail);
    assert!(matches!(layout_state(&partitioning, &target, &die), PartitionLayoutState::Drifted(_, None)));
}

#[test]
fn repair_neither_removes_used_nor_recreates_partitions() {
    let (partitioning, target, mut die) = applied(&[7, 3]);
    let target = repairing(target);
    let strange = die.add(2);
    assert!(matches!(layout_state(&partitioning, &target, &die), PartitionLayoutState::Due(_)));
    die.held = vec![strange.clone()];
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Drifted);
    assert!(status.not_repaired.expect("a reason").contains("in use"));
    die.held.clear();
    die.remove(&strange);
    let first = die.partitions[0].0.clone();
    die.remove(&first);
    let mut again = target.clone();
    again.layout.as_mut().expect("a layout").recreate = true;
    for target in [&target, &again] {
        let state = layout_state(&partitioning, target, &die);
        assert!(
            matches!(&state, PartitionLayoutState::Drifted(_, Some(why)) if why.contains("made again")),
            "who recreates with an apply does not with a repair: {state:?}"
        );
    }
    let mut requested = partitioning;
    requested.request(2);
    assert!(matches!(
        layout_state(&requested, &target, &die),
        PartitionLayoutState::Refused(Cause::Blocked { .. })
    ));
    assert!(matches!(layout_state(&requested, &again, &die), PartitionLayoutState::Due(_)));
}

#[test]
fn restarted_daemon_must_give_same_partition_ids() {
    let (mut partitioning, target, die) = applied(&[7, 3]);
    let before: Vec<_> = die.partitions.iter().map(|(id, _)| id.clone()).collect();
    partitioning.begin("second");
    assert!(matches!(layout_state(&partitioning, &target, &Die::default()), PartitionLayoutState::Due(_)));
    let mut same = Die::default();
    let mut twin = partitioning.clone();
    done(&mut twin, &target, &mut same);
    assert_eq!(state(&twin, &target, &same), LayoutState::Applied);

    let mut other = Die { skew: 1, ..Die::default() };
    done(&mut partitioning, &target, &mut other);
    assert!(other.partitions.is_empty(), "it is undone");
    let status = partitioning.status(&target, Some(&other.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Failed);
    let Some(Cause::OtherId { step: 0, expected, .. }) = status.failure.map(|failure| failure.cause) else {
        panic!("another cause")
    };
    assert_eq!(expected, before[0]);
    assert_eq!(layout_state(&partitioning, &target, &other), PartitionLayoutState::Failed);
    for again in [
        {
            let mut requested = partitioning.clone();
            requested.try_again();
            (requested, target.clone())
        },
        (partitioning.clone(), Desired { generation: 2, ..target.clone() }),
        {
            let mut third = partitioning.clone();
            third.begin("third");
            (third, target.clone())
        },
    ] {
        assert!(matches!(layout_state(&again.0, &again.1, &other), PartitionLayoutState::Due(_)));
    }
}

#[test]
fn interrupted_run_is_finished_from_listing() {
    let (mut partitioning, target, mut die) =
        (PartitionReconciler::default(), desired(1, &[7, 3, 2]), Die::default());
    partitioning.begin("first");
    let theirs = die.add(1);
    run(&mut partitioning, &target, &mut die, Some(3));
    assert_eq!(die.partitions.len(), 2, "theirs went, and two were made");
    assert!(!die.partitions.iter().any(|(id, _)| *id == theirs));
    let left = partitioning.run.clone();
    let before = left.as_ref().and_then(|run| run.before.clone()).expect("it is under way");
    assert_eq!(before[&uuid()], [theirs].into());
    assert_eq!(state(&partitioning, &target, &die), LayoutState::Pending);

    // By this manager or by the next.
    let mut next = PartitionReconciler::remembered(left);
    next.begin("first");
    for mut one in [partitioning, next] {
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
    let (mut partitioning, _, mut die) = applied(&[7, 3]);
    let theirs = die.add(2);
    done(&mut partitioning, &bare(), &mut die);
    assert_eq!(die.partitions.iter().map(|(id, _)| id).collect::<Vec<_>>(), [&theirs]);
    assert_eq!(layout_state(&partitioning, &bare(), &die), PartitionLayoutState::Complete);
    assert_eq!(partitioning.status(&bare(), Some(&die.list())), None);
}

#[test]
fn blocker_is_named_until_it_is_gone() {
    let (partitioning, _, mut die) = applied(&[7, 3]);
    let next = Desired { generation: 2, ..desired(2, &[7]) };
    die.held = vec![die.partitions[1].0.clone()];
    let PartitionLayoutState::Refused(Cause::Blocked { why }) = layout_state(&partitioning, &next, &die)
    else {
        panic!("it is in use")
    };
    assert!(why.contains("in use"), "{why}");
    assert_eq!(state(&partitioning, &next, &die), LayoutState::Failed);
    die.held.clear();
    assert!(matches!(layout_state(&partitioning, &next, &die), PartitionLayoutState::Due(_)));
    let large = Desired { generation: 3, ..desired(3, &[16]) };
    let state = partitioning.status(&large, Some(&die.list())).and_then(|status| status.failure);
    assert!(state.expect("it does not fit").message.contains("16 chunks"), "requested and free are reported");
}

/// A layout in force of which an undo has left one partition with another ID than the one on record.
fn degraded() -> (PartitionReconciler, Desired, Die) {
    let (mut partitioning, desired, mut die) = applied(&[2, 3]);
    // The last one comes back elsewhere.
    let (id, _) = die.partitions.pop().expect("the last");
    die.skew = 1;
    let got = die.add(3);
    let run = partitioning.run.as_mut().expect("a run");
    run.record.0[1].id = got.clone();
    let name = run.record.0[1].partition.clone();
    let (expected, got) = (Some(id), Some(got));
    run.degraded = vec![Degraded { gpu: uuid(), partition: Some(name), expected, got, why: None }];
    (partitioning, desired, die)
}

#[test]
fn degraded_partition_is_withheld_and_others_stay() {
    let (partitioning, target, die) = degraded();
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.degraded.len()), (LayoutState::Degraded, 1));
    let handed_out: Vec<bool> = status.partitions.iter().map(|one| one.id.is_some()).collect();
    assert_eq!(handed_out, [true, false], "{status:?}");
    let why = status.partitions[1].withheld.as_ref().expect("a reason");
    assert!(why.contains("is on record") && why.contains("recreate"), "{why}");
    assert_eq!(conditions(&status, 0)[0].kind, "PartitionsDegraded");
    assert!(layout_state(&partitioning, &target, &die).is_complete());
}

#[test]
fn recreate_makes_a_degraded_layout_again() {
    let (mut partitioning, target, mut die) = degraded();
    die.skew = 0;
    let mut again = Desired { generation: 2, ..target };
    partitioning.request(2);
    assert!(
        layout_state(&partitioning, &again, &die).is_complete(),
        "without recreate nothing is made again"
    );
    again.layout.as_mut().expect("a layout").recreate = true;
    done(&mut partitioning, &again, &mut die);
    let status = partitioning.status(&again, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.degraded.len()), (LayoutState::Applied, 0));
    assert!(status.partitions.iter().all(|one| one.id.is_some() && one.id == one.expected), "{status:?}");
}

#[test]
fn going_back_on_another_die_stays_blocked() {
    let (mut partitioning, target, _) = applied(&[7, 3]);
    let back = Desired { generation: 2, ..target };
    partitioning.begin("second");
    let mut other = Die { skew: 1, ..Die::default() };
    partitioning.request(2);
    done(&mut partitioning, &back, &mut other);
    assert_eq!(other.partitions, []);
    let status = partitioning.status(&back, Some(&other.list())).expect("a status");
    assert_eq!(status.state, LayoutState::Failed);
    assert!(status.partitions.iter().all(|one| one.id.is_none()), "{status:?}");
}

#[test]
fn request_for_applied_generation_starts_no_repair() {
    // The desired state was followed before its publisher requested it; then another program made a partition of its own.
    let (mut partitioning, target, mut die) = applied(&[7, 3]);
    let theirs = die.add(2);
    let before = partitioning.status(&target, Some(&die.list())).expect("a status");
    let mut next = PartitionReconciler::remembered(partitioning.run.clone());
    next.begin("first");
    for partitioning in [&mut partitioning, &mut next] {
        partitioning.request(target.generation);
        let state = layout_state(partitioning, &target, &die);
        assert!(
            matches!(&state, PartitionLayoutState::Drifted(drift, None) if drift[0].id == theirs),
            "{state:?}"
        );
        // A later generation that requests the layout has it repaired.
        partitioning.request(target.generation + 1);
        assert!(matches!(layout_state(partitioning, &target, &die), PartitionLayoutState::Due(_)));
    }
    assert_eq!(before.taken.len(), 2);

    let (mut failed, target) = (PartitionReconciler::default(), desired(1, &[7]));
    failed.begin("first");
    done(&mut failed, &target, &mut Die::default());
    failed.begin("second");
    done(&mut failed, &target, &mut Die { skew: 1, ..Die::default() });
    failed.request(target.generation);
    assert_eq!(layout_state(&failed, &target, &Die::default()), PartitionLayoutState::Failed);
    failed.request(target.generation + 1);
    assert!(matches!(layout_state(&failed, &target, &Die::default()), PartitionLayoutState::Due(_)));
}

#[test]
fn repair_is_recorded_before_it_begins() {
    let (mut partitioning, target, mut die) = applied(&[7, 3]);
    let target = repairing(target);
    let made = partitioning.status(&target, Some(&die.list())).expect("a status").taken;
    let tail = die.partitions[1].0.clone();
    die.remove(&tail);
    partitioning.polled(&target, Some(&die.list()), 5);
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, status.drift.len()), (LayoutState::Pending, 1));
    assert_eq!((status.drift_seen.count, status.drift_seen.last_at), (1, Some(5)));
    let said = &conditions(&status, 6)[0];
    assert_eq!((said.kind.as_str(), said.status), ("PartitionsDrifted", true));
    assert!(said.message.contains("partition p1") && said.message.contains("being put back"), "{said:?}");

    // Interrupted, the same repair continues, and the drift is what it was.
    run(&mut partitioning, &target, &mut die, Some(0));
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.drift.len(), &status.taken), (1, &made));
    done(&mut partitioning, &target, &mut die);
    partitioning.polled(&target, Some(&die.list()), 7);
    let status = partitioning.status(&target, Some(&die.list())).expect("a status");
    assert_eq!((status.state, &status.drift, &status.taken), (LayoutState::Applied, &Vec::new(), &made));
    assert_eq!((status.drift_seen.count, status.drift_seen.repairs), (1, 1));
    assert!(status.drift_seen.taken.iter().any(|taken| taken.id.as_ref() == Some(&tail)), "{status:?}");
    assert_eq!(status.drift_seen.last[0].id, tail);

    // Another process has its own partitions; what happened in the one before is still shown, for a while.
    partitioning.begin("second");
    let mut next = Die::default();
    done(&mut partitioning, &target, &mut next);
    partitioning.polled(&target, Some(&next.list()), 9);
    let status = partitioning.status(&target, Some(&next.list())).expect("a status");
    assert_eq!((status.drift_seen.count, status.drift_seen.repairs), (1, 1));
    assert!(conditions(&status, SHOWN_MS + 5).is_empty());
}

#[test]
fn undone_repair_backs_off_while_daemon_serves() {
    let (mut partitioning, target, mut die) = applied(&[7, 3]);
    let target = repairing(target);
    let tail = die.partitions[1].0.clone();
    for _ in 0..3 {
        die.remove(&tail);
        assert!(matches!(layout_state(&partitioning, &target, &die), PartitionLayoutState::Due(_)));
        done(&mut partitioning, &target, &mut die);
        partitioning.polled(&target, Some(&die.list()), 0);
    }
    die.remove(&tail);
    partitioning.polled(&target, Some(&die.list()), 100);
    let state = layout_state(&partitioning, &target, &die);
    assert!(
        matches!(&state, PartitionLayoutState::Drifted(_, Some(why)) if why.contains("3 times in a row")),
        "{state:?}"
    );
    assert!(state.is_complete());
    assert_eq!(partitioning.repair_postponed_until(), Some(1_100));
    let mut requested = partitioning.clone();
    requested.request(2);
    assert!(
        matches!(layout_state(&requested, &target, &die), PartitionLayoutState::Due(_)),
        "a request does not wait"
    );
    partitioning.prepare_run(&target, &die.list(), 1_099);
    assert!(layout_state(&partitioning, &target, &die).is_complete());
    partitioning.prepare_run(&target, &die.list(), 1_100);
    assert!(matches!(layout_state(&partitioning, &target, &die), PartitionLayoutState::Due(_)));
}
