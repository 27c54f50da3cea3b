//! The static partitions of a daemon's GPUs: listed, made and removed, one command at a time in one session.
//!
//! The list that follows a command shows its effect; the reply never does. A session that breaks is followed by another one,
//! which lists before anything else is sent. The daemon serves one session after the other, so any command left from the
//! broken session has been carried out by then.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::GpuUuid;
use crate::domain::layout::execution::{CommandAnswer, Move, MoveAction};
use crate::domain::partitions::{GpuPartitions, PartitionRef};
use crate::host::Identity;
use crate::host::process::death;
use crate::mps::parse::{self, ParseError};
use crate::mps::{Command, ControlChannel, ControlSession, SessionError};
use crate::supervisor::observe::partition_listing::by_gpu;
use crate::supervisor::observe::poll_outcome::{PollOutcome, unanswered};

/// Session with a daemon about its partitions.
pub(crate) struct PartitionSession {
    control: Arc<dyn ControlChannel>,
    process: Identity,
    gpus: Vec<GpuUuid>,
    /// Longest time for one command, and for a list that follows a broken session.
    timeout: Duration,
    session: Option<Box<dyn ControlSession>>,
}

impl PartitionSession {
    /// Prepares a session with a daemon that was started with these GPUs.
    pub(crate) fn new(
        control: Arc<dyn ControlChannel>,
        process: Identity,
        gpus: Vec<GpuUuid>,
        timeout: Duration,
    ) -> Self {
        Self { control, process, gpus, timeout, session: None }
    }

    /// Lists the present partitions. Fails with the outcome that a poll without this answer would have.
    pub(crate) async fn list(&mut self) -> Result<Vec<GpuPartitions>, PollOutcome> {
        let until = Instant::now() + self.timeout;
        loop {
            let reply = match self.send(&Command::Lspart, until).await {
                Ok(reply) => reply,
                // A session that broke in between shows nothing about the daemon.
                Err(SessionError::Unknown { .. }) if Instant::now() < until && self.is_alive() => continue,
                Err(error) => return Err(unanswered(error)),
            };
            let listing =
                parse::lspart(&reply).map_err(|error| PollOutcome::Unreadable(error.to_string()))?;
            return by_gpu(listing, &self.gpus).map_err(PollOutcome::Unreadable);
        }
    }

    /// Sends one command and lists the partitions. Fails as [`Self::list`] does, with the effect of the command unknown.
    pub(crate) async fn take(
        &mut self,
        step: &Move,
    ) -> Result<(CommandAnswer, Vec<GpuPartitions>), PollOutcome> {
        let gpu = step.gpu.clone();
        let command = match &step.action {
            MoveAction::Add { .. } => Command::SmPartitionAdd { gpu, chunks: step.chunks },
            MoveAction::Remove { id } => {
                Command::SmPartitionRemove { partition: PartitionRef { gpu, id: id.clone() } }
            }
        };
        let answer = match self.send(&command, Instant::now() + self.timeout).await {
            Ok(reply) => answer(&step.action, &reply),
            Err(error) => CommandAnswer::Lost(error.to_string()),
        };
        Ok((answer, self.list().await?))
    }

    /// Ends the session.
    pub(crate) async fn close(self) {
        if let Some(session) = self.session {
            session.close().await;
        }
    }

    async fn send(&mut self, command: &Command, until: Instant) -> Result<Vec<u8>, SessionError> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.control.session(until)?,
        };
        session.extend(until);
        let reply = tokio::select! {
            reply = session.send(command) => reply?,
            // A daemon that is gone answers nobody, and is not waited for.
            () = death(self.process) => return Err(SessionError::NoDaemon),
        };
        self.session = Some(session);
        Ok(reply)
    }

    fn is_alive(&self) -> bool {
        crate::host::process::is_alive(self.process)
    }
}

/// Interprets the reply to a command, which is often empty.
fn answer(action: &MoveAction, reply: &[u8]) -> CommandAnswer {
    let refused = |error: ParseError| match error {
        ParseError::NotUnderstood { .. } if reply.trim_ascii().is_empty() => CommandAnswer::Silent,
        ParseError::Refused { text } => CommandAnswer::Refused(text),
        error => CommandAnswer::Refused(error.to_string()),
    };
    match action {
        MoveAction::Add { .. } => match parse::sm_partition_add(reply) {
            Ok(made) => CommandAnswer::Named(made.id),
            Err(error) => refused(error),
        },
        MoveAction::Remove { .. } => match parse::sm_partition_remove(reply) {
            // No text of success is known, and not all texts of failure may be known.
            Ok(()) if reply.trim_ascii().is_empty() => CommandAnswer::Silent,
            Ok(()) => CommandAnswer::Refused(String::from_utf8_lossy(reply).trim().to_owned()),
            Err(error) => refused(error),
        },
    }
}
