//! UUIDs of GPUs and of MIG instances, and the names of MLOPart devices.

use serde::{Deserialize, Serialize};

use super::{InvalidValue, plain_number};

/// Beginning of the UUID of a MIG instance.
const MIG: &str = "MIG-";
/// Text between the UUID of a GPU and the number of its MLOPart device.
const MLO: &str = "-mlo";

/// The UUID of a GPU, as in `GPU-514466a0-8e68-f857-9f73-e438010e48cb`, or of a MIG instance, which begins with `MIG-`. An MLOPart
/// device of a GPU is named by the GPU's UUID and its number, as `GPU-514466a0-8e68-f857-9f73-e438010e48cb-mlo1`: its own UUID is known only
/// while a server has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(try_from = "String", into = "String")]
#[schema(
    value_type = String,
    pattern = "^(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(-mlo[0-9]{1,3})?$",
    example = "GPU-514466a0-8e68-f857-9f73-e438010e48cb"
)]
pub struct GpuUuid(String);

impl GpuUuid {
    /// Parses a full UUID; upper-case letters are accepted and lowered.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let groups = [8, 4, 4, 4, 12];
        let is_digits = |digits: &str| {
            let parts: Vec<&str> = digits.split('-').collect();
            parts.len() == groups.len()
                && parts
                    .iter()
                    .zip(groups)
                    .all(|(part, length)| part.len() == length && part.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let (device, part) = text.split_once(MLO).map_or((text, None), |(gpu, number)| (gpu, Some(number)));
        let kind = device.split_at_checked(4).filter(|(_, digits)| is_digits(digits)).map(|(kind, _)| kind);
        let well_formed = match part {
            None => matches!(kind, Some("GPU-" | MIG)),
            Some(number) => {
                kind == Some("GPU-")
                    && (1..=3).contains(&number.len())
                    && plain_number::<u32>(number).is_some()
            }
        };
        if !well_formed {
            let shown: String = text.chars().take(80).collect();
            return Err(InvalidValue(format!(
                "{shown:?} is not a GPU UUID: it looks like GPU-514466a0-8e68-f857-9f73-e438010e48cb"
            )));
        }
        Ok(Self(format!("{}{}", &text[..4], text[4..].to_ascii_lowercase())))
    }

    /// Returns the UUID as text, with its `GPU-` or `MIG-`.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true if CUDA means this device by a UUID: it reports sixteen bytes, which do not say if it is a MIG instance.
    pub fn is_reported_as(&self, seen: &Self) -> bool {
        self.0[4..] == seen.0[4..]
    }

    /// Returns the number of an MLOPart device; `None` for any other device.
    pub fn mlo(&self) -> Option<u32> {
        self.0.split_once(MLO)?.1.parse().ok()
    }

    /// Returns the GPU of an MLOPart device, and any other device itself.
    #[must_use]
    pub fn whole(&self) -> Self {
        Self(self.0.split_once(MLO).map_or(self.as_str(), |(gpu, _)| gpu).to_owned())
    }

    /// Returns true if it is this device, or an MLOPart device of this GPU.
    pub fn is_of(&self, gpu: &Self) -> bool {
        self == gpu || self.0.split_once(MLO).is_some_and(|(whole, _)| whole == gpu.as_str())
    }

    /// Returns the name of an MLOPart device of this GPU.
    #[must_use]
    pub fn with_mlo(&self, number: u32) -> Self {
        Self(format!("{}{MLO}{number}", self.0))
    }

    /// Returns true for the UUID of a MIG instance.
    pub fn is_mig(&self) -> bool {
        self.0.starts_with(MIG)
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<GpuUuid> for String {
    fn from(uuid: GpuUuid) -> Self {
        uuid.0
    }
}

impl std::fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_parsed_strictly() {
        let text = "GPU-514466a0-8e68-f857-9f73-e438010e48cb";
        assert_eq!(GpuUuid::parse(text).expect("good").as_str(), text);
        assert_eq!(GpuUuid::parse("GPU-514466A0-8E68-F857-9F73-E438010E48CB").expect("good").as_str(), text);
        let instance = GpuUuid::parse("MIG-514466A0-8e68-f857-9f73-e438010e48cb").expect("good");
        assert_eq!((instance.as_str(), instance.is_mig()), (&*text.replace("GPU", "MIG"), true));
        let device = GpuUuid::parse(text).expect("good").with_mlo(1);
        assert_eq!(GpuUuid::parse(device.as_str()).expect("good"), device);
        assert_eq!((device.mlo(), device.whole().as_str()), (Some(1), text));
        assert!(device.is_of(&device.whole()) && !device.whole().is_of(&device));
        for bad in [
            "GPU-514466a0-8e68-f857-9f73-e438010e48cb-mlo",
            "GPU-514466a0-8e68-f857-9f73-e438010e48cb-mlo01",
            "GPU-514466a0-8e68-f857-9f73-e438010e48cb-mlo1-mlo1",
            "MIG-514466a0-8e68-f857-9f73-e438010e48cb-mlo1",
            "",
            "GPU-",
            "0",
            "514466a0-8e68-f857-9f73-e438010e48cb",
            "GPU-514466a0-8e68",
            "MIG-GPU-514466a0-8e68-f857-9f73-e438010e48cb/1/0",
            "mig-514466a0-8e68-f857-9f73-e438010e48cb",
            "\u{e9}\u{e9}514466a0-8e68-f857-9f73-e438010e48cb",
        ] {
            assert!(GpuUuid::parse(bad).is_err(), "{bad}");
        }
    }
}
