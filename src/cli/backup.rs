//! `backup` and `restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::output::{CommandResult, OutputArgs, line};
use super::server::block_on;
use crate::app;
use crate::config::{Config, ConfigError};
use crate::domain::memory::Bytes;

/// The state directory, found like `serve` finds it.
#[derive(Debug, Args)]
pub(super) struct StateArgs {
    /// The configuration file of the manager
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the database is
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

impl StateArgs {
    fn read(self) -> Result<Config, ConfigError> {
        let mut config = self.config.map_or_else(|| Ok(Config::default()), |path| Config::read(&path))?;
        config.state_dir = self.state_dir.unwrap_or(config.state_dir);
        config.check()
    }
}

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// The backup
    file: PathBuf,
    #[command(flatten)]
    state: StateArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
pub(super) struct Restore {
    #[command(flatten)]
    backup: BackupArgs,
    /// Accept a backup with a broken audit log
    #[arg(long)]
    broken_audit: bool,
}

/// Runs a command to completion and prints its result.
fn finish<T>(
    work: impl Future<Output = Result<T, app::StartupError>>,
    print: impl FnOnce(&T),
) -> CommandResult {
    print(&block_on(work)??);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn backup(BackupArgs { file, state, output }: BackupArgs) -> CommandResult {
    let config = state.read()?;
    finish(app::backup::backup(&config, &file), |made| {
        if !output.format.print_value(made) {
            let backup = &made.backup;
            line!(
                "{}: {}, schema version {}, checked and on the disk",
                backup.file.display(),
                Bytes(backup.bytes),
                backup.schema_version
            );
            line!("Not in it: admin.token and the configuration file.");
            if let Some(why) = &made.unrecorded {
                line!("The backup is not in the audit log and the events: {why}");
            }
        }
    })
}

pub(super) fn restore(Restore { backup, broken_audit }: Restore) -> CommandResult {
    let BackupArgs { file, state, output } = backup;
    let config = state.read()?;
    finish(app::backup::restore(&config, &file, broken_audit), |restored| {
        if !output.format.print_value(restored) {
            line!("{} was restored from {}", restored.database.display(), restored.backup.file.display());
            if let Some(replaced) = &restored.replaced {
                line!("{} is the previous database", replaced.display());
            }
            for note in &restored.notes {
                line!("- {note}");
            }
            line!(
                "Start the manager: it adopts what is running, and applies the configuration of the backup."
            );
        }
    })
}
