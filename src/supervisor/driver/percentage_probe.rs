//! A CUDA client that a driver has sent, and what it saw.

use tokio::task::JoinHandle;

use crate::gpu::report::Report;
use crate::host::Identity;

/// A client that polls.
pub(super) struct PercentageProbe {
    /// The control process that it was sent to.
    pub(super) process: Identity,
    pub(super) task: JoinHandle<Report>,
}

/// What a client saw in a control process; never, while none runs.
pub(super) async fn report(probe: &mut Option<PercentageProbe>) -> Option<(Identity, Report)> {
    let Some(PercentageProbe { process, task }) = probe else { return std::future::pending().await };
    let (process, report) = (*process, task.await);
    *probe = None;
    report.ok().map(|report| (process, report))
}
