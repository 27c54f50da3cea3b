//! The static partitions of a daemon's GPUs: listed, made and removed, one command at a time in one session.
//!
//! The list that follows a command shows its effect; the reply never does. A session that breaks is followed by another one,
//! which lists before anything else is sent. The daemon serves one session after the other, so any command left from the
//! broken session has been carried out by then.
//!
//! `lspart` identifies a GPU only by the beginning of its UUID. A row that could belong to several of the daemon's GPUs, or
//! to none of them, makes the whole reading an error: a wrong guess would later remove another program's partition.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::GpuUuid;
use crate::domain::layout::execution::{CommandAnswer, Move, MoveAction};
use crate::domain::partitions::{GpuPartitions, ListedPartition, PartitionRef};
use crate::host::Identity;
use crate::host::process::death;
use crate::mps::parse::{self, ParseError, Partition, PartitionDevice, Partitions};
use crate::mps::{Command, ControlChannel, ControlSession, SessionError};
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

/// Sorts a listing by GPU, in the order of `gpus` and without clients. Fails with a reason if it does not fit these GPUs.
pub(crate) fn by_gpu(listing: Partitions, gpus: &[GpuUuid]) -> Result<Vec<GpuPartitions>, String> {
    let mut devices: Vec<Option<GpuPartitions>> = vec![None; gpus.len()];
    for PartitionDevice { device_prefix, free_chunks, used_chunks, free_sms, used_sms } in listing.devices {
        let ordinal = position(&device_prefix, gpus)?;
        let gpu = gpus[ordinal].clone();
        let partitions = Vec::new();
        let device = GpuPartitions { gpu, free_chunks, used_chunks, free_sms, used_sms, partitions };
        if devices[ordinal].replace(device).is_some() {
            return Err(format!("lspart lists {} twice", gpus[ordinal]));
        }
    }
    for Partition { device_prefix, id, chunks, sms, in_use } in listing.partitions {
        let ordinal = position(&device_prefix, gpus)?;
        let Some(device) = &mut devices[ordinal] else {
            return Err(format!("lspart lists partition {id} of {} and not the GPU", gpus[ordinal]));
        };
        if device.partitions.iter().any(|known| known.id == id) {
            return Err(format!("lspart lists partition {id} of {} twice", gpus[ordinal]));
        }
        device.partitions.push(ListedPartition { id, chunks, sms, in_use, clients: Vec::new() });
    }
    let missing = |(device, gpu): (Option<GpuPartitions>, &GpuUuid)| {
        device.ok_or_else(|| format!("lspart does not list {gpu}, which the daemon was started with"))
    };
    devices.into_iter().zip(gpus).map(missing).collect()
}

/// Returns the index of the one GPU whose UUID begins with this prefix.
fn position(prefix: &str, gpus: &[GpuUuid]) -> Result<usize, String> {
    let begins = |gpu: &GpuUuid| {
        let beginning = gpu.as_str().get(..prefix.len());
        prefix.len() > "GPU-".len() && beginning.is_some_and(|text| text.eq_ignore_ascii_case(prefix))
    };
    let mut matching = gpus.iter().enumerate().filter(|(_, gpu)| begins(gpu));
    match (matching.next(), matching.next()) {
        (Some((ordinal, _)), None) => Ok(ordinal),
        (found, _) => {
            let all: Vec<&str> = gpus.iter().map(GpuUuid::as_str).collect();
            let what = if found.is_some() { "could be several" } else { "is none" };
            let shown: String = prefix.chars().take(60).collect();
            Err(format!("lspart names GPU {shown:?}, which {what} of the daemon's ({})", all.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::parse::lspart;

    fn gpus() -> Vec<GpuUuid> {
        ["514466a0", "514466b1", "9f9440d9"]
            .map(|start| GpuUuid::parse(&format!("GPU-{start}-8e68-f857-9f73-e438010e48cb")).expect("uuid"))
            .to_vec()
    }

    fn read(text: &str) -> Result<Vec<GpuPartitions>, String> {
        by_gpu(lspart(text.as_bytes()).expect("understood"), &gpus())
    }

    const ALL: &str = "GPU-9f9440d9 15 0 132 0\nGPU-514466a0 8 7 76 56\nGPU-514466b1 15 0 132 0\n";

    #[test]
    fn partitions_are_listed_per_gpu_in_daemon_order() {
        let read = read(&format!("{ALL}GPU-514466a0 b/ 4 32 Yes\nGPU-514466a0 a+ 3 24\n")).expect("it fits");
        assert_eq!(read.iter().map(|listing| listing.gpu.clone()).collect::<Vec<_>>(), gpus());
        let first = &read[0];
        let numbers = (first.free_chunks, first.used_chunks, first.free_sms, first.used_sms);
        assert_eq!(numbers, (8, 7, 76, 56));
        let seen: Vec<_> =
            first.partitions.iter().map(|one| (one.id.as_str(), one.chunks, one.sms, one.in_use)).collect();
        assert_eq!(seen, [("b/", 4, 32, Some(true)), ("a+", 3, 24, None)]);
        assert!(read[1].partitions.is_empty() && read[2].partitions.is_empty());
    }

    #[test]
    fn inconsistent_partition_listing_is_an_error() {
        for (text, message) in [
            ("GPU-9f9440d9 15 0 132 0\n".to_owned(), "does not list GPU-514466a0"),
            (format!("{ALL}GPU-514466 15 0 132 0\n"), "could be several"),
            (format!("{ALL}GPU-77777777 15 0 132 0\n"), "is none"),
            (format!("{ALL}GPU- 15 0 132 0\n"), "is none"),
            (format!("{ALL}MIG-514466a0 15 0 132 0\n"), "is none"),
            (format!("{ALL}GPU-9f9440d9 15 0 132 0\n"), "twice"),
            (format!("{ALL}GPU-514466 a 3 24 No\n"), "could be several"),
            (format!("{ALL}GPU-514466a0 a 3 24 No\nGPU-514466a0 a 3 24 No\n"), "twice"),
        ] {
            let error = read(&text).expect_err(message);
            assert!(error.contains(message), "{error}");
        }
    }
}
