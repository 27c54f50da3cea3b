//! `mps-manager daemon`.

mod actions;
mod arguments;
mod logs;
mod set;

use std::process::ExitCode;

use clap::Subcommand;

pub(super) use self::arguments::TimeoutAction;
use self::arguments::{ActionArgs, AdoptArgs, DaemonCallArgs, EndingArgs};
use self::logs::DaemonLogArgs;
use self::set::DaemonSetArgs;
use super::confirm::ConfirmArgs;
use super::nouns::DAEMON;
use super::server::CallArgs;
use crate::client::ClientError;
use crate::domain::duration::parse_seconds;

/// Commands on daemons.
#[derive(Debug, Subcommand)]
pub(super) enum DaemonCommand {
    /// List daemons
    #[command(after_help = "Examples:
  mps-manager daemon list
  mps-manager daemon list -o wide")]
    List(CallArgs),
    /// Show a daemon
    #[command(after_help = "Examples:
  mps-manager daemon get gpu0")]
    Get(DaemonCallArgs),
    /// Create a daemon, or change what the options say of it; exit 1 if it is not ready
    #[command(after_help = "Examples:
  mps-manager daemon set gpu1 --gpu 1
  mps-manager daemon set gpu1 --gpu 1 --mode static
  mps-manager daemon set gpu0 --memory-limit 8G --dry-run
  mps-manager daemon set gpu0 --unset memory-limit")]
    Set(Box<DaemonSetArgs>),
    /// Stop a daemon and delete it; exit 1 if it still has tenants
    #[command(after_help = "Examples:
  mps-manager daemon delete gpu1
  mps-manager daemon delete gpu1 --grace 30s --yes")]
    Delete(EndingArgs),
    /// Start a daemon
    #[command(after_help = "Examples:
  mps-manager daemon start gpu0")]
    Start(ActionArgs),
    /// Stop a daemon, which ends the work of its clients
    #[command(after_help = "Examples:
  mps-manager daemon stop gpu0
  mps-manager daemon stop gpu0 --grace 5m --yes")]
    Stop(EndingArgs),
    /// Restart a daemon, which ends the work of its clients
    #[command(after_help = "Examples:
  mps-manager daemon restart gpu0
  mps-manager daemon restart gpu0 --grace 30s --no-wait")]
    Restart(EndingArgs),
    /// Admit no new clients, and wait until those that are connected have ended
    #[command(after_help = "Examples:
  mps-manager daemon drain gpu0
  mps-manager daemon drain gpu0 --timeout 10m --on-timeout terminate")]
    Drain {
        #[command(flatten)]
        action: ActionArgs,
        /// Time for clients to end, for example 10m
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_seconds::<u32>)]
        timeout: u32,
        /// Action on clients that are left after the timeout
        #[arg(long, value_enum, default_value_t = TimeoutAction::Fail)]
        on_timeout: TimeoutAction,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Admit no new clients; connected ones stay
    #[command(after_help = "Examples:
  mps-manager daemon cordon gpu0")]
    Cordon(DaemonCallArgs),
    /// Admit new clients again
    #[command(after_help = "Examples:
  mps-manager daemon uncordon gpu0")]
    Uncordon(DaemonCallArgs),
    /// Adopt a control daemon that another program started, or take back our own after the loss of the state directory
    #[command(after_help = "Examples:
  mps-manager foreign list
  mps-manager daemon adopt gpu0 --process 1234-567890
  mps-manager daemon adopt gpu0 --process 1234 --observe
  mps-manager daemon adopt --all-ours")]
    Adopt(AdoptArgs),
    /// Print the log of a daemon's servers, or of the control daemon itself
    #[command(after_help = "Examples:
  mps-manager daemon logs gpu0
  mps-manager daemon logs gpu0 control -f --contains error")]
    Logs(DaemonLogArgs),
    /// Give up an adopted daemon, and leave its process running
    #[command(after_help = "Examples:
  mps-manager daemon release gpu0")]
    Release(DaemonCallArgs),
}

pub(super) async fn run(command: DaemonCommand) -> Result<ExitCode, ClientError> {
    match command {
        DaemonCommand::List(call) => DAEMON.list(&call, &[], 0).await,
        DaemonCommand::Get(args) => DAEMON.get(&args.call, args.daemon.name).await,
        DaemonCommand::Set(args) => set::set(&args).await,
        DaemonCommand::Delete(args) => actions::delete(&args).await,
        DaemonCommand::Start(args) => actions::start(&args).await,
        DaemonCommand::Stop(args) => actions::stop(&args).await,
        DaemonCommand::Restart(args) => actions::restart(&args).await,
        DaemonCommand::Drain { action, timeout, on_timeout, confirm } => {
            actions::drain(&action, timeout, on_timeout, confirm).await
        }
        DaemonCommand::Cordon(args) => actions::cordon(&args, true).await,
        DaemonCommand::Uncordon(args) => actions::cordon(&args, false).await,
        DaemonCommand::Adopt(args) => actions::adopt(args).await,
        DaemonCommand::Logs(args) => logs::logs(&args).await,
        DaemonCommand::Release(args) => actions::release(&args).await,
    }
}
