//! The thread percentages of a layout: made by the environment of each client, and proven by CUDA clients that see the SMs.

use super::progress::LayoutProgress;
use crate::domain::ThreadPercentage;
use crate::domain::daemon::Mode;
use crate::domain::layout::Enforcement;
use crate::domain::layout::active::{DesiredLayout, DesiredShares, ProvenLayout};
use crate::domain::layout::execution::LayoutFailureCause;
use crate::domain::layout::percentage::PlannedShare;
use crate::domain::layout::percentage::proof::{ProvenShare, Proving, ShareFailure};
use crate::domain::layout::status::PartitionStatus;
use crate::domain::plan::Desired;
use crate::gpu::report::Report;

/// Pauses after a client that could not run, and how many of them there are before that is a failure.
pub(super) const RETRY_MS: i64 = 500;
pub(super) const RETRIES: u32 = 3;

/// What is known of the thread percentages of one daemon.
#[derive(Debug, Clone, Default)]
pub(super) struct PercentageRuntime {
    /// What is to be proven, and how far that is.
    target: Option<(Vec<PlannedShare>, Proving)>,
    /// What was proven in the present control process, and in the one before.
    pub(super) proven: Vec<ProvenShare>,
    earlier: Vec<ProvenShare>,
    /// The percentage that a client probes now.
    probing: Option<ThreadPercentage>,
    failed_probes: u32,
    retry_at: i64,
    /// Whether what was proven has yet to be written down.
    unwritten: bool,
}

impl PercentageRuntime {
    /// In another control process, nothing is proven; true where something was to be.
    pub(super) fn process_gone(&mut self) -> bool {
        let had_target = self.target.is_some();
        self.forget_proof();
        *self = Self { earlier: std::mem::take(&mut self.earlier), ..Self::default() };
        had_target
    }

    /// What is proven is where the next proof begins, and no proof.
    pub(super) fn forget_proof(&mut self) {
        if !self.proven.is_empty() {
            self.earlier = std::mem::take(&mut self.proven);
        }
    }

    /// The proof begins again with the next desired state; true where there was one.
    pub(super) fn restart(&mut self) -> bool {
        (self.failed_probes, self.retry_at, self.unwritten) = (0, 0, false);
        self.target.take().is_some()
    }

    /// Begins to prove the desired shares; false where that has begun already.
    pub(super) fn set_target(&mut self, desired: &DesiredShares) -> bool {
        if self.target.as_ref().is_some_and(|(shares, _)| *shares == desired.shares) {
            return false;
        }
        let earlier = if self.earlier.is_empty() { &desired.earlier } else { &self.earlier };
        let proving = Proving::new(&desired.shares, &self.proven, earlier);
        self.restart();
        self.target = Some((desired.shares.clone(), proving));
        true
    }

    /// The least percentage that the server may hold.
    pub(super) fn server_percentage(&self) -> Option<ThreadPercentage> {
        self.target.as_ref().and_then(|(_, proving)| proving.server_percentage())
    }

    /// The percentage that a client probes next, or why there is none; `None` before anything is to be proven.
    pub(super) fn next(&self) -> Option<Result<Option<ThreadPercentage>, ShareFailure>> {
        self.target.as_ref().map(|(_, proving)| proving.next())
    }

    /// When the next client may be sent.
    pub(super) fn retry_at(&self) -> i64 {
        self.retry_at
    }

    /// How far the percentages are.
    pub(super) fn progress(&self, desired: &Desired) -> LayoutProgress {
        let Some(layout) = percentage_layout(desired) else { return LayoutProgress::Complete };
        if desired.mode == Mode::Static {
            let why = "a daemon in static mode ignores thread percentages: set its mode to shared, or apply a layout of static \
                       partitions";
            return LayoutProgress::Refused(LayoutFailureCause::Blocked { why: why.to_owned() });
        }
        if layout.shares.is_none() {
            return LayoutProgress::Failed;
        }
        match self.next() {
            None => LayoutProgress::Waiting,
            Some(_) if self.probing.is_some() => LayoutProgress::Probing,
            Some(Ok(Some(next))) => LayoutProgress::ProbeDue(next),
            Some(Ok(None)) => LayoutProgress::Complete,
            Some(Err(_)) => LayoutProgress::Failed,
        }
    }

