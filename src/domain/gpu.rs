//! GPUs: their names and their properties.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::device_index::{DeviceIndex, DevicePart, PART_SPELLING, PLACES};
use super::mig::MigInstance;
use super::mlopart::MlopartDevice;
use super::{GpuUuid, InvalidValue, plain_number};

/// Pattern of the names of a GPU, for the API document.
pub(super) fn names() -> String {
    format!(
        "({PLACES}|([Gg][Pp][Uu]|[Mm][Ii][Gg])-[0-9A-Fa-f-]{{1,36}}(-mlo[0-9]{{1,3}})?|\
         ([0-9A-Fa-f]{{4,8}}:)?[0-9A-Fa-f]{{2}}:[0-9A-Fa-f]{{2}}\\.[0-7])"
    )
}

/// A GPU as people name it: by UUID or the beginning of one, by index in PCI order, or by PCI address. A MIG instance or an
/// MLOPart device is named by UUID, or by its place on its GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GpuRef(pub String);

impl GpuRef {
    /// Returns true if the text matches the schema's pattern of names.
    pub fn is_well_formed(&self) -> bool {
        let hex = |text: &str, lengths: std::ops::RangeInclusive<usize>| {
            lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        let text = self.0.as_str();
        if (1..=9).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return true;
        }
        if DeviceIndex::parse(text).is_some() {
            return true;
        }
        let is_kind = |head: &str| head.eq_ignore_ascii_case("GPU-") || head.eq_ignore_ascii_case("MIG-");
        let uuid = text.split_at_checked(4).filter(|(head, _)| is_kind(head));
        if let Some((_, tail)) = uuid {
            let (tail, number) = tail.split_once("-mlo").unwrap_or((tail, "0"));
            let is_number = (1..=3).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
            return is_number
                && (1..=36).contains(&tail.len())
                && tail.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        }
        let Some((address, function)) = text.rsplit_once('.') else { return false };
        let parts: Vec<&str> = address.split(':').collect();
        let is_function = matches!(function.as_bytes(), [b'0'..=b'7']);
        is_function
            && match parts.as_slice() {
                [bus, device] => hex(bus, 2..=2) && hex(device, 2..=2),
                [domain, bus, device] => hex(domain, 4..=8) && hex(bus, 2..=2) && hex(device, 2..=2),
                _ => false,
            }
    }
}

impl utoipa::PartialSchema for GpuRef {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::schema::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(
                "A GPU: its UUID or a unique beginning of it, its index in PCI order, or its PCI address. A MIG instance or an \
                 MLOPart device: its UUID or a unique beginning of it, or its place on its GPU, as `0/mig1` or `0/mlo1`.",
            ))
            .pattern(Some(format!("^{}$", names())))
            .examples([serde_json::json!("0")])
            .into()
    }
}

impl utoipa::ToSchema for GpuRef {
    fn name() -> std::borrow::Cow<'static, str> {
        "GpuRef".into()
    }
}

impl GpuRef {
    /// Returns true if it can name nothing but a MIG instance.
    pub fn is_mig(&self) -> bool {
        let place = DeviceIndex::parse(&self.0);
        self.0.to_ascii_uppercase().starts_with("MIG-")
            || matches!(place, Some(DeviceIndex { part: Some(DevicePart::Mig(_)), .. }))
    }

