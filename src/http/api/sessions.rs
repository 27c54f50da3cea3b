//! Sessions of browsers.

use axum::extract::{ConnectInfo, Extension, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::List;
use super::described::NotFound;
use crate::domain::token::{Secret, TokenId};
use crate::http::AppState;
use crate::http::audit::RequestedChange;
use crate::http::auth::{self, CurrentSession};
use crate::http::endpoint::{KeyPolicy, RequiredRight};
use crate::http::extract::{Call, Json, NoBody, Query};
use crate::http::log_in::open_session;
use crate::http::peer::Peer;
use crate::http::problem::{Answer, Problem, Reply};
use crate::service::ServiceError;
use crate::service::access::sessions::{NewSession, SessionView, SessionsOf};

/// Credentials for a login.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LoginRequest {
    /// A token.
    #[schema(value_type = String, example = "mpsm_0123456789abcdef_…")]
    token: Secret,
}

/// Log in
///
/// Opens a session for a token, with a cookie. The session is valid as long as the token, and ends after a time without use.
#[utoipa::path(post, path = "/api/v1/session", operation_id = "open_session", tag = "access",
    extensions(("x-right" = json!(RequiredRight::LogIn)), ("x-idempotency-key" = json!(KeyPolicy::Refuse))), security(()),
    request_body = LoginRequest,
    responses(
        (status = 201, description = "The session; its secret is in the cookie only.", body = SessionView, headers(("Set-Cookie" = String)))
    ))]
pub(super) async fn open(
    State(app): State<AppState>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Extension(requested): Extension<RequestedChange>,
    Json(request): Json<LoginRequest>,
) -> Response {
    let admission = app.service.without_permit().access().holder(
        &request.token,
        peer.origin(),
        app.service.clock().unix_ms(),
    );
    let Some(admission) = admission else {
        return auth::failed(&app, peer, auth::NOT_VALID).await;
    };
    let answer = |opened: NewSession| {
        let cookie = app.auth.cookie(&opened.cookie, opened.max_age_s);
        (StatusCode::CREATED, [(header::SET_COOKIE, cookie)], axum::Json(opened.session)).into_response()
    };
    open_session(&app, admission.actor, None, requested, answer).await
}

/// Get the session of this request
#[utoipa::path(get, path = "/api/v1/session", operation_id = "get_session", tag = "access",
    extensions(("x-right" = json!(RequiredRight::OwnAccount))),
    responses((status = 200, description = "The session.", body = SessionView), NotFound))]
pub(super) async fn get(Call { app, ctx }: Call, CurrentSession(key): CurrentSession) -> Answer<SessionView> {
    Ok(axum::Json(app.service.session(&ctx, key)?))
}

/// Log out
#[utoipa::path(delete, path = "/api/v1/session", operation_id = "end_session", tag = "access",
    extensions(("x-right" = json!(RequiredRight::OwnAccount))),
    responses((status = 204, description = "The session has ended."), NotFound))]
pub(super) async fn end(Call { app, ctx }: Call, CurrentSession(key): CurrentSession, _: NoBody) -> Reply {
    app.service.end_session(&ctx, key).await?;
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, app.auth.no_cookie())]).into_response())
}

/// List sessions
#[utoipa::path(get, path = "/api/v1/sessions", operation_id = "list_sessions", tag = "access",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    responses((status = 200, description = "Sessions of browsers, the last used first.", body = List<SessionView>)))]
pub(super) async fn list(Call { app, ctx }: Call) -> Answer<List<SessionView>> {
    Ok(axum::Json(List { items: app.service.sessions(&ctx)?, next_cursor: None }))
}

/// The owner of the sessions to end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct SessionsQuery {
    /// End the sessions of the token with this ID, or of the admin token with `admin`; those of the caller by default. Requires an
    /// admin.
    #[param(pattern = "^(admin|[0-9a-f]{16})$", example = "0123456789abcdef")]
    token: Option<String>,
    /// End the sessions of the user of this host with this uid, instead of a token. Sessions of root and of the manager's own user belong
    /// to the admin token. Requires an admin.
    #[param(example = 1000)]
    uid: Option<u32>,
}

/// Log out everywhere
#[utoipa::path(delete, path = "/api/v1/sessions", operation_id = "end_sessions", tag = "access",
    extensions(("x-right" = json!(RequiredRight::OwnAccount))), params(SessionsQuery),
    responses((status = 204, description = "All sessions of the token or the user have ended."), NotFound))]
pub(super) async fn end_all(
    Call { app, ctx }: Call,
    Query(query): Query<SessionsQuery>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let of = match (query.token.as_deref(), query.uid) {
        (None, None) => SessionsOf::Own,
        (None, Some(uid)) => SessionsOf::User(uid),
        (Some(_), Some(_)) => {
            let both =
                "the sessions of a token or of a user are ended, not of both at once: leave out one of them";
            return Err(ServiceError::field("/uid", both).into());
        }
        (Some("admin"), None) => SessionsOf::AdminToken,
        (Some(id), None) => {
            let id = TokenId::parse(id).map_err(|error| ServiceError::field("/token", error.to_string()))?;
            SessionsOf::Token(id)
        }
    };
    Box::pin(app.service.end_sessions(&ctx, of)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// An address that logs in a browser once.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LoginUrl {
    /// The address.
    #[schema(value_type = String, example = "http://127.0.0.1:8640/login?code=…")]
    pub url: Secret,
    /// Time at which it expires.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: i64,
}

/// Create an address that logs in a browser once
///
/// Opened within 15 minutes, it opens a session with the rights of the caller.
#[utoipa::path(post, path = "/api/v1/login-urls", operation_id = "create_login_url", tag = "access",
    extensions(("x-right" = json!(RequiredRight::Administer)), ("x-idempotency-key" = json!(KeyPolicy::Refuse))),
    responses((status = 201, description = "The address, which is shown only here.", body = LoginUrl)))]
pub(super) async fn create_login_url(
    Call { app, ctx }: Call,
    _: NoBody,
) -> Result<(StatusCode, axum::Json<LoginUrl>), Problem> {
    let made = app.service.create_login_code(&ctx).await?;
    let url = app.auth.login_url(&made.code);
    Ok((StatusCode::CREATED, axum::Json(LoginUrl { url, expires_at: made.expires_at })))
}
