//! `audit`: verifies the hash chain of the audit log.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;

use super::nouns::AUDIT;
use super::output::{CommandResult, DIFFERS, line};
use super::server::{CallArgs, ask, block_on};
use super::values::moment;
use crate::app;
use crate::config::Config;
use crate::domain::audit::Head;
use crate::domain::count::counted;

/// Commands on the audit log.
#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// List the audit log, the newest rows first
    #[command(after_help = "Examples:
  mps-manager audit list --target tenants/web
  mps-manager audit list --since yesterday --until 2h
  mps-manager audit list --outcome refused -n 0")]
    List {
        /// Only rows of this actor, for example `uid 0`
        #[arg(long)]
        actor: Option<String>,
        /// Only rows about this target, for example tenants/web
        #[arg(long)]
        target: Option<String>,
        /// Only rows with this outcome: done, refused or failed
        #[arg(long, hide_possible_values = true, value_parser = outcomes())]
        outcome: Option<String>,
        /// Only rows since this time, for example 1h, yesterday or 2026-11-25T14:00:00Z
        #[arg(long, value_name = "TIME", value_parser = moment)]
        since: Option<String>,
        /// Only rows before this time
        #[arg(long, value_name = "TIME", value_parser = moment)]
        until: Option<String>,
        /// The most to list; 0 lists all
        #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Print the number and the hash of the last row, for `verify --anchor`
    #[command(after_help = "Examples:
  mps-manager audit head > /mnt/elsewhere/anchor")]
    Head(CallArgs),
    /// Verify the hash chain; exit 1 with the first invalid row
    ///
    /// Reads the database directly and changes nothing, whether or not a manager is running.
    #[command(after_help = "Examples:
  sudo mps-manager audit verify
  sudo mps-manager audit verify --anchor $(cat /mnt/elsewhere/anchor)")]
    Verify {
        /// The database; by default the one in the state directory
        #[arg(long, value_name = "FILE")]
        database: Option<PathBuf>,
        /// The state directory
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
        /// A row number and hash kept elsewhere, for example 12:4f…: the chain must contain it
        #[arg(long, value_name = "ID:HASH", value_parser = anchor)]
        anchor: Option<Head>,
    },
}

/// The outcomes, for arguments and completions.
fn outcomes() -> PossibleValuesParser {
    PossibleValuesParser::new(["done", "refused", "failed"])
}

fn anchor(text: &str) -> Result<Head, String> {
    let read = text.split_once(':').and_then(|(id, hash)| {
        let whole = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Head { id: id.parse().ok()?, hash: hash.to_ascii_lowercase() }).filter(|_| whole)
    });
    read.ok_or_else(|| "give the number of a row, a colon and its hash of 64 hexadecimal digits".to_owned())
}

pub(super) fn run(command: AuditCommand) -> CommandResult {
    match command {
        AuditCommand::Verify { database, state_dir, anchor } => verify(database, state_dir, anchor),
        AuditCommand::List { actor, target, outcome, since, until, limit, call } => ask(async move {
            let filters = [
                ("actor", actor),
                ("target", target),
                ("outcome", outcome),
                ("since", since),
                ("until", until),
            ];
            AUDIT.list(&call, &filters, limit).await
        }),
        AuditCommand::Head(call) => ask(async move {
            let head: Head = call.client()?.get(&AUDIT.path_of("head")).await?;
            let anchor = format!("{}:{}", head.id, head.hash);
            call.format().announce(&anchor, &anchor, &head);
            Ok(ExitCode::SUCCESS)
        }),
    }
}

fn verify(database: Option<PathBuf>, state_dir: Option<PathBuf>, anchor: Option<Head>) -> CommandResult {
    let state_dir = state_dir.unwrap_or_else(|| Config::default().state_dir);
    let database = database.unwrap_or_else(|| state_dir.join("mps-manager.db"));
    if !database.exists() {
        return Err(format!(
            "there is no database {}: give --state-dir or --database, and become a user who may read it",
            database.display()
        )
        .into());
    }
    match block_on(app::verify_audit(&database, anchor))?? {
        Ok(Head { id, hash }) => {
            line!("the audit log is intact: {}, and the last one has the hash\n{hash}", counted(id, "row"));
            Ok(ExitCode::SUCCESS)
        }
        Err(broken) => {
            line!("the audit log is broken: {broken}");
            Ok(ExitCode::from(DIFFERS))
        }
    }
}
