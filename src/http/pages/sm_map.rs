//! The SM map of a GPU: one cell per chunk with its SMs, coloured by owner.
//!
//! The number of SMs per owner is exact. Their position on the die is known only to MPS, so the cells of a partition are
//! adjacent, partitions are in the daemon's order, and the page says so.

use crate::domain::count::counted;
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::AddStep;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::partitions::GpuPartitions;
use crate::domain::{PartitionId, TenantName};

/// Cells per row.
const COLUMNS: usize = 10;
/// Size of a cell with its margin, in the drawing's units.
const CELL: usize = 48;
/// Colours of partitions; further ones repeat, with names beside them.
const COLOURS: usize = 8;

/// The owner of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Owner {
    /// A partition: its number on the GPU, which selects its colour.
    Partition(usize),
    /// Whole chunks available for a new partition.
    Free,
    /// SMs outside whole chunks, or chunks that no partition can use.
    LeftOver,
    /// Chunks of a GPU that is not partitioned.
    Shared,
}

impl Owner {
    /// The CSS class of its cells.
    pub(super) fn class(&self) -> String {
        match self {
            Self::Partition(number) => format!("part part-{}", number % COLOURS),
            Self::Free => "free".to_owned(),
            Self::LeftOver => "left-over".to_owned(),
            Self::Shared => "shared".to_owned(),
        }
    }

    /// The letter in its cells, for colour-blind readers; cells outside partitions are distinguished by their frame.
    pub(super) fn letter(&self) -> String {
        let Self::Partition(number) = self else { return String::new() };
        let letter = |number: usize| char::from(b'A' + u8::try_from(number % 26).unwrap_or_default());
        match number / 26 {
            0 => letter(*number).to_string(),
            round => format!("{}{}", letter(round - 1), letter(*number)),
        }
    }

    /// Returns true if its cells are unusable, and therefore struck through.
    pub(super) fn is_left_over(&self) -> bool {
        *self == Self::LeftOver
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) x: usize,
    pub(super) y: usize,
    pub(super) sms: u32,
}

/// The cells of one owner, with a description for those who cannot see them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) owner: Owner,
    /// Its name.
    pub(super) name: String,
    /// Its chunks.
    pub(super) chunks: u32,
    /// Its SMs.
    pub(super) sms: u32,
    /// Its ID, where it has one.
    pub(super) id: Option<PartitionId>,
    /// Tenants that are bound to it.
    pub(super) tenants: Vec<TenantName>,
    /// True if clients use it, as the daemon reports; `None` without a report.
    pub(super) in_use: Option<bool>,
    pub(super) cells: Vec<Cell>,
}

impl Group {
    fn new(owner: Owner, name: String, chunks: u32, sms: u32) -> Self {
        Self { owner, name, chunks, sms, id: None, tenants: Vec::new(), in_use: None, cells: Vec::new() }
    }

    /// Its description.
    pub(super) fn description(&self) -> String {
        let chunks = match self.chunks {
            0 => String::new(),
            some => format!(" in {}", counted(some, "chunk")),
        };
        let tenants = match self.tenants.as_slice() {
            [] => String::new(),
            tenants => {
                let names: Vec<&str> = tenants.iter().map(TenantName::as_str).collect();
                format!(", for {}", names.join(", "))
            }
        };
        format!("{}: {}{chunks}{tenants}", self.name, counted(self.sms, "SM"))
    }
}

/// The chunks that no partition has, and the SMs beside them.
fn unowned(chunks: u32, sms: u32, rest: u32) -> impl Iterator<Item = Group> {
    let free = Group::new(Owner::Free, "free".to_owned(), chunks, sms);
    let rest = Group::new(Owner::LeftOver, "unused remainder".to_owned(), 0, rest);
    [free, rest].into_iter().filter(|group| group.sms > 0)
}

/// The map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SmMap {
    pub(super) groups: Vec<Group>,
    /// SMs of the GPU.
    pub(super) sms: u32,
    /// SMs of a chunk.
    pub(super) chunk_sms: u32,
    /// True if the number of chunks is known.
    pub(super) is_counted: bool,
    pub(super) width: usize,
    pub(super) height: usize,
}