    /// Finds the one GPU that is meant. A missing GPU is found by its last index, unless the driver has given that to another.
    pub fn resolve<'g>(&self, host: &'g [Gpu]) -> Result<&'g Gpu, InvalidValue> {
        let text = self.0.as_str();
        let listed = || {
            let name = |gpu: &Gpu| {
                let index = shown_index(gpu, host).map(|index| format!("{index} ")).unwrap_or_default();
                format!("{index}{}{}", gpu.uuid, if gpu.present { "" } else { " (missing)" })
            };
            let all: Vec<String> = host.iter().map(name).collect();
            format!("the GPUs of this host are {}", all.join(", "))
        };
        let shown: String = text.chars().take(80).collect();
        let place = text.parse::<u32>().ok().map(DeviceIndex::from).or_else(|| DeviceIndex::parse(text));
        if let Some(index) = place {
            return host
                .iter()
                .find(|gpu| shown_index(gpu, host) == Some(index))
                .ok_or_else(|| InvalidValue(format!("there is no GPU {index}: {}", listed())));
        }
        let lower = text.to_ascii_lowercase();
        // The name of an MLOPart device begins with the UUID of its GPU, which names the GPU.
        let prefix = |gpu: &Gpu| match &gpu.mlopart {
            Some(device) => device.has_uuid(text) || gpu.uuid.as_str().eq_ignore_ascii_case(text),
            None => lower.len() > 4 && gpu.uuid.as_str().to_ascii_lowercase().starts_with(&lower),
        };
        // A part of a GPU has its address, which names the GPU.
        let address = |gpu: &Gpu| {
            let board = gpu.pci_bus_id.as_ref().filter(|_| gpu.is_whole());
            board.as_ref().is_some_and(|id| id.to_ascii_lowercase().ends_with(&lower) && lower.len() >= 7)
        };
        let mut matches = host.iter().filter(|gpu| prefix(gpu) || address(gpu));
        match (matches.next(), matches.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => {
                Err(InvalidValue(format!("{shown:?} could be several GPUs: give more of it; {}", listed())))
            }
            (None, _) => {
                let is_part = !lower.starts_with("mig-") && (lower.contains("mig") || lower.contains("mlo"));
                let hint = if is_part { format!(" ({PART_SPELLING})") } else { String::new() };
                Err(InvalidValue(format!("there is no GPU {shown:?}{hint}: {}", listed())))
            }
        }
    }

    /// Finds the device that is meant, by its place and name. An MLOPart device is listed only while a server has it, and may be named
    /// before that.
    pub fn resolve_device(&self, host: &[Gpu]) -> Result<(DeviceIndex, GpuUuid), InvalidValue> {
        let unlisted = |error| {
            let parts = self.0.split_once("/mlo").or_else(|| self.0.split_once("-mlo"));
            let (gpu, number) = parts.ok_or(error)?;
            let whole = Self(gpu.to_owned()).resolve(host)?;
            let number = plain_number(number).filter(|_| whole.is_whole() && number.len() <= 3);
            let misspelt = || InvalidValue(format!("{:?} is no device of a GPU: {PART_SPELLING}", self.0));
            let number = number.ok_or_else(misspelt)?;
            if let Some(why) = lacks_mlopart(whole) {
                return Err(InvalidValue(format!("{why}: name the GPU")));
            }
            let index = DeviceIndex { part: Some(DevicePart::Mlo(number)), ..whole.index };
            Ok((index, whole.uuid.with_mlo(number)))
        };
        self.resolve(host).map(|gpu| (gpu.index, gpu.uuid.clone())).or_else(unlisted)
    }
}

/// The compute capability of a GPU, as `9.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ComputeCapability {
    /// The number before the dot, which stands for an architecture.
    pub major: u32,
    /// The number after it.
    pub minor: u32,
}

impl ComputeCapability {
    /// Parses two numbers with a dot between them.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let numbers = text
            .split_once('.')
            .and_then(|(major, minor)| Some((plain_number(major)?, plain_number(minor)?)));
        let (major, minor) = numbers.ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            InvalidValue(format!("{shown:?} is not a compute capability: it looks like 9.0"))
        })?;
        Ok(Self { major, minor })
    }
    /// Returns the SMs of one chunk, the unit of static partitions: 8 from Hopper on, 4 before.
    ///
    /// FACTS.md, "Static SM partitions"; CUDA's splitter makes no smaller groups on an H200 (recording 02).
    /// Integrated GPUs have other chunks.
    pub fn chunk_sms(self) -> u32 {
        if self.major >= 9 { 8 } else { 4 }
    }
}

