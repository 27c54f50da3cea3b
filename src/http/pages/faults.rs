//! Faults: what broke by itself, who lost work by it, and whether it is over.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;

use super::frame::{Frame, Place};
use super::lists::{Asked, Ways};
use super::words::{Moment, State as Stands, Tone, severity};
use super::{gpus, rendered};
use crate::domain::GpuUuid;
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
    /// What people call the GPUs.
    gpus: Vec<(GpuUuid, String)>,
    ways: Ways,
}

struct Fault(FaultView);

impl Fault {
    /// How it stands: what is over needs nobody any more.
    fn matters(&self) -> Stands {
        match self.0.over {
            Some(_) => Stands { word: "over", tone: Tone::Quiet },
            None => severity(self.0.event.severity),
        }
    }

    fn at(&self) -> Moment {
        Moment(self.0.event.at)
    }

    /// Whether MPS blames a process.
    fn blames(&self, pid: u32) -> bool {
        matches!(&self.0.event.details, Some(Details::Fault { reported, .. }) if reported.contains(&pid))
    }

    /// What to do about a client that keeps the server from taking others.
    fn holds(&self, pid: u32) -> Option<&'static str> {
        let holder = self.0.holders.iter().find(|holder| holder.client.pid == pid)?;
        Some(if holder.stopped {
            "it is stopped, so continue it (kill -CONT) or end it; no client gets in before"
        } else {
            "end it; no client gets in before"
        })
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
    let gpus = gpus::names(&app, &actor).await;
    Ok(rendered(&FaultsPage { frame, faults: found.items.into_iter().map(Fault).collect(), gpus, ways }))
}
