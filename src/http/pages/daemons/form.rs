//! A daemon's spec in a form: written new, and changed without undoing what somebody else changed meanwhile.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;

use crate::domain::access::{Actor, Right};
use crate::domain::daemon::{DaemonSpec, Management, Mode};
use crate::domain::drift::DriftPolicy;
use crate::domain::gpu::{ComputeMode, GpuRef};
use crate::domain::wedge::WedgePolicy;
use crate::domain::{DaemonName, Priority};
use crate::http::AppState;
use crate::http::extract::{Path, Query};
use crate::http::pages::forms::{BEGAN, Field, Form, Meanwhile, Refused, Shape};
use crate::http::pages::frame::{Frame, Place};
use crate::http::pages::gpus::GpuRow;
use crate::http::pages::page;
use crate::http::problem::Problem;
use crate::service::daemons::DaemonView;
use crate::service::{ServiceError, WriteOptions, etag};

const FIELDS: [Field; 13] = [
    ("gpus", Shape::List),
    ("mode", Shape::Text),
    ("multi_user", Shape::Flag),
    ("management", Shape::Text),
    ("share_gpus", Shape::Flag),
    ("compute_mode", Shape::Text),
    ("defaults.device_memory_limit", Shape::Text),
    ("defaults.active_thread_percentage", Shape::Number),
    ("defaults.priority", Shape::Text),
    ("memory_overcommit", Shape::Number),
    ("drift_policy", Shape::Text),
    ("wedge_policy", Shape::Text),
    ("wedge_grace_s", Shape::Whole),
];
const NAMES: [&str; 14] = [
    "name",
    "gpus",
    "mode",
    "multi_user",
    "management",
    "share_gpus",
    "compute_mode",
    "defaults.device_memory_limit",
    "defaults.active_thread_percentage",
    "defaults.priority",
    "memory_overcommit",
    "drift_policy",
    "wedge_policy",
    "wedge_grace_s",
];
/// Each field by itself can be kept or left; the name stays.
const GROUPS: [&[&str]; 13] = [
    &["gpus"],
    &["mode"],
    &["multi_user"],
    &["management"],
    &["share_gpus"],
    &["compute_mode"],
    &["defaults.device_memory_limit"],
    &["defaults.active_thread_percentage"],
    &["defaults.priority"],
    &["memory_overcommit"],
    &["drift_policy"],
    &["wedge_policy"],
    &["wedge_grace_s"],
];

#[derive(Template)]
#[template(path = "daemons/form.html")]
struct FormPage {
    frame: Frame,
    /// The daemon that is changed; `None` for a new one.
    daemon: Option<DaemonView>,
    gpus: Vec<Choice>,
    form: Form,
    refused: Refused,
    /// What somebody else wrote meanwhile.
    meanwhile: Vec<Meanwhile>,
}

impl FormPage {
    fn says(&self, name: &str, value: &str) -> bool {
        self.form.text(name) == value
    }

    fn wrong(&self, name: &str) -> bool {
        self.refused.field(name).is_some()
    }

    fn action(&self) -> String {
        match &self.daemon {
            Some(daemon) => format!("/daemons/{}/edit", daemon.name),
            None => "/daemons/-/new".to_owned(),
        }
    }

    fn back(&self) -> String {
        match &self.daemon {
            Some(daemon) => format!("/daemons/{}", daemon.name),
            None => "/daemons".to_owned(),
        }
    }
}

