//! Checks rights before a query or a body is read: a caller without the right gets 401, 403 or 404 whatever they contain.
//!
//! Every use case checks its right too. But a query and a body are parsed before it begins, and refusing those first could
//! reveal what the caller may not see. The right is the one that the endpoint declares ([`super::endpoint`]).

use axum::extract::{FromRequestParts as _, RawPathParams, Request};
use axum::http::Method;
use axum::response::{IntoResponse as _, Response};

use super::endpoint::{Endpoint, RequiredRight};
use super::problem::Problem;
use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::service::access::context::RequestContext;
use crate::service::{Service, ServiceError};

/// Refuses a request of a caller without the right, before its query and its body are read.
pub(super) async fn check(
    service: &Service,
    ctx: &RequestContext,
    request: Request,
) -> Result<Request, Response> {
    let endpoint = Endpoint::of(&request);
    let (mut parts, body) = request.into_parts();
    if let Some(Endpoint { right, .. }) = endpoint {
        // The use case repeats a lookup made here, so it is made only if something else could be refused first. A request
        // with an Idempotency-Key may repeat one whose client has ended, and gets the first answer.
        let repeats = parts.headers.contains_key("idempotency-key");
        let has_input = !repeats && (parts.uri.query().is_some() || parts.method == Method::POST);
        let parameters = RawPathParams::from_request_parts(&mut parts, &()).await;
        let first = parameters.ok().and_then(|all| all.iter().next().map(|(_, value)| value.to_owned()));
        if let Err(error) = allowed(service, ctx, *right, first.as_deref(), has_input).await {
            return Err(Problem::from(error).into_response());
        }
    }
    Ok(Request::from_parts(parts, body))
}

/// Fails if the caller lacks the right; the use case decides what cannot be decided here.
async fn allowed(
    service: &Service,
    ctx: &RequestContext,
    right: RequiredRight,
    parameter: Option<&str>,
    has_input: bool,
) -> Result<(), ServiceError> {
    let tenant = || parameter.and_then(|name| TenantName::parse(name).ok());
    // Host users may see all of these.
    let looked_up = parameter.filter(|_| ctx.actor.scope().is_some() && has_input);
    match right {
        RequiredRight::Public | RequiredRight::LogIn => {}
        RequiredRight::OwnAccount | RequiredRight::OwnItems => ctx.actor.may(Right::ViewOwn)?,
        RequiredRight::View => ctx.actor.may(Right::View)?,
        RequiredRight::Operate => ctx.actor.may(Right::Operate)?,
        RequiredRight::Administer => ctx.actor.may(Right::Administer)?,
        RequiredRight::ViewTenant => {
            if let Some(name) = tenant() {
                ctx.actor.may(Right::ViewTenant(&name))?;
            }
        }
        RequiredRight::UseTenant => {
            if let Some(name) = tenant() {
                ctx.actor.may(Right::UseTenant(&name))?;
            }
        }
        RequiredRight::ViewClient | RequiredRight::EndClient => {
            if right == RequiredRight::EndClient && ctx.actor.scope().is_none() {
                ctx.actor.may(Right::Operate)?;
            }
            if let Some(id) = looked_up.and_then(|id| id.parse::<ClientId>().ok()) {
                service.client(ctx, id).await?;
            }
        }
        RequiredRight::ViewEvent => {
            if let Some(id) = looked_up.and_then(|id| id.parse().ok()) {
                service.event(ctx, id).await?;
            }
        }
        RequiredRight::ViewIncident => {
            if let Some(id) = looked_up.and_then(|id| id.parse().ok()) {
                service.incident(ctx, id).await?;
            }
        }
        RequiredRight::ViewOperation => {
            if let Some(id) = looked_up.and_then(|id| id.parse().ok()) {
                service.operation(ctx, id).await?;
            }
        }
    }
    Ok(())
}
