//! Publication of a daemon's state, and of events for its changes.

use std::sync::Arc;
use std::time::Duration;

use super::{Driver, layout};
use crate::domain::FilePlace;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::daemon::{DaemonStatus, Phase};
use crate::domain::event::DomainEvent;
use crate::domain::fault::GpuError;
use crate::domain::plan::Desired;
use crate::host::kernel_log::{self, LoggedXid, kernel_address};
use crate::supervisor::observe::isolation;
use crate::supervisor::report::conditions::status;
use crate::supervisor::report::event_detector::Snapshot;
use crate::supervisor::report::event_queue::{DaemonObservations, Observation};

/// Most processes that a condition names.
const MOST_NAMED: usize = 4;
/// Largest distance between the time of a fault in server.log and the driver's messages about it.
const AROUND_FAULT: Duration = Duration::from_secs(2);
/// Largest plausible age of a fault. A greater one comes from a clock of another zone or a log that was read late, and counts as this.
const LONGEST_DELAY_MS: i64 = 5 * 60 * 1000;
/// Most messages of the driver that a fault lists.
const MOST_ERRORS: usize = 16;

impl Driver {
    pub(super) fn publish(&mut self, desired: &Desired) {
        let (pipe, log) = (&self.pipe_directory, &self.log_directory);
        let now = self.now();
        self.counts.sessions.control_processes = self.control.calls().processes();
        self.counts.sessions.retried = self.control.calls().turned_away();
        let mut status = status(&self.state, desired, &self.counts, pipe, log, now);
        self.name_other_users(desired, &mut status);
        self.modes.show(&mut status);
        status.conditions.extend(self.foreign_conditions(desired));
        status.conditions.extend(self.unguarded_defaults(desired));
        status.conditions.extend(self.keep_closed(desired));
        if let Some(isolation) = self.isolation.as_ref().filter(|_| self.state.process.is_some()) {
            status.conditions.extend(isolation::condition(&self.context.scopes, isolation));
            status.isolation = Some(isolation.clone());
        }
        // A daemon that does not run has no clients, so no bypass is reported.
        status.conditions.extend(self.bypasses.condition(desired).filter(|_| self.state.process.is_some()));
        let idle = matches!(
            status.phase,
            Phase::Stopped | Phase::BackOff | Phase::CrashLoop | Phase::Blocked | Phase::Absent
        );
        let unreadable = self.state.process.is_none() && idle;
        let requested = *self.fresh.borrow();
        let (blocker, tried) = (self.state.current_blocker(desired, status.phase), self.tried);
        let read = self.read.take();
        let polled = read.as_ref().is_some_and(|(_, failed)| failed.is_none());
        let snapshot = Snapshot {
            desired,
            status: &status,
            clients: &self.clients,
            poll_failure: self.state.poll_failure.as_ref(),
            polled,
        };
        let mut observations = self.event_detector.detect(&snapshot, self.logs.server_log_events());
        // Verifications of the manager are nobody's clients: they have events of their own.
        let prober = &self.context.prober;
        observations.retain(|observation| match observation {
            Observation::ClientArrived(client) => !client.ancestors.iter().any(|one| prober.is_own(one.pid)),
            Observation::UnobservedClient(visit) => !prober.is_own(visit.pid),
            _ => true,
        });
        self.add_kernel_report(desired, &mut observations);
        self.add_read_position(&mut observations);
        // Comes before the readiness of the daemon is published.
        self.hand_out(desired, status.phase);
        let mut is_new = false;
        let published = self.context.publishing();
        // Published together with the results of the poll, since a waiter may look at any moment.
        self.observed.send_modify(|observed| {
            if let Some((served, failed)) = read {
                (observed.served, observed.failed) = (served, failed);
            }
            if unreadable && observed.served < requested {
                // No process can be polled: the published state is all there is to know, unless a process may exist.
                observed.served = requested;
                observed.failed = self.state.doubt();
            }
            layout::log_drift(&desired.name, observed.status.layout.as_ref(), status.layout.as_ref());
            observed.status = Arc::new(status);
            if *observed.clients != self.clients {
                observed.clients = Arc::new(self.clients.clone());
                is_new = true;
            }
            (observed.blocker, observed.tried) = (blocker, tried);
        });
        drop(published);
        if is_new {
            self.context.memory_readings.send_modify(|readings| *readings += 1);
        }
        // Comes after the publication, so that a client named by an event is already in the list.
        self.context.events.record(DaemonObservations {
            daemon: desired.name.clone(),
            at: now,
            observations,
        });
    }

