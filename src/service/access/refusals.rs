//! Refused attempts in the audit log: a limited number of rows for each source, and one row for the rest of a minute.
//!
//! So a flood of refused requests neither fills the disk nor holds up the writer, and its size is still in the audit log.

use super::refusal_counts::{ROWS, RefusedAttempts};
use crate::domain::access::Origin;
use crate::domain::audit::{AttemptedAction, AuditOutcome};
use crate::service::Backend;
use crate::store::audit::AuditResult;
use crate::store::{self, StoreError};

/// Rows that are written in one transaction, so that no other job waits long.
const TOGETHER: usize = 100;

impl Backend {
    /// Records a refused or failed attempt, by the type of its problem.
    pub async fn record_refusal(&self, attempt: AttemptedAction, outcome: AuditOutcome, problem: String) {
        let attempt = AttemptedAction { target: attempt.target.without_secrets(), ..attempt };
        let source = attempt.actor.clone();
        if let Some(refused) =
            self.refusals.take_row_or_count(&source, ROWS, RefusedAttempts::one(attempt, outcome, problem))
        {
            self.record(vec![refused]).await;
        }
    }

    /// Counts an attempt without valid credentials, by address.
    pub fn not_authenticated(&self, origin: Origin) {
        let problem = "urn:mps-manager:problem:unauthorized".to_owned();
        let refused =
            RefusedAttempts::one(AttemptedAction::of_stranger(origin), AuditOutcome::Refused, problem);
        self.refusals.take_row_or_count(&format!("from {origin}"), 0, refused);
    }

    /// Records the refusals that were counted; also called when the manager ends.
    pub async fn flush_refusals(&self) {
        for rows in self.refusals.take().chunks(TOGETHER) {
            self.record(rows.to_vec()).await;
        }
    }

    async fn record(&self, rows: Vec<RefusedAttempts>) {
        let clock = self.parts.clock;
        let written: Result<(), StoreError> = self
            .parts
            .store
            .commit(move |db| {
                Box::pin(async move {
                    for RefusedAttempts { attempt, outcome, problem, count } in rows {
                        let came =
                            AuditResult { problem: Some((outcome, problem)), ..AuditResult::default() };
                        store::audit::append(&mut *db, &attempt, came, count, clock.unix_ms()).await?;
                    }
                    Ok(())
                })
            })
            .await;
        if let Err(error) = written {
            // Nothing was done, so nothing has to be undone when the record is missing.
            tracing::error!(%error, "a refusal could not be recorded in the audit log");
        }
    }
}
