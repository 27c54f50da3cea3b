//! Tokens, and who the caller is.

use axum::http::{StatusCode, header};
use axum::response::IntoResponse as _;

use super::{List, PageQuery, WriteQuery};
use crate::domain::token::TokenId;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Idempotency, Json, NoBody, Path, Query};
use crate::http::problem::{Answer, Problem, Reply};
use crate::service::access::tokens::{NewToken, TokenRequest, TokenView};
use crate::service::access::whoami::WhoamiView;

/// Get the caller
///
/// By the token, the session or the user of the request.
#[utoipa::path(get, path = "/api/v1/whoami", operation_id = "whoami", tag = "access",
    extensions(("x-right" = json!(RequiredRight::OwnAccount))),
    responses((status = 200, description = "Who the caller is, and what it may do.", body = WhoamiView)))]
pub(super) async fn whoami(Call { app, ctx }: Call) -> Answer<WhoamiView> {
    Ok(axum::Json(app.service.whoami(&ctx)?))
}

/// List tokens
///
/// Includes up to 1000 tokens that were revoked or have expired.
#[utoipa::path(get, path = "/api/v1/tokens", operation_id = "list_tokens", tag = "access",
    extensions(("x-right" = json!(RequiredRight::Administer))), params(PageQuery),
    responses((status = 200, description = "Tokens, ordered by ID.", body = List<TokenView>)))]
pub(super) async fn list(Call { app, ctx }: Call, Query(query): Query<PageQuery>) -> Answer<List<TokenView>> {
    Ok(axum::Json(app.service.tokens(&ctx, &query.page()?).await?.into()))
}

/// Get a token
#[utoipa::path(get, path = "/api/v1/tokens/{id}", operation_id = "get_token", tag = "access",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(("id" = TokenId, Path, description = "The ID of the token.")),
    responses((status = 200, description = "The token, without its secret.", body = TokenView)))]
pub(super) async fn get(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Answer<TokenView> {
    Ok(axum::Json(app.service.token(&ctx, &id).await?))
}

/// Create a token
///
/// The text of the token is in this answer only. A request that is repeated with its `Idempotency-Key` creates no second token and is
/// answered with 200, without the text. If the first answer was lost, revoke the token and create another one.
#[utoipa::path(post, path = "/api/v1/tokens", operation_id = "create_token", tag = "access",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(WriteQuery, Idempotency),
    request_body = TokenRequest,
    responses(
        (status = 201, description = "The token, with its text.", body = NewToken),
        (status = 200, description = "A dry run or a repeated request: the token without its text.", body = NewToken)
    ))]
pub(super) async fn create(
    Call { app, ctx }: Call,
    Query(query): Query<WriteQuery>,
    idempotency: Idempotency,
    Json(request): Json<TokenRequest>,
) -> Reply {
    let ctx = idempotency.add_to(ctx, &request)?;
    let made = app.service.create_token(&ctx, request, query.options()).await?;
    if made.secret.is_none() {
        return Ok((StatusCode::OK, axum::Json(made)).into_response());
    }
    let location = format!("/api/v1/tokens/{}", made.token.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], axum::Json(made)).into_response())
}

/// Revoke a token
///
/// The token is invalid when this is answered; its streams and sessions end. It stays in the list.
#[utoipa::path(delete, path = "/api/v1/tokens/{id}", operation_id = "revoke_token", tag = "access",
    extensions(("x-right" = json!(RequiredRight::Administer))),
    params(("id" = TokenId, Path, description = "The ID of the token."), WriteQuery),
    responses((status = 204, description = "Revoked now or before, or a dry run.")))]
pub(super) async fn revoke(
    Call { app, ctx }: Call,
    Path(id): Path<TokenId>,
    Query(query): Query<WriteQuery>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    app.service.revoke_token(&ctx, id, query.options()).await?;
    Ok(StatusCode::NO_CONTENT)
}
