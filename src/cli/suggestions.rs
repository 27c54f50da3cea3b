//! Suggestions for a command that does not exist: the meaning of the word in other tools, or a similar word that does no harm.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};

/// Verbs that only show something, or only add something; no other verb is suggested merely because a word looks like it.
const HARMLESS: [&str; 2] = [
    "list get set show logs check verify diff export plan preview versions assert acknowledge record help head current add use",
    // Without a noun.
    "status top events env clients doctor whoami login-url completions openapi version",
];

/// Words of other tools, with the verbs that they mean; the first of these that a noun has is suggested.
const MEANT: &[(&[&str], &[&str])] = &[
    (&["describe", "show", "inspect", "info", "view", "cat", "details"], &["get", "show", "list"]),
    (&["ls", "all", "ps"], &["list"]),
    (
        &["delete", "remove", "rm", "del", "destroy", "erase", "uninstall"],
        &["delete", "remove", "revoke", "end"],
    ),
    (
        &["create", "add", "new", "make", "edit", "update", "change", "modify", "patch", "configure"],
        &["set", "create", "add"],
    ),
    (&["log", "logs", "tail"], &["logs"]),
    (&["ack", "close", "resolve"], &["acknowledge"]),
    (&["run", "launch", "up", "enable"], &["start"]),
    (&["down", "shutdown", "disable"], &["stop"]),
];

/// Options that end or take away something.
const HARMFUL: &[&str] = &["--prune", "--force", "--yes", "--recreate"];

/// Nouns that are most likely meant by a verb without a noun.
const MAIN: [&str; 4] = ["tenant", "daemon", "layout", "incident"];

/// Most commands that are suggested.
const MOST: usize = 4;

/// Replaces the suggestions of an error by commands that are probably meant, and never by one that could do harm; `words` are the
/// arguments.
pub(super) fn with_safe_ones(
    mut error: clap::Error,
    command: &clap::Command,
    words: &[OsString],
) -> clap::Error {
    let word = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => word.clone(),
        _ => return with_safe_option(error),
    };
    let similar = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(suggestion)) => vec![suggestion.clone()],
        Some(ContextValue::Strings(several)) => several.clone(),
        _ => Vec::new(),
    };
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let position = words.iter().position(|argument| *argument == word).unwrap_or(words.len());
    let noun_before = words[..position].iter().rev().find_map(|argument| noun(command, argument));
    let noun_after = words.get(position + 1).and_then(|argument| noun(command, argument));
    let mut suggested: Vec<String> = match (noun_before, noun_after) {
        (Some(noun), _) => meant(noun, &word).into_iter().collect(),
        // The order of other tools, as in `get tenants`.
        (None, Some(noun)) => {
            let own = noun.find_subcommand(&word).map(|verb| verb.get_name().to_owned());
            own.into_iter()
                .chain(meant(noun, &word))
                .map(|verb| format!("{} {verb}", noun.get_name()))
                .collect()
        }
        (None, None) => of_nouns(command, &word),
    };
    if suggested.is_empty() {
        let parent = noun_before.unwrap_or(command);
        let may_be_meant = |suggestion: &String| {
            begins_alike(suggestion, &word)
                && parent
                    .find_subcommand(suggestion)
                    .is_some_and(|verb| verb.has_subcommands() || is_harmless(verb.get_name()))
        };
        suggested = similar.into_iter().filter(may_be_meant).collect();
    }
    suggested.dedup();
    suggested.truncate(MOST);
    if suggested.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
    } else {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(suggested));
    }
    error
}

fn is_harmless(verb: &str) -> bool {
    HARMLESS.iter().flat_map(|verbs| verbs.split(' ')).any(|harmless| harmless == verb)
}

/// Removes the suggestion of an option that is probably not meant, or that ends or takes away something.
fn with_safe_option(mut error: clap::Error) -> clap::Error {
    if let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidArg)
        && let Some(ContextValue::String(suggested)) = error.get(ContextKind::SuggestedArg)
        && (!begins_alike(suggested, given) || HARMFUL.contains(&suggested.as_str()))
    {
        error.remove(ContextKind::SuggestedArg);
    }
    error
}

/// Returns the command of this name, if it has verbs.
fn noun<'c>(command: &'c clap::Command, word: &str) -> Option<&'c clap::Command> {
    command.find_subcommand(word).filter(|subcommand| subcommand.has_subcommands())
}

/// Returns the verb of a noun that a word of another tool means.
fn meant(noun: &clap::Command, word: &str) -> Option<String> {
    let groups = MEANT.iter().filter(|(words, _)| words.contains(&word));
    let verbs = groups.flat_map(|(_, verbs)| verbs.iter());
    let replacement =
        verbs.filter_map(|verb| noun.find_subcommand(verb)).find(|verb| verb.get_name() != word);
    replacement.map(|verb| verb.get_name().to_owned())
}

