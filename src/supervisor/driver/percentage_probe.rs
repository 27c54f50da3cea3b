//! A CUDA client that a driver has started, and its report.

use tokio::task::JoinHandle;

use crate::gpu::report::Report;
use crate::host::Identity;

/// Running client that measures a thread percentage.
pub(super) struct PercentageProbe {
    /// Control process to which the client connects.
    pub(super) process: Identity,
    pub(super) task: JoinHandle<Report>,
}

/// Waits for the client, and returns its report with the control process that it was about; never returns while no client runs.
pub(super) async fn report(probe: &mut Option<PercentageProbe>) -> Option<(Identity, Report)> {
    let Some(PercentageProbe { process, task }) = probe else { return std::future::pending().await };
    let (process, report) = (*process, task.await);
    *probe = None;
    report.ok().map(|report| (process, report))
}
