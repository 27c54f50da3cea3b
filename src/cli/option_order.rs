//! Options before the command: `mps-manager --runtime-dir DIR status` means what `mps-manager status --runtime-dir DIR` does.

use std::ffi::OsString;

use clap::{Args as _, Command};

use super::server::CallArgs;

/// Moves the options that nearly every command takes from before its name to behind it, where they are declared.
pub(super) fn behind_the_command(command: fn() -> Command, words: Vec<OsString>) -> Vec<OsString> {
    // Nearly every command comes first; only the others pay for the list of commands.
    if !words.get(1).is_some_and(|word| word.as_encoded_bytes().starts_with(b"-")) {
        return words;
    }
    let (command, shared) = (&command(), CallArgs::augment_args(Command::new("shared")));
    let mut words = words.into_iter().peekable();
    let mut ordered: Vec<OsString> = words.next().into_iter().collect();
    let mut moved = Vec::new();
    while let Some(option) = words.next_if(|word| word.as_encoded_bytes().starts_with(b"-")) {
        let text = option.to_string_lossy();
        let (name, has_value) = match text.split_once('=') {
            Some((name, _)) => (name, true),
            None => (&*text, text.len() > 2 && !text.starts_with("--")),
        };
        let is_named = |arg: &&clap::Arg| match name.strip_prefix("--") {
            Some(long) => arg.get_long() == Some(long),
            None => name.chars().nth(1).is_some_and(|short| arg.get_short() == Some(short)),
        };
        let shared_option = shared.get_arguments().find(is_named);
        let declared = shared_option.or_else(|| command.get_arguments().find(is_named));
        let takes_value = !has_value && declared.is_some_and(|arg| arg.get_action().takes_values());
        let place = if shared_option.is_some() { &mut moved } else { &mut ordered };
        place.push(option);
        place.extend(words.next_if(|_| takes_value));
    }
    let mut inner = command;
    while let Some(next) = words.peek().and_then(|word| inner.find_subcommand(word)) {
        inner = next;
        ordered.extend(words.next());
    }
    if inner.has_subcommands() {
        // The command is missing or misspelt, or asks for help: that is to be said, and not that an option is in the way.
        moved.clear();
    }
    ordered.into_iter().chain(moved).chain(words).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn shared_options_go_behind_the_command() {
        for (typed, meant) in [
            ("--runtime-dir X status", "status --runtime-dir X"),
            ("-o json tenant list", "tenant list -o json"),
            ("-ojson tenant list --daemon d", "tenant list -ojson --daemon d"),
            ("--context=lab --color never tenant get web", "--color never tenant get --context=lab web"),
            ("--url http://x run --tenant t -- ls -o", "run --url http://x --tenant t -- ls -o"),
            ("status --url x", "status --url x"),
            ("--version", "--version"),
            ("--yes status", "--yes status"),
            ("--no-wait status", "--no-wait status"),
            ("-o json tenant lst", "tenant lst"),
            ("-o json help tenant", "help tenant"),
            ("- web tenant get", "- web tenant get"),
        ] {
            let words = |text: &str| -> Vec<OsString> {
                std::iter::once("mps-manager").chain(text.split(' ')).map(OsString::from).collect()
            };
            assert_eq!(behind_the_command(Cli::command, words(typed)), words(meant), "{typed}");
        }
    }
}
