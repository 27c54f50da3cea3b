//! Why a use case did not do what was asked.

use crate::domain::access::Denied;
use crate::domain::admission::Refusal;
use crate::metrics::wire::Limit;
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
    /// Something of which whoever is bound to a tenant is told something else.
    #[error("{host}")]
    Apart {
        /// What those of the host are told.
        host: Box<Self>,
        /// What whoever is bound to a tenant is told.
        tenant: Box<Self>,
    },
    /// The caller has, or has done, as much of it as one may.
    #[error("{detail}")]
    TooMany {
        /// What, and what to do.
        detail: String,
        /// Seconds after which it may be tried again.
        wait_s: u64,
        /// Of what, for the metrics.
        of: Limit,
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
    /// Nothing can be written: the database's file is not at its place.
    #[error("{0}")]
    DatabaseLost(String),
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
            StoreError::Lost(why) => Self::DatabaseLost(why),
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
        // Why a daemon cannot be read may name anybody on the host; the word for it names nobody.
        let word = error.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        let told = format!("the daemon could not be read{word}: try again, or ask the host's operator");
        let kind = match error {
            FreshError::Late(..) => Self::TimedOut,
            FreshError::Failed(_) | FreshError::Gone => Self::Unavailable,
        };
        Self::apart(kind(error.to_string()), kind(told))
    }
}
