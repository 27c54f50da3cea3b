//! Plans the changes after which a daemon holds a layout: pure, from the layout, the record of what was made before, and the present list.
//!
//! A daemon's allocator goes by what is reserved and by the size requested. So the state after the first steps of a layout is reached
//! again, IDs included, by removing everything else, as long as the partitions of that state are still there. For each GPU the longest
//! such beginning is kept and never touched, everything else is removed, and the remaining steps follow. A partition of the layout that
//! has to be removed is *made again*, since otherwise it would not have the ID that the layout gives; that is only done when it is
//! requested.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::blocked::Blocked;
use super::record::{Record, RecordedStep};
use super::{Enforcement, PartitionChange, ResolvedStep};
use crate::client::ClientId;
use crate::partitions::{GpuPartitions, ListedPartition, PartitionRef};
use crate::{GpuUuid, PartitionId, PartitionName, ThreadPercentage};

/// Input of a plan.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The steps of the layout, from empty GPUs.
    pub steps: &'a [ResolvedStep],
    /// The ID of each step, where they are recorded for these GPUs.
    pub expected: Option<&'a [PartitionId]>,
    /// Steps that were taken in the present control process.
    pub record: &'a Record,
    /// The IDs that were there before a session that was cut short.
    pub before: Option<&'a BTreeMap<GpuUuid, BTreeSet<PartitionId>>>,
    /// Partitions that are listed now.
    pub present: &'a [GpuPartitions],
    /// SMs of a chunk of each GPU.
    pub chunk_sms: &'a BTreeMap<GpuUuid, u32>,
    /// The living processes that were admitted to a partition, connected or not.
    pub admitted: &'a BTreeMap<PartitionRef, Vec<ClientId>>,
}

/// The steps that lead to a layout, and their blockers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Plan {
    /// Steps in the order in which they are done: partitions that are kept, then removals, then the rest of the layout.
    pub steps: Vec<PlannedStep>,
    /// The steps of the layout, counted from 0, that were taken before and whose result is still there.
    pub taken: Vec<usize>,
    /// Chunks and SMs of each GPU, before and after the plan.
    pub gpus: Vec<GpuTotals>,
    /// Reasons for which the plan cannot be carried out, or not without confirmation.
    pub blocked: Vec<Blocked>,
    /// True if its partitions are thread percentages, which reserve no SMs: clients of other partitions may run on them.
    #[serde(default)]
    pub reserves_nothing: bool,
}

/// One step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PlannedStep {
    /// Change of the partition.
    pub action: Action,
    /// Reason for the step.
    pub reason: Reason,
    /// The step of the layout, counted from 0; `null` for the removal of a partition that the layout does not have.
    pub step: Option<usize>,
    /// The GPU.
    pub gpu: GpuUuid,
    /// The partition; `null` for one that no layout of this manager made.
    pub partition: Option<PartitionName>,
    /// Its chunks.
    pub chunks: u32,
    /// The SMs that its chunks make. A client may see more, since SMs outside whole chunks may be added to a partition.
    pub sms: u32,
    /// The mechanism that enforces the partition; a percentage takes no command.
    #[serde(default)]
    pub enforcement: Enforcement,
    /// The thread percentage that enforces it; left out where the partition is static.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percentage: Option<ThreadPercentage>,
    /// Its ID, if the partition is already there.
    pub id: Option<PartitionId>,
    /// The recorded ID that it is to have; `null` where none is recorded.
    pub expected: Option<PartitionId>,
    /// Chunks of the GPU before the step.
    pub before: Chunks,
    /// Chunks of the GPU after the step.
    pub after: Chunks,
    /// The clients that hold it.
    pub clients: Vec<ClientId>,
}

/// The change of a partition by a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It stays as it is.
    Keep,
    /// It is made.
    Add,
    /// It is removed.
    Remove,
}

