//! The simulated host's two MPS programs, called by their names, and its client, called as `mps-manager sim client` is: a fifth of what
//! `mps-manager` takes to start them.
//!
//! Where this binary lies beside `mps-manager`, the simulated host runs it; without it `mps-manager` plays the programs.

use std::process::ExitCode;

use mps_manager::sim;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    sim::dispatch(&arguments).or_else(|| sim::client::dispatch(&arguments)).unwrap_or_else(|| {
        eprintln!("simulated-mps: run it as nvidia-cuda-mps-control or -server, or with `sim client`");
        ExitCode::from(2)
    })
}
