//! Tokens: the list, creation with the secret shown once, and revocation.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use super::forms::{Field, Form, FormErrors, KEY, Shape};
use super::frame::{Frame, Section};
use super::lists::{ListQuery, list_page};
use super::routes::PageRoutes;
use super::{refusal, rendered};
use crate::domain::token::{Secret, TokenId, TokenState};
use crate::http::extract::{Call, Path};
use crate::http::problem::Reply;
use crate::service::WriteOptions;
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

async fn list(call: Call, query: ListQuery) -> Reply {
    let tokens = async { call.app.service.tokens(&call.ctx, &query.page()?).await };
    Ok(query.list(&call, Section::Tokens, &[], tokens).await?.answer(|page| TokensPage { page }))
}

async fn show(call: Call, Path(id): Path<TokenId>) -> Reply {
    let token = call.app.service.token(&call.ctx, &id).await?;
    let frame = call.frame(Section::Tokens, format!("Token {}", token.name)).await;
    Ok(rendered(&TokenPage { frame, token }))
}

async fn fill_in(call: Call, query: ListQuery) -> Reply {
    // A user without the right is refused before typing.
    call.app.service.tokens(&call.ctx, &Page::first(1)).await?;
    let mut form = query.form().clone();
    form.set("expires_in_s", "1d");
    form.replace(KEY, call.ctx.clock.new_id().to_string());
    new_page(&call, &form, FormErrors::default()).await
}

async fn new_page(call: &Call, form: &Form, refused: FormErrors) -> Reply {
    let frame = call.frame(Section::Tokens, "New token").await;
    Ok(refused.shown(|refused| NewPage { frame, form, refused }))
}

async fn create(call: Call, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    let fields = FIELDS.map(|(name, _)| name);
    let create = async {
        let ctx = ctx.clone().with_idempotency(form.key(ctx, "/tokens/new", &fields));
        app.service.create_token(&ctx, form.read::<TokenRequest>(&FIELDS)?, WriteOptions::default()).await
    };
    match create.await {
        // Shown in the response itself: a page with its own address would show it again.
        Ok(made) => {
            let frame = call.frame(Section::Tokens, "Token created").await;
            Ok(rendered(&MadePage { frame, token: made.token, secret: made.secret }))
        }
        Err(error) => new_page(&call, &form, refusal(ctx, error, &fields)?).await,
    }
}

async fn confirm_revoke(call: Call, Path(id): Path<TokenId>) -> Reply {
    let token = call.app.service.token(&call.ctx, &id).await?;
    let frame = call.frame(Section::Tokens, format!("Revoke token {}", token.name)).await;
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
