//! Events: filtered and live, and one event in detail.

use askama::Template;
use axum::Router;
use axum::routing::get;
use serde_json::{Map, Value};

use super::format::Moment;
use super::frame::{Frame, Section};
use super::gpus::GpuDisplayNames;
use super::lists::{Facet, ListQuery, ROWS, list_page};
use super::rendered;
use crate::domain::access::Role;
use crate::domain::client::ClientId;
use crate::domain::event::{Details, Event, EventCause, EventFilter, EventSubject, EventType, Severity};
use crate::domain::incident::IncidentFilter;
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
use crate::service::events::Order;
use crate::service::page::Page;

/// The newest incidents of a daemon among which an event's own is looked for.
const INCIDENTS: u32 = 100;
/// Fields of the filter.
const FILTER: [&str; 9] =
    ["type", "severity", "daemon", "tenant", "gpu", "client", "operation", "incident", "within"];
/// Periods of the filter, in words and in milliseconds.
const WITHIN: [(&str, &str, i64); 3] = [
    ("1h", "the last hour", 60 * 60 * 1000),
    ("24h", "the last day", 24 * 60 * 60 * 1000),
    ("7d", "the last week", 7 * 24 * 60 * 60 * 1000),
];

/// Choices of types: the beginnings of their names, and what they are about.
const TYPES: [(&str, &str); 8] = [
    ("client.,lease.", "Clients"),
    ("tenant.", "Tenants"),
    ("daemon.,server.,settings.,foreign_daemon.", "Daemons"),
    ("layout.", "Layouts"),
    ("gpu.,compute_mode.,bypass.", "GPUs"),
    ("incident.,breach.,exposure.,foreign_user.", "Incidents"),
    ("operation.", "Operations"),
    ("host.,manager.,database.,event.,events.,token.,session.", "Host and access"),
];

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/events", get(list)).route("/events/{id}", get(show))
}

list_page!(EventsPage, "events.html", Event, facets: Vec<Facet>);

impl EventsPage {
    /// The types among which the form lets choose: those of the choice that is in force, with its value.
    fn types(&self) -> Option<(&'static str, Vec<EventType>)> {
        let facet = facet_of(self.query.text("type"))?;
        Some((facet, types_of(facet)?))
    }

    /// Filter fields that are not in the form, and that links set.
    fn brought(&self) -> impl Iterator<Item = (&str, &str)> {
        let brought = ["client", "operation", "incident", "gpu"];
        brought.into_iter().map(|name| (name, self.query.text(name))).filter(|(_, value)| !value.is_empty())
    }
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    event: Event,
    gpus: GpuDisplayNames,
    /// The incident that it belongs to.
    incident: Option<i64>,
    details: Vec<(String, String)>,
    /// The events it caused, oldest first.
    related: Vec<Event>,
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let service = &call.app.service;
    let events = async {
        let periods = WITHIN.map(|(name, ..)| name);
        let within = query.one_of("within", "a period", periods, |name| name)?;
        let within = WITHIN.iter().find(|(name, ..)| Some(*name) == within);
        let mut filter = EventFilter {
            types: query.parsed("type", EventFilter::parse_types)?.unwrap_or_default(),
            severity: query.one_of("severity", "a severity", Severity::ALL, Severity::as_str)?,
            daemon: query.parsed("daemon", DaemonName::parse)?,
            tenant: query.parsed("tenant", TenantName::parse)?,
            client: query.parsed("client", ClientId::parse)?,
            operation: query.parsed("operation", uuid::Uuid::parse_str)?,
            incident: query.parsed("incident", |text| {
                text.parse().map_err(|_| format!("{text:?} is not an incident: give its number"))
            })?,
            since: within.map(|(.., back)| call.now() - back),
            ..EventFilter::default()
        };
        if let Some(gpu) = query.text("gpu") {
            filter = service.of_gpu(&call.ctx, filter, gpu).await?;
        }
        service.events(&call.ctx, filter, Order::NewestFirst, &query.page()?).await
    };
    let page = query.list(&call, Section::Events, &FILTER, events).await?;
    let mut facets = Facet::of(&query, "type", [("", "All")].into_iter().chain(TYPES));
    if let Some(current) = query.text("type").and_then(facet_of) {
        let all = facets.iter_mut().skip(1).zip(TYPES);
        all.for_each(|(facet, (types, _))| facet.is_current = types == current);
    }
    Ok(page.answer(|page| EventsPage { page, facets }))
}

/// The choice of types that an address names, or whose part it names.
fn facet_of(types: &str) -> Option<&'static str> {
    let named = EventFilter::parse_types(types).ok()?;
    let has_all =
        |(of, _): &&(&str, _)| types_of(of).is_some_and(|all| named.iter().all(|kind| all.contains(kind)));
    TYPES.iter().find(has_all).map(|(of, _)| *of)
}

fn types_of(facet: &str) -> Option<Vec<EventType>> {
    EventFilter::parse_types(facet).ok()
}

async fn show(call: Call, Path(id): Path<i64>) -> Reply {
    let Call { app, ctx } = &call;
    let event = app.service.event(ctx, id).await?;
    let frame = call.frame(Section::Events, format!("Event {id}")).await;
    let caused = EventFilter { cause: Some(id), ..EventFilter::default() };
    let related = app.service.events(ctx, caused, Order::OldestFirst, &Page::first(ROWS)).await?.items;
    let details = serde_json::to_value(&event.details).unwrap_or_default();
    Ok(rendered(&EventPage {
        frame,
        incident: incident_of(&call, &event).await?,
        gpus: call.gpu_names().await,
        details: detail_lines(&details, &event.subject),
        related,
        event,
    }))
}

/// The incident that an event is about or belongs to.
async fn incident_of(Call { app, ctx }: &Call, event: &Event) -> Result<Option<i64>, Problem> {
    if let Some(Details::Incident { incident, .. }) = &event.details {
        return Ok(Some(*incident));
    }
    let Some(daemon) = event.subject.daemon.clone() else { return Ok(None) };
    let filter = IncidentFilter { daemon: Some(daemon), ..IncidentFilter::default() };
    let incidents = app.service.incidents(ctx, filter, &Page::first(INCIDENTS)).await?.items;
    let incident = incidents.iter().find(|incident| incident.events.contains(&event.id));
    Ok(incident.map(|incident| incident.id))
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
    fn every_type_is_in_one_choice() {
        for kind in EventType::ALL {
            let in_choice = |(facet, _): &&(&str, _)| types_of(facet).expect("types").contains(kind);
            assert_eq!(TYPES.iter().filter(in_choice).count(), 1, "{}", kind.as_str());
        }
        assert_eq!(facet_of("server.died"), Some(TYPES[2].0));
        assert_eq!(facet_of(TYPES[2].0), Some(TYPES[2].0));
        assert_eq!(facet_of("server.died,layout.drifted"), None);
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
