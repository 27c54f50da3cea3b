//! Requests that a driver carries out once, in turn.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Driver;
use crate::domain::client::{ClientId, StoppedPolicy};
use crate::host;
use crate::metrics::control::Commands;
use crate::supervisor::driver::terminate_client::{resume, terminate};
use crate::supervisor::observe::gpu_presence::GpuPresence;
use crate::supervisor::observe::poll_outcome::PollOutcome;
use crate::supervisor::requests::{DriverRequest, TerminateError, Termination};

impl Driver {
    /// Returns the counts and times of commands to the daemon.
    pub(in crate::supervisor) fn commands(&self) -> Arc<Commands> {
        self.control.calls().commands()
    }

    pub(super) async fn work(&mut self, job: DriverRequest) {
        self.note_action();
        match job {
            DriverRequest::Restart => {
                self.state.restart = self.state.process.is_some() && !self.desired.borrow().is_observed();
            }
            DriverRequest::TryAgain(answer) => {
                self.count_gpus().await;
                self.state.try_again();
                self.tries += 1;
                let _ = answer.send(self.tries);
            }
            DriverRequest::ReconcileLayout(generation, answer) => {
                self.state.layout.request(generation);
                self.state.request_poll();
                self.tries += 1;
                let _ = answer.send(self.tries);
            }
            DriverRequest::Terminate { client, stopped, work_ended, answer } => {
                let result = self.terminate(client, stopped, work_ended).await;
                self.state.request_poll();
                let _ = answer.send(result);
            }
        }
    }

    /// Asks the driver which GPUs are present, for all daemons: the last answer may be seconds old.
    async fn count_gpus(&self) {
        let inventory = Arc::clone(&self.context.inventory);
        if let Ok(Ok(gpus)) = tokio::task::spawn_blocking(move || inventory.gpus()).await {
            GpuPresence::of(&gpus).publish_to(&self.context.gpu_presence);
        }
    }

    /// Ends a client, if it still is one: the last poll may be seconds old.
    async fn terminate(
        &mut self,
        client: ClientId,
        stopped: StoppedPolicy,
        work_ended: oneshot::Sender<()>,
    ) -> Result<Termination, TerminateError> {
        if !host::process::is_alive(client.into()) {
            return Ok(Termination::AlreadyGone);
        }
        let desired = self.desired.borrow_and_update().clone();
        if desired.is_observed() {
            let message = "it is only observed, and nothing is sent to it that changes anything".to_owned();
            return Err(TerminateError::Refused(message));
        }
        self.sync(&desired, &[]).await;
        if let Some(poll_failure) = &self.state.poll_failure {
            return Err(TerminateError::Unreachable(poll_failure.to_string()));
        }
        let listed = self.clients.iter().find(|listed| listed.id == client);
        let server = listed.map(|listed| listed.server).ok_or(TerminateError::NotAClient(client))?;
        let control = self.state.process.iter().map(|process| process.identity);
        if control.chain(self.servers()).any(|process| process == client.into()) {
            let what = "one of the daemon's own processes".to_owned();
            return Err(TerminateError::Protected { client, what, work_ended: false });
        }
        let began = self.now();
        let result = match resume(client, stopped).await {
            Ok(None) => {
                let deadline = Instant::now() + self.context.deadline;
                terminate(&*self.control, server, client, deadline, work_ended).await
            }
            Ok(Some(how)) => Ok(how),
            Err(error) => Err(error),
        };
        if let Ok(how) = &result {
            self.event_detector.terminated(&desired.name, client, server, how.as_str());
        }
        if let Err(TerminateError::Unanswered(command)) = &result {
            self.state.wedged = Some(command.clone());
            // A poll shows whether it answers again, and the next one may be a minute away.
            self.state.request_poll();
            self.explain(PollOutcome::Unanswered(command.clone()), began).await;
        }
        result
    }
}