/// Reason for a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The layout has this step.
    Layout,
    /// The layout does not have it.
    NotInLayout,
    /// It is made again in the layout's order, so that it gets the ID that the layout gives.
    MadeAgain,
    /// It was made by steps that were cut short.
    CutShort,
    /// Another program made it.
    Unknown,
}

/// Chunks of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Chunks {
    /// Chunks that a new partition could have.
    pub free: u32,
    /// Chunks in partitions.
    pub used: u32,
}

/// Chunks and SMs of a GPU in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct GpuTotals {
    /// The GPU.
    pub gpu: GpuUuid,
    /// SMs of a chunk; 0 where they are not known.
    pub chunk_sms: u32,
    /// SMs of the GPU.
    pub sms: u32,
    /// Chunks before the plan.
    pub before: Chunks,
    /// Chunks after the plan.
    pub after: Chunks,
    /// SMs that make no whole chunk.
    pub left_over_sms: u32,
}

impl Plan {
    /// Returns true if nothing has to be done.
    pub fn is_empty(&self) -> bool {
        self.steps.iter().all(|step| step.action == Action::Keep)
    }

    /// Returns the blockers; with `recreate`, without partitions that only have to be recreated.
    pub fn refusals(&self, recreate: bool) -> impl Iterator<Item = &Blocked> {
        self.blocked.iter().filter(move |blocked| !(recreate && matches!(blocked, Blocked::MadeAgain { .. })))
    }
}

impl PlannedStep {
    /// Returns the command of the step, as the control daemon takes it; `None` where nothing is done, a percentage is enough, or the ID is
    /// not known yet.
    pub fn command(&self) -> Option<String> {
        match self.action {
            Action::Keep => None,
            _ if self.enforcement == Enforcement::Percentage => None,
            Action::Add => Some(add_command(&self.gpu, self.chunks)),
            Action::Remove => self.id.as_ref().map(|id| remove_command(&self.gpu, id)),
        }
    }
}

/// Returns the command that makes a partition.
pub fn add_command(gpu: &GpuUuid, chunks: u32) -> String {
    format!("sm_partition add {gpu} {chunks}")
}

/// Returns the command that removes a partition.
pub fn remove_command(gpu: &GpuUuid, id: &PartitionId) -> String {
    format!("sm_partition rm {gpu}/{id}")
}

/// Plans the steps that lead from the present partitions to the layout.
pub fn plan(given: &PlanInput<'_>) -> Plan {
    let mut planning = Planning::new(given);
    let mut done: BTreeSet<usize> = BTreeSet::new();
    let mut gone: Vec<(Reason, Option<PartitionName>, GpuUuid, ListedPartition)> = Vec::new();
    for gpu in touched(given) {
        let Some(present) = given.present.iter().find(|present| present.gpu == gpu) else {
            planning.blocked.push(Blocked::NotListed { gpu });
            continue;
        };
        let kept = kept(given, present);
        done.extend(&kept.steps);
        for (step, name, listed) in &kept.partitions {
            planning.keep(*step, name, &gpu, listed);
        }
        let stays =
            |listed: &ListedPartition| kept.partitions.iter().any(|(_, _, kept)| kept.id == listed.id);
        // The newest first.
        for listed in present.partitions.iter().rev().filter(|listed| !stays(listed)) {
            let (reason, name) = why_it_goes(given, &gpu, listed);
            gone.push((reason, name, gpu.clone(), listed.clone()));
        }
    }
    for (reason, name, gpu, listed) in gone {
        planning.take_away(reason, name, &gpu, &listed);
    }
    for (number, step) in given.steps.iter().enumerate().filter(|(number, _)| !done.contains(number)) {
        planning.follow(number, step);
    }
    planning.finish(done.into_iter().collect())
}

