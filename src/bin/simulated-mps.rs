//! The simulated host's two MPS programs alone, called by their names: a fifth of what `mps-manager` takes to start them.
//!
//! Where this binary lies beside `mps-manager`, the simulated host runs it; without it `mps-manager` plays the programs.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    mps_manager::sim::dispatch(&arguments).unwrap_or_else(|| {
        eprintln!("simulated-mps: run it under the name nvidia-cuda-mps-control or nvidia-cuda-mps-server");
        ExitCode::from(2)
    })
}
