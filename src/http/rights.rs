//! Rights before anything else: whoever may not make a request is told so, whatever its query and its body are.
//!
//! Every use case asks for its right itself. A query or a body is read before there is a use case, so a refusal of those would
//! come first, and tell a caller of things that are not its own. Here the same right is asked as soon as it is known who calls.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts as _, MatchedPath, RawPathParams, Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use utoipa::openapi::OpenApi;

use super::AppState;
use super::document::operations;
use super::problem::Problem;
use crate::domain::TenantName;
use crate::domain::access::{Actor, Right};
use crate::domain::client::ClientId;
use crate::service::{Service, ServiceError};

/// What a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// To be somebody: what is shown or ended is one's own, or the use case decides.
    Own,
    View,
    Operate,
    Administer,
    /// To see the tenant in the path.
    ViewTenant,
    /// To use the tenant in the path.
    UseTenant,
    /// To see the client in the path.
    ViewClient,
    /// To end the client in the path.
    UseClient,
    ViewEvent,
    ViewOperation,
}

/// What an operation takes, by its ID.
fn need(operation: &str) -> Option<Need> {
    let need = match operation {
        "whoami" | "get_session" | "end_session" | "end_sessions" | "list_clients" | "list_events"
        | "stream_events" | "list_operations" | "list_tenants" => Need::Own,
        "get_host"
        | "list_gpus"
        | "get_gpu"
        | "get_maintenance"
        | "list_daemons"
        | "get_daemon"
        | "list_partitions"
        | "get_partition"
        | "list_foreign_daemons"
        | "get_foreign_daemon"
        | "list_layouts"
        | "get_layout"
        | "list_layout_versions"
        | "get_layout_version"
        | "export_layout"
        | "plan_layout"
        | "assert_layout"
        | "list_replays"
        | "get_replay"
        | "get_metrics" => Need::View,
        "begin_maintenance" | "end_maintenance" | "start_daemon" | "stop_daemon" | "restart_daemon"
        | "drain_daemon" | "cordon_daemon" | "uncordon_daemon" | "put_layout" | "delete_layout"
        | "apply_layout" | "import_layouts" | "create_replay" | "cancel_operation" => Need::Operate,
        "confirm_host" | "replace_gpu" | "put_daemon" | "delete_daemon" | "adopt_daemon"
        | "release_daemon" | "put_tenant" | "delete_tenant" | "list_tokens" | "create_token"
        | "get_token" | "revoke_token" | "create_login_url" | "list_audit" | "get_audit_head" => {
            Need::Administer
        }
        "get_tenant" | "get_tenant_environment" | "list_tenant_clients" | "list_leases" => Need::ViewTenant,
        "create_lease" | "revoke_lease" | "verify_tenant" => Need::UseTenant,
        "get_client" => Need::ViewClient,
        "terminate_client" => Need::UseClient,
        "get_event" => Need::ViewEvent,
        "get_operation" => Need::ViewOperation,
        _ => return None,
    };
    Some(need)
}

/// What each request takes, by method and route.
#[derive(Clone)]
pub(super) struct Needs(Arc<HashMap<(Method, String), Need>>);

impl Needs {
    pub(super) fn of(document: &OpenApi) -> Self {
        let needs = operations(document).filter_map(|(method, path, operation)| {
            let need = need(operation.operation_id.as_deref()?)?;
            Some(((method, path.to_owned()), need))
        });
        Self(Arc::new(needs.collect()))
    }

    fn get(&self, method: &Method, route: &str) -> Option<Need> {
        let method = if method == Method::HEAD { &Method::GET } else { method };
        self.0.get(&(method.clone(), route.to_owned())).copied()
    }
}

/// Refuses what a caller may not do before its query and its body are looked at.
pub(super) async fn judged(
    State((app, needs)): State<(AppState, Needs)>,
    actor: Actor,
    request: Request,
    next: Next,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let route = parts.extensions.get::<MatchedPath>().map(MatchedPath::as_str);
    if let Some(need) = route.and_then(|route| needs.get(&parts.method, route)) {
        // What is looked up is looked up twice: only where there is something else that could be refused first. A request with a key
        // may repeat one whose client has ended, and gets that one's answer.
        let repeats = parts.headers.contains_key("idempotency-key");
        let says_more = !repeats && (parts.uri.query().is_some() || parts.method == Method::POST);
        let named = RawPathParams::from_request_parts(&mut parts, &()).await;
        let named = named.ok().and_then(|names| names.iter().next().map(|(_, value)| value.to_owned()));
        if let Err(error) = allowed(&app.service, &actor, need, named.as_deref(), says_more).await {
            return Problem::from(error).into_response();
        }
    }
    next.run(Request::from_parts(parts, body)).await
}

/// Whether somebody may do it; what cannot be told here, the use case tells.
async fn allowed(
    service: &Service,
    actor: &Actor,
    need: Need,
    named: Option<&str>,
    says_more: bool,
) -> Result<(), ServiceError> {
    let tenant = || named.and_then(|name| TenantName::parse(name).ok());
    let looks_up = actor.scope().is_some() && says_more;
    match need {
        Need::Own => actor.may(Right::ViewOwn)?,
        Need::View => actor.may(Right::View)?,
        Need::Operate => actor.may(Right::Operate)?,
        Need::Administer => actor.may(Right::Administer)?,
        Need::ViewTenant => {
            if let Some(name) = tenant() {
                actor.may(Right::ViewTenant(&name))?;
            }
        }
        Need::UseTenant => {
            if let Some(name) = tenant() {
                actor.may(Right::UseTenant(&name))?;
            }
        }
        Need::ViewClient | Need::UseClient => {
            if need == Need::UseClient && actor.scope().is_none() {
                actor.may(Right::Operate)?;
            }
            if let Some(id) = named.and_then(|id| id.parse::<ClientId>().ok()).filter(|_| looks_up) {
                service.client(actor, id).await?;
            }
        }
        Need::ViewEvent => {
            if let Some(id) = named.and_then(|id| id.parse().ok()).filter(|_| looks_up) {
                service.event(actor, id).await?;
            }
        }
        Need::ViewOperation => {
            if let Some(id) = named.and_then(|id| id.parse().ok()).filter(|_| looks_up) {
                service.operation(actor, id).await?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::api;

    #[test]
    fn every_operation_says_what_it_needs() {
        let (_, _, document) = api::router();
        let mut known = 0;
        for (method, path, operation) in operations(&document) {
            // What needs no token is open to everybody.
            if operation.security.is_some() {
                continue;
            }
            let id = operation.operation_id.as_deref().expect("an ID");
            assert!(need(id).is_some(), "{method} {path}: say in `need` what {id} takes");
            known += 1;
        }
        assert!(known > 60, "{known}");
    }
}
