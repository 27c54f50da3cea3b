//! The phase of a daemon, and the reasons why it is blocked.

use super::{Blocker, DaemonReconciler, FAILURE_WINDOW_MS};
use crate::domain::daemon::{Effective, Phase};
use crate::domain::difference::differences;
use crate::domain::plan::Desired;

/// Number of failures in the window from which the phase is a crash loop.
const CRASH_LOOP: usize = 5;
impl DaemonReconciler {
    /// Returns the daemon's phase.
    pub fn phase(&self, desired: &Desired, now: i64) -> Phase {
        let window = self.failures.iter().filter(|at| now - **at < FAILURE_WINDOW_MS).count();
        match (&self.process, &self.blocker) {
            // A blocked start does not matter if the daemon is not to run.
            (None, _) if self.searched && !desired.running && !desired.is_observed() => Phase::Stopped,
            (_, Some(_)) => Phase::Blocked,
            _ if !self.searched => Phase::Unknown,
            (None, _) if desired.is_observed() => Phase::Absent,
            (Some(_), _) if desired.is_observed() && self.wedged.is_some() => Phase::Wedged,
            (Some(_), _) if desired.is_observed() => Phase::Observed,
            (None, _) if window >= CRASH_LOOP => Phase::CrashLoop,
            (None, _) if now < self.retry_at => Phase::BackOff,
            (None, _) => Phase::Starting,
            (Some(_), _) if !desired.running || self.restart => Phase::Stopping,
            (Some(_), _) if self.lost.is_some() => Phase::Blocked,
            (Some(_), _) if self.wedged.is_some() => Phase::Wedged,
            (Some(_), _) if self.layout_failure(desired).is_some() => Phase::Blocked,
            (Some(_), _) if self.is_ready(desired) => Phase::Ready,
            (Some(_), _) => Phase::Applying,
        }
    }

    /// Returns true if this generation was read back from this process with a server that takes clients.
    pub fn is_ready(&self, desired: &Desired) -> bool {
        self.applied == desired.generation
            && self.wedged.is_none()
            && self.poll_failure.is_none()
            && !self.needs_restart(desired)
            && self.lost.is_none()
            && self.is_complete(desired)
            && self.seen.as_ref().is_some_and(|effective| {
                effective.is_serving()
                    && !serves_another_user(desired, effective)
                    && differences(desired, effective).is_empty()
            })
    }

    /// Returns the reason why it is unknown whether a process exists; it must not be assumed that there is none.
    pub fn doubt(&self) -> Option<Blocker> {
        self.blocker.clone().filter(|_| !self.searched)
    }

    /// Returns the reason why the daemon is blocked now.
    pub fn current_blocker(&self, desired: &Desired, phase: Phase) -> Option<Blocker> {
        let blocker = self.blocker.clone().or_else(|| self.lost.clone());
        blocker.or_else(|| self.layout_failure(desired)).filter(|_| phase == Phase::Blocked)
    }

    /// Returns the reason why the layout is not in force in a process that could hold it.
    fn layout_failure(&self, desired: &Desired) -> Option<Blocker> {
        if self.process.is_none() || self.needs_restart(desired) {
            return None;
        }
        let progress = self.layout.progress(desired, self.listed());
        let failure = self.layout.failure(desired, &progress)?;
        Some(Blocker { reason: failure.reason(), message: failure.message })
    }
}

/// Returns true if a server of another user blocks the desired one: clients of the desired user would wait until all its
/// clients are gone (FACTS.md, "Starting, stopping, dying"). Without tenants any user will do.
pub fn serves_another_user(desired: &Desired, effective: &Effective) -> bool {
    let another = |uid: u32| uid != desired.server_uid;
    !desired.multi_user
        && !desired.uids.is_empty()
        && effective.servers.iter().any(|server| server.uid.is_some_and(another))
}
