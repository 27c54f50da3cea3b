//! One driver task for each daemon, and a cheap handle to it for other tasks.
//!
//! A driver compares the desired state ([`Desired`](crate::domain::plan::Desired), published by a watch after each commit)
//! with the state that it reads, acts, reads back, and publishes [`Observed`] by a watch. It never touches SQLite: records
//! that have to outlive the manager go as a [`DurableWrite`] to the one recorder.

mod blocker;
mod context;
mod driver;
mod durable;
mod fleet;
mod handle;
mod handout;
mod observe;
mod observed;
mod owned_compute_modes;
mod recent;
mod reconcile;
mod remedy;
pub mod report;
mod requests;
#[cfg(test)]
mod tests;

pub use self::blocker::Blocker;
pub use self::context::SupervisorContext;
pub use self::durable::{DurableRecord, DurableWrite, OpenReports, RememberedDaemon};
pub use self::fleet::Fleet;
pub use self::handle::{FreshError, Handle};
pub use self::handout::{ClientDirectory, DirectoryStatus, Handouts, root as tenants_directory};
pub use self::observe::control_process::token;
pub use self::observe::exposed_directories::{ExposedDirectory, ExposureSearch, exposed_directories};
pub use self::observe::foreign_daemons::{ForeignDaemon, ForeignDaemonScanner};
pub use self::observe::gpu_presence::GpuPresence;
pub use self::observe::poll::ForeignPoll;
pub use self::observe::server_log_events::UnobservedClient;
pub use self::observed::Observed;
pub use self::owned_compute_modes::OwnedComputeModes;
pub use self::requests::{TerminateError, Terminating, Termination};
pub use crate::mps::log::kept_name;
pub use crate::mps::log::window::{Excerpt, Line, OwnSessions, Part, excerpt};
pub use crate::mps::process::foreign::reachable;
pub use crate::mps::process::{DEFAULT_PIPE_DIRECTORY, LONGEST_PATH, PIPE_ENV, TOKEN_ENV, is_server};
