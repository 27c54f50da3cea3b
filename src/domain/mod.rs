//! What the product talks about, as pure values.
//!
//! Nothing here reads a clock, an environment, a file or a socket: time and observations come in as
//! arguments. Newtypes are built by `parse` (or `try_from`) and cannot be wrong afterwards, so that no other
//! layer checks them again.

pub mod access;
pub mod admission;
pub mod attention;
pub mod attribution;
pub mod audit;
pub mod bypass;
pub mod capability;
pub mod checkup;
pub mod client;
pub mod compute_mode;
pub mod condition;
pub mod count;
pub mod daemon;
pub mod device_memory_limit;
pub mod difference;
pub mod drift;
pub mod duration;
mod effective;
pub mod environment;
pub mod event;
pub mod exposure;
pub mod fault;
pub mod foreign;
pub mod foreign_owner;
pub mod foreign_user;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
#[path = "../fuzz.rs"]
mod fuzz_inputs;
pub mod gpu;
pub mod health;
pub mod history;
pub mod host_file;
pub mod incident;
mod inode;
pub mod isolation;
pub mod json;
pub mod layout;
pub mod listening;
pub mod maintenance;
mod management;
pub mod memory;
pub mod name;
pub mod neighbours;
pub mod occupancy;
pub mod operation;
pub mod partition_id;
pub mod partitions;
pub mod percentage;
pub mod plan;
pub mod prediction;
pub mod printable;
pub mod priority;
pub mod provisioning;
mod reservation;
pub mod resolution;
pub mod rfc3339;
pub mod session;
pub mod shares;
pub mod tenant;
mod tenant_directory;
#[cfg(test)]
#[path = "tests.rs"]
mod testing;
pub mod timings;
pub mod token;
mod token_id;
pub mod verification;
pub mod wedge;
pub mod workload;

pub use device_memory_limit::DeviceMemoryLimit;
pub use gpu::GpuUuid;
pub use inode::{FilePlace, Inode};
pub use memory::MemoryLimit;
pub use name::{ContextName, DaemonName, LayoutName, PartitionName, TemplateName, TenantName, TokenName};
pub use partition_id::PartitionId;
pub use percentage::ThreadPercentage;
pub use priority::Priority;
pub use tenant_directory::TenantDirectory;

/// A number in its one spelling: digits alone, and no zero before others.
///
/// What names something has one name: `parse` of the standard library also takes `+7` and `007`.
fn plain_number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// The most of a parser's words that are passed on, in characters.
pub const LONGEST_WORDS: usize = 600;

/// Words of a parser without their middle where they are long: what was sent may be repeated there, of any length, and what
/// is expected instead stands at the end.
pub fn shortened(text: String) -> String {
    shortened_to(LONGEST_WORDS, text)
}

/// The same with room for so many characters.
pub fn shortened_to(longest: usize, text: String) -> String {
    let count = text.chars().count();
    if count <= longest {
        return text;
    }
    let half = longest / 2;
    text.chars().take(half).chain(['…']).chain(text.chars().skip(count - half)).collect()
}

/// Why a value was refused: what is wrong with it and what would be right.
///
/// The text names the value and the remedy, since it is shown to the caller as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

/// The name that other packages have for this one, in the files that their tests share.
#[cfg(test)]
use crate as domain;
