//! `mps-manager layout`: partition layouts as files, planned, applied, compared, and replayed on other hosts.

pub(super) mod arguments;
mod replay;
mod verbs;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use self::arguments::{DocumentOutputArgs, LayoutTargetArgs};
use super::confirm::ConfirmArgs;
use super::daemon::TimeoutAction;
use super::nouns::{DAEMON, LAYOUT};
use super::output::line;
use super::server::{CallArgs, ServerArgs};
use super::values::{choice, whole_number};
use super::wait::WaitArgs;
use crate::client::ClientError;
use crate::domain::duration::parse_seconds;
use crate::domain::{DaemonName, LayoutName};

/// Commands on layouts.
#[derive(Debug, Subcommand)]
pub(super) enum LayoutCommand {
    /// List layouts
    #[command(after_help = "Examples:
  mps-manager layout list")]
    List(CallArgs),
    /// Print a layout as a document
    #[command(
        visible_alias = "show",
        after_help = "Examples:
  mps-manager layout get web_prod
  mps-manager layout get web_prod --layout-version 2 -o json"
    )]
    Get {
        /// The layout
        #[arg(add = LAYOUT.complete())]
        name: LayoutName,
        /// The version; by default the newest
        #[arg(long, value_name = "N", value_parser = whole_number)]
        layout_version: Option<u32>,
        #[command(flatten)]
        output: DocumentOutputArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Import the layouts of a document as new versions
    #[command(after_help = "Examples:
  mps-manager layout import web_prod.yaml
  ssh gpu1 mps-manager layout export web_prod | mps-manager layout import -")]
    Import {
        /// The file, or - for standard input
        #[arg(value_name = "FILE", required_unless_present = "file")]
        path: Option<PathBuf>,
        /// The file, or - for standard input, given as an option
        #[arg(short, long, hide = true, conflicts_with = "path")]
        file: Option<PathBuf>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show what applying a layout to a daemon would do; changes nothing; exit 1 if `apply` would refuse it
    #[command(after_help = "Examples:
  mps-manager layout plan web_prod --daemon gpu1
  mps-manager layout plan web_prod -f web_prod.yaml --daemon gpu1 --gpu 0=1")]
    Plan(LayoutTargetArgs),
    /// Apply a layout to a daemon; exit 1 if it was refused or undone
    #[command(after_help = "Examples:
  mps-manager layout apply web_prod --daemon gpu1
  mps-manager layout apply web_prod -f web_prod.yaml --daemon gpu1 --drift-policy repair
  mps-manager layout apply web_prod --daemon gpu1 --recreate --drain 30m --on-timeout terminate")]
    Apply {
        #[command(flatten)]
        target: LayoutTargetArgs,
        /// Recreate partitions that stay in the layout, if their order requires it
        #[arg(long)]
        recreate: bool,
        /// Action on partitions that others create or remove; by default, the daemon's setting, or report
        #[arg(long, value_parser = ["report", "repair"])]
        drift_policy: Option<String>,
        /// Wait this long for the clients of partitions that are removed; their tenants admit no others meanwhile
        #[arg(long, value_name = "DURATION", value_parser = parse_seconds::<u32>)]
        drain: Option<u32>,
        /// Action on clients that are left after the time of --drain
        #[arg(long, value_enum, default_value_t = TimeoutAction::Fail, requires = "drain")]
        on_timeout: TimeoutAction,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Compare a daemon with a layout; exit 1 if it differs
    #[command(after_help = "Examples:
  mps-manager layout assert web_prod --daemon gpu1")]
    Assert(LayoutTargetArgs),
    /// Export a layout with the results of its steps on a daemon, as a document that other hosts can replay
    #[command(after_help = "Examples:
  mps-manager layout export web_prod > web_prod.yaml")]
    Export {
        /// The layout
        #[arg(add = LAYOUT.complete())]
        name: LayoutName,
        /// The daemon that has it; by default the only one that does
        #[arg(long, add = DAEMON.complete())]
        daemon: Option<DaemonName>,
        #[command(flatten)]
        output: DocumentOutputArgs,
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Replay a recorded layout on empty GPUs of other hosts, comparing each ID; exit 1 if one differed or was refused
    #[command(after_help = "Examples:
  mps-manager layout replay web_prod --from gpu1.example --to gpu2.example,gpu3.example
  mps-manager layout replay web_prod -f web_prod.yaml --daemon gpu1")]
    Replay(replay::ReplayArgs),
    /// Delete a layout that no daemon has
    #[command(after_help = "Examples:
  mps-manager layout delete web_prod")]
    Delete {
        /// The layout
        #[arg(add = LAYOUT.complete())]
        name: LayoutName,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Print the JSON Schema of layout documents
    #[command(after_help = "Examples:
  mps-manager layout schema > layout.schema.json")]
    Schema,
}

pub(super) async fn run(command: LayoutCommand) -> Result<ExitCode, ClientError> {
    match command {
        LayoutCommand::Schema => {
            line!("{}", include_str!("../../../openapi/layouts-v1.schema.json").trim_end());
            Ok(ExitCode::SUCCESS)
        }
        LayoutCommand::List(call) => LAYOUT.list(&call, &[], 0).await,
        LayoutCommand::Get { name, layout_version, output, server } => {
            verbs::get(&server.client()?, &name, layout_version, output.format).await
        }
        LayoutCommand::Import { path, file, call } => {
            verbs::import(&call, &path.or(file).expect("clap requires one")).await
        }
        LayoutCommand::Plan(target) => verbs::plan(&target).await,
        LayoutCommand::Apply { target, recreate, drift_policy, drain, on_timeout, confirm, wait } => {
            let drain =
                drain.map(|timeout_s| json!({"timeout_s": timeout_s, "on_timeout": choice(&on_timeout)}));
            let allowed = json!({"recreate": recreate, "drift_policy": drift_policy, "drain": drain});
            let confirm = (on_timeout == TimeoutAction::Terminate).then_some(confirm);
            verbs::apply(&target, allowed, confirm, wait).await
        }
        LayoutCommand::Assert(target) => verbs::compare(&target).await,
        LayoutCommand::Export { name, daemon, output, server } => {
            verbs::export(&server.client()?, &name, daemon.as_ref(), output.format).await
        }
        LayoutCommand::Replay(args) => replay::run(&args).await,
        LayoutCommand::Delete { name, confirm, call } => verbs::delete(&call, &name, confirm).await,
    }
}