    /// A client was sent.
    pub(super) fn sent(&mut self, percentage: ThreadPercentage) {
        self.probing = Some(percentage);
    }

    /// What the client saw is of no use.
    pub(super) fn lost(&mut self) {
        self.probing = None;
    }

    /// A client could not run, and another one is sent after a pause; true where that is a failure, and `pause` is waited.
    pub(super) fn probe_failed(&mut self, now: i64, pause: i64) -> bool {
        if self.probing.take().is_none() || self.target.is_none() {
            return false;
        }
        self.failed_probes += 1;
        let failed = self.failed_probes > RETRIES;
        self.retry_at = now + if failed { pause } else { RETRY_MS };
        failed
    }

    /// Takes what a client saw; false where nothing was to be seen.
    pub(super) fn probed(&mut self, report: &Report) -> bool {
        let (Some(percentage), Some((_, proving))) = (self.probing.take(), &mut self.target) else {
            return false;
        };
        let seen = report.devices.iter().map(|device| (device.uuid.clone(), device.sms)).collect();
        proving.probed(percentage, seen);
        (self.failed_probes, self.retry_at) = (0, 0);
        true
    }

    /// All is proven.
    pub(super) fn complete(&mut self) {
        if let Some((_, proving)) = &self.target {
            self.proven = proving.proven();
        }
    }

    /// A client has seen the last that was to be seen, if it has.
    pub(super) fn note_unwritten(&mut self) {
        self.unwritten = matches!(self.next(), Some(Ok(None)));
    }

    /// Whether what was proven has yet to be written down.
    pub(super) fn is_unwritten(&self, desired: &Desired) -> bool {
        self.unwritten && percentage_layout(desired).is_some()
    }

    /// What was proven and has yet to be written down.
    pub(super) fn to_write(&self, desired: &Desired) -> Option<ProvenLayout> {
        let version = percentage_layout(desired)?.version.clone();
        self.unwritten.then(|| ProvenLayout { version, shares: self.proven.clone() })
    }

    /// That was written down.
    pub(super) fn written(&mut self) {
        self.unwritten = false;
    }

    /// The partitions of the layout, with what a client saw only while all of them are proven.
    pub(super) fn statuses(&self, desired: &Desired, complete: bool) -> Vec<PartitionStatus> {
        let shares = percentage_layout(desired).and_then(|layout| layout.shares.as_ref());
        let shares = shares.map_or(&[][..], |desired| &desired.shares);
        let status = |share: &PlannedShare| {
            let proven = self.proven.iter().filter(|_| complete).find_map(|proven| {
                let seen = proven.seen.get(&share.gpu).copied();
                seen.filter(|_| proven.chunks == share.chunks).map(|seen| (proven.percentage, seen))
            });
            PartitionStatus {
                partition: share.partition.clone(),
                gpu: share.gpu.clone(),
                id: None,
                withheld: None,
                expected: None,
                chunks: share.chunks,
                sms: proven.map(|(_, seen)| seen),
                percentage: proven.map(|(percentage, _)| percentage),
                tenants: share.tenants.clone(),
            }
        };
        shares.iter().map(status).collect()
    }
}

/// The desired layout, if thread percentages are to make it hold.
pub(super) fn percentage_layout(desired: &Desired) -> Option<&DesiredLayout> {
    let layout = desired.layout.as_ref().filter(|_| !desired.is_observed());
    layout.filter(|layout| layout.enforcement == Enforcement::Percentage)
}

/// Why a report says nothing about percentages.
pub(super) fn useless(report: &Report) -> Option<String> {
    if let Some(failure) = &report.error {
        return Some(format!("{}: {}", failure.name, failure.message));
    }
    let outside = report.mps != Some(true);
    outside.then(|| {
        "the client ran outside MPS, where no percentage counts: it did not find the daemon's sockets"
            .to_owned()
    })
}
