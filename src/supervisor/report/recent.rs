//! What conditions say of something that is over: how often it was seen, and for how long that is shown.

/// How long a repaired external change stays in the conditions, in milliseconds.
pub(crate) const SHOWN_MS: i64 = 60 * 60 * 1000;

/// How often something was seen, in words.
pub(crate) fn times(count: u64) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}