/// Returns the GPUs that the plan may touch: those with steps, those where an earlier layout made something, and those of a session that
/// was cut short.
fn touched(given: &PlanInput<'_>) -> Vec<GpuUuid> {
    let mut gpus: Vec<GpuUuid> = Vec::new();
    let named = given.steps.iter().map(|step| &step.gpu).chain(given.record.0.iter().map(|step| &step.gpu));
    let cut_short = given.before.into_iter().flat_map(BTreeMap::keys);
    for gpu in named.chain(cut_short) {
        if !gpus.contains(gpu) {
            gpus.push(gpu.clone());
        }
    }
    gpus
}

/// The longest beginning of the layout whose state is still there.
struct KeptSteps<'a> {
    /// The steps that need not be taken again.
    steps: Vec<usize>,
    /// The partitions of that state: the step, the name that the layout gives, and what is listed.
    partitions: Vec<(usize, &'a PartitionName, &'a ListedPartition)>,
}

fn kept<'a>(given: &PlanInput<'a>, present: &'a GpuPartitions) -> KeptSteps<'a> {
    let desired: Vec<(usize, &ResolvedStep)> =
        given.steps.iter().enumerate().filter(|(_, step)| step.gpu == present.gpu).collect();
    let taken: Vec<&RecordedStep> = given.record.0.iter().filter(|step| step.gpu == present.gpu).collect();
    for length in (1..=common(&desired, &taken)).rev() {
        let mut live: Vec<(usize, &PartitionName, &PartitionId, u32)> = Vec::new();
        let mut as_expected = true;
        for ((number, step), taken) in desired.iter().zip(&taken).take(length) {
            as_expected &= given.expected.is_none_or(|ids| ids.get(*number) == Some(&taken.id));
            match step.change {
                PartitionChange::Add => live.push((*number, &step.partition, &taken.id, step.chunks)),
                PartitionChange::Remove => live.retain(|(_, name, _, _)| *name != &step.partition),
            }
        }
        let listed: Option<Vec<_>> = live
            .iter()
            .map(|(number, name, id, chunks)| {
                let listed = present.get(id).filter(|listed| listed.chunks == *chunks)?;
                Some((*number, *name, listed))
            })
            .collect();
        if let Some(partitions) = listed.filter(|_| as_expected) {
            let steps = desired.iter().take(length).map(|(number, _)| *number).collect();
            return KeptSteps { steps, partitions };
        }
    }
    KeptSteps { steps: Vec::new(), partitions: Vec::new() }
}

/// Returns the number of steps at the beginning that are equal for the daemon, whatever the partitions are called.
fn common(desired: &[(usize, &ResolvedStep)], taken: &[&RecordedStep]) -> usize {
    let mut called: BTreeMap<&PartitionName, &PartitionName> = BTreeMap::new();
    desired
        .iter()
        .zip(taken)
        .take_while(|((_, step), taken)| match (step.change, taken.change) {
            (PartitionChange::Add, PartitionChange::Add) => {
                called.insert(&step.partition, &taken.partition);
                step.chunks == taken.chunks
            }
            (PartitionChange::Remove, PartitionChange::Remove) => {
                called.get(&step.partition) == Some(&&taken.partition)
            }
            _ => false,
        })
        .count()
}

fn why_it_goes(
    given: &PlanInput<'_>,
    gpu: &GpuUuid,
    listed: &ListedPartition,
) -> (Reason, Option<PartitionName>) {
    let live = given.record.live();
    let ours = live.values().find(|step| step.gpu == *gpu && step.id == listed.id);
    if let Some(ours) = ours {
        // Also on another GPU: its clients cannot stay.
        let stays = final_partitions(given.steps).any(|step| step.partition == ours.partition);
        let reason = if stays { Reason::MadeAgain } else { Reason::NotInLayout };
        return (reason, Some(ours.partition.clone()));
    }
    let cut_short =
        given.before.is_some_and(|before| !before.get(gpu).is_some_and(|ids| ids.contains(&listed.id)));
    (if cut_short { Reason::CutShort } else { Reason::Unknown }, None)
}