impl SmMap {
    /// The tenants of its partitions with their colour numbers.
    pub(super) fn colours(&self) -> Vec<(TenantName, usize)> {
        let mut colours = Vec::new();
        for group in &self.groups {
            let Owner::Partition(number) = group.owner else { continue };
            colours.extend(group.tenants.iter().map(|tenant| (tenant.clone(), number)));
        }
        colours
    }

    /// A GPU whose SMs are shared by all clients; its chunks are unknown until a CUDA client has counted them.
    pub(super) fn shared(sms: u32, chunk_sms: u32, counted: Option<&ChunkCensus>) -> Self {
        let Some(counted) = counted.filter(|counted| counted.sms == sms) else {
            let all = Group::new(Owner::Shared, "shared".to_owned(), 0, sms);
            return Self { is_counted: false, ..Self::drawn(vec![all], sms, chunk_sms) };
        };
        let ChunkCensus { chunks, chunk_sms, left_over_sms, .. } = *counted;
        let whole = sms.saturating_sub(left_over_sms);
        let mut groups = vec![Group::new(Owner::Shared, "shared".to_owned(), chunks, whole)];
        if left_over_sms > 0 {
            groups.push(Group::new(Owner::LeftOver, "shared, outside chunks".to_owned(), 0, left_over_sms));
        }
        Self::drawn(groups, sms, chunk_sms)
    }

    /// A GPU as its daemon lists it in static mode; `named` are the partitions of the layout.
    pub(super) fn partitioned(listed: &GpuPartitions, chunk_sms: u32, named: &[&PartitionStatus]) -> Self {
        let mut groups = Vec::new();
        for (number, partition) in listed.partitions.iter().enumerate() {
            let status = named.iter().find(|named| named.id.as_ref() == Some(&partition.id));
            let name =
                status.map_or_else(|| format!("unnamed {}", number + 1), |named| named.partition.to_string());
            let mut group = Group::new(Owner::Partition(number), name, partition.chunks, partition.sms);
            group.id = Some(partition.id.clone());
            group.in_use = partition.in_use;
            group.tenants = status.map(|named| named.tenants.clone()).unwrap_or_default();
            groups.push(group);
        }
        let free = (listed.free_chunks * chunk_sms).min(listed.free_sms);
        groups.extend(unowned(listed.free_chunks, free, listed.free_sms - free));
        Self::drawn(groups, listed.free_sms + listed.used_sms, chunk_sms)
    }

