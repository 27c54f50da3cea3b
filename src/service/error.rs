//! Errors of use cases.

use crate::domain::InvalidValue;
use crate::domain::access::Denied;
use crate::domain::admission::AdmissionError;
use crate::domain::occupancy::Lacking;
use crate::metrics::wire::Limit;
use crate::store::StoreError;

/// One invalid field.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
pub struct FieldError {
    /// JSON pointer to the field in the request's body.
    pub pointer: String,
    /// Reason why its value is invalid, and the valid values.
    pub detail: String,
}

/// Advice in the refusal of a process that waits for a slot.
pub const KEEPS_TURN: &str = "this process keeps its turn";

/// The result of a use case.
pub type Result<T, E = ServiceError> = std::result::Result<T, E>;

/// Reason why a use case was refused or failed; nothing of it was done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The resource does not exist.
    #[error("there is no {kind} {name}")]
    NotFound {
        /// The kind of resource.
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The actor has no right to do this.
    #[error("{0}")]
    Forbidden(String),
    /// Fields are invalid.
    #[error("{} of the request {} refused", if .0.len() == 1 { "a field" } else { "several fields" }, if .0.len() == 1 { "is" } else { "are" })]
    Invalid(Vec<FieldError>),
    /// The request is valid but conflicts with the present state.
    #[error("{0}")]
    Conflict(String),
    /// There is no slot for another process.
    #[error("{full}: {remedy}")]
    AtCapacity {
        /// The limit that is reached.
        full: String,
        /// Advice to the caller, or the next step.
        remedy: &'static str,
        /// Kind of slot that the process lacks.
        lacking: Lacking,
        /// True if the process waits, and is expected to repeat its request.
        keeps_turn: bool,
    },
    /// An error whose full text is for host users; tenant users get a redacted one.
    #[error("{host}")]
    ForAudience {
        /// For host users.
        host: Box<Self>,
        /// For users bound to a tenant.
        tenant: Box<Self>,
    },
    /// The caller reached a limit.
    #[error("{detail}")]
    TooMany {
        /// The limit, and advice to the caller.
        detail: String,
        /// Seconds until a retry can succeed.
        wait_s: u32,
        /// The limit, for the metrics.
        of: Limit,
    },
    /// The daemon cannot hold the tenant.
    #[error("{}", .0.detail)]
    NotAdmitted(FieldError),
    /// A layout is blocked.
    #[error("{detail}")]
    Blocked {
        /// The first blocker.
        detail: String,
        /// All blockers.
        errors: Vec<FieldError>,
    },
    /// A host file is refused as a whole.
    #[error("{detail}")]
    HostFileRefused {
        /// The fault, or how many there are.
        detail: String,
        /// All faults, each with its place in the file.
        errors: Vec<FieldError>,
    },
    /// The record belongs to other hardware or other versions.
    #[error("{detail}")]
    OtherHardware {
        /// The differences.
        detail: String,
        /// One error per field.
        errors: Vec<FieldError>,
    },
    /// The resource was changed after the caller read it.
    #[error("{0}")]
    PreconditionFailed(String),
    /// The key was used for another request.
    #[error("the Idempotency-Key {0:?} was used for another request: choose a new key for a new request")]
    KeyReused(String),
    /// The database belongs to another machine, or the driver is waited for, so nothing may be changed.
    #[error("{0}")]
    ReadOnly(String),
    /// Nothing can be written: the database file is not at its path.
    #[error("{0}")]
    DatabaseLost(String),
    /// Something required is unavailable at the moment.
    #[error("{0}")]
    Unavailable(String),
    /// Something did not answer in time.
    #[error("{0}")]
    TimedOut(String),
    /// An internal fault of the manager or its database.
    #[error("{0}")]
    Internal(String),
}

impl ServiceError {
    /// Says that there is no such resource.
    pub fn not_found(kind: &'static str, name: &impl ToString) -> Self {
        Self::NotFound { kind, name: name.to_string() }
    }

    /// One invalid field.
    pub fn field(pointer: &str, detail: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError { pointer: pointer.to_owned(), detail: detail.into() }])
    }

    /// An invalid value of a field of the body.
    pub fn invalid((field, InvalidValue(detail)): (&str, InvalidValue)) -> Self {
        Self::field(&format!("/{field}"), detail)
    }
}

/// Requires that something is there.
pub(in crate::service) trait Found<T> {
    /// Returns it, or the error that there is none of that kind and name.
    fn found(self, kind: &'static str, name: &impl ToString) -> Result<T>;
}

impl<T> Found<T> for Option<T> {
    fn found(self, kind: &'static str, name: &impl ToString) -> Result<T> {
        self.ok_or_else(|| ServiceError::not_found(kind, name))
    }
}

/// A conflict with the present state, in the words of `format!`.
macro_rules! conflict {
    ($($text:tt)+) => { $crate::service::ServiceError::Conflict(format!($($text)+)) };
}
pub(in crate::service) use conflict;

/// An invalid field, with its pointer and the words of `format!`.
macro_rules! field {
    ($pointer:expr, $($text:tt)+) => { $crate::service::ServiceError::field($pointer, format!($($text)+)) };
}
pub(in crate::service) use field;

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

impl From<AdmissionError> for ServiceError {
    fn from(refusal: AdmissionError) -> Self {
        Self::NotAdmitted(FieldError { pointer: format!("/{}", refusal.field), detail: refusal.detail })
    }
}
