//! Logging in.

use axum::response::{IntoResponse as _, Response};

use crate::domain::access::Actor;
use crate::domain::token::Secret;
use crate::http::audit::RequestedChange;
use crate::http::problem::Problem;
use crate::http::{AppState, audit};
use crate::service::access::redaction::with_caller;
use crate::service::access::sessions::NewSession;

/// Opens a session for a caller that just authenticated, by this login code if it used one, and records the result.
pub(in crate::http) async fn log_in(
    state: &AppState,
    actor: &Actor,
    code: Option<&Secret>,
    requested: RequestedChange,
    answer: impl FnOnce(NewSession) -> Response,
) -> Response {
    let opening = with_caller(actor.clone(), async {
        let opened = Box::pin(state.service.open_session(actor, code)).await;
        opened.map_or_else(|error| Problem::from(error).into_response(), answer)
    });
    audit::record_refusal_of(&state.service, &requested.about("session"), actor, opening).await
}
