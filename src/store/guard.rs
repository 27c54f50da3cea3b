//! What the writer finds out about the file, for the host's health.

use std::path::Path;
use std::sync::Arc;

use super::StoreError;
use super::failure::StorageFailure;
use super::files::OpenFiles;
use crate::domain::condition::ConditionReason;
use crate::domain::health::{FaultReport, HostFault, HostHealth};

/// The open files, and where their faults are reported.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    files: Arc<OpenFiles>,
    health: HostHealth,
}

impl Guard {
    /// For a database that is open.
    pub(super) fn new(database: &Path, health: HostHealth) -> Self {
        Self { files: Arc::new(OpenFiles::of(database)), health }
    }

    /// Refuses where a file is not at its place, and reports that or that it is back.
    pub(super) fn check(&self) -> Result<(), StoreError> {
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

    /// Whether a file was not at its place when that was checked last.
    pub(super) fn is_lost(&self) -> bool {
        self.health.has(HostFault::DatabaseLost)
    }

    /// The refusal of what needs the file.
    pub(super) fn lost(&self) -> StoreError {
        let report = self.health.get(HostFault::DatabaseLost);
        report.map_or(StoreError::NotWritten, |report| StoreError::Lost(report.message))
    }

    /// Reports what failed while something was written, or that a write was kept.
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
