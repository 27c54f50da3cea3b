//! The `mps-manager` command.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mps_manager::sim;

#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// The simulated host
    Sim {
        #[command(subcommand)]
        command: SimVerb,
    },
}

#[derive(Subcommand)]
enum SimVerb {
    /// A CUDA program on the simulated host
    Client(sim::client::ClientArgs),
    /// Makes a simulated host
    World { dir: std::path::PathBuf, profile: String },
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(code) = sim::dispatch(&args) {
        return code;
    }
    match Cli::parse().command {
        Verb::Sim { command: SimVerb::Client(args) } => sim::client::run(&args),
        Verb::Sim { command: SimVerb::World { dir, profile } } => match sim::world::create(&dir, &profile) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        },
    }
}
