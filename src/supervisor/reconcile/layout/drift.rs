//! Changes that others make to the partitions of one daemon: remembered, and restored ever more slowly while they undo it.

use crate::domain::layout::record::{ExecutedStep, PartitionDrift};
use crate::domain::layout::status::DriftSeen;

/// Number of repairs in a row that begin at once.
const EAGER_REPAIRS: u32 = 3;
/// First and longest pause before a repair that follows several in a row.
const PAUSE_MS: (i64, i64) = (1_000, 60_000);
/// Time without a repair after which the next one begins a new row.
const PEACE_MS: i64 = 60_000;

/// Drift of the partitions of one daemon: partitions that others made or removed.
#[derive(Debug, Clone, Default)]
pub(super) struct DriftTracker {
    seen: DriftSeen,
    /// True if the drift that was seen last is still present.
    present: bool,
    /// Number of repairs in a row, each undone by others.
    row: u32,
}

impl DriftTracker {
    /// Returns the drift to publish; `executed_steps` are the commands of the last repair.
    pub(super) fn seen(&self, executed_steps: Vec<ExecutedStep>) -> DriftSeen {
        DriftSeen { executed_steps, ..self.seen.clone() }
    }

    /// Returns the present drift, as far as it has not been restored.
    pub(super) fn present(&self) -> Vec<PartitionDrift> {
        if self.present { self.seen.last.clone() } else { Vec::new() }
    }

    /// Takes the differences between the listed partitions and those that were made. Drift is counted if others have changed
    /// something since.
    pub(super) fn found(&mut self, drift: Vec<PartitionDrift>, now: i64) {
        let is_known = self.present && drift.iter().all(|change| self.seen.last.contains(change));
        self.present = !drift.is_empty();
        if !self.present {
            self.seen.next_repair_at = None;
            return;
        }
        self.seen.last = drift;
        if is_known {
            return;
        }
        self.seen.count += 1;
        self.seen.last_at = Some(now);
        if self.seen.repaired_at.is_none_or(|at| now - at >= PEACE_MS) {
            self.row = 0;
        }
        if self.row >= EAGER_REPAIRS && self.seen.next_repair_at.is_none() {
            self.seen.next_repair_at = Some(now + self.pause());
        }
    }

    fn pause(&self) -> i64 {
        (PAUSE_MS.0 << self.row.saturating_sub(EAGER_REPAIRS).min(6)).min(PAUSE_MS.1)
    }

    /// Returns the time at which the next repair may begin, if it is postponed.
    pub(super) fn postponed_until(&self) -> Option<i64> {
        self.seen.next_repair_at
    }

    /// Returns the reason why the next repair is postponed, if it is.
    pub(super) fn why_postponed(&self) -> Option<String> {
        self.seen.next_repair_at?;
        Some(format!(
            "it was restored {} times in a row, and changed again each time, so the next repair waits {} s: have that program stopped, \
             or set the layout's drift_policy to report",
            self.row,
            self.pause() / 1000
        ))
    }

    /// Ends the postponement if its time has come.
    pub(super) fn end_pause(&mut self, now: i64) {
        self.seen.next_repair_at = self.seen.next_repair_at.filter(|at| *at > now);
    }

    /// Allows the next repair at once, since it was requested.
    pub(super) fn at_once(&mut self) {
        self.row = 0;
        self.seen.next_repair_at = None;
    }

    /// Notes that all drift was restored, if there was any.
    pub(super) fn record_repair(&mut self, now: i64) {
        if std::mem::take(&mut self.present) {
            self.row += 1;
            self.seen.repairs += 1;
            self.seen.repaired_at = Some(now);
        }
    }

    /// Forgets the drift, for another process or layout.
    pub(super) fn over(&mut self) {
        self.present = false;
        self.seen.next_repair_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::layout::record::DriftKind;
    use crate::domain::{GpuUuid, PartitionId};

    fn gone(id: &str) -> PartitionDrift {
        PartitionDrift {
            kind: DriftKind::Missing,
            gpu: GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid"),
            partition: None,
            id: PartitionId::parse(id).expect("an ID"),
            chunks: 1,
        }
    }

    #[test]
    fn repairs_undone_repeatedly_back_off() {
        let (mut drifts, mut now, mut pauses) = (DriftTracker::default(), 0, Vec::new());
        for _ in 0..12 {
            drifts.found(vec![gone("0")], now);
            let until = drifts.postponed_until().unwrap_or(now);
            assert_eq!(drifts.why_postponed().is_some(), until > now);
            pauses.push((until - now) / 1000);
            // Further changes meanwhile do not extend the postponement.
            drifts.found(vec![gone("0"), gone("1")], now + 1);
            assert_eq!(drifts.postponed_until().unwrap_or(now), until);
            drifts.end_pause(until - 1);
            assert_eq!(drifts.postponed_until().is_some(), until > now);
            drifts.end_pause(until);
            assert_eq!(drifts.postponed_until(), None);
            now = until + 10;
            drifts.record_repair(now);
        }
        assert_eq!(pauses, [0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!((drifts.seen.count, drifts.seen.repairs), (24, 12));
        drifts.found(vec![gone("0")], now + PEACE_MS);
        assert_eq!(drifts.postponed_until(), None);
    }

    #[test]
    fn external_change_is_counted_once_per_repair() {
        let mut drifts = DriftTracker::default();
        drifts.found(vec![gone("0"), gone("1")], 1);
        drifts.found(vec![gone("0"), gone("1")], 2);
        drifts.found(vec![gone("1")], 3);
        assert_eq!((drifts.seen.count, drifts.seen.last_at), (1, Some(1)));
        assert_eq!(drifts.present(), [gone("1")]);
        drifts.record_repair(4);
        assert_eq!(drifts.present(), []);
        drifts.found(vec![gone("1")], 5);
        assert_eq!((drifts.seen.count, drifts.seen.last_at, drifts.seen.repairs), (2, Some(5), 1));
        drifts.over();
        drifts.record_repair(6);
        assert_eq!(
            (drifts.seen.repairs, drifts.seen.repaired_at),
            (1, Some(4)),
            "there was nothing to repair"
        );
    }
}
