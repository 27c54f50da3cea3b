//! Compares a daemon with a layout: its spec, the record, the partitions that were made, and those that are listed.

use serde::{Deserialize, Serialize};

use super::active::ActiveLayout;
use super::percentage::PlannedShare;
use super::record::{DriftKind, PartitionDrift, PartitionRun, Record, RecordedStep};
use super::status::LayoutState;
use super::{ResolvedStep, final_steps};
use crate::count::counted;
use crate::daemon::DaemonStatus;
use crate::partitions::GpuPartitions;
use crate::{DaemonName, GpuUuid, PartitionId, PartitionName};

/// Result of comparing a daemon with a layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Assertion {
    /// True if the daemon holds the layout.
    pub matches: bool,
    /// Number of partitions of the layout.
    pub partitions: usize,
    /// The differences; empty if the daemon holds the layout.
    pub differences: Vec<LayoutDifference>,
    /// Time of the poll of the daemon.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub observed_at: i64,
}

/// A difference between a layout and a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LayoutDifference {
    /// Kind of the difference.
    pub kind: DifferenceKind,
    /// The GPU, if the difference is about one.
    pub gpu: Option<GpuUuid>,
    /// The partition, if the difference is about one that a layout made.
    pub partition: Option<PartitionName>,
    /// The ID that it should have, where that is known.
    pub expected: Option<PartitionId>,
    /// The ID that it has.
    pub got: Option<PartitionId>,
    /// Description of the difference.
    pub message: String,
}

/// Kinds of differences between a layout and a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// The daemon's spec names another layout, another version or other GPUs, or none.
    Spec,
    /// A partition is not there.
    Missing,
    /// A partition has another number of chunks.
    OtherSize,
    /// A partition has another ID than the recorded one.
    OtherId,
    /// There is a partition that the layout does not have.
    Unknown,
    /// The partitions are there, but were made by other steps or in another order.
    OtherSteps,
    /// The daemon lists no partitions, since it does not run or does not answer.
    NotListed,
    /// Steps are under way, or were cut short.
    Unfinished,
    /// The thread percentage of a partition is not in force.
    NotInForce,
}

/// The state to compare with a layout.
#[derive(Debug, Clone, Copy)]
pub struct Asserted<'a> {
    /// The layout with its GPUs, as it should be in force.
    pub active: &'a ActiveLayout,
    /// Steps of the layout on these GPUs.
    pub steps: &'a [ResolvedStep],
    /// The ID of each step, where they are recorded.
    pub expected: Option<&'a [PartitionId]>,
    /// The layout in the daemon's spec.
    pub spec: Option<&'a ActiveLayout>,
    /// The run of the present control process, with the partitions that it made.
    pub run: Option<&'a PartitionRun>,
    /// Partitions that are listed now.
    pub present: &'a [GpuPartitions],
}

impl LayoutDifference {
    /// Creates a difference that is about no partition.
    fn general(kind: DifferenceKind, message: String) -> Self {
        Self { kind, gpu: None, partition: None, expected: None, got: None, message }
    }
}

impl From<PartitionDrift> for LayoutDifference {
    fn from(drift: PartitionDrift) -> Self {
        let message = drift.to_string();
        let PartitionDrift { kind, gpu, partition, id, .. } = drift;
        let (kind, got) = match kind {
            DriftKind::Missing => (DifferenceKind::Missing, None),
            DriftKind::OtherSize => (DifferenceKind::OtherSize, Some(id)),
            DriftKind::Unknown => (DifferenceKind::Unknown, Some(id)),
        };
        Self { kind, gpu: Some(gpu), partition, expected: None, got, message }
    }
}

/// Returns the difference if the daemon's spec names another layout, version or GPUs.
pub fn spec_difference(active: &ActiveLayout, spec: Option<&ActiveLayout>) -> Option<LayoutDifference> {
    let same = spec
        .is_some_and(|spec| (spec.version_ref(), &spec.gpu_map) == (active.version_ref(), &active.gpu_map));
    if same {
        return None;
    }
    let words = |layout: &ActiveLayout| {
        let map: Vec<String> = layout.gpu_map.iter().map(|(role, gpu)| format!("{role} on {gpu}")).collect();
        format!("{} ({})", layout.version_ref(), map.join(", "))
    };
    let message = format!(
        "the daemon's spec names {}, and not {}",
        spec.map_or_else(|| "no layout".to_owned(), words),
        words(active)
    );
    Some(LayoutDifference::general(DifferenceKind::Spec, message))
}

/// Returns the difference of a daemon that lists no partitions now; its message names the reason by the daemon's status.
pub fn not_listed(daemon: &DaemonName, status: &DaemonStatus) -> LayoutDifference {
    LayoutDifference::general(DifferenceKind::NotListed, status.without_partitions(daemon))
}

