//! Events, in pages and as a stream.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event as Message, Sse};
use futures_util::stream::{self, Stream};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use uuid::Uuid;

use super::List;
use crate::clock::Clock;
use crate::domain::client::ClientId;
use crate::domain::event::{Event, EventFilter, Severity};
use crate::domain::gpu::GpuRef;
use crate::domain::{DaemonName, TenantName};
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::{Answer, Problem};
use crate::service::access::context::RequestContext;
use crate::service::access::{InUse, Lifetime};
use crate::service::events::{Followed, Following, Order};
use crate::service::page::Page;
use crate::service::{Service, ServiceError};

/// Time after which a reader reconnects.
const RETRY: Duration = Duration::from_secs(1);

/// Defines a query of events: the fields that select them, and those of its endpoint.
macro_rules! event_query {
    ($(#[$doc:meta])* $name:ident { $($own:tt)* }) => {
        $(#[$doc])*
        #[derive(Debug, Deserialize, IntoParams)]
        #[serde(deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        pub(super) struct $name {
            /// Only those of these types, separated by commas. A type that ends with a dot stands for all that begin with it.
            #[param(example = "client.,daemon.died")]
            r#type: Option<String>,
            /// Only those of at least this severity.
            severity: Option<Severity>,
            /// Only those about this daemon.
            daemon: Option<DaemonName>,
            /// Only those about this tenant.
            tenant: Option<TenantName>,
            /// Only those about this GPU: UUID, unique prefix, index or PCI address.
            gpu: Option<GpuRef>,
            /// Only those about this client.
            client: Option<ClientId>,
            /// Only those about this operation.
            operation: Option<Uuid>,
            /// Only those that were caused by the event with this ID.
            cause: Option<i64>,
            /// Only those written at this time or later.
            #[serde(default, with = "crate::domain::rfc3339::option")]
            #[param(value_type = Option<String>, format = DateTime)]
            since: Option<i64>,
            /// Only those written before this time.
            #[serde(default, with = "crate::domain::rfc3339::option")]
            #[param(value_type = Option<String>, format = DateTime)]
            until: Option<i64>,
            $($own)*
        }

        impl $name {
            async fn filter(&self, service: &Service, ctx: &RequestContext) -> Result<EventFilter, ServiceError> {
                let types = self.r#type.as_deref().map(EventFilter::parse_types).transpose();
                let filter = EventFilter {
                    types: types.map_err(|error| ServiceError::field("/type", error.to_string()))?.unwrap_or_default(),
                    severity: self.severity,
                    daemon: self.daemon.clone(),
                    tenant: self.tenant.clone(),
                    client: self.client,
                    operation: self.operation,
                    cause: self.cause,
                    since: self.since,
                    until: self.until,
                    ..EventFilter::default()
                };
                match &self.gpu {
                    Some(gpu) => service.of_gpu(ctx, filter, &gpu.0).await,
                    None => Ok(filter),
                }
            }
        }
    };
}

event_query! {
    /// The events to list.
    EventQuery {
        /// Order of the events; `newest` by default.
        #[serde(default)]
        #[param(inline)]
        order: EventOrder,
        /// `next_cursor` of the previous page.
        cursor: Option<String>,
        /// The most items to return, 1 to 1000; 100 by default.
        #[param(minimum = 1, maximum = 1000)]
        limit: Option<u32>,
    }
}

event_query! {
    /// The events to follow, and the position at which to begin.
    StreamQuery {
        /// The ID of the event after which the stream begins, for clients that cannot send the header `Last-Event-ID`, which takes
        /// precedence. With neither, the stream begins now.
        #[param(minimum = 0)]
        after: Option<i64>,
    }
}

/// The order in which events are listed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum EventOrder {
    /// The newest first.
    #[default]
    Newest,
    /// The oldest first.
    Oldest,
}

/// List events
#[utoipa::path(get, path = "/api/v1/events", operation_id = "list_events", tag = "events",
    extensions(("x-right" = json!(RequiredRight::OwnItems))), params(EventQuery),
    responses((status = 200, description = "Events, in the order that `order` says.", body = List<Event>)))]
