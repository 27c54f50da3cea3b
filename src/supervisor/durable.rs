//! What must outlive the manager: written down by one recorder, and remembered when a driver begins.

use tokio::sync::oneshot;

use super::report::event_detector::EventDetector;
use crate::domain::client::ClientId;
use crate::domain::compute_mode::OwnedComputeMode;
use crate::domain::daemon::Incarnation;
use crate::domain::layout::active::ProvenLayout;
use crate::domain::layout::record::PartitionRun;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::{DaemonName, FilePlace, GpuUuid};

/// What the store remembers of a daemon when its driver begins.
#[derive(Debug, Clone)]
pub struct RememberedDaemon {
    /// The control process that it has, or had when it was last seen.
    pub incarnation: Incarnation,
    /// What was written last of the partitions in it, or in the one before.
    pub partitions: Option<PartitionRun>,
    /// The clients whose arrival is in the journal, and not their end.
    pub clients: Vec<ClientId>,
    /// How far its server.log was read for events.
    pub read_to: Option<FilePlace>,
    /// What an earlier manager reported as wrong and not as well again.
    pub open: OpenReports,
}

/// What is reported as wrong, and of which only a driver can say that it is over.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenReports {
    /// Processes use its GPUs outside MPS.
    pub bypass: bool,
    /// Its layout is not as it should be.
    pub layout: bool,
}

impl RememberedDaemon {
    /// A control process without events yet.
    pub fn of(incarnation: Incarnation) -> Self {
        Self {
            incarnation,
            partitions: None,
            clients: Vec::new(),
            read_to: None,
            open: OpenReports::default(),
        }
    }

    /// The event detector that continues from it.
    pub(super) fn event_detector(&self) -> (EventDetector, Option<FilePlace>) {
        (EventDetector::of(self.clients.iter().copied(), self.open.layout), self.read_to)
    }
}

/// Something that must outlive the manager.
#[derive(Debug)]
pub struct DurableWrite {
    /// The daemon.
    pub daemon: DaemonName,
    /// What is to be remembered.
    pub recorded: DurableRecord,
    /// Receives whether it was written; a driver starts no process before.
    pub written: oneshot::Sender<bool>,
}

/// What outlives the manager.
#[derive(Debug)]
pub enum DurableRecord {
    /// The daemon's control process.
    Incarnation(Incarnation),
    /// The partitions of its control process, before a session that changes them and after it.
    PartitionRun(PartitionRun),
    /// What CUDA clients proved of its layout.
    PercentageProof(ProvenLayout),
    /// The first final status of its layout in its control process.
    Layout(Box<LayoutStatus>),
    /// What the compute mode of a GPU was; `None` once it was restored.
    ComputeMode {
        /// The GPU.
        gpu: GpuUuid,
        /// What is held.
        held: Option<OwnedComputeMode>,
    },
}
