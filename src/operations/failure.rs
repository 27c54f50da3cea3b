//! Why an operation failed, whatever part of the host its error came from.

use tokio::task::JoinError;

use crate::domain::InvalidValue;
use crate::gpu::InventoryError;
use crate::store::StoreError;
use crate::supervisor::{FreshError, TerminateError};

/// Why an operation failed, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationFailure {
    /// What was requested was not done.
    #[error("{0}")]
    NotDone(String),
    /// It may have been done, or may yet.
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
