//! `mps-manager foreign`: control daemons that another program started.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::encoded;
use super::output::{DetailsTable, ListColumn, ListLayout, TableCell};
use super::server::{CallArgs, ask};
use crate::http::api::List;
use crate::service::daemons::foreign::ForeignDaemonView;

/// Commands on foreign daemons.
#[derive(Debug, Subcommand)]
pub(super) enum ForeignCommand {
    /// List control daemons that this manager does not own
    #[command(after_help = "Examples:
  mps-manager foreign list")]
    List {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a control daemon that this manager does not own
    #[command(after_help = "Examples:
  mps-manager foreign get 1234-567890")]
    Get {
        /// Its ID, as `list` prints it
        #[arg(add = ArgValueCandidates::new(completion::foreign_daemons))]
        id: String,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Layout of the list of foreign daemons, also in `status`.
pub(super) const LAYOUT: ListLayout<ForeignDaemonView> = ListLayout {
    noun: "foreign control daemons",
    name: |daemon| daemon.id.to_string(),
    columns: &[
        ListColumn::new("PROCESS", |daemon| daemon.id.to_string().into()),
        ListColumn::ranked(3, ListColumn::new("UID", |daemon| TableCell::optional(daemon.uid))),
        ListColumn::ranked(
            2,
            ListColumn::new("GPUS", |daemon| TableCell::optional(daemon.gpus.as_ref().map(Vec::len))),
        ),
        ListColumn::ranked(
            4,
            ListColumn::new("CLIENTS", |daemon| {
                TableCell::optional(daemon.effective.as_ref().map(|_| daemon.clients.len()))
            }),
        ),
        ListColumn::ranked(
            1,
            ListColumn::cut("PIPE DIRECTORY", |daemon| TableCell::optional(daemon.pipe_directory.as_deref())),
        ),
        ListColumn::ranked(5, ListColumn::cut("ORIGIN", |daemon| daemon.owner.words().into())),
        ListColumn::cut("ADOPTION", |daemon| adoption(daemon).into()),
        ListColumn::wide("OPTIONS", |daemon| TableCell::joined(&daemon.options)),
        ListColumn::wide("UUIDS", |daemon| TableCell::joined(daemon.gpus.iter().flatten())),
    ],
};

fn adoption(daemon: &ForeignDaemonView) -> String {
    match (&daemon.adoption.managed, &daemon.adoption.observed) {
        _ if daemon.lost => "ours: daemon adopt --all-ours".to_owned(),
        (managed, _) if managed.possible => "possible".to_owned(),
        (_, observed) if observed.possible => "observe only".to_owned(),
        (_, observed) => observed.reason.clone().unwrap_or_default(),
    }
}

pub(super) fn run(command: ForeignCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            ForeignCommand::List { call } => {
                let list: List<ForeignDaemonView> = call.client()?.get("/api/v1/foreign-daemons").await?;
                LAYOUT.print(&list.items, call.format());
            }
            ForeignCommand::Get { id, call } => {
                let path = format!("/api/v1/foreign-daemons/{}", encoded(&id));
                let daemon: ForeignDaemonView = call.client()?.get(&path).await?;
                DetailsTable::default()
                    .row("Process", daemon.id.to_string())
                    .row("User", TableCell::optional(daemon.uid.map(|uid| format!("uid {uid}"))))
                    .row("Options", TableCell::joined(&daemon.options))
                    .row("GPUs", TableCell::joined(daemon.gpus.iter().flatten()))
                    .row("Clients", daemon.clients.len().to_string())
                    .row("Pipe directory", TableCell::optional(daemon.pipe_directory.as_deref()))
                    .row("Log directory", TableCell::optional(daemon.log_directory.as_deref()))
                    .row(
                        "Origin",
                        TableCell::optional(Some(daemon.owner.words()).filter(|words| !words.is_empty())),
                    )
                    .row("What to do", daemon.remedy.as_str())
                    .row("Adoption", adoption(&daemon))
                    .row("Once adopted", TableCell::joined(&daemon.adoption.managed.notes))
                    .row("Unreadable", TableCell::optional(daemon.unreadable.as_deref()))
                    .print(call.format(), &daemon.id.to_string(), &daemon);
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
