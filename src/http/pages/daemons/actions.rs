//! Actions on a daemon: at once if no client is affected, otherwise after a confirmation page that names them.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{MethodRouter, get, post};
use serde::Deserialize;
use uuid::Uuid;

use crate::domain::DaemonName;
use crate::domain::maintenance::{DEFAULT_DRAIN_S, OnTimeout};
use crate::domain::operation::OperationRequest;
use crate::http::AppState;
use crate::http::api::{checked_grace, default_grace};
use crate::http::extract::{Call, Path};
use crate::http::pages::forms::{Field, Form, FormErrors, Shape, rehearsal_refusal};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::{followed, refusal};
use crate::http::problem::Reply;
use crate::service;
use crate::service::daemons::DaemonView;
use crate::service::tenants::clients::{ClientFilter, ClientView};
use crate::service::{ServiceError, WriteOptions, etag};

/// An action that must be confirmed.
#[derive(Clone, Copy)]
struct ConfirmedAction {
    title: &'static str,
    /// The operation with the values of the form; `None` for a release, which is done at once.
    operation: Option<fn(&ActionForm) -> service::Result<OperationRequest>>,
}

const STOP: ConfirmedAction =
    ConfirmedAction::of("Stop", |form| Ok(OperationRequest::StopDaemon { grace_s: form.grace()? }));
const RESTART: ConfirmedAction =
    ConfirmedAction::of("Restart", |form| Ok(OperationRequest::RestartDaemon { grace_s: form.grace()? }));
const DRAIN: ConfirmedAction =
    ConfirmedAction::of("Drain", |&ActionForm { timeout_s, on_timeout, .. }| {
        Ok(OperationRequest::DrainDaemon { timeout_s, on_timeout })
    });
const RELEASE: ConfirmedAction = ConfirmedAction { title: "Release", operation: None };
const DELETE: ConfirmedAction =
    ConfirmedAction::of("Delete", |form| Ok(OperationRequest::DeleteDaemon { grace_s: form.grace()? }));

impl ConfirmedAction {
    const fn of(
        title: &'static str,
        operation: fn(&ActionForm) -> service::Result<OperationRequest>,
    ) -> Self {
        Self { title, operation: Some(operation) }
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

impl ActionForm {
    fn grace(&self) -> Result<u32, ServiceError> {
        checked_grace(self.grace_s)
    }
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

pub(super) fn router() -> Router<AppState> {
    // One route each, since the audit log identifies the action by its route.
    Router::new()
        .route("/daemons/{name}/start", post(start))
        .route("/daemons/{name}/cordon", set_schedulable(false))
        .route("/daemons/{name}/uncordon", set_schedulable(true))
        .route("/daemons/{name}/stop", with_confirmation(STOP))
        .route("/daemons/{name}/restart", with_confirmation(RESTART))
        .route("/daemons/{name}/drain", with_confirmation(DRAIN))
        .route("/daemons/{name}/release", with_confirmation(RELEASE))
        .route("/daemons/{name}/delete", with_confirmation(DELETE))
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

/// Lets a daemon take new processes, or no more of them.
fn set_schedulable(schedulable: bool) -> MethodRouter<AppState> {
    post(move |Call { app, ctx }: Call, Path(name): Path<DaemonName>| async move {
        let back = format!("/daemons/{name}");
        app.service.set_schedulable(&ctx, name, schedulable, WriteOptions::default()).await?;
        Reply::Ok(Redirect::to(&back).into_response())
    })
}

/// Shows the confirmation page.
async fn confirm(call: Call, Path(name): Path<DaemonName>, action: ConfirmedAction) -> Reply {
    let mut form = Form::default();
    form.set("grace_s", default_grace().to_string());
    form.set("timeout_s", DEFAULT_DRAIN_S.to_string());
    form.set("on_timeout", "fail");
    let blocker = done(&call, &name, action, &form, WriteOptions::rehearsal()).await;
    let blocker = rehearsal_refusal(&call.ctx, blocker)?;
    confirm_page(&call, &name, action, form, FormErrors::default(), blocker).await
}

async fn confirm_page(
    call: &Call,
    name: &DaemonName,
    action: ConfirmedAction,
    mut form: Form,
    refused: FormErrors,
    blocker: Option<String>,
) -> Reply {
    let Call { app, ctx } = call;
    let daemon = app.service.daemon(ctx, name, false).await?;
    // The page lists the present clients.
    form.replace("revision", daemon.revision.to_string());
    let clients = call.clients(ClientFilter { daemon: Some(name.clone()), tenant: None }).await?;
    let tenants = app.service.tenant_counts(ctx).await?.get(name).copied().unwrap_or(0);
    let frame = call.frame(Section::Daemons, format!("{} daemon {name}", action.title)).await;
    Ok(refused.shown(|refused| ConfirmPage {
        frame,
        action,
        daemon,
        clients,
        tenants,
        form,
        refused,
        blocker,
    }))
}

/// Runs the action, and redirects to where its effect is shown.
async fn run_confirmed(
    call: Call,
    Path(name): Path<DaemonName>,
    form: Form,
    action: ConfirmedAction,
) -> Reply {
    let if_match = form.text("revision").parse().ok().map(etag);
    let options = WriteOptions { if_match, ..WriteOptions::default() };
    match done(&call, &name, action, &form, options).await {
        Ok(Some(operation)) => Ok(followed(operation)),
        Ok(None) => Ok(Redirect::to("/daemons#foreign").into_response()),
        Err(error) => {
            let refused = refusal(&call.ctx, error, &FIELDS.map(|(name, _)| name))?;
            confirm_page(&call, &name, action, form, refused, None).await
        }
    }
}

/// Runs or rehearses the action; returns the operation if there is one.
async fn done(
    Call { app, ctx }: &Call,
    name: &DaemonName,
    action: ConfirmedAction,
    form: &Form,
    options: WriteOptions,
) -> Result<Option<Uuid>, ServiceError> {
    let fields: ActionForm = form.read(&FIELDS)?;
    let Some(operation) = action.operation else {
        return app.service.release_daemon(ctx, name.clone(), options).await.map(|()| None);
    };
    let operation = app.service.operate(ctx, name.clone(), operation(&fields)?, options).await?;
    Ok(Some(operation.id))
}
