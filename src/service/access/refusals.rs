//! Refused attempts in the audit log: a limited number of rows of each caller, so that a flood of refused requests neither fills the
//! disk nor holds up the writer.

use crate::domain::audit::{AttemptedAction, AuditOutcome};
use crate::service::Backend;
use crate::service::limits::CallerSource;
use crate::store::audit::AuditResult;
use crate::store::{self, transact};

impl Backend {
    /// Records a refused or failed attempt, by the type of its problem, if its actor may have another row.
    pub async fn record_refusal(&self, attempt: AttemptedAction, outcome: AuditOutcome, problem: String) {
        if self.refusals.by_actor.take(&(attempt.actor.clone(), outcome)).is_ok() {
            self.append_refusal(attempt, outcome, problem).await;
        }
    }

    /// Records an attempt without valid credentials, if its source may have another row.
    pub async fn not_authenticated(&self, source: CallerSource, attempt: AttemptedAction) {
        if self.refusals.by_source.take(&source).is_ok() && self.refusals.of_strangers.take(&()).is_ok() {
            let problem = "urn:mps-manager:problem:unauthorized".to_owned();
            self.append_refusal(attempt, AuditOutcome::Refused, problem).await;
        }
    }

    async fn append_refusal(&self, attempt: AttemptedAction, outcome: AuditOutcome, problem: String) {
        let attempt = AttemptedAction { target: attempt.target.without_secrets(), ..attempt };
        let result = AuditResult { problem: Some((outcome, problem)), ..AuditResult::default() };
        let now = self.parts.clock.unix_ms();
        let written = transact!(self.parts.store, |db| store::audit::append(db, &attempt, result, now).await);
        if let Err(error) = written {
            // Nothing was done, so nothing has to be undone when the record is missing.
            tracing::error!(%error, "a refusal could not be recorded in the audit log");
        }
    }
}
