//! Clients: the list, one client, and its termination.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::get;

use super::format::Amount;
use super::forms::{Form, Shape, rehearsal_refusal};
use super::frame::{Frame, Section};
use super::gpus::GpuDisplayNames;
use super::lists::{Facet, ListQuery, list_page};
use super::sorting::{SortColumns, SortValue, Sorting};
use super::{followed, rendered, with_status};
use crate::domain::access::Role;
use crate::domain::client::{ClientId, ClientMemory, StoppedPolicy};
use crate::domain::event::{AffectedClient, Event, EventFilter};
use crate::domain::incident::IncidentFilter;
use crate::domain::memory::Bytes;
use crate::domain::{DaemonName, TenantName};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
use crate::service::page::Page;
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::{ServiceError, WriteOptions};

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/clients", get(all))
        .route("/clients/{id}", get(show))
        .route("/clients/{id}/terminate", get(confirm_terminate).post(terminate))
}

/// Events shown for a client.
const EVENTS: u32 = 20;

list_page!(ClientsPage, "clients.html", ClientView, facets: Vec<Facet>, sorting: Sorting);

/// Choices of clients.
const SHOWN: [(&str, &str); 3] =
    [("", "All"), ("unattributed", "Without a tenant"), ("orphaned", "Left over")];

fn is_shown(client: &ClientView, choice: &str) -> bool {
    match choice {
        "unattributed" => client.tenant.is_none(),
        "orphaned" => client.orphaned,
        _ => true,
    }
}

const COLUMNS: SortColumns<'static, ClientView> = &[
    ("pid", |client| SortValue::number(Some(client.pid))),
    ("tenant", |client| SortValue::text(client.tenant.as_ref().map(TenantName::natural_key))),
    ("daemon", |client| SortValue::Text(client.daemon.natural_key())),
    ("uid", |client| SortValue::number(client.uid)),
    ("memory", |client| SortValue::number(memory(&client.memory).map(|amount| amount.0))),
    ("since", |client| SortValue::Number(client.since)),
    ("command", |client| SortValue::Text(client.command.clone())),
];

/// Total memory of a client, if the driver reports any.
pub(super) fn memory(of: &[ClientMemory]) -> Option<Amount> {
    let bytes = of.iter().filter_map(|memory| memory.used_bytes);
    bytes.reduce(u64::saturating_add).map(Amount)
}

async fn all(call: Call, query: ListQuery) -> Reply {
    let mut facets = Facet::of(&query, "show", SHOWN);
    let clients = async {
        let daemon = query.parsed("daemon", DaemonName::parse)?;
        let filter = ClientFilter { daemon, tenant: query.parsed("tenant", TenantName::parse)? };
        let choice = query.one_of("show", "a choice of clients", SHOWN, |(name, _)| name)?;
        let mut clients = call.app.service.clients(&call.ctx, &filter, false, &Page::whole()).await?.items;
        for (facet, (name, _)) in facets.iter_mut().zip(SHOWN) {
            facet.count = Some(clients.iter().filter(|client| is_shown(client, name)).count());
        }
        clients.retain(|client| is_shown(client, choice.map_or("", |(name, _)| name)));
        if query.is_sorted() {
            return query.sorted_page(clients, COLUMNS);
        }
        let page = query.page()?;
        let after = page.key::<ClientId>()?;
        clients.retain(|client| after.is_none_or(|after| client.id > after));
        Ok(page.cut(clients, |client| client.id.to_string()))
    };
    let page = query.list(&call, Section::Clients, &["daemon", "tenant", "show"], clients).await?;
    let sorting = Sorting::of(&query);
    Ok(page.with_daemons(&call).await?.answer(|page| ClientsPage { page, facets, sorting }))
}

#[derive(Template)]
#[template(path = "client.html")]
struct ClientPage {
    frame: Frame,
    id: ClientId,
    /// Its present state; `None` once it is gone.
    client: Option<ClientView>,
    of_host: bool,
    gpus: GpuDisplayNames,
    /// Last known data of a client that is gone, with the incident in which it lost its work.
    gone: Option<AffectedClient>,
    incident: Option<(i64, String)>,
    events: Vec<Event>,
}

