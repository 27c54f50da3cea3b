//! `sim down`: ends a trial.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::output::{CommandResult, line};
use super::running;
use super::server::{block_on, runtime_dir};
use crate::app::trial::{self, DirectoryRemoval, TrialError};
use crate::domain::count::counted;

/// Ends the manager of a simulated host if it runs, and every simulated MPS process and client; then removes the runtime directory.
#[derive(Debug, Args)]
pub(super) struct SimDown {
    /// The runtime directory of the simulated host [env: `MPS_MANAGER_RUNTIME_DIR`]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Remove its state directory too
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
}

pub(super) fn run(args: SimDown) -> CommandResult {
    block_on(down(args))??;
    Ok(ExitCode::SUCCESS)
}

async fn down(args: SimDown) -> Result<(), TrialError> {
    let directory = runtime_dir(args.runtime_dir);
    trial::check_simulated(&directory)?;
    if let Some(state) = &args.state_dir {
        trial::check_simulated_state(state)?;
    }
    let mut known_state = None;
    if let Some(manager) = running::manager(&directory) {
        if manager.config.as_ref().is_ok_and(|config| config.sim.is_none()) {
            return Err(TrialError::NotSimulated(directory));
        }
        trial::end_manager(manager.process).await?;
        line!("Stopped the manager, process {}.", manager.process.pid);
        known_state = manager.state_dir;
    }
    let ended = trial::end_processes(&directory).await?;
    line!("Ended {} of the simulated host.", counted(ended, "process"));
    said(&directory, trial::remove_runtime(&directory)?);
    match (args.state_dir, known_state) {
        (Some(state), _) => said(&state, trial::remove_state(&state).await?),
        (None, Some(state)) if state.exists() => {
            line!("Kept the state directory {0}: to remove it, run `rm -r {0}`.", state.display());
        }
        (None, _) => {}
    }
    Ok(())
}

fn said(directory: &std::path::Path, removal: DirectoryRemoval) {
    match removal {
        DirectoryRemoval::Removed => line!("Removed {}.", directory.display()),
        DirectoryRemoval::Kept(names) => {
            line!("Kept {}: it holds {}.", directory.display(), names.join(", "));
        }
        DirectoryRemoval::Missing => {}
    }
}
