//! The API's reference: within the console for users who are logged in, and for all others without a menu.

use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;

use super::frame::{Frame, Outside, Section};
use super::{page, rendered};
use crate::http::AppState;
use crate::http::extract::Call;

#[derive(Template)]
#[template(path = "docs.html")]
struct ReferencePage {
    frame: Frame,
    reference: &'static str,
}

#[derive(Template)]
#[template(path = "docs_outside.html")]
struct PublicReferencePage {
    outside: Outside,
    reference: &'static str,
}

pub(in crate::http) async fn within_console(call: Call, reference: &'static str) -> Response {
    let frame = call.frame(Section::Api, Section::Api.label()).await;
    rendered(&ReferencePage { frame, reference })
}

pub(in crate::http) async fn outside(app: &AppState, reference: &'static str) -> Response {
    let outside = Outside::of(&app.service).await;
    page(StatusCode::OK, &PublicReferencePage { outside, reference })
}
