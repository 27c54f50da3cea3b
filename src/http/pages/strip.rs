//! The SMs of a GPU as a strip: one cell for each partition, as long as its share of the SMs, and what is left.
//!
//! The number of SMs per cell is exact. Their position on the die is known only to MPS, so partitions stand in the daemon's order.

use crate::domain::count::counted;
use crate::domain::layout::AddStep;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::partitions::GpuPartitions;
use crate::domain::{PartitionId, TenantName};
use crate::service::tenants::TenantColours;

/// The owner of SMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// A partition, with the colour of its tenant; `None` if it is bound to none.
    Partition(Option<u8>),
    /// Whole chunks available for a new partition.
    Free,
    /// SMs outside whole chunks.
    LeftOver,
}

impl Owner {
    /// The CSS class of its cell.
    pub(super) fn class(self) -> String {
        match self {
            Self::Partition(Some(colour)) => format!("part part-{colour}"),
            Self::Partition(None) => "part unbound".to_owned(),
            Self::Free => "free".to_owned(),
            Self::LeftOver => "left-over".to_owned(),
        }
    }
}

/// A cell of the strip.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Cell {
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
    /// Clients that named it in their environment.
    pub(super) clients: usize,
    /// True if a plan makes or removes it.
    pub(super) is_changed: bool,
    /// Its place and length, in percent of the strip.
    pub(super) x: f64,
    pub(super) width: f64,
}

impl Cell {
    fn new(owner: Owner, name: impl Into<String>, chunks: u32, sms: u32) -> Self {
        let (name, tenants) = (name.into(), Vec::new());
        let (id, in_use, clients, is_changed) = (None, None, 0, false);
        Self { owner, name, chunks, sms, id, tenants, in_use, clients, is_changed, x: 0.0, width: 0.0 }
    }

    fn bound_to(self, tenants: &[TenantName], colours: &TenantColours) -> Self {
        let colour = tenants.first().and_then(|tenant| colours.get(tenant));
        Self { owner: Owner::Partition(colour), tenants: tenants.to_vec(), ..self }
    }

    /// Its description, for those who cannot see it.
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
        let changed = if self.is_changed { ", changed" } else { "" };
        format!("{}: {}{chunks}{tenants}{changed}", self.name, counted(self.sms, "SM"))
    }

    /// Returns the words inside it; a short cell has room for its SMs alone.
    pub(super) fn label(&self) -> String {
        if self.width < 16.0 { self.sms.to_string() } else { format!("{} · {}", self.name, self.sms) }
    }

    /// Returns the distances of a dot for each client from its end, in pixels; at most eight.
    pub(super) fn dots(&self) -> Vec<usize> {
        (0..self.clients.min(8)).map(|dot| 12 + dot * 12).collect()
    }
}

/// A partition of a strip that a plan shows.
pub(super) struct StripPart {
    pub(super) name: String,
    pub(super) chunks: u32,
    pub(super) sms: u32,
    pub(super) tenants: Vec<TenantName>,
    pub(super) clients: usize,
    /// True if the plan makes or removes it.
    pub(super) is_changed: bool,
}

/// The strip.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SmStrip {
    pub(super) cells: Vec<Cell>,
    /// SMs of the GPU.
    pub(super) sms: u32,
    /// SMs of a chunk.
    pub(super) chunk_sms: u32,
}

impl SmStrip {
    /// A GPU as its daemon lists it in static mode; `named` are the partitions of the layout.
    pub(super) fn partitioned(
        listed: &GpuPartitions,
        chunk_sms: u32,
        named: &[&PartitionStatus],
        colours: &TenantColours,
    ) -> Self {
        let mut cells = Vec::new();
        for (number, partition) in listed.partitions.iter().enumerate() {
            let of_layout = named.iter().find(|named| named.id.as_ref() == Some(&partition.id));
            let name = of_layout
                .map_or_else(|| format!("unnamed {}", number + 1), |named| named.partition.to_string());
            let tenants = of_layout.map(|named| named.tenants.as_slice()).unwrap_or_default();
            let cell = Cell::new(Owner::Partition(None), name, partition.chunks, partition.sms);
            cells.push(Cell {
                id: Some(partition.id.clone()),
                in_use: partition.in_use,
                clients: partition.clients.len(),
                ..cell.bound_to(tenants, colours)
            });
        }
        let free = (listed.free_chunks * chunk_sms).min(listed.free_sms);
        cells.extend(unowned(listed.free_chunks, free, listed.free_sms - free));
        Self::placed(cells, listed.free_sms + listed.used_sms, chunk_sms)
    }

