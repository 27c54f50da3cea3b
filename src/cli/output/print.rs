//! Lines on standard output and standard error.

use std::cell::RefCell;
use std::io::{ErrorKind, Write as _};

use super::cell::TableCell;
use super::colour::is_coloured;
use super::exit_codes::ERROR;
use crate::domain::printable::printable_lines;

/// Prints a line with control characters escaped; ends quietly on a closed pipe, as in `mps-manager client list | head -1`.
macro_rules! line {
    ($($argument:tt)*) => { crate::cli::output::emit(format_args!($($argument)*)) };
}
pub(in crate::cli) use line;

/// Exit code of a program that SIGPIPE ended, as shells report it.
const BROKEN_PIPE: i32 = 141;

thread_local! {
    /// Destination of lines instead of standard output, while a picture is made of them.
    static CAPTURED: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

pub(in crate::cli) fn emit(text: std::fmt::Arguments<'_>) {
    emit_styled(&printable_lines(&text.to_string()));
}

/// Prints a line that is escaped already, with the colours that this program adds.
pub(super) fn emit_styled(text: &str) {
    let is_captured = CAPTURED.with_borrow_mut(|captured| {
        let Some(lines) = captured else { return false };
        // `split`, since an empty text is an empty line.
        lines.extend(text.split('\n').map(str::to_owned));
        true
    });
    if is_captured {
        return;
    }
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        if error.kind() == ErrorKind::BrokenPipe {
            std::process::exit(BROKEN_PIPE);
        }
        complain(&format!("the result cannot be written: {error}"));
        std::process::exit(ERROR.into());
    }
}

/// The lines that a function prints, instead of printing them.
pub(super) fn captured(print: impl FnOnce()) -> Vec<String> {
    CAPTURED.set(Some(Vec::new()));
    print();
    CAPTURED.take().unwrap_or_default()
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

/// Prints an error to stderr, with control characters escaped.
pub(in crate::cli) fn complain(message: &str) {
    eprintln!("mps-manager: {}", printable_lines(message));
}

/// Prints a remark to stderr, where it does not disturb what reads the results.
pub(in crate::cli) fn remark(message: &str) {
    eprintln!("{}", printable_lines(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captured_lines_are_not_printed() {
        let lines = captured(|| {
            emit(format_args!("one\ntwo"));
            emit(format_args!(""));
        });
        assert_eq!(lines, ["one", "two", ""]);
    }
}
