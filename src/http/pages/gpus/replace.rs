//! Replacing a permanently missing GPU, for its daemon and all tenants that name it.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use super::GpuRow;
use crate::domain::GpuUuid;
use crate::domain::access::Right;
use crate::domain::gpu::GpuRef;
use crate::http::extract::{Call, Path};
use crate::http::pages::forms::{Form, FormErrors, Shape, rehearsal_refusal};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::lists::ListQuery;
use crate::http::pages::refusal;
use crate::http::problem::{Problem, Reply};
use crate::service::WriteOptions;
use crate::service::daemons::replace::ReplaceRequest;

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

pub(super) async fn ask(call: Call, Path(name): Path<String>, query: ListQuery) -> Reply {
    replace_page(&call, &name, query.form(), FormErrors::default()).await
}

pub(super) async fn replace(call: Call, Path(name): Path<String>, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    let replace = async {
        let request: ReplaceRequest = form.read(&[("with", Shape::Text)])?;
        app.service.replace_gpu(ctx, name.clone(), request, WriteOptions::default()).await
    };
    match replace.await {
        Ok(replacement) => Ok(Redirect::to(&format!("/daemons/{}", replacement.daemon.name)).into_response()),
        Err(error) => replace_page(&call, &name, &form, refusal(ctx, error, &["with"])?).await,
    }
}

async fn replace_page(call: &Call, name: &str, form: &Form, refused: FormErrors) -> Reply {
    call.ctx.require(Right::Administer)?;
    let row = GpuRow::of(call.app.service.gpu(&call.ctx, name).await?);
    let mut choices = Vec::new();
    if !row.gpu.present {
        for other in call.gpus().await?.into_iter().filter(|row| row.gpu.present && row.is_free()) {
            let blocker = rehearsed(call, row.key(), other.key()).await?;
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
    let frame = call.frame(Section::Gpus, format!("Replace {}", row.called())).await;
    Ok(refused.shown(|refused| ReplacePage { frame, row, choices, refused }))
}

impl ReplacePage {
    fn is_possible(&self) -> bool {
        self.choices.iter().any(|choice| choice.blocker.is_none())
    }
}

/// Rehearses a replacement; returns the reason for which the GPU cannot replace the other.
async fn rehearsed(
    Call { app, ctx }: &Call,
    old: &GpuUuid,
    new: &GpuUuid,
) -> Result<Option<String>, Problem> {
    let request = ReplaceRequest { with: GpuRef(new.to_string()) };
    let options = WriteOptions::rehearsal();
    rehearsal_refusal(ctx, app.service.replace_gpu(ctx, old.to_string(), request, options).await)
}
