//! The decisions of [`LayoutReconciler`]: what a run leads to here, and the partitions in a file of their own.

mod partitions;
mod percentages;

use self::partitions::Die;
use super::*;
use crate::domain::condition::ConditionReason;

/// Begins with a daemon in whose process nothing was done yet.
fn begun(daemon: &mut Die, token: &str, reconciler: &mut LayoutReconciler) {
    *daemon = Die::default();
    reconciler.begin(token);
}

fn state(daemon: &Die, reconciler: &LayoutReconciler, desired: &Desired) -> LayoutState {
    reconciler.status(desired, Some(&daemon.list())).expect("a status").state
}

/// Returns true if a run is to begin at once.
fn is_due(daemon: &Die, reconciler: &LayoutReconciler, desired: &Desired) -> bool {
    let step = reconciler.next_step(desired, Some(&daemon.list()));
    matches!(step, Some((0, LayoutAction::Partition)))
}

fn hands_out(daemon: &Die, reconciler: &LayoutReconciler, desired: &Desired) -> usize {
    let status = reconciler.status(desired, Some(&daemon.list())).expect("a status");
    status.partitions.iter().filter(|one| one.id.is_some()).count()
}

fn write(reconciler: &mut LayoutReconciler, desired: &Desired) {
    let record = reconciler.to_write(desired).expect("the end of a run");
    reconciler.written(record);
}

#[test]
fn layout_is_handed_out_once_recorded() {
    let (daemon, mut reconciler) = (&mut Die::default(), LayoutReconciler::default());
    begun(daemon, "first", &mut reconciler);
    let desired = Die::desired(1);
    assert!(is_due(daemon, &reconciler, &desired));
    assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Pending);
    daemon.run(&mut reconciler, &desired, true);
    assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Pending);
    assert_eq!(hands_out(daemon, &reconciler, &desired), 0);

    reconciler.not_written(100);
    let step = reconciler.next_step(&desired, Some(&daemon.list()));
    assert_eq!(step, Some((100 + UNWRITTEN_RETRY_MS, LayoutAction::Record)));
    assert_eq!(reconciler.unready(&desired).expect("a reason").0, ConditionReason::StoreUnavailable);

    write(&mut reconciler, &desired);
    assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Applied);
    assert_eq!(hands_out(daemon, &reconciler, &desired), 2);
    assert_eq!((reconciler.to_write(&desired), reconciler.unready(&desired)), (None, None));
    let status = reconciler.status(&desired, Some(&daemon.list())).expect("a status");
    assert_eq!((status.ran_at, status.duration_us), (Some(10), Some(10_000)));
    assert_eq!(reconciler.next_step(&desired, Some(&daemon.list())), None);
}

#[test]
fn new_process_needs_another_run() {
    let (daemon, mut reconciler) = (&mut Die::default(), LayoutReconciler::default());
    for token in ["first", "second"] {
        begun(daemon, token, &mut reconciler);
        let desired = Die::desired(1);
        assert!(is_due(daemon, &reconciler, &desired), "{token}");
        assert_eq!(hands_out(daemon, &reconciler, &desired), 0);
        daemon.run(&mut reconciler, &desired, true);
        write(&mut reconciler, &desired);
        assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Applied);
    }
}

#[test]
fn failed_layout_waits_for_a_reason_to_retry() {
    let (daemon, mut reconciler) = (&mut Die::default(), LayoutReconciler::default());
    begun(daemon, "first", &mut reconciler);
    let desired = Die::desired(1);
    daemon.run(&mut reconciler, &desired, false);
    if let Some(record) = reconciler.to_write(&desired) {
        reconciler.written(record);
    }
    let status = reconciler.status(&desired, Some(&daemon.list())).expect("a status");
    assert_eq!((status.state, status.generation), (LayoutState::Failed, 1));
    assert_eq!(status.failure.expect("a failure").generation, 1);
    assert_eq!(reconciler.next_step(&desired, Some(&daemon.list())), None);

    let retries: [fn(&mut Die, &mut LayoutReconciler) -> i64; 4] = [
        |_, reconciler| {
            reconciler.try_again();
            1
        },
        |_, reconciler| {
            reconciler.request(2);
            2
        },
        |_, _| 2,
        |daemon, reconciler| {
            begun(daemon, "second", reconciler);
            1
        },
    ];
    for retry in retries {
        let mut reconciler = reconciler.clone();
        let generation = retry(daemon, &mut reconciler);
        let desired = Die::desired(generation);
        assert!(is_due(daemon, &reconciler, &desired));
        assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Pending);
        daemon.run(&mut reconciler, &desired, true);
        write(&mut reconciler, &desired);
        assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Applied);
        *daemon = Die::default();
    }
}
