//! Measuring, with CUDA clients, the effect of the thread percentages of a layout.
//!
//! The driver does not wait for a client that it starts: the client may take long to be admitted, and the daemon is polled meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Driver;
use super::percentage_probe::PercentageProbe;
use crate::domain::plan::Desired;
use crate::domain::{GpuUuid, ThreadPercentage};
use crate::gpu::probe::ProbeRequest;
use crate::gpu::report::Report;
use crate::host::Identity;

/// Longest time that a client may wait to be admitted.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Driver {
    /// Starts a client that measures a percentage.
    pub(super) fn send_probe(&mut self, desired: &Desired, percentage: ThreadPercentage) {
        let Some(process) = self.state.process.as_ref().map(|process| process.identity) else { return };
        tracing::info!(daemon = %desired.name, %percentage, "a CUDA client measures what a percentage gives");
        let gpus: Vec<&str> = desired.gpus.iter().map(GpuUuid::as_str).collect();
        let request = ProbeRequest {
            variables: BTreeMap::from([
                ("CUDA_MPS_PIPE_DIRECTORY".to_owned(), self.pipe_directory.display().to_string()),
                ("CUDA_VISIBLE_DEVICES".to_owned(), gpus.join(",")),
                ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), percentage.to_string()),
            ]),
            uid: desired.server_uid,
            allocate_up_to: None,
            timeout: TIMEOUT,
        };
        let prober = Arc::clone(&self.context.prober);
        let task = tokio::spawn(async move { prober.see(&request).await });
        self.probe = Some(PercentageProbe { process, task });
        self.state.layout.probe_sent(percentage, desired, self.now());
    }

    /// Evaluates the report of a client that has ended.
    pub(super) async fn probed(&mut self, report: Option<(Identity, Report)>) {
        let present = self.state.process.as_ref().map(|process| process.identity);
        let Some((_, report)) = report.filter(|(process, _)| Some(*process) == present) else {
            // The report is about a process that is gone.
            return self.state.layout.probe_lost();
        };
        let desired = self.current_desired();
        self.state.layout.probed(&report, &desired, self.now());
        let progress = self.state.layout.progress(&desired, None);
        if let Some(failure) = self.state.layout.failure(&desired, &progress) {
            tracing::error!(daemon = %desired.name, why = failure.message, "the layout is not proven");
        }
        self.record_layout_end(&desired).await;
    }
}
