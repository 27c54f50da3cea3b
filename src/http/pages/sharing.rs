//! Picture of who shares a GPU: its SMs and its memory by tenant, and what is left to give.

use super::format::Amount;
use super::strip::{SmStrip, percent};
use crate::domain::TenantName;
use crate::domain::daemon::Mode;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::sharing::{GpuSharing, TenantOnGpu};
use crate::domain::tenant::EnforcedBy;
use crate::service::daemons::DaemonView;
use crate::service::host::{GpuProcessKind, GpuView};
use crate::service::tenants::TenantColours;
use crate::words;

/// GPUs of a host whose cards have room for several tenants.
pub(super) const FEW_GPUS: usize = 6;

/// Returns the most tenants that a card shows one by one.
pub(super) fn of_a_card(gpus: usize) -> usize {
    if gpus > FEW_GPUS { 2 } else { 5 }
}

/// Picture of a GPU.
pub(super) struct SharingPicture {
    pub(super) sms: Option<SmPicture>,
    pub(super) memory: Option<MemoryBar>,
    /// Number of tenants, also of those that are not shown one by one.
    pub(super) tenants: usize,
    /// Sentence on what is left to give; empty where nothing is known.
    pub(super) left: String,
    /// True if more was given than there is.
    pub(super) is_negative: bool,
}

/// SMs of a GPU.
pub(super) enum SmPicture {
    /// Static partitions.
    Strip(SmStrip),
    /// Shares of clients that may overlap.
    Shares(Shares),
}

/// Shares of the tenants of a GPU, on one scale.
pub(super) struct Shares {
    /// SMs of the GPU.
    pub(super) total: u32,
    /// SMs that all shares add up to.
    pub(super) given: u64,
    pub(super) rows: Vec<ShareRow>,
    /// Tenants that are not shown.
    pub(super) more: usize,
}

impl Shares {
    /// Returns true if a share is held by the environment of its clients alone.
    pub(super) fn has_mark(&self) -> bool {
        self.rows.iter().any(|row| row.is_marked)
    }
}

/// The share of a tenant.
pub(super) struct ShareRow {
    pub(super) tenant: TenantName,
    pub(super) colour: u8,
    /// SMs of each of its clients; `None` where that is not known.
    pub(super) sms: Option<u32>,
    /// Length of its bar, in percent.
    pub(super) width: f64,
    pub(super) clients: u32,
    /// True if only the environment of its clients holds it.
    pub(super) is_marked: bool,
}

impl ShareRow {
    fn of(tenant: &TenantOnGpu, total: u32) -> Self {
        Self {
            tenant: tenant.name.clone(),
            colour: tenant.colour,
            sms: tenant.sms,
            width: percent(tenant.sms.unwrap_or(total), total),
            clients: tenant.held.processes,
            is_marked: tenant.sms_by == EnforcedBy::Environment,
        }
    }

    /// Returns the distances of a tick for each client from the beginning, in pixels; at most sixteen.
    pub(super) fn ticks(&self) -> Vec<u32> {
        (0..self.clients.min(16)).map(|tick| 4 + tick * 7).collect()
    }
}

/// Memory of a GPU on one bar: what each tenant holds, what processes outside MPS hold, and what the limits come to.
pub(super) struct MemoryBar {
    pub(super) parts: Vec<MemoryPart>,
    pub(super) used: Amount,
    pub(super) total: Amount,
    pub(super) limits: Amount,
    /// Length of the total and of the limits, in percent of the longer.
    pub(super) total_width: f64,
    pub(super) limits_width: f64,
}

/// A part of the memory in use.
pub(super) struct MemoryPart {
    pub(super) class: String,
    pub(super) label: String,
    /// Page of its owner, if it has one.
    pub(super) href: Option<String>,
    pub(super) bytes: Amount,
    pub(super) x: f64,
    pub(super) width: f64,
}

/// Returns the strip of a GPU whose daemon has listed its partitions.
pub(super) fn strip(gpu: &GpuView, daemon: &DaemonView, colours: &TenantColours) -> Option<SmStrip> {
    let status = daemon.status.as_ref()?;
    let listings = status.effective.as_ref()?.partitions.as_ref()?;
    let listed = listings.iter().find(|listing| listing.gpu == gpu.uuid)?;
    let layout = status.layout.iter().flat_map(|layout| &layout.partitions);
    let named: Vec<&PartitionStatus> = layout.filter(|partition| partition.gpu == gpu.uuid).collect();
    Some(SmStrip::partitioned(listed, gpu.compute_capability?.chunk_sms(), &named, colours))
}

