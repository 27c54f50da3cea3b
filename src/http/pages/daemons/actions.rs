//! Actions on a daemon: at once if no client is affected, otherwise after a confirmation page that names them.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;

use super::clients;
use crate::domain::DaemonName;
use crate::domain::maintenance::{DEFAULT_DRAIN_S, OnTimeout};
use crate::domain::operation::OperationRequest;
use crate::http::AppState;
use crate::http::api::{checked_grace, default_grace};
use crate::http::extract::{Call, Path};
use crate::http::pages::forms::{Field, Form, FormErrors, Shape, rehearsal_refusal};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::{followed, refusal, with_status};
use crate::http::problem::{Problem, Reply};
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::tenants::clients::ClientView;
use crate::service::{ServiceError, WriteOptions, etag};

/// An action that must be confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConfirmedAction {
    Stop,
    Restart,
    Drain,
    Release,
    Delete,
}

impl ConfirmedAction {
    /// The last segment of its route.
    fn word(self) -> String {
        self.title().to_lowercase()
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

    /// Returns the effect on the daemon, in a sentence or two.
    fn meaning(self) -> &'static str {
        match self {
            Self::Stop => {
                "Its control daemon and its servers end, and it stays stopped until someone starts it."
            }
            Self::Restart => {
                "Its control daemon and its servers end, and new ones are started with all settings and partitions."
            }
            Self::Drain => {
                "It takes no new clients, and waits for the connected ones. When drained, it stays cordoned and keeps running; if the \
                 drain is cancelled or fails, it is as before."
            }
            Self::Release => {
                "The manager deletes it and leaves its processes, clients and settings as they are, unmanaged."
            }
            Self::Delete => {
                "Its control daemon and its servers end, and the manager deletes it. Its events and audit log rows remain."
            }
        }
    }

    /// Returns the effect on its clients, in a sentence or two.
    fn fate(self) -> &'static str {
        match self {
            Self::Stop | Self::Restart | Self::Delete => {
                "They get the grace period to end by themselves. After it they lose their server, and with it their work on the GPU."
            }
            Self::Drain => "They keep running until they end by themselves, or until the timeout.",
            Self::Release => "They keep running, and their limits are no longer monitored.",
        }
    }

    fn has_grace(self) -> bool {
        matches!(self, Self::Stop | Self::Restart | Self::Delete)
    }

    fn is_drain(self) -> bool {
        self == Self::Drain
    }

    fn request(self, fields: &ActionForm) -> Result<Option<OperationRequest>, ServiceError> {
        Ok(match self {
            Self::Stop => Some(OperationRequest::StopDaemon { grace_s: checked_grace(fields.grace_s)? }),
            Self::Restart => {
                Some(OperationRequest::RestartDaemon { grace_s: checked_grace(fields.grace_s)? })
            }
            Self::Delete => Some(OperationRequest::DeleteDaemon { grace_s: checked_grace(fields.grace_s)? }),
            Self::Drain => {
                let ActionForm { timeout_s, on_timeout, .. } = *fields;
                Some(OperationRequest::DrainDaemon { timeout_s, on_timeout })
            }
            Self::Release => None,
        })
    }
}

/// The fields of the confirmation form.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActionForm {
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

#[derive(Template)]
#[template(path = "daemons/confirm.html")]
struct ConfirmPage {
    frame: Frame,
    action: ConfirmedAction,
    daemon: DaemonView,
    clients: Vec<ClientView>,
    tenants: u64,
    form: Form,
    refused: FormErrors,
    /// Reason for which the action would be refused now.
    blocker: Option<String>,
}

impl ConfirmPage {
    fn names_clients(&self) -> bool {
        !self.clients.is_empty()
    }
}

pub(super) fn router() -> Router<AppState> {
    // One route each, since the audit log identifies the action by its route.
    Router::new()
        .route("/daemons/{name}/start", post(start))
        .route("/daemons/{name}/cordon", post(cordon))
        .route("/daemons/{name}/uncordon", post(uncordon))
        .route("/daemons/{name}/stop", with_confirmation(ConfirmedAction::Stop))
        .route("/daemons/{name}/restart", with_confirmation(ConfirmedAction::Restart))
        .route("/daemons/{name}/drain", with_confirmation(ConfirmedAction::Drain))
        .route("/daemons/{name}/release", with_confirmation(ConfirmedAction::Release))
        .route("/daemons/{name}/delete", with_confirmation(ConfirmedAction::Delete))
}

