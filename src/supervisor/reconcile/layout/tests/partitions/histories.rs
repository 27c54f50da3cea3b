//! Random histories of one daemon: whatever fails, dies, is retried or undone, nothing is handed out whose ID differs from
//! the recorded one.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::domain::layout::active::{AppliedLayout, LayoutChange, Previous};

/// Partition sizes of each version of the layout.
const VERSIONS: [&[u32]; 4] = [&[7, 3], &[2, 5, 3], &[7, 3, 2], &[4]];

/// Event in the history of the daemon.
#[derive(Debug, Clone, Copy)]
enum Happening {
    /// An operator or a script applies a version.
    Apply {
        version: usize,
        recreate: bool,
        fault: Option<(Fault, usize)>,
        /// Fault while the change is undone.
        fault_back: Option<(Fault, usize)>,
        /// True if it is cancelled although it succeeded.
        cancelled: bool,
    },
    /// Its control process dies, and the next one has the GPU of this die.
    DaemonDies { skew: usize },
    /// The manager dies and another one starts.
    ManagerDies,
    /// The daemon is started again on request, or a script retries.
    Retry,
    /// An outsider removes a partition.
    OutsiderRemoves(usize),
    /// An outsider makes a partition.
    OutsiderAdds(u32),
}

/// Fault of a command of a run.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Refused,
    DaemonDies,
    ManagerDies,
}

fn fault() -> impl Strategy<Value = Option<(Fault, usize)>> {
    let fault = prop_oneof![Just(Fault::Refused), Just(Fault::DaemonDies), Just(Fault::ManagerDies)];
    option::of((fault, 0..8_usize))
}

fn happening() -> impl Strategy<Value = Happening> {
    let apply = (0..VERSIONS.len(), any::<bool>(), fault(), fault(), prop::bool::weighted(0.2)).prop_map(
        |(version, recreate, fault, fault_back, cancelled)| Happening::Apply {
            version,
            recreate,
            fault,
            fault_back,
            cancelled,
        },
    );
    prop_oneof![
        4 => apply,
        2 => (0..3_usize).prop_map(|skew| Happening::DaemonDies { skew }),
        1 => Just(Happening::ManagerDies),
        2 => Just(Happening::Retry),
        1 => (0..4_usize).prop_map(Happening::OutsiderRemoves),
        1 => (1..4_u32).prop_map(Happening::OutsiderAdds),
    ]
}

/// Daemon with its driver and its records in the store.
struct World {
    die: Die,
    process: u32,
    reconciler: LayoutReconciler,
    desired: Desired,
    generation: i64,
    active: Option<ActiveLayout>,
    change: Option<LayoutChange>,
    applied: Option<AppliedLayout>,
    run: Option<PartitionRun>,
    /// Version that an operator put in force and the recorded IDs of its partitions, by this test's own account.
    accepted: Option<(u32, Vec<PartitionId>)>,
    handed_out: usize,
    withheld: usize,
}

