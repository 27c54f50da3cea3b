//! Pages for people: rendered here, complete without script, and live with it.
//!
//! A page does what the API does: it calls the same use cases as the logged-in user, and shows the results. Every page needs
//! a session ([`session_guard`]); refusals are pages too ([`failure`]). Nothing is loaded from elsewhere, and pages have no
//! inline script or style.

mod assets;
mod audit;
mod banner;
mod chart;
mod clients;
mod daemons;
mod events;
mod failure;
mod file;
mod format;
mod forms;
mod frame;
mod gpus;
mod hosts;
mod incidents;
mod layouts;
mod lists;
mod live;
mod login;
mod operations;
mod overview;
mod reads;
mod reference;
mod rendering;
mod routes;
mod search;
mod session_guard;
mod settings;
mod sharing;
mod sorting;
mod spec_form;
mod strip;
mod tenants;
mod timeline;
mod tokens;
mod vitals;

use axum::routing::{get, post};
use axum::{Router, middleware};
use tower_http::compression::CompressionLayer;

pub(super) use failure::{reader, shown};
pub(super) use reference::{outside, within_console};

use forms::refusal;
use rendering::{followed, page, rendered, with_status};
use routes::PageRoutes;

use super::AppState;
use super::form_targets::FormTargets;

/// The pages, and the targets of their forms.
pub(super) fn router(state: &AppState) -> (Router<AppState>, FormTargets) {
    let open = Router::new()
        .route("/login", get(login::show).post(login::log_in))
        .route("/logout", post(login::log_out))
        .merge(assets::router());
    let pages = PageRoutes::default()
        .route("/", get(overview::show))
        .route("/search", get(search::show))
        .route("/live", get(live::follow))
        .merge(gpus::router())
        .merge(daemons::router())
        .merge(tenants::router())
        .merge(clients::router())
        .merge(layouts::router())
        .merge(operations::router())
        .merge(events::router())
        .merge(incidents::router())
        .merge(timeline::router())
        .merge(audit::router())
        .merge(tokens::router())
        .merge(settings::router())
        .merge(hosts::router())
        .merge(file::router());
    let (pages, targets) = pages.into_parts();
    let pages = pages.layer(middleware::from_fn_with_state(state.clone(), session_guard::require));
    (open.merge(pages).layer(CompressionLayer::new()), targets)
}
