//! The overview: the health of the host, and remedies for everything that needs attention.

mod attention;
mod tenants;

use std::collections::BTreeMap;

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use self::attention::Attention;
use super::banner::Banner;
use super::daemons::{DaemonSummary, daemon_rows};
use super::format::{Amount, Tone};
use super::frame::{Frame, Section};
use super::gpus::{GpuRow, PicturedGpu};
use super::operations::{OperationSummary, under_way};
use super::reads::ChangeLine;
use super::rendered;
use super::sharing::{FEW_GPUS, MemoryBar};
use super::vitals::VitalFigure;
use crate::domain::GpuUuid;
use crate::domain::count::counted;
use crate::domain::event::{Event, EventFilter, EventType};
use crate::domain::history::HistorySpan;
use crate::domain::incident::IncidentFilter;
use crate::domain::shares;
use crate::http::extract::Call;
use crate::http::problem::Reply;
use crate::service::page::{MAX_LIMIT, Page};

/// Events shown.
const EVENTS: u32 = 8;
/// Groups of changes shown.
const CHANGES: usize = 5;

#[derive(Template)]
#[template(path = "overview.html")]
struct OverviewPage {
    frame: Frame,
    banner: Banner,
    attention: Vec<Attention>,
    under_way: Vec<OperationSummary>,
    daemons: Vec<DaemonSummary>,
    gpus: Vec<PicturedGpu>,
    vitals: BTreeMap<GpuUuid, Vec<VitalFigure>>,
    /// Changes of the last day, for admins.
    changes: Vec<ChangeLine>,
    events: Vec<Event>,
}

impl OverviewPage {
    /// The worst severity.
    fn tone(&self) -> Tone {
        let worst = self.attention.first().map(|worst| worst.tone);
        worst.into_iter().chain(self.banner.tone()).min().unwrap_or(Tone::Good)
    }

    /// Everything that needs attention, in one line.
    fn summary(&self) -> String {
        let urgent = self.attention.iter().filter(|item| item.tone != Tone::Quiet).count();
        // Incidents have their own place, above the rest.
        if self.banner.open > 0 {
            let incidents = format!("{} open", counted(self.banner.open, "incident"));
            return match urgent {
                0 => incidents,
                1 => format!("{incidents}, 1 more thing needs attention"),
                _ => format!("{incidents}, {urgent} more things need attention"),
            };
        }
        match (urgent, self.attention.len()) {
            (0, notes) if self.banner.total > 0 => {
                let recovered = counted(self.banner.total, "incident");
                let notes = if notes == 0 { String::new() } else { format!(", {}", counted(notes, "note")) };
                format!("Recovered from {recovered} in the last hour{notes}")
            }
            (0, 1) => "No problems, 1 note".to_owned(),
            (0, several) => format!("No problems, {several} notes"),
            (1, _) => "1 thing needs attention".to_owned(),
            (urgent, _) => format!("{urgent} things need attention"),
        }
    }

    /// The daemon that has a GPU.
    fn daemon_of(&self, row: &GpuRow) -> Option<&DaemonSummary> {
        self.daemons.iter().find(|summary| summary.daemon.spec.gpus.contains(row.key()))
    }

    /// Daemons that are ready, in words.
    fn ready(&self) -> String {
        let ready = self.daemons.iter().filter(|summary| summary.badge.tone == Tone::Good).count();
        match self.daemons.len() {
            0 => "no daemon".to_owned(),
            all if all == ready => format!("{} ready", counted(all, "daemon")),
            all => format!("{ready} of {} ready", counted(all, "daemon")),
        }
    }

    /// GPUs without their MIG instances.
    fn whole(&self) -> usize {
        self.gpus.iter().filter(|(row, _)| row.gpu.mig.is_none()).count()
    }

    /// Returns true if the host has so many GPUs that their cards are small.
    fn has_many(&self) -> bool {
        self.gpus.len() > FEW_GPUS
    }

    fn clients(&self) -> usize {
        self.daemons.iter().map(|summary| summary.clients).sum()
    }

    /// Memory of the GPUs that daemons have: left to give, used, given as limits, and in all. `None` where no size is known.
    fn memory(&self) -> Option<[Amount; 4]> {
        let bars = self.gpus.iter().filter_map(|(_, picture)| picture.as_ref()?.memory.as_ref());
        let sum = |of: fn(&MemoryBar) -> u64| Amount(bars.clone().map(of).fold(0, u64::saturating_add));
        let left = sum(|bar| bar.total.0.saturating_sub(bar.limits.0));
        let all = [left, sum(|bar| bar.used.0), sum(|bar| bar.limits.0), sum(|bar| bar.total.0)];
        (all[3].0 > 0).then_some(all)
    }

    /// Clients that the GPUs of the host are divided among, if its daemons state how many they expect.
    fn capacity(&self) -> Option<u64> {
        shares::capacity(self.daemons.iter().map(|row| &row.daemon.spec))
    }
}

pub(super) async fn show(call: Call) -> Reply {
    let Call { app, ctx } = &call;
    if let Some(tenant) = ctx.actor.scope() {
        return Ok(Redirect::to(&format!("/tenants/{tenant}")).into_response());
    }
    let (gpus, daemons) = (call.pictures().await?, daemon_rows(&call).await?);
    let filter = EventFilter { types: relevant_types(), ..EventFilter::default() };
    let events = call.newest_events(filter, EVENTS).await?;
    let banner = Banner::of(&call, IncidentFilter::default()).await?;
    let mut attention = attention::all(&call, &daemons, &gpus, &banner).await?;
    let tenants = app.service.tenant_conditions(ctx, &Page::first(MAX_LIMIT)).await?;
    attention.extend(tenants::of_tenants(&daemons, &tenants));
    attention.sort_by_key(|item| item.tone);
    let under_way = under_way(&call, None).await?;
    let frame = call.frame(Section::Overview, "Overview").await.live();
    let vitals = call.vitals(gpus.iter().map(|(row, _)| &row.gpu))?;
    let changes = if frame.administers() {
        call.what_changed(call.now() - HistorySpan::Day.ms(), None, CHANGES).await?
    } else {
        Vec::new()
    };
    Ok(rendered(&OverviewPage {
        frame,
        banner,
        attention,
        under_way,
        daemons,
        gpus,
        vitals,
        changes,
        events,
    }))
}

/// Event types that matter to an operator: readers, and what always follows from another event, would push out the relevant
/// ones.
fn relevant_types() -> Vec<EventType> {
    const NOISE: [EventType; 6] = [
        EventType::SessionOpened,
        EventType::SessionEnded,
        EventType::SettingsApplied,
        EventType::OperationRequested,
        EventType::OperationStarted,
        EventType::OperationStep,
    ];
    EventType::ALL.iter().copied().filter(|kind| !NOISE.contains(kind)).collect()
}
