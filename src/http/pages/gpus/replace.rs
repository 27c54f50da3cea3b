//! A GPU that is gone for good: another one put in its place, for its daemon and all tenants that name it.

use askama::Template;
use axum::extract::State;
use axum::response::{IntoResponse as _, Redirect, Response};

use super::GpuRow;
use crate::domain::GpuUuid;
use crate::domain::access::{Actor, Right};
use crate::domain::gpu::GpuRef;
use crate::http::AppState;
use crate::http::extract::Path;
use crate::http::pages::forms::{Field, Form, Refused, Shape, in_the_way};
use crate::http::pages::frame::{Frame, Place};
use crate::http::pages::lists::Asked;
use crate::http::pages::{refused_with, rendered};
use crate::http::problem::Problem;
use crate::service::replace::ReplaceRequest;
use crate::service::{ServiceError, WriteOptions};

const FIELDS: [Field; 1] = [("with", Shape::Text)];

#[derive(Template)]
#[template(path = "gpu_replace.html")]
struct ReplacePage {
    frame: Frame,
    row: GpuRow,
    choices: Vec<Choice>,
    refused: Refused,
}

/// A GPU that could take the place, and what would come of it.
struct Choice {
    row: GpuRow,
    /// Why it cannot.
    in_the_way: Option<String>,
    chosen: bool,
}

pub(super) async fn ask(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<String>,
    asked: Asked,
) -> Result<Response, Problem> {
    Ok(rendered(&replace_page(&app, &actor, &name, asked.form(), Refused::default()).await?))
}

pub(super) async fn replace(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<String>,
    form: Form,
) -> Result<Response, Problem> {
    let done = match form.read::<ReplaceRequest>(&FIELDS) {
        Ok(request) => app.service.replace_gpu(&actor, name.clone(), request, WriteOptions::default()).await,
        Err(error) => Err(error),
    };
    match done {
        Ok(replacement) => Ok(Redirect::to(&format!("/daemons/{}", replacement.daemon.name)).into_response()),
        Err(error @ (ServiceError::Forbidden(_) | ServiceError::NotFound { .. })) => Err(error.into()),
        Err(error) => {
            let refused = Refused::of(error.clone(), &["with"]);
            let page = replace_page(&app, &actor, &name, &form, refused).await?;
            Ok(refused_with(&page, error.into()))
        }
    }
}

async fn replace_page(
    app: &AppState,
    actor: &Actor,
    name: &str,
    form: &Form,
    refused: Refused,
) -> Result<ReplacePage, Problem> {
    actor.may(Right::Administer)?;
    let row = GpuRow::of(app.service.gpu(actor, name).await?);
    let mut choices = Vec::new();
    if !row.gpu.present {
        let free =
            |row: &GpuRow| row.gpu.present && row.gpu.daemon.is_none() && row.gpu.mig_enabled != Some(true);
        let gpus = app.service.gpu_views(actor).await?;
        for other in gpus.into_iter().map(GpuRow::of).filter(free) {
            let in_the_way = rehearsed(app, actor, row.key(), other.key()).await?;
            let chosen = form.has("with", other.key().as_str());
            choices.push(Choice { row: other, in_the_way, chosen });
        }
        // The first that fits, where nobody has chosen.
        if !choices.iter().any(|choice| choice.chosen)
            && let Some(first) = choices.iter_mut().find(|choice| choice.in_the_way.is_none())
        {
            first.chosen = true;
        }
    }
    let frame = Frame::of(&app.service, actor, Place::Gpus, &format!("Replace {}", row.called())).await;
    Ok(ReplacePage { frame, row, choices, refused })
}

/// Why a GPU cannot take the place of another, if so.
async fn rehearsed(
    app: &AppState,
    actor: &Actor,
    old: &GpuUuid,
    new: &GpuUuid,
) -> Result<Option<String>, Problem> {
    let request = ReplaceRequest { with: GpuRef(new.to_string()) };
    let options = WriteOptions::rehearsal();
    in_the_way(app.service.replace_gpu(actor, old.to_string(), request, options).await)
}

impl ReplacePage {
    /// Whether anything could be put in its place.
    fn is_possible(&self) -> bool {
        self.choices.iter().any(|choice| choice.in_the_way.is_none())
    }
}
