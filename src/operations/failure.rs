//! Why an operation failed, whatever part of the host its error came from.

use tokio::task::JoinError;

use crate::domain::InvalidValue;
use crate::gpu::InventoryError;
use crate::store::StoreError;
use crate::supervisor::{FreshError, TerminateError};

/// The result of a part of an operation.
pub(super) type Result<T, E = OperationFailure> = std::result::Result<T, E>;

/// Why an operation failed, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationFailure {
    /// The request was not carried out.
    #[error("{0}")]
    NotDone(String),
    /// The request may have been carried out, or may yet be.
    #[error("{0}")]
    OutcomeUnknown(String),
}

impl From<String> for OperationFailure {
    fn from(why: String) -> Self {
        Self::NotDone(why)
    }
}

impl From<TerminateError> for OperationFailure {
    fn from(error: TerminateError) -> Self {
        let why = error.to_string();
        match error {
            TerminateError::Unanswered(_) => Self::OutcomeUnknown(why),
            _ => Self::NotDone(why),
        }
    }
}

macro_rules! from_errors {
    ($($error:ty),+) => {$(
        impl From<$error> for OperationFailure {
            fn from(error: $error) -> Self {
                Self::NotDone(error.to_string())
            }
        }
    )+};
}

from_errors!(StoreError, FreshError, InventoryError, InvalidValue, JoinError, serde_json::Error);
