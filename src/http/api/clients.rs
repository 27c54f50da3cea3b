//! Clients.

use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use super::described::OperationAccepted;
use super::{List, accepted};
use crate::domain::access::Actor;
use crate::domain::client::{ClientId, StoppedPolicy};
use crate::domain::operation::OperationRequest;
use crate::domain::{DaemonName, TenantName};
use crate::http::AppState;
use crate::http::extract::{Conditions, Idempotency, NoBody, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::clients::{ClientFilter, ClientView};
use crate::service::page::Page;

/// Which clients.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClientQuery {
    /// Those of this daemon.
    daemon: Option<DaemonName>,
    /// Those of this tenant.
    tenant: Option<TenantName>,
    /// Answer from a look that begins after this request; all who ask at once share it.
    #[serde(default)]
    fresh: bool,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Most items, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// All clients
#[utoipa::path(get, path = "/api/v1/clients", operation_id = "list_clients", tag = "clients", params(ClientQuery),
    responses((status = 200, description = "Clients by process ID", body = List<ClientView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<ClientQuery>,
) -> Result<axum::Json<List<ClientView>>, Problem> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let filter = ClientFilter { daemon: query.daemon, tenant: query.tenant };
    Ok(axum::Json(app.service.clients(&actor, &filter, query.fresh, &page).await?.into()))
}

/// One client
#[utoipa::path(get, path = "/api/v1/clients/{id}", operation_id = "get_client", tag = "clients",
    params(("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`")),
    responses((status = 200, description = "The client", body = ClientView), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<ClientId>,
) -> Result<axum::Json<ClientView>, Problem> {
    Ok(axum::Json(app.service.client(&actor, id).await?))
}

/// How a client is ended.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TerminateQuery {
    /// Do everything, answer as if it were done, and keep nothing.
    #[serde(default)]
    dry_run: bool,
    /// What to do where it is stopped (SIGSTOP, a debugger): `refuse` without it.
    #[serde(default)]
    #[param(inline)]
    stopped: StoppedPolicy,
}

/// End a client
///
/// MPS is asked first, and the process is signalled only after MPS has ended its work: the other order can take
/// the server down, and with it every other client. MPS is never asked to end a client that is stopped, which would hang its daemon:
/// that is refused (409) unless `stopped` says to continue or to kill it.
#[utoipa::path(post, path = "/api/v1/clients/{id}/terminate", operation_id = "terminate_client", tag = "clients",
    params(
        ("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`"), TerminateQuery,
        Idempotency,
    ),
    responses(OperationAccepted, WriteProblems))]
pub(super) async fn terminate(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<ClientId>,
    Query(query): Query<TerminateQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    _: NoBody,
) -> Result<Response, Problem> {
    let TerminateQuery { dry_run, stopped } = query;
    let key = idempotency.of(&actor, &OperationRequest::TerminateClient { client: id, stopped })?;
    let options = conditions.options(dry_run);
    Ok(accepted(&app.service.terminate(&actor, id, stopped, options, key).await?, dry_run))
}
