//! Lock of the state directory, which admits one manager.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

/// The lock on a state directory, held as long as this value lives and released by the kernel with the process.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

/// Reason why the lock of a state directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another manager has it.
    #[error("another mps-manager is serving from {0}: stop it first, or give this one another --state-dir")]
    Taken(PathBuf),
    /// The directory cannot be made or written.
    #[error(
        "the state directory {path} cannot be used: {source}; create it for this user, or give another --state-dir"
    )]
    Unusable {
        /// The directory.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

/// Longest wait for the lock: a child that the previous manager was just forking when it was killed holds it until its exec.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Creates the directory if it is missing and takes its lock, unless another manager still holds it.
pub async fn take(directory: &Path) -> Result<StateLock, LockError> {
    let unusable = |source| LockError::Unusable { path: directory.to_owned(), source };
    if let Some(parent) = directory.parent() {
        // Not ours alone: the runtime directory may be beside us, and tenants must get through.
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent).map_err(unusable)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unusable)?;
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(directory.join("lock"))
        .map_err(unusable)?;
    let until = Instant::now() + TIMEOUT;
    loop {
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(StateLock { _file: file }),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < until => tokio::time::sleep(PAUSE).await,
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(LockError::Taken(directory.to_owned())),
            Err(errno) => return Err(unusable(errno.into())),
        }
    }
}
