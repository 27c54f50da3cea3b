//! Tokens: the list, creation with the secret shown once, and revocation.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use super::format;
use super::forms::{Field, Form, FormErrors, KEY, Shape};
use super::frame::{Frame, Section};
use super::lists::{ListQuery, list_page};
use super::routes::PageRoutes;
use super::{refusal, refused_with, rendered};
use crate::domain::token::{Secret, TokenId, TokenState};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::WriteOptions;
use crate::service::access::context::RequestContext;
use crate::service::access::sessions::SessionsOf;
use crate::service::access::tokens::{TokenRequest, TokenView};
use crate::service::page::Page;

const FIELDS: [Field; 3] = [("name", Shape::Text), ("grant", Shape::Text), ("expires_in_s", Shape::Seconds)];

pub(super) fn router() -> PageRoutes {
    PageRoutes::default()
        .route("/tokens", get(list))
        .form_route("/tokens/new", "tokens", get(fill_in).post(create))
        .route("/tokens/{id}", get(show))
        .route("/tokens/{id}/revoke", get(confirm_revoke).post(revoke))
        .route("/tokens/{id}/end-sessions", post(end_sessions))
}

list_page!(TokensPage, "tokens.html", TokenView);

#[derive(Template)]
#[template(path = "token.html")]
struct TokenPage {
    frame: Frame,
    token: TokenView,
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
    token: TokenView,
    secret: Option<Secret>,
}

#[derive(Template)]
#[template(path = "token_revoke.html")]
struct TokenRevokePage {
    frame: Frame,
    token: TokenView,
}

async fn frame(app: &AppState, ctx: &RequestContext, title: impl Into<String>) -> Frame {
    Frame::of(&app.service, ctx, Section::Tokens, title).await
}

async fn list(Call { app, ctx }: Call, query: ListQuery) -> Reply {
    let found = async { app.service.tokens(&ctx, &query.page()?).await }.await;
    let page = query.into_page(&app, &ctx, Section::Tokens, &[], found).await?;
    Ok(page.answer(|page| TokensPage { page }))
}

async fn show(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Reply {
    let token = app.service.token(&ctx, &id).await?;
    let frame = frame(&app, &ctx, format!("Token {}", token.name)).await;
    Ok(rendered(&TokenPage { frame, token }))
}

async fn fill_in(Call { app, ctx }: Call, query: ListQuery) -> Reply {
    // A user without the right is refused before typing.
    app.service.tokens(&ctx, &Page::first(1)).await?;
    let mut form = query.form().clone();
    form.set("expires_in_s", "1d");
    form.replace(KEY, app.service.clock().new_id().to_string());
    let (frame, refused) = (frame(&app, &ctx, "New token").await, FormErrors::default());
    Ok(rendered(&NewPage { frame, form: &form, refused }))
}

async fn create(Call { app, ctx }: Call, form: Form) -> Reply {
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
            Ok(rendered(&MadePage { frame, token: made.token, secret: made.secret }))
        }
        Err(error) => {
            let (refused, problem) = refusal(&ctx, error, &FIELDS.map(|(name, _)| name))?;
            let frame = frame(&app, &ctx, "New token").await;
            Ok(refused_with(&NewPage { frame, form: &form, refused }, problem))
        }
    }
}

async fn confirm_revoke(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Reply {
    let token = app.service.token(&ctx, &id).await?;
    let frame = frame(&app, &ctx, format!("Revoke token {}", token.name)).await;
    Ok(rendered(&TokenRevokePage { frame, token }))
}

async fn revoke(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Reply {
    app.service.revoke_token(&ctx, id.clone(), WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/tokens/{id}")).into_response())
}

/// Ends the sessions opened with a token, which stays valid.
async fn end_sessions(Call { app, ctx }: Call, Path(id): Path<TokenId>) -> Reply {
    Box::pin(app.service.end_sessions(&ctx, SessionsOf::Token(id.clone()))).await?;
    Ok(Redirect::to(&format!("/tokens/{id}")).into_response())
}
