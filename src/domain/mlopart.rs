//! MLOPart devices: the parts, each near one part of its memory, into which MPS divides a GPU for the clients of a server.

use serde::{Deserialize, Serialize};

use super::GpuUuid;

/// An MLOPart device, as the server that has it lists it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MlopartDevice {
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its number on the GPU, from 0: together they name it, as `0/mlo1`.
    pub number: u32,
    /// Its own UUID, by which processes name it; the daemon may print it shortened.
    pub uuid: String,
}

impl MlopartDevice {
    /// Returns the name that does not change with the server.
    pub fn name(&self) -> GpuUuid {
        self.gpu.with_mlo(self.number)
    }

    /// Returns true if a UUID that a person or CUDA gives is that of the device: one may be the beginning of the other.
    pub fn has_uuid(&self, text: &str) -> bool {
        let (own, text) = (self.uuid.to_ascii_lowercase(), text.to_ascii_lowercase());
        // The longer one is whole.
        let is_whole =
            GpuUuid::parse(&text.replacen("gpu-", "GPU-", 1)).is_ok_and(|uuid| uuid.mlo().is_none());
        text.len() > 4 && (own.starts_with(&text) || is_whole && text.starts_with(&own))
    }
}
