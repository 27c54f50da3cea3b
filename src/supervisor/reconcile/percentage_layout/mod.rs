//! What to do about the thread percentages of a layout on one daemon: pure, from the layout that is wanted and what CUDA
//! clients saw.
//!
//! ```text
//!   a new control process, another layout
//!      ▼
//!     due ──a client is sent──► probing ──it saw what was planned──► due, for the next size ──► complete
//!      ▲                           │
//!      │ after a pause             ├─ it could not run: tried again, and failed for so long
//!      └───────────────────────────┤
//!                                  └─ it saw something else ──► failed, until a retry is requested or the desired layout changes
//! ```
//!
//! A partition is proven only by a client of the control process that runs now. What was proven in another one is where
//! the next proof begins.

use crate::domain::ThreadPercentage;
use crate::domain::daemon::Mode;
use crate::domain::layout::Enforcement;
use crate::domain::layout::active::{DesiredLayout, DesiredShares, ProvenLayout};
use crate::domain::layout::execution::Cause;
use crate::domain::layout::percentage::Share;
use crate::domain::layout::percentage::proof::{ProvenShare, Proving, ShareFailure};
use crate::domain::layout::status::{DriftSeen, LayoutFailure, LayoutState, LayoutStatus, PartitionStatus};
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::gpu::report::Report;

/// Pauses after a client that could not run, and how many of them there are before that is a failure.
const RETRY_MS: i64 = 500;
const RETRIES: u32 = 3;

/// What is known of the shares of one daemon.
#[derive(Debug, Clone, Default)]
pub struct PercentageReconciler {
    /// What is to be proven, and how far that is.
    under_way: Option<(Vec<Share>, Proving)>,
    /// What was proven in the present control process, and in the one before.
    proven: Vec<ProvenShare>,
    earlier: Vec<ProvenShare>,
    /// The percentage that a client probes now.
    probing: Option<ThreadPercentage>,
    failure: Option<LayoutFailure>,
    failed_probes: u32,
    retry_at: i64,
    began: Option<i64>,
    ended: Option<i64>,
    /// Whether what was proven has yet to be written down.
    unwritten: bool,
    timings: Timings,
}

/// How far the percentage layout is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PercentageLayoutState {
    /// There is nothing to do.
    Complete,
    /// A CUDA client is to probe this percentage, not before this time.
    Due(ThreadPercentage, i64),
    /// A CUDA client is probing it.
    Probing,
    /// The desired layout is new.
    New,
    /// It failed and is not retried by itself.
    Failed,
}

impl PercentageReconciler {
    /// Nothing is known yet.
    pub fn new(timings: Timings) -> Self {
        Self { timings, ..Self::default() }
    }

    /// A control process was started: in it, nothing is proven.
    pub fn begin(&mut self) {
        let earlier = std::mem::take(&mut self.proven);
        let earlier = if earlier.is_empty() { std::mem::take(&mut self.earlier) } else { earlier };
        *self = Self { earlier, ..Self::default() };
    }

    /// The layout was requested again: nothing counts as proven.
    pub fn request(&mut self) {
        if !self.proven.is_empty() {
            self.earlier = std::mem::take(&mut self.proven);
        }
        self.try_again();
    }

    /// Retries what failed.
    pub fn try_again(&mut self) {
        self.failure = None;
        self.under_way = None;
        (self.failed_probes, self.retry_at) = (0, 0);
    }

    /// Applies what is wanted, and lets the server hold as much as that needs.
    pub fn follow(&mut self, desired: &mut Desired, now: i64) {
        let Some(DesiredShares { others, .. }) = wanted(desired) else {
            self.under_way = None;
            self.failure = None;
            return;
        };
        let others = *others;
        self.update_target(desired, now);
        let needed = self.under_way.as_ref().and_then(|(_, proving)| proving.server_percentage());
        desired.percentage = others.max(needed).unwrap_or(ThreadPercentage::FULL);
    }

    fn update_target(&mut self, desired: &Desired, now: i64) {
        let Some(wanted) = wanted(desired) else { return };
        if self.failure.as_ref().is_some_and(|failure| failure.generation != desired.generation) {
            self.try_again();
        }
        if self.under_way.as_ref().is_none_or(|(shares, _)| *shares != wanted.shares) {
            let earlier = if self.earlier.is_empty() { &wanted.earlier } else { &self.earlier };
            let proving = Proving::new(&wanted.shares, &self.proven, earlier);
            self.under_way = Some((wanted.shares.clone(), proving));
            (self.failure, self.failed_probes, self.retry_at) = (None, 0, 0);
            (self.began, self.ended) = (Some(now), None);
            self.conclude(desired, now);
        }
    }

    /// How far the percentage layout is.
    pub fn layout_state(&self, desired: &Desired) -> PercentageLayoutState {
        let Some(layout) = percentage_layout(desired) else { return PercentageLayoutState::Complete };
        if layout.shares.is_none() || desired.mode == Mode::Static {
            return PercentageLayoutState::Failed;
        }
        let Some((_, proving)) = &self.under_way else { return PercentageLayoutState::New };
        match proving.next() {
            _ if self.probing.is_some() => PercentageLayoutState::Probing,
            Ok(Some(next)) => PercentageLayoutState::Due(next, self.retry_at),
            Ok(None) => PercentageLayoutState::Complete,
            Err(_) => PercentageLayoutState::Failed,
        }
    }

