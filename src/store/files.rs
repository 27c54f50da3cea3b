//! Detection of database files that were removed or replaced while open: SQLite would continue to write into the old ones, and the data
//! would be lost.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::beside;
use crate::domain::condition::ConditionReason;
use crate::domain::health::FaultReport;

/// Suffixes of the database, its log, and the log's index, which the connections share.
const SUFFIXES: [&str; 3] = ["", "-wal", "-shm"];

/// The opened files, by path, device and inode.
#[derive(Debug, Clone)]
pub(super) struct OpenFiles {
    files: Vec<(PathBuf, (u64, u64))>,
}

impl OpenFiles {
    /// The files of a database that is open.
    pub(super) fn of(database: &Path) -> Self {
        let files = SUFFIXES.iter().filter_map(|suffix| {
            let path = beside(database, suffix);
            Some((path.clone(), identity(&path)?))
        });
        Self { files: files.collect() }
    }

    /// The state directory.
    pub(super) fn directory(&self) -> &Path {
        self.files.first().and_then(|(path, _)| path.parent()).unwrap_or(Path::new("."))
    }

    /// Reports the first file that was removed or replaced; the inode of an open file is given to no other file.
    pub(super) fn lost(&self) -> Option<FaultReport> {
        let (path, current) = self.files.iter().find_map(|(path, opened)| {
            let current = identity(path);
            (current != Some(*opened)).then_some((path, current))
        })?;
        let (reason, what) = match current {
            None => (ConditionReason::FileRemoved, "was removed"),
            Some(_) => (ConditionReason::FileReplaced, "was replaced by another file"),
        };
        Some(FaultReport {
            reason,
            message: format!(
                "{} {what} while the manager served, so nothing is written: put the same file back, or stop the manager, \
                 restore a backup (`mps-manager restore FILE --state-dir {}`) and start it",
                path.display(),
                self.directory().display()
            ),
        })
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::super::{Store, StoreError};
    use crate::domain::health::{HostFault, HostHealth};

    async fn write(store: &Store) -> super::super::Result<()> {
        store
            .commit(|db| {
                Box::pin(async move {
                    sqlx::query("UPDATE host SET written_at = written_at").execute(db).await?;
                    Ok(())
                })
            })
            .await
    }

    #[tokio::test]
    async fn writes_stop_when_a_file_is_gone() {
        for file in ["test.db", "test.db-wal", "test.db-shm"] {
            let directory = tempfile::tempdir().expect("a directory");
            let health = HostHealth::default();
            let database = directory.path().join("test.db");
            let store = Store::open_with(&database, 0, health.clone()).await.expect("a store");
            write(&store).await.expect("written");
            let (path, aside) = (directory.path().join(file), directory.path().join("aside"));
            std::fs::rename(&path, &aside).expect("moved");
            let error = write(&store).await.expect_err(file).to_string();
            assert!(error.contains(file) && error.contains("was removed"), "{error}");
            assert_eq!(health.blocking(), ["DatabaseLost"]);
            std::fs::write(&path, "").expect("another file");
            assert!(write(&store).await.expect_err(file).to_string().contains("was replaced"));
            std::fs::rename(&aside, &path).expect("moved back");
            write(&store).await.expect("the same file is back");
            assert!(!health.has(HostFault::DatabaseLost));
            store.close().await;
        }
    }

    #[tokio::test]
    async fn a_lost_database_is_seen_without_a_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let health = HostHealth::default();
        let database = directory.path().join("test.db");
        let store = Store::open_with(&database, 0, health.clone()).await.expect("a store");
        store.check_files();
        assert!(health.blocking().is_empty());
        drop(store.read().await.expect("a reader"));
        std::fs::remove_file(&database).expect("removed");
        store.check_files();
        assert_eq!(health.blocking(), ["DatabaseLost"]);
        // What is open still reads what was there; nothing is opened in its place.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        // One that was dropped comes back to the pool a moment later.
        while store.read().await.is_err() {
            assert!(std::time::Instant::now() < deadline, "never read again");
            tokio::task::yield_now().await;
        }
        assert!(!database.exists());
    }

    #[tokio::test]
    async fn damaged_page_is_reported_by_the_write() {
        let directory = tempfile::tempdir().expect("a directory");
        let database = directory.path().join("test.db");
        let store = Store::open(&database, 0).await.expect("a store");
        let mut db = store.read().await.expect("a reader");
        let table = "SELECT rootpage FROM sqlite_schema WHERE name = 'host'";
        let page: i64 = sqlx::query_scalar(table).fetch_one(&mut *db).await.expect("a page");
        drop(db);
        store.close().await;
        let mut bytes = std::fs::read(&database).expect("read");
        let from = usize::try_from(page - 1).expect("positive") * 4096;
        bytes[from..from + 4096].fill(0x5a);
        std::fs::write(&database, &bytes).expect("written");
        let health = HostHealth::default();
        let store = Store::open_with(&database, 0, health.clone()).await.expect("it opens");
        assert!(health.blocking().is_empty());
        for _ in 0..2 {
            let met: super::super::Result<()> = store
                .commit(|db| {
                    Box::pin(async move {
                        let written = sqlx::query("UPDATE host SET written_at = 1").execute(db).await;
                        // Whatever the job makes of it.
                        written.map_err(StoreError::from).map_err(|_| StoreError::Busy)?;
                        Ok(())
                    })
                })
                .await;
            assert!(met.is_err());
            assert_eq!(health.blocking(), ["DatabaseDamaged"]);
        }
    }
}
