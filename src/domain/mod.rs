//! What the product talks about, as pure values.
//!
//! Nothing here reads a clock, an environment, a file or a socket: time and observations come in as
//! arguments. Newtypes are built by `parse` (or `try_from`) and cannot be wrong afterwards, so that no other
//! layer checks them again.

pub mod access;
pub mod admission;
pub mod client;
pub mod compute_mode;
pub mod daemon;
pub mod drift;
pub mod environment;
pub mod event;
pub mod foreign;
pub mod gpu;
mod inode;
pub mod isolation;
pub mod layout;
pub mod listening;
pub mod maintenance;
pub mod memory;
pub mod name;
pub mod operation;
pub mod partition_id;
pub mod partitions;
pub mod percentage;
pub mod plan;
pub mod priority;
pub mod session;
pub mod tenant;
pub mod throttle;
pub mod token;

pub use gpu::GpuUuid;
pub use inode::{FilePlace, Inode};
pub use memory::MemoryLimit;
pub use name::{DaemonName, LayoutName, PartitionName, TenantName, TokenName};
pub use partition_id::PartitionId;
pub use percentage::ThreadPercentage;
pub use priority::Priority;

/// Why a value was refused: what is wrong with it and what would be right.
///
/// The text names the value and the remedy, since it is shown to the caller as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);
