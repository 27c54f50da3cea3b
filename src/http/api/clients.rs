//! Clients.

use serde::Deserialize;
use utoipa::IntoParams;

use super::described::OperationAccepted;
use super::{List, accepted};
use crate::domain::client::{ClientId, StoppedPolicy};
use crate::domain::operation::OperationRequest;
use crate::domain::{DaemonName, TenantName};
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Idempotency, NoBody, Path, Query};
use crate::http::problem::{Answer, Reply};
use crate::service::WriteOptions;
use crate::service::page::Page;
use crate::service::tenants::clients::{ClientFilter, ClientView};

/// The clients to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ClientQuery {
    /// Only those of this daemon.
    daemon: Option<DaemonName>,
    /// Only those of this tenant.
    tenant: Option<TenantName>,
    /// Answer from a poll that begins after this request; requests at the same time share one.
    #[serde(default)]
    fresh: bool,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// The most items to return, 1 to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List clients
#[utoipa::path(get, path = "/api/v1/clients", operation_id = "list_clients", tag = "clients",
    extensions(("x-right" = json!(RequiredRight::OwnItems))), params(ClientQuery),
    responses((status = 200, description = "Clients, ordered by process ID.", body = List<ClientView>)))]
pub(super) async fn list(
    Call { app, ctx }: Call,
    Query(query): Query<ClientQuery>,
) -> Answer<List<ClientView>> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let filter = ClientFilter { daemon: query.daemon, tenant: query.tenant };
    Ok(axum::Json(app.service.known_clients(&ctx, &filter, query.fresh, &page).await?.into()))
}

/// Get a client
#[utoipa::path(get, path = "/api/v1/clients/{id}", operation_id = "get_client", tag = "clients",
    extensions(("x-right" = json!(RequiredRight::ViewClient))),
    params(("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`.")),
    responses((status = 200, description = "The client.", body = ClientView)))]
pub(super) async fn get(Call { app, ctx }: Call, Path(id): Path<ClientId>) -> Answer<ClientView> {
    Ok(axum::Json(app.service.client(&ctx, id).await?))
}

/// Options for the termination of a client.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TerminateQuery {
    /// Check the request and answer as if it were done, but change nothing.
    #[serde(default)]
    dry_run: bool,
    /// Action on a client that is stopped (by SIGSTOP or a debugger); `refuse` by default.
    #[serde(default)]
    #[param(inline)]
    stopped: StoppedPolicy,
}

/// Terminate a client
///
/// MPS ends the client's work first, and only then is its process signalled: the other order can take down the server, and with it
/// every other client. A client that is stopped would hang the daemon at that, so it is refused (409) unless `stopped` says to continue
/// or to kill it.
#[utoipa::path(post, path = "/api/v1/clients/{id}/terminate", operation_id = "terminate_client", tag = "clients",
    extensions(("x-right" = json!(RequiredRight::EndClient))),
    params(
        ("id" = ClientId, Path, description = "Process ID and start time, as in `1234-567890`."), TerminateQuery,
        Idempotency,
    ),
    responses(OperationAccepted))]
pub(super) async fn terminate(
    Call { app, ctx }: Call,
    Path(id): Path<ClientId>,
    Query(query): Query<TerminateQuery>,
    idempotency: Idempotency,
    _: NoBody,
) -> Reply {
    let TerminateQuery { dry_run, stopped } = query;
    let ctx = idempotency.add_to(ctx, &OperationRequest::TerminateClient { client: id, stopped })?;
    let options = WriteOptions::unconditional(dry_run);
    Ok(accepted(&app.service.terminate(&ctx, id, stopped, options).await?, dry_run))
}