/// Chunks of a GPU, as CUDA's own splitter counts them.
///
/// A chunk lies in one GPC, and which SMs of a GPC work differs from die to die, so this does not follow from the number
/// of SMs (FACTS.md, "Static SM partitions").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkCensus {
    /// All SMs.
    pub sms: u32,
    /// SMs of one chunk.
    pub chunk_sms: u32,
    /// Chunks.
    pub chunks: u32,
    /// SMs that are in no chunk.
    pub left_over_sms: u32,
}

impl TryFrom<String> for ComputeCapability {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<ComputeCapability> for String {
    fn from(capability: ComputeCapability) -> Self {
        capability.to_string()
    }
}

impl std::fmt::Display for ComputeCapability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A GPU as the driver describes it, or as it was last recorded if it is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Its UUID, the only name that survives a reboot and a change of slots.
    pub uuid: GpuUuid,
    /// Its place among the GPUs of the host, in PCI order, from 0.
    pub index: DeviceIndex,
    /// Its PCI address, as `00000000:06:00.0`; `None` where the driver does not report one, as of an integrated GPU.
    #[serde(default)]
    pub pci_bus_id: Option<String>,
    /// The product name, as `NVIDIA H200`.
    pub name: String,
    /// Streaming multiprocessors; `None` where the driver does not report them (the inventory may not start CUDA).
    pub sms: Option<u32>,
    /// Its compute capability; `None` where the driver does not report it.
    #[serde(default)]
    pub compute_capability: Option<ComputeCapability>,
    /// Memory of the whole device, in bytes; `None` where the driver does not report it, as of a GPU that shares the host's memory.
    #[serde(default)]
    pub memory_total: Option<u64>,
    /// Memory in use by all processes and the driver, in bytes; `None` as for `memory_total`.
    #[serde(default)]
    pub memory_used: Option<u64>,
    /// The compute mode; `None` where the driver does not report it, as of a Tegra.
    #[serde(default)]
    pub compute_mode: Option<ComputeMode>,
    /// True if the GPU is in MIG mode: it is listed, and its instances are managed in its place.
    pub mig_enabled: bool,
    /// The GPU and the size of a MIG instance; `None` for a GPU.
    #[serde(default)]
    pub mig: Option<MigInstance>,
    /// An MLOPart device, as its server lists it; `None` for what the driver lists.
    #[serde(default)]
    pub mlopart: Option<MlopartDevice>,
    /// True if the driver lists it now; if not, its memory use and its modes are not known.
    pub present: bool,
    /// Its device file, as `/dev/nvidia0`; `None` where the driver does not report it.
    #[serde(default)]
    pub device_file: Option<PathBuf>,
}

impl Gpu {
    /// Returns true for a GPU, and false for a part of one.
    pub fn is_whole(&self) -> bool {
        self.index.part.is_none()
    }

    /// Returns true for a GPU before Volta, which has no limits, no shares and one user at a time; false if the driver does not report its
    /// compute capability.
    pub fn is_before_volta(&self) -> bool {
        self.compute_capability.is_some_and(|capability| capability.major < 7)
    }

    /// Returns true for a GPU before Ampere, which has no static partitions; false if the driver does not report its compute capability.
    pub fn is_before_ampere(&self) -> bool {
        self.compute_capability.is_some_and(|capability| capability.major < 8)
    }

    /// Returns the number of clients that it takes; `version_ceiling` is the number that a device takes with this version of MPS. GPUs before
    /// Volta take at most 16 (NVIDIA's documentation).
    pub fn client_ceiling(&self, version_ceiling: u32) -> u32 {
        let whole = if self.is_before_volta() { version_ceiling.min(16) } else { version_ceiling };
        self.mig.as_ref().map_or(whole, |instance| instance.share_of_clients(whole))
    }
}