    /// Whether there is nothing left to prove.
    pub fn is_complete(&self, desired: &Desired) -> bool {
        self.layout_state(desired) == PercentageLayoutState::Complete
    }

    /// A probe was started.
    pub fn sent(&mut self, percentage: ThreadPercentage) {
        self.probing = Some(percentage);
    }

    /// The probe's result is of no use.
    pub fn probe_lost(&mut self) {
        self.probing = None;
    }

    /// Takes the probe's report.
    pub fn probed(&mut self, report: &Report, desired: &Desired, now: i64) {
        let Some(percentage) = self.probing.take() else { return };
        let Some((_, proving)) = &mut self.under_way else { return };
        if let Some(why) = useless(report) {
            self.failed_probes += 1;
            let failed = self.failed_probes > RETRIES;
            self.retry_at = now + if failed { self.timings.blocked_retry() } else { RETRY_MS };
            if failed {
                self.fail(ShareFailure::NotSeen { why }, desired);
            }
            return;
        }
        let seen = report.devices.iter().map(|device| (device.uuid.clone(), device.sms)).collect();
        proving.probed(percentage, seen);
        (self.failure, self.failed_probes, self.retry_at) = (None, 0, 0);
        self.conclude(desired, now);
    }

    /// Notes that all is proven, or that it cannot be.
    fn conclude(&mut self, desired: &Desired, now: i64) {
        let Some((_, proving)) = &self.under_way else { return };
        match proving.next() {
            Ok(Some(_)) => {}
            Ok(None) => {
                self.proven = proving.proven();
                self.unwritten = true;
                self.ended = Some(now);
            }
            Err(failure) => {
                self.fail(failure, desired);
                self.ended = Some(now);
            }
        }
    }

    fn fail(&mut self, failure: ShareFailure, desired: &Desired) {
        self.failure = Some(LayoutFailure::new(desired.generation, Cause::NotProven { failure }));
    }

    /// What was proven and has yet to be written down; it counts as written then.
    pub fn take_unwritten(&mut self, desired: &Desired) -> Option<ProvenLayout> {
        let version = percentage_layout(desired)?.version.clone();
        std::mem::take(&mut self.unwritten).then(|| ProvenLayout { version, shares: self.proven.clone() })
    }

    /// Why the layout is not in force, where it is not going to be by itself.
    pub fn failure(&self, desired: &Desired) -> Option<LayoutFailure> {
        percentage_layout(desired)?;
        if desired.mode == Mode::Static {
            let why = "a daemon in static mode ignores thread percentages: set its mode to shared, or apply a layout of static \
                       partitions";
            return Some(LayoutFailure::new(desired.generation, Cause::Blocked { why: why.to_owned() }));
        }
        self.failure.clone()
    }

    /// The status of the layout; nothing where there is none of this kind.
    pub fn status(&self, desired: &Desired) -> Option<LayoutStatus> {
        let layout = percentage_layout(desired)?;
        let failure = self.failure(desired);
        let state = match self.layout_state(desired) {
            _ if failure.is_some() => LayoutState::Failed,
            PercentageLayoutState::Complete => LayoutState::Applied,
            PercentageLayoutState::New => LayoutState::Pending,
            PercentageLayoutState::Due(..) if self.proven.is_empty() => LayoutState::Pending,
            PercentageLayoutState::Probing | PercentageLayoutState::Due(..) => LayoutState::Applying,
            PercentageLayoutState::Failed => LayoutState::Failed,
        };
        let shares = layout.shares.iter().flat_map(|shares| &shares.shares);
        Some(LayoutStatus {
            name: Some(layout.version.name.clone()),
            version: Some(layout.version.version),
            enforcement: Enforcement::Percentage,
            state,
            generation: desired.generation,
            partitions: shares.map(|share| self.partition(share, desired)).collect(),
            drift: Vec::new(),
            not_repaired: None,
            drift_seen: DriftSeen::default(),
            degraded: Vec::new(),
            failure,
            taken: Vec::new(),
            ran_at: self.began,
            duration_us: self.began.zip(self.ended).and_then(|(began, ended)| micros(ended - began)),
        })
    }

    /// A partition, with what a client saw only while all of them are proven.
    fn partition(&self, share: &Share, desired: &Desired) -> PartitionStatus {
        let complete = self.is_complete(desired);
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
    }
}

/// The layout that is wanted, if thread percentages are to make it hold.
fn percentage_layout(desired: &Desired) -> Option<&DesiredLayout> {
    let layout = desired.layout.as_ref().filter(|_| !desired.is_observed());
    layout.filter(|layout| layout.enforcement == Enforcement::Percentage)
}

fn wanted(desired: &Desired) -> Option<&DesiredShares> {
    percentage_layout(desired)?.shares.as_ref()
}

/// Why a report says nothing about percentages.
fn useless(report: &Report) -> Option<String> {
    if let Some(failure) = &report.error {
        return Some(format!("{}: {}", failure.name, failure.message));
    }
    let outside = report.mps != Some(true);
    outside.then(|| {
        "the client ran outside MPS, where no percentage counts: it did not find the daemon's sockets"
            .to_owned()
    })
}

fn micros(milliseconds: i64) -> Option<u64> {
    u64::try_from(milliseconds).ok()?.checked_mul(1000)
}

#[cfg(test)]
mod tests;
