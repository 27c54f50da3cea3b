//! The terminal: its size, and pictures on its alternate screen, so that the scrollback stays as it was.

use std::io::{Stdout, Write as _, stdout};

use unicode_width::UnicodeWidthChar as _;

use super::print::captured;

/// Columns and lines of the terminal; `None` where the output is none, and nothing is cut.
fn size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(stdout()).ok()?;
    (size.ws_col > 0).then(|| (size.ws_col.into(), size.ws_row.into()))
}

/// The columns of the terminal; `None` where the output is none.
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
        let picture = fitted(captured(print), columns, lines);
        self.write(&format!("\u{1b}[H\u{1b}[2J{}", picture.join("\r\n")));
    }

    fn write(&self, text: &str) {
        let mut output = self.output.lock();
        // Nothing more can be done about a terminal that takes nothing.
        let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
    }
}

impl Drop for AlternateScreen {
    fn drop(&mut self) {
        self.write("\u{1b}[?25h\u{1b}[?1049l");
    }
}

/// The first lines that fit; the last one of a picture that does not fit says how much is missing.
fn fitted(mut picture: Vec<String>, columns: usize, lines: usize) -> Vec<String> {
    let taken: Vec<usize> = picture.iter().map(|line| shown_width(line).div_ceil(columns).max(1)).collect();
    if taken.iter().sum::<usize>() <= lines {
        return picture;
    }
    let mut room = lines.saturating_sub(1);
    let kept = taken.iter().take_while(|taken| {
        let has_room = **taken <= room;
        room = room.saturating_sub(**taken);
        has_room
    });
    let kept = kept.count();
    let missing = picture.len() - kept;
    picture.truncate(kept);
    let words: String = format!("… {missing} more: make the terminal higher").chars().take(columns).collect();
    picture.push(words);
    picture
}

/// How many columns a line takes, its colours left out.
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
        assert_eq!(fitted(picture.clone(), 80, 3), picture);
        assert_eq!(fitted(picture, 80, 2), ["one", "… 2 more: make the terminal higher"]);
        // A line that is wider than the terminal takes two of it.
        assert_eq!(fitted(lines(&["one", "twelve and more"]), 10, 2), ["one", "… 1 more: "]);
    }

    #[test]
    fn colours_take_no_columns() {
        assert_eq!(shown_width("\u{1b}[32myes\u{1b}[0m  no"), 7);
    }
}
