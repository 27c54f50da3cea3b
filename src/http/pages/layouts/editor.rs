//! The editor: a list of steps beside the SM map that they give.
//!
//! Each button submits the form, which is shown again; a script does that without a reload. Nothing is stored before it is
//! saved, as a new version that replaces no one else's.

use askama::Template;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use serde::Deserialize;

use super::draft::{EditorButton, LayoutDraft};
use super::gpu_kind::{self, GpuKind, LayoutPreview, choose};
use crate::domain::LayoutName;
use crate::domain::access::Right;
use crate::domain::layout::{Layout, VersionRef};
use crate::http::AppState;
use crate::http::extract::{Call, Path, Query};
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::page;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::layouts::{LayoutRequest, LayoutView};
use crate::service::{FieldError, ServiceError, WriteOptions, etag};

#[derive(Template)]
#[template(path = "layouts/editor.html")]
struct EditorPage<'a> {
    frame: Frame,
    /// Address to which the form is sent.
    action: String,
    state: EditorState<'a>,
    gpu_kinds: Vec<GpuKind>,
    gpu_kind: Option<GpuKind>,
    preview: LayoutPreview,
}

/// Starting point of a new draft.
#[derive(Debug, Deserialize)]
pub(super) struct EditorQuery {
    /// The daemon for which the layout is meant.
    daemon: Option<String>,
    /// The version to start from; by default the newest.
    version: Option<u32>,
}

/// The state of the editor: the layout, the draft, and the result.
struct EditorState<'a> {
    /// The layout; `None` for a new one.
    name: Option<&'a LayoutName>,
    form: &'a Form,
    draft: LayoutDraft,
    refused: FormErrors,
    /// The version being edited; empty for a new layout.
    base: String,
    /// A version that someone else saved in between.
    between: Option<u32>,
    /// True if no GPU of this host has room for the layout, which names no product.
    is_too_large: bool,
    status: StatusCode,
}

pub(super) async fn new(
    Call { app, ctx }: Call,
    Query(begin): Query<EditorQuery>,
) -> Result<Response, Problem> {
    ctx.require(Right::Operate)?;
    let mut form = Form::default();
    form.set("on", begin.daemon.unwrap_or_default());
    let mut draft = LayoutDraft::default();
    draft.press(EditorButton::Add);
    draft.steps[0].focus = false;
    let shown = EditorState::first(None, &form, draft, String::new());
    shown.answer(&app, &ctx).await
}

pub(super) async fn edit(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    Query(begin): Query<EditorQuery>,
) -> Result<Response, Problem> {
    ctx.require(Right::Operate)?;
    let view = app.service.layout(&ctx, &name).await?;
    let base = view.newest.version;
    let layout = match begin.version {
        Some(version) => {
            app.service.layout_version(&ctx, &VersionRef { name: name.clone(), version }).await?.layout
        }
        None => view.newest.layout,
    };
    let mut form = Form::default();
    let holder = view.daemons.first().map(ToString::to_string);
    form.set("on", begin.daemon.or(holder).unwrap_or_default());
    EditorState::first(Some(&name), &form, LayoutDraft::of(&layout), base.to_string())
        .answer(&app, &ctx)
        .await
}

pub(super) async fn write_new(Call { app, ctx }: Call, form: Form) -> Result<Response, Problem> {
    ctx.require(Right::Operate)?;
    written(&app, &ctx, None, &form).await
}

pub(super) async fn write(
    Call { app, ctx }: Call,
    Path(name): Path<LayoutName>,
    mut form: Form,
) -> Result<Response, Problem> {
    ctx.require(Right::Operate)?;
    // If the layout was deleted, the form becomes that of a new one.
    form.replace("name", name.as_str());
    written(&app, &ctx, Some(name), &form).await
}

async fn written(
    app: &AppState,
    ctx: &RequestContext,
    name: Option<LayoutName>,
    form: &Form,
) -> Result<Response, Problem> {
    let pressed = EditorButton::of(form.text("do"));
    let mut draft = LayoutDraft::typed(form);
    draft.press(pressed);
    let base = form.text("base").to_owned();
    let name = name.as_ref();
    if pressed != EditorButton::Save {
        draft.read(pressed == EditorButton::Check && form.text("lenient").is_empty());
        return EditorState::first(name, form, draft, base).answer(app, ctx).await;
    }
    let layout = draft.layout();
    let target = match name {
        Some(name) => Ok(name.clone()),
        None if form.text("name").is_empty() => Err("fill this in".to_owned()),
        None => LayoutName::parse(form.text("name")).map_err(|error| error.to_string()),
    };
    let mut shown = EditorState::first(name, form, draft, base);
    shown.status = StatusCode::UNPROCESSABLE_ENTITY;
    let gpu_kinds = gpu_kind::of_host(app, ctx).await?;
    let layout = layout.and_then(|layout| shown.refuse_too_large(layout, &gpu_kinds));
    let (layout, target) = match (layout, target) {
        (Some(layout), Ok(target)) => (layout, target),
        (_, Err(why)) => {
            shown.refused.add("name", "name", &why);
            return shown.answer(app, ctx).await;
        }
        (None, Ok(_)) => return shown.answer(app, ctx).await,
    };
    match put(app, ctx, &target, layout, form, name.is_none()).await {
        Ok(()) => Ok(Redirect::to(&format!("/layouts/{target}")).into_response()),
        Err(error) => shown.refuse(app, ctx, &target, error).await,
    }
}

