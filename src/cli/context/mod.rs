//! `mps-manager context`: saved addresses of several servers.

mod file;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};

pub(super) use self::file::SavedContexts;
use self::file::{SavedContext, shown_path};
use super::output::{CommandResult, ListField, ListLayout, OutputArgs, TableCell, line};
use crate::client::Client;
use crate::domain::ContextName;

/// Commands on saved contexts.
#[derive(Debug, Subcommand)]
pub(super) enum ContextCommand {
    /// Save how to reach a server; the first one is used from now on
    #[command(after_help = "Examples:
  mps-manager context add lab --url https://gpu7:8640 --ca-file lab.pem --token-file ~/.config/lab.token
  MPS_MANAGER_TOKEN=mpsm_… mps-manager context add prod --url https://gpu1:8640 --save-token
  mps-manager context add trial --runtime-dir /tmp/mps/run")]
    Add {
        /// Its name
        name: ContextName,
        /// The server's URL
        #[arg(long, required_unless_present = "runtime_dir", conflicts_with = "runtime_dir")]
        url: Option<String>,
        /// PEM file with the certificates to trust
        #[arg(long, value_name = "FILE", requires = "url")]
        ca_file: Option<PathBuf>,
        /// File with the token, read at each call
        #[arg(long, value_name = "FILE", requires = "url", conflicts_with = "save_token")]
        token_file: Option<PathBuf>,
        /// Save the token in `MPS_MANAGER_TOKEN` with it
        #[arg(long, requires = "url")]
        save_token: bool,
        /// The runtime directory of a server of this host
        #[arg(long, value_name = "DIR")]
        runtime_dir: Option<PathBuf>,
    },
    /// Use a saved context from now on
    #[command(after_help = "Examples:
  mps-manager context use lab")]
    Use {
        /// Its name
        #[arg(add = ArgValueCandidates::new(context_names))]
        name: String,
    },
    /// List the saved contexts
    #[command(after_help = "Examples:
  mps-manager context list")]
    List {
        #[command(flatten)]
        output: OutputArgs,
    },
    /// Remove a saved context
    #[command(after_help = "Examples:
  mps-manager context remove lab")]
    Remove {
        /// Its name
        #[arg(add = ArgValueCandidates::new(context_names))]
        name: String,
    },
}

/// A saved context in a list; its token is not shown.
#[derive(Debug, serde::Serialize)]
struct ListedContext {
    name: String,
    current: bool,
    server: String,
    token: &'static str,
}

type Field = ListField<ListedContext>;

static LAYOUT: ListLayout<ListedContext> = ListLayout {
    noun: "saved contexts",
    name: |context| context.name.clone(),
    fields: &[
        Field::column("CURRENT", |context| if context.current { "*" } else { "" }.into()),
        Field::column("NAME", |context| context.name.as_str().into()),
        Field::column("SERVER", |context| context.server.as_str().into()).cut(),
        Field::column("TOKEN", |context| TableCell::state(context.token)),
    ],
};

/// The names of the saved contexts, for completions.
pub(super) fn context_names() -> Vec<CompletionCandidate> {
    let saved = SavedContexts::read().unwrap_or_default();
    saved.contexts.into_keys().map(CompletionCandidate::new).collect()
}

pub(super) fn run(command: ContextCommand) -> CommandResult {
    let mut saved = SavedContexts::read()?;
    match command {
        ContextCommand::List { output } => {
            LAYOUT.print(&listed(saved), output.format);
            return Ok(ExitCode::SUCCESS);
        }
        ContextCommand::Add { name, url, ca_file, token_file, save_token, runtime_dir } => {
            let name = name.to_string();
            let token = if save_token {
                let token = std::env::var("MPS_MANAGER_TOKEN").ok().filter(|token| !token.is_empty());
                Some(token.ok_or("--save-token saves the token in MPS_MANAGER_TOKEN, which is not set")?)
            } else {
                None
            };
            let absolute = |path: Option<PathBuf>| path.map(std::path::absolute).transpose();
            let refused = |error: std::io::Error| error.to_string();
            let context = SavedContext {
                url,
                token,
                ca_file: absolute(ca_file).map_err(refused)?,
                token_file: absolute(token_file).map_err(refused)?,
                runtime_dir: absolute(runtime_dir).map_err(refused)?,
            };
            let token = context.token()?;
            if let Some(url) = &context.url {
                // What cannot be a server is refused here, and not at the next command.
                Client::over_url(url, token, context.ca_file.as_deref())?;
            }
            let first = saved.contexts.is_empty().then(|| name.clone());
            saved.current = saved.current.or(first);
            let is_replaced = saved.contexts.insert(name.clone(), context).is_some();
            saved.write()?;
            let words = if is_replaced { "replaced" } else { "saved" };
            let used = saved.current.as_deref().unwrap_or("none");
            let how = "`mps-manager context use NAME` switches";
            line!("context {name} was {words} in {}; {used} is in use ({how})", shown_path());
        }
        ContextCommand::Use { name } => {
            saved.find(Some(&name))?;
            saved.current = Some(name.clone());
            saved.write()?;
            line!("context {name} is in use");
        }
        ContextCommand::Remove { name } => {
            saved.find(Some(&name))?;
            saved.contexts.remove(&name);
            saved.current = saved.current.filter(|current| *current != name);
            saved.write()?;
            line!("context {name} was removed");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn listed(saved: SavedContexts) -> Vec<ListedContext> {
    let current = saved.current;
    let list = saved.contexts.into_iter().map(|(name, context)| ListedContext {
        current: current.as_ref() == Some(&name),
        name,
        token: match (&context.token, &context.token_file) {
            (Some(_), _) => "saved",
            (None, Some(_)) => "file",
            (None, None) => "-",
        },
        server: context.url.unwrap_or_else(|| {
            context.runtime_dir.map_or_else(String::new, |directory| directory.display().to_string())
        }),
    });
    list.collect()
}
