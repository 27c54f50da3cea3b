//! Events: filtered and live, and one event in detail.

use askama::Template;
use axum::Router;
use axum::routing::get;
use serde_json::{Map, Value};

use super::format::{self, Moment};
use super::frame::{Frame, Section};
use super::lists::{ListQuery, ROWS, list_page};
use super::{gpus, rendered};
use crate::domain::access::Role;
use crate::domain::client::ClientId;
use crate::domain::event::{Details, Event, EventCause, EventFilter, EventSubject, EventType, Severity};
use crate::domain::incident::IncidentFilter;
use crate::domain::{DaemonName, GpuUuid, TenantName, rfc3339};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
use crate::service::access::context::RequestContext;
use crate::service::events::Order;
use crate::service::page::Page;

/// The newest incidents of a daemon among which an event's own is looked for.
const INCIDENTS: u32 = 100;
/// Fields of the filter.
const FILTER: [&str; 8] = ["type", "severity", "daemon", "tenant", "gpu", "client", "operation", "within"];
/// Periods of the filter, in words and in milliseconds.
const WITHIN: [(&str, &str, i64); 3] = [
    ("1h", "the last hour", 60 * 60 * 1000),
    ("24h", "the last day", 24 * 60 * 60 * 1000),
    ("7d", "the last week", 7 * 24 * 60 * 60 * 1000),
];

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/events", get(list)).route("/events/{id}", get(show))
}

list_page!(EventsPage, "events.html", Event);

impl EventsPage {
    /// Filter fields that are not in the form, and that links set.
    fn brought(&self) -> impl Iterator<Item = (&str, &str)> {
        let brought = ["client", "operation", "gpu"];
        brought.into_iter().map(|name| (name, self.query.text(name))).filter(|(_, value)| !value.is_empty())
    }
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    event: Event,
    /// The display names of the GPUs.
    gpus: Vec<(GpuUuid, String)>,
    /// The event that caused it.
    cause: Option<i64>,
    caused_by: String,
    /// The incident that it belongs to.
    incident: Option<i64>,
    details: Vec<(String, String)>,
    /// The events it caused, oldest first.
    related: Vec<Event>,
}

async fn list(Call { app, ctx }: Call, query: ListQuery) -> Reply {
    let found = async {
        let mut filter = EventFilter {
            types: query.parsed("type", EventFilter::parse_types)?.unwrap_or_default(),
            severity: query.parsed("severity", parse_severity)?,
            daemon: query.parsed("daemon", DaemonName::parse)?,
            tenant: query.parsed("tenant", TenantName::parse)?,
            client: query.parsed("client", ClientId::parse)?,
            operation: query.parsed("operation", uuid::Uuid::parse_str)?,
            since: query.parsed("within", |text| parse_within(app.service.clock().unix_ms(), text))?,
            ..EventFilter::default()
        };
        if let Some(gpu) = query.text("gpu") {
            filter = app.service.of_gpu(&ctx, filter, gpu).await?;
        }
        app.service.events(&ctx, filter, Order::NewestFirst, &query.page()?).await
    };
    let found = found.await;
    let page = query.into_page(&app, &ctx, Section::Events, &FILTER, found).await?;
    Ok(page.answer(|page| EventsPage { page }))
}

fn parse_severity(text: &str) -> Result<Severity, String> {
    let found = Severity::ALL.into_iter().find(|severity| severity.as_str() == text);
    found.ok_or_else(|| format!("{text:?} is not a severity: choose one of the list"))
}

fn parse_within(now: i64, text: &str) -> Result<i64, String> {
    let found = WITHIN.into_iter().find(|(name, ..)| *name == text);
    found
        .map(|(.., back)| now - back)
        .ok_or_else(|| format!("{text:?} is not a period: choose one of the list"))
}

/// The types, grouped by the part before the dot.
fn groups() -> Vec<(&'static str, Vec<EventType>)> {
    let mut groups: Vec<(&'static str, Vec<EventType>)> = Vec::new();
    for kind in EventType::ALL {
        let group = kind.as_str().split_inclusive('.').next().unwrap_or_default();
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, types)) => types.push(*kind),
            None => groups.push((group, vec![*kind])),
        }
    }
    groups
}

async fn show(Call { app, ctx }: Call, Path(id): Path<i64>) -> Reply {
    let event = app.service.event(&ctx, id).await?;
    let frame = Frame::of(&app.service, &ctx, Section::Events, format!("Event {id}")).await;
    let caused = EventFilter { cause: Some(id), ..EventFilter::default() };
    let related = app.service.events(&ctx, caused, Order::OldestFirst, &Page::first(ROWS)).await?.items;
    let details = serde_json::to_value(&event.details).unwrap_or_default();
    let (cause, caused_by) = match &event.cause {
        EventCause::Actor { subject } => (None, subject.clone()),
        EventCause::Event { id } => (Some(*id), format!("event {id}")),
        EventCause::Mps => (None, "MPS itself".to_owned()),
        EventCause::Client => (None, "the client itself".to_owned()),
        EventCause::Outsider { command: Some(command) } => {
            (None, format!("someone else with access to the daemon; control.log has: {command}"))
        }
        EventCause::Outsider { command: None } => (None, "someone else with access to the daemon".to_owned()),
        EventCause::Manager => (None, "the manager".to_owned()),
        EventCause::Host => (None, "the host: its hardware, its driver, its boot".to_owned()),
    };
    Ok(rendered(&EventPage {
        frame,
        incident: incident_of(&app, &ctx, &event).await?,
        gpus: gpus::names(&app, &ctx).await,
        cause,
        caused_by,
        details: detail_lines(&details, &event.subject),
        related,
        event,
    }))
}

