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

/// Pause after a client that could not run. [`RETRIES`] is the number of such pauses before it is a failure.
pub(super) const RETRY_MS: i64 = 500;
pub(super) const RETRIES: u32 = 3;

/// State of the thread percentages of one daemon.
#[derive(Debug, Clone, Default)]
pub(super) struct PercentageRuntime {
    /// Shares to prove, and the progress of the proof.
    target: Option<(Vec<PlannedShare>, Proving)>,
    /// Shares proven in the present control process. `earlier` are those proven in the one before.
    pub(super) proven: Vec<ProvenShare>,
    earlier: Vec<ProvenShare>,
    /// Percentage that a client is probing.
    probing: Option<ThreadPercentage>,
    failed_probes: u32,
    retry_at: i64,
    /// True if the proof has yet to be written down.
    unwritten: bool,
}

impl PercentageRuntime {
    /// Forgets all proofs, for another control process; returns true if shares were to be proven.
    pub(super) fn process_gone(&mut self) -> bool {
        let had_target = self.target.is_some();
        self.forget_proof();
        *self = Self { earlier: std::mem::take(&mut self.earlier), ..Self::default() };
        had_target
    }

    /// Demotes the proofs to a starting point of the next proof.
    pub(super) fn forget_proof(&mut self) {
        if !self.proven.is_empty() {
            self.earlier = std::mem::take(&mut self.proven);
        }
    }

    /// Restarts the proof with the next desired state; returns true if there was one.
    pub(super) fn restart(&mut self) -> bool {
        (self.failed_probes, self.retry_at, self.unwritten) = (0, 0, false);
        self.target.take().is_some()
    }

    /// Begins to prove the desired shares; returns false if that has begun already.
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

    /// Returns the least percentage that the server may hold.
    pub(super) fn server_percentage(&self) -> Option<ThreadPercentage> {
        self.target.as_ref().and_then(|(_, proving)| proving.server_percentage())
    }

    /// Returns the percentage that a client probes next, or the reason why there is none; `None` before shares are to be proven.
    pub(super) fn next(&self) -> Option<Result<Option<ThreadPercentage>, ShareFailure>> {
        self.target.as_ref().map(|(_, proving)| proving.next())
    }

    /// Returns the time from which the next client may be started.
    pub(super) fn retry_at(&self) -> i64 {
        self.retry_at
    }

    /// Returns the progress of the percentages.
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

    /// Notes that a client was started.
    pub(super) fn sent(&mut self, percentage: ThreadPercentage) {
        self.probing = Some(percentage);
    }

    /// Discards the report of the client, which is of no use.
    pub(super) fn lost(&mut self) {
        self.probing = None;
    }

    /// Notes that a client could not run, and that another one is due after a pause. Returns true if this is a failure, after
    /// which the pause is `pause`.
    pub(super) fn probe_failed(&mut self, now: i64, pause: i64) -> bool {
        if self.probing.take().is_none() || self.target.is_none() {
            return false;
        }
        self.failed_probes += 1;
        let failed = self.failed_probes > RETRIES;
        self.retry_at = now + if failed { pause } else { RETRY_MS };
        failed
    }

    /// Takes the report of a client; returns false if none was expected.
    pub(super) fn probed(&mut self, report: &Report) -> bool {
        let (Some(percentage), Some((_, proving))) = (self.probing.take(), &mut self.target) else {
            return false;
        };
        let seen = report.devices.iter().map(|device| (device.uuid.clone(), device.sms)).collect();
        proving.probed(percentage, seen);
        (self.failed_probes, self.retry_at) = (0, 0);
        true
    }

    /// Notes that all shares are proven.
    pub(super) fn complete(&mut self) {
        if let Some((_, proving)) = &self.target {
            self.proven = proving.proven();
        }
    }

    /// Marks the proof as yet to be written down if the last report completed it.
    pub(super) fn note_unwritten(&mut self) {
        self.unwritten = matches!(self.next(), Some(Ok(None)));
    }

    /// Returns true if the proof has yet to be written down.
    pub(super) fn is_unwritten(&self, desired: &Desired) -> bool {
        self.unwritten && percentage_layout(desired).is_some()
    }

    /// Returns the proof if it has yet to be written down.
    pub(super) fn to_write(&self, desired: &Desired) -> Option<ProvenLayout> {
        let version = percentage_layout(desired)?.version.clone();
        self.unwritten.then(|| ProvenLayout { version, shares: self.proven.clone() })
    }

    /// Notes that the proof was written.
    pub(super) fn written(&mut self) {
        self.unwritten = false;
    }

    /// Returns the partitions of the layout, with measured values only while all of them are proven.
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

/// Returns the desired layout, if thread percentages enforce it.
pub(super) fn percentage_layout(desired: &Desired) -> Option<&DesiredLayout> {
    let layout = desired.layout.as_ref().filter(|_| !desired.is_observed());
    layout.filter(|layout| layout.enforcement == Enforcement::Percentage)
}

/// Returns the reason why a report shows nothing about percentages.
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