/// The confirmation page and its form.
fn with_confirmation(action: ConfirmedAction) -> MethodRouter<AppState> {
    let show = move |call: Call, name: Path<DaemonName>| confirm(call, name, action);
    let run = move |call: Call, name: Path<DaemonName>, form: Form| run_confirmed(call, name, form, action);
    get(show).post(run)
}

async fn start(Call { app, ctx }: Call, Path(name): Path<DaemonName>) -> Reply {
    let options = WriteOptions::default();
    let operation = app.service.operate(&ctx, name, OperationRequest::StartDaemon, options).await?;
    Ok(followed(operation.id))
}

async fn cordon(call: Call, name: Path<DaemonName>) -> Reply {
    set_schedulable(call, name, false).await
}

async fn uncordon(call: Call, name: Path<DaemonName>) -> Reply {
    set_schedulable(call, name, true).await
}

async fn set_schedulable(Call { app, ctx }: Call, Path(name): Path<DaemonName>, schedulable: bool) -> Reply {
    let back = format!("/daemons/{name}");
    app.service.set_schedulable(&ctx, name, schedulable, WriteOptions::default()).await?;
    Ok(Redirect::to(&back).into_response())
}

/// Shows the confirmation page.
async fn confirm(Call { app, ctx }: Call, Path(name): Path<DaemonName>, action: ConfirmedAction) -> Reply {
    let mut form = Form::default();
    form.set("grace_s", default_grace().to_string());
    form.set("timeout_s", DEFAULT_DRAIN_S.to_string());
    form.set("on_timeout", "fail");
    let blocker = done(&app, &ctx, &name, action, &form, WriteOptions::rehearsal()).await;
    let blocker = rehearsal_refusal(&ctx, blocker)?;
    confirm_page(&app, &ctx, &name, action, form, None, blocker).await
}

#[allow(clippy::too_many_arguments, reason = "the contents of the page")]
async fn confirm_page(
    app: &AppState,
    ctx: &RequestContext,
    name: &DaemonName,
    action: ConfirmedAction,
    mut form: Form,
    refused: Option<(FormErrors, Problem)>,
    blocker: Option<String>,
) -> Reply {
    let daemon = app.service.daemon(ctx, name, false).await?;
    // The page lists the present clients.
    form.replace("revision", daemon.revision.to_string());
    let clients = clients(app, ctx, name).await?;
    let tenants = app.service.tenant_counts(ctx).await?.get(name).copied().unwrap_or(0);
    let (refused, problem) = refused.unzip();
    let refused = refused.unwrap_or_default();
    let title = format!("{} daemon {name}", action.title());
    let frame = Frame::of(&app.service, ctx, Section::Daemons, &title).await;
    Ok(with_status(&ConfirmPage { frame, action, daemon, clients, tenants, form, refused, blocker }, problem))
}

/// Runs the action, and redirects to where its effect is shown.
async fn run_confirmed(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    form: Form,
    action: ConfirmedAction,
) -> Reply {
    let if_match = form.text("revision").parse().ok().map(etag);
    let options = WriteOptions { if_match, ..WriteOptions::default() };
    match done(&app, &ctx, &name, action, &form, options).await {
        Ok(Some(operation)) => Ok(followed(operation)),
        Ok(None) => Ok(Redirect::to("/daemons#foreign").into_response()),
        Err(error) => {
            let refused = refusal(&ctx, error, &FIELDS.map(|(name, _)| name))?;
            confirm_page(&app, &ctx, &name, action, form, Some(refused), None).await
        }
    }
}

/// Runs or rehearses the action; returns the operation if there is one.
async fn done(
    app: &AppState,
    ctx: &RequestContext,
    name: &DaemonName,
    action: ConfirmedAction,
    form: &Form,
    options: WriteOptions,
) -> Result<Option<uuid::Uuid>, ServiceError> {
    let fields: ActionForm = form.read(&FIELDS)?;
    match action.request(&fields)? {
        Some(request) => {
            let operation = app.service.operate(ctx, name.clone(), request, options).await?;
            Ok(Some(operation.id))
        }
        None => app.service.release_daemon(ctx, name.clone(), options).await.map(|()| None),
    }
}
