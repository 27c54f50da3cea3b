//! Logging in.

use axum::response::{IntoResponse as _, Response};

use super::audit::RequestedChange;
use super::problem::Problem;
use super::{AppState, audit};
use crate::domain::access::Actor;
use crate::domain::token::Secret;
use crate::service::access::sessions::NewSession;

/// Opens a session for a caller that just authenticated, by this login code if it used one, and records the result.
pub(super) async fn open_session(
    state: &AppState,
    actor: Actor,
    code: Option<Secret>,
    requested: RequestedChange,
    answer: impl FnOnce(NewSession) -> Response,
) -> Response {
    let requested = requested.about("session");
    let ctx = requested.by(actor, state.service.clock());
    let (service, caller) = (state.service.clone(), ctx.clone());
    let opening =
        state.service.run_to_completion(async move { service.open_session(&caller, code.as_ref()).await });
    let answered =
        async { opening.await.map_or_else(|error| Problem::of(error, &ctx.actor).into_response(), answer) };
    audit::record_refusal_of(&state.service, &requested, &ctx, answered).await
}
