//! Control daemons as processes: started, found again, stopped, cleaned up after.
//!
//! ```text
//!   check_directories ─▶ start ─▶ (runs; this program may die and come back) ─▶ find ─▶ stop ─▶ clean_stale
//! ```
//!
//! Invariants:
//!
//! - The process is believed, never the return code: an unknown option exits 0 and starts nothing (recording 01,
//!   "static"), and a daemon that runs may still not answer.
//! - A daemon is ours when its environment holds the token that was stored before it was spawned. Its log and its
//!   pid file can be forged by anyone who reaches the directory (FACTS.md, "Logs").
//! - Signals go only to a process whose start time was compared through a pidfd. Nothing is done to a process or a
//!   directory about which there is a doubt.

mod callers;
mod directories;
mod find;
pub mod foreign;
mod start;
mod stop;

pub use callers::{ForeignCaller, callers};
pub use directories::{
    DirectoryError, LONGEST_PATH, check_directories, check_reachable, keep_directories, pipe_inode,
    usable_directories,
};
pub use find::{
    DaemonSearch, PipeDirectoryOccupant, RecordedProcess, daemon_of_pid_file, find, find_adopted,
    find_recorded, is_listened_at, is_same_directory, mode, occupant, orphans, servers,
};
pub use start::{DaemonStartError, Launcher, StartSpec, Started, end_all_of, start};
pub use stop::{DaemonEnd, StopError, Stopped, clean_stale, stop};

/// The variable that marks a daemon as ours: one random value for each start.
pub const TOKEN_ENV: &str = "MPS_MANAGER_INCARNATION";
/// The options that make a daemon one for several users: those from CUDA 13.0 on, and the one of 12.5 (recorded with drivers 555 and 580).
pub const MULTI_USER_OPTIONS: [&str; 3] = ["-M", "--multiuser-server", "-multiuser-server"];
/// The variable that says where a daemon's pipes are.
pub const PIPE_ENV: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Where a daemon's sockets go when its environment does not say (FACTS.md, "Starting, stopping, dying").
pub const DEFAULT_PIPE_DIRECTORY: &str = "/tmp/nvidia-mps";
/// The variable that says where a daemon logs.
const LOG_ENV: &str = "CUDA_MPS_LOG_DIRECTORY";
/// The file in the pipe directory that holds the daemon's PID, writable by everybody (recording 01).
const PID_FILE: &str = "nvidia-cuda-mps-control.pid";
/// The socket that everybody connects to.
pub const SOCKET: &str = "control";

/// Returns true if a process is a server of any MPS daemon, by the file that it executes.
pub fn is_server(pid: u32) -> bool {
    crate::host::signal::executes(pid, crate::host::signal::SERVER)
}
