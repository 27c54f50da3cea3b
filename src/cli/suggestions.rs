//! What is suggested for a command that does not exist.

use clap::error::{ContextKind, ContextValue};

/// Commands that are never suggested for another word: what they do cannot be undone.
const UNSAFE: [&str; 11] = [
    "terminate",
    "kill",
    "delete",
    "restore",
    "stop",
    "restart",
    "drain",
    "revoke",
    "end",
    "release",
    "replace",
];

/// The same error without suggestions that could do harm, and with the noun of a verb that was given alone.
pub(super) fn with_safe_ones(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => return error,
    };
    let suggested = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(one)) => vec![one.clone()],
        Some(ContextValue::Strings(several)) => several.clone(),
        _ => Vec::new(),
    };
    let mut safe: Vec<String> = suggested.into_iter().filter(|one| !UNSAFE.contains(&one.as_str())).collect();
    let nouns = command.get_subcommands().filter(|noun| noun.find_subcommand(&word).is_some());
    let with_noun: Vec<String> = nouns.map(|noun| format!("{} {word}", noun.get_name())).collect();
    if !with_noun.is_empty() {
        safe = with_noun;
    }
    if safe.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(safe));
    }
    error
}
