//! The `mps-manager` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mps_manager::gpu::probe;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say what a CUDA process sees in this environment.
    CudaProbe(probe::ProbeArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::CudaProbe(args) => probe::run(&args),
    }
}
