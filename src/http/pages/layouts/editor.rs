//! The editor: a list of steps beside the SM map that they come to.
//!
//! Its form is sent with the button that was pressed, and shown again; a script sends it without a reload. Nothing is kept
//! anywhere before it is saved, as a new version that nobody else's is lost by.

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;

use super::draft::{Draft, Pressed};
use super::ground::{self, Ground, Outcome, choose, outcome};
use crate::domain::LayoutName;
use crate::domain::access::{Actor, Right};
use crate::domain::layout::{Layout, VersionRef};
use crate::http::AppState;
use crate::http::extract::{Path, Query};
use crate::http::pages::forms::{Form, Refused};
use crate::http::pages::frame::{Frame, Place};
use crate::http::pages::page;
use crate::http::problem::Problem;
use crate::service::layouts::{LayoutRequest, LayoutView};
use crate::service::{ServiceError, WriteOptions, etag};

#[derive(Template)]
#[template(path = "layouts/editor.html")]
struct EditorPage<'a> {
    frame: Frame,
    /// Where the form goes.
    action: String,
    /// The layout; `None` for one that is new.
    name: Option<&'a LayoutName>,
    form: &'a Form,
    draft: Draft,
    grounds: Vec<Ground>,
    ground: Option<Ground>,
    outcome: Outcome,
    refused: Refused,
    /// The version that is written on; empty for a new layout.
    base: String,
    /// Somebody else's version that came in between.
    between: Option<u32>,
}

/// What a new layout begins with.
#[derive(Debug, Deserialize)]
pub(super) struct Begin {
    /// The daemon that it is for.
    daemon: Option<String>,
    /// The version that an edit begins with; the newest without it.
    version: Option<u32>,
}

/// What is shown: which layout, what was typed, and what came of it.
struct Shown<'a> {
    name: Option<&'a LayoutName>,
    form: &'a Form,
    draft: Draft,
    refused: Refused,
    base: String,
    between: Option<u32>,
    status: StatusCode,
}

pub(super) async fn new(
    State(app): State<AppState>,
    actor: Actor,
    Query(begin): Query<Begin>,
) -> Result<Response, Problem> {
    actor.may(Right::Operate)?;
    let mut form = Form::default();
    form.set("on", begin.daemon.unwrap_or_default());
    let mut draft = Draft::default();
    draft.press(Pressed::Add);
    draft.steps[0].focus = false;
    let shown = Shown::first(None, &form, draft, String::new());
    shown.answer(&app, &actor).await
}

pub(super) async fn edit(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    Query(begin): Query<Begin>,
) -> Result<Response, Problem> {
    actor.may(Right::Operate)?;
    let view = app.service.layout(&actor, &name).await?;
    let base = view.newest.version;
    let layout = match begin.version {
        Some(version) => {
            app.service.layout_version(&actor, &VersionRef { name: name.clone(), version }).await?.layout
        }
        None => view.newest.layout,
    };
    let mut form = Form::default();
    let holder = view.daemons.first().map(ToString::to_string);
    form.set("on", begin.daemon.or(holder).unwrap_or_default());
    Shown::first(Some(&name), &form, Draft::of(&layout), base.to_string()).answer(&app, &actor).await
}

pub(super) async fn write_new(
    State(app): State<AppState>,
    actor: Actor,
    form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Operate)?;
    written(&app, &actor, None, &form).await
}

pub(super) async fn write(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<LayoutName>,
    mut form: Form,
) -> Result<Response, Problem> {
    actor.may(Right::Operate)?;
    // Where the layout is gone, the form becomes that of a new one.
    form.replace("name", name.as_str());
    written(&app, &actor, Some(name), &form).await
}

async fn written(
    app: &AppState,
    actor: &Actor,
    name: Option<LayoutName>,
    form: &Form,
) -> Result<Response, Problem> {
    let pressed = Pressed::of(form.text("do"));
    let mut draft = Draft::typed(form);
    draft.press(pressed);
    let base = form.text("base").to_owned();
    let name = name.as_ref();
    if pressed != Pressed::Save {
        draft.read(pressed == Pressed::Look && form.text("lenient").is_empty());
        return Shown::first(name, form, draft, base).answer(app, actor).await;
    }
    let layout = draft.layout();
    let target = match name {
        Some(name) => Ok(name.clone()),
        None if form.text("name").is_empty() => Err("fill this in".to_owned()),
        None => LayoutName::parse(form.text("name")).map_err(|error| error.to_string()),
    };
    let mut shown = Shown::first(name, form, draft, base);
    shown.status = StatusCode::UNPROCESSABLE_ENTITY;
    let (layout, target) = match (layout, target) {
        (Some(layout), Ok(target)) => (layout, target),
        (_, Err(why)) => {
            shown.refused = Refused::of(ServiceError::field("/name", why), &["name"]);
            return shown.answer(app, actor).await;
        }
        (None, Ok(_)) => return shown.answer(app, actor).await,
    };
    match put(app, actor, &target, layout, form, name.is_none()).await {
        Ok(()) => Ok(Redirect::to(&format!("/layouts/{target}")).into_response()),
        Err(error) => shown.refuse(app, actor, &target, error).await,
    }
}

