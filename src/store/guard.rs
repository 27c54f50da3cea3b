//! Faults of the database files that the writer finds, for the host's health.

use std::path::Path;
use std::sync::Arc;

use super::failure::StorageFailure;
use super::files::OpenFiles;
use super::{Result, StoreError};
use crate::domain::condition::ConditionReason;
use crate::domain::health::{FaultReport, HostFault, HostHealth};

/// The open files, and the host's health, to which their faults are reported.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    files: Arc<OpenFiles>,
    health: HostHealth,
}

impl Guard {
    /// Creates the guard of an open database.
    pub(super) fn new(database: &Path, health: HostHealth) -> Self {
        Self { files: Arc::new(OpenFiles::of(database)), health }
    }

    /// Fails if a file was removed or replaced, and reports that, or that the file is back.
    pub(super) fn check(&self) -> Result<()> {
        let lost = self.files.lost();
        let news = self.health.set(HostFault::DatabaseLost, lost.clone());
        match lost {
            None => {
                if news {
                    tracing::info!("the database's files are at their place again: writes are taken");
                }
                Ok(())
            }
            Some(FaultReport { message, .. }) => {
                if news {
                    tracing::error!("{message}");
                }
                Err(StoreError::Lost(message))
            }
        }
    }

    /// Returns true if the last check found that a file was removed or replaced.
    pub(super) fn is_lost(&self) -> bool {
        self.health.has(HostFault::DatabaseLost)
    }

    /// Returns the error of a job that needs the file.
    pub(super) fn lost(&self) -> StoreError {
        let report = self.health.get(HostFault::DatabaseLost);
        report.map_or(StoreError::NotWritten, |report| StoreError::Lost(report.message))
    }

    /// Reports the storage failure of a write, or that a write was kept.
    pub(super) fn report(&self, kept: bool, failure: Option<StorageFailure>) {
        let (fault, reason, message) = match failure {
            None if kept => {
                if self.health.set(HostFault::WritesFail, None) {
                    tracing::info!("the database takes writes again");
                }
                return;
            }
            None => return,
            Some(StorageFailure::Full) => (
                HostFault::WritesFail,
                ConditionReason::DiskFull,
                "the last write failed, since the disk of the state directory is full: free space there"
                    .to_owned(),
            ),
            Some(StorageFailure::Io(detail)) => (
                HostFault::WritesFail,
                ConditionReason::WriteFailed,
                format!(
                    "the last write failed with {detail:?}: see the disk of the state directory, and the kernel's log"
                ),
            ),
            // A page does not heal, whatever is written to others.
            Some(StorageFailure::Damaged(detail)) => (
                HostFault::DatabaseDamaged,
                ConditionReason::PageCorrupt,
                format!(
                    "a write failed, since the database is damaged ({detail:?}): stop the manager, and restore a backup \
                     (`mps-manager restore FILE --state-dir {}`); `mps-manager doctor` says what is damaged",
                    self.files.directory().display()
                ),
            ),
        };
        if self.health.set(fault, Some(FaultReport { reason, message: message.clone() })) {
            tracing::error!("{message}");
        }
    }
}
