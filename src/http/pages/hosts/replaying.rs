//! Replaying a layout of this host on another: the saved hosts with what each would say, and the start.

use askama::Template;
use axum::extract::RawQuery;
use axum::response::{IntoResponse as _, Redirect};

use crate::domain::access::Right;
use crate::domain::saved_host::SavedHost;
use crate::domain::{DaemonName, HostName, LayoutName};
use crate::http::extract::{Call, Path};
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::refusal;
use crate::http::problem::Reply;
use crate::service::hosts::ReplayOutlook;

#[derive(Template)]
#[template(path = "hosts/replay.html")]
struct ReplayToPage {
    frame: Frame,
    name: LayoutName,
    daemon: DaemonName,
    hosts: Vec<(SavedHost, ReplayOutlook)>,
    refused: FormErrors,
}

pub(super) async fn choose(call: Call, Path(name): Path<LayoutName>, RawQuery(query): RawQuery) -> Reply {
    call.ctx.require(Right::Operate)?;
    let daemon = Form::parse(query.unwrap_or_default().as_bytes()).named("daemon")?;
    answer(&call, name, daemon, FormErrors::default()).await
}

/// Prepares a host, or starts a replay there.
pub(super) async fn act(call: Call, Path(name): Path<LayoutName>, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::Operate)?;
    let (daemon, host): (DaemonName, HostName) = (form.named("daemon")?, form.named("host")?);
    let done = async {
        if form.text("do") == "prepare" {
            app.service.prepare_host(ctx, &host, &name, &daemon, form.text("shown")).await?;
            return Ok(format!("/layouts/{name}/replay-to?daemon={daemon}"));
        }
        let target = form.named("target")?;
        let replay = app.service.replay_to(ctx, &host, &name, &daemon, &target).await?;
        Ok(format!(
            "/hosts/-/compare?layout={name}&from_daemon={daemon}&to={host}&to_daemon={}&replay={}",
            replay.daemon, replay.id
        ))
    };
    match done.await {
        Ok(page) => Ok(Redirect::to(&page).into_response()),
        Err(error) => {
            let refused = refusal(ctx, error, &[])?;
            answer(&call, name, daemon, refused).await
        }
    }
}

async fn answer(call: &Call, name: LayoutName, daemon: DaemonName, refused: FormErrors) -> Reply {
    let hosts = call.app.service.replay_outlooks(&call.ctx, &name, &daemon).await?;
    let frame = call.frame(Section::Layouts, format!("Replay {name} on another host")).await;
    Ok(refused.shown(|refused| ReplayToPage { frame, name, daemon, hosts, refused }))
}
