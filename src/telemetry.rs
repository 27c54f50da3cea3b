//! Log lines on stderr.

use std::io::{self, IsTerminal as _, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;
use crate::domain::printable::printable_log_line;

/// Never logged: at `trace` this layer writes each request's raw path, which may contain a token.
const SILENT: &str = "tower_http::csrf::service";

/// Keeps each event on one line: what it quotes of others may hold line breaks and control characters.
///
/// The subscriber writes an event in one piece, and spells out escape characters in it by itself.
struct OneLine<W>(W);

impl<W: Write> Write for OneLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        self.0.write_all(format!("{}{end}", printable_log_line(line)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Starts logging for the rest of the process; a filter that cannot be read is an error.
pub fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = filter
        .parse::<Targets>()
        .map_err(|error| format!("log_filter {filter:?} cannot be read: {error}"))?
        .with_target(SILENT, LevelFilter::OFF);
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(|| OneLine(io::stderr()));
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(std::io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    }
    .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_log_line() {
        let mut written = OneLine(Vec::new());
        written.write_all(b"WARN why=held by process 7: a\r\nb\x08\n").expect("written");
        assert_eq!(written.0, b"WARN why=held by process 7: a\\u000d\\u000ab\\u0008\n");
    }
}