/// A GPU that can be chosen.
struct Choice {
    row: GpuRow,
    is_chosen: bool,
    /// Why it cannot be, as far as that is known before.
    not: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewQuery {
    gpu: Option<String>,
}

pub(super) async fn new(
    State(app): State<AppState>,
    actor: Actor,
    Query(query): Query<NewQuery>,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let gpus = gpus(&app, &actor).await?;
    let free: Vec<&GpuRow> = gpus.iter().filter(|row| row.gpu.daemon.is_none()).collect();
    let wanted = |row: &&&GpuRow| {
        let index = row.gpu.index.map(|index| index.to_string());
        query.gpu.as_deref().is_some_and(|gpu| row.gpu.uuid.as_str() == gpu || index.as_deref() == Some(gpu))
    };
    // Where there is only one to choose, it is the one.
    let chosen = free.iter().find(wanted).or_else(|| free.first().filter(|_| free.len() == 1));
    let mut form = filled(&DaemonSpec::of(chosen.iter().map(|row| row.gpu.uuid.clone()).collect()));
    if let Some(index) = chosen.and_then(|row| row.gpu.index) {
        form.set("name", format!("gpu{index}"));
    }
    shown(&app, &actor, None, form, Refused::default(), Vec::new()).await
}

pub(super) async fn create(
    State(app): State<AppState>,
    actor: Actor,
    form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let written = async {
        let name = named(&form)?;
        let spec: DaemonSpec<GpuRef> = form.read(&FIELDS)?;
        let options = WriteOptions { must_be_new: true, ..WriteOptions::default() };
        app.service.put_daemon(&actor, name, spec, options).await
    };
    match written.await {
        Ok(written) => Ok(Redirect::to(&format!("/daemons/{}", written.value.name)).into_response()),
        Err(ServiceError::PreconditionFailed(_)) => {
            let taken = ServiceError::field("/name", "there is a daemon of this name: choose another");
            shown(&app, &actor, None, form, Refused::of(taken, &NAMES), Vec::new()).await
        }
        Err(error) => shown(&app, &actor, None, form, Refused::of(error, &NAMES), Vec::new()).await,
    }
}

pub(super) async fn edit(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let daemon = app.service.daemon(&actor, &name, false).await?;
    let mut form = filled(&daemon.spec);
    form.set(BEGAN, form.encoded());
    form.set("revision", daemon.revision.to_string());
    shown(&app, &actor, Some(daemon), form, Refused::default(), Vec::new()).await
}

pub(super) async fn change(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    mut form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Administer)?;
    let daemon = match app.service.daemon(&actor, &name, false).await {
        Err(ServiceError::NotFound { .. }) => return deleted(&app, &actor, &name, form).await,
        daemon => daemon?,
    };
    let written = async {
        let spec: DaemonSpec<GpuRef> = form.read(&FIELDS)?;
        // What the form does not have stays as it is; that it is as it was read is what the revision says.
        let spec = DaemonSpec {
            layout: daemon.spec.layout.clone(),
            desired_state: daemon.spec.desired_state,
            schedulable: daemon.spec.schedulable,
            ..spec
        };
        let revision = form.text("revision").parse().unwrap_or_default();
        let options = WriteOptions { if_match: Some(etag(revision)), ..WriteOptions::default() };
        app.service.put_daemon(&actor, name.clone(), spec, options).await
    };
    match written.await {
        Ok(_) => Ok(Redirect::to(&format!("/daemons/{name}")).into_response()),
        Err(ServiceError::PreconditionFailed(_)) => {
            let now = match app.service.daemon(&actor, &name, false).await {
                Err(ServiceError::NotFound { .. }) => return deleted(&app, &actor, &name, form).await,
                now => now?,
            };
            let meanwhile = form.take_up(&filled(&now.spec), &GROUPS);
            form.replace("revision", now.revision.to_string());
            let told = ServiceError::Conflict(
                "somebody else changed this daemon while you did: what you left as it was has what is there now. Look at \
                 the rest, and send the form again if it is still what you want"
                    .to_owned(),
            );
            let refused = Refused::of(told, &NAMES);
            let mut response = shown(&app, &actor, Some(now), form, refused, meanwhile).await?;
            *response.status_mut() = StatusCode::PRECONDITION_FAILED;
            Ok(response)
        }
        Err(error) => shown(&app, &actor, Some(daemon), form, Refused::of(error, &NAMES), Vec::new()).await,
    }
}

/// The form of a daemon that somebody deleted meanwhile, to set up another as it was typed.
async fn deleted(
    app: &AppState,
    actor: &Actor,
    name: &DaemonName,
    mut form: Form,
) -> Result<Response, Problem> {
    let why = format!(
        "somebody deleted daemon {name} since you opened the form; what you typed is kept: sent from here, it sets up a new daemon"
    );
    form.replace("name", name.as_str());
    let mut response = shown(app, actor, None, form, Refused::whole_form(&why), Vec::new()).await?;
    *response.status_mut() = StatusCode::PRECONDITION_FAILED;
    Ok(response)
}

fn named(form: &Form) -> Result<DaemonName, ServiceError> {
    DaemonName::parse(form.text("name")).map_err(|error| ServiceError::field("/name", error.to_string()))
}

async fn gpus(app: &AppState, actor: &Actor) -> Result<Vec<GpuRow>, Problem> {
    Ok(app.service.gpu_views(actor).await?.into_iter().map(GpuRow::of).collect())
}

