//! Coloured output: on or off for the whole process.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use clap::ValueEnum;

/// Choice of coloured results.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum ColourChoice {
    /// On a terminal, unless `NO_COLOR` is set or the terminal is dumb
    #[default]
    Auto,
    /// Also in a file or a pipe
    Always,
    /// Nowhere
    Never,
}

/// The choice for this process, as standard output is this process's.
static COLOURED: OnceLock<bool> = OnceLock::new();

/// Decides for the rest of the process, from the choice, the environment and standard output.
pub(in crate::cli) fn choose_colour(choice: ColourChoice) {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let is_plain = variable("NO_COLOR").is_some() || variable("TERM").is_some_and(|term| term == "dumb");
    let _ = COLOURED.set(decided(choice, is_plain, std::io::stdout().is_terminal()));
}

fn decided(choice: ColourChoice, is_plain: bool, is_terminal: bool) -> bool {
    match choice {
        ColourChoice::Auto => is_terminal && !is_plain,
        ColourChoice::Always => true,
        ColourChoice::Never => false,
    }
}

/// Returns true if results are coloured.
pub(in crate::cli) fn is_coloured() -> bool {
    COLOURED.get().copied().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terminals_are_coloured_unasked() {
        assert!(decided(ColourChoice::Auto, false, true));
        assert!(!decided(ColourChoice::Auto, false, false));
        assert!(!decided(ColourChoice::Auto, true, true), "NO_COLOR");
        assert!(decided(ColourChoice::Always, true, false));
        assert!(!decided(ColourChoice::Never, false, true));
    }
}
