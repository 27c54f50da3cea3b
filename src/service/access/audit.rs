//! Reading the audit log, and its periodic maintenance.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::Right;
use crate::domain::audit::{AuditOutcome, AuditRecord, ChangeGroup, Head, what_changed};
use crate::host::user::{name_of_user, number_of_user};
use crate::service::access::context::RequestContext;
use crate::service::page::{MAX_LIMIT, Page, Paged};
use crate::service::{Backend, Result, Service};
use crate::store;
pub use crate::store::audit::AuditFilter;

/// Interval at which the head of the chain is logged.
const HOUR: Duration = Duration::from_secs(3600);
/// Number of the newest rows of a target among which its last change is looked for: others are applications and verifications.
const RECENT: i64 = 50;

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

    /// Returns the changes since a time, up to another, grouped for people: up to `most` groups, the newest first.
    pub async fn what_changed(
        &self,
        ctx: &RequestContext,
        since: i64,
        until: Option<i64>,
        most: usize,
    ) -> Result<Vec<ChangeGroup>> {
        let filter = AuditFilter { since: Some(since), until, changes_only: true, ..AuditFilter::default() };
        let rows = self.audit(ctx, &filter, &Page::first(MAX_LIMIT)).await?.items;
        Ok(what_changed(&rows).into_iter().take(most).collect())
    }

    /// The newest row of a target that is meant, among its last few; operators may know who changed what they change.
    pub async fn last_change(
        &self,
        ctx: &RequestContext,
        target: String,
        is_meant: impl Fn(&AuditRecord) -> bool,
    ) -> Result<Option<AuditRecord>> {
        let backend = self.with(&ctx.require(Right::Operate)?);
        let filter =
            AuditFilter { target: Some(target), outcome: Some(AuditOutcome::Done), ..AuditFilter::default() };
        let rows = store::audit::page(&mut *backend.parts.store.read().await?, &filter, None, RECENT).await?;
        Ok(rows.into_iter().find(is_meant))
    }

    /// The names of users of this host, as far as it knows them.
    pub async fn user_names(&self, uids: BTreeSet<u32>) -> BTreeMap<u32, String> {
        let named = move || uids.into_iter().filter_map(|uid| Some((uid, name_of_user(uid)?))).collect();
        // The user database may be a server elsewhere.
        tokio::task::spawn_blocking(named).await.unwrap_or_default()
    }

    /// The number of a user of this host, or the reason why it is not known.
    pub async fn user_number(&self, name: String) -> Result<u32, String> {
        let numbered = tokio::task::spawn_blocking(move || number_of_user(&name)).await;
        numbered.unwrap_or_else(|error| Err(error.to_string()))
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