/// Returns the partitions that are there after all steps.
fn final_partitions(steps: &[ResolvedStep]) -> impl Iterator<Item = &ResolvedStep> {
    let removed: BTreeSet<&PartitionName> = steps
        .iter()
        .filter(|step| step.change == PartitionChange::Remove)
        .map(|step| &step.partition)
        .collect();
    steps.iter().filter(move |step| !removed.contains(&step.partition))
}

/// A plan under way, with the chunks of each GPU as they are after the steps so far.
struct Planning<'a> {
    given: &'a PlanInput<'a>,
    chunks: BTreeMap<GpuUuid, Chunks>,
    steps: Vec<PlannedStep>,
    blocked: Vec<Blocked>,
}

impl<'a> Planning<'a> {
    fn new(given: &'a PlanInput<'a>) -> Self {
        let chunks = given
            .present
            .iter()
            .map(|gpu| (gpu.gpu.clone(), Chunks { free: gpu.free_chunks, used: gpu.used_chunks }))
            .collect();
        Self { given, chunks, steps: Vec::new(), blocked: Vec::new() }
    }

    fn chunks(&self, gpu: &GpuUuid) -> Chunks {
        self.chunks.get(gpu).copied().unwrap_or(Chunks { free: 0, used: 0 })
    }

    fn sms(&self, gpu: &GpuUuid, chunks: u32) -> u32 {
        self.given.chunk_sms.get(gpu).copied().unwrap_or(0).saturating_mul(chunks)
    }

    fn expected(&self, step: usize) -> Option<PartitionId> {
        self.given.expected.and_then(|ids| ids.get(step)).cloned()
    }

    fn keep(&mut self, step: usize, name: &PartitionName, gpu: &GpuUuid, listed: &ListedPartition) {
        let chunks = self.chunks(gpu);
        self.steps.push(PlannedStep {
            action: Action::Keep,
            reason: Reason::Layout,
            step: Some(step),
            gpu: gpu.clone(),
            partition: Some(name.clone()),
            chunks: listed.chunks,
            sms: listed.sms,
            enforcement: Enforcement::Static,
            percentage: None,
            id: Some(listed.id.clone()),
            expected: self.expected(step),
            before: chunks,
            after: chunks,
            clients: listed.clients.clone(),
        });
    }

    fn take_away(
        &mut self,
        reason: Reason,
        partition: Option<PartitionName>,
        gpu: &GpuUuid,
        listed: &ListedPartition,
    ) {
        let before = self.chunks(gpu);
        let after = self.changed(gpu, PartitionChange::Remove, listed.chunks);
        let id = listed.id.clone();
        if let Some(clients) = self.holders(gpu, listed) {
            self.blocked.push(Blocked::InUse {
                partition: partition.clone(),
                gpu: gpu.clone(),
                id: id.clone(),
                clients,
            });
        }
        if let Some(partition) = partition.clone().filter(|_| reason == Reason::MadeAgain) {
            self.blocked.push(Blocked::MadeAgain { partition, gpu: gpu.clone(), id: id.clone() });
        }
        self.steps.push(PlannedStep {
            action: Action::Remove,
            reason,
            step: None,
            gpu: gpu.clone(),
            partition,
            chunks: listed.chunks,
            sms: listed.sms,
            enforcement: Enforcement::Static,
            percentage: None,
            id: Some(id),
            expected: None,
            before,
            after,
            clients: listed.clients.clone(),
        });
    }

