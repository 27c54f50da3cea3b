//! What the verbs of `layout` take.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::cli::ServerArgs;
use crate::domain::layout::{Role, text};
use crate::domain::{DaemonName, LayoutName};

/// A layout and the daemon it is for.
#[derive(Debug, Args)]
pub(in crate::cli) struct LayoutTargetArgs {
    #[command(flatten)]
    pub(super) server: ServerArgs,
    /// The layout
    pub(super) name: LayoutName,
    /// The daemon; by default the only one of the host
    #[arg(long)]
    pub(super) daemon: Option<DaemonName>,
    /// The version; by default the newest
    #[arg(long, value_name = "N", conflicts_with = "file")]
    pub(super) layout_version: Option<u32>,
    /// The layout of that name in this document, or - for standard input; `apply` stores it as a new version
    #[arg(short, long)]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) gpus: Gpus,
}

/// The GPU of each role.
#[derive(Debug, Clone, Args)]
pub(super) struct Gpus {
    /// The GPU of a role of the layout, as 0=GPU-74d43ed3 or 0=1; may be repeated
    #[arg(long = "gpu", value_name = "ROLE=GPU", value_parser = role)]
    pub(super) gpus: Vec<(Role, String)>,
}

impl Gpus {
    pub(super) fn map(&self) -> BTreeMap<String, &str> {
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
pub(in crate::cli) enum DocumentFormat {
    Yaml,
    Json,
}

impl DocumentFormat {
    /// The format for reading and writing documents.
    pub(in crate::cli) fn format(self) -> text::LayoutFormat {
        match self {
            Self::Yaml => text::LayoutFormat::Yaml,
            Self::Json => text::LayoutFormat::Json,
        }
    }

    /// Its media type in the API.
    pub(in crate::cli) fn media_type(self) -> &'static str {
        match self {
            Self::Yaml => "application/yaml",
            Self::Json => "application/json",
        }
    }
}

/// What to do about partitions that others create or remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum DriftPolicyArgument {
    Report,
    Repair,
}

impl DriftPolicyArgument {
    /// The API's word.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Report => "report",
            Self::Repair => "repair",
        }
    }
}

/// How a plan is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum PlanOutput {
    Text,
    Json,
}

/// Reads a file, or standard input.
pub(in crate::cli) fn read(path: &std::path::Path) -> Result<String, String> {
    if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| format!("standard input: {error}"))?;
        return Ok(text);
    }
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}