/// Completes a verb that was given alone: with each noun that has it, or that has a verb of that meaning.
fn of_nouns(command: &clap::Command, word: &str) -> Vec<String> {
    let nouns = || command.get_subcommands().filter(|noun| noun.has_subcommands() && !noun.is_hide_set());
    let own = |noun: &clap::Command| noun.find_subcommand(word).map(|_| word.to_owned());
    let (main, rest): (Vec<_>, Vec<_>) = nouns().partition(|noun| MAIN.contains(&noun.get_name()));
    let in_main = main.into_iter().map(|noun| (noun, own(noun).or_else(|| meant(noun, word))));
    let in_rest = rest.into_iter().map(|noun| (noun, own(noun)));
    let named =
        |(noun, verb): (&clap::Command, Option<String>)| Some(format!("{} {}", noun.get_name(), verb?));
    in_main.chain(in_rest).filter_map(named).collect()
}

/// Returns true for two words that begin with the same two letters: those that only share some are not meant.
fn begins_alike(one: &str, other: &str) -> bool {
    let letters = |word: &str| word.trim_start_matches('-').chars().take(2).collect::<String>();
    letters(one) == letters(other)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::{Cli, parsed};
    use super::*;

    /// Returns the program's refusal of these words.
    fn refusal(words: &[&str]) -> Option<clap::Error> {
        let words: Vec<OsString> = ["mps-manager"].iter().chain(words).map(OsString::from).collect();
        parsed(&words).err()
    }

    /// Returns the suggestions for these words.
    fn suggested(words: &[&str]) -> Vec<String> {
        match refusal(words).expect("no command").get(ContextKind::SuggestedSubcommand) {
            Some(ContextValue::Strings(several)) => several.clone(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn words_of_other_tools_are_understood() {
        let cases: &[(&[&str], &[&str])] = &[
            (&["tenant", "describe", "web"], &["get"]),
            (&["tenants", "show", "web"], &["get"]),
            (&["tenant", "create", "web"], &["set"]),
            (&["tenant", "add", "web"], &["set"]),
            (&["tenant", "edit", "web"], &["set"]),
            (&["daemon", "remove", "gpu0"], &["delete"]),
            (&["tenant", "rm", "web"], &["delete"]),
            (&["layout", "ls"], &["list"]),
            (&["token", "remove", "x"], &["revoke"]),
            (&["context", "delete", "x"], &["remove"]),
            (&["stauts"], &["status"]),
            (&["eventz"], &["events"]),
            (&["get", "tenants"], &["tenant get"]),
            (&["describe", "tenant", "web"], &["tenant get"]),
            (&["logs", "gpu0"], &["daemon logs"]),
            (&["create", "web"], &["daemon set", "tenant set", "token create"]),
            (&["tenant", "stop", "web"], &[]),
            (&["restart", "gpu0"], &["daemon restart"]),
            (&["ls"], &["daemon list", "tenant list", "incident list", "layout list"]),
        ];
        for (words, expected) in cases {
            assert_eq!(suggested(words), *expected, "{words:?}");
        }
        assert!(suggested(&["tenan", "list"]).contains(&"tenant".to_owned()));
    }

    #[test]
    fn options_that_take_away_are_no_hint() {
        let hint = |words: &[&str]| {
            let error = refusal(words).expect("no such option");
            assert!(error.get(ContextKind::InvalidArg).is_some(), "{words:?}");
            match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(suggestion)) => Some(suggestion.clone()),
                _ => None,
            }
        };
        for words in [
            &["apply", "-f", "x", "--prun"][..],
            &["tenant", "delete", "web", "--forc"],
            &["tenant", "set", "web", "--prune"],
            &["events", "--until", "1h"],
        ] {
            assert_eq!(hint(words), None, "{words:?}");
        }
        assert_eq!(hint(&["tenant", "set", "web", "--max-client", "2"]).as_deref(), Some("--max-clients"));
    }

    /// Each command with a letter left out, doubled, swapped or replaced, where nouns are given and where none is.
    #[test]
    fn misspellings_suggest_nothing_harmful() {
        let command = Cli::command();
        let mut tried = 0;
        for noun in command.get_subcommands() {
            let verbs = noun.get_subcommands().map(|verb| verb.get_name().to_owned());
            for (prefix, word) in verbs
                .map(|verb| (Some(noun.get_name().to_owned()), verb))
                .chain([(None, noun.get_name().to_owned())])
            {
                for misspelt in misspellings(&word) {
                    let words: Vec<&str> = prefix.as_deref().into_iter().chain([misspelt.as_str()]).collect();
                    let Some(error) = refusal(&words) else { continue };
                    if error.get(ContextKind::InvalidSubcommand).is_none() {
                        continue;
                    }
                    tried += 1;
                    for suggestion in suggested(&words) {
                        let is_noun = super::noun(&command, &suggestion).is_some();
                        assert!(is_noun || is_harmless(&suggestion), "{words:?}: {suggestion}");
                    }
                }
            }
        }
        assert!(tried > 1000, "{tried}");
    }

    fn misspellings(word: &str) -> Vec<String> {
        let letters: Vec<char> = word.chars().collect();
        let mut variants = Vec::new();
        for position in 0..letters.len() {
            let without: String =
                letters.iter().enumerate().filter(|(i, _)| *i != position).map(|(_, c)| *c).collect();
            let mut replaced = letters.clone();
            replaced[position] = 'x';
            let mut swapped = letters.clone();
            swapped.swap(position, (position + 1) % letters.len());
            variants.extend([
                without,
                replaced.iter().collect(),
                swapped.iter().collect(),
                format!("{word}{}", letters[position]),
            ]);
        }
        variants
    }
}
