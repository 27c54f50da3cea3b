//! `audit`: verifies the hash chain of the audit log.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use super::{DIFFERS, line};
use crate::app;
use crate::config::Config;
use crate::domain::audit::Head;
use crate::domain::count::counted;

/// Commands on the audit log.
#[derive(Debug, Subcommand)]
pub(super) enum AuditCommand {
    /// Verify the hash chain; exit 1 with the first invalid row
    ///
    /// Reads the database directly and changes nothing, whether or not a manager is running.
    Verify {
        /// The database; by default the one in the state directory
        #[arg(long, value_name = "FILE")]
        database: Option<PathBuf>,
        /// The state directory
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
        /// A row number and hash kept elsewhere, as 12:4f…: the chain must contain it
        #[arg(long, value_name = "ID:HASH", value_parser = anchor)]
        anchor: Option<Head>,
    },
}

fn anchor(text: &str) -> Result<Head, String> {
    let read = text.split_once(':').and_then(|(id, hash)| {
        let whole = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        Some(Head { id: id.parse().ok()?, hash: hash.to_ascii_lowercase() }).filter(|_| whole)
    });
    read.ok_or_else(|| "give the number of a row, a colon and its hash of 64 hexadecimal digits".to_owned())
}

pub(super) fn run(command: AuditCommand) -> Result<ExitCode, String> {
    let AuditCommand::Verify { database, state_dir, anchor } = command;
    let state_dir = state_dir.unwrap_or_else(|| Config::default().state_dir);
    let database = database.unwrap_or_else(|| state_dir.join("mps-manager.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    match runtime.block_on(app::verify_audit(&database, anchor))? {
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
