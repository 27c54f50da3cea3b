//! The logs of a daemon, read in parts.

use std::io;
use std::path::Path;

use super::{Service, ServiceError};
use crate::domain::DaemonName;
use crate::domain::access::{Actor, Right};
use crate::supervisor::excerpt;
pub use crate::supervisor::{Excerpt, Part};

/// One of the two logs that a daemon writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFile {
    /// What the control daemon writes.
    Control,
    /// What its servers write.
    Server,
}

impl LogFile {
    /// Its name in the daemon's log directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control.log",
            Self::Server => "server.log",
        }
    }
}

/// Lines of a log, or why there are none.
#[derive(Debug, Clone)]
pub struct LogView {
    /// The file.
    pub path: String,
    /// The lines; `Err` says why the file cannot be read.
    pub excerpt: Result<Excerpt, String>,
}

impl Service {
    /// Lines of a log of a daemon that have this in them; logs name processes of all users, so they are the host's.
    pub async fn daemon_log(
        &self,
        actor: &Actor,
        name: &DaemonName,
        file: LogFile,
        part: Part,
        wanted: String,
    ) -> Result<LogView, ServiceError> {
        actor.may(Right::View)?;
        // What is not there has no log.
        let daemon = self.daemon(actor, name, false).await?;
        let directory = match daemon.status {
            Some(status) => status.log_directory.into(),
            None => self.parts.fleet.context().log_directory(name),
        };
        let path = directory.join(file.name());
        let shown = path.display().to_string();
        let reading = tokio::task::spawn_blocking(move || excerpt(&path, part, &wanted)).await;
        let reading = reading.map_err(|error| ServiceError::Internal(error.to_string()))?;
        Ok(LogView { excerpt: reading.map_err(|error| why_not(&error, &shown)), path: shown })
    }
}

fn why_not(error: &io::Error, path: &str) -> String {
    let name = Path::new(path).file_name().unwrap_or_default().display();
    // What `O_NOFOLLOW` gives for a link.
    let is_link = error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error());
    match error.kind() {
        _ if is_link => format!("{name} is a link, and links in a log directory are not followed"),
        io::ErrorKind::NotFound => {
            format!("there is no {name}: nothing has written one yet, or somebody removed it")
        }
        _ => format!("{name} cannot be read: {error}"),
    }
}