pub(super) async fn list(Call { app, ctx }: Call, Query(query): Query<EventQuery>) -> Answer<List<Event>> {
    let page = Page::parse(query.cursor.as_deref(), query.limit)?;
    let order = match query.order {
        EventOrder::Newest => Order::NewestFirst,
        EventOrder::Oldest => Order::OldestFirst,
    };
    let filter = query.filter(&app.service, &ctx).await?;
    Ok(axum::Json(app.service.events(&ctx, filter, order, &page).await?.into()))
}

/// Get an event
#[utoipa::path(get, path = "/api/v1/events/{id}", operation_id = "get_event", tag = "events",
    extensions(("x-right" = json!(RequiredRight::ViewEvent))),
    params(("id" = i64, Path, description = "The ID of the event.", minimum = 0)),
    responses((status = 200, description = "The event.", body = Event)))]
pub(super) async fn get(Call { app, ctx }: Call, Path(id): Path<i64>) -> Answer<Event> {
    Ok(axum::Json(app.service.event(&ctx, id).await?))
}

/// Follow events
///
/// Server-sent events: `id` is the ID of the event, `event` its type, and `data` the event as `GET /api/v1/events/{id}` returns it. A
/// reader that reconnects with the last `id` it received misses no event and gets none twice. If events were pruned meanwhile, the first
/// one is `events.lost`, which says from where on none is missing. A message with nothing but an `id` stands for events that the filter
/// leaves out: reconnect after that one.
#[utoipa::path(get, path = "/api/v1/events/stream", operation_id = "stream_events", tag = "events",
    extensions(("x-right" = json!(RequiredRight::OwnItems))),
    params(
        StreamQuery,
        ("Last-Event-ID" = Option<i64>, Header, description = "The ID of the event after which the stream begins."),
    ),
    responses(
        (status = 200, description = "Events as they are written, until the client disconnects.", body = String, content_type = "text/event-stream")
    ))]
pub(super) async fn stream(
    Call { app, ctx }: Call,
    lifetime: Lifetime,
    headers: HeaderMap,
    Query(query): Query<StreamQuery>,
) -> Result<Sse<impl Stream<Item = Result<Message, Infallible>>>, Problem> {
    let last = match headers.get("last-event-id") {
        Some(header) => Some(last_event_id(header)?),
        None => query.after,
    };
    let filter = query.filter(&app.service, &ctx).await?;
    let following = app.service.follow_events(&ctx, filter, last)?;
    let first = Message::default().retry(RETRY).id(following.at().to_string()).comment("events follow");
    let in_use = lifetime.in_use(app.service.clock());
    let begin = EventStream {
        following,
        first: Some(first),
        heartbeat: app.stream_heartbeat,
        stop: app.stop.clone(),
        clock: app.service.clock(),
        lifetime,
        _in_use: in_use,
    };
    Ok(Sse::new(stream::unfold(begin, EventStream::next)))
}

pub(super) fn last_event_id(header: &axum::http::HeaderValue) -> Result<i64, ServiceError> {
    let number = header.to_str().ok().and_then(|text| text.trim().parse().ok());
    number.ok_or_else(|| {
        ServiceError::field(
            "/after",
            "the header Last-Event-ID is not the number of an event: send the last id that was received",
        )
    })
}

/// A stream with its reader.
struct EventStream {
    following: Following,
    first: Option<Message>,
    /// After this time without an event a comment is sent, so that both ends notice a lost connection.
    heartbeat: Duration,
    stop: CancellationToken,
    clock: Clock,
    /// Validity of the reader's token or session.
    lifetime: Lifetime,
    /// A session counts as used while a stream is read with it.
    _in_use: InUse,
}

impl EventStream {
    /// Returns the next message, with the stream that yields the one after it. `None` ends the stream: the manager stops, the token or
    /// session of its reader ends, or the store fails.
    async fn next(mut self) -> Option<(Result<Message, Infallible>, Self)> {
        if let Some(first) = self.first.take() {
            return Some((Ok(first), self));
        }
        let (stop, lifetime) = (self.stop.clone(), self.lifetime.clone());
        let message = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            () = lifetime.over(self.clock) => return None,
            message = self.message() => message?,
        };
        Some((Ok(message), self))
    }

    async fn message(&mut self) -> Option<Message> {
        let silent = tokio::time::sleep(self.heartbeat);
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
                        tracing::warn!(%error, "a stream of events ended");
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
