//! Environment variables that the control program and its server obey.

use std::path::PathBuf;

/// Set for the process that is to become the daemon, and for servers.
pub(super) const STAGE: &str = "MPS_SIM_STAGE";
/// The user whose clients a server takes.
pub(super) const USER: &str = "MPS_SIM_USER";
/// Set for a server whose clients are of several users.
pub(super) const SEVERAL_USERS: &str = "MPS_SIM_MULTIUSER";

/// Returns the directory of the daemon's sockets.
pub(crate) fn pipe_directory() -> PathBuf {
    directory("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
}

/// Returns the directory of the logs.
pub(crate) fn log_directory() -> PathBuf {
    directory("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")
}

fn directory(variable: &str, default: &str) -> PathBuf {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map_or_else(|| default.into(), PathBuf::from)
}

/// Returns true if a server repeats its log on stdout.
pub(crate) fn echoes() -> bool {
    std::env::var_os(STAGE).is_some_and(|stage| stage == "foreground")
}

/// Returns true in a server whose daemon was started with `-M`; it runs as the daemon's user.
pub(crate) fn multiuser() -> bool {
    std::env::var_os(SEVERAL_USERS).is_some_and(|several| several == "1")
}

/// Returns, in a server, the user whose clients it takes.
pub(crate) fn user() -> u32 {
    std::env::var(USER).ok().and_then(|uid| uid.parse().ok()).unwrap_or(0)
}
