//! Reservation of memory and clients by the tenants of a daemon, and the over-commit ratio.

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// Rule by which a daemon takes tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AdmissionMode {
    /// Every tenant, with or without limits. Nothing is reserved; processes are started while MPS has room for them.
    #[default]
    Open,
    /// Tenants that state `device_memory_limit` and `max_clients`, while the sum of their products fits into the memory of each GPU times
    /// `memory_overcommit`, and the sum of `max_clients` does not exceed the clients that MPS takes.
    Reserved,
}

api_words!(AdmissionMode: Open "open", Reserved "reserved");

/// An over-commit ratio: a number from 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct OvercommitRatio(f64);

impl OvercommitRatio {
    /// Returns the bytes that may be reserved on a GPU of `total` bytes.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "GPUs have less than 2^53 bytes, and what is more than u64 holds becomes its largest"
    )]
    pub fn budget(self, total: u64) -> u64 {
        (total as f64 * self.0) as u64
    }
}

impl Default for OvercommitRatio {
    fn default() -> Self {
        Self(1.0)
    }
}

impl TryFrom<f64> for OvercommitRatio {
    type Error = InvalidValue;

    fn try_from(ratio: f64) -> Result<Self, InvalidValue> {
        if ratio.is_finite() && ratio >= 1.0 {
            return Ok(Self(ratio));
        }
        Err(InvalidValue(format!("{ratio} is not an over-commit ratio: give a number from 1")))
    }
}

impl From<OvercommitRatio> for f64 {
    fn from(ratio: OvercommitRatio) -> f64 {
        ratio.0
    }
}

impl std::fmt::Display for OvercommitRatio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overcommit_has_no_upper_bound() {
        let ratio = |number: f64| OvercommitRatio::try_from(number).expect("from 1");
        assert_eq!(ratio(1.5).budget(150_109_880_320), 225_164_820_480);
        assert_eq!((ratio(20.0).budget(10), ratio(1e300).budget(150_109_880_320)), (200, u64::MAX));
        assert_eq!(OvercommitRatio::default().budget(7), 7);
        for bad in [0.0, 0.9, -1.0, f64::NAN, f64::INFINITY] {
            assert!(OvercommitRatio::try_from(bad).is_err(), "{bad}");
        }
    }
}
