//! The audit.

use axum::extract::State;
use serde::Deserialize;
use utoipa::IntoParams;

use super::List;
use crate::domain::access::Actor;
use crate::domain::audit::{AuditRecord, Head, Outcome};
use crate::http::AppState;
use crate::http::extract::Query;
use crate::http::problem::{Problem, ReadProblems};
use crate::service::audit::AuditFilter;
use crate::service::page::Page;

/// Which rows.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    /// Those of this actor, as rows name it.
    #[param(example = "uid 0")]
    actor: Option<String>,
    /// Those about this, as rows name it.
    #[param(example = "tenants/web")]
    target: Option<String>,
    /// Those that ended so.
    outcome: Option<Outcome>,
    /// Those written at this time or later, in unix milliseconds.
    since: Option<i64>,
    /// Those written before this time, in unix milliseconds.
    until: Option<i64>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Most items, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// The audit
///
/// Who did what, from where, and what came of it. Rows are never changed or deleted; each holds the hash of the one before it.
#[utoipa::path(get, path = "/api/v1/audit", operation_id = "list_audit", tag = "audit", params(AuditQuery),
    responses((status = 200, description = "Rows, the last first", body = List<AuditRecord>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<AuditQuery>,
) -> Result<axum::Json<List<AuditRecord>>, Problem> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let AuditQuery { actor: of, target, outcome, since, until, .. } = query;
    let filter = AuditFilter { actor: of, target, outcome, since, until };
    Ok(axum::Json(app.service.audit(&actor, &filter, &page).await?.into()))
}

/// The end of the audit's chain
///
/// Whoever keeps it elsewhere can tell later whether rows up to it were changed, or cut off.
#[utoipa::path(get, path = "/api/v1/audit/head", operation_id = "get_audit_head", tag = "audit",
    responses((status = 200, description = "The number and the hash of the last row", body = Head), ReadProblems))]
pub(super) async fn head(State(app): State<AppState>, actor: Actor) -> Result<axum::Json<Head>, Problem> {
    Ok(axum::Json(app.service.audit_head(&actor).await?))
}
