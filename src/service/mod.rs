//! One function per use case: authorise, validate, write, then notify the supervisor or the operations engine.
//!
//! Nothing here knows of HTTP. Each use case begins with the right that it requires ([`access::context`]); what it reads and commits
//! takes the permit ([`Service::with`]). A request that changes something is run by [`Service::run_to_completion`].

pub mod access;
mod backend;
pub mod daemons;
mod error;
pub mod events;
pub mod host;
pub mod host_file;
mod idempotency;
pub mod incidents;
pub mod layouts;
pub mod limits;
mod metrics;
pub mod page;
pub mod tenants;

pub use access::context::IdempotencyKey;
pub use backend::{Backend, Parts, Service};
pub use error::{FieldError, KEEPS_TURN, ServiceError};

use backend::unavailable;

use crate::store::TransactionEnd;

/// How a write is done.
#[derive(Debug, Clone, Default)]
pub struct WriteOptions {
    /// Validate everything and keep nothing.
    pub dry_run: bool,
    /// Write only if this is the entity tag now; `*` is "if it exists".
    pub if_match: Option<String>,
    /// Write only if it does not exist (`If-None-Match: *`).
    pub must_be_new: bool,
}

impl WriteOptions {
    /// Only to find out whether the write would be refused.
    pub fn rehearsal() -> Self {
        Self { dry_run: true, ..Self::default() }
    }
}

/// A written resource, and whether it is new.
#[derive(Debug, Clone)]
pub struct Written<T> {
    /// The resource as it is now.
    pub value: T,
    /// Whether it did not exist before.
    pub created: bool,
}

/// Refuses a write whose entity tag is not the present one.
fn check_precondition(options: &WriteOptions, current: Option<i64>) -> Result<(), ServiceError> {
    let failed = |detail: String| Err(ServiceError::PreconditionFailed(detail));
    if options.must_be_new && current.is_some() {
        return failed("it exists already, and If-None-Match: * was given".into());
    }
    let Some(wanted) = &options.if_match else { return Ok(()) };
    match current {
        None => failed("it does not exist, and If-Match was given".into()),
        Some(_) if wanted == "*" => Ok(()),
        Some(now) if wanted.split(',').any(|tag| revision_of(tag.trim()) == etag(now)) => Ok(()),
        Some(now) => failed(format!(
            "it was changed since: If-Match is {wanted} and the entity tag is now {}; read it again and repeat the change",
            etag(now)
        )),
    }
}

/// Refuses a new name that differs from one that is there only in hyphens and underscores.
fn refuse_namesake(
    kind: &str,
    name: &impl std::fmt::Display,
    namesake: Option<impl std::fmt::Display>,
) -> Result<(), ServiceError> {
    let Some(there) = namesake else { return Ok(()) };
    Err(ServiceError::Conflict(format!(
        "there is a {kind} {there} already, and a name that differs from it only in hyphens and underscores is taken for the same by \
         newer versions of MPS: choose another name than {name}"
    )))
}

/// The entity tag of a revision.
pub fn etag(revision: i64) -> String {
    format!("\"{revision}\"")
}

/// The entity tag of the revision alone, from a tag that a read gave: `"3"` of `"3-0a1b"`.
fn revision_of(tag: &str) -> std::borrow::Cow<'_, str> {
    match tag.split_once('-') {
        Some((revision, _)) => format!("{revision}\"").into(),
        None => tag.into(),
    }
}

/// Commit, or roll back for a dry run.
fn transaction_end(options: &WriteOptions) -> TransactionEnd {
    if options.dry_run { TransactionEnd::RollBack } else { TransactionEnd::Commit }
}
