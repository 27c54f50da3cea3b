//! The logs of a daemon.

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::domain::DaemonName;
use crate::domain::access::Right;
use crate::service::access::context::RequestContext;
use crate::service::{Result, Service, ServiceError};
pub use crate::supervisor::{Excerpt, OwnSessions, Part};
use crate::supervisor::{excerpt, kept_name};

/// One of the two logs that a daemon writes, or the saved text of one that was emptied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = DaemonLogFile)]
pub enum LogFile {
    /// The log of the control daemon, control.log.
    Control,
    /// The log of its servers, server.log.
    Server,
    /// The text of control.log before it was last emptied, without this manager's own sessions.
    ControlKept,
    /// The text of server.log before it was last emptied.
    ServerKept,
}

impl LogFile {
    /// Its name in the daemon's log directory.
    pub fn name(self) -> String {
        match self {
            Self::Control => "control.log".to_owned(),
            Self::Server => "server.log".to_owned(),
            Self::ControlKept => kept_name("control.log"),
            Self::ServerKept => kept_name("server.log"),
        }
    }
}

/// Lines of a log, or why there are none.
#[derive(Debug, Clone)]
pub struct LogView {
    /// The file.
    pub path: String,
    /// Further files beside the two logs.
    pub kept: Vec<LogFile>,
    /// The lines, or the reason why the file cannot be read.
    pub excerpt: Result<Excerpt, String>,
}

impl Service {
    /// The lines of a daemon's log that contain this text; for host users only, because logs name processes of all users.
    pub async fn daemon_log(
        &self,
        ctx: &RequestContext,
        name: &DaemonName,
        file: LogFile,
        part: Part,
        wanted: String,
        sessions: OwnSessions,
    ) -> Result<LogView> {
        let backend = self.with(&ctx.require(Right::View)?);
        // A daemon that does not exist has no log.
        let daemon = self.daemon(ctx, name, false).await?;
        let directory = match daemon.status {
            Some(status) => status.log_directory.into(),
            None => backend.parts.fleet.context().log_directory(name),
        };
        let directory: PathBuf = directory;
        let path = directory.join(file.name());
        let path_text = path.display().to_string();
        let reading = tokio::task::spawn_blocking(move || {
            let exists = |file: &LogFile| directory.join(file.name()).symlink_metadata().is_ok();
            let kept = [LogFile::ControlKept, LogFile::ServerKept].into_iter().filter(exists).collect();
            (excerpt(&path, part, &wanted, sessions), kept)
        });
        let (read, kept) = reading.await.map_err(|error| ServiceError::Internal(error.to_string()))?;
        Ok(LogView { excerpt: read.map_err(|error| why_not(&error, &path_text)), kept, path: path_text })
    }
}

fn why_not(error: &io::Error, path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default().display();
    // The error that `O_NOFOLLOW` gives for a link.
    let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    match error.kind() {
        _ if is_link => format!("{name} is a link, and links in a log directory are not followed"),
        io::ErrorKind::NotFound => {
            format!("there is no {name}: nothing has been logged yet, or the file was removed")
        }
        _ => format!("{name} cannot be read: {error}"),
    }
}