/// Record of a GPU that is kept when it is missing: enough to plan for it and to identify it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFacts {
    /// Its place in PCI order.
    pub index: DeviceIndex,
    /// Its PCI address.
    #[serde(default)]
    pub pci_bus_id: Option<String>,
    /// The product name.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: Option<u32>,
    /// Its compute capability.
    #[serde(default)]
    pub compute_capability: Option<ComputeCapability>,
    /// Memory of the whole device, in bytes.
    #[serde(default)]
    pub memory_total: Option<u64>,
    /// Its device file, which processes may have open after the driver has stopped listing the GPU.
    #[serde(default)]
    pub device_file: Option<PathBuf>,
    /// The GPU and the size of a MIG instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<MigInstance>,
}

impl GpuFacts {
    /// Returns the record of a GPU that is present.
    pub fn of(gpu: &Gpu) -> Self {
        let Gpu { index, pci_bus_id, name, sms, compute_capability, memory_total, device_file, mig, .. } =
            gpu.clone();
        Self { index, pci_bus_id, name, sms, compute_capability, memory_total, device_file, mig }
    }

    /// Returns the missing GPU that the record describes.
    fn absent(self, uuid: GpuUuid) -> Gpu {
        let Self { index, pci_bus_id, name, sms, compute_capability, memory_total, device_file, mig } = self;
        Gpu {
            uuid,
            index,
            pci_bus_id,
            name,
            sms,
            compute_capability,
            memory_total,
            memory_used: None,
            compute_mode: None,
            mig_enabled: false,
            mig,
            mlopart: None,
            present: false,
            device_file,
        }
    }
}

/// Returns the GPUs that are present, followed by those of `held` that are missing and were seen before.
pub fn known(mut present: Vec<Gpu>, held: &BTreeMap<GpuUuid, Option<GpuFacts>>) -> Vec<Gpu> {
    let gone: Vec<Gpu> = held
        .iter()
        .filter(|(uuid, _)| present.iter().all(|gpu| gpu.uuid != **uuid))
        .filter_map(|(uuid, facts)| Some(facts.clone()?.absent(uuid.clone())))
        .collect();
    present.extend(gone);
    present
}

/// Returns the index under which a GPU is shown: that of the driver, or its last one while it is missing. A missing GPU has none if the
/// driver has given its index to another GPU since; then its PCI address identifies the board.
pub fn shown_index(gpu: &Gpu, host: &[Gpu]) -> Option<DeviceIndex> {
    let is_taken = |other: &Gpu| other.uuid != gpu.uuid && other.index == gpu.index;
    (gpu.present || !host.iter().any(is_taken)).then_some(gpu.index)
}

/// Returns the name of a GPU for a person who replaces its board: `GPU 2 (PCI 00000000:1A:00.0)`. A MIG instance has no board of its own.
pub fn board_name(gpu: &Gpu, host: &[Gpu]) -> String {
    if gpu.mig.is_some() {
        return full_name(&gpu.uuid, host);
    }
    let index = shown_index(gpu, host).map_or_else(|| "a GPU".to_owned(), |index| format!("GPU {index}"));
    format!("{index} (PCI {})", gpu.pci_bus_id.as_deref().unwrap_or("not reported"))
}

/// Returns the name of a GPU in a message: `GPU 0 (GPU-514466a0-…)`, or its UUID alone if it has no index. An MLOPart device has that of its
/// GPU, also while no server has it.
pub fn full_name(uuid: &GpuUuid, host: &[Gpu]) -> String {
    let gpu = host.iter().find(|gpu| gpu.uuid == uuid.whole());
    let part = uuid.mlo().map(DevicePart::Mlo);
    let index = gpu.and_then(|gpu| shown_index(gpu, host));
    let index = index.map(|index| DeviceIndex { part: part.or(index.part), ..index });
    index.map_or_else(|| uuid.to_string(), |index| format!("GPU {index} ({uuid})"))
}

