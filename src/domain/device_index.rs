//! Places of devices among the GPUs of a host: a whole GPU, or a part of one.

use serde::{Deserialize, Serialize};

use super::{InvalidValue, plain_number};

/// Place of a device, as people write it: `0` is a GPU, `0/mig1` a MIG instance of it, `0/mlo1` an MLOPart device of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "WrittenIndex", into = "WrittenIndex")]
pub struct DeviceIndex {
    /// Position of the GPU among those of the host, in PCI order, from 0.
    pub gpu: u32,
    /// The part of the GPU; `None` for the whole GPU.
    pub part: Option<DevicePart>,
}

/// Part of a GPU that is a device of its own, with its number on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DevicePart {
    /// A MIG instance, by the number that `nvidia-smi -L` shows.
    Mig(u32),
    /// A memory locality optimized partition, by the number in its name.
    Mlo(u32),
}

/// Pattern of the places, for the API document.
pub(super) const PLACES: &str = "[0-9]{1,9}(/(mig|mlo)[0-9]{1,3})?";

/// Remedy for a place that is written otherwise.
pub const PART_SPELLING: &str = "a part of a GPU is written as 0/mig1 or 0/mlo1";

impl DeviceIndex {
    /// Parses `0`, `0/mig1` or `0/mlo1`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str, most: usize| plain_number::<u32>(text).filter(|_| text.len() <= most);
        let (gpu, part) = text.split_once('/').map_or((text, None), |(gpu, part)| (gpu, Some(part)));
        let part = match part {
            None => None,
            Some(part) => {
                let (kind, at) = part.split_at_checked(3)?;
                let at = number(at, 3)?;
                Some(match kind {
                    "mig" => DevicePart::Mig(at),
                    "mlo" => DevicePart::Mlo(at),
                    _ => return None,
                })
            }
        };
        Some(Self { gpu: number(gpu, 9)?, part })
    }

    /// Returns the name that the device's daemon is given where nobody gave one: `gpu0`, or `gpu0-mig1`.
    pub fn daemon_name(self) -> String {
        format!("gpu{self}").replace('/', "-")
    }
}

impl From<u32> for DeviceIndex {
    fn from(gpu: u32) -> Self {
        Self { gpu, part: None }
    }
}

impl PartialEq<u32> for DeviceIndex {
    fn eq(&self, gpu: &u32) -> bool {
        *self == Self::from(*gpu)
    }
}

impl std::fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.part {
            None => write!(f, "{}", self.gpu),
            Some(DevicePart::Mig(number)) => write!(f, "{}/mig{number}", self.gpu),
            Some(DevicePart::Mlo(number)) => write!(f, "{}/mlo{number}", self.gpu),
        }
    }
}

/// A place in JSON: the number of a GPU, or the text of a part.
#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum WrittenIndex {
    Gpu(u32),
    Part(PartIndex),
}

/// A place that is written as text.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct PartIndex(DeviceIndex);

impl TryFrom<String> for PartIndex {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        let place = DeviceIndex::parse(&text);
        place.map(Self).ok_or_else(|| InvalidValue(format!("{text:?} is no device: {PART_SPELLING}")))
    }
}

impl From<PartIndex> for String {
    fn from(place: PartIndex) -> Self {
        place.0.to_string()
    }
}

impl From<WrittenIndex> for DeviceIndex {
    fn from(written: WrittenIndex) -> Self {
        match written {
            WrittenIndex::Gpu(gpu) => gpu.into(),
            WrittenIndex::Part(PartIndex(place)) => place,
        }
    }
}

impl From<DeviceIndex> for WrittenIndex {
    fn from(place: DeviceIndex) -> Self {
        if place.part.is_none() { Self::Gpu(place.gpu) } else { Self::Part(PartIndex(place)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for text in ["0", "15", "0/mig0", "3/mig13", "0/mlo1"] {
            let place = DeviceIndex::parse(text).expect(text);
            assert_eq!(place.to_string(), text);
            let json = serde_json::to_value(place).expect("plain");
            assert_eq!(json.is_number(), place.part.is_none(), "{text}");
            assert_eq!(serde_json::from_value::<DeviceIndex>(json).expect("as written"), place);
        }
        for bad in
            ["", "/", "0/", "0/mig", "mig1", "0/mig01", "0/mig1234", "0/gi1", "0/mig1/2", "-1", "1234567890"]
        {
            assert_eq!(DeviceIndex::parse(bad), None, "{bad}");
        }
        let sorted =
            ["0", "0/mig0", "0/mig1", "1", "1/mlo0"].map(|text| DeviceIndex::parse(text).expect(text));
        assert!(sorted.is_sorted());
    }
}
