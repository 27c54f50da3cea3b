//! What is done to a daemon: at once where nobody loses anything, and after a page that names who does where somebody may.

use askama::Template;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use serde::Deserialize;

use super::clients;
use crate::domain::DaemonName;
use crate::domain::access::Actor;
use crate::domain::maintenance::{DEFAULT_DRAIN_S, OnTimeout};
use crate::domain::operation::OperationRequest;
use crate::http::AppState;
use crate::http::api::{checked_grace, default_grace};
use crate::http::extract::Path;
use crate::http::pages::forms::{Field, Form, Refused, Shape};
use crate::http::pages::frame::{Frame, Place};
use crate::http::pages::page;
use crate::http::problem::Problem;
use crate::service::clients::ClientView;
use crate::service::daemons::DaemonView;
use crate::service::tenants::TenantFilter;
use crate::service::{ServiceError, WriteOptions, etag};

/// What is asked about before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Stop,
    Restart,
    Drain,
    Release,
    Delete,
}

const DEEDS: [Deed; 5] = [Deed::Stop, Deed::Restart, Deed::Drain, Deed::Release, Deed::Delete];

impl Deed {
    /// The last segment of its address.
    fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Drain => "drain",
            Self::Release => "release",
            Self::Delete => "delete",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Stop => "Stop",
            Self::Restart => "Restart",
            Self::Drain => "Drain",
            Self::Release => "Release",
            Self::Delete => "Delete",
        }
    }

    /// What becomes of the daemon.
    fn meaning(self) -> &'static str {
        match self {
            Self::Stop => {
                "Its control daemon and its servers end, and it stays stopped until somebody starts it."
            }
            Self::Restart => {
                "Its control daemon and its servers end, and new ones are started with all settings and partitions."
            }
            Self::Drain => {
                "It takes no new clients, and those that are there are waited for. Drained, it stays cordoned and runs on; \
                 called off or failed, it is as it was before."
            }
            Self::Release => {
                "The manager forgets it. Its processes, its clients and its settings stay as they are, and nobody keeps them."
            }
            Self::Delete => {
                "Its control daemon and its servers end, and the manager forgets it. Its events and audit stay."
            }
        }
    }

    /// What becomes of its clients.
    fn fate(self) -> &'static str {
        match self {
            Self::Stop | Self::Restart | Self::Delete => {
                "They get the grace to end by themselves. After it they lose their server, and with it the work that is on the GPU."
            }
            Self::Drain => "They go on until they end by themselves, or until the time is over.",
            Self::Release => "They go on, and no limit of theirs is watched any more.",
        }
    }

    fn has_grace(self) -> bool {
        matches!(self, Self::Stop | Self::Restart | Self::Delete)
    }

    fn is_drain(self) -> bool {
        self == Self::Drain
    }

    fn request(self, asked: &Asked) -> Result<Option<OperationRequest>, ServiceError> {
        Ok(match self {
            Self::Stop => Some(OperationRequest::StopDaemon { grace_s: checked_grace(asked.grace_s)? }),
            Self::Restart => Some(OperationRequest::RestartDaemon { grace_s: checked_grace(asked.grace_s)? }),
            Self::Delete => Some(OperationRequest::DeleteDaemon { grace_s: checked_grace(asked.grace_s)? }),
            Self::Drain => {
                let Asked { timeout_s, on_timeout, .. } = *asked;
                Some(OperationRequest::DrainDaemon { timeout_s, on_timeout })
            }
            Self::Release => None,
        })
    }
}

/// What the form asks for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked {
    #[serde(default = "default_grace")]
    grace_s: u32,
    #[serde(default = "default_drain")]
    timeout_s: u32,
    #[serde(default)]
    on_timeout: OnTimeout,
}

fn default_drain() -> u32 {
    DEFAULT_DRAIN_S
}

const FIELDS: [Field; 3] =
    [("grace_s", Shape::Whole), ("timeout_s", Shape::Whole), ("on_timeout", Shape::Text)];
const NAMES: [&str; 3] = ["grace_s", "timeout_s", "on_timeout"];

#[derive(Template)]
#[template(path = "daemons/confirm.html")]
struct ConfirmPage {
    frame: Frame,
    deed: Deed,
    daemon: DaemonView,
    clients: Vec<ClientView>,
    tenants: usize,
    form: Form,
    refused: Refused,
    /// Why it would be refused if it were asked for now.
    in_the_way: Option<String>,
}

impl ConfirmPage {
    fn names_clients(&self) -> bool {
        !self.clients.is_empty()
    }
}

