//! `mps-manager replay`: replays and their results.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::newest;
use super::output::{DetailsTable, ListColumn, ListLayout, TableCell, age, word};
use super::server::{CallArgs, ask};
use super::short_id::{ShortId, resolved};
use crate::domain::layout::replay::{Replay, Verdict};

const REPLAYS: &str = "/api/v1/replays";

/// Commands on replays.
#[derive(Debug, Subcommand)]
pub(super) enum ReplayCommand {
    /// List replays of layouts, the newest first
    #[command(after_help = "Examples:
  mps-manager replay list
  mps-manager replay list -n 5 -o json")]
    List {
        /// The most to list
        #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a replay and its steps
    #[command(after_help = "Examples:
  mps-manager replay get 019a5b21")]
    Get {
        /// The replay's ID, or its first characters
        #[arg(add = ArgValueCandidates::new(completion::replays))]
        id: ShortId,
        #[command(flatten)]
        call: CallArgs,
    },
}

const LAYOUT: ListLayout<Replay> = ListLayout {
    noun: "replays",
    name: |replay| replay.id.to_string(),
    columns: &[
        ListColumn::new("REPLAY", |replay| replay.id.to_string().into()),
        ListColumn::new("LAYOUT", |replay| format!("{} v{}", replay.layout, replay.version).into()),
        ListColumn::ranked(2, ListColumn::new("DAEMON", |replay| replay.daemon.as_str().into())),
        ListColumn::ranked(5, ListColumn::new("CAUSE", |replay| word(replay.cause).into())),
        ListColumn::new("RESULT", |replay| TableCell::state(replay.verdict.as_str())),
        ListColumn::ranked(1, ListColumn::new("IDS", |replay| ids(replay).into())),
        ListColumn::ranked(4, ListColumn::new("AGE", |replay| age(replay.created_at).into())),
        ListColumn::ranked(
            3,
            ListColumn::cut("ERROR", |replay| TableCell::optional(replay.error.as_deref())),
        ),
    ],
};

/// Returns the number of IDs that are as recorded, out of all, as `3/4`; `-` for a first replay, which has none to compare with.
pub(super) fn ids(replay: &Replay) -> String {
    let (same, expected) = replay.identical_steps();
    match replay.verdict {
        Verdict::First => "-".into(),
        _ => format!("{same}/{expected}"),
    }
}

pub(super) fn run(command: ReplayCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            ReplayCommand::List { limit, call } => {
                LAYOUT.print(&newest(&call.client()?, REPLAYS, limit.max(1)).await?, call.format());
            }
            ReplayCommand::Get { id, call } => {
                let client = call.client()?;
                let id = resolved(&client, REPLAYS, "replay", &id, |replay: &Replay| replay.id).await?;
                let replay: Replay = client.get(&format!("{REPLAYS}/{id}")).await?;
                let mut details = DetailsTable::default()
                    .row("Replay", replay.id.to_string())
                    .row("Layout", format!("{} version {}", replay.layout, replay.version))
                    .row("Daemon", replay.daemon.as_str())
                    .row("Cause", word(replay.cause))
                    .row("Result", TableCell::state(replay.verdict.as_str()))
                    .row("IDs as recorded", ids(&replay))
                    .row("Age", age(replay.created_at));
                for step in &replay.steps {
                    let id = step.id.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
                    details = details.row("Step", format!("{}: {id}", step.command));
                }
                if let Some(error) = &replay.error {
                    details = details.row("Error", error.as_str());
                }
                details.print(call.format(), &replay.id.to_string(), &replay);
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
