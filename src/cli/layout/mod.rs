//! `mps-manager layout`: partition layouts as files, planned, applied, compared, and replayed on other hosts.

mod replay;
mod verbs;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use super::{Server, ask, line};
use crate::client::{Client, ClientError};
use crate::domain::layout::{Role, text};
use crate::domain::{DaemonName, LayoutName};
use crate::http::api::layout_schema::layout_document_schema;

#[derive(Debug, Subcommand)]
pub(super) enum LayoutCommand {
    /// List the layouts
    List {
        #[command(flatten)]
        server: Server,
    },
    /// Print a layout as a document
    Show {
        #[command(flatten)]
        server: Server,
        /// The layout
        name: LayoutName,
        /// The version; by default the newest
        #[arg(long, value_name = "N")]
        layout_version: Option<u32>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Spelling::Yaml)]
        output: Spelling,
    },
    /// Import the layouts of a document as new versions
    Import {
        #[command(flatten)]
        server: Server,
        /// The file, or - for standard input
        #[arg(short, long)]
        file: PathBuf,
    },
    /// Show what applying a layout to a daemon would do; changes nothing; exit 1 if `apply` would refuse it
    Plan {
        #[command(flatten)]
        target: Target,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = PlanOutput::Text)]
        output: PlanOutput,
    },
    /// Apply a layout to a daemon; exit 1 if it was refused or undone
    Apply {
        #[command(flatten)]
        target: Target,
        /// Recreate partitions that stay in the layout, if their order requires it
        #[arg(long)]
        recreate: bool,
        /// What to do about partitions that others create or remove; by default, the daemon's setting, or report
        #[arg(long, value_enum)]
        drift_policy: Option<DriftPolicy>,
    },
    /// Compare a daemon with a layout; exit 1 if it differs
    Assert {
        #[command(flatten)]
        target: Target,
    },
    /// Export a layout with the results of its steps on a daemon, as a document that other hosts can replay
    Export {
        #[command(flatten)]
        server: Server,
        /// The layout
        name: LayoutName,
        /// The daemon that has it; by default the only one that does
        #[arg(long)]
        daemon: Option<DaemonName>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Spelling::Yaml)]
        output: Spelling,
    },
    /// Replay a recorded layout on empty GPUs of other hosts, comparing each ID; exit 1 if one differed or was refused
    Replay(replay::ReplayArgs),
    /// Delete a layout that no daemon has
    Delete {
        #[command(flatten)]
        server: Server,
        /// The layout
        name: LayoutName,
    },
    /// Print the JSON Schema of layout documents
    Schema,
}

/// A layout and the daemon it is for.
#[derive(Debug, Args)]
pub(super) struct Target {
    #[command(flatten)]
    server: Server,
    /// The layout
    name: LayoutName,
    /// The daemon; by default the only one of the host
    #[arg(long)]
    daemon: Option<DaemonName>,
    /// The version; by default the newest
    #[arg(long, value_name = "N", conflicts_with = "file")]
    layout_version: Option<u32>,
    /// The layout of that name in this document, or - for standard input; `apply` stores it as a new version
    #[arg(short, long)]
    file: Option<PathBuf>,
    #[command(flatten)]
    gpus: Gpus,
}

/// The GPU of each role.
#[derive(Debug, Clone, Args)]
pub(super) struct Gpus {
    /// The GPU of a role of the layout, as 0=GPU-74d43ed3 or 0=1; may be repeated
    #[arg(long = "gpu", value_name = "ROLE=GPU", value_parser = role)]
    gpus: Vec<(Role, String)>,
}

impl Gpus {
    fn map(&self) -> BTreeMap<String, &str> {
        self.gpus.iter().map(|(role, gpu)| (role.to_string(), gpu.as_str())).collect()
    }
}

fn role(text: &str) -> Result<(Role, String), String> {
    let (role, gpu) = text.split_once('=').ok_or("say ROLE=GPU, as 0=1")?;
    let role = role.parse().map_err(|_| format!("{role:?} is not a role: roles are numbers from 0"))?;
    Ok((role, gpu.to_owned()))
}

/// How a document is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Spelling {
    Yaml,
    Json,
}

impl Spelling {
    /// The format for reading and writing documents.
    fn format(self) -> text::Format {
        match self {
            Self::Yaml => text::Format::Yaml,
            Self::Json => text::Format::Json,
        }
    }

    /// Its media type in the API.
    fn media_type(self) -> &'static str {
        match self {
            Self::Yaml => "application/yaml",
            Self::Json => "application/json",
        }
    }
}

/// What to do about partitions that others create or remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DriftPolicy {
    Report,
    Repair,
}

impl DriftPolicy {
    /// The API's word.
    fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Repair => "repair",
        }
    }
}

/// How a plan is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum PlanOutput {
    Text,
    Json,
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
fn opened(target: Target) -> Result<(Target, Option<String>), String> {
    let file = target.file.as_deref().map(read).transpose()?;
    Ok((target, file))
}

/// Reads a file, or standard input.
fn read(path: &std::path::Path) -> Result<String, String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| format!("standard input: {error}"))?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The named daemon, or the only one of the host.
async fn daemon(client: &Client, named: Option<&DaemonName>) -> Result<DaemonName, ClientError> {
    if let Some(named) = named {
        return Ok(named.clone());
    }
    let daemons: Vec<crate::service::daemons::DaemonView> =
        super::show::all(client, "/api/v1/daemons").await?;
    match daemons.as_slice() {
        [one] => Ok(one.name.clone()),
        [] => Err(ClientError::Address("this host has no daemon: create one first".into())),
        several => {
            let all: Vec<&str> = several.iter().map(|daemon| daemon.name.as_str()).collect();
            Err(ClientError::Address(format!("give one with --daemon: {}", all.join(", "))))
        }
    }
}
