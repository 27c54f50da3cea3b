//! Layouts that thread percentages make hold: for daemons that have no static partitions.
//!
//! A partition of so many chunks becomes the percentage under which a client sees exactly the SMs of those chunks. Nothing
//! is reserved: partitions are as large as the layout says, and their SMs may be the same ones. There are no IDs and no
//! commands; a partition is proven by a CUDA client that sees its SMs. Where the formula of
//! [`sms_for`](crate::domain::percentage::sms_for) was measured, it gives the percentage and a client that sees anything else
//! is a failure; elsewhere it is a first guess, and clients probe until one sees what was planned.

pub mod assertion;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::active::ActiveLayout;
use super::plan::{Action, Blocked, Chunks, GpuTotals, Plan, PlannedStep, Reason};
use super::{AddStep, Enforcement, GpuMap, Layout, VersionRef, document, unmapped};
use crate::domain::gpu::{ChunkCensus, Gpu};
use crate::domain::percentage::{is_measured, percentage_for};
use crate::domain::tenant::TenantSpec;
use crate::domain::{GpuUuid, InvalidValue, PartitionName, TenantName, ThreadPercentage};

/// A partition that a percentage makes hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The step of the layout, counted from 0.
    pub step: usize,
    /// The partition.
    pub partition: PartitionName,
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its chunks.
    pub chunks: u32,
    /// The SMs of these chunks, which a client is to see.
    pub sms: u32,
    /// All SMs of the GPU.
    pub total_sms: u32,
    /// The percentage by the formula, where that was measured; `None` where a client has to find it.
    pub percentage: Option<ThreadPercentage>,
    /// Who works in it.
    pub tenants: Vec<TenantName>,
}

/// The shares of a layout on the GPUs of a host.
///
/// Fails where the SMs of a GPU or of its chunks are not known, and where no percentage gives them.
pub fn shares(layout: &Layout, map: &GpuMap, gpus: &[Gpu]) -> Result<Vec<Share>, InvalidValue> {
    let adds = layout.adds().enumerate().map(|(step, add)| {
        let uuid = map.get(&add.gpu).ok_or_else(|| unmapped(add.gpu))?;
        let known = gpus.iter().find(|gpu| gpu.uuid == *uuid);
        let sizes = known.and_then(|gpu| Some((gpu, gpu.sms?, gpu.compute_capability?.chunk_sms())));
        let Some((gpu, total, chunk_sms)) = sizes else {
            return Err(InvalidValue(format!(
                "the driver does not report the SMs of GPU {uuid} or its compute capability, so the size of its chunks is not known"
            )));
        };
        let sms = chunk_sms.saturating_mul(add.chunks);
        let percentage = is_measured(gpu).then(|| percentage_for(sms, total));
        if percentage == Some(None) && sms <= total {
            return Err(InvalidValue(format!(
                "no thread percentage gives {sms} of the {total} SMs of GPU {uuid}, as partition {} would have",
                add.partition
            )));
        }
        Ok(Share {
            step,
            partition: add.partition.clone(),
            gpu: uuid.clone(),
            chunks: add.chunks,
            sms,
            total_sms: total,
            percentage: percentage.flatten(),
            tenants: add.tenants.clone(),
        })
    });
    adds.collect()
}

/// A tenant that is bound to a partition and says itself how many SMs it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[error(
    "tenant {tenant} has {field} of its own and is bound to partition {partition}, whose chunks say how many SMs it has: take \
     {field} away from the tenant, or the tenant out of the layout"
)]
pub struct OwnShare {
    /// The tenant.
    pub tenant: TenantName,
    /// The field of its spec.
    pub field: String,
    /// The partition.
    pub partition: PartitionName,
}

/// The tenants that say themselves what their partition says.
pub fn own_shares<'t>(
    layout: &Layout,
    tenants: impl IntoIterator<Item = (&'t TenantName, &'t TenantSpec)>,
) -> impl Iterator<Item = OwnShare> {
    tenants.into_iter().filter_map(|(tenant, spec)| {
        let field = match (spec.sms, spec.active_thread_percentage) {
            (Some(_), _) => "sms",
            (None, Some(_)) => "active_thread_percentage",
            (None, None) => return None,
        };
        let add = layout.partitions().find(|add| add.tenants.contains(tenant))?;
        Some(OwnShare { tenant: tenant.clone(), field: field.to_owned(), partition: add.partition.clone() })
    })
}

