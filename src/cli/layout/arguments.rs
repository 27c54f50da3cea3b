//! Arguments of the commands of `layout`.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use clap::Args;

use super::super::nouns::{DAEMON, LAYOUT};
use super::super::output::OutputFormat;
use super::super::server::CallArgs;
use super::super::values::whole_number;
use crate::client::ClientError;
use crate::domain::layout::format::SOURCE;
use crate::domain::layout::{Role, text};
use crate::domain::{DaemonName, LayoutName};
use crate::host::trust::read_text;

/// A layout and the daemon it is for.
#[derive(Debug, Args)]
pub(in crate::cli) struct LayoutTargetArgs {
    /// The layout
    #[arg(add = LAYOUT.complete())]
    pub(super) name: LayoutName,
    /// The daemon; by default the only one of the host
    #[arg(long, add = DAEMON.complete())]
    pub(super) daemon: Option<DaemonName>,
    /// The version; by default the newest
    #[arg(long, value_name = "N", value_parser = whole_number, conflicts_with = "file")]
    pub(super) layout_version: Option<u32>,
    /// The layout of that name in this document, or - for standard input; `apply` stores it as a new version
    #[arg(short, long)]
    pub(super) file: Option<PathBuf>,
    #[command(flatten)]
    pub(super) gpus: Gpus,
    #[command(flatten)]
    pub(super) call: CallArgs,
}

/// The GPU of each role.
#[derive(Debug, Clone, Args)]
pub(super) struct Gpus {
    /// The GPU of a role of the layout, for example 0=1 or 0=GPU-74d43ed3; may be repeated
    #[arg(long = "gpu", value_name = "ROLE=GPU", value_parser = role)]
    pub(super) gpus: Vec<(Role, String)>,
}

impl Gpus {
    pub(super) fn map(&self) -> BTreeMap<String, &str> {
        self.gpus.iter().map(|(role, gpu)| (role.to_string(), gpu.as_str())).collect()
    }
}

fn role(text: &str) -> Result<(Role, String), String> {
    let (role, gpu) = text.split_once('=').ok_or("give ROLE=GPU, for example 0=1")?;
    let role = role.parse().map_err(|_| format!("{role:?} is not a role: roles are numbers from 0"))?;
    Ok((role, gpu.to_owned()))
}

/// The format of a document: JSON if that is wanted, YAML otherwise.
pub(in crate::cli) fn document_format(format: OutputFormat) -> text::LayoutFormat {
    if format == OutputFormat::Json { text::LayoutFormat::Json } else { text::LayoutFormat::Yaml }
}

/// Its media type in the API.
pub(in crate::cli) fn media_type(format: text::LayoutFormat) -> &'static str {
    match format {
        text::LayoutFormat::Yaml => "application/yaml",
        text::LayoutFormat::Json => "application/json",
    }
}

/// Reads a file, or standard input.
pub(in crate::cli) fn read(path: &Path) -> Result<String, String> {
    let text = if is_standard_input(path) {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        read_text(path)
    };
    text.map_err(|error| {
        let source = source_name(path);
        if error.kind() == ErrorKind::InvalidData {
            return format!("{source} is not a text in UTF-8: give a document in YAML or JSON");
        }
        format!("{source}: {error}")
    })
}

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn source_name(path: &Path) -> String {
    if is_standard_input(path) { "standard input".to_owned() } else { path.display().to_string() }
}

/// Puts the name of the file into the refusal of a document, since the parser of a text does not know its file.
pub(in crate::cli) fn placed(words: &str, path: &Path) -> String {
    words.replace(&format!("--> {SOURCE}:"), &format!("--> {}:", source_name(path)))
}

/// Puts the name of the file into the server's refusal of a document.
pub(super) fn placed_refusal(error: ClientError, path: &Path) -> ClientError {
    let ClientError::Refused(mut problem) = error else { return error };
    problem.detail = placed(&problem.detail, path);
    for error in &mut problem.errors {
        error.detail = placed(&error.detail, path);
    }
    ClientError::Refused(problem)
}

/// The format of a document.
#[derive(Debug, Clone, Copy, Args)]
pub(in crate::cli) struct DocumentOutputArgs {
    /// Output format: yaml or json, or table, wide or name
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value = "yaml",
        hide_possible_values = true,
        hide_default_value = true
    )]
    pub(in crate::cli) format: OutputFormat,
}
