//! Static SM partitions: the IDs that were recorded, and for all others a model of the choice of chunks and of the IDs.
//!
//! A chunk is a few SM pairs of the GPC with the fewest taken pairs, its lowest free pairs first. An ID is the set of its pairs as a bitmap
//! from the least significant bit on, in 27 bytes, in 36 characters of base64; the bit of a pair depends on the GPU ([`IdModel`]). The
//! model gives every ID that was recorded, with two exceptions: those of an L20, whose order is not known and which are kept as a table,
//! and one bit of an H200's. Hardware loses bits beyond its number of pairs, which
//! would leave its fifteenth chunk without any.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::profile::{Gpu, IdModel, RECORDED_IDS};

const BYTES: usize = 27;

/// The partitions of all the daemon's GPUs.
#[derive(Debug)]
pub struct Partitions(Vec<Die>);

#[derive(Debug)]
struct Die {
    uuid: String,
    name: String,
    ids: IdModel,
    sms: u32,
    chunk: usize,
    /// For each GPC, the SM pairs that are taken.
    gpcs: Vec<Vec<bool>>,
    partitions: Vec<Partition>,
}

/// A partition.
#[derive(Debug, Clone)]
pub struct Partition {
    /// `<uuid>/<id>`.
    pub name: String,
    /// Its ID.
    pub id: String,
    /// Its chunks.
    pub chunks: u32,
    /// Its SMs.
    pub sms: u32,
    pairs: Vec<(usize, usize)>,
}

/// The rows of one GPU in `lspart`.
pub struct Summary {
    /// The GPU.
    pub uuid: String,
    /// Chunks that are free for partitions.
    pub free_chunks: u32,
    /// Chunks in partitions.
    pub used_chunks: u32,
    /// SMs outside partitions.
    pub free_sms: u32,
    /// SMs in partitions.
    pub used_sms: u32,
    /// The partitions, in the order in which they were made.
    pub partitions: Vec<Partition>,
}

/// Why no partition was made.
#[derive(Debug, PartialEq, Eq)]
pub enum AddError {
    /// The GPU has fewer free chunks.
    DoesNotFit,
}

/// Why a partition was not removed.
#[derive(Debug, PartialEq, Eq)]
pub enum RemoveError {
    /// There is no such partition.
    Unknown,
    /// A client works in it.
    InUse,
}

impl Partitions {
    /// Makes the partitions of all GPUs of the host that a profile and a seed give; equal ones always give the same host.
    pub fn of_host(profile: &str, seed: &str) -> Result<Self, String> {
        Ok(Self::new(super::profile::host(profile, seed)?.gpus.iter()))
    }