fn layout(version: u32) -> Layout {
    let index = usize::try_from(version).expect("small") - 1;
    let add = |(number, chunks): (usize, &u32)| serde_json::json!({"add": {"gpu": 0, "partition": format!("p{number}"), "chunks": chunks}});
    let steps: Vec<_> = VERSIONS[index].iter().enumerate().map(add).collect();
    serde_json::from_value(serde_json::json!({ "steps": steps })).expect("a layout")
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            die: Die::default(),
            process: 0,
            reconciler: LayoutReconciler::default(),
            desired: bare(),
            generation: 1,
            active: None,
            change: None,
            applied: None,
            run: None,
            accepted: None,
            handed_out: 0,
            withheld: 0,
        };
        world.reconciler.begin(&world.token());
        world
    }

    fn token(&self) -> String {
        self.process.to_string()
    }

    /// Publishes the desired state that follows from the store.
    fn publish(&mut self) {
        let desired = |active: &ActiveLayout| {
            let layout = layout(active.version);
            DesiredLayout::of(active, &layout, self.applied.as_ref(), self.change.as_ref(), &[])
        };
        let layout = self.active.as_ref().map(|active| desired(active).expect("it fits"));
        self.desired = Desired { generation: self.generation, layout, ..bare() };
    }

    fn daemon_dies(&mut self, skew: usize) {
        self.die = Die { skew, ..Die::default() };
        self.process += 1;
        self.reconciler.begin(&self.token());
    }

    fn manager_dies(&mut self) {
        self.reconciler = LayoutReconciler::remembered(self.run.clone());
        self.reconciler.begin(&self.token());
        self.publish();
    }

    /// Acts as a driver until nothing is left to do.
    fn drive(&mut self, mut fault: Option<(Fault, usize)>) {
        for _ in 0..20 {
            let present = self.die.list();
            self.reconciler.polled(&self.desired, Some(&present), 0);
            self.check();
            if self.reconciler.to_write(&self.desired).is_some() {
                self.write_end();
                continue;
            }
            let LayoutProgress::Due(plan) = self.reconciler.progress(&self.desired, Some(&present)) else {
                return;
            };
            let run = self.reconciler.before(&self.token(), &present);
            self.run = Some(run.clone());
            let mut execution = self.reconciler.began(run, &plan, &self.desired, &present, 0);
            let mut sent = 0;
            let mut lost = false;
            while let Some(step) = execution.next() {
                let hit = fault.filter(|(_, at)| *at == sent).map(|(what, _)| what);
                sent += 1;
                if hit.is_some() {
                    fault = None;
                }
                let answer = match hit {
                    Some(Fault::Refused) => CommandAnswer::Refused("no".into()),
                    Some(Fault::DaemonDies) => {
                        execution.unreachable("it died".into());
                        lost = true;
                        break;
                    }
                    Some(Fault::ManagerDies) => {
                        // The command was sent, and its result is lost.
                        self.die.do_it(&step.action, step.chunks);
                        self.manager_dies();
                        return self.drive(None);
                    }
                    None => self.die.do_it(&step.action, step.chunks),
                };
                execution.answered(&answer, &self.die.list(), 1);
                self.reconciler.commands_sent(execution.executed_steps());
                self.check();
            }
            self.reconciler.ended(execution.outcome(), &self.desired, 1, 0);
            if lost {
                let skew = self.die.skew;
                self.daemon_dies(skew);
            }
        }
        panic!("it never comes to rest: {:?}", self.reconciler);
    }

    /// Writes the end of a run as the store does.
    fn write_end(&mut self) {
        let run = self.reconciler.to_write(&self.desired).expect("a run");
        if let Some(active) = &self.active {
            let server_log =
                AppliedLayout::after(&run, active, &layout(active.version), self.applied.as_ref());
            if let Some(server_log) = server_log.expect("it fits") {
                self.applied = Some(server_log);
            }
        }
        self.run = Some(run.clone());
        self.reconciler.written(run);
        self.accept();
    }

    /// Accepts an operator's version that completed, with its recorded IDs. If a change was cancelled, these are the IDs of
    /// an earlier run, and an outsider may have removed such a partition for the moment.
    fn accept(&mut self) {
        let (Some(active), Some(run)) = (&self.active, &self.run) else { return };
        let known = self.accepted.as_ref().is_some_and(|(version, _)| *version == active.version);
        let ended =
            run.layout == Some(active.version_ref()) && run.before.is_none() && run.degraded.is_empty();
        if self.change.is_some() && !known && ended {
            self.accepted = Some((active.version, run.record.ids()));
        }
    }

    fn apply(
        &mut self,
        version: usize,
        recreate: bool,
        fault: Option<(Fault, usize)>,
        fault_back: Option<(Fault, usize)>,
        cancelled: bool,
    ) {
        let (before, accepted) = (self.active.clone(), self.accepted.clone());
        let previous = Previous { layout: before, applied: self.applied.clone() };
        self.change = Some(LayoutChange { previous: previous.clone(), recreate });
        self.active = Some(ActiveLayout {
            name: LayoutName::parse("main").expect("a name"),
            version: u32::try_from(version).expect("small") + 1,
            gpu_map: [(0, uuid())].into(),
            drift_policy: PartitionPolicy::Report,
        });
        self.generation += 1;
        self.publish();
        self.reconciler.request(self.generation);
        self.drive(fault);
        let status = self.reconciler.status(&self.desired, Some(&self.die.list())).expect("a status");
        if status.state == LayoutState::Failed || cancelled {
            self.accepted = accepted;
            self.change = Some(LayoutChange { previous: previous.clone(), recreate: false });
            self.active = previous.layout;
            self.applied = previous.applied;
            self.generation += 1;
            self.publish();
            self.reconciler.request(self.generation);
            self.drive(fault_back);
        }
        self.change = None;
        self.generation += 1;
        self.publish();
        self.drive(None);
    }

    /// Checks that each partition that is handed out is listed, and has the ID that was recorded when an operator put its version in force.
    fn check(&mut self) {
        let listed = self.die.list();
        let Some(status) = self.reconciler.status(&self.desired, Some(&listed)) else { return };
        for (number, one) in status.partitions.iter().enumerate() {
            let Some(id) = &one.id else {
                self.withheld += 1;
                continue;
            };
            self.handed_out += 1;
            assert!(listed[0].get(id).is_some(), "{id} is not listed");
            let (version, ids) = self.accepted.as_ref().expect("something was accepted");
            assert_eq!((Some(*version), &ids[number]), (status.version, id), "{status:?}");
        }
    }

    fn happens(&mut self, what: Happening) {
        match what {
            Happening::Apply { version, recreate, fault, fault_back, cancelled } => {
                self.apply(version, recreate, fault, fault_back, cancelled);
            }
            Happening::DaemonDies { skew } => self.daemon_dies(skew),
            Happening::ManagerDies => self.manager_dies(),
            Happening::Retry => self.reconciler.try_again(),
            Happening::OutsiderRemoves(number) if number < self.die.partitions.len() => {
                self.die.partitions.remove(number);
            }
            Happening::OutsiderRemoves(_) => {}
            Happening::OutsiderAdds(chunks) => {
                if self.die.list()[0].free_chunks >= chunks {
                    self.die.add(chunks);
                }
            }
        }
        self.drive(None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 768, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn only_recorded_ids_are_handed_out(history in vec(happening(), 1..12)) {
        let mut world = World::new();
        for what in history {
            world.happens(what);
        }
    }
}

#[test]
fn histories_reach_both_outcomes() {
    let apply = |version, fault| Happening::Apply {
        version,
        recreate: true,
        fault,
        fault_back: None,
        cancelled: false,
    };
    let mut world = World::new();
    world.happens(apply(0, None));
    let before = world.handed_out;
    assert!(before > 0, "a layout in force is handed out");
    world.happens(Happening::DaemonDies { skew: 1 });
    for retry in
        [apply(0, None), Happening::Retry, apply(2, Some((Fault::Refused, 0))), Happening::ManagerDies]
    {
        world.happens(retry);
    }
    assert_eq!(world.handed_out, before, "no retry opens it");
    assert!(world.withheld > 0);
    world.happens(apply(1, None));
    assert!(world.handed_out > before, "another version is accepted as it comes");
}

#[test]
fn cancelled_version_is_reapplied_after_external_change() {
    let apply = |version, cancelled| Happening::Apply {
        version,
        recreate: cancelled,
        fault: None,
        fault_back: None,
        cancelled,
    };
    let mut world = World::new();
    for what in [apply(1, false), apply(0, true), Happening::OutsiderRemoves(1), apply(0, false)] {
        world.happens(what);
    }
}
