//! Requests as they run for an authenticated caller, of the API and of the pages.

use axum::extract::Request;
use axum::response::Response;

use super::{AppState, audit, problem};
use crate::domain::access::Actor;
use crate::service::access::context::RequestContext;

/// Runs a request as an actor: enforces its rate, records its refusal, and redacts its errors for tenants.
///
/// A request that changes something is completed even if the caller disconnects or the time for it is over.
pub(super) async fn as_actor<F: Future<Output = Response> + Send + 'static>(
    app: &AppState,
    actor: Actor,
    mut request: Request,
    work: impl FnOnce(RequestContext, Request) -> F,
) -> Response {
    if let Err(too_many) = app.rates.of_actor(&actor) {
        return too_many.into_response(&app.limits);
    }
    let requested = request.extensions().get::<audit::RequestedChange>().cloned();
    let clock = app.service.clock();
    let ctx = match &requested {
        Some(requested) => requested.by(actor, clock),
        None => RequestContext::new(actor, clock, None),
    };
    let ctx = ctx.after_event(app.service.last_event());
    request.extensions_mut().insert(ctx.clone());
    let (work, service, caller) = (work(ctx.clone(), request), app.service.clone(), ctx.clone());
    let work = async move { problem::for_actor(&service, &caller, work.await).await };
    match requested {
        Some(requested) => {
            let work = app.service.run_to_completion(work);
            audit::record_refusal_of(&app.service, &requested, &ctx, work).await
        }
        None => work.await,
    }
}
