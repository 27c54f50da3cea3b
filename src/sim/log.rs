//! control.log and server.log: `[YYYY-MM-DD HH:MM:SS.mmm Control|Server|Other <pid>] text`.
//!
//! Opened once and appended to, as the real programs do: truncating a log in place works, renaming it does not.
//! Each process writes its own lines, so the order is the order of events.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

/// One open log.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    /// Under `-f` every line goes to stdout as well.
    echo: bool,
}

/// Who speaks in a line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Voice {
    Control,
    Server,
    /// The server before it is one, and a start that found another daemon.
    Other,
}

impl Log {
    pub(crate) fn open(path: &Path, echo: bool) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, echo })
    }

    /// Writes one line in this process's name. A log that cannot be written is no reason to stop.
    pub(crate) fn line(&self, voice: Voice, text: &str) {
        let voice = match voice {
            Voice::Control => "Control",
            Voice::Server => "Server",
            Voice::Other => "Other",
        };
        let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S%.3f").to_string();
        let line = format!("[{now} {voice} {:>5}] {text}\n", std::process::id());
        let _ = (&self.file).write_all(line.as_bytes());
        if self.echo {
            let _ = io::stdout().lock().write_all(line.as_bytes());
        }
    }
}
