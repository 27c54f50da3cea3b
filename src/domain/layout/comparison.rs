//! Comparison of a layout on daemons of two hosts.

use serde::Deserialize;

use super::status::{LayoutState, LayoutStatus, PartitionStatus};
use crate::{DaemonName, LayoutName, PartitionId, PartitionName, ThreadPercentage};

/// A layout on a daemon of a host, which may run another version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLayout {
    /// The daemon.
    pub daemon: DaemonName,
    /// The layout's name.
    pub name: LayoutName,
    /// Its observed state; `None` for one that this version does not know.
    pub state: Option<LayoutState>,
    /// Its partitions.
    pub partitions: Vec<HeldPartition>,
}

/// A partition of a daemon of a host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct HeldPartition {
    /// Its name.
    pub partition: PartitionName,
    /// Its ID; `None` where it is not handed out, or has none.
    #[serde(default)]
    pub id: Option<PartitionId>,
    /// Its chunks.
    pub chunks: u32,
    /// Its SMs, where they are known.
    #[serde(default)]
    pub sms: Option<u32>,
    /// The thread percentage of its tenants, where it is not static.
    #[serde(default)]
    pub percentage: Option<ThreadPercentage>,
}

impl HeldLayout {
    /// Returns the layout of a daemon; `None` where it has none.
    pub fn of(daemon: &DaemonName, status: Option<&LayoutStatus>) -> Option<Self> {
        let status = status?;
        let partition = |status: &PartitionStatus| HeldPartition {
            partition: status.partition.clone(),
            id: status.id.clone(),
            chunks: status.chunks,
            sms: status.sms,
            percentage: status.percentage,
        };
        Some(Self {
            daemon: daemon.clone(),
            name: status.name.clone()?,
            state: Some(status.state),
            partitions: status.partitions.iter().map(partition).collect(),
        })
    }

    /// Returns true if it is as it was applied.
    pub fn is_in_force(&self) -> bool {
        self.state == Some(LayoutState::Applied)
    }
}

/// A layout on two daemons of different hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayoutComparison {
    /// Its partitions, in the order of the first daemon; those that only the second has come last.
    pub partitions: Vec<ComparedPartition>,
}

/// A partition on two daemons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComparedPartition {
    /// Its name.
    pub name: PartitionName,
    /// The partition on each daemon; `None` where it does not exist.
    pub sides: [Option<HeldPartition>; 2],
}

impl LayoutComparison {
    /// Compares the partitions of two daemons by their names.
    pub fn of(first: &HeldLayout, second: &HeldLayout) -> Self {
        let partition = |held: &HeldLayout, name: &PartitionName| {
            held.partitions.iter().find(|one| one.partition == *name).cloned()
        };
        let mut names: Vec<&PartitionName> = Vec::new();
        for one in first.partitions.iter().chain(&second.partitions) {
            if !names.contains(&&one.partition) {
                names.push(&one.partition);
            }
        }
        let compared = |name: &PartitionName| ComparedPartition {
            name: name.clone(),
            sides: [partition(first, name), partition(second, name)],
        };
        Self { partitions: names.into_iter().map(compared).collect() }
    }

    /// Returns the number of partitions that are the same on both daemons.
    pub fn same(&self) -> usize {
        self.partitions.iter().filter(|one| one.is_same()).count()
    }

    /// Returns true if there are partitions, and all are the same.
    pub fn is_same(&self) -> bool {
        !self.partitions.is_empty() && self.same() == self.partitions.len()
    }

    /// Returns the numbers as `5/5 IDs`; partitions by thread percentages have no IDs.
    pub fn words(&self) -> String {
        let sides = self.partitions.iter().flat_map(|one| one.sides.iter().flatten());
        let noun = if sides.clone().any(|side| side.percentage.is_some()) { "shares" } else { "IDs" };
        format!("{}/{} {noun}", self.same(), self.partitions.len())
    }
}

impl ComparedPartition {
    /// Returns true if it exists on both with the same size and ID, or with the same percentage where it has no ID.
    pub fn is_same(&self) -> bool {
        let [Some(first), Some(second)] = &self.sides else { return false };
        let is_known = first.id.is_some() || first.percentage.is_some();
        let facts = |side: &HeldPartition| (side.chunks, side.id.clone(), side.percentage);
        is_known && facts(first) == facts(second)
    }

    /// Returns the ID on each daemon.
    pub fn ids(&self) -> [Option<&PartitionId>; 2] {
        [0, 1].map(|side| self.sides[side].as_ref()?.id.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(partitions: &[(&str, u32, Option<&str>)]) -> HeldLayout {
        let partition = |(name, chunks, id): &(&str, u32, Option<&str>)| json!({ "partition": name, "id": id, "chunks": chunks, "a_later_version": "has more" });
        let partitions =
            partitions.iter().map(|one| serde_json::from_value(partition(one)).expect("a partition"));
        HeldLayout {
            daemon: DaemonName::parse("gpu0").expect("a name"),
            name: LayoutName::parse("web_prod").expect("a name"),
            state: Some(LayoutState::Applied),
            partitions: partitions.collect(),
        }
    }

    #[test]
    fn same_ids_in_another_order_are_the_same() {
        let here = held(&[("web", 7, Some("AA")), ("batch", 5, Some("BB"))]);
        let there = held(&[("batch", 5, Some("BB")), ("web", 7, Some("AA"))]);
        let comparison = LayoutComparison::of(&here, &there);
        assert!(comparison.is_same());
        assert_eq!(comparison.words(), "2/2 IDs");
        assert_eq!(comparison.partitions[0].name.as_str(), "web");
    }

    #[test]
    fn nothing_is_the_same_without_an_id() {
        let here = held(&[("web", 7, Some("AA")), ("batch", 5, Some("BB")), ("spare", 2, None)]);
        let there = held(&[
            ("web", 7, Some("CC")),
            ("batch", 4, Some("BB")),
            ("spare", 2, None),
            ("extra", 1, Some("DD")),
        ]);
        let comparison = LayoutComparison::of(&here, &there);
        assert_eq!(comparison.words(), "0/4 IDs");
        assert_eq!(comparison.partitions[3].ids(), [None, Some(&PartitionId::parse("DD").expect("an ID"))]);
        assert!(!LayoutComparison::of(&held(&[]), &held(&[])).is_same());
    }
}
