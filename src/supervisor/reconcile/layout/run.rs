//! A run that applies a layout: its beginning, its steps and its duration.

use crate::domain::layout::record::{ExecutedStep, RunLog};

/// Run that is under way or has ended.
#[derive(Debug, Clone)]
pub(super) struct LastRun {
    pub(super) generation: i64,
    pub(super) began: i64,
    /// Number of commands and microseconds before it was interrupted.
    earlier: (usize, u64),
    pub(super) executed_steps: Vec<ExecutedStep>,
    pub(super) duration_us: Option<u64>,
}

impl LastRun {
    pub(super) fn new(generation: i64, now: i64) -> Self {
        Self { generation, began: now, earlier: (0, 0), executed_steps: Vec::new(), duration_us: None }
    }

    /// Continues a run that was interrupted.
    pub(super) fn resume(&mut self) {
        let took = self.duration_us.take().unwrap_or_default();
        self.earlier = (self.executed_steps.len(), took);
    }

    /// Takes the commands that were sent since it began, or since it was interrupted.
    pub(super) fn progress(&mut self, executed_steps: &[ExecutedStep]) {
        self.executed_steps.truncate(self.earlier.0);
        self.executed_steps.extend_from_slice(executed_steps);
    }

    /// Ends or interrupts the run, after this many microseconds.
    pub(super) fn end(&mut self, duration_us: u64) {
        self.duration_us = Some(self.earlier.1.saturating_add(duration_us));
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.duration_us.is_none()
    }

    pub(super) fn log(&self) -> RunLog {
        let Self { generation, began, ref executed_steps, duration_us, .. } = *self;
        RunLog { generation, began, executed_steps: executed_steps.clone(), duration_us }
    }
}

impl From<RunLog> for LastRun {
    fn from(log: RunLog) -> Self {
        let RunLog { generation, began, executed_steps, duration_us } = log;
        Self { generation, began, earlier: (0, 0), executed_steps, duration_us: duration_us.or(Some(0)) }
    }
}
