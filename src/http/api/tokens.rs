//! Tokens, and who one is.

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};

use super::{List, PageQuery, WriteQuery};
use crate::domain::access::Actor;
use crate::domain::token::TokenId;
use crate::http::AppState;
use crate::http::extract::{Conditions, Idempotency, Json, NoBody, Path, Query};
use crate::http::problem::{Problem, ReadProblems, WriteProblems};
use crate::service::tokens::{NewToken, TokenRequest, TokenView};
use crate::service::whoami::WhoamiView;

/// Who one is
///
/// By the token, the session or the user that the request comes with.
#[utoipa::path(get, path = "/api/v1/whoami", operation_id = "whoami", tag = "access",
    responses((status = 200, description = "Who one is, and what one may do", body = WhoamiView), ReadProblems))]
pub(super) async fn whoami(
    State(app): State<AppState>,
    actor: Actor,
) -> Result<axum::Json<WhoamiView>, Problem> {
    Ok(axum::Json(app.service.whoami(&actor).await?))
}

/// All tokens
///
/// Those that cannot be used any more among them, up to a thousand.
#[utoipa::path(get, path = "/api/v1/tokens", operation_id = "list_tokens", tag = "access", params(PageQuery),
    responses((status = 200, description = "Tokens by ID", body = List<TokenView>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<PageQuery>,
) -> Result<axum::Json<List<TokenView>>, Problem> {
    Ok(axum::Json(app.service.tokens(&actor, &query.page()?).await?.into()))
}

/// One token
#[utoipa::path(get, path = "/api/v1/tokens/{id}", operation_id = "get_token", tag = "access",
    params(("id" = TokenId, Path, description = "The token, by its ID")),
    responses((status = 200, description = "The token, without its secret", body = TokenView), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<TokenId>,
) -> Result<axum::Json<TokenView>, Problem> {
    Ok(axum::Json(app.service.token(&actor, &id).await?))
}

/// Make a token
///
/// Its text is in this answer and nowhere else. A request that is repeated with its `Idempotency-Key` makes no other token, and
/// is answered with 200 and without the text: make another token if the first answer was lost, and revoke this one.
#[utoipa::path(post, path = "/api/v1/tokens", operation_id = "create_token", tag = "access",
    params(WriteQuery, Idempotency),
    request_body = TokenRequest,
    responses(
        (status = 201, description = "The token, with its text", body = NewToken),
        (status = 200, description = "A dry run, or a repeated request: the token without its text", body = NewToken),
        WriteProblems,
    ))]
pub(super) async fn create(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    idempotency: Idempotency,
    Json(request): Json<TokenRequest>,
) -> Result<Response, Problem> {
    let key = idempotency.of(&actor, &request)?;
    let made = app.service.create_token(&actor, request, conditions.options(query.dry_run), key).await?;
    if made.secret.is_none() {
        return Ok((StatusCode::OK, axum::Json(made)).into_response());
    }
    let location = format!("/api/v1/tokens/{}", made.token.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], axum::Json(made)).into_response())
}

/// Revoke a token
///
/// In force when this is answered; streams and sessions that came of it end. The token stays in the list.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", operation_id = "revoke_token", tag = "access",
    params(("id" = TokenId, Path, description = "The token, by its ID"), WriteQuery),
    responses((status = 204, description = "Revoked, now or before; or a dry run"), WriteProblems))]
pub(super) async fn revoke(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<TokenId>,
    Query(query): Query<WriteQuery>,
    conditions: Conditions,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    app.service.revoke_token(&actor, id, conditions.options(query.dry_run)).await?;
    Ok(StatusCode::NO_CONTENT)
}
