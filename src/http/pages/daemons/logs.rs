//! The logs of a daemon: the end is followed as it is written, earlier parts are paged.

use askama::Template;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use crate::domain::DaemonName;
use crate::http::extract::{Call, Path, Query};
use crate::http::pages::format::Stamped;
use crate::http::pages::frame::{Frame, Section};
use crate::http::pages::rendered;
use crate::http::problem::Reply;
use crate::service::daemons::logs::{LogFile, LogView, OwnSessions, Part};

#[derive(Template)]
#[template(path = "daemons/logs.html")]
struct LogsPage {
    frame: Frame,
    name: DaemonName,
    file: LogFile,
    q: String,
    log: LogView,
    is_last: bool,
    own: OwnSessions,
    part: Part,
}

impl LogsPage {
    fn shows_own(&self) -> bool {
        self.own == OwnSessions::Shown
    }

    /// Returns the address of this part with the manager's own sessions hidden if they are shown, and shown if they are hidden.
    fn other_way(&self) -> String {
        let part = match self.part {
            Part::Last => String::new(),
            Part::Before(before) => format!("&before={before}"),
            Part::From(from) => format!("&from={from}"),
        };
        self.address(self.file, &part, !self.shows_own())
    }

    /// The address of another part.
    fn at(&self, file: LogFile, part: &str) -> String {
        self.address(file, part, self.shows_own())
    }

    fn address(&self, file: LogFile, part: &str, own: bool) -> String {
        let q = utf8_percent_encode(&self.q, NON_ALPHANUMERIC);
        let own = if own { "&own=true" } else { "" };
        format!("/daemons/{}/logs?file={}&q={q}{part}{own}", self.name, word(file))
    }

    fn older(&self) -> Option<String> {
        let excerpt = self.log.excerpt.as_ref().ok()?;
        (excerpt.from > 0).then(|| self.at(self.file, &format!("&before={}", excerpt.from)))
    }

    fn newer(&self) -> Option<String> {
        let excerpt = self.log.excerpt.as_ref().ok()?;
        (excerpt.to < excerpt.size).then(|| self.at(self.file, &format!("&from={}", excerpt.to)))
    }
}

fn word(file: LogFile) -> &'static str {
    match file {
        LogFile::Control => "control",
        LogFile::Server => "server",
        LogFile::ControlKept => "control_kept",
        LogFile::ServerKept => "server_kept",
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogQuery {
    file: Option<LogFile>,
    #[serde(default)]
    q: String,
    before: Option<u64>,
    from: Option<u64>,
    /// True to show lines of the manager's own sessions.
    #[serde(default)]
    own: bool,
}

pub(super) async fn show(call: Call, Path(name): Path<DaemonName>, Query(query): Query<LogQuery>) -> Reply {
    let Call { app, ctx } = &call;
    let file = query.file.unwrap_or(LogFile::Control);
    let part = match (query.before, query.from) {
        (Some(before), _) => Part::Before(before),
        (None, Some(from)) => Part::From(from),
        (None, None) => Part::Last,
    };
    let q: String = query.q.trim().chars().take(200).collect();
    let own = if query.own { OwnSessions::Shown } else { OwnSessions::Hidden };
    let log = app.service.daemon_log(ctx, &name, file, part, q.clone(), own).await?;
    let is_last = part == Part::Last;
    let frame = call.frame(Section::Daemons, format!("Logs of {name}")).await;
    let frame = if is_last { frame.live() } else { frame };
    Ok(rendered(&LogsPage { frame, name, file, q, log, is_last, own, part }))
}
