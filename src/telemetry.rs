//! Log lines on stderr.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::config::LogFormat;

/// What is never logged: at `trace` this layer writes each request's path as it came, in which somebody may have put a token.
const SILENT: &str = "tower_http::csrf::service=off";

/// Starts logging for the rest of the process; a filter that cannot be read is an error.
pub fn start(format: LogFormat, filter: &str) -> Result<(), String> {
    let filter = EnvFilter::try_new(filter)
        .map_err(|error| format!("log_filter {filter:?} cannot be read: {error}"))?
        .add_directive(SILENT.parse().map_err(|error| format!("{SILENT}: {error}"))?);
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => registry.with(layer.with_ansi(std::io::stderr().is_terminal())).try_init(),
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).try_init(),
    }
    .map_err(|error| error.to_string())
}
