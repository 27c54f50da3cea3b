//! Client priority, a hint to the scheduler of the GPU.

use serde::{Deserialize, Serialize};

/// The priority of an MPS client.
///
/// It is a hint: recording 06 shows no effect where every SM is full of one kernel size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// MPS's `0`, the default.
    #[default]
    Normal,
    /// MPS's `1`.
    BelowNormal,
}

api_words!(Priority: Normal "normal", BelowNormal "below_normal");

impl Priority {
    /// The digit that `set_default_client_priority` and `CUDA_MPS_CLIENT_PRIORITY` take.
    pub fn as_mps(self) -> u8 {
        match self {
            Self::Normal => 0,
            Self::BelowNormal => 1,
        }
    }

    /// The priority that MPS's digit stands for; `None` for anything but 0 and 1.
    pub fn from_mps(digit: u8) -> Option<Self> {
        match digit {
            0 => Some(Self::Normal),
            1 => Some(Self::BelowNormal),
            _ => None,
        }
    }
}
