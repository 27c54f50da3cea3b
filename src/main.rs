//! The `mps-manager` command, which is also the simulated host's two programs when called by their names.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(code) = mps_manager::sim::dispatch(&arguments) {
        return code;
    }
    mps_manager::cli::main()
}
