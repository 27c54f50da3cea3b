//! Reports of past problems in conditions: their number in words, and the time for which they are shown.

/// Time for which a repaired external change stays in the conditions, in milliseconds.
pub(crate) const SHOWN_MS: i64 = 60 * 60 * 1000;

/// Returns a number of times in words.
pub(crate) fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}
