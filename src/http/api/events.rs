//! Events, in pages and as a stream.

use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as Message, Sse};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use uuid::Uuid;

use super::List;
use crate::domain::access::Actor;
use crate::domain::client::ClientId;
use crate::domain::event::{Event, EventFilter, Severity};
use crate::domain::gpu::GpuRef;
use crate::domain::{DaemonName, TenantName};
use crate::http::AppState;
use crate::http::extract::{Path, Query};
use crate::http::problem::{Problem, ReadProblems};
use crate::service::access::{InUse, Lifetime};
use crate::service::events::{Followed, Following, Order};
use crate::service::page::Page;
use crate::service::{Service, ServiceError};

/// Longest silence of a stream: a comment tells both ends that the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long a reader whose stream ended waits before it comes again.
const RETRY: Duration = Duration::from_secs(1);

/// Which events.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventQuery {
    /// Those of these types, with commas between; one that ends with a dot stands for all that begin with it.
    #[param(example = "client.,daemon.died")]
    r#type: Option<String>,
    /// Those that matter at least so much.
    severity: Option<Severity>,
    /// Those about this daemon.
    daemon: Option<DaemonName>,
    /// Those about this tenant.
    tenant: Option<TenantName>,
    /// Those about this GPU: UUID, unique prefix, index or PCI address.
    gpu: Option<GpuRef>,
    /// Those about this client.
    client: Option<ClientId>,
    /// Those about this operation.
    operation: Option<Uuid>,
    /// Those that follow on the event with this number: whose cause it is.
    cause: Option<i64>,
    /// Those written at this time or later, in unix milliseconds.
    since: Option<i64>,
    /// Those written before this time, in unix milliseconds.
    until: Option<i64>,
    /// Which come first.
    #[serde(default)]
    #[param(inline)]
    order: EventOrder,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
    /// Most items, 1 to 1000; 100 without it.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// In which order events are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum EventOrder {
    /// The last first.
    #[default]
    Newest,
    /// As they were written.
    Oldest,
}

/// Which events are followed, and from where.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct StreamQuery {
    /// Those of these types, with commas between; one that ends with a dot stands for all that begin with it.
    #[param(example = "client.,daemon.died")]
    r#type: Option<String>,
    /// Those that matter at least so much.
    severity: Option<Severity>,
    /// Those about this daemon.
    daemon: Option<DaemonName>,
    /// Those about this tenant.
    tenant: Option<TenantName>,
    /// Those about this GPU: UUID, unique prefix, index or PCI address.
    gpu: Option<GpuRef>,
    /// Those about this client.
    client: Option<ClientId>,
    /// Those about this operation.
    operation: Option<Uuid>,
    /// Those written at this time or later, in unix milliseconds.
    since: Option<i64>,
    /// Those written before this time, in unix milliseconds.
    until: Option<i64>,
    /// The event after which the stream begins, for who cannot send the header Last-Event-ID, which wins; from now on without
    /// either.
    #[param(minimum = 0)]
    after: Option<i64>,
}

/// What a query asks for, before a GPU is looked up.
struct Wanted {
    types: Option<String>,
    gpu: Option<String>,
    filter: EventFilter,
}

impl Wanted {
    async fn filter(self, service: &Service, actor: &Actor) -> Result<EventFilter, ServiceError> {
        let types = self.types.as_deref().map(EventFilter::parse_types).transpose();
        let types = types.map_err(|error| ServiceError::field("/type", error.to_string()))?;
        let filter = EventFilter { types: types.unwrap_or_default(), ..self.filter };
        match &self.gpu {
            Some(gpu) => service.of_gpu(actor, filter, gpu).await,
            None => Ok(filter),
        }
    }
}

/// All events
#[utoipa::path(get, path = "/api/v1/events", operation_id = "list_events", tag = "events", params(EventQuery),
    responses((status = 200, description = "Events, the last first unless asked for otherwise", body = List<Event>), ReadProblems))]
pub(super) async fn list(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<EventQuery>,
) -> Result<axum::Json<List<Event>>, Problem> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let EventQuery { daemon, tenant, client, operation, severity, since, until, cause, .. } = query;
    let filter = EventFilter {
        severity,
        daemon,
        tenant,
        client,
        operation,
        since,
        until,
        cause,
        ..EventFilter::default()
    };
    let wanted = Wanted { types: query.r#type, gpu: query.gpu.map(|gpu| gpu.0), filter };
    let order = match query.order {
        EventOrder::Newest => Order::NewestFirst,
        EventOrder::Oldest => Order::OldestFirst,
    };
    let filter = wanted.filter(&app.service, &actor).await?;
    Ok(axum::Json(app.service.events(&actor, filter, order, &page).await?.into()))
}

