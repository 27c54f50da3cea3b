//! A foreign control daemon, and its adoption.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};

use crate::domain::client::ClientId;
use crate::domain::daemon::Management;
use crate::domain::{DaemonName, GpuUuid, Priority};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::pages::format::{self, Amount, Moment};
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::gpus::{GpuRow, named};
use crate::http::pages::{refusal, with_status};
use crate::http::problem::{Problem, Reply};
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::daemons::adoption::AdoptRequest;
use crate::service::daemons::foreign::{ForeignClientView, ForeignDaemonView, VerdictView};
use crate::service::{ServiceError, WriteOptions, Written};

#[derive(Template)]
#[template(path = "daemons/foreign.html")]
struct ForeignPage {
    frame: Frame,
    daemon: ForeignDaemonView,
    gpus: Vec<(GpuUuid, String)>,
    form: Form,
    refused: FormErrors,
}

impl ForeignPage {
    fn verdicts(&self) -> [(&'static str, &'static str, &VerdictView); 2] {
        let adoption = &self.daemon.adoption;
        [
            (
                "managed",
                "Managed: settings stay as they are now, and it is restarted when it dies",
                &adoption.managed,
            ),
            ("observed", "Observed: monitored, never changed", &adoption.observed),
        ]
    }

    fn is_possible(&self) -> bool {
        self.daemon.adoption.managed.possible || self.daemon.adoption.observed.possible
    }

    fn chosen(&self, word: &str) -> bool {
        self.form.text("management") == word
    }
}

/// The total memory of a client.
fn held(client: &ForeignClientView) -> String {
    let known = client.memory.iter().filter_map(|memory| memory.used_bytes).reduce(u64::saturating_add);
    format::or_dash(known.map(Amount))
}

/// A memory limit as read.
fn limit(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "none".to_owned(), |bytes| Amount(bytes).to_string())
}

pub(super) async fn show(Call { app, ctx }: Call, Path(id): Path<String>) -> Reply {
    foreign_page(&app, &ctx, &id, Form::default(), None).await
}

async fn foreign_page(
    app: &AppState,
    ctx: &RequestContext,
    id: &str,
    mut form: Form,
    refused: Option<(FormErrors, Problem)>,
) -> Reply {
    let daemon = app.service.foreign_daemon(ctx, id).await?;
    let gpus = GpuRow::all(app, ctx).await?;
    if refused.is_none() {
        let first = daemon.gpus.iter().flatten().next();
        let index = gpus.iter().find(|row| Some(&row.gpu.uuid) == first).and_then(|row| row.gpu.index);
        form.set("name", index.map(|index| format!("gpu{index}")).unwrap_or_default());
        form.set("management", if daemon.adoption.managed.possible { "managed" } else { "observed" });
    }
    let gpus = named(&gpus, daemon.gpus.iter().flatten());
    let (refused, problem) = refused.unzip();
    let refused = refused.unwrap_or_default();
    let title = format!("Control daemon {}", daemon.pid);
    let frame = Frame::of(&app.service, ctx, Section::Daemons, &title).await;
    Ok(with_status(&ForeignPage { frame, daemon, gpus, form, refused }, problem))
}

pub(super) async fn adopt(Call { app, ctx }: Call, Path(id): Path<ClientId>, form: Form) -> Reply {
    match adopted(&app, &ctx, id, &form).await {
        Ok(written) => Ok(Redirect::to(&format!("/daemons/{}", written.value.name)).into_response()),
        Err(error) => {
            let error = match error {
                ServiceError::PreconditionFailed(_) => {
                    ServiceError::field("/name", "there is a daemon of this name: choose another")
                }
                error => error,
            };
            let refused = refusal(&ctx, error, &["name", "management"])?;
            foreign_page(&app, &ctx, &id.to_string(), form, Some(refused)).await
        }
    }
}

async fn adopted(
    app: &AppState,
    ctx: &RequestContext,
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
