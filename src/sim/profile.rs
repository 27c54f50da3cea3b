//! Profiles: which hardware and which MPS a world pretends to have.
//!
//! A profile reads `NAME x COUNT [-mig] [@VERSION] [:gpcs=A.B.…]`, as in `h200x2@13.1:gpcs=9.9.9.9.9.9.8.4`. The H200's
//! figures are recorded; the other GPUs' come from their data sheets and are synthetic. No MIG instance and no MLOPart device was ever
//! recorded: they follow NVIDIA's documentation.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A model of GPU, by its word in a profile.
struct Model {
    word: &'static str,
    name: &'static str,
    sms: u32,
    memory_total: u64,
    compute_capability: [u32; 2],
    /// SM pairs of each GPC, in the die's order.
    gpcs: &'static [u32],
    ids: IdModel,
    /// Facts that NVML does not report of it.
    unreported: &'static [&'static str],
    /// SMs of each of its two MLOPart devices; `None` if it has none.
    mlo_sms: Option<u32>,
}

/// The rule that gives an SM pair its bit in a partition's ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IdModel {
    /// Its number in its GPC, and so many bits a GPC: gives the IDs that were recorded from an A10, an H200 and an RTX PRO 6000.
    Strided(u32),
    /// Its number on the die: gives those of an L40S.
    Running,
}

