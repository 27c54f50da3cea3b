//! The form in which somebody describes a tenant, with what that would come to beside it.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};

use super::super::forms::{BEGAN, Field, Form, Meanwhile, Refused, Shape};
use super::super::frame::{Frame, Place};
use super::super::gpus::GpuRow;
use super::super::{refused_with, rendered};
use super::daemon_names;
use super::prediction::Outcome;
use crate::domain::access::{Actor, Right};
use crate::domain::gpu::GpuRef;
use crate::domain::tenant::TenantSpec;
use crate::domain::{DaemonName, Priority, TenantName};
use crate::http::AppState;
use crate::http::extract::{Path, Query};
use crate::http::problem::Problem;
use crate::service::tenants::TenantView;
use crate::service::{FieldError, ServiceError, WriteOptions, etag};

/// What is read of the form whatever share is chosen.
const COMMON: [Field; 7] = [
    ("daemon", Shape::Text),
    ("uid", Shape::Whole),
    ("gpus", Shape::List),
    ("device_memory_limit", Shape::Text),
    ("max_clients", Shape::Whole),
    ("priority", Shape::Text),
    ("labels", Shape::Pairs),
];
/// The fields beside which something can be wrong.
const NAMES: [&str; 10] = [
    "name",
    "daemon",
    "uid",
    "gpus",
    "device_memory_limit",
    "max_clients",
    "sms",
    "active_thread_percentage",
    "priority",
    "labels",
];

/// The same in groups of which only the whole can be kept or left.
const GROUPS: [&[&str]; 8] = [
    &["daemon"],
    &["uid"],
    &["gpus"],
    &["device_memory_limit"],
    &["max_clients"],
    &["share", "sms", "active_thread_percentage"],
    &["priority"],
    &["labels"],
];

#[derive(Template)]
#[template(path = "tenant_form.html")]
struct FormPage {
    frame: Frame,
    /// The tenant that is changed; `None` where one is made.
    changed: Option<TenantName>,
    /// The revision that is changed.
    revision: i64,
    form: Form,
    refused: Refused,
    /// What somebody else made of it meanwhile.
    meanwhile: Vec<Meanwhile>,
    daemons: Vec<DaemonName>,
    gpus: Vec<GpuRow>,
    outcome: Outcome,
}

impl FormPage {
    fn action(&self) -> String {
        self.changed.as_ref().map_or_else(|| "/tenants".to_owned(), |name| format!("/tenants/{name}/edit"))
    }

    fn share(&self) -> &str {
        match self.form.text("share") {
            "" => "default",
            share => share,
        }
    }
}

/// What stands beside the form, alone.
#[derive(Template)]
#[template(path = "tenant_prediction.html")]
struct PredictionPart {
    outcome: Outcome,
}

/// What somebody who comes from elsewhere has chosen already.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Chosen {
    #[serde(default)]
    daemon: String,
}

pub(super) async fn new(
    State(app): State<AppState>,
    actor: Actor,
    Query(chosen): Query<Chosen>,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let mut form = Form::default();
    form.set("uid", "0");
    form.set("max_clients", "1");
    form.set("daemon", chosen.daemon);
    let mut page = form_page(&app, &actor, form, Asking::default()).await?;
    page.outcome.is_untouched = true;
    Ok(rendered(&page))
}

pub(super) async fn create(
    State(app): State<AppState>,
    actor: Actor,
    form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    if form.ticked("check") {
        return Ok(rendered(&form_page(&app, &actor, form, Asking::default()).await?));
    }
    let options = WriteOptions { must_be_new: true, ..WriteOptions::default() };
    let written = match both(named(&form), read(&form)) {
        Ok((name, spec)) => {
            app.service.put_tenant(&actor, name.clone(), spec, options).await.map_err(|error| match error {
                ServiceError::PreconditionFailed(_) => ServiceError::field(
                    "/name",
                    format!("there is a tenant {name} already: choose another name"),
                ),
                error => error,
            })
        }
        Err(error) => Err(error),
    };
    match written {
        Ok(written) => Ok(Redirect::to(&format!("/tenants/{}", written.value.name)).into_response()),
        Err(error) => again(&app, &actor, form, None, error).await,
    }
}

