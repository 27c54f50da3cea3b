//! The manual pages.

use std::path::Path;
use std::process::ExitCode;

use super::output::{CommandResult, line};

/// Writes one page for each command.
pub(super) fn write(command: &clap::Command, directory: &Path) -> CommandResult {
    let refused = |error: std::io::Error| format!("{}: {error}", directory.display());
    std::fs::create_dir_all(directory).map_err(refused)?;
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), directory).map_err(refused)?;
    line!("the manual pages are in {}", directory.display());
    Ok(ExitCode::SUCCESS)
}
