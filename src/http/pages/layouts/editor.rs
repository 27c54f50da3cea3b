//! The editor: the YAML of a layout, and beside it the partitions that it gives and the plan for a daemon.
//!
//! Nothing is stored before the form is saved. A script requests the part beside the text as its user types, and without one the button
//! Check shows it.

use std::time::Duration;

use askama::Template;
use axum::response::Response;
use serde::Deserialize;

use super::apply::version_of;
use super::gpu_kind::{self, GpuKind, LayoutPreview, choose};
use super::target::{Places, gpu_map};
use crate::domain::LayoutName;
use crate::domain::access::Right;
use crate::domain::daemon::Mode;
use crate::domain::layout::outlook::LayoutPlan;
use crate::domain::layout::{AddStep, Enforcement, Invalid, Layout, sizes, text};
use crate::http::extract::{Call, Path};
use crate::http::pages::forms::{Form, FormErrors, Shape, SpecField};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::lists::ListQuery;
use crate::http::pages::rendered;
use crate::http::pages::spec_form::{self, FormSpec, REVISION, SpecDraft};
use crate::http::problem::Problem;
use crate::service::layouts::{LayoutRequest, LayoutTarget, LayoutView};
use crate::service::{ServiceError, WriteOptions};

/// Age of the poll that a plan beside the editor may be of: each pause in typing would poll the daemon.
const PLANNED_ON: Duration = Duration::from_secs(5);

/// A layout as the form submits it.
#[derive(Deserialize)]
pub(super) struct EditedLayout {
    text: String,
    note: Option<String>,
    /// True to save a layout without product for which no GPU of this host has room.
    for_other_hosts: bool,
}

#[derive(Template)]
#[template(path = "layouts/editor.html")]
struct EditorPage {
    frame: Frame,
    draft: SpecDraft<LayoutName>,
    gpu_kinds: Vec<GpuKind>,
    outcome: EditorOutcome,
}

/// The part beside the text: its result on the chosen kind of GPU.
#[derive(Template)]
#[template(path = "layouts/outcome.html")]
struct EditorOutcome {
    problems: Vec<String>,
    /// The partitions; `None` if the text cannot be read.
    preview: Option<LayoutPreview>,
    /// The plan for the daemon, or the reason for which there is none.
    plan: Option<Result<LayoutPlan, String>>,
}

pub(super) async fn new(call: Call, query: ListQuery) -> Result<Response, Problem> {
    call.ctx.require(Right::Operate)?;
    let (gpu_kinds, daemon) = (gpu_kind::all(&call).await?, query.form().text("daemon"));
    let mut form = Form::default();
    form.set("on", daemon);
    form.set("sizes", query.form().typed("sizes"));
    let sized = query.text("sizes").map_or(Ok(Vec::new()), sizes::parse);
    let steps = sized.as_deref().unwrap_or_default();
    form.set("text", starting_text(choose(&gpu_kinds, daemon, None), steps));
    let mut draft = SpecDraft::new(None, form);
    if let Err(error) = &sized {
        draft.refused.add("sizes", "From sizes", &error.to_string());
    }
    Ok(rendered(&EditedLayout::page(&call, draft).await?))
}

/// Writes a layout for a kind of GPU: with these steps, or with two partitions that fit.
fn starting_text(gpu_kind: Option<&GpuKind>, steps: &[AddStep]) -> String {
    let Some(GpuKind { sku, mode, chunks, .. }) = gpu_kind else {
        return "enforcement: static\nsteps: []\n".to_owned();
    };
    let enforcement = match mode {
        Some(Mode::Shared) => Enforcement::Percentage,
        Some(Mode::Static) | None => Enforcement::Static,
    };
    let halves = [("first", (chunks / 2).max(1)), ("second", (chunks / 4).max(1))];
    let sized = steps.iter().map(|step| (step.partition.as_str(), step.chunks));
    let sized: Vec<(&str, u32)> = if steps.is_empty() { halves.to_vec() } else { sized.collect() };
    let line =
        |(name, chunks): &(&str, u32)| format!("  - add: {{gpu: 0, partition: {name}, chunks: {chunks}}}\n");
    let lines: String = sized.iter().map(line).collect();
    format!("enforcement: {}\nsku: {sku:?}\nsteps:\n{lines}", enforcement.as_str())
}

/// Shows the form for the next version, which starts from the newest or from another one.
pub(super) async fn edit(
    call: Call,
    Path(name): Path<LayoutName>,
    query: ListQuery,
) -> Result<Response, Problem> {
    call.ctx.require(Right::Operate)?;
    let version = version_of(&call, &name, query.form()).await?;
    let mut form = EditedLayout::stored(&call, &name).await?;
    form.replace("text", text::write_layout(&version.layout));
    // A note is the reason for one version.
    form.remove("note");
    if query.form().ticked("daemon") {
        form.replace("on", query.form().text("daemon"));
    }
    Ok(rendered(&EditedLayout::page(&call, SpecDraft::new(Some(name), form)).await?))
}

/// The part beside the text, for a script that requests it as its user types.
pub(super) async fn check(call: Call, form: Form) -> Result<Response, Problem> {
    call.ctx.require(Right::Operate)?;
    Ok(rendered(&outcome(&call, &form, &gpu_kind::all(&call).await?).await))
}

