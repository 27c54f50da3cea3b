//! Control daemons that are none of this manager's.

use axum::extract::State;

use super::List;
use crate::domain::access::Actor;
use crate::domain::client::ClientId;
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::problem::{Problem, ReadProblems};
use crate::service::foreign::ForeignDaemonView;

/// All foreign control daemons
///
/// Found by their processes in any directory, and each read now in one session of its own.
#[utoipa::path(get, path = "/api/v1/foreign-daemons", operation_id = "list_foreign_daemons", tag = "daemons",
    responses((status = 200, description = "Foreign control daemons by process ID", body = List<ForeignDaemonView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
) -> Result<axum::Json<List<ForeignDaemonView>>, Problem> {
    Ok(axum::Json(List { items: app.service.foreign_daemons(&actor).await?, next_cursor: None }))
}

/// One foreign control daemon
#[utoipa::path(get, path = "/api/v1/foreign-daemons/{id}", operation_id = "get_foreign_daemon", tag = "daemons",
    params(("id" = ClientId, Path, description = "Its process ID and start time, as `1234-567890`")),
    responses((status = 200, description = "The foreign control daemon", body = ForeignDaemonView), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<String>,
) -> Result<axum::Json<ForeignDaemonView>, Problem> {
    Ok(axum::Json(app.service.foreign_daemon(&actor, &id).await?))
}
