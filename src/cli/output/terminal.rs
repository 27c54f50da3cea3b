//! The terminal: its size, and pictures on its alternate screen, so that the scrollback stays as it was.

use std::io::{Stdout, Write as _, stdout};

use unicode_width::UnicodeWidthChar as _;

use super::print::captured;

/// Returns the columns and lines of the terminal; `None` if the output is not a terminal, and nothing is cut.
fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// Returns the columns of the terminal; `None` if the output is not a terminal.
pub(in crate::cli) fn terminal_width() -> Option<usize> {
    size().map(|(columns, _)| columns)
}

/// The alternate screen, left when this is dropped.
pub(in crate::cli) struct AlternateScreen {
    output: Stdout,
}

impl AlternateScreen {
    /// Enters it, and hides the cursor.
    pub(in crate::cli) fn enter() -> Self {
        let screen = Self { output: stdout() };
        screen.write("\u{1b}[?1049h\u{1b}[?25l");
        screen
    }

    /// Shows what a function prints, as much of it as the terminal has lines for.
    pub(in crate::cli) fn show(&self, print: impl FnOnce()) {
        let (columns, lines) = size().unwrap_or((80, 24));
        let picture = fitted(&captured(print), columns, lines);
        self.write(&format!("\u{1b}[H\u{1b}[2J{}", picture.join("\r\n")));
    }

    fn write(&self, text: &str) {
        let mut output = self.output.lock();
        // Nothing can be done if the terminal does not accept the output.
        let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        self.write("\u{1b}[?25h\u{1b}[?1049l");
    }
}

/// The first lines that fit, wrapped to the width; the last one of a picture that does not fit says how much is missing.
fn fitted(picture: &[String], columns: usize, lines: usize) -> Vec<String> {
    let wrap = |line: &String| {
        if shown_width(line) <= columns {
            return vec![line.clone()];
        }
        let text = line.trim_start();
        let indent = (line.len() - text.len()).min(columns / 2);
        let pieces = wrapped(text, Some(columns - indent));
        let pieces = pieces.iter().flat_map(|piece| broken(piece, columns - indent));
        pieces.map(|piece| format!("{:indent$}{piece}", "")).collect()
    };
    let mut picture: Vec<String> = picture.iter().flat_map(wrap).collect();
    if picture.len() > lines {
        let kept = lines.saturating_sub(1);
        let missing = picture.len() - kept;
        picture.truncate(kept);
        picture.push(format!("… {missing} more: make the terminal higher").chars().take(columns).collect());
    }
    picture
}

/// A line in pieces that are no wider than the terminal, also of a word that is.
fn broken(line: &str, columns: usize) -> Vec<String> {
    line.chars().collect::<Vec<_>>().chunks(columns.max(1)).map(|piece| piece.iter().collect()).collect()
}

/// Wraps a text into lines of at most this many columns, broken between words; a longer word has a line of its own.
pub(in crate::cli) fn wrapped(text: &str, columns: Option<usize>) -> Vec<String> {
    let Some(columns) = columns else { return vec![text.to_owned()] };
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && shown_width(&line) + 1 + shown_width(word) > columns {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Returns the number of columns that a line takes, without its escape sequences for colours.
fn shown_width(line: &str) -> usize {
    let mut is_escape = false;
    let mut width = 0;
    for letter in line.chars() {
        match letter {
            '\u{1b}' => is_escape = true,
            'm' if is_escape => is_escape = false,
            _ if is_escape => {}
            _ => width += letter.width().unwrap_or(0),
        }
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_is_cut_at_the_terminals_height() {
        let lines = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect::<Vec<_>>();
        let picture = lines(&["one", "two", "three"]);
        assert_eq!(fitted(&picture, 80, 3), picture);
        assert_eq!(fitted(&picture, 80, 2), ["one", "… 2 more: make the terminal higher"]);
        // A line that is wider than the terminal takes two of it.
        assert_eq!(fitted(&lines(&["one", "twelve and more"]), 10, 2), ["one", "… 2 more: "]);
    }

    #[test]
    fn picture_is_wrapped_between_words() {
        let picture = ["  web: its limit is held by".to_owned(), "GPU-1e86aaec-f4f3".to_owned()];
        let shown = fitted(&picture, 12, 9);
        assert_eq!(shown, ["  web: its", "  limit is", "  held by", "GPU-1e86aaec", "-f4f3"]);
    }

    #[test]
    fn long_text_is_wrapped_between_words() {
        assert_eq!(wrapped("one two three", None), ["one two three"]);
        assert_eq!(wrapped("one two three", Some(7)), ["one two", "three"]);
        assert_eq!(wrapped("mps-manager status", Some(5)), ["mps-manager", "status"]);
        assert_eq!(wrapped("", Some(5)), [""]);
    }

    #[test]
    fn colours_take_no_columns() {
        assert_eq!(shown_width("\u{1b}[32myes\u{1b}[0m  no"), 7);
    }
}
