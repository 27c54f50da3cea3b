//! The audit, read; and what keeps it short of refusals and known outside.

use std::time::Duration;

use super::page::{Page, Paged};
use super::{Service, ServiceError};
use crate::domain::access::{Actor, Right};
use crate::domain::audit::{AuditRecord, Head};
pub use crate::store::audit::AuditFilter;
use crate::store::{self, StoreError};

/// How often counted refusals are put on record.
const MINUTE: Duration = Duration::from_secs(60);
/// After how many of them the head is logged.
const HOUR: u32 = 60;

impl Service {
    /// Rows of the audit, the last first.
    pub async fn audit(
        &self,
        actor: &Actor,
        filter: &AuditFilter,
        page: &Page,
    ) -> Result<Paged<AuditRecord>, ServiceError> {
        actor.may(Right::Administer)?;
        let before = page.key::<u32>()?.map(i64::from);
        let mut reader = self.parts.store.read().await?;
        let rows = store::audit::page(&mut reader, filter, before, page.rows()).await?;
        Ok(page.cut(rows, |row| row.id.to_string()))
    }

    /// The end of the chain.
    pub async fn audit_head(&self, actor: &Actor) -> Result<Head, ServiceError> {
        actor.may(Right::Administer)?;
        Ok(store::audit::head(&mut *self.parts.store.read().await?).await?)
    }

    /// Puts counted refusals on record minute by minute, and logs the head every hour so that it is known outside.
    pub async fn keep_audit(self) {
        for minute in 1u32.. {
            tokio::time::sleep(MINUTE).await;
            self.record_refusals().await;
            if minute.is_multiple_of(HOUR)
                && let Ok(Head { id, hash }) = self.head_now().await
            {
                tracing::info!(id, %hash, "the audit stands here");
            }
        }
    }

    async fn head_now(&self) -> Result<Head, StoreError> {
        store::audit::head(&mut *self.parts.store.read().await?).await
    }
}