pub(super) fn router() -> Router<AppState> {
    let mut router = Router::new()
        .route("/daemons/{name}/start", post(start))
        .route("/daemons/{name}/cordon", post(cordon))
        .route("/daemons/{name}/uncordon", post(uncordon));
    for deed in DEEDS {
        let ask =
            move |app: State<AppState>, actor: Actor, name: Path<DaemonName>| ask(app, actor, name, deed);
        let answer = move |app: State<AppState>, actor: Actor, name: Path<DaemonName>, form: Form| {
            answer(app, actor, name, form, deed)
        };
        // A route of its own for each, since the audit tells what was done by the route.
        router = router.route(&format!("/daemons/{{name}}/{}", deed.word()), get(ask).post(answer));
    }
    router
}

async fn start(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
) -> Result<Response, Problem> {
    let options = WriteOptions::default();
    let operation = app.service.operate(&actor, name, OperationRequest::StartDaemon, options, None).await?;
    Ok(Redirect::to(&format!("/operations/{}", operation.id)).into_response())
}

async fn cordon(app: State<AppState>, actor: Actor, name: Path<DaemonName>) -> Result<Response, Problem> {
    set_schedulable(app, actor, name, false).await
}

async fn uncordon(app: State<AppState>, actor: Actor, name: Path<DaemonName>) -> Result<Response, Problem> {
    set_schedulable(app, actor, name, true).await
}

async fn set_schedulable(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    schedulable: bool,
) -> Result<Response, Problem> {
    let back = format!("/daemons/{name}");
    app.service.set_schedulable(&actor, name, schedulable, WriteOptions::default()).await?;
    Ok(Redirect::to(&back).into_response())
}

/// Asks whether it is to be done.
async fn ask(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    deed: Deed,
) -> Result<Response, Problem> {
    let mut form = Form::default();
    form.set("grace_s", default_grace().to_string());
    form.set("timeout_s", DEFAULT_DRAIN_S.to_string());
    form.set("on_timeout", "fail");
    let rehearsal = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let in_the_way = match done(&app, &actor, &name, deed, &form, rehearsal).await {
        Ok(_) => None,
        Err(forbidden @ (ServiceError::Forbidden(_) | ServiceError::NotFound { .. })) => {
            return Err(forbidden.into());
        }
        Err(error) => Some(Problem::from(error).detail),
    };
    asking(&app, &actor, &name, deed, form, Refused::default(), in_the_way).await
}

#[allow(clippy::too_many_arguments, reason = "what is shown of a question")]
async fn asking(
    app: &AppState,
    actor: &Actor,
    name: &DaemonName,
    deed: Deed,
    mut form: Form,
    refused: Refused,
    in_the_way: Option<String>,
) -> Result<Response, Problem> {
    let daemon = app.service.daemon(actor, name, false).await?;
    // What is confirmed is what is shown, so it goes by what is there now.
    form.replace("revision", daemon.revision.to_string());
    let clients = clients(app, actor, name).await?;
    let all = crate::service::page::Page { after: String::new(), limit: crate::service::page::MAX_LIMIT };
    let tenants = app.service.tenants(actor, &TenantFilter::of(name), &all).await?.items.len();
    let status = if refused.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let title = format!("{} daemon {name}", deed.title());
    let frame = Frame::of(&app.service, actor, Place::Daemons, &title).await;
    Ok(page(status, &ConfirmPage { frame, deed, daemon, clients, tenants, form, refused, in_the_way }))
}

/// Does it, and leads to where it is seen.
async fn answer(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    form: Form,
    deed: Deed,
) -> Result<Response, Problem> {
    let if_match = form.text("revision").parse().ok().map(etag);
    let options = WriteOptions { if_match, ..WriteOptions::default() };
    match done(&app, &actor, &name, deed, &form, options).await {
        Ok(Some(operation)) => Ok(Redirect::to(&format!("/operations/{operation}")).into_response()),
        Ok(None) => Ok(Redirect::to("/daemons#foreign").into_response()),
        Err(forbidden @ (ServiceError::Forbidden(_) | ServiceError::NotFound { .. })) => {
            Err(forbidden.into())
        }
        Err(error) => {
            let refused = Refused::of(error, &NAMES);
            asking(&app, &actor, &name, deed, form, refused, None).await
        }
    }
}

/// Does it or rehearses it; the operation, where it takes one.
async fn done(
    app: &AppState,
    actor: &Actor,
    name: &DaemonName,
    deed: Deed,
    form: &Form,
    options: WriteOptions,
) -> Result<Option<uuid::Uuid>, ServiceError> {
    let asked: Asked = form.read(&FIELDS)?;
    match deed.request(&asked)? {
        Some(request) => {
            let operation = app.service.operate(actor, name.clone(), request, options, None).await?;
            Ok(Some(operation.id))
        }
        None => app.service.release_daemon(actor, name.clone(), options).await.map(|()| None),
    }
}
