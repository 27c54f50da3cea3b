//! The unix socket's file: created, watched, and created again if it is removed.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};

use super::ListenError;
use crate::domain::condition::ConditionReason;
use crate::domain::health::{FaultReport, HostFault, HostHealth};

/// Interval at which the file is checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// A bound socket's file, removed on drop: a leftover would look like a hung manager.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Its device and inode.
    made: Option<(u64, u64)>,
}

impl SocketFile {
    /// Returns true if the file at the path is this one.
    fn is_there(&self) -> bool {
        self.made.is_some() && identity(&self.path) == self.made
    }

    /// Waits until the file is gone or replaced.
    pub(super) async fn lost(&self) {
        while self.is_there() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another manager's file stays.
        if self.is_there() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

/// Binds the socket. A socket that no one answers at was left by a dead manager and is replaced.
pub(super) async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    let unusable = |source| ListenError::Unix { path: path.to_owned(), source };
    if UnixStream::connect(path).await.is_ok() {
        // It uses another state directory, or the lock would have failed.
        return Err(ListenError::Served(path.to_owned()));
    }
    if path.symlink_metadata().is_ok() {
        std::fs::remove_file(path).map_err(unusable)?;
    }
    let listener = UnixListener::bind(path).map_err(unusable)?;
    let file = SocketFile { path: path.to_owned(), made: identity(path) };
    // Anyone may connect; rights depend on the peer's user.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(unusable)?;
    Ok((listener, file))
}

/// Recreates a removed socket; retries until it succeeds, and reports why it fails.
pub(super) async fn bind_again(gone: &SocketFile, health: &HostHealth) -> (UnixListener, SocketFile) {
    let path = &gone.path;
    let report = |reason, why: String| {
        let message = format!(
            "the socket {} is gone, so `mps-manager run` and the other commands cannot reach this manager, and it cannot be \
             created again: {why}",
            path.display()
        );
        if health.set(HostFault::SocketLost, Some(FaultReport { reason, message: message.clone() })) {
            tracing::error!("{message}");
        }
    };
    loop {
        match bind(path).await {
            Ok(bound) => {
                tracing::warn!(socket = %path.display(), "the socket was removed while the manager was running, and was created again");
                health.set(HostFault::SocketLost, None);
                return bound;
            }
            Err(error @ ListenError::Served(_)) => report(ConditionReason::SocketReplaced, error.to_string()),
            Err(error) => report(ConditionReason::SocketRemoved, error.to_string()),
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn removed_socket_is_created_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("api.sock");
        let health = HostHealth::default();
        let (_listener, file) = bind(&path).await.expect("bound");
        assert!(file.is_there());
        std::fs::remove_file(&path).expect("removed");
        // Something that cannot be replaced at first.
        std::fs::create_dir(&path).expect("a directory in the way");
        tokio::time::timeout(Duration::from_secs(30), file.lost()).await.expect("noticed");
        let seen = health.clone();
        let way = path.clone();
        let clear = async move {
            while seen.blocking() != ["SocketLost"] {
                tokio::task::yield_now().await;
            }
            std::fs::remove_dir(&way).expect("cleared");
        };
        let again = async { tokio::join!(bind_again(&file, &health), clear).0 };
        let (_listener, again) = tokio::time::timeout(Duration::from_secs(30), again).await.expect("bound");
        assert!(again.is_there() && health.blocking().is_empty());
        drop(file);
        assert!(path.exists(), "the new file is another one");
        UnixStream::connect(&path).await.expect("the socket is bound");
        drop(again);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn the_socket_of_another_manager_is_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("api.sock");
        let (listener, file) = bind(&path).await.expect("bound");
        std::fs::remove_file(&path).expect("removed");
        let (_other, theirs) = bind(&path).await.expect("another manager");
        assert!(!file.is_there() && theirs.is_there());
        drop((listener, file));
        assert!(path.exists());
        assert!(matches!(bind(&path).await, Err(ListenError::Served(_))));
    }
}