async fn put(
    app: &AppState,
    ctx: &RequestContext,
    name: &LayoutName,
    layout: Layout,
    form: &Form,
    is_new: bool,
) -> Result<(), ServiceError> {
    // Browsers end the lines of a form with CR LF, which is not allowed in a note.
    let note = form.text("note").replace("\r\n", "\n");
    let note = Some(note).filter(|note| !note.is_empty());
    let base = form.text("base").parse::<i64>().ok();
    let options =
        WriteOptions { dry_run: false, if_match: base.filter(|_| !is_new).map(etag), must_be_new: is_new };
    app.service.put_layout(ctx, name.clone(), LayoutRequest { layout, note }, options).await.map(|_| ())
}

impl<'a> EditorState<'a> {
    fn first(name: Option<&'a LayoutName>, form: &'a Form, draft: LayoutDraft, base: String) -> Self {
        let (refused, between, status) = (FormErrors::default(), None, StatusCode::OK);
        Self { name, form, draft, refused, base, between, is_too_large: false, status }
    }

    /// Refuses a layout that is too large for all GPUs of its product; without a product it is saved once that was shown.
    fn refuse_too_large(&mut self, layout: Layout, gpu_kinds: &[GpuKind]) -> Option<Layout> {
        let too_large = gpu_kind::too_large(&layout, gpu_kinds);
        let Some((number, why)) = too_large.first() else { return Some(layout) };
        if layout.sku.is_some() {
            let error = |(number, detail): (usize, String)| FieldError {
                pointer: format!("/layout/steps/{number}/add/chunks"),
                detail,
            };
            self.draft.refuse_all(too_large.into_iter().map(error).collect());
            return None;
        }
        self.is_too_large = true;
        if self.form.ticked("too_large") {
            return Some(layout);
        }
        self.refused.whole.push(format!(
            "No GPU of this host has room for this layout: step {} {why}. Save it again if it is meant for other hosts.",
            number + 1
        ));
        None
    }

    /// Assigns an error to the form, if it can be corrected there.
    async fn refuse(
        mut self,
        app: &AppState,
        ctx: &RequestContext,
        target: &LayoutName,
        error: ServiceError,
    ) -> Result<Response, Problem> {
        match error {
            ServiceError::PreconditionFailed(_) if self.name.is_none() => {
                let why =
                    format!("there is a layout {target} already: choose another name, or edit that one");
                self.refused.add("name", "name", &why);
            }
            ServiceError::PreconditionFailed(_) => {
                // The user has been informed of the other version, so the next save is based on it.
                self.status = StatusCode::PRECONDITION_FAILED;
                match app.service.layout(ctx, target).await {
                    Ok(LayoutView { newest, .. }) => {
                        self.between = Some(newest.version);
                        self.base = newest.version.to_string();
                    }
                    Err(ServiceError::NotFound { .. }) => {
                        self.name = None;
                        self.base = String::new();
                        self.refused = FormErrors::whole_form(&format!(
                            "Someone deleted layout {target} while you were editing it. Your draft is kept: saving it creates a new \
                             layout."
                        ));
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            ServiceError::Invalid(errors) => {
                let others = self.draft.refuse_all(errors);
                let by_name = |mut error: FieldError| {
                    if error.pointer.starts_with("/layouts/") {
                        "/name".clone_into(&mut error.pointer);
                    }
                    error
                };
                let others = others.into_iter().map(by_name).collect();
                self.refused = FormErrors::of(ServiceError::Invalid(others), &["name", "note"]);
            }
            ServiceError::Conflict(_) => self.refused = FormErrors::of(Problem::of(error, &ctx.actor), &[]),
            other => return Err(other.into()),
        }
        self.answer(app, ctx).await
    }

    async fn answer(mut self, app: &AppState, ctx: &RequestContext) -> Result<Response, Problem> {
        self.draft.add_errors(&mut self.refused);
        let gpu_kinds = gpu_kind::all(app, ctx).await?;
        let sku = self.draft.sku.trim();
        let gpu_kind =
            choose(&gpu_kinds, self.form.text("on"), Some(sku).filter(|sku| !sku.is_empty())).cloned();
        // Parsed from a copy, whose errors are shown already.
        let whole = self.draft.clone().read(false);
        let steps = whole.iter().map(|(number, step)| (*number, step));
        let preview =
            gpu_kind.as_ref().map(|gpu_kind| gpu_kind::preview(steps, gpu_kind)).unwrap_or_default();
        for (number, why) in &preview.too_many {
            // A step that is refused says that already.
            if let Some(step) = self.draft.steps.get_mut(*number).filter(|step| step.wrong.is_empty()) {
                step.unfit = Some(why.clone());
            }
        }
        let name = self.name.map(LayoutName::as_str);
        let title = name.map_or_else(|| "New layout".to_owned(), |name| format!("Edit layout {name}"));
        let action = format!("/layouts/{}", name.map_or("-/new".to_owned(), |name| format!("{name}/edit")));
        let frame = Frame::of(&app.service, ctx, Section::Layouts, &title).await;
        let status = self.status;
        Ok(page(status, &EditorPage { frame, action, state: self, gpu_kinds, gpu_kind, preview }))
    }
}

impl EditorPage<'_> {
    fn is_on(&self, gpu_kind: &GpuKind) -> bool {
        self.gpu_kind.as_ref() == Some(gpu_kind)
    }
}