/// Returns the differences between a daemon in static mode and a layout.
pub fn differences(asserted: &Asserted<'_>) -> Vec<LayoutDifference> {
    let Asserted { active, steps, expected, spec, run, present } = *asserted;
    let nothing = Record::default();
    let record = run.map_or(&nothing, |run| &run.record);
    let mut differences: Vec<LayoutDifference> = spec_difference(active, spec).into_iter().collect();
    if run.is_some_and(|run| run.before.is_some()) {
        let message = "steps that change partitions are under way, or were cut short".to_owned();
        differences.push(LayoutDifference::general(DifferenceKind::Unfinished, message));
    }
    let before = differences.len();
    let stays: Vec<(usize, &ResolvedStep)> = final_steps(steps).collect();
    let expected = |name: &PartitionName| {
        let (number, _) = stays.iter().find(|(_, step)| step.partition == *name)?;
        expected?.get(*number)
    };
    let about = |kind, gpu: &GpuUuid, partition: &PartitionName, got, message| LayoutDifference {
        kind,
        gpu: Some(gpu.clone()),
        partition: Some(partition.clone()),
        expected: expected(partition).cloned(),
        got,
        message,
    };
    // The layout's partitions, under the IDs that they got here.
    let (live, mut made) = (record.live(), Record::default());
    for (_, ResolvedStep { gpu, partition, chunks, .. }) in &stays {
        if let Some(taken) = live.get(partition).filter(|taken| taken.gpu == *gpu) {
            made.0.push(RecordedStep { chunks: *chunks, ..(*taken).clone() });
        } else {
            let message = format!("partition {partition} of {} is not on {gpu}", counted(*chunks, "chunk"));
            differences.push(about(DifferenceKind::Missing, gpu, partition, None, message));
        }
    }
    let on_its_gpus = present.iter().filter(|gpu| steps.iter().any(|step| step.gpu == gpu.gpu));
    let drift = made.drift(&on_its_gpus.cloned().collect::<Vec<_>>());
    for RecordedStep { gpu, partition, id, .. } in &made.0 {
        let as_made = drift.iter().all(|drift| (&drift.gpu, &drift.id) != (gpu, id));
        if let Some(recorded) = expected(partition).filter(|recorded| as_made && *recorded != id) {
            let message = format!("partition {partition} has the ID {id}, and {recorded} is recorded");
            differences.push(about(DifferenceKind::OtherId, gpu, partition, Some(id.clone()), message));
        }
    }
    for drift in drift {
        // One that a step of the layout should have removed has a name.
        let taken = live.values().find(|taken| (&taken.gpu, &taken.id) == (&drift.gpu, &drift.id));
        let partition = drift.partition.clone().or_else(|| taken.map(|taken| taken.partition.clone()));
        let expected = partition.as_ref().and_then(expected).cloned();
        differences.push(LayoutDifference { expected, ..PartitionDrift { partition, ..drift }.into() });
    }
    if differences.len() == before && !record.is_of(steps) {
        let message = "the partitions are there, but were made by other steps than the layout's".to_owned();
        differences.push(LayoutDifference::general(DifferenceKind::OtherSteps, message));
    }
    differences
}