async fn show(call: Call, Path(id): Path<ClientId>) -> Reply {
    let Call { app, ctx } = &call;
    let service = &app.service;
    let of_client = EventFilter { client: Some(id), ..EventFilter::default() };
    let events = call.newest_events(of_client, EVENTS).await?;
    let client = match service.client(ctx, id).await {
        Ok(client) => Some(client),
        // Its events remain when it is gone.
        Err(ServiceError::NotFound { .. }) if !events.is_empty() => None,
        Err(error) => return Err(error.into()),
    };
    let (mut gone, mut incident) = (events.iter().find_map(Event::client), None);
    if let (None, Some(first)) = (&client, events.last()) {
        // The daemon and the time bound what is read.
        let daemon = events.iter().find_map(|event| event.subject.daemon.clone());
        let its =
            IncidentFilter { affected: Some(id), daemon, since: Some(first.at), ..IncidentFilter::default() };
        for view in service.incidents(ctx, its, &Page::first(1)).await?.items {
            let lost = view.affected.into_iter().find(|lost| lost.client.client == Some(id));
            if let Some(lost) = lost {
                (gone, incident) = (Some(lost.client), Some((view.id, view.summary)));
            }
        }
    }
    let frame = call.frame(Section::Clients, format!("Client {}", id.pid)).await.live();
    let of_host = frame.may(Role::Viewer);
    let gpus = if of_host { call.gpu_names().await } else { GpuDisplayNames::default() };
    Ok(rendered(&ClientPage { frame, id, client, of_host, gpus, gone, incident, events }))
}

#[derive(Template)]
#[template(path = "client_terminate.html")]
struct TerminatePage {
    frame: Frame,
    client: ClientView,
    /// Reason for which the termination would be refused.
    refused: Option<String>,
    /// True if the client is stopped, so that the user must choose an action.
    stopped: bool,
}

/// The field for the action on a stopped client.
const STOPPED: &str = "stopped";

/// The options for a stopped client.
#[derive(serde::Deserialize)]
struct TerminateChoice {
    stopped: StoppedPolicy,
}

async fn confirm_terminate(call: Call, Path(id): Path<ClientId>) -> Reply {
    terminate_page(&call, id, None).await
}

/// The page that asks before a client is terminated, and again after that was refused; the events of a client that has ended.
async fn terminate_page(call: &Call, id: ClientId, error: Option<ServiceError>) -> Reply {
    let Call { app, ctx } = call;
    let client = match app.service.client(ctx, id).await {
        Err(error @ ServiceError::NotFound { .. }) => return redirect_to_history(call, id, error).await,
        client => client?,
    };
    let stopped = app.service.is_client_stopped(ctx, id).await?;
    let problem = error.map(|error| Problem::of(error, &ctx.actor));
    let refused = match &problem {
        // If it was stopped since the page was rendered, the choice is shown.
        Some(problem) => (!stopped).then(|| problem.detail.clone()),
        None => {
            // The user chooses the action on the page; any one will do for the rehearsal.
            let policy = if stopped { StoppedPolicy::Continue } else { StoppedPolicy::Refuse };
            let rehearsed = app.service.terminate(ctx, id, policy, WriteOptions::rehearsal()).await;
            rehearsal_refusal(ctx, rehearsed)?
        }
    };
    let frame = call.frame(Section::Clients, format!("Terminate client {}", id.pid)).await;
    Ok(with_status(&TerminatePage { frame, client, refused, stopped }, problem))
}

async fn terminate(call: Call, Path(id): Path<ClientId>, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    let policy = match form.text(STOPPED) {
        "" => StoppedPolicy::Refuse,
        _ => form.read::<TerminateChoice>(&[(STOPPED, Shape::Text)])?.stopped,
    };
    match app.service.terminate(ctx, id, policy, WriteOptions::default()).await {
        Ok(operation) => Ok(followed(operation.id)),
        // The client has ended already, as requested.
        Err(error @ ServiceError::NotFound { .. }) => redirect_to_history(&call, id, error).await,
        Err(error @ ServiceError::Conflict(_)) => terminate_page(&call, id, Some(error)).await,
        Err(error) => Err(error.into()),
    }
}

/// Redirects to the events of a client, which remain when it is gone; 404 if there are none.
async fn redirect_to_history(call: &Call, id: ClientId, not_found: ServiceError) -> Reply {
    let filter = EventFilter { client: Some(id), ..EventFilter::default() };
    if call.newest_events(filter, 1).await?.is_empty() {
        return Err(not_found.into());
    }
    Ok(Redirect::to(&format!("/clients/{id}")).into_response())
}
