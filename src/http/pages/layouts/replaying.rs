//! Starting a replay: a preview step by step first, then the start.

use askama::Template;
use axum::extract::RawQuery;
use axum::response::{IntoResponse as _, Redirect};

use super::apply::version_of;
use super::gpu_kind::{self, LayoutPreview};
use super::import::document;
use super::target::{Places, RoleChoice, gpu_map};
use crate::domain::access::Right;
use crate::domain::layout::document::{Document, Provenance};
use crate::domain::layout::{Enforcement, Layout};
use crate::domain::{DaemonName, LayoutName};
use crate::http::extract::Call;
use crate::http::pages::format::Moment;
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::with_status;
use crate::http::problem::{Problem, Reply};
use crate::service::layouts::replays::ReplayRequest;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::{FieldError, ServiceError, WriteOptions};

const FIELDS: [&str; 5] = ["text", "entry", "layout", "version", "daemon"];

#[derive(Template)]
#[template(path = "layouts/replaying.html")]
struct ReplayingPage<'a> {
    frame: Frame,
    form: &'a Form,
    layouts: Vec<LayoutName>,
    places: Places,
    roles: Vec<RoleChoice>,
    preview: Option<ReplayPreview>,
    refused: FormErrors,
    /// Differences between the GPUs here and those of the document.
    fingerprint: Vec<FieldError>,
}

/// Effect that the replay would have.
struct ReplayPreview {
    daemon: DaemonName,
    steps: Vec<(String, Option<String>)>,
    provenance: Option<Provenance>,
    is_document: bool,
    enforcement: Enforcement,
    /// The partitions that its steps make.
    picture: LayoutPreview,
}

/// The layout to replay, as far as it can be read.
struct ReplayedLayout {
    name: LayoutName,
    layout: Layout,
    document: Option<Document>,
}

pub(super) async fn ask(call: Call, RawQuery(query): RawQuery) -> Reply {
    call.ctx.require(Right::Operate)?;
    let form = Form::parse(query.unwrap_or_default().as_bytes());
    let places = Places::of(&call).await?;
    answer(&call, &form, places, ReplayFormOutcome::default()).await
}

pub(super) async fn begin(call: Call, form: Form) -> Reply {
    call.ctx.require(Right::Operate)?;
    let places = Places::of(&call).await?;
    let mut outcome = ReplayFormOutcome::default();
    if form.text("do") == "fill" {
        return answer(&call, &form, places, outcome).await;
    }
    let only_preview = form.text("do") != "start";
    let tried = attempt(&call, &form, &places, only_preview, &mut outcome).await;
    match tried {
        Ok(Some(replay)) => Ok(Redirect::to(&format!("/replays/{replay}")).into_response()),
        Ok(None) => answer(&call, &form, places, outcome).await,
        Err(error) => {
            outcome.preview = None;
            outcome.error = Some(error);
            answer(&call, &form, places, outcome).await
        }
    }
}

#[derive(Default)]
struct ReplayFormOutcome {
    roles: Vec<RoleChoice>,
    preview: Option<ReplayPreview>,
    error: Option<ServiceError>,
}

