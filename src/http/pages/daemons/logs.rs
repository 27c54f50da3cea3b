//! The logs of a daemon: their end as it is written, and everything before it part by part.

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::domain::DaemonName;
use crate::domain::access::Actor;
use crate::http::AppState;
use crate::http::extract::{Path, Query};
use crate::http::pages::frame::{Frame, Place};
use crate::http::pages::rendered;
use crate::http::pages::words::{Amount, Stamped};
use crate::http::problem::Problem;
use crate::service::logs::{LogFile, LogView, Part};

#[derive(Template)]
#[template(path = "daemons/logs.html")]
struct LogsPage {
    frame: Frame,
    name: DaemonName,
    file: LogFile,
    q: String,
    log: LogView,
    is_last: bool,
}

impl LogsPage {
    fn is(&self, file: LogFile) -> bool {
        self.file == file
    }

    fn word(&self) -> &'static str {
        word(self.file)
    }

    fn size(&self) -> Amount {
        Amount(self.log.excerpt.as_ref().map_or(0, |excerpt| excerpt.size))
    }

    /// The address of another part of the same.
    fn at(&self, file: LogFile, part: &str) -> String {
        let q = utf8_percent_encode(&self.q, NON_ALPHANUMERIC);
        format!("/daemons/{}/logs?file={}&q={q}{part}", self.name, word(file))
    }

    fn older(&self) -> Option<String> {
        let excerpt = self.log.excerpt.as_ref().ok()?;
        (excerpt.from > 0).then(|| self.at(self.file, &format!("&before={}", excerpt.from)))
    }

    fn newer(&self) -> Option<String> {
        let excerpt = self.log.excerpt.as_ref().ok()?;
        (excerpt.to < excerpt.size).then(|| self.at(self.file, &format!("&from={}", excerpt.to)))
    }

    fn newest(&self) -> String {
        self.at(self.file, "")
    }
}

fn word(file: LogFile) -> &'static str {
    match file {
        LogFile::Control => "control",
        LogFile::Server => "server",
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    #[serde(default)]
    file: FileWord,
    #[serde(default)]
    q: String,
    before: Option<u64>,
    from: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FileWord {
    #[default]
    Control,
    Server,
}

pub(super) async fn show(
    State(app): State<AppState>,
    actor: Actor,
    Path(name): Path<DaemonName>,
    Query(query): Query<LogQuery>,
) -> Result<Response, Problem> {
    let file = match query.file {
        FileWord::Control => LogFile::Control,
        FileWord::Server => LogFile::Server,
    };
    let part = match (query.before, query.from) {
        (Some(before), _) => Part::Before(before),
        (None, Some(from)) => Part::From(from),
        (None, None) => Part::Last,
    };
    let q: String = query.q.trim().chars().take(200).collect();
    let log = app.service.daemon_log(&actor, &name, file, part, q.clone()).await?;
    let is_last = part == Part::Last;
    let frame = Frame::of(&app.service, &actor, Place::Daemons, &format!("Logs of {name}")).await;
    let frame = if is_last { frame.live() } else { frame };
    Ok(rendered(&LogsPage { frame, name, file, q, log, is_last }))
}
