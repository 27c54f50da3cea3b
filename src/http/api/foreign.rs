//! Control daemons that this manager does not own.

use axum::extract::State;

use super::List;
use crate::domain::client::ClientId;
use crate::http::AppState;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::Path;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::daemons::foreign::ForeignDaemonView;

/// List foreign control daemons
///
/// Those that this manager does not own, found by their processes and read now.
#[utoipa::path(get, path = "/api/v1/foreign-daemons", operation_id = "list_foreign_daemons", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    responses((status = 200, description = "Foreign control daemons, ordered by process ID.", body = List<ForeignDaemonView>)))]
pub(super) async fn list(
    State(app): State<AppState>,
    ctx: RequestContext,
) -> Result<axum::Json<List<ForeignDaemonView>>, Problem> {
    Ok(axum::Json(List { items: app.service.foreign_daemons(&ctx).await?, next_cursor: None }))
}

/// Get a foreign control daemon
#[utoipa::path(get, path = "/api/v1/foreign-daemons/{id}", operation_id = "get_foreign_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`.")),
    responses((status = 200, description = "The foreign control daemon.", body = ForeignDaemonView)))]
pub(super) async fn get(
    State(app): State<AppState>,
    ctx: RequestContext,
    Path(id): Path<String>,
) -> Result<axum::Json<ForeignDaemonView>, Problem> {
    Ok(axum::Json(app.service.foreign_daemon(&ctx, &id).await?))
}
