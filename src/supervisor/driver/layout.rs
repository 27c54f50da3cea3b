//! How a driver brings a layout about: one session for all commands, written down before it and after it.

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::partitioning::Standing;
use super::super::partitions::Talk;
use super::super::state::Look;
use super::super::status::layout;
use super::super::{Fact, Lasting};
use super::Driver;
use crate::clock::unix_ms;
use crate::domain::DaemonName;
use crate::domain::layout::record::{PartitionDrift, PartitionRun};
use crate::domain::layout::status::LayoutStatus;
use crate::domain::partitions::{GpuPartitions, place};
use crate::domain::plan::Desired;

impl Driver {
    /// Brings the layout about by what is listed now, or writes down that the last run has ended.
    pub(super) async fn partition(&mut self, desired: &Desired) {
        if let Some(run) = self.state.partitioning.to_write(desired) {
            return self.write_end(desired, run).await;
        }
        let (Some(process), Some(token)) = (
            self.state.process.clone(),
            self.incarnation.as_ref().map(|incarnation| incarnation.token.clone()),
        ) else {
            return;
        };
        let mut talk = Talk::new(self.control.clone(), process.identity, process.gpus, self.context.deadline);
        let mut present = match talk.list().await {
            Ok(present) => present,
            Err(look) => return self.lost(desired, look).await,
        };
        self.listed(&mut present);
        self.state.partitioning.take_up(desired, &present, unix_ms());
        let Standing::Due(plan) = self.state.standing(desired) else {
            // The look before told otherwise: whatever changed is for a whole look to see.
            talk.close().await;
            return self.state.look_soon();
        };
        let run = self.state.partitioning.before(&token, &present);
        if !self.write_down(desired, Lasting::PartitionRun(run.clone())).await {
            talk.close().await;
            return self.state.partitioning.not_written(unix_ms());
        }
        let began = Instant::now();
        let mut execution = self.state.partitioning.began(run, &plan, desired, &present, unix_ms());
        self.publish(desired);
        let mut broken = None;
        while let Some(step) = execution.next() {
            tracing::info!(daemon = %desired.name, command = step.command(), undoing = execution.is_undoing(), "changing partitions");
            let sent = Instant::now();
            match talk.take(&step).await {
                Ok((answer, mut present)) => {
                    execution.told(&answer, &present, micros(sent));
                    self.listed(&mut present);
                }
                Err(look) => {
                    execution.unreachable(said(&look));
                    broken = Some(look);
                }
            }
            self.state.partitioning.progress(execution.taken());
            self.publish(desired);
        }
        talk.close().await;
        let outcome = execution.outcome();
        if let Some(cause) = &outcome.cause {
            tracing::error!(daemon = %desired.name, %cause, "the layout was not brought about");
        }
        for degraded in &outcome.degraded {
            tracing::error!(daemon = %desired.name, %degraded, "a partition is not as it was");
        }
        self.state.partitioning.ended(outcome, desired, micros(began), unix_ms());
        if let Some(look) = broken {
            return self.lost(desired, look).await;
        }
        if let Some(run) = self.state.partitioning.to_write(desired) {
            self.write_end(desired, run).await;
        }
    }

    /// A list was read, of the clients that the last look saw.
    fn listed(&mut self, present: &mut [GpuPartitions]) {
        place(present, &self.clients);
        if let Some(seen) = &mut self.state.seen {
            seen.partitions = Some(present.to_vec());
        }
    }

    /// The daemon did not answer: known as from any look that fails.
    async fn lost(&mut self, desired: &Desired, look: Look) {
        let rhythm = self.rhythm(desired);
        (self.looks, self.failed_looks) = (self.looks + 1, self.failed_looks + 1);
        self.state.looked(look.clone(), false, desired, unix_ms(), rhythm);
        self.explain(look, unix_ms()).await;
    }

    async fn write_end(&mut self, desired: &Desired, run: PartitionRun) {
        if self.write_down(desired, Lasting::PartitionRun(run.clone())).await {
            self.state.partitioning.written(run);
            // Ready only by a look that reads everything.
            self.state.look_soon();
        } else {
            self.state.partitioning.not_written(unix_ms());
        }
    }

    /// Hands to the recorder where the layout stands, once for each control process: when it is in force or given up.
    pub(super) async fn tell_of_layout(&mut self, desired: &Desired) {
        let token = self.incarnation.as_ref().map(|incarnation| incarnation.token.clone());
        if self.state.process.is_none() || desired.layout.is_none() || self.told_of == token {
            return;
        }
        let Some(status) = layout(&self.state, desired).filter(LayoutStatus::is_decided) else { return };
        if self.write_down(desired, Lasting::Layout(Box::new(status))).await {
            self.told_of = token;
        }
    }

    /// Hands something to the recorder and waits until it is written; false when it was not.
    pub(super) async fn write_down(&self, desired: &Desired, recorded: Lasting) -> bool {
        let (written, done) = oneshot::channel();
        let fact = Fact { daemon: desired.name.clone(), recorded, written };
        self.context.recorder.send(fact).await.is_ok() && done.await.unwrap_or(false)
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Why a daemon could not be asked.
fn said(look: &Look) -> String {
    match look {
        Look::Busy(why)
        | Look::Unanswered(why)
        | Look::Unreadable(why)
        | Look::Misbehaved(why)
        | Look::Mute(why)
        | Look::NoFiles(why)
        | Look::NotRun(why) => why.clone(),
        Look::Seen(_) => String::new(),
    }
}

/// Tells that others began to change partitions, or that these are the layout's again.
pub(super) fn tell(daemon: &DaemonName, before: Option<&LayoutStatus>, now: Option<&LayoutStatus>) {
    let (Some(before), Some(now)) = (before, now) else { return };
    if now.drift_seen.count > before.drift_seen.count {
        let last = &now.drift_seen.last;
        let is_news = |drift: &&PartitionDrift| !before.drift.contains(drift);
        // The same again, after it was put back.
        let again = !last.iter().any(|drift| is_news(&drift));
        for drift in last.iter().filter(|drift| again || is_news(drift)) {
            tracing::warn!(%daemon, %drift, "a partition was changed by somebody else");
        }
    }
    if now.drift_seen.repairs > before.drift_seen.repairs {
        tracing::info!(%daemon, "partitions that somebody else changed were put back");
    } else if now.drift.is_empty() && !before.drift.is_empty() {
        tracing::info!(%daemon, "no partition differs from the layout any more");
    }
}
