//! The simulated host.
//!
//! One binary plays every part of a GPU host with MPS: run under the name `nvidia-cuda-mps-control` or
//! `nvidia-cuda-mps-server` it is that program, and `mps-manager sim client` is a CUDA program. What always
//! holds:
//! - The kernel's part is a directory, the *world* ([`world`]): GPUs, compute modes, and one file per GPU process
//!   that its process holds by `flock` for life, so that a killed process frees its memory as a driver would.
//! - MPS's part lives in its owner: defaults, pending clients and partitions in the control process, clients and
//!   faults in its child server. End of file on a connection means that the other side is dead.
//! - Nothing here imports anything else of this crate, so that it can disagree with the rest.
//!
//! `docs/simulated-host.md` lists what is recorded from real hardware, what is documented and what is made up.

pub mod client;
mod control;
mod envvar;
mod kernel;
mod log;
pub mod partition;
mod profile;
mod protocol;
mod server;
mod splitter;
mod wire;
pub mod world;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use world::{CONTROL, SERVER};

/// Runs the MPS program that `args[0]` names, if it names one.
///
/// Called before anything else in `main`: the simulated programs must start as fast as the real ones and must
/// not see this program's own arguments.
pub fn dispatch(args: &[OsString]) -> Option<ExitCode> {
    let argv0 = args.first()?;
    match Path::new(argv0).file_name()?.to_str()? {
        CONTROL => Some(control::run(argv0, &args[1..])),
        SERVER => Some(server::run()),
        _ => None,
    }
}