/// IDs that were recorded (27), by GPU and by the chunks of the partitions that were made one after the other on an empty one. They take
/// precedence over the model.
pub(crate) const RECORDED_IDS: &[(&str, &[u32], &[&str])] = &[
    (
        "NVIDIA L40S",
        &[1, 2],
        &["AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "YBgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    ),
    (
        "NVIDIA L20",
        &[20, 3],
        &["////vm0fAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAQZIgAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    ),
];

const MODELS: &[Model] = &[
    Model {
        word: "h200",
        name: "NVIDIA H200",
        sms: 132,
        memory_total: 150_109_880_320,
        compute_capability: [9, 0],
        gpcs: &[4, 9, 9, 9, 9, 9, 9, 8],
        ids: IdModel::Strided(9),
        unreported: &[],
        mlo_sms: None,
    },
    Model {
        word: "h100",
        name: "NVIDIA H100 80GB HBM3",
        sms: 132,
        memory_total: 85_021_163_520,
        compute_capability: [9, 0],
        gpcs: &[4, 9, 9, 9, 9, 9, 9, 8],
        ids: IdModel::Strided(9),
        unreported: &[],
        mlo_sms: None,
    },
    // The SMs of an MLOPart device are not half of the GPU's, so that nothing that computes them is right. Synthetic.
    Model {
        word: "b300",
        name: "NVIDIA B300",
        sms: 148,
        memory_total: 287_762_808_832,
        compute_capability: [10, 3],
        gpcs: &[10, 10, 9, 9, 9, 9, 9, 9],
        ids: IdModel::Strided(10),
        unreported: &[],
        mlo_sms: Some(70),
    },
    Model {
        word: "a100",
        name: "NVIDIA A100-SXM4-80GB",
        sms: 108,
        memory_total: 85_094_825_984,
        compute_capability: [8, 0],
        gpcs: &[8, 8, 8, 8, 8, 7, 7],
        ids: IdModel::Strided(9),
        unreported: &[],
        mlo_sms: None,
    },
    Model {
        word: "l40s",
        name: "NVIDIA L40S",
        sms: 142,
        memory_total: 47_697_362_944,
        compute_capability: [8, 9],
        gpcs: &[5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6],
        ids: IdModel::Running,
        unreported: &[],
        mlo_sms: None,
    },
    Model {
        word: "l20",
        name: "NVIDIA L20",
        sms: 92,
        memory_total: 48_305_799_168,
        compute_capability: [8, 9],
        gpcs: &[4, 6, 6, 6, 6, 6, 6, 6],
        ids: IdModel::Running,
        unreported: &[],
        mlo_sms: None,
    },
    Model {
        word: "a10",
        name: "NVIDIA A10",
        sms: 72,
        memory_total: 24_146_608_128,
        compute_capability: [8, 6],
        gpcs: &[6, 6, 6, 6, 6, 6],
        ids: IdModel::Strided(6),
        unreported: &[],
        mlo_sms: None,
    },
    // A DGX Spark: NVML reports no memory of it, which is the host's. SMs and memory are from NVIDIA's data sheet, the rest is synthetic.
    Model {
        word: "gb10",
        name: "NVIDIA GB10",
        sms: 48,
        memory_total: 137_438_953_472,
        compute_capability: [12, 1],
        gpcs: &[6, 6, 6, 6],
        ids: IdModel::Strided(8),
        unreported: &["memory"],
        mlo_sms: None,
    },
    // An integrated GPU of a Jetson: no compute mode, and no address on a bus. Synthetic.
    Model {
        word: "orin",
        name: "Orin (nvgpu)",
        sms: 16,
        memory_total: 34_359_738_368,
        compute_capability: [8, 7],
        gpcs: &[4, 4],
        ids: IdModel::Strided(8),
        unreported: &[
            "memory",
            "compute_mode",
            "vitals",
            "pci",
            "sms",
            "compute_capability",
            "processes",
            "device_file",
        ],
        mlo_sms: None,
    },
    Model {
        word: "p100",
        name: "Tesla P100-SXM2-16GB",
        sms: 56,
        memory_total: 17_071_734_784,
        compute_capability: [6, 0],
        gpcs: &[5, 5, 5, 5, 4, 4],
        ids: IdModel::Strided(9),
        unreported: &[],
        mlo_sms: None,
    },
];

/// The versions of MPS that can be simulated: word, binary version, driver, default when none is named.
const VERSIONS: &[(&str, u32, &str)] = &[
    ("11.4", 11_040, "470.256.02"),
    ("12.2", 12_020, "535.261.03"),
    ("12.4", 12_040, "550.163.01"),
    ("12.5", 12_050, "555.58.02"),
    ("12.8", 12_080, "570.211.01"),
    ("13.0", 13_000, "580.159.04"),
    ("13.1", 13_010, "590.44.01"),
    ("13.2", 13_020, "595.45.04"),
    ("13.3", 13_030, "610.43.02"),
];

/// The first version with memory limits, priorities, `ps` and `terminate_client`: 12.2 has them and 11.4 not, recorded (22).
pub(crate) const LIMITS_SINCE: u32 = 12_000;
/// The first version with `get_server_status` and a PID file that lets only its user and root set: 12.4, recorded (22).
pub(crate) const GUARDED_SINCE: u32 = 12_040;
/// The first version that takes an unknown option for a call for help: 12.5, recorded (22).
pub(crate) const HELPING_SINCE: u32 = 12_050;
/// The first version whose `-v` and `--help` say what it is, that has `device_query`, and that a long line kills: 13.0, recorded (22).
pub(crate) const SPEAKING_SINCE: u32 = 13_000;
/// The first binary version that knows static partitions and takes 60 clients a device.
pub(crate) const STATIC_PARTITIONS_SINCE: u32 = 13_010;
/// The first binary version that knows MLOPart, documented.
pub(crate) const MLOPART_SINCE: u32 = 13_010;
/// The first binary version whose `lspart` has the narrow form.
pub(crate) const NARROW_LSPART_SINCE: u32 = 13_020;

/// `world.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Host {
    pub(crate) schema: u32,
    pub(crate) simulated: bool,
    pub(crate) profile: String,
    pub(crate) binary_version: u32,
    pub(crate) driver_version: String,
    pub(crate) cuda_driver_version: u32,
    pub(crate) gpus: Vec<Gpu>,
}

/// One GPU of `world.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) minor: u32,
    pub(crate) uuid: String,
    pub(crate) pci_bus_id: String,
    pub(crate) name: String,
    pub(crate) sms: u32,
    pub(crate) memory_total: u64,
    pub(crate) compute_capability: [u32; 2],
    pub(crate) gpcs: Vec<u32>,
    pub(crate) ids: IdModel,
    pub(crate) mig_enabled: bool,
    pub(crate) unreported: Vec<String>,
    /// SMs of each of its two MLOPart devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mlo_sms: Option<u32>,
    /// The GPU that this device is a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) part: Option<Part>,
}

/// A part of a GPU that is a device of its own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Part {
    /// A MIG instance, which has memory of its own, and its compute slices.
    Mig { parent: String, slices: u32 },
    /// An MLOPart device, which shares the GPU's memory with the other one, and its number.
    Mlo { parent: String, number: u32 },
}

