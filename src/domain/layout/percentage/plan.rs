//! Plans the changes after which a daemon holds a layout of thread percentages.

use std::collections::{BTreeMap, BTreeSet};

use super::PlannedShare;
use crate::GpuUuid;
use crate::gpu::ChunkCensus;
use crate::layout::Enforcement;
use crate::layout::blocked::Blocked;
use crate::layout::plan::{Action, Chunks, GpuTotals, Plan, PlannedStep, Reason};

/// Returns the changes from the shares `before` to those `desired`.
///
/// No step is a command: a share that is added is handed out to its tenants, and one that is removed is handed out no more.
/// Clients that run keep what they have, so only the number of chunks can block the plan.
pub fn plan(
    desired: &[PlannedShare],
    before: &[PlannedShare],
    census: &BTreeMap<GpuUuid, ChunkCensus>,
) -> Plan {
    let same = |a: &PlannedShare, b: &PlannedShare| {
        (&a.gpu, &a.partition, a.chunks) == (&b.gpu, &b.partition, b.chunks)
    };
    let stays = |share: &PlannedShare| before.iter().any(|earlier| same(earlier, share));
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
    let step = |share: &PlannedShare, action, reason, before: Chunks, after: Chunks| PlannedStep {
        action,
        reason,
        step: (action != Action::Remove).then_some(share.step),
        gpu: share.gpu.clone(),
        partition: Some(share.partition.clone()),
        chunks: share.chunks,
        sms: share.sms,
        enforcement: Enforcement::Percentage,
        percentage: Some(share.percentage),
        id: None,
        expected: None,
        before,
        after,
        clients: Vec::new(),
    };
    let mut uncounted = BTreeSet::new();
    for share in desired.iter().filter(|share| stays(share)) {
        match now.get(&share.gpu) {
            Some(chunks) => steps.push(step(share, Action::Keep, Reason::Layout, *chunks, *chunks)),
            None => _ = uncounted.insert(&share.gpu),
        }
    }
    for share in before.iter().rev().filter(|share| !desired.iter().any(|kept| same(kept, share))) {
        let Some(chunks) = now.get_mut(&share.gpu) else { continue };
        let earlier = *chunks;
        *chunks = Chunks { free: chunks.free + share.chunks, used: chunks.used.saturating_sub(share.chunks) };
        let again = desired.iter().any(|kept| (&kept.gpu, &kept.partition) == (&share.gpu, &share.partition));
        let reason = if again { Reason::MadeAgain } else { Reason::NotInLayout };
        steps.push(step(share, Action::Remove, reason, earlier, *chunks));
    }
    for share in desired.iter().filter(|share| !stays(share)) {
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
    let taken = desired.iter().filter(|share| stays(share)).map(|share| share.step).collect();
    Plan { steps, taken, gpus, blocked, reserves_nothing: true }
}
