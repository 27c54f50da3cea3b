//! Why an operation failed, whatever part of the host its error came from.

use tokio::task::JoinError;

use crate::domain::InvalidValue;
use crate::gpu::InventoryError;
use crate::store::StoreError;
use crate::supervisor::{FreshError, TerminateError};

/// Why an operation failed, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct OperationFailure(pub(super) String);

impl From<String> for OperationFailure {
    fn from(why: String) -> Self {
        Self(why)
    }
}

macro_rules! from_errors {
    ($($error:ty),+) => {$(
        impl From<$error> for OperationFailure {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        }
    )+};
}

from_errors!(
    StoreError,
    FreshError,
    TerminateError,
    InventoryError,
    InvalidValue,
    JoinError,
    serde_json::Error
);
