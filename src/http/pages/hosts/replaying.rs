//! Replaying a layout of this host on another: the saved hosts with what each would say, and the start.

use askama::Template;
use axum::response::{IntoResponse as _, Redirect};
use serde::Deserialize;

use crate::domain::access::Right;
use crate::domain::saved_host::SavedHost;
use crate::domain::{DaemonName, HostName, LayoutName};
use crate::http::extract::{Call, Path, Query};
use crate::http::pages::forms::{Form, FormErrors};
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::refusal;
use crate::http::problem::Reply;
use crate::service::ServiceError;
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

/// The daemon that has the layout.
#[derive(Debug, Deserialize)]
pub(super) struct LayoutHolder {
    daemon: DaemonName,
}

pub(super) async fn choose(
    call: Call,
    Path(name): Path<LayoutName>,
    Query(LayoutHolder { daemon }): Query<LayoutHolder>,
) -> Reply {
    call.ctx.require(Right::Operate)?;
    answer(&call, name, daemon, FormErrors::default()).await
}

/// Prepares a host, or starts a replay there.
pub(super) async fn act(call: Call, Path(name): Path<LayoutName>, form: Form) -> Reply {
    let Call { app, ctx } = &call;
    ctx.require(Right::Operate)?;
    let daemon =
        DaemonName::parse(form.text("daemon")).map_err(|error| ServiceError::invalid(("daemon", error)))?;
    let host = HostName::parse(form.text("host")).map_err(|error| ServiceError::invalid(("host", error)))?;
    let done = async {
        if form.text("do") == "prepare" {
            app.service.prepare_host(ctx, &host, &name, &daemon).await?;
            return Ok(format!("/layouts/{name}/replay-to?daemon={daemon}"));
        }
        let replay = app.service.replay_to(ctx, &host, &name, &daemon).await?;
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