    /// Adds a step of the layout.
    fn follow(&mut self, number: usize, step: &ResolvedStep) {
        let before = self.chunks(&step.gpu);
        if step.change == PartitionChange::Add && step.chunks > before.free {
            self.blocked.push(Blocked::TooManyChunks {
                step: number,
                partition: step.partition.clone(),
                gpu: step.gpu.clone(),
                requested: step.chunks,
                free: before.free,
            });
            // The steps after it are shown as they would be without it.
            return;
        }
        let after = self.changed(&step.gpu, step.change, step.chunks);
        let id = self.known_id(step);
        let listed = id.as_ref().and_then(|id| self.listed(&step.gpu, id));
        let clients = listed.map_or_else(Vec::new, |listed| listed.clients.clone());
        let held = listed.and_then(|listed| Some((listed.id.clone(), self.holders(&step.gpu, listed)?)));
        if let Some((id, clients)) = held {
            let (partition, gpu) = (Some(step.partition.clone()), step.gpu.clone());
            self.blocked.push(Blocked::InUse { partition, gpu, id, clients });
        }
        self.steps.push(PlannedStep {
            action: if step.change == PartitionChange::Add { Action::Add } else { Action::Remove },
            reason: Reason::Layout,
            step: Some(number),
            gpu: step.gpu.clone(),
            partition: Some(step.partition.clone()),
            chunks: step.chunks,
            sms: self.sms(&step.gpu, step.chunks),
            enforcement: Enforcement::Static,
            percentage: None,
            id,
            expected: self.expected(number),
            before,
            after,
            clients,
        });
    }

    /// Returns the ID of a partition that a kept step made and this one removes.
    fn known_id(&self, step: &ResolvedStep) -> Option<PartitionId> {
        let same = |kept: &&PlannedStep| {
            kept.action == Action::Keep
                && kept.gpu == step.gpu
                && kept.partition.as_ref() == Some(&step.partition)
        };
        let kept = self.steps.iter().find(same).filter(|_| step.change == PartitionChange::Remove)?;
        kept.id.clone()
    }

    /// Returns the processes that block a removal: clients, and processes that were admitted and may connect at any moment.
    fn holders(&self, gpu: &GpuUuid, listed: &ListedPartition) -> Option<Vec<ClientId>> {
        let partition = PartitionRef { gpu: gpu.clone(), id: listed.id.clone() };
        let admitted = self.given.admitted.get(&partition);
        if !listed.is_held() && admitted.is_none() {
            return None;
        }
        let others = admitted.into_iter().flatten().filter(|holder| !listed.clients.contains(holder));
        Some(listed.clients.iter().chain(others).copied().collect())
    }

    fn listed(&self, gpu: &GpuUuid, id: &PartitionId) -> Option<&'a ListedPartition> {
        self.given.present.iter().find(|present| present.gpu == *gpu)?.get(id)
    }

    fn changed(&mut self, gpu: &GpuUuid, change: PartitionChange, chunks: u32) -> Chunks {
        let now = self.chunks.entry(gpu.clone()).or_insert(Chunks { free: 0, used: 0 });
        let (from, to) = match change {
            PartitionChange::Add => (&mut now.free, &mut now.used),
            PartitionChange::Remove => (&mut now.used, &mut now.free),
        };
        *from = from.saturating_sub(chunks);
        *to = to.saturating_add(chunks);
        *now
    }

    fn finish(self, taken: Vec<usize>) -> Plan {
        let gpus = self
            .given
            .present
            .iter()
            .map(|gpu| {
                let chunk_sms = self.given.chunk_sms.get(&gpu.gpu).copied().unwrap_or(0);
                let sms = gpu.free_sms + gpu.used_sms;
                let whole = (gpu.free_chunks + gpu.used_chunks).saturating_mul(chunk_sms);
                GpuTotals {
                    gpu: gpu.gpu.clone(),
                    chunk_sms,
                    sms,
                    before: Chunks { free: gpu.free_chunks, used: gpu.used_chunks },
                    after: self.chunks(&gpu.gpu),
                    left_over_sms: sms.saturating_sub(whole),
                }
            })
            .collect();
        Plan { steps: self.steps, taken, gpus, blocked: self.blocked, reserves_nothing: false }
    }
}
