//! Faults: what broke, who lost work, and whether it has ended.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;

use super::format::{Badge, Moment, Tone, severity};
use super::frame::{Frame, Section};
use super::lists::{ListQuery, PageLinks};
use super::{gpus, rendered};
use crate::domain::GpuUuid;
use crate::domain::event::Details;
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::events::faults::FaultView;
use crate::service::page::Page;

/// Faults per page; each costs two further queries.
const ROWS: u32 = 20;

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/faults", get(list))
}

#[derive(Template)]
#[template(path = "faults.html")]
struct FaultsPage {
    frame: Frame,
    faults: Vec<Fault>,
    /// The display names of the GPUs.
    gpus: Vec<(GpuUuid, String)>,
    page_links: PageLinks,
}

struct Fault(FaultView);

impl Fault {
    /// Its state: a fault that has ended needs no attention.
    fn matters(&self) -> Badge {
        match self.0.over {
            Some(_) => Badge { word: "over", tone: Tone::Quiet },
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

    /// What to do about a client that keeps the server from accepting others.
    fn holds(&self, pid: u32) -> Option<&'static str> {
        let holder = self.0.holders.iter().find(|holder| holder.client.pid == pid)?;
        Some(if holder.stopped {
            "it is stopped, so continue it (kill -CONT) or end it; until then no other client can connect"
        } else {
            "end it; until then no other client can connect"
        })
    }

    fn over(&self) -> Option<(i64, Moment)> {
        self.0.over.as_ref().map(|event| (event.id, Moment(event.at)))
    }
}

async fn list(
    State(app): State<AppState>,
    ctx: RequestContext,
    query: ListQuery,
) -> Result<Response, Problem> {
    let found = app.service.faults(&ctx, &Page::parse(query.text("cursor"), Some(ROWS))?).await?;
    let page_links = query.page_links(found.next_cursor.as_deref());
    let frame = Frame::of(&app.service, &ctx, Section::Faults, "Faults").await;
    let frame = if query.is_first() { frame.live() } else { frame };
    let gpus = gpus::names(&app, &ctx).await;
    Ok(rendered(&FaultsPage {
        frame,
        faults: found.items.into_iter().map(Fault).collect(),
        gpus,
        page_links,
    }))
}