/// Starts the replay and returns its ID, or only previews it.
async fn attempt(
    call: &Call,
    form: &Form,
    places: &Places,
    only_preview: bool,
    outcome: &mut ReplayFormOutcome,
) -> Result<Option<uuid::Uuid>, ServiceError> {
    let Call { app, ctx } = call;
    let subject = source(call, form).await?;
    let daemon = places.daemon(form.text("daemon"), subject.layout.enforcement);
    let daemon = daemon.ok_or_else(|| ServiceError::field("/daemon", "choose the daemon to replay it on"))?;
    let roles = places.roles(&subject.name, &subject.layout, daemon, form);
    let map = gpu_map(&roles);
    outcome.roles = roles;
    let name = daemon.name.clone();
    let document = subject.document.as_ref().map(serde_json::to_value).transpose();
    let document = document.map_err(|error| ServiceError::Internal(error.to_string()))?;
    let is_document = document.is_some();
    let request = ReplayRequest {
        entry: is_document.then(|| subject.name.clone()),
        layout: (!is_document).then(|| subject.name.clone()),
        version: if is_document { None } else { form.version()? },
        document,
        daemon: name.clone(),
        gpu_map: map,
        force: form.ticked("force"),
    };
    let options = WriteOptions::unconditional(only_preview);
    let accepted = app.service.replay(ctx, request, options).await?;
    if !only_preview {
        return Ok(Some(accepted.replay));
    }
    let entry = subject.document.as_ref().and_then(|document| document.layouts.get(&subject.name));
    let recorded = entry.and_then(|entry| entry.recorded.as_ref());
    let id = |number: usize| recorded?.ids.get(number).map(ToString::to_string);
    let steps = subject
        .layout
        .steps
        .iter()
        .enumerate()
        .map(|(number, step)| (step.to_string(), id(number)))
        .collect();
    outcome.preview = Some(ReplayPreview {
        picture: LayoutPreview::of(&subject.layout, name.as_str(), &gpu_kind::all(call).await?),
        daemon: name,
        steps,
        provenance: recorded.map(|recorded| recorded.provenance.clone()),
        is_document,
        enforcement: subject.layout.enforcement,
    });
    Ok(None)
}

async fn source(call: &Call, form: &Form) -> Result<ReplayedLayout, ServiceError> {
    if !is_document(form) {
        let name = form.text("layout");
        let name = LayoutName::parse(name)
            .map_err(|_| ServiceError::field("/layout", "choose a layout of this host"))?;
        let layout = version_of(call, &name, form).await?.layout;
        return Ok(ReplayedLayout { name, layout, document: None });
    }
    let document = document(form)?;
    let names: Vec<&str> = document.layouts.keys().map(LayoutName::as_str).collect();
    let wanted = form.text("entry");
    let name = match (wanted, document.layouts.len()) {
        ("", 1) => document.layouts.keys().next(),
        _ => document.layouts.keys().find(|name| name.as_str() == wanted),
    };
    let several = format!("choose a layout of the document, which has {}", names.join(", "));
    let name = name.cloned().ok_or_else(|| ServiceError::field("/entry", several))?;
    let layout = document.layouts[&name].layout();
    Ok(ReplayedLayout { name, layout, document: Some(document) })
}

async fn answer(call: &Call, form: &Form, places: Places, outcome: ReplayFormOutcome) -> Reply {
    let Call { app, ctx } = call;
    let ReplayFormOutcome { roles, preview, error } = outcome;
    let layouts = app.service.layouts(ctx, &Page::first(MAX_LIMIT)).await?.items;
    let layouts = layouts.into_iter().map(|layout| layout.newest.name).collect();
    let problem = error.clone().map(|error| Problem::of(error, &ctx.actor));
    let (refused, fingerprint) = match error {
        Some(ServiceError::OtherHardware { errors, .. }) => (FormErrors::default(), errors),
        Some(error @ (ServiceError::Internal(_) | ServiceError::Forbidden(_))) => return Err(error.into()),
        Some(error) => (FormErrors::of(Problem::of(error, &ctx.actor), &FIELDS), Vec::new()),
        None => (FormErrors::default(), Vec::new()),
    };
    let frame = call.frame(Section::Replays, "Replay a layout").await;
    let template = ReplayingPage { frame, form, layouts, places, roles, preview, refused, fingerprint };
    Ok(with_status(&template, problem))
}

/// Returns true if a document is meant: it is selected, or no layout but a document is given.
fn is_document(form: &Form) -> bool {
    form.text("kind") == "document"
        || (form.text("layout").is_empty() && !form.typed("text").trim().is_empty())
}

impl ReplayingPage<'_> {
    fn is_document(&self) -> bool {
        is_document(self.form)
    }

    fn field(error: &FieldError) -> &str {
        error.pointer.rsplit('/').next().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_alone_is_the_source() {
        for (form, expected) in [
            ("kind=layout&layout=&text=version%3A+v1", true),
            ("kind=layout&layout=prod&text=version%3A+v1", false),
            ("kind=document&layout=prod&text=", true),
            ("kind=layout&layout=&text=+", false),
        ] {
            assert_eq!(is_document(&Form::parse(form.as_bytes())), expected, "{form}");
        }
    }
}