    pub(crate) fn new<'a>(gpus: impl Iterator<Item = &'a Gpu>) -> Self {
        Self(
            gpus.map(|gpu| Die {
                uuid: gpu.uuid.clone(),
                name: gpu.name.clone(),
                ids: gpu.ids,
                sms: gpu.sms,
                chunk: gpu.chunk_pairs() as usize,
                gpcs: gpu.gpcs.iter().map(|&pairs| vec![false; pairs as usize]).collect(),
                partitions: Vec::new(),
            })
            .collect(),
        )
    }

    /// Reserves chunks on a GPU and names them `<uuid>/<id>`.
    pub fn add(&mut self, ordinal: usize, chunks: u32) -> Result<String, AddError> {
        let die = self.0.get_mut(ordinal).ok_or(AddError::DoesNotFit)?;
        if chunks == 0 || chunks > die.free_chunks() {
            return Err(AddError::DoesNotFit);
        }
        let pairs = die.take(chunks as usize);
        let id = die.recorded_id(chunks).unwrap_or_else(|| die.id(&pairs));
        let name = format!("{}/{id}", die.uuid);
        let sms = u32::try_from(pairs.len() * 2).expect("a die has few SMs");
        die.partitions.push(Partition { name: name.clone(), id, chunks, sms, pairs });
        Ok(name)
    }

    /// Removes a partition by its name, unless it is used.
    pub fn remove(&mut self, name: &str, used: bool) -> Result<(), RemoveError> {
        for die in &mut self.0 {
            if let Some(at) = die.partitions.iter().position(|partition| partition.name == name) {
                if used {
                    return Err(RemoveError::InUse);
                }
                for (gpc, pair) in die.partitions.remove(at).pairs {
                    die.gpcs[gpc][pair] = false;
                }
                return Ok(());
            }
        }
        Err(RemoveError::Unknown)
    }

    /// Returns the SMs of the partition on this device that a client's variable names; `None` if it names none, or more than one of the
    /// device, which is documented to be refused.
    pub(crate) fn sms(&self, variable: &str, device: &str) -> Option<u32> {
        let die = self.0.iter().find(|die| die.uuid == device)?;
        let is_here = |name: &&str| name.split_once('/').is_some_and(|(uuid, _)| uuid == device);
        let mut here = names(variable).filter(is_here);
        let (name, None) = (here.next()?, here.next()) else { return None };
        die.partitions.iter().find(|partition| partition.name == name).map(|partition| partition.sms)
    }

    /// Returns the ordinal of the device that a partition is on.
    pub(crate) fn device(&self, name: &str) -> Option<usize> {
        let holds = |die: &Die| die.partitions.iter().any(|partition| partition.name == name);
        self.0.iter().position(holds)
    }

    /// Lists the chunks and partitions of each GPU.
    pub fn summaries(&self) -> Vec<Summary> {
        self.0
            .iter()
            .map(|die| {
                let used_sms = die.partitions.iter().map(|partition| partition.sms).sum();
                Summary {
                    uuid: die.uuid.clone(),
                    free_chunks: die.free_chunks(),
                    used_chunks: die.partitions.iter().map(|partition| partition.chunks).sum(),
                    free_sms: die.sms - used_sms,
                    used_sms,
                    partitions: die.partitions.clone(),
                }
            })
            .collect()
    }
}

impl Die {
    fn free_chunks(&self) -> u32 {
        let free = |gpc: &Vec<bool>| gpc.iter().filter(|taken| !**taken).count() / self.chunk;
        u32::try_from(self.gpcs.iter().map(free).sum::<usize>()).expect("a die has few chunks")
    }

    /// Takes chunks that are known to be free.
    fn take(&mut self, chunks: usize) -> Vec<(usize, usize)> {
        let mut taken = Vec::new();
        let count = |gpc: &[bool], what: bool| gpc.iter().filter(|taken| **taken == what).count();
        for _ in 0..chunks {
            let with_room = (0..self.gpcs.len()).filter(|&gpc| count(&self.gpcs[gpc], false) >= self.chunk);
            let number =
                with_room.min_by_key(|&gpc| count(&self.gpcs[gpc], true)).expect("there are as many chunks");
            for _ in 0..self.chunk {
                let gpc = &mut self.gpcs[number];
                let pair = gpc.iter().position(|taken| !taken).expect("a chunk of it is free");
                gpc[pair] = true;
                taken.push((number, pair));
            }
        }
        taken
    }

    /// Returns the ID of a partition of so many chunks beside the present ones, if it was recorded.
    fn recorded_id(&self, chunks: u32) -> Option<String> {
        let made: Vec<u32> =
            self.partitions.iter().map(|partition| partition.chunks).chain([chunks]).collect();
        let (_, _, ids) = RECORDED_IDS
            .iter()
            .find(|(gpu, sequence, _)| *gpu == self.name && sequence.starts_with(&made))?;
        ids.get(made.len() - 1).map(|id| (*id).to_owned())
    }

