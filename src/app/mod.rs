//! The composition root: the only place that knows everything.
//!
//! [`serve()`] is the process: signals, certificates, sockets. [`App`] is the manager itself, with a router and no socket, so
//! that a test can have one in its own process.

pub mod backup;
mod build;
mod certificates;
pub mod doctor;
mod durable_records;
mod file_watch;
mod host_file;
mod platform;
pub mod recording;
mod remote;
mod seed;
mod serve;
mod token_file;
pub mod trial;
mod trusted;
mod welcome;

use std::path::Path;

pub use self::build::{App, Prepared};
pub use self::serve::{ServeOptions, serve};
use crate::domain::audit::{Broken, Head};
use crate::store;

/// The database in the state directory.
pub(crate) const DATABASE: &str = "mps-manager.db";
/// In the runtime directory: where a daemon of an old control program is asked what it knows, and with `.json` what it knew.
pub(crate) const CONTROL_PROGRAM: &str = "control-program";

/// Why the server did not start, in words for the operator.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StartupError(String);

fn refused(error: impl std::fmt::Display) -> StartupError {
    StartupError(error.to_string())
}

/// Checks the audit in a database; the first row that does not fit is the inner error.
///
/// `anchor` is a row that was kept elsewhere.
pub async fn verify_audit(database: &Path, anchor: Option<Head>) -> Result<Result<Head, Broken>, String> {
    let verified = store::audit::verify(database, anchor.as_ref()).await;
    verified.map_err(|error| format!("{}: {error}", database.display()))
}
