//! A foreign control daemon, and its adoption.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use crate::domain::client::ClientId;
use crate::domain::daemon::Management;
use crate::domain::device_index::DeviceIndex;
use crate::domain::{DaemonName, Priority};
use crate::http::extract::{Call, Path};
use crate::http::pages::format::{self, Amount, Moment};
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::gpus::GpuDisplayNames;
use crate::http::pages::refusal;
use crate::http::problem::Reply;
use crate::service::daemons::DaemonView;
use crate::service::daemons::adoption::AdoptRequest;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::{ServiceError, WriteOptions, Written};

#[derive(Template)]
#[template(path = "daemons/foreign.html")]
struct ForeignPage {
    frame: Frame,
    daemon: ForeignDaemonView,
    gpus: GpuDisplayNames,
    form: Form,
    refused: FormErrors,
}

pub(super) async fn show(call: Call, Path(id): Path<String>) -> Reply {
    foreign_page(&call, &id, None, FormErrors::default()).await
}

async fn foreign_page(call: &Call, id: &str, typed: Option<Form>, refused: FormErrors) -> Reply {
    let daemon = call.app.service.foreign_daemon(&call.ctx, id).await?;
    let gpus = call.gpus().await?;
    let form = typed.unwrap_or_else(|| {
        let mut form = Form::default();
        let first = daemon.gpus.iter().flatten().next();
        let index = gpus.iter().find(|row| Some(&row.gpu.uuid) == first).and_then(|row| row.gpu.place());
        form.set("name", index.map(DeviceIndex::daemon_name).unwrap_or_default());
        form.set("management", if daemon.adoption.managed.possible { "managed" } else { "observed" });
        form
    });
    let frame = call.frame(Section::Daemons, format!("Control daemon {}", daemon.pid)).await;
    let gpus = GpuDisplayNames::of(&gpus);
    Ok(refused.shown(|refused| ForeignPage { frame, daemon, gpus, form, refused }))
}

pub(super) async fn adopt(call: Call, Path(id): Path<ClientId>, form: Form) -> Reply {
    match adopted(&call, id, &form).await {
        Ok(written) => Ok(Redirect::to(&format!("/daemons/{}", written.value.name)).into_response()),
        Err(error) => {
            let error = match error {
                ServiceError::PreconditionFailed(_) => {
                    ServiceError::field("/name", "there is a daemon of this name: choose another")
                }
                error => error,
            };
            let refused = refusal(&call.ctx, error, &["name", "management"])?;
            foreign_page(&call, &id.to_string(), Some(form), refused).await
        }
    }
}

async fn adopted(
    Call { app, ctx }: &Call,
    id: ClientId,
    form: &Form,
) -> Result<Written<DaemonView>, ServiceError> {
    let name = DaemonName::parse(form.text("name"));
    let name = name.map_err(|error| ServiceError::field("/name", error.to_string()))?;
    let management = match form.text("management") {
        "managed" => Management::Managed,
        "observed" => Management::Observed,
        _ => return Err(ServiceError::field("/management", "choose one")),
    };
    let request = AdoptRequest { process: id.to_string(), management };
    let options = WriteOptions { must_be_new: true, ..WriteOptions::default() };
    app.service.adopt_daemon(ctx, name, request, options).await
}
