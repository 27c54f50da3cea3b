//! The refused attempts of a minute, by source.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::domain::audit::{AttemptedAction, AuditOutcome};

/// Refused attempts of one actor that get rows of their own in a minute.
pub(super) const ROWS: u32 = 60;
/// Sources counted separately in a minute; all others share one count.
const SOURCES: usize = 1024;

/// A row for one or more refused attempts: their common fields, and their number.
#[derive(Debug, Clone)]
pub(super) struct RefusedAttempts {
    pub(super) attempt: AttemptedAction,
    pub(super) outcome: AuditOutcome,
    pub(super) problem: String,
    pub(super) count: i64,
}

impl RefusedAttempts {
    pub(super) fn one(attempt: AttemptedAction, outcome: AuditOutcome, problem: String) -> Self {
        Self { attempt, outcome, problem, count: 1 }
    }

    /// Adds another attempt; a field in which it differs becomes empty.
    fn add(&mut self, other: &Self) {
        self.attempt.keep_common(&other.attempt);
        if self.problem != other.problem {
            self.problem.clear();
        }
        if other.outcome == AuditOutcome::Failed {
            self.outcome = AuditOutcome::Failed;
        }
        self.count += other.count;
    }
}

/// The refused attempts of this minute, by source.
#[derive(Debug, Default)]
pub(in crate::service) struct Refusals {
    sources: Mutex<HashMap<String, RefusalSource>>,
}

#[derive(Debug, Default)]
struct RefusalSource {
    rows: u32,
    /// Attempts without a row of their own.
    rest: Option<RefusedAttempts>,
}

impl Refusals {
    fn sources(&self) -> MutexGuard<'_, HashMap<String, RefusalSource>> {
        // A panic elsewhere leaves the map as it was before or after one insertion, which is consistent.
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a refusal that gets its own row, and counts any other.
    pub(super) fn take_row_or_count(
        &self,
        source: &str,
        rows: u32,
        refused: RefusedAttempts,
    ) -> Option<RefusedAttempts> {
        let mut sources = self.sources();
        let source =
            if sources.len() >= SOURCES && !sources.contains_key(source) { "others" } else { source };
        let source = sources.entry(source.to_owned()).or_default();
        if source.rows < rows {
            source.rows += 1;
            return Some(refused);
        }
        match &mut source.rest {
            Some(rest) => rest.add(&refused),
            None => source.rest = Some(refused),
        }
        None
    }

    /// The rows for what was counted, and begins a new minute.
    pub(super) fn take(&self) -> Vec<RefusedAttempts> {
        std::mem::take(&mut *self.sources()).into_values().filter_map(|source| source.rest).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::access::{Actor, Grant, Origin, Principal, Role};
    use crate::domain::audit::Target;

    fn refused(path: &str, action: &str, problem: &str) -> RefusedAttempts {
        let actor =
            Actor { subject: Principal::User(7), grant: Grant::Host(Role::Admin), origin: Origin::Socket };
        let attempt = AttemptedAction::of(&actor, None, action.to_owned(), Target::of_request(path, path));
        RefusedAttempts::one(attempt, AuditOutcome::Refused, problem.to_owned())
    }

    #[test]
    fn flood_leaves_limited_rows_and_one_count() {
        let refusals = Refusals::default();
        let flood =
            || refusals.take_row_or_count("uid 7", ROWS, refused("tenants/web", "DELETE", "forbidden"));
        assert_eq!((0..100).filter(|_| flood().is_some()).count(), 60);
        let [rest] = &refusals.take()[..] else { panic!("one row for the rest") };
        assert_eq!(
            (rest.count, rest.problem.as_str(), rest.attempt.action.as_str()),
            (40, "forbidden", "DELETE")
        );
        assert_eq!(rest.attempt.target.to_string(), "tenants/web");
        assert!(refusals.take().is_empty() && flood().is_some(), "a new minute began");
    }

    #[test]
    fn refusal_count_names_only_shared_fields() {
        let refusals = Refusals::default();
        for (path, action) in [("tenants/web", "PUT"), ("tenants/web", "DELETE"), ("daemons/gpu0", "PUT")] {
            refusals.take_row_or_count("uid 7", 0, refused(path, action, "forbidden"));
        }
        let failed =
            RefusedAttempts { outcome: AuditOutcome::Failed, ..refused("daemons/gpu0", "PUT", "internal") };
        refusals.take_row_or_count("uid 7", 0, failed);
        let [rest] = &refusals.take()[..] else { panic!("one row") };
        assert_eq!((rest.count, rest.outcome, rest.problem.as_str()), (4, AuditOutcome::Failed, ""));
        assert_eq!((rest.attempt.actor.as_str(), rest.attempt.action.as_str()), ("uid 7", ""));
        assert_eq!(rest.attempt.target.to_string(), "");
    }

    #[test]
    fn many_sources_are_counted_in_bounded_memory() {
        let refusals = Refusals::default();
        for address in 0..3 * SOURCES {
            let [.., high, low] = address.to_be_bytes();
            let origin = Origin::Address([192, 0, high, low].into());
            let refused = RefusedAttempts::one(
                AttemptedAction::of_stranger(origin),
                AuditOutcome::Refused,
                "unauthorized".to_owned(),
            );
            refusals.take_row_or_count(&origin.to_string(), 0, refused);
        }
        let taken = refusals.take();
        assert_eq!(taken.len(), SOURCES + 1);
        let count: i64 = taken.iter().map(|refused| refused.count).sum();
        assert_eq!(count, 3 * i64::try_from(SOURCES).expect("small"));
        let together = taken.iter().find(|refused| refused.count > 1).expect("those beyond the bound");
        assert_eq!((together.attempt.actor.as_str(), together.attempt.origin.as_str()), ("nobody", ""));
    }
}
