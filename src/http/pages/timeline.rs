//! The timeline of the host: who was connected to which daemon and when, incidents, and changes with their authors.

use std::collections::BTreeMap;

use askama::Template;
use axum::Router;
use axum::routing::get;
use jiff::tz::TimeZone;

use super::format::{Lasting, Moment};
use super::frame::{Frame, Section};
use super::gpus::GpuDisplayNames;
use super::lists::ListQuery;
use super::reads::ChangeLine;
use super::rendered;
use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::domain::count::{counted, joined};
use crate::domain::event::{Event, EventFilter, EventType};
use crate::domain::history::HistorySpan;
use crate::domain::incident::IncidentFilter;
use crate::domain::moment::parse_moment;
use crate::domain::{DaemonName, TenantName};
use crate::http::AppState;
use crate::http::extract::Call;
use crate::http::problem::Reply;
use crate::service::events::Order;
use crate::service::incidents::IncidentView;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::TenantColours;
use crate::service::tenants::clients::{ClientFilter, ClientView};

/// Spans of the timeline, in words.
const SPANS: [(HistorySpan, &str); 3] =
    [(HistorySpan::Hour, "1 hour"), (HistorySpan::SixHours, "6 hours"), (HistorySpan::Day, "24 hours")];
/// Most rows of clients in a lane.
const ROWS: usize = 12;
/// Most changes that have a flag.
const FLAGS: usize = 50;
/// Units of a lane's width, and of the height of one of its rows.
const WIDTH: f64 = 1000.0;
const ROW: usize = 8;
/// Parts of the span that a line divides.
const TICKS: i64 = 6;

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/timeline", get(show))
}

#[derive(Template)]
#[template(path = "timeline.html")]
struct TimelinePage {
    frame: Frame,
    span: HistorySpan,
    window: TimeWindow,
    /// True if the window does not end now.
    is_past: bool,
    lanes: Vec<Lane>,
    /// Changes, the newest first; none for users who may not read the audit log.
    changes: Vec<ChangeFlag>,
    /// Time from which on all connections are drawn, if there were too many.
    cut: Option<Moment>,
}

/// The span that is shown.
#[derive(Clone, Copy)]
struct TimeWindow {
    from: i64,
    until: i64,
}

impl TimeWindow {
    fn before(until: i64, span: HistorySpan) -> Self {
        Self { from: until - span.ms(), until }
    }

    /// The place of a time.
    #[allow(clippy::cast_precision_loss, reason = "a place in a picture")]
    fn x(self, at: i64) -> f64 {
        let whole = (self.until - self.from).max(1) as f64;
        ((at.clamp(self.from, self.until) - self.from) as f64 / whole * WIDTH * 10.0).round() / 10.0
    }

    /// The beginnings of its parts.
    fn ticks(self) -> Vec<Moment> {
        (0..TICKS).map(|tick| Moment(self.from + (self.until - self.from) / TICKS * tick)).collect()
    }

    /// The places of the lines between its parts.
    fn lines(self) -> Vec<f64> {
        self.ticks().into_iter().skip(1).map(|Moment(at)| self.x(at)).collect()
    }
}

/// The time that a client was connected, as far as it is in the window.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ClientStay {
    client: ClientId,
    daemon: DaemonName,
    tenant: Option<TenantName>,
    from: i64,
    /// `None` while it is connected.
    until: Option<i64>,
}

/// A daemon's clients and incidents.
struct Lane {
    daemon: DaemonName,
    gpus: String,
    height: usize,
    clients: Vec<TimelineBar>,
    incidents: Vec<TimelineBar>,
    /// Clients that had no room.
    more: usize,
}

impl Lane {
    fn summary(&self) -> String {
        let clients = counted(self.clients.len() + self.more, "client");
        format!("{}: {clients}, {}", self.daemon, counted(self.incidents.len(), "incident"))
    }
}

/// A client or an incident in a lane.
struct TimelineBar {
    x: f64,
    width: f64,
    y: usize,
    class: String,
    href: String,
    title: String,
    from: Moment,
    lasted: Lasting,
}

/// A change with its author.
struct ChangeFlag {
    x: f64,
    at: Moment,
    sentence: String,
    href: String,
}

/// The address of the timeline with a time in the middle, or up to now if that comes earlier.
pub(super) fn around(at: i64, now: i64) -> String {
    let until = at + HistorySpan::Hour.ms() / 2;
    if until >= now {
        return "/timeline?span=1h".to_owned();
    }
    format!("/timeline?span=1h&until={}", Moment(until).machine())
}