/// First compute capability with MLOPart devices (NVIDIA's documentation names 10.0 and 10.3, and newer ones).
const MLOPART_SINCE: u32 = 10;

/// Returns the reason why a GPU can have no MLOPart devices; `None` if it may, or if its driver does not say.
pub fn lacks_mlopart(gpu: &Gpu) -> Option<String> {
    let old = gpu.compute_capability.filter(|capability| capability.major < MLOPART_SINCE)?;
    Some(format!(
        "GPU {} ({}) has compute capability {old}, and MLOPart devices need {MLOPART_SINCE}.0 or newer",
        gpu.index, gpu.name
    ))
}

/// Returns the remedy for a GPU in MIG mode that was named as a whole: its instances, or how to make some.
pub fn instances_to_choose(gpu: &Gpu, host: &[Gpu]) -> String {
    let of_it = |instance: &&Gpu| instance.mig.as_ref().is_some_and(|mig| mig.parent == gpu.uuid);
    let names: Vec<String> =
        host.iter().filter(of_it).map(|instance| format!("{} ({})", instance.index, instance.uuid)).collect();
    if names.is_empty() {
        return "it has none yet, so make some (mig-parted, or nvidia-smi mig -cgi)".to_owned();
    }
    format!("name one of {}", names.join(", "))
}

/// Formats a version as CUDA counts it (13010) for people (`13.1`).
pub fn cuda_version(number: u32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// Compute mode of a GPU: the processes that may open it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// One process, which may be an MPS server.
    ExclusiveProcess,
    /// No process.
    Prohibited,
}

api_words!(ComputeMode: Default "default", ExclusiveProcess "exclusive_process", Prohibited "prohibited");

