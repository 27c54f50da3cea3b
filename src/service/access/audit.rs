//! Reading the audit log, and its periodic maintenance.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::Right;
use crate::domain::audit::{AuditRecord, Head};
use crate::service::access::context::RequestContext;
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Service, ServiceError};
use crate::store;
pub use crate::store::audit::AuditFilter;

/// Interval at which counted refusals are written to the audit log.
const MINUTE: Duration = Duration::from_secs(60);
/// Number of those intervals between two log lines with the head of the chain.
const HOUR: u32 = 60;

impl Service {
    /// Rows of the audit log, newest first.
    pub async fn audit(
        &self,
        ctx: &RequestContext,
        filter: &AuditFilter,
        page: &Page,
    ) -> Result<Paged<AuditRecord>, ServiceError> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        let before = page.key::<u32>()?.map(i64::from);
        let mut reader = backend.parts.store.read().await?;
        let rows = store::audit::page(&mut reader, filter, before, page.rows()).await?;
        Ok(page.cut(rows, |row| row.id.to_string()))
    }

    /// The head of the hash chain.
    pub async fn audit_head(&self, ctx: &RequestContext) -> Result<Head, ServiceError> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        Ok(store::audit::head(&mut *backend.parts.store.read().await?).await?)
    }
}

impl Backend {
    /// Writes counted refusals every minute, and logs the head of the chain every hour so that a copy exists outside the
    /// database.
    pub async fn keep_audit(self: Arc<Self>) {
        for minute in 1u32.. {
            tokio::time::sleep(MINUTE).await;
            self.flush_refusals().await;
            if minute.is_multiple_of(HOUR)
                && let Ok(mut reader) = self.parts.store.read().await
                && let Ok(Head { id, hash }) = store::audit::head(&mut reader).await
            {
                tracing::info!(id, %hash, "head of the audit log");
            }
        }
    }
}
