//! Words for the values of daemons, tenants and GPUs, made once for the command line and the console.

pub(crate) mod daemon;
pub(crate) mod gpu;
pub(crate) mod tenant;
mod tone;

pub(crate) use tone::Tone;

use crate::domain::Priority;
use crate::domain::memory::Bytes;

/// A word that stands for an amount that is not known.
pub(crate) const UNKNOWN: &str = "?";

/// Returns a priority as people write it; the word of the API is `below_normal`.
pub(crate) fn priority(priority: Priority) -> &'static str {
    match priority {
        Priority::Normal => "normal",
        Priority::BelowNormal => "below normal",
    }
}

/// Returns a number of bytes in words, `?` if it is not known.
pub(crate) fn bytes(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_owned(), |bytes| Bytes(bytes).to_string())
}
