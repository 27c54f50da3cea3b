//! Events: what happened, filtered, live, and one with all that is told of it.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use serde_json::Value;

use super::forms::{Form, Refused};
use super::frame::{Frame, Place};
use super::lists::{Asked, ROWS, Ways};
use super::words::{Moment, State as Stands, severity};
use super::{gpus, page, rendered};
use crate::clock::unix_ms;
use crate::domain::access::{Actor, Role};
use crate::domain::client::ClientId;
use crate::domain::event::{Cause, Event, EventFilter, EventType, Severity};
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::problem::Problem;
use crate::service::ServiceError;
use crate::service::events::Order;
use crate::service::page::Page;

/// Fields of the filter.
const FILTER: [&str; 8] = ["type", "severity", "daemon", "tenant", "gpu", "client", "operation", "within"];
/// How far back one looks, in words and in milliseconds.
const WITHIN: [(&str, &str, i64); 3] = [
    ("1h", "the last hour", 60 * 60 * 1000),
    ("24h", "the last day", 24 * 60 * 60 * 1000),
    ("7d", "the last week", 7 * 24 * 60 * 60 * 1000),
];

pub(super) fn router() -> Router<AppState> {
    Router::new().route("/events", get(list)).route("/events/{id}", get(show))
}

#[derive(Template)]
#[template(path = "events.html")]
struct EventsPage<'a> {
    frame: Frame,
    asked: &'a Form,
    refused: Refused,
    events: Vec<Event>,
    ways: Option<Ways>,
    /// The types in groups that can be asked for as one.
    types: Vec<(&'static str, Vec<EventType>)>,
}

impl EventsPage<'_> {
    /// Fields that have no place in the filter's form, and that links bring.
    fn brought(&self) -> impl Iterator<Item = (&str, &str)> {
        let brought = ["client", "operation", "gpu"];
        brought.into_iter().map(|name| (name, self.asked.text(name))).filter(|(_, value)| !value.is_empty())
    }

    fn is_filtered(&self) -> bool {
        FILTER.into_iter().any(|name| !self.asked.text(name).is_empty())
    }
}

#[derive(Template)]
#[template(path = "event.html")]
struct EventPage {
    frame: Frame,
    event: Event,
    /// What people call the GPUs.
    gpus: Vec<(GpuUuid, String)>,
    at: Moment,
    matters: Stands,
    /// The event that was its cause.
    cause: Option<i64>,
    caused_by: String,
    details: Vec<(String, String)>,
    /// What it was the cause of, the first first.
    followed: Vec<Event>,
}

async fn list(State(app): State<AppState>, actor: Actor, asked: Asked) -> Result<Response, Problem> {
    let found = found(&app, &actor, &asked).await;
    let frame = Frame::of(&app.service, &actor, Place::Events, "Events").await;
    let types = groups();
    match found {
        Ok((events, ways)) => {
            let frame = if asked.is_first() { frame.live() } else { frame };
            let refused = Refused::default();
            Ok(rendered(&EventsPage { frame, asked: asked.form(), refused, events, ways: Some(ways), types }))
        }
        Err(error) => {
            let status = Problem::from(error.clone()).status();
            let refused = Refused::of(error, &FILTER);
            let shown =
                EventsPage { frame, asked: asked.form(), refused, events: Vec::new(), ways: None, types };
            Ok(page(status, &shown))
        }
    }
}

async fn found(app: &AppState, actor: &Actor, asked: &Asked) -> Result<(Vec<Event>, Ways), ServiceError> {
    let filter = EventFilter {
        types: asked.parsed("type", EventFilter::parse_types)?.unwrap_or_default(),
        severity: asked.parsed("severity", parse_severity)?,
        daemon: asked.parsed("daemon", DaemonName::parse)?,
        tenant: asked.parsed("tenant", TenantName::parse)?,
        client: asked.parsed("client", ClientId::parse)?,
        operation: asked.parsed("operation", uuid::Uuid::parse_str)?,
        since: asked.parsed("within", parse_within)?,
        ..EventFilter::default()
    };
    let filter = match asked.text("gpu") {
        Some(gpu) => app.service.of_gpu(actor, filter, gpu).await?,
        None => filter,
    };
    let paged = app.service.events(actor, filter, Order::NewestFirst, &asked.page()?).await?;
    let ways = asked.ways(paged.next_cursor.as_deref());
    Ok((paged.items, ways))
}

