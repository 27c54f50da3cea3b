//! Records that outlive the manager: written by one recorder, and loaded when a driver begins.

use tokio::sync::oneshot;

use super::report::event_detector::EventDetector;
use crate::domain::client::ClientId;
use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::daemon::Incarnation;
use crate::domain::layout::record::PartitionRun;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::{DaemonName, FilePlace, GpuUuid};

/// Records of a daemon that are in the store when its driver begins.
#[derive(Debug, Clone)]
pub struct RememberedDaemon {
    /// Control process that the daemon has, or had when it was last seen.
    pub incarnation: Incarnation,
    /// Last record of the partitions in this control process or in the one before.
    pub partitions: Option<PartitionRun>,
    /// Clients whose arrival is in the journal, but not their end.
    pub clients: Vec<ClientId>,
    /// Position in server.log up to which it was read for events.
    pub read_to: Option<FilePlace>,
    /// Problems that an earlier manager reported and did not report as over.
    pub open: OpenReports,
}

/// Reported problems that only a driver can report as over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenReports {
    /// True if processes use its GPUs outside MPS.
    pub bypass: bool,
    /// True if its layout is not as desired.
    pub layout: bool,
}

impl RememberedDaemon {
    /// Creates the record of a control process without events yet.
    pub fn of(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            partitions: None,
            clients: Vec::new(),
            read_to: None,
            open: OpenReports::default(),
        }
    }

    /// Returns the event detector that continues from this record.
    pub(super) fn event_detector(&self) -> (EventDetector, Option<FilePlace>) {
        (EventDetector::of(self.clients.iter().copied(), self.open.layout), self.read_to)
    }
}

/// Request to write a record.
#[derive(Debug)]
pub struct DurableWrite {
    /// The daemon.
    pub daemon: DaemonName,
    /// Record to write.
    pub recorded: DurableRecord,
    /// Receives true once the record is written, or false if it was not; a driver starts no process before.
    pub written: oneshot::Sender<bool>,
}

/// Record that outlives the manager.
#[derive(Debug)]
pub enum DurableRecord {
    /// The daemon's control process.
    Incarnation(Incarnation),
    /// The partitions of its control process, before a session that changes them and after it.
    PartitionRun(PartitionRun),
    /// The first final status of its layout in its control process.
    Layout(Box<LayoutStatus>),
    /// The compute mode of a GPU before it was changed; `None` once it was restored.
    ComputeMode {
        /// The GPU.
        gpu: GpuUuid,
        /// The mode that this manager holds.
        held: Option<OwnedComputeMode>,
    },
}