    /// Names the processes that keep a daemon from serving its user.
    fn name_other_users(&self, desired: &Desired, status: &mut DaemonStatus) {
        let ready = status.conditions.iter_mut().find(|ready| ready.reason == ConditionReason::OtherUser);
        let Some(ready) = ready else { return };
        let others = self.clients.iter().filter_map(|client| {
            let uid = client.uid.filter(|uid| *uid != desired.server_uid)?;
            Some(format!("process {} of uid {uid}", client.id.pid))
        });
        let others: Vec<String> = others.take(MOST_NAMED).collect();
        if !others.is_empty() {
            ready.message = format!("{}; connected: {}", ready.message, others.join(", "));
        }
    }

    /// Warns that clients of a daemon can change its default limits, as an old driver allows.
    fn unguarded_defaults(&self, desired: &Desired) -> Option<Condition> {
        let open = self.state.process.is_some()
            && !self.context.capability.guarded_defaults()
            && !desired.is_observed();
        open.then(|| {
            let message = format!(
                "MPS of CUDA {} lets every client change the daemon's default limits: such a change is drift, found by the daemon's log and \
                 restored unless drift_policy is report, and holds for clients that connect meanwhile; a driver from 550 (CUDA 12.4) on refuses it",
                self.context.capability.cuda_version()
            );
            ConditionType::AnyUserMaySetDefaults.problem(ConditionReason::OldDriver, message)
        })
    }

    /// Adds the GPU errors that the driver reported at the time of a fault.
    ///
    /// The kernel log is read when a fault is reported and not followed: this costs some milliseconds then, instead of a
    /// descriptor and a wakeup for each message.
    fn add_kernel_report(&self, desired: &Desired, observations: &mut [Observation]) {
        let faults = observations.iter_mut().filter_map(|observation| match observation {
            Observation::Event(event) => match &mut event.event {
                DomainEvent::ServerFault(fault) => Some(fault),
                _ => None,
            },
            _ => None,
        });
        for fault in faults {
            let age = self.now() - fault.logged_at.unwrap_or_else(|| self.now());
            let age = Duration::from_millis(age.clamp(0, LONGEST_DELAY_MS).unsigned_abs());
            let presence = self.gpu_presence.borrow();
            let addresses: Vec<String> =
                presence.pci_addresses(&desired.gpus).into_iter().map(kernel_address).collect();
            match kernel_log::xids(&self.context.kernel_log) {
                Err(error) => {
                    let log = self.context.kernel_log.display();
                    fault.report.kernel_log_error = Some(format!("{log} cannot be read: {error}"));
                }
                Ok(logged) => {
                    let is_of_it = |xid: &&LoggedXid| {
                        xid.age <= age + AROUND_FAULT
                            && xid.age + AROUND_FAULT >= age
                            && addresses.contains(&xid.pci)
                    };
                    let errors =
                        logged.iter().filter(is_of_it).filter_map(|xid| GpuError::parse(&xid.report));
                    for error in errors.take(MOST_ERRORS) {
                        if !fault.report.gpu_errors.contains(&error) {
                            fault.report.gpu_errors.push(error);
                        }
                    }
                }
            }
        }
    }

    /// Adds the position up to which server.log was read, together with its events, or when the log starts over.
    fn add_read_position(&mut self, observations: &mut Vec<Observation>) {
        let Some(place) = self.logs.read_to() else { return };
        let emptied = |before: FilePlace| before.inode != place.inode || before.offset > place.offset;
        let due = !observations.is_empty() || self.read_to.is_none_or(emptied);
        if due && self.read_to != Some(place) {
            observations.push(Observation::ReadTo(place));
            self.read_to = Some(place);
        }
    }
}
