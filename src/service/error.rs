//! Why a use case did not do what was asked.

use crate::domain::access::{Actor, Denied};
use crate::domain::admission::Refusal;
use crate::store::StoreError;
use crate::supervisor::FreshError;

/// One field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct FieldError {
    /// JSON pointer to the field in the request's body.
    pub pointer: String,
    /// What is wrong with its value and what would be right.
    pub detail: String,
}

/// Why a use case did not do what was asked; nothing of it was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// There is no such thing.
    #[error("there is no {kind} {name}")]
    NotFound {
        /// What kind of thing.
        kind: &'static str,
        /// Which.
        name: String,
    },
    /// The actor may not do that, whatever the request says.
    #[error("{0}")]
    Forbidden(String),
    /// Fields are wrong in themselves.
    #[error("{} of the request {} refused", if .0.len() == 1 { "a field" } else { "several fields" }, if .0.len() == 1 { "is" } else { "are" })]
    Invalid(Vec<FieldError>),
    /// The request is right in itself and does not fit what is there.
    #[error("{0}")]
    Conflict(String),
    /// Somebody who is not bound to it holds a partition.
    #[error(
        "tenant {tenant} cannot be let into partition {partition}: process {holder} {whose} was let into it or started in it, and is not bound to it: end that first"
    )]
    Occupied {
        /// Who is to be let in.
        tenant: String,
        /// The partition.
        partition: String,
        /// The process that holds it.
        holder: String,
        /// Whose that is, as far as it is known.
        whose: String,
    },
    /// The daemon cannot hold the tenant.
    #[error("{}", .0.detail)]
    NotAdmitted(FieldError),
    /// Something stands in the way of a layout.
    #[error("{detail}")]
    Blocked {
        /// What stands first in the way.
        detail: String,
        /// Everything that does.
        errors: Vec<FieldError>,
    },
    /// What is recorded is of other hardware, or of other versions.
    #[error("{detail}")]
    OtherHardware {
        /// In what it differs.
        detail: String,
        /// Each field.
        errors: Vec<FieldError>,
    },
    /// It was changed since the caller read it.
    #[error("{0}")]
    PreconditionFailed(String),
    /// The key was used for another request.
    #[error("the Idempotency-Key {0:?} was used for another request: choose a new key for a new request")]
    KeyReused(String),
    /// Nothing is changed here, whatever the request: the database belongs to another machine.
    #[error("{0}")]
    ReadOnly(String),
    /// Something needed is not there at the moment.
    #[error("{0}")]
    Unavailable(String),
    /// Something did not answer in time.
    #[error("{0}")]
    TimedOut(String),
    /// A fault of the manager or its file.
    #[error("{0}")]
    Internal(String),
}

impl ServiceError {
    /// The same as somebody is told of it who is bound to a tenant: not what other tenants have.
    #[must_use]
    pub(super) fn told_to(self, actor: &Actor) -> Self {
        match (actor.scope(), self) {
            (Some(_), Self::Occupied { tenant, partition, .. }) => Self::Conflict(format!(
                "tenant {tenant} cannot be let into partition {partition}: somebody else's process is in it. Ask the host's operator"
            )),
            (_, error) => error,
        }
    }

    /// One wrong field.
    pub fn field(pointer: &str, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError { pointer: pointer.to_owned(), detail: detail.into() }])
    }
}

impl From<StoreError> for ServiceError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Busy | StoreError::Closed | StoreError::NotWritten | StoreError::Full => {
                Self::Unavailable(error.to_string())
            }
            StoreError::Sealed => Self::ReadOnly(error.to_string()),
            StoreError::Unplannable { .. } => Self::Conflict(error.to_string()),
            other => Self::Internal(other.to_string()),
        }
    }
}

impl From<Denied> for ServiceError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::Forbidden { .. } => Self::Forbidden(denied.to_string()),
            Denied::Hidden(tenant) => Self::NotFound { kind: "tenant", name: tenant.to_string() },
        }
    }
}

impl From<Refusal> for ServiceError {
    fn from(refusal: Refusal) -> Self {
        Self::NotAdmitted(FieldError { pointer: format!("/{}", refusal.field), detail: refusal.detail })
    }
}

impl From<FreshError> for ServiceError {
    fn from(error: FreshError) -> Self {
        match error {
            FreshError::Late(..) => Self::TimedOut(error.to_string()),
            FreshError::Failed(_) | FreshError::Gone => Self::Unavailable(error.to_string()),
        }
    }
}
