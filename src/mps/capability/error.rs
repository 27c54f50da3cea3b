//! Why a control program cannot be used.

use std::path::PathBuf;
use std::time::Duration;

/// The oldest version that is managed: CUDA 12.0.
pub(super) const OLDEST: u32 = 12_000;
/// Longest time for `-v` and `--help` together.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

/// Why a control program could not be used.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It does not run.
    #[error("{} does not run: {source}", path.display())]
    Run {
        /// The program.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// It did not end in time.
    #[error("{} did not answer {option} within {} s", path.display(), DEADLINE.as_secs())]
    Slow {
        /// The program.
        path: PathBuf,
        /// The option that it was given.
        option: &'static str,
    },
    /// It answered something else.
    #[error("{} answered {option} with {output:?}, which no control program of NVIDIA does: is it one?", path.display())]
    NotUnderstood {
        /// The program.
        path: PathBuf,
        /// The option that it was given.
        option: &'static str,
        /// The beginning of its output.
        output: String,
    },
    /// No daemon of it could be asked what it can do.
    #[error("{} does not say what it can do, and a daemon that was started to be asked did not answer: {why}", path.display())]
    NotAsked {
        /// The program.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// It is older than anything that is managed.
    #[error(
        "{} is too old, since it {why}: the oldest that is managed is CUDA 12.0 (driver 525), so install a newer driver",
        path.display()
    )]
    TooOld {
        /// The program.
        path: PathBuf,
        /// By what that is known.
        why: String,
    },
}
