//! Why a set of tenants does not fit.

/// Why a set of tenants does not fit; `field` is the part of the spec that the caller should check first.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{detail}")]
pub struct AdmissionError {
    /// The field of the tenant's spec.
    pub field: &'static str,
    /// What does not fit, the sum, and what would fit.
    pub detail: String,
}