async fn shown(
    app: &AppState,
    actor: &Actor,
    daemon: Option<DaemonView>,
    form: Form,
    refused: Refused,
    meanwhile: Vec<Meanwhile>,
) -> Result<Response, Problem> {
    let own = daemon.as_ref().map(|daemon| daemon.name.clone());
    let choice = |row: GpuRow| {
        let holder = row.gpu.daemon.as_ref().filter(|holder| Some(*holder) != own.as_ref());
        let mig = (row.gpu.mig_enabled == Some(true)).then(|| "in MIG mode, which is not managed".to_owned());
        let not = holder.map(|holder| format!("daemon {holder} has it")).or(mig);
        Choice { is_chosen: form.has("gpus", row.gpu.uuid.as_str()), not, row }
    };
    let gpus = gpus(app, actor).await?.into_iter().map(choice).collect();
    let title = daemon
        .as_ref()
        .map_or_else(|| "Set up a daemon".to_owned(), |daemon| format!("Edit daemon {}", daemon.name));
    let status = if refused.is_empty() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
    let frame = Frame::of(&app.service, actor, Place::Daemons, &title).await;
    Ok(page(status, &FormPage { frame, daemon, gpus, form, refused, meanwhile }))
}

/// A form that says what a spec says.
fn filled(spec: &DaemonSpec) -> Form {
    let mut form = Form::default();
    for gpu in &spec.gpus {
        form.set("gpus", gpu.as_str());
    }
    form.set(
        "mode",
        match spec.mode {
            Mode::Shared => "shared",
            Mode::Static => "static",
        },
    );
    form.set(
        "management",
        match spec.management {
            Management::Managed => "managed",
            Management::Observed => "observed",
        },
    );
    form.set("multi_user", if spec.multi_user { "yes" } else { "" });
    form.set("share_gpus", if spec.share_gpus { "yes" } else { "" });
    form.set(
        "compute_mode",
        match spec.compute_mode {
            None => "",
            Some(ComputeMode::Default) => "default",
            Some(ComputeMode::ExclusiveProcess) => "exclusive_process",
            Some(ComputeMode::Prohibited) => "prohibited",
        },
    );
    let limit = spec.defaults.device_memory_limit;
    form.set(
        "defaults.device_memory_limit",
        limit.map(crate::domain::MemoryLimit::as_mps).unwrap_or_default(),
    );
    let percentage = spec.defaults.active_thread_percentage;
    form.set("defaults.active_thread_percentage", percentage.map(|one| one.to_string()).unwrap_or_default());
    form.set(
        "defaults.priority",
        match spec.defaults.priority {
            None => "",
            Some(Priority::Normal) => "normal",
            Some(Priority::BelowNormal) => "below_normal",
        },
    );
    form.set("memory_overcommit", spec.memory_overcommit.to_string());
    form.set(
        "drift_policy",
        match spec.drift_policy {
            DriftPolicy::Repair => "repair",
            DriftPolicy::Report => "report",
        },
    );
    form.set(
        "wedge_policy",
        match spec.wedge_policy {
            WedgePolicy::Replace => "replace",
            WedgePolicy::Wait => "wait",
        },
    );
    form.set("wedge_grace_s", spec.wedge_grace_s.to_string());
    form
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> DaemonSpec {
        serde_json::from_value(serde_json::json!({
            "gpus": ["GPU-514466a0-8e68-f857-9f73-e438010e48cb"], "mode": "static", "multi_user": true, "share_gpus": true,
            "compute_mode": "exclusive_process", "management": "observed", "drift_policy": "report", "memory_overcommit": 1.5,
            "wedge_policy": "wait", "wedge_grace_s": 60,
            "defaults": {"device_memory_limit": "1536M", "active_thread_percentage": 12.5, "priority": "below_normal"},
        }))
        .expect("a spec")
    }

    #[test]
    fn a_form_says_all_of_a_spec_but_what_it_does_not_have() {
        for spec in [spec(), DaemonSpec::of(spec().gpus)] {
            let read: DaemonSpec = filled(&spec).read(&FIELDS).expect("the same");
            assert_eq!(read, spec);
        }
    }

    #[test]
    fn what_somebody_else_changed_is_told_field_by_field() {
        let (now, mut typed) = (filled(&spec()), filled(&spec()));
        assert_eq!(typed.take_up(&now, &GROUPS), []);
        typed.replace("multi_user", "");
        typed.replace("memory_overcommit", "2");
        let row = |field, now: &str, typed: &str| Meanwhile {
            field,
            now: now.to_owned(),
            typed: Some(typed.to_owned()),
        };
        let told = typed.take_up(&now, &GROUPS);
        assert_eq!(told, [row("multi_user", "yes", ""), row("memory_overcommit", "1.5", "2")]);
    }
}