async fn outcome(call: &Call, form: &Form, gpu_kinds: &[GpuKind]) -> EditorOutcome {
    let typed = form.typed("text");
    let read = text::read_layout(typed).map_err(|error| error.to_string());
    let read = read.and_then(|layout| match layout.check() {
        // There are too many steps or GPUs to draw.
        Err(error) if error.pointer == "/steps" => Err(error.to_string()),
        checked => Ok((layout, checked.err())),
    });
    let (layout, invalid) = match read {
        Ok(read) => read,
        Err(why) => return EditorOutcome { problems: vec![why], preview: None, plan: None },
    };
    let gpu_kind = choose(gpu_kinds, form.text("on"), layout.sku.as_deref());
    let preview = LayoutPreview::on(&layout, gpu_kind);
    let problems = placed(typed, invalid.iter().chain(&preview.too_many));
    let plan = if problems.is_empty() { plan(call, form, gpu_kind, layout).await } else { None };
    EditorOutcome { problems, preview: Some(preview), plan }
}

/// Plans a layout for the daemon of a kind of GPU; fails with the reason for which there is no plan.
async fn plan(
    call: &Call,
    form: &Form,
    gpu_kind: Option<&GpuKind>,
    layout: Layout,
) -> Option<Result<LayoutPlan, String>> {
    let Call { app, ctx } = call;
    let daemon = gpu_kind?.daemon.clone()?;
    // Counting chunks takes a CUDA client, which no one who only types asks for.
    if layout.enforcement == Enforcement::Percentage && !gpu_kind?.counted {
        return Some(Err(format!(
            "The chunks of {daemon} have not been counted yet: a plan of the saved layout counts them."
        )));
    }
    let name = spec_form::name::<EditedLayout>(form).ok().or_else(|| LayoutName::parse("unnamed").ok())?;
    let places = Places::of(call).await.ok()?;
    let view = places.daemon(daemon.as_str(), layout.enforcement)?;
    let gpu_map = gpu_map(&places.roles(&name, &layout, view, form));
    let target = LayoutTarget { daemon, version: None, gpu_map, layout: Some(layout) };
    let planned = app.service.plan_layout(ctx, &name, &target, PLANNED_ON).await;
    Some(planned.map_err(|error| FormErrors::of(Problem::of(error, &ctx.actor), &[]).whole.join("; ")))
}

/// Describes errors with the lines and fields that they concern.
fn placed<'e>(typed: &str, errors: impl IntoIterator<Item = &'e Invalid>) -> Vec<String> {
    let lines = text::lines_of_steps(typed);
    let describe = |Invalid { pointer, reason }: &Invalid| {
        let place: Vec<&str> = pointer.split('/').skip(1).collect();
        let step = place.get(1).and_then(|number| number.parse::<usize>().ok());
        let line = step.and_then(|step| lines.get(step)).map(|line| format!("line {line}, "));
        let field = place.get(3).or(place.first()).unwrap_or(&"layout");
        format!("{}{field}: {reason}", line.unwrap_or_default())
    };
    errors.into_iter().map(describe).collect()
}

impl FormSpec for EditedLayout {
    type Name = LayoutName;
    const NOUN: &'static str = "layout";
    const RIGHT: Right<'static> = Right::Operate;
    const FIELDS: &'static [SpecField] = &[
        ("text", Shape::Document, "Layout"),
        ("for_other_hosts", Shape::Flag, "For other hosts"),
        ("note", Shape::Text, "Note"),
    ];

    async fn stored(Call { app, ctx }: &Call, name: &LayoutName) -> Result<Form, ServiceError> {
        let LayoutView { newest, daemons } = app.service.layout(ctx, name).await?;
        let mut form = Form::default();
        form.set("name", name.as_str());
        form.set("text", text::write_layout(&newest.layout));
        form.set("note", newest.note.unwrap_or_default());
        form.set("on", daemons.first().map(ToString::to_string).unwrap_or_default());
        form.set(REVISION, newest.version.to_string());
        Ok(form)
    }

    async fn write(self, call: &Call, name: LayoutName, options: WriteOptions) -> Result<(), ServiceError> {
        let Call { app, ctx } = call;
        let refused = |field: &str, why: String| Err(ServiceError::field(field, why));
        let layout = match text::read_layout(&self.text) {
            Ok(layout) => layout,
            Err(error) => return refused("/text", error.to_string()),
        };
        if let Err(error) = layout.check() {
            return refused("/text", placed(&self.text, [&error]).concat());
        }
        let too_large = gpu_kind::too_large(&layout, &gpu_kind::of_host(call).await?);
        // A layout without a product may be meant for other hosts.
        let is_allowed = layout.sku.is_none() && self.for_other_hosts;
        if !too_large.is_empty() && !is_allowed {
            let field = if layout.sku.is_none() { "/for_other_hosts" } else { "/text" };
            let steps = placed(&self.text, &too_large).join("; ");
            return refused(field, format!("no GPU of this host has room: {steps}"));
        }
        let request = LayoutRequest { layout, note: self.note };
        let written = app.service.put_layout(ctx, name, request, options).await;
        written.map(drop).map_err(|error| match error {
            // A reserved name, by its place in a document.
            ServiceError::Invalid(errors) if errors[0].pointer.starts_with("/layouts/") => {
                ServiceError::field("/name", &errors[0].detail)
            }
            error => error,
        })
    }

    async fn page(call: &Call, mut draft: SpecDraft<LayoutName>) -> Result<impl Template, Problem> {
        let title =
            draft.edited.as_ref().map_or("New layout".to_owned(), |name| format!("Edit layout {name}"));
        let frame = call.frame(Section::Layouts, &title).await;
        let gpu_kinds = gpu_kind::all(call).await?;
        let outcome = outcome(call, &draft.form, &gpu_kinds).await;
        if let Some(gpu_kind) = outcome.preview.as_ref().and_then(|preview| preview.gpu_kind.as_ref()) {
            draft.form.replace("on", gpu_kind.key());
        }
        Ok(EditorPage { frame, draft, gpu_kinds, outcome })
    }
}