    fn id(&self, pairs: &[(usize, usize)]) -> String {
        let mut bytes = [0_u8; BYTES];
        for &(gpc, pair) in pairs {
            let bit = match self.ids {
                IdModel::Strided(stride) => gpc * stride as usize + pair,
                IdModel::Running => self.gpcs[..gpc].iter().map(Vec::len).sum::<usize>() + pair,
            };
            bytes[bit / 8] |= 1 << (bit % 8);
        }
        STANDARD.encode(bytes)
    }
}

/// Splits a client's variable into the names of partitions, one a device.
pub(crate) fn names(variable: &str) -> impl Iterator<Item = &str> {
    variable.split(',').map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile;

    fn h200(profile: &str) -> Partitions {
        let host = profile::host(profile, "seed").unwrap();
        Partitions::new(host.gpus.iter())
    }

    #[test]
    fn ten_chunk_id_matches_report_but_one_bit() {
        let name = h200("h200x1@13.2").add(0, 10).unwrap();
        let (_, id) = name.split_once('/').unwrap();
        // The recorded token: D/79e/DgwYMDAAAA…, which has 39 bits where ten chunks have 40.
        let recorded = STANDARD.decode(format!("D/79e/DgwYMD{}", "A".repeat(24))).unwrap();
        let ours = STANDARD.decode(id).unwrap();
        let differing: u32 = recorded.iter().zip(&ours).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((id.len(), differing), (36, 1));
    }

    #[test]
    fn model_gives_the_recorded_ids() {
        let made = |profile: &str, chunks: &[u32]| -> Vec<String> {
            let mut partitions = h200(profile);
            let names = chunks.iter().map(|chunks| partitions.add(0, *chunks).unwrap());
            names.map(|name| name.split_once('/').unwrap().1.to_owned()).collect()
        };
        let a10 = made("a10x1@13.2", &[9, 9]);
        assert!(a10[0].starts_with("z/MMww") && a10[1].starts_with("MAzzPA8"), "{a10:?}");
        for (gpu, sequence, ids) in RECORDED_IDS {
            let profile = format!("{}x1@13.3", gpu.trim_start_matches("NVIDIA ").to_lowercase());
            assert_eq!(made(&profile, sequence), *ids, "{gpu}");
        }
        // The model alone gives these, as after a partition that is not in the recording.
        let mut l40s = h200("l40sx1@13.3");
        let first = l40s.add(0, 1).unwrap();
        l40s.add(0, 3).unwrap();
        l40s.remove(&first, false).unwrap();
        assert!(l40s.add(0, 1).unwrap().ends_with("/AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
        for (profile, chunks, remainder) in
            [("l40sx1@13.3", 35, 2), ("l20x1@13.3", 23, 0), ("a10x1@13.2", 18, 0)]
        {
            let summary = &h200(profile).summaries()[0];
            assert_eq!(
                (summary.free_chunks, summary.free_sms),
                (chunks, chunks * 4 + remainder),
                "{profile}"
            );
        }
    }

    #[test]
    fn two_chunks_are_named_as_documented() {
        let name = h200("h200x1@13.1").add(0, 2).unwrap();
        assert!(name.split_once('/').unwrap().1.starts_with("Dx4A"), "{name}");
    }

    #[test]
    fn h200_has_fifteen_chunks_and_a_remainder() {
        let mut partitions = h200("h200x1@13.1");
        assert_eq!(partitions.add(0, 16), Err(AddError::DoesNotFit));
        partitions.add(0, 15).unwrap();
        let summary = &partitions.summaries()[0];
        assert_eq!((summary.free_chunks, summary.used_chunks), (0, 15));
        assert_eq!((summary.free_sms, summary.used_sms), (12, 120));
    }

    #[test]
    fn another_die_gives_another_id() {
        let usual = h200("h200x1@13.1").add(0, 9).unwrap();
        let other = h200("h200x1@13.1:gpcs=9.9.9.9.9.9.8.4").add(0, 9).unwrap();
        assert_ne!(usual.split_once('/').unwrap().1, other.split_once('/').unwrap().1);
    }
}