/// The incident that an event is about or belongs to.
async fn incident_of(app: &AppState, ctx: &RequestContext, event: &Event) -> Result<Option<i64>, Problem> {
    if let Some(Details::Incident { incident, .. }) = &event.details {
        return Ok(Some(*incident));
    }
    let Some(daemon) = event.subject.daemon.clone() else { return Ok(None) };
    let filter = IncidentFilter { daemon: Some(daemon), ..IncidentFilter::default() };
    let incidents = app.service.incidents(ctx, filter, &Page::first(INCIDENTS)).await?.items;
    let own = incidents.iter().find(|incident| incident.events.contains(&event.id));
    Ok(own.map(|incident| incident.id))
}

/// Details as lines: the name of each field in words, and its value. What stands among the subjects is not repeated.
fn detail_lines(details: &Value, subject: &EventSubject) -> Vec<(String, String)> {
    let Value::Object(fields) = details else { return Vec::new() };
    let pids = [subject.server, subject.client.map(|client| client.pid)];
    let is_shown = |name: &str, value: &Value| match name {
        "kind" | "incident" => true,
        "pid" => pids.iter().flatten().any(|pid| value.as_u64() == Some(u64::from(*pid))),
        _ => false,
    };
    let line = |(name, value): (&String, &Value)| {
        let text = match value {
            Value::Null => return None,
            Value::String(text) if name.ends_with("_at") || name == "from" || name == "until" => {
                rfc3339::parse(text).map_or_else(|_| text.clone(), |at| Moment(at).to_string())
            }
            Value::String(text) => text.clone(),
            Value::Array(items) if items.is_empty() => return None,
            value => plain(value),
        };
        let name = match name.as_str() {
            "pid" => "PID".to_owned(),
            "uid" => "UID".to_owned(),
            name => name.replace('_', " "),
        };
        Some((name, text))
    };
    fields.iter().filter(|(name, value)| !is_shown(name, value)).filter_map(line).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let apart = if items.iter().any(Value::is_object) { "; " } else { ", " };
            items.iter().map(plain).collect::<Vec<_>>().join(apart)
        }
        Value::Object(fields) => object_words(fields),
        value => value.to_string(),
    }
}

/// A client as people call it, anything else with the names of its fields.
fn object_words(fields: &Map<String, Value>) -> String {
    let is_client = fields.keys().all(|name| ["pid", "client", "tenant"].contains(&name.as_str()));
    match (fields.get("pid"), fields.get("tenant").and_then(Value::as_str)) {
        (Some(pid), Some(tenant)) if is_client => return format!("process {pid} of {tenant}"),
        (Some(pid), None) if is_client => return format!("process {pid}"),
        _ => {}
    }
    let given = fields.iter().filter(|(_, value)| !value.is_null());
    let words: Vec<String> =
        given.map(|(name, value)| format!("{} {}", name.replace('_', " "), plain(value))).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_in_one_selectable_group() {
        let groups = groups();
        assert_eq!(groups.iter().map(|(_, types)| types.len()).sum::<usize>(), EventType::ALL.len());
        for (group, types) in &groups {
            assert_eq!(&EventFilter::parse_types(group).expect("a group"), types, "{group}");
        }
    }

    #[test]
    fn details_become_lines() {
        let details = serde_json::json!({
            "kind": "fault", "reported": [4711], "affected": [], "known_from": "poll", "logged_at": "2026-11-22T06:20:05.123Z",
            "error": null,
        });
        let mut lines = detail_lines(&details, &EventSubject::default());
        lines.sort();
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            lines,
            [
                text("known from", "poll"),
                text("logged at", "2026-11-22 06:20:05 UTC"),
                text("reported", "4711")
            ]
        );
    }

    #[test]
    fn clients_in_details_are_named() {
        let details = serde_json::json!({
            "kind": "death", "pid": 4711, "waiting": [7],
            "clients": [{"pid": 12, "client": "12-345", "tenant": "web"}, {"pid": 13, "client": null, "tenant": null}],
        });
        let subject = EventSubject { server: Some(4711), ..EventSubject::default() };
        let mut lines = detail_lines(&details, &subject);
        lines.sort();
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(lines, [text("clients", "process 12 of web; process 13"), text("waiting", "7")]);
        // That of a control daemon is no subject.
        assert!(detail_lines(&details, &EventSubject::default()).contains(&text("PID", "4711")));
        let drifted = serde_json::json!({"drifted": [{"setting": "limit", "was_before": null}]});
        let lines = detail_lines(&drifted, &EventSubject::default());
        assert_eq!(lines, [text("drifted", "setting limit")]);
    }
}