async fn show(call: Call, query: ListQuery) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::View)?;
    let offered = SPANS.map(|(span, _)| span);
    let span = query.one_of("span", "a span", offered, HistorySpan::as_str)?.unwrap_or_default();
    let until = query.parsed("until", |text| parse_moment(text, call.now(), &TimeZone::system()))?;
    let until = until.filter(|until| *until < call.now());
    let window = TimeWindow::before(until.unwrap_or(call.now()), span);
    let filter = EventFilter {
        types: vec![EventType::ClientConnected, EventType::ClientLeft],
        since: Some(window.from),
        until,
        ..EventFilter::default()
    };
    let page = Page::first(MAX_LIMIT);
    let events = app.service.events(ctx, filter.clone(), Order::NewestFirst, &page).await?;
    let is_cut = events.next_cursor.is_some();
    let cut = events.items.last().filter(|_| is_cut).map(|oldest| oldest.at);
    let mut events = events.items;
    if until.is_some() {
        // Those who left later were connected all the time.
        let later = EventFilter { since: until, until: None, ..filter };
        let later = app.service.events(ctx, later, Order::OldestFirst, &page).await?.items;
        events = later.into_iter().rev().chain(events).collect();
    }
    let connected = call.clients(ClientFilter::default()).await?;
    let mut stays = stays(&events, &connected, cut.unwrap_or(window.from), call.now());
    stays.retain(|stay| stay.from < window.until);
    let since = IncidentFilter { since: Some(window.from), ..IncidentFilter::default() };
    let mut incidents = app.service.incidents(ctx, since, &page).await?.items;
    incidents.retain(|incident| incident.opened_at < window.until);
    let colours = app.service.tenant_colours(ctx).await?;
    let names = call.gpu_names().await;
    let mut lanes = Vec::new();
    let mut daemons: Vec<(DaemonName, String)> = call
        .daemons()
        .await?
        .into_iter()
        .map(|daemon| (daemon.name, gpus_of(&daemon.spec.gpus, &names)))
        .collect();
    // Deleted daemons had clients and incidents, too.
    let others =
        stays.iter().map(|stay| &stay.daemon).chain(incidents.iter().map(|incident| &incident.daemon));
    for other in others {
        if !daemons.iter().any(|(name, _)| name == other) {
            daemons.push((other.clone(), "deleted".to_owned()));
        }
    }
    for (daemon, gpus) in daemons {
        lanes.push(lane(daemon, gpus, &stays, &incidents, &colours, window));
    }
    let frame = call.frame(Section::Timeline, Section::Timeline.label()).await;
    let changes = if frame.administers() { flags(&call, window).await? } else { Vec::new() };
    Ok(rendered(&TimelinePage {
        frame,
        span,
        window,
        is_past: until.is_some(),
        lanes,
        changes,
        cut: cut.map(Moment),
    }))
}

fn gpus_of(gpus: &[crate::domain::GpuUuid], names: &GpuDisplayNames) -> String {
    joined(gpus.iter().map(|gpu| names.name(gpu)), ", ")
}

/// The stays of clients by their events, which come newest first, and by the clients that are connected now.
fn stays(events: &[Event], connected: &[ClientView], from: i64, now: i64) -> Vec<ClientStay> {
    let mut stays: BTreeMap<ClientId, ClientStay> = BTreeMap::new();
    for event in events.iter().rev() {
        let (Some(client), Some(daemon)) = (event.subject.client, event.subject.daemon.clone()) else {
            continue;
        };
        let tenant = event.subject.tenant.clone();
        let begun = if event.kind == EventType::ClientConnected { event.at } else { from };
        let stay = stays.entry(client).or_insert(ClientStay {
            client,
            daemon,
            tenant,
            from: begun,
            until: Some(now),
        });
        if event.kind == EventType::ClientLeft {
            stay.until = Some(event.at);
        }
    }
    for ClientView { id, daemon, tenant, since, .. } in connected {
        let (daemon, tenant) = (daemon.clone(), tenant.clone());
        let stay = ClientStay { client: *id, daemon, tenant, from: (*since).max(from), until: None };
        stays.entry(*id).and_modify(|stay| stay.until = None).or_insert(stay);
    }
    let mut stays: Vec<ClientStay> = stays.into_values().collect();
    stays.sort_by_key(|stay| (stay.from, stay.client));
    stays
}