impl Gpu {
    /// Returns the SM pairs of one chunk: chunks are of 8 SMs from Hopper on, of 4 before.
    pub(crate) fn chunk_pairs(&self) -> u32 {
        if self.compute_capability[0] >= 9 { 4 } else { 2 }
    }

    /// Returns the number of contexts that MPS accepts on this GPU.
    pub(crate) fn client_ceiling(&self, binary_version: u32) -> usize {
        if let Some(Part::Mig { slices, .. }) = self.part {
            // Documented: in proportion to the compute instance.
            return 48 * slices as usize / 7;
        }
        if self.compute_capability[0] < 7 {
            16
        } else if binary_version >= STATIC_PARTITIONS_SINCE {
            60
        } else {
            48
        }
    }
}

impl Gpu {
    /// Returns the MLOPart devices of the GPU, or the GPU itself if it has none.
    pub(crate) fn mlo_devices(&self) -> Vec<Self> {
        let Some(sms) = self.mlo_sms else { return vec![self.clone()] };
        let device = |number: u32| Self {
            uuid: uuid("mlo", &self.uuid, number),
            name: format!("{} MLOPart {number}", self.name),
            sms,
            memory_total: self.memory_total / 2,
            mlo_sms: None,
            part: Some(Part::Mlo { parent: self.uuid.clone(), number }),
            ..self.clone()
        };
        (0..2).map(device).collect()
    }
}

/// Returns the MIG instances that a host with `-mig` begins with, as the world's file of the GPU has them: seven small ones on a GPU with an
/// even index, two large ones on the others. SMs and memory are those that NVIDIA's MIG user guide gives of an H100.
pub(crate) fn mig_instances(host: &Host, gpu: &Gpu, seed: &str) -> Option<String> {
    if !host.profile.contains("-mig") {
        return None;
    }
    let (count, profile, sms, mib) =
        if gpu.index.is_multiple_of(2) { (7, "1g.10gb", 16, 9984_u64) } else { (2, "3g.40gb", 60, 40448) };
    let line = |number: u32| {
        let uuid = uuid(&gpu.uuid, seed, number).replacen("GPU", "MIG", 1);
        format!("{number} {uuid} {profile} {sms} {}\n", mib << 20)
    };
    Some((0..count).map(line).collect())
}

/// Lists the words that `create` knows, for error messages.
pub(crate) fn known() -> String {
    let models: Vec<_> = MODELS.iter().map(|m| m.word).collect();
    let versions: Vec<_> = VERSIONS.iter().map(|v| v.0).collect();
    format!(
        "NAMExCOUNT[-mig][@VERSION][:gpcs=PAIRS.PAIRS.…] with NAME one of {}, COUNT from 1 to 16, VERSION one of {} \
         (default 13.1), -mig with h100 only; for example h200x2, h200x8@13.1, a100x4@13.1, l40sx1@12.8, h100x2-mig",
        models.join(", "),
        versions.join(", ")
    )
}

/// Returns the profile in its canonical spelling, with its version; the error says why it is wrong.
pub(crate) fn canonical(profile: &str) -> Result<String, String> {
    let Parts { model, count, mig, version, gpcs } = split(profile)?;
    let mig = if mig { "-mig" } else { "" };
    let mut text = format!("{}x{count}{mig}@{}", model.word, version.0);
    if let Some(gpcs) = gpcs {
        let words: Vec<_> = gpcs.iter().map(u32::to_string).collect();
        text.push_str(":gpcs=");
        text.push_str(&words.join("."));
    }
    Ok(text)
}

