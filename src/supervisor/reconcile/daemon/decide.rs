//! The next step towards the desired state.

use super::DaemonReconciler;
use super::phase::serves_another_user;
use crate::domain::daemon::Effective;
use crate::domain::difference::{SettingDifference, differences, drifted};
use crate::domain::drift::DriftPolicy;
use crate::domain::plan::Desired;
use crate::supervisor::reconcile::layout::progress::LayoutAction;

/// Longest time for a server to become active before another one is requested.
const SERVER_START_MS: i64 = 30_000;
/// Longest time for a requested server to be listed. A `start_server` that is sent while the daemon has not noticed the death
/// of the previous server is ignored in silence (seen on 13.0).
pub(super) const SERVER_LISTED_MS: i64 = 250;
/// Writes of the same settings in a row after which the pause of an idle daemon is kept between them.
pub(super) const EAGER_WRITES: u32 = 3;

/// Next step of a driver.
#[derive(Debug, Clone, PartialEq)]
pub enum ReconcileStep {
    /// Search for a process of an earlier manager.
    Search,
    /// Start a control process.
    Start,
    /// Stop the control process.
    Stop,
    /// Write these settings, if any, and read everything.
    Sync(Vec<SettingDifference>),
    /// Go on with the layout.
    Layout(LayoutAction),
    /// Ask for a server of this user.
    StartServer(u32),
    /// Nothing to do before this time, in unix milliseconds.
    Wait(i64),
}

impl DaemonReconciler {
    /// Returns the next step towards the desired state; `clients` is the number of connected clients.
    pub fn decide(&self, desired: &Desired, clients: usize, now: i64) -> ReconcileStep {
        if !self.searched {
            return if now < self.retry_at {
                ReconcileStep::Wait(self.retry_at)
            } else {
                ReconcileStep::Search
            };
        }
        if desired.is_observed() {
            return self.decide_observed(now);
        }
        if self.process.is_none() {
            if !desired.running {
                return ReconcileStep::Wait(i64::MAX);
            }
            return if now < self.retry_at {
                ReconcileStep::Wait(self.retry_at)
            } else {
                ReconcileStep::Start
            };
        }
        // A daemon that was started for other GPUs or users, or in another mode, is replaced once it serves nobody.
        if !desired.running
            || self.restart
            || (self.needs_restart(desired) && clients == 0 && self.seen.is_some())
        {
            return ReconcileStep::Stop;
        }
        let due = now >= self.next_poll_at() || self.poll_now;
        let Some(read) = self.seen.as_ref().filter(|_| self.wedged.is_none() && self.poll_failure.is_none())
        else {
            // The daemon was not read yet or does not answer, so it is only read.
            return self.poll_or_wait(due);
        };
        // Without its GPUs no server comes up and no setting takes effect.
        if self.needs_restart(desired) || self.lost.is_some() {
            return self.poll_or_wait(due);
        }
        self.decide_settings(desired, read, clients, due, now)
    }

    fn poll_or_wait(&self, due: bool) -> ReconcileStep {
        if due { ReconcileStep::Sync(Vec::new()) } else { ReconcileStep::Wait(self.next_poll_at()) }
    }

    /// Returns the next step for an observed daemon, which is only searched for and polled.
    fn decide_observed(&self, now: i64) -> ReconcileStep {
        if self.process.is_none() {
            return if now < self.search_at {
                ReconcileStep::Wait(self.search_at)
            } else {
                ReconcileStep::Search
            };
        }
        let due = now >= self.next_poll_at() || self.poll_now;
        self.poll_or_wait(due)
    }

    fn decide_settings(
        &self,
        desired: &Desired,
        read: &Effective,
        clients: usize,
        due: bool,
        now: i64,
    ) -> ReconcileStep {
        let wrong = self.to_write(desired, read);
        let lacks_mlopart = desired.mlopart && self.lacks_mlopart();
        // MPS keeps a server with clients until they have ended, and starts the requested one then.
        let is_slow = !(read.servers.is_empty() || lacks_mlopart && clients == 0);
        let timeout = if is_slow { SERVER_START_MS } else { SERVER_LISTED_MS };
        // A server of another user that is up by now does not answer the request: tenants came or left meanwhile.
        let starting = self.server_requested.is_some_and(|request| {
            now - request.at < timeout && (request.uid == desired.server_uid || !read.is_serving())
        });
        if !wrong.is_empty() && (self.writes < EAGER_WRITES || due) {
            return ReconcileStep::Sync(wrong);
        }
        if self.poll_now {
            // MPS itself may have replaced a server that died: none is started before the daemon was read.
            return ReconcileStep::Sync(wrong);
        }
        let serving = read.is_serving();
        let is_unread = serving && self.applied != desired.generation && self.is_complete(desired);
        if is_unread && differences(desired, read).is_empty() {
            // The settings are the same under a new generation: the daemon is ready only once they were read under it.
            return ReconcileStep::Sync(wrong);
        }
        let needs_server =
            read.servers.is_empty() || lacks_mlopart || (serves_another_user(desired, read) && clients == 0);
        if needs_server && !starting && now >= self.server_retry_at {
            return ReconcileStep::StartServer(desired.server_uid);
        }
        // Comes last, so that a client admitted to a partition finds its limits.
        let fits = wrong.is_empty() && serving;
        let left = fits.then(|| self.layout.next_step(desired, self.listed())).flatten();
        let at = left.as_ref().map_or(i64::MAX, |(at, _)| *at);
        match left {
            Some((at, step)) if now >= at => ReconcileStep::Layout(step),
            _ if due => ReconcileStep::Sync(Vec::new()),
            _ if needs_server && !starting => {
                ReconcileStep::Wait(self.server_retry_at.min(self.next_poll_at()))
            }
            _ => ReconcileStep::Wait(at.min(self.next_poll_at())),
        }
    }

    /// Returns the settings to write: all that differ, except those that others changed if the policy is only to report drift.
    fn to_write(&self, desired: &Desired, read: &Effective) -> Vec<SettingDifference> {
        let mut wrong = differences(desired, read);
        if desired.drift_policy == DriftPolicy::Report {
            let theirs = drifted(desired, read, &wrong);
            let theirs: Vec<_> =
                theirs.into_iter().filter(|(changed, _)| self.was_held(desired, changed)).collect();
            wrong.retain(|difference| theirs.iter().all(|(changed, _)| changed != difference));
        }
        wrong
    }
}
