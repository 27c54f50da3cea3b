//! `mps-manager tenant`.

mod delete;
mod ensure;
mod fields;
mod set;

use std::process::ExitCode;

use clap::Subcommand;

use self::delete::TenantDeleteArgs;
use self::ensure::TenantEnsureArgs;
use self::set::TenantSetArgs;
use super::nouns::{DAEMON, TENANT};
use super::output::remark;
use super::server::CallArgs;
use crate::client::ClientError;
use crate::domain::{DaemonName, TenantName};
use crate::words::tenant::{MARK, has_mark};

/// Commands on tenants.
#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// List tenants
    #[command(after_help = "Examples:
  mps-manager tenant list
  mps-manager tenant list --daemon gpu0 -o name
  mps-manager tenant list -l team=ml")]
    List {
        /// Only those of this daemon
        #[arg(long, add = DAEMON.complete())]
        daemon: Option<DaemonName>,
        /// Only those with these labels, for example team=ml,tier
        #[arg(short = 'l', long, value_name = "KEY[=VALUE]")]
        labels: Option<String>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a tenant
    #[command(after_help = "Examples:
  mps-manager tenant get web
  mps-manager tenant get web -o yaml")]
    Get {
        /// The tenant
        #[arg(add = TENANT.complete())]
        name: TenantName,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Create a tenant, or change what the options say of it; exit 1 if it is not ready
    #[command(after_help = "Examples:
  mps-manager tenant set web                          on the only daemon, without limits
  mps-manager tenant set web --daemon gpu0 --memory-limit 4G --sms 32
  mps-manager tenant set web --priority below_normal  changes nothing else
  mps-manager tenant set web --unset sms --dry-run")]
    Set(Box<TenantSetArgs>),
    /// Create a tenant with exactly these settings, or replace it, and wait until it is ready; exit 1 if it is not
    #[command(after_help = "Examples:
  mps-manager tenant ensure job-17 --daemon gpu0 --memory-limit 4G --ttl 48h
  mps-manager tenant ensure job-17 --gpu 0 --uid 1000 --thread-percentage 25 --ttl 48h --timeout 20s")]
    Ensure(Box<TenantEnsureArgs>),
    /// Delete a tenant; exit 1 if it still has clients
    #[command(after_help = "Examples:
  mps-manager tenant delete web --dry-run
  mps-manager tenant delete web --yes
  mps-manager tenant delete job-17 --drain 30s --force")]
    Delete(TenantDeleteArgs),
}

pub(super) async fn run(command: TenantCommand) -> Result<ExitCode, ClientError> {
    match command {
        TenantCommand::List { daemon, labels, call } => {
            let filters = [("daemon", daemon.map(String::from)), ("labels", labels)];
            let tenants = TENANT.read(&call.client()?, &filters, 0).await?;
            TENANT.layout().print(&tenants, call.format());
            if call.format().is_table() && has_mark(&tenants) {
                remark(MARK);
            }
            Ok(ExitCode::SUCCESS)
        }
        TenantCommand::Get { name, call } => TENANT.get(&call, name).await,
        TenantCommand::Set(args) => set::set(&args).await,
        TenantCommand::Ensure(args) => ensure::ensure(&args).await,
        TenantCommand::Delete(args) => delete::delete(&args).await,
    }
}
