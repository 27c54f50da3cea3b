//! The control program: one binary that is the daemon and also the way to talk to it.

mod attempts;
mod change;
mod commands;
mod daemon;
mod environment;
mod instance;
mod launch;
mod limits;
mod listing;
mod options;
mod partitions;
mod server_process;
mod servers;
mod session;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use super::profile::SPEAKING_SINCE;
use super::world;
pub(crate) use environment::{echoes, log_directory, multiuser, pipe_directory, user};
use options::Call;

/// Runs the control program with its arguments, the name it was called by apart.
pub(crate) fn run(argv0: &OsStr, args: &[OsString]) -> ExitCode {
    let world = match world::of_program(Path::new(argv0)) {
        Ok(world) => world,
        Err(error) => {
            eprintln!("nvidia-cuda-mps-control (simulated): {error}");
            return ExitCode::FAILURE;
        }
    };
    let version = world.host().binary_version;
    match options::parse(args, version) {
        Call::Help if version < SPEAKING_SINCE => print(&options::old_help(version)),
        Call::Help => print(&options::usage(version)),
        Call::Version => print(&options::banner(Some(version))),
        Call::Unknown => print(&format!("Unrecognized option \0\n{}", options::usage(version))),
        Call::OldUnknown => {
            print(&options::old_help(version));
            ExitCode::FAILURE
        }
        Call::Nothing => ExitCode::SUCCESS,
        Call::Session => session::run(&pipe_directory(), version),
        Call::Daemon(mode) if mode.multiuser && !rustix::process::geteuid().is_root() => {
            let help = if version < SPEAKING_SINCE {
                options::old_help(version)
            } else {
                options::usage(version) + "\n"
            };
            print(&help);
            print("Only root user may enable -multiuser-server!\n");
            ExitCode::FAILURE
        }
        Call::Daemon(mode) => launch::start(argv0, args, world, mode),
    }
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
