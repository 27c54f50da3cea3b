//! Control daemons that this manager does not own.

use super::List;
use super::parameters::WriteQuery;
use crate::domain::client::ClientId;
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, NoBody, Path, Query};
use crate::http::problem::Answer;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::daemons::lost::LostDaemonAdoption;

/// List foreign control daemons
///
/// Those that this manager does not own, found by their processes and read now.
#[utoipa::path(get, path = "/api/v1/foreign-daemons", operation_id = "list_foreign_daemons", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    responses((status = 200, description = "Foreign control daemons, ordered by process ID.", body = List<ForeignDaemonView>)))]
pub(super) async fn list(Call { app, ctx }: Call) -> Answer<List<ForeignDaemonView>> {
    Ok(axum::Json(List { items: app.service.foreign_daemons(&ctx).await?, next_cursor: None }))
}

/// Get a foreign control daemon
#[utoipa::path(get, path = "/api/v1/foreign-daemons/{id}", operation_id = "get_foreign_daemon", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`.")),
    responses((status = 200, description = "The foreign control daemon.", body = ForeignDaemonView)))]
pub(super) async fn get(Call { app, ctx }: Call, Path(id): Path<String>) -> Answer<ForeignDaemonView> {
    Ok(axum::Json(app.service.foreign_daemon(&ctx, &id).await?))
}

/// Take back the daemons of a lost database
///
/// Adopts every running daemon that a manager of this runtime directory started and that the database does not know, as after
/// the loss of the state directory, each under its name and with its clients. Processes, sockets and settings stay as they are; the
/// tenants, their limits and the previous compute modes are not known any more. A daemon that cannot be adopted is reported with the
/// reason, and keeps no other from it.
#[utoipa::path(post, path = "/api/v1/foreign-daemons/adopt-lost", operation_id = "adopt_lost_daemons", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::Administer)), ("x-idempotency-key" = json!(KeyPolicy::StoreAnswer))),
    params(WriteQuery),
    responses((status = 200, description = "What was adopted, or would be in a dry run.", body = LostDaemonAdoption)))]
pub(super) async fn adopt_lost(
    Call { app, ctx }: Call,
    Query(query): Query<WriteQuery>,
    _: NoBody,
) -> Answer<LostDaemonAdoption> {
    Ok(axum::Json(app.service.adopt_lost_daemons(&ctx, query.options()).await?))
}