    /// A GPU as a layout divides it: these partitions in order, and the rest.
    pub(super) fn planned<'a>(
        partitions: impl Iterator<Item = &'a AddStep>,
        sms: u32,
        chunk_sms: u32,
        chunk_count: u32,
        colours: &TenantColours,
    ) -> Self {
        let parts: Vec<StripPart> = partitions
            .map(|AddStep { partition, chunks, tenants, .. }| StripPart {
                name: partition.to_string(),
                chunks: *chunks,
                sms: chunks * chunk_sms,
                tenants: tenants.clone(),
                clients: 0,
                is_changed: false,
            })
            .collect();
        let used: u32 = parts.iter().map(|part| part.chunks).sum();
        Self::of_parts(parts, sms, chunk_sms, chunk_count.saturating_sub(used), colours)
    }

    /// A GPU with these partitions and free chunks; what is left of its SMs is in no chunk.
    pub(super) fn of_parts(
        parts: Vec<StripPart>,
        sms: u32,
        chunk_sms: u32,
        free_chunks: u32,
        colours: &TenantColours,
    ) -> Self {
        let mut cells: Vec<Cell> = Vec::new();
        for StripPart { name, chunks, sms, tenants, clients, is_changed } in parts {
            let cell = Cell::new(Owner::Partition(None), name, chunks, sms);
            cells.push(Cell { clients, is_changed, ..cell.bound_to(&tenants, colours) });
        }
        let free = free_chunks * chunk_sms;
        let used: u32 = cells.iter().map(|cell| cell.sms).sum();
        cells.extend(unowned(free_chunks, free, sms.saturating_sub(used + free)));
        Self::placed(cells, sms, chunk_sms)
    }

    /// Returns true if a plan makes or removes a cell.
    pub(super) fn is_changed(&self) -> bool {
        self.cells.iter().any(|cell| cell.is_changed)
    }

    fn placed(mut cells: Vec<Cell>, sms: u32, chunk_sms: u32) -> Self {
        let mut at = 0;
        let total = cells.iter().map(|cell| cell.sms).sum::<u32>().max(sms);
        for cell in &mut cells {
            (cell.x, cell.width) = (percent(at, total), percent(cell.sms, total));
            at += cell.sms;
        }
        Self { cells, sms, chunk_sms }
    }
}

/// The chunks that no partition has, and the SMs beside them.
fn unowned(chunks: u32, sms: u32, rest: u32) -> impl Iterator<Item = Cell> {
    let free = Cell::new(Owner::Free, "free", chunks, sms);
    let rest = Cell::new(Owner::LeftOver, "unused remainder", 0, rest);
    [free, rest].into_iter().filter(|cell| cell.sms > 0)
}

/// Returns a part in percent of the whole, to a hundredth.
pub(super) fn percent(part: u32, whole: u32) -> f64 {
    (f64::from(part) / f64::from(whole.max(1)) * 10_000.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::GpuUuid;
    use crate::domain::partitions::ListedPartition;
    use crate::domain::tenant::Tenant;
    use crate::testing::tenant;

    fn partition(id: &str, chunks: u32, sms: u32) -> ListedPartition {
        ListedPartition {
            id: PartitionId::parse(id).expect("an ID"),
            chunks,
            sms,
            in_use: Some(false),
            clients: Vec::new(),
        }
    }

    fn described(strip: &SmStrip) -> Vec<String> {
        strip.cells.iter().map(Cell::description).collect()
    }

    fn colours() -> TenantColours {
        let web = tenant("web", r#"{"daemon":"gpu0","uid":0}"#);
        TenantColours::of(Tenant { directory: web.directory.coloured(3), ..web })
    }

    #[test]
    fn strip_contains_every_sm_once() {
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
        let strip = SmStrip::partitioned(&listed, 8, &[&named], &colours());
        assert_eq!(strip.cells.iter().map(|cell| cell.sms).sum::<u32>(), strip.sms);
        assert_eq!(
            described(&strip),
            [
                "web_prod: 60 SMs in 7 chunks, for web",
                "unnamed 2: 16 SMs in 2 chunks",
                "free: 48 SMs in 6 chunks",
                "unused remainder: 8 SMs"
            ]
        );
        let classes: Vec<String> = strip.cells.iter().map(|cell| cell.owner.class()).collect();
        assert_eq!(classes, ["part part-3", "part unbound", "free", "left-over"]);
    }

    #[test]
    fn planned_strip_shows_the_rest_as_free() {
        let partitions =
            r#"[{"gpu": 0, "partition": "web", "chunks": 7}, {"gpu": 0, "partition": "batch", "chunks": 5}]"#;
        let partitions: Vec<AddStep> = serde_json::from_str(partitions).expect("partitions");
        let strip = SmStrip::planned(partitions.iter(), 132, 8, 15, &colours());
        assert_eq!(
            described(&strip),
            [
                "web: 56 SMs in 7 chunks",
                "batch: 40 SMs in 5 chunks",
                "free: 24 SMs in 3 chunks",
                "unused remainder: 12 SMs"
            ]
        );
    }

    #[test]
    fn cells_follow_each_other_to_the_end() {
        let strip = SmStrip::placed(
            vec![
                Cell::new(Owner::Free, "a", 0, 44),
                Cell::new(Owner::Free, "b", 0, 44),
                Cell::new(Owner::Free, "c", 0, 44),
            ],
            132,
            8,
        );
        let places: Vec<(f64, f64)> = strip.cells.iter().map(|cell| (cell.x, cell.width)).collect();
        assert_eq!(places, [(0.0, 33.33), (33.33, 33.33), (66.67, 33.33)]);
        assert!(SmStrip::placed(Vec::new(), 0, 8).cells.is_empty());
    }
}