fn parse_severity(text: &str) -> Result<Severity, String> {
    let found = Severity::ALL.into_iter().find(|severity| severity.as_str() == text);
    found.ok_or_else(|| format!("{text:?} is no severity: choose one of the list"))
}

fn parse_within(text: &str) -> Result<i64, String> {
    let found = WITHIN.into_iter().find(|(name, ..)| *name == text);
    found
        .map(|(.., back)| unix_ms() - back)
        .ok_or_else(|| format!("{text:?} is no time to look back: choose one of the list"))
}

/// The types by what stands before the dot.
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

async fn show(State(app): State<AppState>, actor: Actor, Path(id): Path<i64>) -> Result<Response, Problem> {
    let event = app.service.event(&actor, id).await?;
    let frame = Frame::of(&app.service, &actor, Place::Events, &format!("Event {id}")).await;
    let caused = EventFilter { cause: Some(id), ..EventFilter::default() };
    let followed = app.service.events(&actor, caused, Order::OldestFirst, &Page::first(ROWS)).await?.items;
    let details = serde_json::to_value(&event.details).unwrap_or_default();
    let (cause, caused_by) = match &event.cause {
        Cause::Actor { subject } => (None, subject.clone()),
        Cause::Event { id } => (Some(*id), format!("event {id}")),
        Cause::Mps => (None, "MPS itself".to_owned()),
        Cause::Client => (None, "the process that it is about".to_owned()),
        Cause::Outsider { command: Some(command) } => {
            (None, format!("somebody else who reaches the daemon; control.log has: {command}"))
        }
        Cause::Outsider { command: None } => (None, "somebody else who reaches the daemon".to_owned()),
        Cause::Manager => (None, "the manager, by itself".to_owned()),
        Cause::Host => (None, "the host: its hardware, its driver, its boot".to_owned()),
    };
    Ok(rendered(&EventPage {
        frame,
        gpus: gpus::names(&app, &actor).await,
        at: Moment(event.at),
        matters: severity(event.severity),
        cause,
        caused_by,
        details: told(&details),
        followed,
        event,
    }))
}

/// Details as lines: the name of each field in words, and what it says.
fn told(details: &Value) -> Vec<(String, String)> {
    let Value::Object(fields) = details else { return Vec::new() };
    let told = |(name, value): (&String, &Value)| {
        let text = match value {
            Value::Null => return None,
            Value::String(text) => text.clone(),
            Value::Number(_) if name.ends_with("_at") || name == "from" || name == "until" => {
                Moment(value.as_i64().unwrap_or_default()).to_string()
            }
            Value::Array(items) if items.is_empty() => return None,
            Value::Array(items) if items.iter().all(|item| !item.is_object()) => {
                let items: Vec<String> = items.iter().map(plain).collect();
                items.join(", ")
            }
            value => plain(value),
        };
        Some((name.replace('_', " "), text))
    };
    fields.iter().filter(|(name, _)| *name != "kind").filter_map(told).collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_in_one_group_and_a_group_can_be_asked_for() {
        let groups = groups();
        assert_eq!(groups.iter().map(|(_, types)| types.len()).sum::<usize>(), EventType::ALL.len());
        for (group, types) in &groups {
            assert_eq!(&EventFilter::parse_types(group).expect("a group"), types, "{group}");
        }
    }

    #[test]
    fn details_are_told_in_lines() {
        let details = serde_json::json!({
            "kind": "fault", "reported": [4711], "affected": [], "known_from": "look", "logged_at": 1_795_328_405_123_i64,
            "error": null,
        });
        let mut lines = told(&details);
        lines.sort();
        let text = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            lines,
            [
                text("known from", "look"),
                text("logged at", "2026-11-22 06:20:05 UTC"),
                text("reported", "4711")
            ]
        );
    }
}
