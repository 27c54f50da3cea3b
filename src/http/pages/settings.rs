//! Settings: the user, the host and its addresses, and maintenance.

use askama::Template;
use axum::http::header;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};

use super::format::{self, Moment};
use super::forms::{Field, Form, FormErrors, Shape};
use super::frame::{Frame, Section};
use super::gpus::{GpuDisplayNames, GpuRow};
use super::routes::PageRoutes;
use super::{followed, refusal, rendered};
use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::domain::host_file;
use crate::domain::layout::text::LayoutFormat;
use crate::domain::maintenance::{DEFAULT_DRAIN_S, MaintenanceRequest, MaintenanceState};
use crate::domain::token::Secret;
use crate::http::auth::CurrentSession;
use crate::http::extract::Call;
use crate::http::problem::Reply;
use crate::service::WriteOptions;
use crate::service::access::sessions::{SessionView, SessionsOf};
use crate::service::access::whoami::WhoamiView;
use crate::service::daemons::maintenance::MaintenanceView;
use crate::service::host::HostView;
use crate::service::host::startup::ConfirmRequest;

const MAINTENANCE: [Field; 3] =
    [("gpus", Shape::List), ("timeout_s", Shape::Whole), ("on_timeout", Shape::Text)];

pub(super) fn router() -> PageRoutes {
    PageRoutes::default()
        .route("/settings", get(show))
        .route("/settings/host.yaml", get(export))
        .form_route("/settings/log-out-everywhere", "sessions", post(log_out_everywhere))
        .form_route("/settings/login-url", "login-urls", post(login_url))
        .form_route("/settings/confirm-host", "host/confirm", post(confirm_host))
        .form_route("/settings/maintenance", "host/maintenance", get(fill_in).post(begin_maintenance))
        .form_route("/settings/maintenance/end", "host/maintenance", post(end_maintenance))
}

#[derive(Template)]
#[template(path = "settings.html")]
struct SettingsPage {
    frame: Frame,
    who: WhoamiView,
    session: Option<SessionView>,
    /// The host's settings, for users with access to them.
    host: Option<HostPart>,
}

struct HostPart {
    view: HostView,
    maintenance: MaintenanceView,
    gpus: GpuDisplayNames,
    certificate: Option<Moment>,
}

#[derive(Template)]
#[template(path = "maintenance_begin.html")]
struct BeginPage<'a> {
    frame: Frame,
    form: &'a Form,
    refused: FormErrors,
    /// The GPUs, each with the daemons that are stopped with it.
    gpus: Vec<(GpuRow, Vec<DaemonName>)>,
}

#[derive(Template)]
#[template(path = "login_url.html")]
struct LoginUrlPage {
    frame: Frame,
    url: Secret,
    until: Moment,
}

/// Effect of maintenance on its daemons.
pub(super) fn maintenance(state: MaintenanceState) -> &'static str {
    match state {
        MaintenanceState::Draining => {
            "draining: its daemons take no new clients, and wait for the connected ones"
        }
        MaintenanceState::Quitting => "its daemons are being stopped",
        MaintenanceState::Active => {
            "active: its daemons are stopped, and the driver is not queried until it ends"
        }
        MaintenanceState::Ending => "ending: its daemons are being started again",
    }
}

/// The host as a file.
async fn export(Call { app, ctx }: Call) -> Reply {
    let exported = app.service.host_spec(&ctx).await?.exported;
    let headers = [
        (header::CONTENT_TYPE, "application/yaml"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"host.yaml\""),
    ];
    Ok((headers, host_file::text::write(&exported, LayoutFormat::Yaml)).into_response())
}

async fn show(call: Call, CurrentSession(key): CurrentSession) -> Reply {
    let Call { app, ctx } = &call;
    let who = app.service.whoami(ctx)?;
    let session = app.service.session(ctx, key).ok();
    let host = match ctx.actor.may(Right::View) {
        Ok(()) => {
            let (view, maintenance) =
                (app.service.host(ctx).await?, app.service.maintenance(ctx, false).await?);
            let certificate = view.listening.tls.as_ref().map(|tls| Moment(tls.not_after));
            let gpus = call.gpu_names().await;
            Some(HostPart { view, maintenance, gpus, certificate })
        }
        Err(_) => None,
    };
    let frame = call.frame(Section::Settings, "Settings").await;
    Ok(rendered(&SettingsPage { frame, who, session, host }))
}

/// Ends all sessions of the user, including this one.
async fn log_out_everywhere(Call { app, ctx }: Call) -> Reply {
    Box::pin(app.service.end_sessions(&ctx, SessionsOf::Own)).await?;
    Ok(Redirect::to("/login").into_response())
}

/// A login address, shown in the response itself: a page with its own address would show it again.
async fn login_url(call: Call) -> Reply {
    let Call { app, ctx } = &call;
    let made = app.service.create_login_code(ctx).await?;
    let frame = call.frame(Section::Settings, "Login address").await;
    Ok(rendered(&LoginUrlPage { frame, url: app.auth.login_url(&made.code), until: Moment(made.expires_at) }))
}

/// Confirms that the database belongs to this machine.
async fn confirm_host(Call { app, ctx }: Call, form: Form) -> Reply {
    let request: ConfirmRequest = form.read(&[("machine_id", Shape::Text)])?;
    app.service.confirm_host(&ctx, request, false).await?;
    Ok(Redirect::to("/").into_response())
}

async fn fill_in(call: Call) -> Reply {
    // A user without the right is refused before typing.
    call.ctx.require(Right::Operate)?;
    let mut form = Form::default();
    form.set("timeout_s", DEFAULT_DRAIN_S.to_string());
    begin_page(&call, &form, FormErrors::default()).await
}

async fn begin_page(call: &Call, form: &Form, refused: FormErrors) -> Reply {
    let frame = call.frame(Section::Settings, "Begin maintenance").await;
    // Only a whole GPU can be taken: its MIG instances and MLOPart devices share its device file.
    let (whole, parts): (Vec<_>, Vec<_>) =
        call.gpus().await?.into_iter().partition(|row| row.whole().is_none());
    let stopped = |row: &GpuRow| {
        let parts = parts.iter().filter(|part| part.is_part_of(row.key())).map(|part| &part.gpu);
        let mut daemons: Vec<_> =
            [&row.gpu].into_iter().chain(parts).filter_map(|gpu| gpu.daemon.clone()).collect();
        daemons.dedup();
        daemons
    };
    let gpus = whole
        .into_iter()
        .map(|row| {
            let daemons = stopped(&row);
            (row, daemons)
        })
        .collect();
    Ok(refused.shown(|refused| BeginPage { frame, form, refused, gpus }))
}

async fn begin_maintenance(call: Call, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::Operate)?;
    let begin = async {
        let request: MaintenanceRequest = form.read(&MAINTENANCE)?;
        app.service.begin_maintenance(ctx, request, WriteOptions::default()).await
    };
    match begin.await {
        Ok(operation) => Ok(followed(operation.id)),
        Err(error) => {
            begin_page(&call, &form, refusal(ctx, error, &MAINTENANCE.map(|(name, _)| name))?).await
        }
    }
}

async fn end_maintenance(Call { app, ctx }: Call) -> Reply {
    let operation = app.service.end_maintenance(&ctx, WriteOptions::default()).await?;
    Ok(followed(operation.id))
}
