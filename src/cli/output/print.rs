//! Lines on standard output and standard error.

use super::cell::TableCell;
use super::colour::is_coloured;
use crate::domain::printable::printable_lines;

/// Prints a line with control characters escaped; ends quietly on a closed pipe, as in `mps-manager client list | head -1`.
macro_rules! line {
    ($($argument:tt)*) => { crate::cli::output::emit(format_args!($($argument)*)) };
}
pub(in crate::cli) use line;

/// Exit code of a program that SIGPIPE ended, as shells report it.
const BROKEN_PIPE: i32 = 141;

pub(in crate::cli) fn emit(text: std::fmt::Arguments<'_>) {
    emit_styled(&printable_lines(&text.to_string()));
}

/// Prints a line that is escaped already, with the colours that this program adds.
pub(super) fn emit_styled(text: &str) {
    use std::io::Write as _;
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(BROKEN_PIPE);
    }
}

/// Prints cells of these widths, as for a list that has no end; the last one needs no width.
pub(in crate::cli) fn print_cells(cells: &[(TableCell, usize)]) {
    let mut line = String::new();
    for (cell, width) in cells {
        line.push_str(&cell.styled(cell.text(), is_coloured()));
        line.extend(std::iter::repeat_n(' ', (width + 2).saturating_sub(cell.width())));
    }
    emit_styled(line.trim_end());
}

/// Clears the terminal.
pub(in crate::cli) fn clear_screen() {
    emit_styled("\u{1b}[H\u{1b}[2J\u{1b}[3J");
}

/// Prints an error to stderr, with control characters escaped.
pub(in crate::cli) fn complain(message: &str) {
    eprintln!("mps-manager: {}", printable_lines(message));
}

/// Prints a remark to stderr, where it does not disturb what reads the results.
pub(in crate::cli) fn remark(message: &str) {
    eprintln!("{}", printable_lines(message));
}
