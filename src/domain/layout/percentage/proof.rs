//! The proof of a layout of thread percentages: chooses the percentage that a CUDA client probes next, and keeps what clients saw.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::PlannedShare;
use crate::percentage::percentage_for;
use crate::{GpuUuid, ThreadPercentage};

/// The proof by a CUDA client for all partitions of one size.
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

/// Reason for which partitions are not proven.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ShareFailure {
    /// A client saw other SMs than the formula says.
    #[error(
        "under {percentage} % a CUDA client saw {seen} SMs of {gpu}, and {planned} were planned: does the server hold a smaller \
         percentage, or did the driver change?"
    )]
    Differs {
        /// The GPU.
        gpu: GpuUuid,
        /// The percentage.
        percentage: ThreadPercentage,
        /// Number of planned SMs.
        planned: u32,
        /// Number of SMs that the client saw.
        seen: u32,
    },
    /// No percentage gives the SMs.
    #[error(
        "no thread percentage gives a CUDA client {planned} SMs of {gpu}: it saw {} below that and {} above; choose another \
         number of chunks", shown(*.below), shown(*.above)
    )]
    NoPercentage {
        /// The GPU.
        gpu: GpuUuid,
        /// Number of planned SMs.
        planned: u32,
        /// Most SMs that were seen below that number; `null` where none were.
        below: Option<u32>,
        /// Fewest SMs that were seen above that number; `null` where none were.
        above: Option<u32>,
    },
    /// No client could run, or it did not see what it should.
    #[error("no CUDA client could see the partitions: {why}")]
    NotSeen {
        /// Reason for the failure.
        why: String,
    },
}

fn shown(sms: Option<u32>) -> String {
    sms.map_or_else(|| "nothing".to_owned(), |sms| sms.to_string())
}

/// The partitions of one size, and the percentage to find for them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Need {
    chunks: u32,
    sms: u32,
    gpus: BTreeSet<GpuUuid>,
    /// The only percentage that will do, where the formula was measured.
    fixed: Option<ThreadPercentage>,
    /// The percentage to begin with.
    guess: ThreadPercentage,
    /// True if a client has seen the SMs under that guess before.
    known: bool,
}

/// An ongoing proof of a layout's shares: gives the percentage that a client probes next, and takes the SMs that it saw.
#[derive(Debug, Clone)]
pub struct Proving {
    needs: Vec<Need>,
    /// SMs that were seen on each GPU, by tenths of a percent.
    seen: BTreeMap<u16, BTreeMap<GpuUuid, u32>>,
}

impl Proving {
    /// Begins with the shares that are already `proven`. Those proven `earlier`, in another control process, are only tried first.
    pub fn new(shares: &[PlannedShare], proven: &[ProvenShare], earlier: &[ProvenShare]) -> Self {
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

    /// Returns the least percentage that the server may hold so that a client sees the SMs to be proven: 100 % where a percentage has to
    /// be found.
    pub fn server_percentage(&self) -> Option<ThreadPercentage> {
        let least = |need: &Need| {
            let expected = need.fixed.or(need.known.then_some(need.guess));
            let untried = expected.filter(|expected| !self.seen.contains_key(&expected.tenths()));
            self.found(need).or(untried).or(need.fixed).unwrap_or(ThreadPercentage::FULL)
        };
        self.needs.iter().map(least).max()
    }

    /// Returns the percentage that a client probes next; `None` when everything is proven.
    pub fn next(&self) -> Result<Option<ThreadPercentage>, ShareFailure> {
        for need in &self.needs {
            if self.found(need).is_none() {
                return self.next_for(need).map(Some);
            }
        }
        Ok(None)
    }

    /// Takes the SMs that a client saw under a percentage on each GPU.
    pub fn probed(&mut self, percentage: ThreadPercentage, sms: BTreeMap<GpuUuid, u32>) {
        self.seen.insert(percentage.tenths(), sms);
    }

    /// Returns the GPUs that a client has to see.
    pub fn gpus(&self) -> BTreeSet<&GpuUuid> {
        self.needs.iter().flat_map(|need| &need.gpus).collect()
    }

    /// Returns the shares that are proven so far.
    pub fn proven(&self) -> Vec<ProvenShare> {
        let proven = self.needs.iter().filter_map(|need| {
            let percentage = self.found(need)?;
            let seen = need.gpus.iter().map(|gpu| (gpu.clone(), need.sms)).collect();
            Some(ProvenShare { chunks: need.chunks, percentage, seen })
        });
        proven.collect()
    }

    /// Returns the percentage under which a client saw the needed SMs on all its GPUs.
    fn found(&self, need: &Need) -> Option<ThreadPercentage> {
        let holds =
            |seen: &BTreeMap<GpuUuid, u32>| need.gpus.iter().all(|gpu| seen.get(gpu) == Some(&need.sms));
        let mut tried = self.seen.iter().filter(|(_, seen)| holds(seen));
        let fits = |tenths: u16| need.fixed.is_none_or(|fixed| fixed.tenths() == tenths);
        let (tenths, _) = tried.find(|(tenths, _)| fits(**tenths))?;
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

    /// Returns the percentage to probe next by bisection: a larger percentage never gives fewer SMs.
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
            Some(gpu) => ShareFailure::NoPercentage { gpu: gpu.clone(), planned: need.sms, below, above },
            None => ShareFailure::NotSeen { why: "no GPU has such a partition".to_owned() },
        })
    }
}

/// Returns the percentage by the formula, or else the plain proportion.
fn first_guess(sms: u32, total: u32) -> ThreadPercentage {
    let proportion = || {
        let tenths = (sms.saturating_mul(1000) / total.max(1)).clamp(1, 1000);
        ThreadPercentage::from_tenths(u16::try_from(tenths).unwrap_or(1000)).unwrap_or(ThreadPercentage::FULL)
    };
    percentage_for(sms, total).unwrap_or_else(proportion)
}