async fn put(
    app: &AppState,
    actor: &Actor,
    name: &LayoutName,
    layout: Layout,
    form: &Form,
    is_new: bool,
) -> Result<(), ServiceError> {
    // Browsers end the lines of a form with CR LF, and no note has a CR.
    let note = form.text("note").replace("\r\n", "\n");
    let note = Some(note).filter(|note| !note.is_empty());
    let base = form.text("base").parse::<i64>().ok();
    let options =
        WriteOptions { dry_run: false, if_match: base.filter(|_| !is_new).map(etag), must_be_new: is_new };
    app.service.put_layout(actor, name.clone(), LayoutRequest { layout, note }, options).await.map(|_| ())
}

impl<'a> Shown<'a> {
    fn first(name: Option<&'a LayoutName>, form: &'a Form, draft: Draft, base: String) -> Self {
        let (refused, between, status) = (Refused::default(), None, StatusCode::OK);
        Self { name, form, draft, refused, base, between, status }
    }

    /// Takes up what the service refuses, where it can be mended here.
    async fn refuse(
        mut self,
        app: &AppState,
        actor: &Actor,
        target: &LayoutName,
        error: ServiceError,
    ) -> Result<Response, Problem> {
        match error {
            ServiceError::PreconditionFailed(_) if self.name.is_none() => {
                let why =
                    format!("there is a layout {target} already: choose another name, or edit that one");
                self.refused = Refused::of(ServiceError::field("/name", why), &["name"]);
            }
            ServiceError::PreconditionFailed(_) => {
                // What they save next is written after what came in between, which they have been told of.
                self.status = StatusCode::PRECONDITION_FAILED;
                match app.service.layout(actor, target).await {
                    Ok(LayoutView { newest, .. }) => {
                        self.between = Some(newest.version);
                        self.base = newest.version.to_string();
                    }
                    Err(ServiceError::NotFound { .. }) => {
                        self.name = None;
                        self.base = String::new();
                        self.refused = Refused::whole_form(&format!(
                            "Somebody deleted layout {target} while you were writing. What you typed is kept: saved from here, \
                             it is a new layout."
                        ));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            ServiceError::Invalid(errors) => {
                let others = self.draft.refuse_all(errors);
                let by_name = |mut error: crate::service::FieldError| {
                    if error.pointer.starts_with("/layouts/") {
                        "/name".clone_into(&mut error.pointer);
                    }
                    error
                };
                let others = others.into_iter().map(by_name).collect();
                self.refused = Refused::of(ServiceError::Invalid(others), &["name", "note"]);
            }
            ServiceError::Conflict(_) => self.refused = Refused::of(error, &[]),
            other => return Err(other.into()),
        }
        self.answer(app, actor).await
    }

    async fn answer(self, app: &AppState, actor: &Actor) -> Result<Response, Problem> {
        let Self { name, form, mut draft, refused, base, between, status } = self;
        let grounds = ground::all(app, actor).await?;
        let sku = draft.sku.trim();
        let ground = choose(&grounds, form.text("on"), Some(sku).filter(|sku| !sku.is_empty())).cloned();
        // Read from a copy, which has been told already what is wrong.
        let whole = draft.clone().read(false);
        let steps = whole.iter().map(|(number, step)| (*number, step));
        let outcome = ground.as_ref().map(|ground| outcome(steps, ground)).unwrap_or_default();
        for (number, why) in &outcome.too_many {
            if let Some(step) = draft.steps.get_mut(*number) {
                step.unfit = Some(why.clone());
            }
        }
        let title = name.map_or_else(|| "New layout".to_owned(), |name| format!("Edit layout {name}"));
        let action = name.map_or_else(|| "/layouts/-/new".to_owned(), |name| format!("/layouts/{name}/edit"));
        let frame = Frame::of(&app.service, actor, Place::Layouts, &title).await;
        let shown =
            EditorPage { frame, action, name, form, draft, grounds, ground, outcome, refused, base, between };
        Ok(page(status, &shown))
    }
}

impl EditorPage<'_> {
    /// Whether anything is wrong in the form.
    fn is_refused(&self) -> bool {
        !self.refused.is_empty()
            || !self.draft.wrong.is_empty()
            || self.draft.wrong_sku.is_some()
            || self.draft.steps.iter().any(|step| !step.wrong.is_empty())
    }

    fn is_on(&self, ground: &Ground) -> bool {
        self.ground.as_ref() == Some(ground)
    }
}