impl SharingPicture {
    /// The picture of a GPU of a daemon with at most `most` tenants one by one, `first` before the others.
    pub(super) fn of(
        gpu: &GpuView,
        daemon: &DaemonView,
        sharing: &GpuSharing,
        colours: &TenantColours,
        most: usize,
        first: Option<&TenantName>,
    ) -> Self {
        let is_shared = daemon.spec.mode == Mode::Shared;
        let is_divided = !daemon.spec.mlopart || gpu.mlopart.is_some();
        let strip = if is_shared { None } else { strip(gpu, daemon, colours) };
        let mut tenants: Vec<&TenantOnGpu> = sharing.tenants.iter().collect();
        tenants.sort_by_cached_key(|tenant| {
            let is_first = Some(&tenant.name) == first;
            std::cmp::Reverse((is_first, tenant.held.bytes, tenant.held.processes, tenant.sms))
        });
        let sms = match strip {
            Some(strip) => Some(SmPicture::Strip(strip)),
            // In static mode nothing is known before the partitions are listed.
            // Shares of MLOPart devices are on the pictures of these.
            None => gpu.sms.filter(|_| is_shared && is_divided && !tenants.is_empty()).map(|total| {
                SmPicture::Shares(Shares {
                    total,
                    given: tenants.iter().filter_map(|tenant| tenant.sms).map(u64::from).sum(),
                    rows: tenants.iter().take(most).map(|tenant| ShareRow::of(tenant, total)).collect(),
                    more: tenants.len().saturating_sub(most),
                })
            }),
        };
        Self {
            sms,
            memory: MemoryBar::of(gpu, sharing, &tenants, most),
            tenants: tenants.len(),
            left: words::gpu::left(sharing.left),
            is_negative: sharing.left.bytes.is_some_and(|bytes| bytes < 0),
        }
    }
}

impl MemoryBar {
    fn of(gpu: &GpuView, sharing: &GpuSharing, tenants: &[&TenantOnGpu], most: usize) -> Option<Self> {
        let (total, used) = gpu.memory_total.zip(gpu.memory_used)?;
        let scale = total.max(gpu.memory_limits).max(used).max(1);
        let holding = tenants.iter().filter(|tenant| tenant.held.bytes > 0);
        let mut owned: Vec<(String, String, Option<String>, u64)> = holding
            .clone()
            .take(most)
            .map(|tenant| {
                let href = Some(format!("/tenants/{}", tenant.name));
                (format!("part-{}", tenant.colour), tenant.name.to_string(), href, tenant.held.bytes)
            })
            .collect();
        let further: Vec<u64> = holding.skip(most).map(|tenant| tenant.held.bytes).collect();
        let outside = gpu.processes.iter().flatten().filter(|process| process.kind == GpuProcessKind::Bypass);
        let outside: Vec<u64> = outside.map(|process| process.used_memory.unwrap_or(0)).collect();
        let sum = |bytes: &[u64]| bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        owned.push(("unbound".into(), format!("{} more", further.len()), None, sum(&further)));
        owned.push(("unbound".into(), "unattributed".into(), None, sharing.strangers.bytes));
        owned.push(("outside".into(), "outside MPS".into(), None, sum(&outside)));
        let known = owned.iter().fold(0, |sum: u64, (.., bytes)| sum.saturating_add(*bytes));
        owned.push(("server".into(), "servers and driver".into(), None, used.saturating_sub(known)));
        let mut at = 0;
        let mut parts = Vec::new();
        for (class, label, href, bytes) in owned.into_iter().filter(|(.., bytes)| *bytes > 0) {
            let (x, width) = (length(at, scale), length(bytes, scale));
            parts.push(MemoryPart { class, label, href, bytes: Amount(bytes), x, width });
            at += bytes;
        }
        Some(Self {
            parts,
            used: Amount(used),
            total: Amount(total),
            limits: Amount(gpu.memory_limits),
            total_width: length(total, scale),
            limits_width: length(gpu.memory_limits, scale),
        })
    }
}

/// Returns the length of an amount on a bar, in percent.
#[allow(clippy::cast_precision_loss, reason = "a place on a bar")]
pub(super) fn length(of: u64, scale: u64) -> f64 {
    (of as f64 / scale.max(1) as f64 * 10_000.0).round() / 100.0
}
