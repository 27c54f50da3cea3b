//! Failures of the disk and of the file, distinguished from refusals of the schema where SQLite's error becomes ours.
//!
//! A job may pass its error on, or make another of it. So what failed while the writer runs a job is noted beside it.

use std::cell::Cell;

/// What of the storage failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StorageFailure {
    /// There is no room.
    Full,
    /// A page is not what it should be, or the file is no database.
    Damaged(String),
    /// The system refused to read or write.
    Io(String),
}

tokio::task_local! {
    static FAILURE: Cell<Option<StorageFailure>>;
}

impl StorageFailure {
    /// What an error says of the storage; `None` for one that says nothing of it.
    pub(super) fn of(error: &sqlx::Error) -> Option<Self> {
        // A full disk under the write-ahead log comes as an I/O error with these words.
        if error.to_string().contains("disk is full") {
            return Some(Self::Full);
        }
        let error = error.as_database_error()?;
        let code: i32 = error.code()?.parse().ok()?;
        // The lower byte of an extended code: SQLITE_READONLY, _IOERR, _CORRUPT, _FULL, _CANTOPEN, _NOTADB.
        match code & 0xff {
            13 => Some(Self::Full),
            11 | 26 => Some(Self::Damaged(error.message().to_owned())),
            8 | 10 | 14 => Some(Self::Io(error.message().to_owned())),
            _ => None,
        }
    }
}

/// Notes a failure for the writer, where it is the writer's job that failed.
pub(super) fn note(failure: &StorageFailure) {
    let _ = FAILURE.try_with(|noted| {
        // Damage is the worse news.
        let before = noted.take();
        noted.set(if matches!(before, Some(StorageFailure::Damaged(_))) {
            before
        } else {
            Some(failure.clone())
        });
    });
}

/// Runs something, and gives what failed of the storage meanwhile.
pub(super) async fn noting<T>(work: impl Future<Output = T>) -> (T, Option<StorageFailure>) {
    FAILURE
        .scope(Cell::new(None), async {
            let value = work.await;
            (value, FAILURE.with(Cell::take))
        })
        .await
}
