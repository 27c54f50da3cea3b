//! Application of a layout: one session for all commands, with a record written before it and after it.

use std::sync::Arc;

use tokio::time::Instant;

use super::super::durable::DurableRecord;
use super::Driver;
use crate::domain::DaemonName;
use crate::domain::layout::record::PartitionDrift;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::partitions::{GpuPartitions, place};
use crate::domain::plan::Desired;
use crate::supervisor::driver::partition_commands::PartitionSession;
use crate::supervisor::observe::poll_outcome::PollOutcome;
use crate::supervisor::reconcile::layout::progress::{LayoutAction, LayoutProgress};
use crate::supervisor::report::conditions::layout_status;

impl Driver {
    /// Carries out the next step of the layout.
    pub(super) async fn follow_layout(&mut self, desired: &Desired, step: LayoutAction) {
        match step {
            LayoutAction::Partition => self.partition(desired).await,
            LayoutAction::Record => self.record_layout_end(desired).await,
        }
    }

    /// Makes the partitions of the layout, starting from a fresh list.
    async fn partition(&mut self, desired: &Desired) {
        let (Some(process), Some(token)) = (
            self.state.process.clone(),
            self.incarnation.as_ref().map(|incarnation| incarnation.token.clone()),
        ) else {
            return;
        };
        let mut session = PartitionSession::new(
            Arc::clone(&self.control),
            process.identity,
            process.gpus,
            self.context.deadline,
        );
        let mut present = match session.list().await {
            Ok(present) => present,
            Err(outcome) => return self.lost(desired, outcome).await,
        };
        self.listed(&mut present);
        self.state.layout.prepare_run(desired, &present, self.now());
        let LayoutProgress::Due(plan) = self.state.layout.progress(desired, self.state.listed()) else {
            // The previous poll saw another state: a complete poll has to show the change.
            session.close().await;
            return self.state.request_poll();
        };
        let run = self.state.layout.before(&token, &present);
        if !self.context.record(&desired.name, DurableRecord::PartitionRun(run.clone())).await {
            session.close().await;
            return self.state.layout.not_written(self.now());
        }
        let began = Instant::now();
        let mut execution = self.state.layout.began(run, &plan, desired, &present, self.now());
        self.publish(desired);
        let mut broken = None;
        while let Some(step) = execution.next() {
            tracing::info!(daemon = %desired.name, command = step.command(), undoing = execution.is_undoing(), "changing partitions");
            let sent = Instant::now();
            match session.take(&step).await {
                Ok((answer, mut present)) => {
                    execution.answered(&answer, &present, micros(sent));
                    self.listed(&mut present);
                }
                Err(outcome) => {
                    execution.unreachable(outcome.failure().unwrap_or_default().to_owned());
                    broken = Some(outcome);
                }
            }
            self.state.layout.commands_sent(execution.executed_steps());
            self.publish(desired);
        }
        session.close().await;
        let outcome = execution.outcome();
        if let Some(cause) = &outcome.cause {
            tracing::error!(daemon = %desired.name, %cause, "the layout was not applied");
        }
        for degraded in &outcome.degraded {
            tracing::error!(daemon = %desired.name, %degraded, "a partition is not as it was");
        }
        self.state.layout.ended(outcome, desired, micros(began), self.now());
        if let Some(outcome) = broken {
            return self.lost(desired, outcome).await;
        }
        self.record_layout_end(desired).await;
    }

    /// Takes a list of partitions, and places the clients of the last poll in them.
    fn listed(&mut self, present: &mut [GpuPartitions]) {
        place(present, &self.clients);
        if let Some(effective) = &mut self.state.seen {
            effective.partitions = Some(present.to_vec());
        }
    }

    /// Records that the daemon did not answer, as after a failed poll.
    async fn lost(&mut self, desired: &Desired, outcome: PollOutcome) {
        let check_interval = self.check_interval(desired);
        self.counts.sessions.polls += 1;
        self.counts.sessions.failed += 1;
        self.state.polled(outcome.clone(), false, desired, self.now(), check_interval);
        self.explain(outcome, self.now()).await;
    }

    /// Writes down that the last run has ended, if it has.
    pub(super) async fn record_layout_end(&mut self, desired: &Desired) {
        let Some(ended) = self.state.layout.to_write(desired) else { return };
        if self.context.record(&desired.name, DurableRecord::PartitionRun(ended.clone())).await {
            self.state.layout.written(ended);
            // The layout is ready only after a poll that reads everything.
            self.state.request_poll();
        } else {
            self.state.layout.not_written(self.now());
        }
    }

    /// Hands the layout's status to the recorder once for each control process, when the layout is in force or given up.
    pub(super) async fn record_layout_status(&mut self, desired: &Desired) {
        let token = self.incarnation.as_ref().map(|incarnation| incarnation.token.clone());
        if self.state.process.is_none() || desired.layout.is_none() || self.layout_recorded_for == token {
            return;
        }
        let Some(status) = layout_status(&self.state, desired).filter(LayoutStatus::is_decided) else {
            return;
        };
        if self.context.record(&desired.name, DurableRecord::Layout(Box::new(status))).await {
            self.layout_recorded_for = token;
        }
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Logs that other programs began to change partitions, or that the partitions match the layout again.
pub(super) fn log_drift(daemon: &DaemonName, before: Option<&LayoutStatus>, now: Option<&LayoutStatus>) {
    let (Some(before), Some(now)) = (before, now) else { return };
    if now.drift_seen.count > before.drift_seen.count {
        let last = &now.drift_seen.last;
        let is_new = |drift: &&PartitionDrift| !before.drift.contains(drift);
        // The last drift has come back after it was restored.
        let again = !last.iter().any(|drift| is_new(&drift));
        for drift in last.iter().filter(|drift| again || is_new(drift)) {
            tracing::warn!(%daemon, %drift, "a partition was changed by another program");
        }
    }
    if now.drift_seen.repairs > before.drift_seen.repairs {
        tracing::info!(%daemon, "partitions that another program changed were restored");
    } else if now.drift.is_empty() && !before.drift.is_empty() {
        tracing::info!(%daemon, "every partition matches the layout again");
    }
}
