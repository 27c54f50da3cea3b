//! Changes of a daemon's state by a poll.

use super::decide::SERVER_LISTED_MS;
use super::phase::serves_another_user;
use super::{DaemonReconciler, PollInterval, SERVER_POLL_MS};
use crate::domain::daemon::{Effective, Server};
use crate::domain::difference::{SettingDifference, differences, drifted};
use crate::domain::drift::Drifted;
use crate::domain::plan::Desired;
use crate::supervisor::observe::evidence::DiagnosisEvidence;
use crate::supervisor::observe::poll_outcome::PollOutcome;
use crate::supervisor::reconcile::diagnosis;
use crate::supervisor::reconcile::wedge::WedgeDetector;

impl DaemonReconciler {
    /// Takes the outcome of a poll; `wrote` is true if it wrote settings first.
    pub fn polled(
        &mut self,
        outcome: PollOutcome,
        wrote: bool,
        desired: &Desired,
        now: i64,
        interval: PollInterval,
    ) {
        self.poll_now = false;
        self.debounce.polled(now);
        self.writes = if wrote { self.writes + 1 } else { self.writes };
        match outcome {
            PollOutcome::Seen(mut read) => {
                self.wedged = None;
                self.poll_failure = None;
                self.silence = WedgeDetector::default();
                self.keep_users(&mut read);
                self.note_drift(desired, &read, wrote, now);
                if !differences(desired, &read).iter().any(SettingDifference::is_default) {
                    self.defaults_held = desired.generation;
                }
                let serving = read.is_serving();
                if serving && !serves_another_user(desired, &read) {
                    self.server_requested = None;
                    self.forget_failed_servers();
                }
                if read.servers.is_empty()
                    && self.server_requested.is_some_and(|request| now - request.at >= SERVER_LISTED_MS)
                {
                    self.server_ended(None, now);
                }
                let settings = desired.is_observed() || (serving && differences(desired, &read).is_empty());
                self.seen = Some(read);
                if settings {
                    self.writes = 0;
                }
                if settings && self.is_complete(desired) {
                    self.applied = desired.generation;
                }
                let present = self.seen.as_ref().and_then(|effective| effective.partitions.as_deref());
                self.layout.polled(desired, present, now);
                let starting = self.server_requested.is_some_and(|request| {
                    !serving && (now - request.at < SERVER_LISTED_MS || !self.lacks_mlopart())
                });
                self.next_poll = now + if starting { SERVER_POLL_MS } else { interval.0 };
            }
            failed => {
                self.poll_failure = diagnosis::name(&failed, &DiagnosisEvidence::default());
                if let PollOutcome::Unanswered(command) = failed {
                    self.wedged = Some(command);
                }
                self.next_poll = now + i64::from(self.timings.hung_poll_ms);
            }
        }
    }

    /// Returns true if this setting was read back in a generation that has it: another program has changed it since.
    pub(super) fn was_held(&self, desired: &Desired, difference: &SettingDifference) -> bool {
        let with_server = desired.holds_since(self.applied);
        let without = desired.holds_since(self.defaults_held) && difference.is_default();
        // A daemon that is only observed has no desired values.
        !desired.is_observed() && (with_server || without)
    }

    /// Counts settings that were read back and were changed since. A poll that finds the same drift as the one before finds
    /// nothing new, unless the settings had been restored in between.
    fn note_drift(&mut self, desired: &Desired, effective: &Effective, wrote: bool, now: i64) {
        let mut differences = differences(desired, effective);
        differences.retain(|difference| self.was_held(desired, difference));
        let mut drift: Vec<Drifted> =
            drifted(desired, effective, &differences).into_iter().map(|(_, drifted)| drifted).collect();
        if desired.mlopart && !desired.is_observed() && desired.holds_since(self.applied) {
            let lacking = effective.servers.iter().filter(|server| server.lacks_mlopart());
            drift.extend(lacking.map(|server| Drifted {
                setting: format!("device kind of server {}", server.pid),
                desired: "MLOPart device".to_owned(),
                read: "whole GPU".to_owned(),
            }));
        }
        let is_known = self.drift.present && !wrote && self.drift.last == drift;
        self.drift.present = !drift.is_empty();
        if self.drift.present && !is_known {
            self.drift.count += 1;
            self.drift.last_at = Some(now);
            self.drift.last = drift;
        }
    }

    /// Keeps the known user of a server when the log no longer shows it.
    fn keep_users(&self, effective: &mut Effective) {
        let earlier = self.seen.iter().flat_map(|earlier| &earlier.servers);
        for previous in earlier.filter(|previous| previous.uid.is_some()) {
            let same =
                |server: &&mut Server| (server.pid, server.start_time) == (previous.pid, previous.start_time);
            if let Some(server) = effective.servers.iter_mut().find(same) {
                server.uid = server.uid.or(previous.uid);
            }
        }
    }
}
