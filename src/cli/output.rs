//! What the command line prints, and its exit codes.

use clap::ValueEnum;

use crate::domain::printable::printable_lines;

/// Exit code for a negative answer, as `status` of a host that is not ready, and for a conflict with the state of the host.
pub(super) const DIFFERS: u8 = 1;

/// Exit code of an error.
pub(super) const ERROR: u8 = 2;

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum OutputFormat {
    Table,
    Json,
}

/// Prints a line with control characters escaped; ends quietly on a closed pipe, as in `mps-manager clients | head -1`.
macro_rules! line {
    ($($argument:tt)*) => { crate::cli::output::emit(format_args!($($argument)*)) };
}
pub(super) use line;

/// Exit code of a program that SIGPIPE ended, as shells report it.
const BROKEN_PIPE: i32 = 141;

pub(in crate::cli) fn emit(text: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let text = text.to_string();
    if writeln!(std::io::stdout(), "{}", printable_lines(&text)).is_err() {
        std::process::exit(BROKEN_PIPE);
    }
}

/// Prints an error to stderr, with control characters escaped.
pub(super) fn complain(message: &str) {
    eprintln!("mps-manager: {}", printable_lines(message));
}
