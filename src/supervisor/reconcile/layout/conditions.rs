//! Conditions of a daemon about its layout.

use super::LayoutReconciler;
use crate::domain::DaemonName;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::joined;
use crate::domain::layout::Enforcement;
use crate::domain::layout::record::PartitionDrift;
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::plan::Desired;
use crate::supervisor::recent::{SHOWN_MS, times};

impl LayoutReconciler {
    /// Returns the reason and a sentence for a daemon that is not ready because its layout is not in force.
    pub fn unready(&self, desired: &Desired) -> Option<(ConditionReason, String)> {
        let (reason, message) = if self.write_retry_at > 0 {
            let message = "what is done to its partitions could not be written to the database, so nothing is done to them: see \
                           that the disk of the state directory has room";
            (ConditionReason::StoreUnavailable, message)
        } else {
            (self.runtime(desired)? == Enforcement::Static && self.is_under_way()).then_some((
                ConditionReason::PartitionsBeingMade,
                "the partitions of its layout are being made",
            ))?
        };
        Some((reason, message.to_owned()))
    }
}

/// Returns the conditions of the layout.
pub fn conditions(daemon: &DaemonName, layout: &LayoutStatus, now: i64) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if let Some(failure) = &layout.failure {
        conditions.push(ConditionType::Layout.problem(failure.reason(), failure.message.clone()));
    }
    conditions.extend(drifted(daemon, layout, now));
    if !layout.degraded.is_empty() {
        conditions.push(
            ConditionType::PartitionsDegraded
                .problem(ConditionReason::OtherIds, joined(&layout.degraded, "; ")),
        );
    }
    conditions
}

/// Reports partitions that others changed: while they differ, and for a while after.
fn drifted(daemon: &DaemonName, layout: &LayoutStatus, now: i64) -> Option<Condition> {
    let drift_seen = &layout.drift_seen;
    let say = |drift: &[PartitionDrift], done: &str| {
        let (changes, times) = (joined(drift, "; "), times(drift_seen.count));
        format!("{changes}. Another program changed that, {times} so far; {done}")
    };
    if !layout.drift.is_empty() {
        let done = match (&layout.not_repaired, layout.state) {
            (Some(why), _) => format!("it is not repaired: {why}"),
            (None, LayoutState::Drifted) => {
                let name = layout.name.as_ref().map(ToString::to_string).unwrap_or_default();
                format!(
                    "it stays, as the layout's drift_policy says, until the layout is applied again (`mps-manager layout apply {name} \
                     --daemon {daemon}`)"
                )
            }
            (None, LayoutState::Failed) => "it is not repaired, since the layout has failed".to_owned(),
            (None, _) => "it is being restored".to_owned(),
        };
        let message = say(&layout.drift, &done);
        return Some(ConditionType::PartitionsDrifted.problem(ConditionReason::ChangedByOthers, message));
    }
    let at = drift_seen.last_at.filter(|at| now - at < SHOWN_MS)?;
    let (reason, done) = match drift_seen.repaired_at {
        Some(repaired_at) if repaired_at >= at => (ConditionReason::Restored, "it was restored"),
        _ => (ConditionReason::Over, "the partitions are as the layout says again"),
    };
    Some(Condition::new(ConditionType::PartitionsDrifted, false, reason, say(&drift_seen.last, done)))
}