/// Returns the differences between a daemon and a layout of thread percentages: its spec, the shares that are in force, and the
/// percentage that its servers hold now.
pub fn share_differences(
    active: &ActiveLayout,
    spec: Option<&ActiveLayout>,
    shares: &[PlannedShare],
    status: &DaemonStatus,
) -> Vec<LayoutDifference> {
    let layout = status.layout.iter().filter(|layout| layout.state == LayoutState::Applied);
    let in_force: Vec<_> = layout
        .flat_map(|layout| &layout.partitions)
        .map(|applied| (&applied.partition, &applied.gpu, applied.percentage))
        .collect();
    let servers = status.effective.iter().flat_map(|effective| &effective.servers);
    let held = servers.filter_map(|server| server.active_thread_percentage).min();
    let difference = |share: &PlannedShare| {
        let PlannedShare { partition, gpu, sms, percentage, .. } = share;
        let message = if in_force.contains(&(partition, gpu, Some(*percentage))) {
            let held = held.filter(|held| held < percentage)?;
            format!(
                "the server holds {held} %, and partition {partition} needs {percentage} %: another program has changed it"
            )
        } else {
            format!("partition {partition} of {sms} SMs on {gpu} is not in force")
        };
        let (gpu, partition) = (Some(gpu.clone()), Some(partition.clone()));
        Some(LayoutDifference {
            gpu,
            partition,
            ..LayoutDifference::general(DifferenceKind::NotInForce, message)
        })
    };
    spec_difference(active, spec).into_iter().chain(shares.iter().filter_map(difference)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::PartitionChange;
    use super::DifferenceKind::{Missing, OtherId, OtherSize, OtherSteps, Spec, Unfinished, Unknown};
    use super::*;
    use crate::partitions::ListedPartition;
    use crate::testing::h200;

    fn partition(name: &str) -> PartitionName {
        PartitionName::parse(name).expect("a name")
    }

    fn id(text: &str) -> PartitionId {
        PartitionId::parse(text).expect("an ID")
    }

    fn step(name: &str, chunks: u32, change: PartitionChange) -> ResolvedStep {
        ResolvedStep { gpu: h200(0).uuid, partition: partition(name), chunks, change }
    }

    fn made(step: &ResolvedStep, text: &str) -> RecordedStep {
        let ResolvedStep { gpu, partition, chunks, change } = step.clone();
        RecordedStep { gpu, partition, chunks, change, id: id(text) }
    }

    fn listed(ids: &[(&str, u32)]) -> Vec<GpuPartitions> {
        let partition = |(text, chunks): &(&str, u32)| ListedPartition {
            id: id(text),
            chunks: *chunks,
            sms: chunks * 8,
            in_use: None,
            clients: Vec::new(),
        };
        vec![GpuPartitions {
            gpu: h200(0).uuid,
            free_chunks: 0,
            used_chunks: 0,
            free_sms: 0,
            used_sms: 0,
            partitions: ids.iter().map(partition).collect(),
        }]
    }

    fn active(version: u32) -> ActiveLayout {
        serde_json::from_value(serde_json::json!({
            "name": "l", "version": version, "gpu_map": {"0": h200(0).uuid},
        }))
        .expect("a layout")
    }

    #[test]
    fn every_layout_difference_is_named() {
        let steps = [
            step("old", 1, PartitionChange::Add),
            step("web", 7, PartitionChange::Add),
            step("old", 1, PartitionChange::Remove),
            step("batch", 2, PartitionChange::Add),
        ];
        let ids = ["o", "w", "o", "b"];
        let record = Record(steps.iter().zip(ids).map(|(step, id)| made(step, id)).collect());
        let run = |record: Record| PartitionRun { record, ..PartitionRun::new("t".into()) };
        let (whole, now) = (run(record.clone()), active(2));
        let expected: Vec<PartitionId> = ids.iter().map(|text| id(text)).collect();
        let right = listed(&[("w", 7), ("b", 2)]);
        let asserted = Asserted {
            active: &now,
            steps: &steps,
            expected: Some(&expected),
            spec: Some(&now),
            run: Some(&whole),
            present: &right,
        };
        assert_eq!(differences(&asserted), []);
        let kinds = |asserted: &Asserted<'_>| -> Vec<DifferenceKind> {
            differences(asserted).iter().map(|difference| difference.kind).collect()
        };
        let other = active(1);
        assert_eq!(kinds(&Asserted { spec: Some(&other), ..asserted }), [Spec]);
        assert_eq!(kinds(&Asserted { spec: None, ..asserted }), [Spec]);
        for (ids, kind) in [
            (vec![("b", 2)], Missing),
            (vec![("w", 6), ("b", 2)], OtherSize),
            (vec![("w", 7), ("b", 2), ("x", 1)], Unknown),
        ] {
            assert_eq!(kinds(&Asserted { present: &listed(&ids), ..asserted }), [kind], "{ids:?}");
        }
        let elsewhere = [id("o"), id("v"), id("o"), id("b")];
        let differing = differences(&Asserted { expected: Some(&elsewhere), ..asserted });
        assert_eq!(
            (differing[0].kind, &differing[0].expected, &differing[0].got),
            (OtherId, &Some(id("v")), &Some(id("w")))
        );
        assert_eq!(kinds(&Asserted { run: None, ..asserted }), [Missing, Missing, Unknown, Unknown]);
        let unfinished = PartitionRun { before: Some(std::collections::BTreeMap::new()), ..whole.clone() };
        assert_eq!(kinds(&Asserted { run: Some(&unfinished), ..asserted }), [Unfinished]);
        // The same partitions by other steps: the next partition made would not get the ID that the layout gives.
        let direct = run(Record(vec![record.0[1].clone(), record.0[3].clone()]));
        assert_eq!(kinds(&Asserted { run: Some(&direct), ..asserted }), [OtherSteps]);
        // One that an earlier step has made and a later one should have removed.
        let cut = run(Record(vec![record.0[0].clone(), record.0[1].clone()]));
        let cut_kinds =
            kinds(&Asserted { run: Some(&cut), present: &listed(&[("o", 1), ("w", 7)]), ..asserted });
        assert_eq!(cut_kinds, [Missing, Unknown]);
    }
}