/// One event
#[utoipa::path(get, path = "/api/v1/events/{id}", operation_id = "get_event", tag = "events",
    params(("id" = i64, Path, description = "The event", minimum = 0)),
    responses((status = 200, description = "The event", body = Event), ReadProblems))]
pub(super) async fn get(
    State(app): State<AppState>,
    actor: Actor,
    Path(id): Path<i64>,
) -> Result<axum::Json<Event>, Problem> {
    Ok(axum::Json(app.service.event(&actor, id).await?))
}

/// Follow events
///
/// Server-sent events: `id` is the number of the event, `event` its type, `data` the event as `GET /api/v1/events/{id}` gives
/// it. A reader that comes again with the last `id` it got misses nothing and gets nothing twice. Where events were pruned
/// meanwhile, the first that comes is an `events.lost` that says from where on nothing is missing. A message with an `id` and
/// nothing else moves the reader's place past events that it did not ask for.
#[utoipa::path(get, path = "/api/v1/events/stream", operation_id = "stream_events", tag = "events",
    params(
        StreamQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "The event after which the stream begins"),
    ),
    responses(
        (status = 200, description = "Events as they are written, without end", body = String, content_type = "text/event-stream"),
        ReadProblems,
    ))]
pub(super) async fn stream(
    State(app): State<AppState>,
    actor: Actor,
    lifetime: Lifetime,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Sse<impl Stream<Item = Result<Message, Infallible>>>, Problem> {
    let last = match headers.get("last-event-id") {
        Some(shown) => Some(last_event_id(shown)?),
        None => query.after,
    };
    let StreamQuery { daemon, tenant, client, operation, severity, since, until, .. } = query;
    let filter =
        EventFilter { severity, daemon, tenant, client, operation, since, until, ..EventFilter::default() };
    let wanted = Wanted { types: query.r#type, gpu: query.gpu.map(|gpu| gpu.0), filter };
    let filter = wanted.filter(&app.service, &actor).await?;
    let following = app.service.follow_events(&actor, filter, last).await?;
    let first = Message::default().retry(RETRY).id(following.at().to_string()).comment("events follow");
    let in_use = lifetime.in_use();
    let begin = Reading { following, first: Some(first), stop: app.stop, lifetime, _in_use: in_use };
    Ok(Sse::new(stream::unfold(begin, Reading::next)))
}

pub(super) fn last_event_id(shown: &axum::http::HeaderValue) -> Result<i64, ServiceError> {
    let number = shown.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| {
        ServiceError::field(
            "/after",
            "the header Last-Event-ID is not the number of an event: send the last id that was received",
        )
    })
}

/// A stream that is read.
struct Reading {
    following: Following,
    first: Option<Message>,
    stop: CancellationToken,
    /// How long whoever reads may.
    lifetime: Lifetime,
    /// A session is used as long as something is read with it.
    _in_use: InUse,
}

impl Reading {
    /// The next message, and what gives the one after it; `None` is the end: the manager stops, the token or the session
    /// that it is read with ends, or the store fails.
    async fn next(mut self) -> Option<(Result<Message, Infallible>, Self)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(first), self));
        }
        let (stop, lifetime) = (self.stop.clone(), self.lifetime.clone());
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = lifetime.over() => return None,
            message = self.message() => message?,
        };
        Some((Ok(message), self))
    }

    async fn message(&mut self) -> Option<Message> {
        let silent = tokio::time::sleep(KEEP_ALIVE);
        tokio::pin!(silent);
        loop {
            tokio::select! {
                followed = self.following.next() => match followed {
                    Ok(Followed::Event(event)) => {
                        let data = serde_json::to_string(&event).ok()?;
                        return Some(Message::default().id(event.id.to_string()).event(event.kind.as_str()).data(data));
                    }
                    Ok(Followed::Nothing(_)) => {}
                    Err(error) => {
                        tracing::warn!(%error, "a stream of events ends");
                        return None;
                    }
                },
                () = &mut silent => {
                    let at = self.following.at().to_string();
                    return Some(Message::default().id(at).comment("still here"));
                }
            }
        }
    }
}
