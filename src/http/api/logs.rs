//! The logs of a daemon.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::described::ConflictOnRead;
use crate::domain::DaemonName;
use crate::http::endpoint::RequiredRight;
use crate::http::extract::{Call, Path, Query};
use crate::http::problem::Answer;
use crate::service::ServiceError;
use crate::service::daemons::logs::{LogFile, OwnSessions, Part};

/// The longest text to look for, in characters.
const LONGEST_TEXT: usize = 200;

/// The log to read, and the part of it.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DaemonLogQuery {
    /// The log; `server` by default.
    #[param(inline)]
    file: Option<LogFile>,
    /// Only lines that contain this text, in whatever case.
    #[serde(default)]
    #[param(max_length = 200)]
    contains: String,
    /// Offset in bytes at which to begin: `to` of an earlier answer. By default, the end of the log is read.
    from: Option<u64>,
    /// Also the lines of the manager's own sessions.
    #[serde(default)]
    own: bool,
}

/// A part of a log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonLog {
    /// The file on the host.
    pub path: String,
    /// Its lines, the first written first; at most 400.
    pub lines: Vec<String>,
    /// Offset in bytes at which this part ends; later lines begin there.
    pub to: u64,
    /// Number of lines of the manager's own sessions that are left out.
    pub hidden: usize,
}

/// Read a log of a daemon
///
/// 409 if the file cannot be read, as before the first server has started.
#[utoipa::path(get, path = "/api/v1/daemons/{name}/logs", operation_id = "get_daemon_log", tag = "daemons",
    extensions(("x-right" = json!(RequiredRight::View))),
    params(("name" = DaemonName, Path, description = "The name of the daemon."), DaemonLogQuery),
    responses((status = 200, description = "A part of the log.", body = DaemonLog), ConflictOnRead))]
pub(super) async fn get(
    Call { app, ctx }: Call,
    Path(name): Path<DaemonName>,
    Query(query): Query<DaemonLogQuery>,
) -> Answer<DaemonLog> {
    let file = query.file.unwrap_or(LogFile::Server);
    let length = query.contains.chars().count();
    if length > LONGEST_TEXT {
        let detail = format!("the text to look for has {length} characters: give at most {LONGEST_TEXT}");
        return Err(ServiceError::field("/contains", detail).into());
    }
    if query.from.is_some_and(|from| i64::try_from(from).is_err()) {
        let detail = "no log is as long as that: give `to` of an earlier answer, or leave it out for the end";
        return Err(ServiceError::field("/from", detail).into());
    }
    let part = query.from.map_or(Part::Last, Part::From);
    let sessions = if query.own { OwnSessions::Shown } else { OwnSessions::Hidden };
    let log = app.service.daemon_log(&ctx, &name, file, part, query.contains, sessions).await?;
    let excerpt = log.excerpt.map_err(ServiceError::Conflict)?;
    let lines = excerpt.lines.into_iter().map(|line| line.text).collect();
    Ok(axum::Json(DaemonLog { path: log.path, lines, to: excerpt.to, hidden: excerpt.hidden }))
}