/// A process that the driver lists on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process ID in the host's namespace.
    pub pid: u32,
    /// GPU memory it holds on this GPU, in bytes; `None` where the driver cannot report it.
    pub used_memory: Option<u64>,
    /// True if the driver lists it as an MPS client (`M+C`).
    pub mps_client: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_gpus_are_well_formed() {
        for good in [
            "0",
            "0/mig1",
            "MIG-5",
            "0/mlo1",
            "GPU-1a-mlo1",
            "123456789",
            "GPU-0",
            "gpu-74d43ed3-aa",
            "0000:1a:00.0",
            "1A:00.7",
        ] {
            assert!(GpuRef(good.into()).is_well_formed(), "{good}");
        }
        for bad in [
            "",
            "null",
            "0/mig",
            "0/gi1",
            "1234567890",
            "GPU-",
            "GPU-x",
            "1a:00.8",
            "1a:00",
            "0:1a:00.0",
            "\u{e9}\u{e9}\u{e9}",
        ] {
            assert!(!GpuRef(bad.into()).is_well_formed(), "{bad}");
        }
    }

    #[test]
    fn people_name_gpus_in_several_ways() {
        use crate::testing::h200;
        let present = [h200(0), h200(1)];
        let find = |text: &str| GpuRef(text.into()).resolve(&present).map(|gpu| gpu.index.gpu);
        assert_eq!(find("1"), Ok(1));
        assert_eq!(find(h200(1).uuid.as_str()), Ok(1));
        assert_eq!(find("00000000:07:00.0"), Ok(1));
        assert_eq!(find("07:00.0"), Ok(1));
        for bad in ["", "2", "GPU-", "GPU-514466a0", "GPU-ffff", "-1", "0.0", "banana"] {
            assert!(find(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn misspelt_and_impossible_parts_are_explained() {
        use crate::testing::h200;
        let able = |index| {
            let compute_capability = Some(ComputeCapability { major: 10, minor: 3 });
            Gpu { compute_capability, ..h200(index) }
        };
        let present = [able(0), h200(1)];
        let device = |text: &str| {
            let found = GpuRef(text.into()).resolve_device(&present);
            found.map(|(index, _)| index.to_string()).map_err(|error| error.to_string())
        };
        for bad in ["1/MIG0", "0/MLO1", "mig1", "mlo1", "0/mlo01", "0/mig01"] {
            let error = device(bad).expect_err("misspelt");
            assert!(error.contains(PART_SPELLING), "{bad}: {error}");
        }
        for bad in ["MIG-11111111-1111-1111-1111-111111111111", "7", "banana", "0/mig1"] {
            assert!(!device(bad).expect_err("there is none").contains(PART_SPELLING), "{bad}");
        }
        assert_eq!(device("0/mlo1"), Ok("0/mlo1".to_owned()));
        let error = device("1/mlo0").expect_err("it can have none");
        assert!(
            error.ends_with("compute capability 9.0, and MLOPart devices need 10.0 or newer: name the GPU")
        );
    }

    #[test]
    fn missing_gpu_keeps_index_unless_taken() {
        use crate::testing::h200;
        let (listed, missing) = (h200(0), h200(1));
        let held = BTreeMap::from([
            (listed.uuid.clone(), Some(GpuFacts::of(&listed))),
            (missing.uuid.clone(), Some(GpuFacts::of(&missing))),
            (h200(2).uuid, None),
        ]);
        let all = known(vec![listed.clone()], &held);
        assert_eq!(
            all.iter().map(|gpu| (&gpu.uuid, gpu.present)).collect::<Vec<_>>(),
            [(&listed.uuid, true), (&missing.uuid, false)]
        );
        assert_eq!((all[1].sms, all[1].memory_total), (missing.sms, missing.memory_total));
        assert_eq!(GpuRef(missing.uuid.to_string()).resolve(&all).map(|gpu| gpu.present), Ok(false));
        assert_eq!(full_name(&listed.uuid, &all), format!("GPU 0 ({})", listed.uuid));
        assert_eq!(full_name(&missing.uuid, &all), format!("GPU 1 ({})", missing.uuid));
        let resolve = |name: &str, all: &[Gpu]| {
            GpuRef(name.into()).resolve(all).map(|gpu| gpu.uuid.clone()).map_err(|error| error.to_string())
        };
        assert_eq!(resolve("1", &all), Ok(missing.uuid.clone()));
        assert_eq!(board_name(&all[1], &all), "GPU 1 (PCI 00000000:07:00.0)");
        let refused = resolve("7", &all).expect_err("no such index");
        assert!(refused.contains(&format!("1 {} (missing)", missing.uuid)), "{refused}");
        // The driver gave its index to another since.
        let moved = Gpu { index: 1.into(), ..h200(2) };
        let taken = [listed, moved.clone(), all[1].clone()];
        assert_eq!(resolve("1", &taken), Ok(moved.uuid));
        assert_eq!(resolve("07:00.0", &taken), Ok(missing.uuid));
        assert_eq!(board_name(&taken[2], &taken), "a GPU (PCI 00000000:07:00.0)");
        // Of two that went with the same one after another neither has it.
        let second = Gpu { present: false, ..taken[1].clone() };
        let both = [taken[0].clone(), second, taken[2].clone()];
        assert!(resolve("1", &both).is_err());
    }

    #[test]
    fn compute_capability_determines_chunk_size() {
        for (text, chunk) in [("9.0", 8), ("10.0", 8), ("12.1", 8), ("8.9", 4), ("8.0", 4), ("7.0", 4)] {
            let capability = ComputeCapability::parse(text).expect("good");
            assert_eq!((capability.to_string().as_str(), capability.chunk_sms()), (text, chunk));
        }
        for bad in ["", "9", "9.", ".0", "9.0.1", "+9.0", "9.00", "nine", "9.0a"] {
            assert!(ComputeCapability::parse(bad).is_err(), "{bad}");
        }
    }
}
