//! MIG instances: parts of a GPU in MIG mode, each a device of its own.

use serde::{Deserialize, Serialize};

use super::{GpuUuid, plain_number};

/// A MIG instance: the GPU that it is a part of, and its size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MigInstance {
    /// UUID of its GPU.
    pub parent: GpuUuid,
    /// Its number on the GPU, as `nvidia-smi -L` shows it.
    pub number: u32,
    /// Its profile, as `1g.10gb`; `null` if the driver does not report it.
    pub profile: Option<String>,
}

/// Slices that a GPU has for computing in MIG mode.
const SLICES: u32 = 7;
/// Clients of a whole GPU of which the guide speaks; whether it is more since MPS takes more is said nowhere.
const CLIENTS: u32 = 48;

impl MigInstance {
    /// Returns the slices for computing that it has: those of its compute instance (`1c.3g.20gb`), or those of its GPU instance.
    fn slices(&self) -> Option<u32> {
        let first = self.profile.as_deref()?.split('.').next()?;
        let slices = plain_number(first.strip_suffix(['c', 'g'])?)?;
        (1..=SLICES).contains(&slices).then_some(slices)
    }

    /// Returns the clients that it takes, of a number that a whole GPU takes: in proportion to the size of its compute instance (NVIDIA's MIG
    /// user guide).
    pub fn share_of_clients(&self, whole: u32) -> u32 {
        self.slices().map_or(whole, |slices| (whole.min(CLIENTS) * slices / SLICES).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instance_takes_its_share_of_clients() {
        let of = |profile: Option<&str>| MigInstance {
            parent: GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("good"),
            number: 0,
            profile: profile.map(ToOwned::to_owned),
        };
        for (profile, clients) in [
            ("1g.10gb", 6),
            ("3g.40gb", 20),
            ("7g.80gb", 48),
            ("1c.3g.20gb", 6),
            ("1g.10gb+me", 6),
            ("9x", 48),
        ] {
            assert_eq!(of(Some(profile)).share_of_clients(48), clients, "{profile}");
        }
        assert_eq!(of(None).share_of_clients(48), 48);
        assert_eq!(
            (of(Some("1g.10gb")).share_of_clients(4), of(Some("1g.10gb")).share_of_clients(60)),
            (1, 6)
        );
    }
}