    /// A GPU as a layout divides it: these partitions in order, and the rest.
    pub(super) fn planned<'a>(
        partitions: impl Iterator<Item = &'a AddStep>,
        sms: u32,
        chunk_sms: u32,
        chunk_count: u32,
    ) -> Self {
        let mut groups = Vec::new();
        let mut used = 0;
        for (number, AddStep { partition, chunks, tenants, .. }) in partitions.enumerate() {
            let owner = Owner::Partition(number);
            let group = Group::new(owner, partition.to_string(), *chunks, chunks * chunk_sms);
            groups.push(Group { tenants: tenants.clone(), ..group });
            used += chunks;
        }
        let free = chunk_count.saturating_sub(used);
        groups.extend(unowned(free, free * chunk_sms, sms.saturating_sub(chunk_count * chunk_sms)));
        Self::drawn(groups, sms, chunk_sms)
    }

    /// Positions the cells: whole chunks first, and the rest in a last cell.
    fn drawn(mut groups: Vec<Group>, sms: u32, chunk_sms: u32) -> Self {
        let mut at = 0;
        for group in &mut groups {
            let mut left = group.sms;
            while left > 0 {
                let sms = left.min(chunk_sms.max(1));
                left -= sms;
                group.cells.push(Cell { x: at % COLUMNS * CELL, y: at / COLUMNS * CELL, sms });
                at += 1;
            }
        }
        let rows = at.div_ceil(COLUMNS).max(1);
        Self { groups, sms, chunk_sms, is_counted: true, width: COLUMNS * CELL, height: rows * CELL }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::GpuUuid;
    use crate::domain::partitions::ListedPartition;

    fn sms(map: &SmMap) -> u32 {
        map.groups.iter().flat_map(|group| &group.cells).map(|cell| cell.sms).sum()
    }

    fn partition(id: &str, chunks: u32, sms: u32) -> ListedPartition {
        ListedPartition {
            id: PartitionId::parse(id).expect("an ID"),
            chunks,
            sms,
            in_use: Some(false),
            clients: Vec::new(),
        }
    }

    #[test]
    fn map_contains_every_sm_once() {
        let unknown = SmMap::shared(132, 8, None);
        assert_eq!((sms(&unknown), unknown.groups.len(), unknown.is_counted), (132, 1, false));
        assert_eq!(unknown.groups[0].chunks, 0, "not divided");
        let counted = ChunkCensus { sms: 132, chunk_sms: 8, chunks: 15, left_over_sms: 12 };
        let shared = SmMap::shared(132, 8, Some(&counted));
        assert_eq!((sms(&shared), shared.groups.len()), (132, 2));
        assert_eq!((shared.groups[0].chunks, shared.groups[1].sms), (15, 12));
        // As recorded on an H200: 15 chunks of 8, and 12 SMs beside them.
        let listed = GpuPartitions {
            gpu: GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("a UUID"),
            free_chunks: 6,
            used_chunks: 9,
            free_sms: 56,
            used_sms: 76,
            partitions: vec![partition("a", 7, 60), partition("b", 2, 16)],
        };
        let named: PartitionStatus = serde_json::from_value(serde_json::json!({
            "partition": "web_prod", "gpu": listed.gpu, "id": "a", "expected": null, "chunks": 7, "sms": 60, "tenants": ["web"],
            "percentage": null,
        }))
        .expect("a partition");
        let map = SmMap::partitioned(&listed, 8, &[&named]);
        assert_eq!((map.sms, sms(&map)), (132, 132));
        let described: Vec<String> = map.groups.iter().map(Group::description).collect();
        assert_eq!(
            described,
            [
                "web_prod: 60 SMs in 7 chunks, for web",
                "unnamed 2: 16 SMs in 2 chunks",
                "free: 48 SMs in 6 chunks",
                "unused remainder: 8 SMs"
            ]
        );
        // Seven whole chunks, and the four SMs that it has beside them.
        assert_eq!(
            map.groups[0].cells.iter().map(|cell| cell.sms).collect::<Vec<_>>(),
            [8, 8, 8, 8, 8, 8, 8, 4]
        );
    }

    #[test]
    fn planned_map_shows_the_rest_as_free() {
        let partitions =
            r#"[{"gpu": 0, "partition": "web", "chunks": 7}, {"gpu": 0, "partition": "batch", "chunks": 5}]"#;
        let partitions: Vec<AddStep> = serde_json::from_str(partitions).expect("partitions");
        let map = SmMap::planned(partitions.iter(), 132, 8, 15);
        let described: Vec<String> = map.groups.iter().map(Group::description).collect();
        assert_eq!(
            described,
            [
                "web: 56 SMs in 7 chunks",
                "batch: 40 SMs in 5 chunks",
                "free: 24 SMs in 3 chunks",
                "unused remainder: 12 SMs"
            ]
        );
        assert_eq!(sms(&map), 132);
    }

    #[test]
    fn partitions_have_distinct_letters() {
        let letters: Vec<String> =
            [0, 1, 25, 26, 51, 52].map(|number| Owner::Partition(number).letter()).into();
        assert_eq!(letters, ["A", "B", "Z", "AA", "AZ", "BA"]);
        assert_eq!(Owner::Free.letter(), "");
    }

    #[test]
    fn cells_do_not_overlap_or_overflow() {
        let map = SmMap::shared(132, 8, None);
        let mut places = std::collections::BTreeSet::new();
        for cell in map.groups.iter().flat_map(|group| &group.cells) {
            assert!(places.insert((cell.x, cell.y)), "{cell:?}");
            assert!(cell.x + CELL <= map.width && cell.y + CELL <= map.height, "{cell:?}");
        }
        assert_eq!(sms(&SmMap::shared(0, 8, None)), 0);
    }
}
