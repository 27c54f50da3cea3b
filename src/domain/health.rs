//! Faults of the manager's own files and its socket, collected for everything that reports them.
//!
//! The component that finds a fault reports it here, and clears it when it is over. `GET /api/v1/host` shows faults as conditions,
//! `/readyz` fails while one keeps the manager from its work, and the console shows them first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::condition::{Condition, ConditionReason, ConditionType};

/// A fault of the manager itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostFault {
    /// The database's file, or a part of it, is no longer at its place.
    DatabaseLost,
    /// SQLite found the database damaged.
    DatabaseDamaged,
    /// The last write failed.
    WritesFail,
    /// The state directory's file system has no room, whether anything was written meanwhile or not.
    StateDiskFull,
    /// The unix socket is not at its place, and could not be made again.
    SocketLost,
    /// The audit ends before a row that is known to have been written.
    AuditTruncated,
    /// The files for container engines and systemd could not be written.
    EngineFilesNotWritten,
    /// The NVIDIA driver or its programs are not here yet.
    WaitingForDriver,
    /// The host file of the start waits for MIG instances, or was refused once they were here.
    HostFileNotApplied,
}

impl HostFault {
    /// Returns true if the fault keeps the manager from its work.
    fn blocks(self) -> bool {
        !matches!(self, Self::AuditTruncated | Self::EngineFilesNotWritten | Self::HostFileNotApplied)
    }
}

impl From<HostFault> for ConditionType {
    fn from(fault: HostFault) -> Self {
        match fault {
            HostFault::DatabaseLost => Self::DatabaseLost,
            HostFault::DatabaseDamaged => Self::DatabaseDamaged,
            HostFault::WritesFail => Self::WritesFail,
            HostFault::StateDiskFull => Self::StateDiskFull,
            HostFault::SocketLost => Self::SocketLost,
            HostFault::AuditTruncated => Self::AuditTruncated,
            HostFault::EngineFilesNotWritten => Self::EngineFilesNotWritten,
            HostFault::WaitingForDriver => Self::WaitingForDriver,
            HostFault::HostFileNotApplied => Self::HostFileNotApplied,
        }
    }
}

/// Report of a fault: the reason in one word, and a sentence with the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultReport {
    /// Reason in one word, as `FileRemoved`.
    pub reason: ConditionReason,
    /// Explanation of the fault, with the remedy.
    pub message: String,
}

/// Present faults; clones share them.
#[derive(Debug, Clone, Default)]
pub struct HostHealth {
    faults: Arc<Mutex<BTreeMap<HostFault, FaultReport>>>,
}

impl HostHealth {
    /// Reports a fault or clears it; returns whether that changed anything.
    pub fn set(&self, fault: HostFault, report: Option<FaultReport>) -> bool {
        let mut faults = self.faults();
        match report {
            Some(report) => faults.insert(fault, report.clone()).as_ref() != Some(&report),
            None => faults.remove(&fault).is_some(),
        }
    }

    /// Returns the report of a fault; `None` if it is not reported.
    pub fn get(&self, fault: HostFault) -> Option<FaultReport> {
        self.faults().get(&fault).cloned()
    }

    /// Returns true if a fault is reported.
    pub fn has(&self, fault: HostFault) -> bool {
        self.faults().contains_key(&fault)
    }

    /// Returns all faults as conditions.
    pub fn conditions(&self) -> Vec<Condition> {
        let condition = |(fault, report): (&HostFault, &FaultReport)| {
            ConditionType::from(*fault).problem(report.reason, report.message.clone())
        };
        self.faults().iter().map(condition).collect()
    }

    /// Returns the types of the faults that keep the manager from its work.
    pub fn blocking(&self) -> Vec<String> {
        let faults = self.faults();
        faults
            .keys()
            .filter(|fault| fault.blocks())
            .map(|fault| ConditionType::from(*fault).to_string())
            .collect()
    }

    fn faults(&self) -> MutexGuard<'_, BTreeMap<HostFault, FaultReport>> {
        // Each change is one insertion or removal: the map is whole whatever happened.
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_shared_reported_once_and_cleared() {
        let health = HostHealth::default();
        let shared = health.clone();
        let report =
            |message: &str| Some(FaultReport { reason: ConditionReason::DiskFull, message: message.into() });
        assert!(health.set(HostFault::WritesFail, report("full")));
        assert!(!health.set(HostFault::WritesFail, report("full")), "no news");
        assert!(health.set(HostFault::AuditTruncated, report("cut")));
        assert!(health.set(HostFault::EngineFilesNotWritten, report("read-only")));
        assert_eq!(shared.blocking(), ["WritesFail"]);
        assert!(health.set(HostFault::EngineFilesNotWritten, None));
        let types: Vec<ConditionType> =
            shared.conditions().into_iter().map(|condition| condition.kind).collect();
        assert_eq!(types, [ConditionType::WritesFail, ConditionType::AuditTruncated]);
        assert!(health.set(HostFault::WritesFail, None) && !health.set(HostFault::WritesFail, None));
        assert!(shared.blocking().is_empty() && shared.has(HostFault::AuditTruncated));
    }
}
