//! Replacing a permanently missing GPU, for its daemon and all tenants that name it.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use super::GpuRow;
use crate::domain::GpuUuid;
use crate::domain::access::Right;
use crate::domain::gpu::GpuRef;
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::pages::forms::{Field, Form, FormErrors, Shape, rehearsal_refusal};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::lists::ListQuery;
use crate::http::pages::{refusal, refused_with, rendered};
use crate::http::problem::{Problem, Reply};
use crate::service::WriteOptions;
use crate::service::access::context::RequestContext;
use crate::service::daemons::replace::ReplaceRequest;

const FIELDS: [Field; 1] = [("with", Shape::Text)];

#[derive(Template)]
#[template(path = "gpu_replace.html")]
struct ReplacePage {
    frame: Frame,
    row: GpuRow,
    choices: Vec<ReplacementChoice>,
    refused: FormErrors,
}

/// A candidate for the replacement, and what it would change.
struct ReplacementChoice {
    row: GpuRow,
    /// Reason for which it cannot be used.
    blocker: Option<String>,
    chosen: bool,
}

pub(super) async fn ask(Call { app, ctx }: Call, Path(name): Path<String>, query: ListQuery) -> Reply {
    Ok(rendered(&replace_page(&app, &ctx, &name, query.form(), FormErrors::default()).await?))
}

pub(super) async fn replace(Call { app, ctx }: Call, Path(name): Path<String>, form: Form) -> Reply {
    let done = match form.read::<ReplaceRequest>(&FIELDS) {
        Ok(request) => app.service.replace_gpu(&ctx, name.clone(), request, WriteOptions::default()).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(replacement) => Ok(Redirect::to(&format!("/daemons/{}", replacement.daemon.name)).into_response()),
        Err(error) => {
            let (refused, problem) = refusal(&ctx, error, &["with"])?;
            Ok(refused_with(&replace_page(&app, &ctx, &name, &form, refused).await?, problem))
        }
    }
}

async fn replace_page(
    app: &AppState,
    ctx: &RequestContext,
    name: &str,
    form: &Form,
    refused: FormErrors,
) -> Result<ReplacePage, Problem> {
    ctx.require(Right::Administer)?;
    let row = GpuRow::of(app.service.gpu(ctx, name).await?);
    let mut choices = Vec::new();
    if !row.gpu.present {
        let free =
            |row: &GpuRow| row.gpu.present && row.gpu.daemon.is_none() && row.gpu.mig_enabled != Some(true);
        for other in GpuRow::all(app, ctx).await?.into_iter().filter(free) {
            let blocker = rehearsed(app, ctx, row.key(), other.key()).await?;
            let chosen = form.has("with", other.key().as_str());
            choices.push(ReplacementChoice { row: other, blocker, chosen });
        }
        // The first possible one is preselected.
        if !choices.iter().any(|choice| choice.chosen)
            && let Some(first) = choices.iter_mut().find(|choice| choice.blocker.is_none())
        {
            first.chosen = true;
        }
    }
    let frame = Frame::of(&app.service, ctx, Section::Gpus, format!("Replace {}", row.called())).await;
    Ok(ReplacePage { frame, row, choices, refused })
}

/// Rehearses a replacement; returns the reason for which the GPU cannot replace the other.
async fn rehearsed(
    app: &AppState,
    ctx: &RequestContext,
    old: &GpuUuid,
    new: &GpuUuid,
) -> Result<Option<String>, Problem> {
    let request = ReplaceRequest { with: GpuRef(new.to_string()) };
    let options = WriteOptions::rehearsal();
    rehearsal_refusal(ctx, app.service.replace_gpu(ctx, old.to_string(), request, options).await)
}

impl ReplacePage {
    /// Returns true if any replacement is possible.
    fn is_possible(&self) -> bool {
        self.choices.iter().any(|choice| choice.blocker.is_none())
    }
}
