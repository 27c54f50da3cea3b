//! Arguments of the commands on daemons.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::super::confirm::ConfirmArgs;
use super::super::nouns::{DAEMON, FOREIGN};
use super::super::server::CallArgs;
use super::super::wait::WaitArgs;
use crate::domain::DaemonName;
use crate::domain::client::ClientId;
use crate::domain::duration::parse_duration;

/// A daemon by its name.
#[derive(Debug, Args)]
pub(in crate::cli) struct NamedDaemon {
    /// The daemon
    #[arg(add = DAEMON.complete())]
    pub(super) name: DaemonName,
}

/// A daemon, for a command that takes no time.
#[derive(Debug, Args)]
pub(in crate::cli) struct DaemonCallArgs {
    #[command(flatten)]
    pub(super) daemon: NamedDaemon,
    #[command(flatten)]
    pub(super) call: CallArgs,
}

/// An action that takes time.
#[derive(Debug, Args)]
pub(in crate::cli) struct ActionArgs {
    #[command(flatten)]
    pub(super) daemon: NamedDaemon,
    #[command(flatten)]
    pub(super) wait: WaitArgs,
    #[command(flatten)]
    pub(super) call: CallArgs,
}

/// An action that ends the work of clients.
#[derive(Debug, Args)]
pub(in crate::cli) struct EndingArgs {
    #[command(flatten)]
    pub(super) action: ActionArgs,
    /// Time for clients to end by themselves, for example 30s; by default as the manager's configuration says
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(super) grace: Option<Duration>,
    #[command(flatten)]
    pub(super) confirm: ConfirmArgs,
}

/// Daemons to adopt: one by its process, or all that this manager lost.
#[derive(Debug, Args)]
pub(in crate::cli) struct AdoptArgs {
    /// The name that the daemon gets
    #[arg(required_unless_present = "all_ours", conflicts_with = "all_ours", requires = "process")]
    pub(super) name: Option<DaemonName>,
    /// Its process, by ID as `foreign list` prints it, or by PID
    #[arg(long, value_name = "PROCESS", requires = "name", add = FOREIGN.complete())]
    pub(super) process: Option<String>,
    /// Only show and measure it, and never write to it
    #[arg(long, requires = "process")]
    pub(super) observe: bool,
    /// Every running daemon that this manager started and that its database does not know, as after the loss of the state directory
    #[arg(long)]
    pub(super) all_ours: bool,
    /// With --all-ours: do not ask
    #[arg(short, long, requires = "all_ours")]
    pub(super) yes: bool,
    #[command(flatten)]
    pub(super) call: CallArgs,
}

/// Action on clients that are left when the time of a drain is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum TimeoutAction {
    /// Fail, and admit clients again
    Fail,
    /// Terminate them
    Terminate,
}

/// Returns true if a text names the process: by its ID, or by its PID alone.
pub(super) fn is_process(id: &ClientId, text: &str) -> bool {
    id.to_string() == text || id.pid.to_string() == text
}