pub(super) async fn edit(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let tenant = app.service.tenant(&actor, &name, false).await?;
    let asking = Asking { changed: Some((name, tenant.generation)), ..Asking::default() };
    let mut form = filled(&tenant);
    form.set(BEGAN, form.encoded());
    Ok(rendered(&form_page(&app, &actor, form, asking).await?))
}

pub(super) async fn change(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<TenantName>,
    form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let revision: i64 = form.text("revision").parse().unwrap_or_default();
    let changed = Some((name.clone(), revision));
    if form.ticked("check") {
        let asking = Asking { changed, ..Asking::default() };
        return Ok(rendered(&form_page(&app, &actor, form, asking).await?));
    }
    let options = WriteOptions { if_match: Some(etag(revision)), ..WriteOptions::default() };
    let written = match read(&form) {
        Ok(spec) => app.service.put_tenant(&actor, name.clone(), spec, options).await.map(drop),
        Err(error) => Err(error),
    };
    match written {
        Ok(()) => Ok(Redirect::to(&format!("/tenants/{name}")).into_response()),
        Err(error) => again(&app, &actor, form, changed, error).await,
    }
}

/// What stands beside the form, for a script that asks while somebody types.
pub(super) async fn predict(
    State(app): State<AppState>,
    actor: Actor,
    form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let outcome = outcome(&app, &actor, &form, form.text("revision").is_empty()).await?;
    Ok(rendered(&PredictionPart { outcome }))
}

/// What is shown with a form beside what was typed.
#[derive(Default)]
struct Asking {
    changed: Option<(TenantName, i64)>,
    refused: Refused,
    meanwhile: Vec<Meanwhile>,
}

async fn form_page(
    app: &AppState,
    actor: &Actor,
    mut form: Form,
    Asking { changed, refused, meanwhile }: Asking,
) -> Result<FormPage, Problem> {
    let title = match &changed {
        Some((name, _)) => format!("Edit {name}"),
        None => "New tenant".to_owned(),
    };
    let frame = Frame::of(&app.service, actor, Place::Tenants, &title).await;
    let daemons = daemon_names(app, actor).await?;
    if form.text("daemon").is_empty()
        && let Some(first) = daemons.first()
    {
        form.replace("daemon", first.as_str());
    }
    let held = |row: &GpuRow| row.gpu.daemon.is_some();
    let gpus = app.service.gpu_views(actor).await?.into_iter().map(GpuRow::of).filter(held).collect();
    let outcome = outcome(app, actor, &form, changed.is_none()).await?;
    let (changed, revision) = changed.unzip();
    Ok(FormPage {
        frame,
        changed,
        revision: revision.unwrap_or_default(),
        form,
        refused,
        meanwhile,
        daemons,
        gpus,
        outcome,
    })
}

/// The form once more, with what is wrong in it.
async fn again(
    app: &AppState,
    actor: &Actor,
    mut form: Form,
    changed: Option<(TenantName, i64)>,
    error: ServiceError,
) -> Result<Response, Problem> {
    let mut asking = Asking { refused: Refused::of(error.clone(), &NAMES), changed, ..Asking::default() };
    if let (ServiceError::PreconditionFailed(_), Some((name, _))) = (&error, &asking.changed) {
        match app.service.tenant(actor, name, false).await {
            Ok(now) => {
                asking.meanwhile = form.take_up(&filled(&now), &GROUPS);
                asking.refused = Refused::whole_form(
                    "Somebody else changed this tenant since you opened the form. What you typed is kept, and replaces what is \
                     there now once you send it again; what you left as it was has what is there now.",
                );
                asking.changed = Some((name.clone(), now.generation));
            }
            Err(ServiceError::NotFound { .. }) => {
                asking.refused = Refused::whole_form(&format!(
                    "Somebody deleted tenant {name} since you opened the form. What you typed is kept: sent from here, it makes \
                     a new tenant.",
                ));
                asking.changed = None;
            }
            Err(error) => return Err(error.into()),
        }
    }
    let page = form_page(app, actor, form, asking).await?;
    Ok(refused_with(&page, error.into()))
}

