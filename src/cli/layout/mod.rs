//! `mps-manager layout`: partition layouts as files, planned, applied, compared, and replayed on other hosts.

pub(super) mod arguments;
mod replay;
mod verbs;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use self::arguments::{DocumentFormat, DriftPolicyArgument, Gpus, LayoutTargetArgs, PlanOutput, read};
use super::{ServerArgs, ask, line};
use crate::domain::{DaemonName, LayoutName};
use crate::http::api::layout_schema::layout_document_schema;

#[derive(Debug, Subcommand)]
pub(super) enum LayoutCommand {
    /// List the layouts
    List {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Print a layout as a document
    Show {
        #[command(flatten)]
        server: ServerArgs,
        /// The layout
        name: LayoutName,
        /// The version; by default the newest
        #[arg(long, value_name = "N")]
        layout_version: Option<u32>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = DocumentFormat::Yaml)]
        output: DocumentFormat,
    },
    /// Import the layouts of a document as new versions
    Import {
        #[command(flatten)]
        server: ServerArgs,
        /// The file, or - for standard input
        #[arg(short, long)]
        file: PathBuf,
    },
    /// Show what applying a layout to a daemon would do; changes nothing; exit 1 if `apply` would refuse it
    Plan {
        #[command(flatten)]
        target: LayoutTargetArgs,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = PlanOutput::Text)]
        output: PlanOutput,
    },
    /// Apply a layout to a daemon; exit 1 if it was refused or undone
    Apply {
        #[command(flatten)]
        target: LayoutTargetArgs,
        /// Recreate partitions that stay in the layout, if their order requires it
        #[arg(long)]
        recreate: bool,
        /// What to do about partitions that others create or remove; by default, the daemon's setting, or report
        #[arg(long, value_enum)]
        drift_policy: Option<DriftPolicyArgument>,
    },
    /// Compare a daemon with a layout; exit 1 if it differs
    Assert {
        #[command(flatten)]
        target: LayoutTargetArgs,
    },
    /// Export a layout with the results of its steps on a daemon, as a document that other hosts can replay
    Export {
        #[command(flatten)]
        server: ServerArgs,
        /// The layout
        name: LayoutName,
        /// The daemon that has it; by default the only one that does
        #[arg(long)]
        daemon: Option<DaemonName>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = DocumentFormat::Yaml)]
        output: DocumentFormat,
    },
    /// Replay a recorded layout on empty GPUs of other hosts, comparing each ID; exit 1 if one differed or was refused
    Replay(replay::ReplayArgs),
    /// Delete a layout that no daemon has
    Delete {
        #[command(flatten)]
        server: ServerArgs,
        /// The layout
        name: LayoutName,
    },
    /// Print the JSON Schema of layout documents
    Schema,
}

pub(super) fn run(command: LayoutCommand) -> Result<ExitCode, String> {
    match command {
        LayoutCommand::Schema => {
            line!("{:#}", layout_document_schema());
            Ok(ExitCode::SUCCESS)
        }
        LayoutCommand::List { server } => ask(async move { verbs::list(&server.client()?).await }),
        LayoutCommand::Show { server, name, layout_version, output } => {
            ask(async move { verbs::show(&server.client()?, &name, layout_version, output).await })
        }
        LayoutCommand::Import { server, file } => {
            let text = read(&file)?;
            ask(async move { verbs::import(&server.client()?, text).await })
        }
        LayoutCommand::Plan { target, output } => {
            let (target, file) = opened(target)?;
            ask(async move { verbs::plan(&target, file, output).await })
        }
        LayoutCommand::Apply { target, recreate, drift_policy } => {
            let (target, file) = opened(target)?;
            ask(async move { verbs::apply(&target, file, recreate, drift_policy).await })
        }
        LayoutCommand::Assert { target } => {
            let (target, file) = opened(target)?;
            ask(async move { verbs::compare(&target, file).await })
        }
        LayoutCommand::Export { server, name, daemon, output } => {
            ask(async move { verbs::export(&server.client()?, &name, daemon.as_ref(), output).await })
        }
        LayoutCommand::Replay(args) => replay::run(args),
        LayoutCommand::Delete { server, name } => {
            ask(async move { verbs::delete(&server.client()?, &name).await })
        }
    }
}

/// The target with the text of its document, if it names one.
fn opened(target: LayoutTargetArgs) -> Result<(LayoutTargetArgs, Option<String>), String> {
    let file = target.file.as_deref().map(read).transpose()?;
    Ok((target, file))
}
