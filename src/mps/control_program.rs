//! The seam between the drivers and the control program: what is installed, or what stands for it in tests.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::binaries::InstalledProgram;
use super::control_channel::ControlChannel;
use super::process::{DaemonStartError, StartSpec, Started, start};
use super::session::Control;

/// A program that starts control daemons and talks to them.
pub trait ControlProgram: Send + Sync {
    /// The way to the daemon of a pipe directory.
    fn channel(&self, pipe_directory: PathBuf) -> Arc<dyn ControlChannel>;

    /// Starts a daemon and waits until it answers.
    fn start<'a>(&'a self, spec: &'a StartSpec) -> BoxFuture<'a, Result<Started, DaemonStartError>>;
}

impl ControlProgram for InstalledProgram {
    fn channel(&self, pipe_directory: PathBuf) -> Arc<dyn ControlChannel> {
        Arc::new(Control::new(self, pipe_directory))
    }

    fn start<'a>(&'a self, spec: &'a StartSpec) -> BoxFuture<'a, Result<Started, DaemonStartError>> {
        Box::pin(start(self, spec))
    }
}
