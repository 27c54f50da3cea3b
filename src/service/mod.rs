//! One function per use case: authorise, validate, write, then notify the supervisor or the operations engine.
//!
//! Nothing here knows of HTTP. Each use case begins with the right that it requires ([`access::context`]); what it reads and commits
//! takes the permit ([`Service::with`]). A request that changes something is run by [`Service::run_to_completion`].

pub mod access;
mod backend;
mod change;
mod change_feed;
pub mod daemons;
mod error;
pub mod events;
pub mod host;
pub mod host_file;
pub mod incidents;
pub mod layouts;
pub mod limits;
mod metrics;
mod names;
pub mod page;
mod settled;
pub mod tenants;
mod write;

pub use access::context::IdempotencyKey;
pub use backend::{Backend, Parts, Service};
pub use error::{FieldError, KEEPS_TURN, Result, ServiceError};
pub use write::{WriteOptions, Written, etag};

use backend::unavailable;
use names::{namesake_refusal, refuse_namesake};
use write::{check_precondition, removed, transaction_end};
