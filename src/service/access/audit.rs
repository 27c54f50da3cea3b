//! Reading the audit log, and its periodic maintenance.

use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::Right;
use crate::domain::audit::{AuditRecord, Head};
use crate::service::access::context::RequestContext;
use crate::service::page::{Page, Paged};
use crate::service::{Backend, Result, Service};
use crate::store;
pub use crate::store::audit::AuditFilter;

/// Interval at which the head of the chain is logged.
const HOUR: Duration = Duration::from_secs(3600);

impl Service {
    /// Rows of the audit log, newest first.
    pub async fn audit(
        &self,
        ctx: &RequestContext,
        filter: &AuditFilter,
        page: &Page,
    ) -> Result<Paged<AuditRecord>> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        let before = page.key::<u32>()?.map(i64::from);
        let mut reader = backend.parts.store.read().await?;
        let rows = store::audit::page(&mut reader, filter, before, page.rows()).await?;
        Ok(page.cut(rows, |row| row.id.to_string()))
    }

    /// The head of the hash chain.
    pub async fn audit_head(&self, ctx: &RequestContext) -> Result<Head> {
        let backend = self.with(&ctx.require(Right::Administer)?);
        Ok(store::audit::head(&mut *backend.parts.store.read().await?).await?)
    }
}

impl Backend {
    /// Logs the head of the chain every hour, so that a copy exists outside the database.
    pub async fn keep_audit(self: Arc<Self>) {
        loop {
            tokio::time::sleep(HOUR).await;
            if let Ok(mut reader) = self.parts.store.read().await
                && let Ok(Head { id, hash }) = store::audit::head(&mut reader).await
            {
                tracing::info!(id, %hash, "head of the audit log");
            }
        }
    }
}