/// What has to be done so that a daemon with the shares `before` has `wanted`.
///
/// No step is a command: what is added is handed out once a client has seen it, and what is removed to nobody any more.
/// Clients that run keep what they have, so nothing is in anybody's way but the number of chunks.
pub fn plan(wanted: &[Share], before: &[Share], census: &BTreeMap<GpuUuid, ChunkCensus>) -> Plan {
    let same = |a: &Share, b: &Share| (&a.gpu, &a.partition, a.chunks) == (&b.gpu, &b.partition, b.chunks);
    let stays = |share: &Share| before.iter().any(|earlier| same(earlier, share));
    let used =
        |gpu: &GpuUuid| before.iter().filter(|share| share.gpu == *gpu).map(|share| share.chunks).sum();
    let at_first: BTreeMap<&GpuUuid, Chunks> = census
        .iter()
        .map(|(gpu, counted)| {
            let used: u32 = used(gpu);
            (gpu, Chunks { free: counted.chunks.saturating_sub(used), used })
        })
        .collect();
    let (mut now, mut steps, mut blocked) = (at_first.clone(), Vec::new(), Vec::new());
    let step = |share: &Share, action, reason, before: Chunks, after: Chunks| PlannedStep {
        action,
        reason,
        step: (action != Action::Remove).then_some(share.step),
        gpu: share.gpu.clone(),
        partition: Some(share.partition.clone()),
        chunks: share.chunks,
        sms: share.sms,
        enforcement: Enforcement::Percentage,
        percentage: share.percentage,
        id: None,
        expected: None,
        before,
        after,
        clients: Vec::new(),
    };
    let mut uncounted = BTreeSet::new();
    for share in wanted.iter().filter(|share| stays(share)) {
        match now.get(&share.gpu) {
            Some(chunks) => steps.push(step(share, Action::Keep, Reason::Layout, *chunks, *chunks)),
            None => _ = uncounted.insert(&share.gpu),
        }
    }
    for share in before.iter().rev().filter(|share| !wanted.iter().any(|kept| same(kept, share))) {
        let Some(chunks) = now.get_mut(&share.gpu) else { continue };
        let earlier = *chunks;
        *chunks = Chunks { free: chunks.free + share.chunks, used: chunks.used.saturating_sub(share.chunks) };
        let again = wanted.iter().any(|kept| (&kept.gpu, &kept.partition) == (&share.gpu, &share.partition));
        let reason = if again { Reason::MadeAgain } else { Reason::NotInLayout };
        steps.push(step(share, Action::Remove, reason, earlier, *chunks));
    }
    for share in wanted.iter().filter(|share| !stays(share)) {
        let Some(chunks) = now.get_mut(&share.gpu) else {
            uncounted.insert(&share.gpu);
            continue;
        };
        let earlier = *chunks;
        if share.chunks > earlier.free {
            blocked.push(Blocked::TooManyChunks {
                step: share.step,
                partition: share.partition.clone(),
                gpu: share.gpu.clone(),
                requested: share.chunks,
                free: earlier.free,
            });
            // The steps after it are shown as they would be without it.
            continue;
        }
        *chunks = Chunks { free: earlier.free - share.chunks, used: earlier.used + share.chunks };
        steps.push(step(share, Action::Add, Reason::Layout, earlier, *chunks));
    }
    blocked.extend(uncounted.into_iter().map(|gpu| Blocked::NotListed { gpu: gpu.clone() }));
    let gpus = census
        .iter()
        .map(|(gpu, counted)| GpuTotals {
            gpu: gpu.clone(),
            chunk_sms: counted.chunk_sms,
            sms: counted.sms,
            before: at_first[gpu],
            after: now[gpu],
            left_over_sms: counted.left_over_sms,
        })
        .collect();
    let taken = wanted.iter().filter(|share| stays(share)).map(|share| share.step).collect();
    Plan { steps, taken, gpus, blocked, reserves_nothing: true }
}

/// What a CUDA client proved of all partitions of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProvenShare {
    /// The chunks of each of these partitions.
    pub chunks: u32,
    /// The percentage.
    pub percentage: ThreadPercentage,
    /// The SMs that a client saw under it, on each GPU that has such a partition.
    #[schema(value_type = BTreeMap<String, u32>)]
    pub seen: BTreeMap<GpuUuid, u32>,
}

/// What was proven of a version of a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvenLayout {
    /// Which version of which layout.
    pub version: VersionRef,
    /// One for each size of its partitions.
    pub shares: Vec<ProvenShare>,
}

