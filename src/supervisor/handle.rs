//! A cheap handle to a driver, for other tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::blocker::Blocker;
use super::observed::Observed;
use super::requests::{DriverRequest, TerminateError, Terminating, Termination, unmanaged};
use crate::domain::DaemonName;
use crate::domain::client::{ClientId, StoppedPolicy};
use crate::domain::condition::{ConditionReason, ConditionType};
use crate::domain::daemon::{DaemonStatus, Phase};
use crate::domain::plan::Desired;
use crate::metrics::control::Commands;

/// Reason why no fresh poll was possible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FreshError {
    /// The poll failed.
    #[error("daemon {0} could not be read: {1}")]
    Failed(DaemonName, Blocker),
    /// No poll ended in time; the one before may explain why.
    #[error("daemon {daemon} was not read within {}{}", seconds(*.timeout), .before.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Late {
        /// The daemon.
        daemon: DaemonName,
        /// Time for which the poll was awaited.
        timeout: Duration,
        /// Reason why the poll before failed.
        before: Option<Blocker>,
    },
    /// The driver has ended.
    #[error("daemon {0} is no longer managed")]
    Gone(DaemonName),
}

impl FreshError {
    /// Returns the reason for the failure, which names no process or user.
    pub fn reason(&self) -> Option<ConditionReason> {
        match self {
            Self::Failed(_, why) | Self::Late { before: Some(why), .. } => Some(why.reason),
            Self::Late { before: None, .. } | Self::Gone(_) => None,
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// A handle to one driver.
#[derive(Clone)]
pub struct Handle {
    pub(super) link: Arc<DriverLink>,
}

pub(super) struct DriverLink {
    pub(super) desired: watch::Sender<Desired>,
    pub(super) observed: watch::Receiver<Observed>,
    pub(super) fresh: watch::Sender<u64>,
    pub(super) jobs: mpsc::Sender<DriverRequest>,
    pub(super) grace_s: AtomicU32,
    pub(super) stop_driver: CancellationToken,
    pub(super) commands: Arc<Commands>,
}

impl Handle {
    /// Returns the current desired generation.
    pub fn generation(&self) -> i64 {
        self.link.desired.borrow().generation
    }

    fn name(&self) -> DaemonName {
        self.link.desired.borrow().name.clone()
    }

    fn gone(&self) -> FreshError {
        FreshError::Gone(self.name())
    }

    /// Returns the current desired state.
    pub fn desired(&self) -> Desired {
        self.link.desired.borrow().clone()
    }

    /// Returns the counts and times of commands to the daemon.
    pub fn commands(&self) -> Arc<Commands> {
        Arc::clone(&self.link.commands)
    }

    /// Returns the user whose server is desired.
    pub fn server_uid(&self) -> u32 {
        self.link.desired.borrow().server_uid
    }

    /// Returns the last observation.
    pub fn observed(&self) -> Observed {
        self.of_observed(Observed::clone)
    }

    /// Returns a part of the last observation.
    pub fn of_observed<T>(&self, part: impl Fn(&Observed) -> T) -> T {
        part(&self.link.observed.borrow())
    }

    /// Returns the last observation if it is no older than `age` at this time and of the newest generation; else polls the daemon.
    pub async fn aged(&self, age: Duration, now: i64, timeout: Duration) -> Result<Observed, FreshError> {
        let observed = self.observed();
        let read_at = observed.status.effective.as_ref().map(|effective| effective.observed_at);
        let is_young = read_at.is_some_and(|at| u128::from(now.abs_diff(at)) < age.as_millis());
        if is_young && observed.failed.is_none() && observed.follows >= self.generation() {
            Ok(observed)
        } else {
            self.fresh(timeout).await
        }
    }

    /// Requests a poll that begins after this call, and waits for it; all who wait at the same time share one.
    pub async fn fresh(&self, timeout: Duration) -> Result<Observed, FreshError> {
        let mut request = 0;
        self.link.fresh.send_modify(|requests| {
            *requests += 1;
            request = *requests;
        });
        let mut observed = self.link.observed.clone();
        let observed =
            tokio::time::timeout(timeout, observed.wait_for(|observed| observed.served >= request)).await;
        let observed = match observed {
            Ok(observed) => observed.map_err(|_| self.gone())?.clone(),
            Err(_) => {
                let (daemon, before) = (self.name(), self.observed().failed);
                return Err(FreshError::Late { daemon, timeout, before });
            }
        };
        match observed.failed {
            Some(why) => Err(FreshError::Failed(self.name(), why)),
            None => Ok(observed),
        }
    }

    /// Waits until an observation satisfies `done`; returns `None` after `timeout`.
    pub async fn wait_for(&self, timeout: Duration, done: impl FnMut(&Observed) -> bool) -> Option<Observed> {
        let mut observed = self.link.observed.clone();
        tokio::time::timeout(timeout, observed.wait_for(done)).await.ok()?.ok().map(|latest| latest.clone())
    }

    /// Returns the present status: `ready` only if the daemon is ready for the newest generation, which the driver may not have seen.
    pub fn status(&self) -> DaemonStatus {
        let mut status = DaemonStatus::clone(&self.link.observed.borrow().status);
        {
            let desired = self.link.desired.borrow();
            if status.phase == Phase::Ready && desired.holds_since(status.observed_generation) {
                status.observed_generation = desired.generation;
            }
        }
        if status.phase == Phase::Ready && self.not_ready().is_some() {
            status.phase = Phase::Applying;
            if let Some(ready) = status.conditions.first_mut() {
                let message = "the desired state was changed a moment ago, and is being applied";
                *ready = ConditionType::Ready.problem(ConditionReason::AwaitingReadBack, message);
            }
        }
        status
    }

    /// Returns the daemon's phase, unless it is in its desired state.
    pub(super) fn not_ready(&self) -> Option<Phase> {
        let desired = self.link.desired.borrow();
        let observed = self.link.observed.borrow();
        let status = &observed.status;
        match status.phase {
            // A daemon that is only observed has no desired state.
            _ if desired.is_observed() => None,
            Phase::Stopped if !desired.running => None,
            Phase::Ready if desired.running && desired.holds_since(status.observed_generation) => None,
            // The phase was published before the driver has seen the newest generation.
            Phase::Ready | Phase::Stopped => Some(Phase::Applying),
            other => Some(other),
        }
    }

    /// Publishes a new desired state.
    pub(super) fn publish(&self, mut desired: Desired) {
        self.link.desired.send_if_modified(|current| {
            // Two writers may publish in another order than they committed; the version decides.
            let newer = desired.version() > current.version();
            if newer {
                // A daemon that was created again counts its generations from 1 again.
                let is_same = desired.generation > current.generation;
                if is_same && desired.has_settings_of(current) {
                    desired.settings_since = current.settings_since;
                }
                *current = desired;
            }
            newer
        });
    }

    /// Waits until the driver follows the present desired state and has ended earlier actions; returns false after `timeout`.
    pub async fn followed(&self, timeout: Duration) -> bool {
        let desired = self.generation();
        self.wait_for(timeout, |observed| observed.follows >= desired).await.is_some()
    }

    /// Waits until the driver has ended, after which it sends nothing more; gives up after `timeout`.
    pub async fn ended(&self, timeout: Duration) {
        let mut observed = self.link.observed.clone();
        let _ = tokio::time::timeout(timeout, observed.wait_for(|_| false)).await;
    }

    /// Sets the seconds that clients get at the next stop.
    pub fn set_grace(&self, seconds: u32) {
        self.link.grace_s.store(seconds, Ordering::Relaxed);
    }

    /// Stops the daemon once; it is started again as its desired state demands.
    pub async fn restart(&self) -> Result<(), FreshError> {
        self.link.jobs.send(DriverRequest::Restart).await.map_err(|_| self.gone())
    }

    /// Makes the driver retry at once what was blocked. Returns the number by which [`Observed::blocker`] shows the result.
    pub async fn try_again(&self) -> Result<u64, FreshError> {
        let (answer, answered) = oneshot::channel();
        self.link.jobs.send(DriverRequest::TryAgain(answer)).await.map_err(|_| self.gone())?;
        answered.await.map_err(|_| self.gone())
    }

    /// Makes the driver apply its layout again: after a failure, and for any drift under a policy that only reports.
    ///
    /// A generation for which the driver has done this already is not requested twice: changes that other programs made since
    /// are left alone. Returns the number by which [`Observed::has_tried`] shows that the driver has begun.
    pub async fn reconcile_layout(&self, generation: i64) -> Result<u64, FreshError> {
        let (answer, answered) = oneshot::channel();
        let job = DriverRequest::ReconcileLayout(generation, answer);
        self.link.jobs.send(job).await.map_err(|_| self.gone())?;
        answered.await.map_err(|_| self.gone())
    }

    /// Ends a client in the safe order.
    pub async fn terminate(
        &self,
        client: ClientId,
        stopped: StoppedPolicy,
    ) -> Result<Termination, TerminateError> {
        self.start_termination(client, stopped).await?.ended().await
    }

    /// Begins to end a client in the safe order, for a caller that follows the progress.
    pub async fn start_termination(
        &self,
        client: ClientId,
        stopped: StoppedPolicy,
    ) -> Result<Terminating, TerminateError> {
        let (work_ended, answer, terminating) = Terminating::begin();
        let job = DriverRequest::Terminate { client, stopped, work_ended, answer };
        self.link.jobs.send(job).await.map_err(|_| unmanaged())?;
        Ok(terminating)
    }
}
