//! The domain model, as pure values.
//!
//! Nothing here reads a clock, an environment, a file or a socket: time and observations come in as
//! arguments. Newtypes are built by `parse` (or `try_from`) and are valid from then on, so no other
//! layer checks them again.

#[macro_use]
mod words;

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
mod daemon_check;
pub mod device_index;
pub mod device_memory_limit;
pub mod difference;
pub mod drift;
pub mod duration;
pub mod edges;
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
pub mod given_file;
pub mod gpu;
mod gpu_uuid;
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
pub mod mig;
pub mod mlopart;
pub mod moment;
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
pub mod saved_host;
pub mod session;
pub mod shares;
pub mod sharing;
pub mod tenant;
mod tenant_directory;
#[cfg(test)]
#[path = "tests.rs"]
mod testing;
pub mod timings;
pub mod token;
mod token_id;
pub mod verification;
pub mod vitals;
pub mod wedge;
pub mod workload;

pub use device_memory_limit::DeviceMemoryLimit;
pub use gpu_uuid::GpuUuid;
pub use inode::{FilePlace, Inode};
pub use memory::MemoryLimit;
pub use name::{
    ContextName, DaemonName, HostName, LayoutName, PartitionName, TemplateName, TenantName, TokenName,
};
pub use partition_id::PartitionId;
pub use percentage::ThreadPercentage;
pub use priority::Priority;
pub use tenant_directory::{COLOURS, TenantDirectory};

/// Parses a number in its one spelling: digits only, without leading zeros.
///
/// Names need one spelling, and `parse` of the standard library also accepts `+7` and `007`.
fn plain_number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok()).flatten()
}

/// Longest message of a parser that is passed on, in characters.
pub const LONGEST_WORDS: usize = 600;

/// Cuts the middle out of a long message of a parser: it may repeat input of any length, and ends with the expectation.
pub fn shortened(text: String) -> String {
    shortened_to(LONGEST_WORDS, text)
}

/// Cuts the middle out of a text that is longer than `longest` characters.
pub fn shortened_to(longest: usize, text: String) -> String {
    let count = text.chars().count();
    if count <= longest {
        return text;
    }
    let half = longest / 2;
    text.chars().take(half).chain(['…']).chain(text.chars().skip(count - half)).collect()
}

/// Shortens an ID: a UUID to the first characters, which the command line takes too, and a partition's to what it has before the zeros that
/// most of them end with.
pub fn short_id(id: &str) -> String {
    let own =
        id.strip_prefix("GPU-").and_then(|path| path.split_once('/')).map_or(id, |(_, partition)| partition);
    let short = match own.get(..13) {
        Some(first) if own.contains('-') => first.trim_end_matches('-'),
        _ => own.trim_end_matches('A'),
    };
    if short.len() + 2 < own.len() { format!("{short}…") } else { own.to_owned() }
}

/// Reason why a value was refused, and the remedy.
///
/// The text names the value and the remedy, since it is shown to the caller unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidValue(pub String);

/// Name that other packages use for this one, in files that their tests share.
#[cfg(test)]
use crate as domain;

#[cfg(test)]
mod tests {
    use super::short_id;

    #[test]
    fn ids_are_shortened_to_what_differs() {
        for (id, short) in [
            ("01a228c0-007b-759c-8132-1c30481139b8", "01a228c0-007b…"),
            ("GPU-a5bb9255-4632-c63c-5e00-7ed906ff73cc", "GPU-a5bb9255…"),
            (
                "GPU-a5bb9255-4632-c63c-5e00-7ed906ff73cc/AODBgwcPAIAHAAAAAAAAAAAAAAAAAAAAAAAA",
                "AODBgwcPAIAH…",
            ),
            ("AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "Aw…"),
            ("AAAB/AA", "AAAB/AA"),
            ("4711-123456", "4711-123456"),
        ] {
            assert_eq!(short_id(id), short);
        }
    }
}