impl ProvenLayout {
    /// What was seen in each partition of a layout; `None` where it is not of that version on these GPUs.
    pub fn seen(&self, active: &ActiveLayout, layout: &Layout) -> Option<Vec<document::Share>> {
        if self.version != active.version_ref() {
            return None;
        }
        let share = |add: &AddStep| {
            let gpu = active.gpu_map.get(&add.gpu)?;
            let mut proven = self.shares.iter().filter(|proven| proven.chunks == add.chunks);
            let (percentage, sms) =
                proven.find_map(|proven| Some((proven.percentage, *proven.seen.get(gpu)?)))?;
            let partition = add.partition.clone();
            Some(document::Share { partition, active_thread_percentage: percentage, sms })
        };
        layout.adds().map(share).collect()
    }
}

/// Why partitions are not proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ShareFailure {
    /// A client saw other SMs than the formula says.
    #[error(
        "under {percentage} % a CUDA client saw {seen} SMs of GPU {gpu}, and {planned} were planned: does the server hold a smaller \
         percentage, or did the driver change?"
    )]
    Differs {
        /// The GPU.
        gpu: GpuUuid,
        /// The percentage.
        percentage: ThreadPercentage,
        /// What was planned.
        planned: u32,
        /// What the client saw.
        seen: u32,
    },
    /// No percentage gives the SMs.
    #[error(
        "no thread percentage gives a CUDA client {wanted} SMs of GPU {gpu}: it saw {} below that and {} above; choose another \
         number of chunks", said(*.below), said(*.above)
    )]
    NoPercentage {
        /// The GPU.
        gpu: GpuUuid,
        /// What was planned.
        wanted: u32,
        /// The most that was seen below it.
        below: Option<u32>,
        /// The least that was seen above it.
        above: Option<u32>,
    },
    /// No client could run, or it did not see what it should.
    #[error("no CUDA client could see the partitions: {why}")]
    NotSeen {
        /// Why.
        why: String,
    },
}

fn said(sms: Option<u32>) -> String {
    sms.map_or_else(|| "nothing".to_owned(), |sms| sms.to_string())
}

/// All partitions of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Need {
    chunks: u32,
    sms: u32,
    gpus: BTreeSet<GpuUuid>,
    /// The only percentage that will do.
    fixed: Option<ThreadPercentage>,
    /// The percentage to begin with.
    guess: ThreadPercentage,
    /// Whether a client has seen the SMs under that guess before.
    known: bool,
}

/// The proof of a layout's shares under way: says which percentage a client probes next, and takes what it saw.
#[derive(Debug, Clone)]
pub struct Proving {
    needs: Vec<Need>,
    /// What was seen on each GPU, by tenths of a percent.
    seen: BTreeMap<u16, BTreeMap<GpuUuid, u32>>,
}

impl Proving {
    /// Begins with what is `proven` already; what was proven `earlier`, in another control process, is tried first and not
    /// believed.
    pub fn new(shares: &[Share], proven: &[ProvenShare], earlier: &[ProvenShare]) -> Self {
        let mut needs: BTreeMap<(u32, u32), Need> = BTreeMap::new();
        for share in shares {
            let before = earlier.iter().find(|before| before.chunks == share.chunks);
            let need = needs.entry((share.chunks, share.sms)).or_insert_with(|| Need {
                chunks: share.chunks,
                sms: share.sms,
                gpus: BTreeSet::new(),
                fixed: share.percentage,
                guess: before
                    .map_or_else(|| first_guess(share.sms, share.total_sms), |before| before.percentage),
                known: before.is_some(),
            });
            need.gpus.insert(share.gpu.clone());
        }
        let seen = proven.iter().map(|proven| (proven.percentage.tenths(), proven.seen.clone())).collect();
        Self { needs: needs.into_values().collect(), seen }
    }

    /// The least percentage that the server may hold so that a client sees what is to be proven: all of the GPU where a
    /// percentage has to be found.
    pub fn server_percentage(&self) -> Option<ThreadPercentage> {
        let least = |need: &Need| {
            let expected = need.fixed.or(need.known.then_some(need.guess));
            let untried = expected.filter(|expected| !self.seen.contains_key(&expected.tenths()));
            self.found(need).or(untried).or(need.fixed).unwrap_or(ThreadPercentage::FULL)
        };
        self.needs.iter().map(least).max()
    }

    /// The percentage that a client probes next; `None` when all is proven.
    pub fn next(&self) -> Result<Option<ThreadPercentage>, ShareFailure> {
        for need in &self.needs {
            if self.found(need).is_none() {
                return self.next_for(need).map(Some);
            }
        }
        Ok(None)
    }

