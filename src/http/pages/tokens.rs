//! Tokens: the list, creation with the secret shown once, and revocation.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};

use super::format::{Badge, token};
use super::forms::{Field, Form, FormErrors, KEY, Shape};
use super::frame::{Frame, Section};
use super::lists::{ListQuery, Listing};
use super::routes::PageRoutes;
use super::{listed, page, rendered};
use crate::domain::token::{Secret, TokenId, TokenState};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::Problem;
use crate::service::WriteOptions;
use crate::service::access::context::RequestContext;
use crate::service::access::sessions::SessionsOf;
use crate::service::access::tokens::{TokenRequest, TokenView};

const FIELDS: [Field; 3] = [("name", Shape::Text), ("grant", Shape::Text), ("expires_in_s", Shape::Seconds)];

pub(super) fn router() -> PageRoutes {
    PageRoutes::default()
        .route("/tokens", get(list))
        .form_route("/tokens/new", "tokens", get(fill_in).post(create))
        .route("/tokens/{id}", get(show))
        .route("/tokens/{id}/revoke", get(confirm_revoke).post(revoke))
        .route("/tokens/{id}/end-sessions", post(end_sessions))
}

#[derive(Template)]
#[template(path = "tokens.html")]
struct TokensPage {
    frame: Frame,
    list: Listing<Row>,
}

#[derive(Template)]
#[template(path = "token.html")]
struct TokenPage {
    frame: Frame,
    row: Row,
}

#[derive(Template)]
#[template(path = "token_new.html")]
struct NewPage<'a> {
    frame: Frame,
    form: &'a Form,
    refused: FormErrors,
}

#[derive(Template)]
#[template(path = "token_made.html")]
struct MadePage {
    frame: Frame,
    row: Row,
    secret: Option<Secret>,
}

#[derive(Template)]
#[template(path = "token_revoke.html")]
struct TokenRevokePage {
    frame: Frame,
    row: Row,
}

struct Row {
    token: TokenView,
    badge: Badge,
}

impl Row {
    fn of(view: TokenView) -> Self {
        Self { badge: token(view.state), token: view }
    }
}

async fn frame(app: &AppState, ctx: &RequestContext, title: &str) -> Frame {
    Frame::of(&app.service, ctx, Section::Tokens, title).await
}

async fn list(Call { app, ctx }: Call, query: ListQuery) -> Result<Response, Problem> {
    let found = async { app.service.tokens(&ctx, &query.page()?).await };
    let list = query.listing(found.await, &[])?.map(Row::of);
    let (frame, problem) = (frame(&app, &ctx, "Tokens").await, list.problem());
    Ok(listed(&TokensPage { frame, list }, problem))
}

async fn show(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Result<Response, Problem> {
    let row = Row::of(app.service.token(&ctx, &id).await?);
    let frame = frame(&app, &ctx, &format!("Token {}", row.token.name)).await;
    Ok(rendered(&TokenPage { frame, row }))
}

async fn fill_in(Call { app, ctx }: Call, query: ListQuery) -> Result<Response, Problem> {
    // A user without the right is refused before typing.
    let first = crate::service::page::Page::first(1);
    app.service.tokens(&ctx, &first).await?;
    let mut form = query.form().clone();
    form.set("expires_in_s", "1d");
    form.replace(KEY, app.service.clock().new_id().to_string());
    let (frame, refused) = (frame(&app, &ctx, "New token").await, FormErrors::default());
    Ok(rendered(&NewPage { frame, form: &form, refused }))
}

async fn create(Call { app, ctx }: Call, form: Form) -> Result<Response, Problem> {
    let made = match form.read::<TokenRequest>(&FIELDS) {
        Ok(request) => {
            let key = form.key(&ctx, "/tokens/new", &FIELDS.map(|(name, _)| name));
            let ctx = ctx.clone().with_idempotency(key);
            app.service.create_token(&ctx, request, WriteOptions::default()).await
        }
        Err(refused) => Err(refused),
    };
    match made {
        // Shown in the response itself: a page with its own address would show it again.
        Ok(made) => {
            let frame = frame(&app, &ctx, "Token created").await;
            Ok(rendered(&MadePage { frame, row: Row::of(made.token), secret: made.secret }))
        }
        Err(error) => {
            let problem = Problem::of(error, &ctx.actor);
            let (status, refused) =
                (problem.status(), FormErrors::of(problem, &FIELDS.map(|(name, _)| name)));
            Ok(page(status, &NewPage { frame: frame(&app, &ctx, "New token").await, form: &form, refused }))
        }
    }
}

async fn confirm_revoke(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Result<Response, Problem> {
    let row = Row::of(app.service.token(&ctx, &id).await?);
    let frame = frame(&app, &ctx, &format!("Revoke token {}", row.token.name)).await;
    Ok(rendered(&TokenRevokePage { frame, row }))
}

async fn revoke(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Result<Response, Problem> {
    app.service.revoke_token(&ctx, id.clone(), WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/tokens/{id}")).into_response())
}

/// Ends the sessions opened with a token, which stays valid.
async fn end_sessions(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Result<Response, Problem> {
    Box::pin(app.service.end_sessions(&ctx, SessionsOf::Token(id.clone()))).await?;
    Ok(Redirect::to(&format!("/tokens/{id}")).into_response())
}
