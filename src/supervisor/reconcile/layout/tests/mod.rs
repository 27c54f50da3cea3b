//! The decisions of [`LayoutReconciler`]: those that both runtimes share here, and those of each in a file of its own.

mod partitions;
mod percentages;

use super::*;
use crate::domain::condition::ConditionReason;

/// Daemon on which a layout is made or proven.
trait Daemon {
    /// Returns its desired state.
    fn desired(&self, generation: i64) -> Desired;
    /// Starts a control process without any partitions.
    fn start(&mut self);
    /// Returns the partitions that it lists.
    fn listed(&self) -> Option<Vec<GpuPartitions>>;
    /// Performs a run to its end, from 10 to 20 ms; the run fails unless it `works`.
    fn run(&mut self, reconciler: &mut LayoutReconciler, desired: &Desired, works: bool);
}

/// Returns one daemon of each runtime.
fn daemons() -> [Box<dyn Daemon>; 2] {
    [Box::new(partitions::Die::default()), Box::new(percentages::Clients)]
}

/// Begins with a daemon in whose process nothing was done yet.
fn begun(daemon: &mut dyn Daemon, token: &str, reconciler: &mut LayoutReconciler) {
    reconciler.process_gone();
    daemon.start();
    reconciler.begin(token);
}

fn follow(daemon: &dyn Daemon, reconciler: &mut LayoutReconciler, generation: i64) -> Desired {
    let mut desired = daemon.desired(generation);
    reconciler.follow(&mut desired, 5);
    desired
}

fn state(daemon: &dyn Daemon, reconciler: &LayoutReconciler, desired: &Desired) -> LayoutState {
    reconciler.status(desired, daemon.listed().as_deref()).expect("a status").state
}

/// Returns true if a run is to begin at once.
fn is_due(daemon: &dyn Daemon, reconciler: &LayoutReconciler, desired: &Desired) -> bool {
    let step = reconciler.next_step(desired, daemon.listed().as_deref());
    matches!(step, Some((0, LayoutAction::Partition | LayoutAction::Prove(_))))
}

fn hands_out(daemon: &dyn Daemon, reconciler: &LayoutReconciler, desired: &Desired) -> usize {
    let status = reconciler.status(desired, daemon.listed().as_deref()).expect("a status");
    status.partitions.iter().filter(|one| one.id.is_some() || one.percentage.is_some()).count()
}

fn write(reconciler: &mut LayoutReconciler, desired: &Desired) {
    let record = reconciler.to_write(desired).expect("the end of a run");
    reconciler.written(record);
}

#[test]
fn layout_is_handed_out_once_recorded() {
    for mut daemon in daemons() {
        let (daemon, mut reconciler) = (daemon.as_mut(), LayoutReconciler::default());
        begun(daemon, "first", &mut reconciler);
        let desired = follow(daemon, &mut reconciler, 1);
        assert!(is_due(daemon, &reconciler, &desired));
        assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Pending);
        daemon.run(&mut reconciler, &desired, true);
        assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Pending);
        assert_eq!(hands_out(daemon, &reconciler, &desired), 0);

        reconciler.not_written(100);
        let step = reconciler.next_step(&desired, daemon.listed().as_deref());
        assert_eq!(step, Some((100 + UNWRITTEN_RETRY_MS, LayoutAction::Record)));
        assert_eq!(reconciler.unready(&desired).expect("a reason").0, ConditionReason::StoreUnavailable);

        write(&mut reconciler, &desired);
        assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Applied);
        assert_eq!(hands_out(daemon, &reconciler, &desired), 2);
        assert_eq!((reconciler.to_write(&desired), reconciler.unready(&desired)), (None, None));
        let status = reconciler.status(&desired, daemon.listed().as_deref()).expect("a status");
        assert_eq!((status.ran_at, status.duration_us), (Some(10), Some(10_000)));
        assert_eq!(reconciler.next_step(&desired, daemon.listed().as_deref()), None);
    }
}

#[test]
fn new_process_needs_another_run() {
    for mut daemon in daemons() {
        let (daemon, mut reconciler) = (daemon.as_mut(), LayoutReconciler::default());
        for token in ["first", "second"] {
            begun(daemon, token, &mut reconciler);
            let desired = follow(daemon, &mut reconciler, 1);
            assert!(is_due(daemon, &reconciler, &desired), "{token}");
            assert_eq!(hands_out(daemon, &reconciler, &desired), 0);
            daemon.run(&mut reconciler, &desired, true);
            write(&mut reconciler, &desired);
            assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Applied);
        }
    }
}

#[test]
fn failed_layout_waits_for_a_reason_to_retry() {
    for mut daemon in daemons() {
        let (daemon, mut reconciler) = (daemon.as_mut(), LayoutReconciler::default());
        begun(daemon, "first", &mut reconciler);
        let desired = follow(daemon, &mut reconciler, 1);
        daemon.run(&mut reconciler, &desired, false);
        if let Some(record) = reconciler.to_write(&desired) {
            reconciler.written(record);
        }
        let status = reconciler.status(&desired, daemon.listed().as_deref()).expect("a status");
        assert_eq!((status.state, status.generation), (LayoutState::Failed, 1));
        assert_eq!(status.failure.expect("a failure").generation, 1);
        assert_eq!(reconciler.next_step(&desired, daemon.listed().as_deref()), None);

        let retries: [fn(&mut dyn Daemon, &mut LayoutReconciler) -> i64; 4] = [
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
            let desired = follow(daemon, &mut reconciler, generation);
            assert!(is_due(daemon, &reconciler, &desired));
            assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Pending);
            daemon.run(&mut reconciler, &desired, true);
            write(&mut reconciler, &desired);
            assert_eq!(state(daemon, &reconciler, &desired), LayoutState::Applied);
            daemon.start();
        }
    }
}