fn lane(
    daemon: DaemonName,
    gpus: String,
    stays: &[ClientStay],
    incidents: &[IncidentView],
    colours: &TenantColours,
    window: TimeWindow,
) -> Lane {
    // The row of a client is the first that is free again when it connects.
    let mut ends: Vec<f64> = Vec::new();
    let (mut clients, mut more) = (Vec::new(), 0);
    for stay in stays.iter().filter(|stay| stay.daemon == daemon) {
        let until = stay.until.unwrap_or(window.until);
        let (x, end) = (window.x(stay.from), window.x(until));
        let width = (end - x).max(2.0);
        let row = ends.iter().position(|end| *end <= x).unwrap_or(ends.len());
        if row >= ROWS {
            more += 1;
            continue;
        }
        ends.resize(ends.len().max(row + 1), 0.0);
        ends[row] = x + width;
        let who = stay.tenant.as_ref().map_or_else(|| "no tenant".to_owned(), TenantName::to_string);
        let colour = stay.tenant.as_ref().and_then(|tenant| colours.get(tenant));
        let state = if stay.until.is_none() { ", connected" } else { "" };
        clients.push(TimelineBar {
            x,
            width,
            y: row * ROW,
            class: colour.map_or_else(|| "part".to_owned(), |colour| format!("part part-{colour}")),
            href: format!("/clients/{}", stay.client),
            title: format!("process {} of {who}{state}", stay.client.pid),
            from: Moment(stay.from),
            lasted: Lasting::between(stay.from, until),
        });
    }
    let height = ends.len().max(1) * ROW;
    let of_lane = incidents.iter().filter(|incident| incident.daemon == daemon).map(|incident| {
        let until = incident.recovered_at.unwrap_or(window.until);
        let (x, end) = (window.x(incident.opened_at), window.x(until));
        TimelineBar {
            x,
            width: (end - x).max(3.0),
            y: 0,
            class: "incident".to_owned(),
            href: format!("/incidents/{}", incident.id),
            title: incident.summary.clone(),
            from: Moment(incident.opened_at),
            lasted: Lasting::between(incident.opened_at, until),
        }
    });
    Lane { incidents: of_lane.collect(), daemon, gpus, height, clients, more }
}

/// The changes in the window, with their authors.
async fn flags(call: &Call, window: TimeWindow) -> Result<Vec<ChangeFlag>, crate::service::ServiceError> {
    let changes = call.what_changed(window.from, Some(window.until), FLAGS).await?;
    let flag = |change: ChangeLine| ChangeFlag {
        x: window.x(change.at),
        at: Moment(change.at),
        sentence: change.sentence,
        href: change.href,
    };
    Ok(changes.into_iter().map(flag).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &str, at: &str, client: &str) -> Event {
        serde_json::from_value(serde_json::json!({
            "id": 1, "at": format!("1970-01-01T00:00:{at}Z"), "type": kind, "severity": "info", "message": "", "details": null,
            "cause": { "by": "manager" },
            "subject": { "daemon": "gpu0", "gpu": null, "client": client, "tenant": "web", "operation": null },
        }))
        .expect("an event")
    }

    #[test]
    fn stays_begin_and_end_with_events() {
        let newest_first = [
            event("client.connected", "30", "3-1"),
            event("client.left", "20", "2-1"),
            event("client.left", "15", "1-1"),
            event("client.connected", "10", "2-1"),
        ];
        let stays = stays(&newest_first, &[], 5_000, 60_000);
        let spans: Vec<_> = stays.iter().map(|stay| (stay.client.pid, stay.from, stay.until)).collect();
        // The first one was there before the window.
        assert_eq!(spans, [(1, 5_000, Some(15_000)), (2, 10_000, Some(20_000)), (3, 30_000, Some(60_000))]);
    }

    #[test]
    fn old_incident_is_in_the_middle() {
        let hour = HistorySpan::Hour.ms();
        assert_eq!(around(hour, hour + 1), "/timeline?span=1h");
        assert_eq!(around(hour, 9 * hour), "/timeline?span=1h&until=1970-01-01T01:30:00.000Z");
        let window = TimeWindow::before(hour * 3 / 2, HistorySpan::Hour);
        assert!((window.x(hour) - WIDTH / 2.0).abs() < 0.1);
    }

    #[test]
    fn clients_at_once_have_rows_of_their_own() {
        let daemon = DaemonName::parse("gpu0").expect("a name");
        let stay = |pid: u32, from: i64, until: i64| ClientStay {
            client: ClientId { pid, start_time: 1 },
            daemon: daemon.clone(),
            tenant: None,
            from,
            until: Some(until),
        };
        let stays = [stay(1, 0, 500), stay(2, 100, 900), stay(3, 600, 700)];
        let window = TimeWindow { from: 0, until: 1000 };
        let lane = lane(daemon.clone(), String::new(), &stays, &[], &TenantColours::default(), window);
        let bars: Vec<_> = lane.clients.iter().map(|bar| (bar.y, bar.x, bar.width)).collect();
        assert_eq!(bars, [(0, 0.0, 500.0), (ROW, 100.0, 800.0), (0, 600.0, 100.0)]);
        assert_eq!((lane.height, lane.more), (2 * ROW, 0));
        let many: Vec<ClientStay> = (0..20).map(|pid| stay(pid, 0, 900)).collect();
        let lane = super::lane(daemon.clone(), String::new(), &many, &[], &TenantColours::default(), window);
        assert_eq!((lane.clients.len(), lane.more), (ROWS, 20 - ROWS));
    }
}