/// What a form comes to; where it cannot be read yet, why.
async fn outcome(app: &AppState, actor: &Actor, form: &Form, is_new: bool) -> Result<Outcome, Problem> {
    let name = named(form).ok();
    let told = match read(form) {
        Ok(spec) => app.service.predict_tenant(actor, name.as_ref(), is_new, spec).await,
        Err(error) => Err(error),
    };
    match told {
        Ok(told) => {
            let refusals = told.refusals.iter();
            let refusals = refusals.map(|refusal| (label(refusal.field).to_owned(), refusal.detail.clone()));
            Ok(Outcome { refusals: refusals.collect(), prediction: Some(told), is_untouched: false })
        }
        Err(ServiceError::Invalid(errors)) => {
            let refusals = errors.into_iter().map(|FieldError { pointer, detail }| {
                let field = pointer.trim_start_matches('/').split('/').next().unwrap_or_default().to_owned();
                (label(&field).to_owned(), detail)
            });
            Ok(Outcome { refusals: refusals.collect(), prediction: None, is_untouched: false })
        }
        Err(error) => Err(error.into()),
    }
}

/// What a field of the spec is called in the form.
fn label(field: &str) -> &str {
    match field {
        "name" => "Name",
        "daemon" => "Daemon",
        "uid" => "User",
        "gpus" => "GPUs",
        "device_memory_limit" => "Memory limit",
        "max_clients" => "Clients",
        "sms" => "SMs",
        "active_thread_percentage" => "Percentage",
        "priority" => "Priority",
        "labels" => "Labels",
        "share" => "Share of the SMs",
        other => other,
    }
}

fn named(form: &Form) -> Result<TenantName, ServiceError> {
    if form.text("name").is_empty() {
        return Err(ServiceError::field("/name", "fill this in"));
    }
    TenantName::parse(form.text("name")).map_err(|error| ServiceError::field("/name", error.to_string()))
}

fn read(form: &Form) -> Result<TenantSpec<GpuRef>, ServiceError> {
    let mut fields = COMMON.to_vec();
    let share = match form.text("share") {
        "sms" => Some(("sms", Shape::Whole)),
        "percentage" => Some(("active_thread_percentage", Shape::Number)),
        _ => None,
    };
    if let Some((name, _)) = share.filter(|(name, _)| form.text(name).is_empty()) {
        return Err(ServiceError::field(&format!("/{name}"), "fill this in, or choose another share"));
    }
    fields.extend(share);
    form.read(&fields)
}

/// What is wrong with either, together.
fn both<A, B>(a: Result<A, ServiceError>, b: Result<B, ServiceError>) -> Result<(A, B), ServiceError> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(ServiceError::Invalid(mut all)), Err(ServiceError::Invalid(more))) => {
            all.extend(more);
            Err(ServiceError::Invalid(all))
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// The form of a tenant as it is.
fn filled(tenant: &TenantView) -> Form {
    let (spec, mut form) = (&tenant.spec, Form::default());
    form.set("name", tenant.name.as_str());
    form.set("daemon", spec.daemon.as_str());
    form.set("uid", spec.uid.to_string());
    for gpu in &spec.gpus {
        form.set("gpus", gpu.as_str());
    }
    if let Some(limit) = spec.device_memory_limit {
        let mib = limit.mib();
        let typed = if mib.is_multiple_of(1024) { format!("{}G", mib / 1024) } else { format!("{mib}M") };
        form.set("device_memory_limit", typed);
    }
    form.set("max_clients", spec.max_clients.to_string());
    match (spec.sms, spec.active_thread_percentage) {
        (Some(sms), _) => {
            form.set("share", "sms");
            form.set("sms", sms.to_string());
        }
        (None, Some(percentage)) => {
            form.set("share", "percentage");
            form.set("active_thread_percentage", percentage.to_string());
        }
        (None, None) => form.set("share", "default"),
    }
    form.set("priority", spec.priority.map_or("", Priority::as_str));
    let labels: Vec<String> = spec.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    form.set("labels", labels.join("\n"));
    form
}