/// Makes the host that a profile and a seed give: equal ones always give the same host.
pub(crate) fn host(profile: &str, seed: &str) -> Result<Host, String> {
    let Parts { model, count, version, gpcs: die, .. } = split(profile)?;
    let canonical = canonical(profile)?;
    let die = die.unwrap_or_else(|| model.gpcs.to_vec());
    let gpus = (0..count)
        .map(|index| Gpu {
            index,
            minor: index,
            uuid: uuid(&canonical, seed, index),
            // The recorded hosts have their GPUs on bus 0 from device 6 on.
            pci_bus_id: format!("00000000:00:{:02X}.0", index + 6),
            name: model.name.to_owned(),
            sms: model.sms,
            memory_total: model.memory_total,
            compute_capability: model.compute_capability,
            gpcs: die.clone(),
            ids: model.ids,
            unreported: model.unreported.iter().map(|fact| (*fact).to_owned()).collect(),
            mig_enabled: false,
            mlo_sms: model.mlo_sms,
            part: None,
        })
        .collect();
    Ok(Host {
        schema: 1,
        simulated: true,
        profile: canonical,
        binary_version: version.1,
        driver_version: version.2.to_owned(),
        cuda_driver_version: version.1,
        gpus,
    })
}

/// The words of a profile.
struct Parts {
    model: &'static Model,
    count: u32,
    mig: bool,
    version: &'static (&'static str, u32, &'static str),
    gpcs: Option<Vec<u32>>,
}

fn split(profile: &str) -> Result<Parts, String> {
    let (rest, options) = profile.split_once(':').map_or((profile, None), |(r, o)| (r, Some(o)));
    let (hardware, version) = rest.split_once('@').unwrap_or((rest, "13.1"));
    let (hardware, mig) = hardware.strip_suffix("-mig").map_or((hardware, false), |whole| (whole, true));
    let (word, count) = hardware.rsplit_once('x').ok_or("it has no count")?;
    let model = MODELS.iter().find(|m| m.word == word).ok_or_else(|| format!("no GPU is called {word:?}"))?;
    let count = count
        .parse()
        .ok()
        .filter(|n| (1..=16).contains(n))
        .ok_or_else(|| format!("{count:?} is not a count from 1 to 16"))?;
    let version = VERSIONS
        .iter()
        .find(|v| v.0 == version)
        .ok_or_else(|| format!("no MPS of version {version:?} can be simulated"))?;
    if mig && model.word != "h100" {
        return Err(format!("no {word} in MIG mode can be simulated"));
    }
    let gpcs = options.map(|text| gpcs(model, text)).transpose()?;
    Ok(Parts { model, count, mig, version, gpcs })
}

fn gpcs(model: &Model, option: &str) -> Result<Vec<u32>, String> {
    let list = option.strip_prefix("gpcs=").ok_or_else(|| format!("no option is called {option:?}"))?;
    let pairs: Vec<u32> = list
        .split('.')
        .map(|word| word.parse().ok().filter(|n| (1..=9).contains(n)))
        .collect::<Option<_>>()
        .ok_or("a GPC has 1 to 9 SM pairs")?;
    let sum: u32 = pairs.iter().sum();
    if sum * 2 == model.sms && pairs.len() <= 24 {
        Ok(pairs)
    } else {
        Err(format!("its GPCs have {sum} SM pairs, {} has {}", model.name, model.sms / 2))
    }
}

fn uuid(profile: &str, seed: &str, index: u32) -> String {
    let digest = hex::encode(Sha256::digest(format!("{profile}/{seed}/{index}")));
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &digest[..8],
        &digest[8..12],
        &digest[12..16],
        &digest[16..20],
        &digest[20..32]
    )
}
