//! Faults: what broke by itself, who lost work by it, and whether it is over.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;

use super::frame::{Frame, Place};
use super::lists::{Asked, Ways};
use super::rendered;
use super::words::{Moment, State as Stands, severity};
use crate::domain::access::Actor;
use crate::domain::event::Details;
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::faults::FaultView;
use crate::service::page::Page;

/// Faults on a page, each of which takes two further questions.
const ROWS: u32 = 20;

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/faults", get(list))
}

#[derive(Template)]
#[template(path = "faults.html")]
struct FaultsPage {
    frame: Frame,
    faults: Vec<Fault>,
    ways: Ways,
}

struct Fault(FaultView);

impl Fault {
    fn matters(&self) -> Stands {
        severity(self.0.event.severity)
    }

    fn at(&self) -> Moment {
        Moment(self.0.event.at)
    }

    /// Whether MPS blames a process.
    fn blames(&self, pid: u32) -> bool {
        matches!(&self.0.event.details, Some(Details::Fault { reported, .. }) if reported.contains(&pid))
    }

    fn over(&self) -> Option<(i64, Moment)> {
        self.0.over.as_ref().map(|event| (event.id, Moment(event.at)))
    }
}

async fn list(State(app): State<AppState>, actor: Actor, asked: Asked) -> Result<Response, Problem> {
    let found = app.service.faults(&actor, &Page::parse(asked.text("cursor"), Some(ROWS))?).await?;
    let ways = asked.ways(found.next_cursor.as_deref());
    let frame = Frame::of(&app.service, &actor, Place::Faults, "Faults").await;
    let frame = if asked.is_first() { frame.live() } else { frame };
    Ok(rendered(&FaultsPage { frame, faults: found.items.into_iter().map(Fault).collect(), ways }))
}
