//! The audit log.

use serde::Deserialize;
use utoipa::IntoParams;

use super::List;
use crate::domain::audit::{AuditOutcome, AuditRecord, Head};
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Query};
use crate::http::problem::Answer;
use crate::service::access::audit::AuditFilter;
use crate::service::page::Page;

/// The rows of the audit log to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    /// Only those of this actor, as rows name it.
    #[param(example = "uid 0")]
    actor: Option<String>,
    /// Only those about this target, as rows name it.
    #[param(example = "tenants/web")]
    target: Option<String>,
    /// Only those with this outcome.
    outcome: Option<AuditOutcome>,
    /// Only those written at this time or later.
    #[serde(default, with = "crate::domain::rfc3339::option")]
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<i64>,
    /// Only those written before this time.
    #[serde(default, with = "crate::domain::rfc3339::option")]
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<i64>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List the audit log
///
/// Rows say who did what, from where, and with which outcome. They are never changed or deleted; each holds the hash of the previous one.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "list_audit", tag = "audit",
    extensions(("x-right" = json!(RequiredRight::Administer))), params(AuditQuery),
    responses((status = 200, description = "Rows, the newest first.", body = List<AuditRecord>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<AuditQuery>,
) -> Answer<List<AuditRecord>> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let AuditQuery { actor: of, target, outcome, since, until, .. } = query;
    let filter = AuditFilter { actor: of, target, outcome, since, until, changes_only: false };
    Ok(axum::Json(app.service.audit(&ctx, &filter, &page).await?.into()))
}

/// Get the head of the audit log
///
/// Keep it elsewhere, and `mps-manager audit verify --anchor` finds out later whether rows up to it were changed or removed.
#[utoipa::path(get, path = "/api/v1/audit/head", operation_id = "get_audit_head", tag = "audit",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    responses((status = 200, description = "The number and the hash of the last row.", body = Head)))]
pub(super) async fn head(Call { app, ctx }: Call) -> Answer<Head> {
    Ok(axum::Json(app.service.audit_head(&ctx).await?))
}
