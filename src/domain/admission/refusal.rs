//! Refusals of admission.

/// Reason why a set of tenants does not fit; `field` is the part of the spec that the caller should check first.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{detail}")]
pub struct AdmissionError {
    /// Field of the tenant's spec.
    pub field: &'static str,
    /// Explanation for the caller: the value that does not fit, the sum, and a value that would fit.
    pub detail: String,
}