    /// What a client saw under a percentage on each GPU.
    pub fn probed(&mut self, percentage: ThreadPercentage, sms: BTreeMap<GpuUuid, u32>) {
        self.seen.insert(percentage.tenths(), sms);
    }

    /// The GPUs that a client has to see.
    pub fn gpus(&self) -> BTreeSet<&GpuUuid> {
        self.needs.iter().flat_map(|need| &need.gpus).collect()
    }

    /// What is proven so far.
    pub fn proven(&self) -> Vec<ProvenShare> {
        let proven = self.needs.iter().filter_map(|need| {
            let percentage = self.found(need)?;
            let seen = need.gpus.iter().map(|gpu| (gpu.clone(), need.sms)).collect();
            Some(ProvenShare { chunks: need.chunks, percentage, seen })
        });
        proven.collect()
    }

    /// The percentage under which a client saw what is needed on all its GPUs.
    fn found(&self, need: &Need) -> Option<ThreadPercentage> {
        let holds =
            |seen: &BTreeMap<GpuUuid, u32>| need.gpus.iter().all(|gpu| seen.get(gpu) == Some(&need.sms));
        let mut tried = self.seen.iter().filter(|(_, seen)| holds(seen));
        let wanted = |tenths: u16| need.fixed.is_none_or(|fixed| fixed.tenths() == tenths);
        let (tenths, _) = tried.find(|(tenths, _)| wanted(**tenths))?;
        ThreadPercentage::from_tenths(*tenths).ok()
    }

    fn next_for(&self, need: &Need) -> Result<ThreadPercentage, ShareFailure> {
        match need.fixed {
            Some(fixed) => self.unless_it_differed(need, fixed),
            None => self.search(need),
        }
    }

    fn unless_it_differed(
        &self,
        need: &Need,
        percentage: ThreadPercentage,
    ) -> Result<ThreadPercentage, ShareFailure> {
        let Some(seen) = self.seen.get(&percentage.tenths()) else { return Ok(percentage) };
        let of = |gpu: &GpuUuid| seen.get(gpu).copied().unwrap_or(0);
        match need.gpus.iter().find(|gpu| of(gpu) != need.sms) {
            None => Ok(percentage),
            Some(gpu) => {
                let (gpu, seen) = (gpu.clone(), of(gpu));
                Err(ShareFailure::Differs { gpu, percentage, planned: need.sms, seen })
            }
        }
    }

    /// SMs never become fewer under a larger percentage, so halving what is left finds them.
    fn search(&self, need: &Need) -> Result<ThreadPercentage, ShareFailure> {
        let (mut low, mut high) = (0, ThreadPercentage::FULL.tenths() + 1);
        let (mut below, mut above): (Option<u32>, Option<u32>) = (None, None);
        let mut wrong = need.gpus.first();
        let probed = self
            .seen
            .iter()
            .flat_map(|(tenths, seen)| seen.iter().map(move |(gpu, sms)| (*tenths, gpu, *sms)));
        for (tenths, gpu, sms) in probed.filter(|(_, gpu, sms)| need.gpus.contains(*gpu) && *sms != need.sms)
        {
            if sms < need.sms {
                (low, below) = (low.max(tenths), below.max(Some(sms)));
            } else {
                (high, above) = (high.min(tenths), Some(above.map_or(sms, |least| least.min(sms))));
            }
            wrong = Some(gpu);
        }
        let guess = need.guess.tenths();
        let next = if low < guess && guess < high { guess } else { low.midpoint(high) };
        let untried = low < next && next < high && !self.seen.contains_key(&next);
        let next = ThreadPercentage::from_tenths(next).ok().filter(|_| untried);
        next.ok_or_else(|| match wrong {
            Some(gpu) => ShareFailure::NoPercentage { gpu: gpu.clone(), wanted: need.sms, below, above },
            None => ShareFailure::NotSeen { why: "no GPU has such a partition".to_owned() },
        })
    }
}

/// What the formula says, or else the plain proportion.
fn first_guess(sms: u32, total: u32) -> ThreadPercentage {
    let proportion = || {
        let tenths = (sms.saturating_mul(1000) / total.max(1)).clamp(1, 1000);
        ThreadPercentage::from_tenths(u16::try_from(tenths).unwrap_or(1000)).unwrap_or(ThreadPercentage::FULL)
    };
    percentage_for(sms, total).unwrap_or_else(proportion)
}

#[cfg(test)]
mod tests;
