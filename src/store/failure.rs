//! Failures of the disk and of the file, distinguished from refusals of the schema where SQLite's error is converted.
//!
//! A job may pass its error on, or convert it. So failures while the writer runs a job are recorded beside the job's result.

use std::cell::Cell;

/// A failure of the storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StorageFailure {
    /// The disk is full.
    Full,
    /// A page is damaged, or the file is no database.
    Damaged(String),
    /// The system refused to read or write.
    Io(String),
}

tokio::task_local! {
    static FAILURE: Cell<Option<StorageFailure>>;
}

impl StorageFailure {
    /// Returns the storage failure behind an error; `None` if the error has another cause.
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

/// Records a failure for the writer, if it occurs in one of the writer's jobs.
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

/// Runs a future, and returns the storage failure that occurred meanwhile.
pub(super) async fn noting<T>(work: impl Future<Output = T>) -> (T, Option<StorageFailure>) {
    FAILURE
        .scope(Cell::new(None), async {
            let value = work.await;
            (value, FAILURE.with(Cell::take))
        })
        .await
}
