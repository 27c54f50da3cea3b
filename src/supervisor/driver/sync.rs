//! One poll of a driver's daemon with the settings that it writes first, and the request for a server.

use tokio::time::Instant;

use super::Driver;
use crate::domain::difference::SettingDifference;
use crate::domain::plan::Desired;
use crate::mps::{Command, SessionError};
use crate::supervisor::observe::isolation;
use crate::supervisor::observe::mlopart::MlopartReading;
use crate::supervisor::observe::poll::{self, PollTarget};
use crate::supervisor::observe::poll_outcome::PollOutcome;

impl Driver {
    pub(super) async fn sync(&mut self, desired: &Desired, wrong: &[SettingDifference]) {
        let serving = *self.fresh.borrow_and_update();
        let (began, deadline) = (self.now(), self.timeout());
        self.counts.sessions.polls += 1;
        for difference in wrong {
            tracing::info!(daemon = %desired.name, %difference, "writing a setting");
        }
        let process = self.state.process.as_ref();
        let partitioned = process.map_or(&[][..], |process| process.partitioned());
        let (outcome, clients) = poll::sync(
            PollTarget {
                control: &*self.control,
                partitioned,
                deadline,
                server_status: self.context.capability.server_status(),
                mlopart: MlopartReading::of(
                    &self.context.capability,
                    desired.mlopart,
                    self.state.seen.as_ref().map_or(&[], |effective| &effective.servers),
                ),
                inventory: &self.context.inventory,
                handouts: &self.context.handouts,
            },
            &mut self.logs,
            desired,
            wrong,
            &mut self.written,
            began,
        )
        .await;
        if matches!(outcome, PollOutcome::Seen(_)) {
            self.clients = clients;
        }
        self.observe_isolation();
        let failed = (!matches!(outcome, PollOutcome::Seen(_))).then(|| outcome.clone());
        self.log_failure(desired, failed.as_ref());
        let before = self.state.applied;
        let check_interval = self.check_interval(desired);
        self.state.polled(outcome, !wrong.is_empty(), desired, self.now(), check_interval);
        match failed {
            Some(outcome) => {
                self.counts.sessions.failed += 1;
                self.explain(outcome, began).await;
            }
            None => self.observe_surroundings(desired),
        }
        if self.logs.take_woken() {
            self.state.wake(self.now());
        }
        if self.state.applied != before
            && let Some(mut incarnation) = self.incarnation.clone()
        {
            incarnation.applied = self.state.applied;
            self.record(desired, incarnation).await;
        }
        self.update_planned_move(desired);
        self.read = Some((serving, self.state.poll_failure.clone()));
    }

    /// Logs the reason why a poll failed, once until it changes: a daemon may be silent for hours.
    fn log_failure(&mut self, desired: &Desired, failed: Option<&PollOutcome>) {
        if self.logged_failure.as_ref() == failed {
            return;
        }
        if let Some(PollOutcome::Unanswered(command)) = failed {
            tracing::warn!(daemon = %desired.name, %command, "a command was not answered");
        } else if let Some(why) = failed.and_then(PollOutcome::failure) {
            tracing::warn!(daemon = %desired.name, %why, "could not be read");
        }
        self.logged_failure = failed.cloned();
    }

    pub(super) async fn start_server(&mut self, desired: &Desired, uid: u32) {
        tracing::info!(daemon = %desired.name, uid, "asking for a server");
        let deadline = Instant::now() + self.context.deadline;
        let request = async {
            let mut session = self.control.session(deadline)?;
            session.send(&Command::StartServer { uid, mlopart: desired.mlopart }).await?;
            session.close().await;
            Ok::<_, SessionError>(())
        };
        // A session that breaks off may still have started a server, which the next poll shows.
        if let Err(error) = request.await {
            tracing::debug!(daemon = %desired.name, %error, "asking for a server was not answered");
        }
        self.state.server_requested(uid, self.now());
    }

    /// Determines where the control process actually runs, also for an adopted one.
    fn observe_isolation(&mut self) {
        let pid = self.state.process.as_ref().map(|process| process.identity.pid);
        self.isolation =
            pid.map(|pid| isolation::observe(&self.context.scopes, pid, self.refused.as_deref()));
    }
}
