//! A cell of a table: text of any origin with control characters escaped, and a colour.

use std::borrow::Cow;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::domain::condition::{self, Condition};
use crate::domain::printable::printable;
use crate::words::Tone;

/// Meaning of the colour of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::cli) enum CellColour {
    Plain,
    Good,
    Warning,
    Bad,
    Faint,
}

impl CellColour {
    /// The escape sequence that begins it.
    fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Good => "\u{1b}[32m",
            Self::Warning => "\u{1b}[33m",
            Self::Bad => "\u{1b}[31m",
            Self::Faint => "\u{1b}[2m",
        }
    }
}

/// One line of text with a colour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct TableCell {
    text: String,
    colour: CellColour,
}

impl TableCell {
    /// A text with a colour.
    pub(in crate::cli) fn new(text: &str, colour: CellColour) -> Self {
        Self { text: printable(text).into_owned(), colour }
    }

    /// Creates a cell for a state, coloured according to the word.
    pub(in crate::cli) fn state(text: &str) -> Self {
        let colour = match Tone::of(text) {
            Some(Tone::Good) => CellColour::Good,
            Some(Tone::Bad) => CellColour::Bad,
            Some(Tone::Warn | Tone::Busy) => CellColour::Warning,
            Some(Tone::Quiet) => CellColour::Faint,
            None => CellColour::Plain,
        };
        Self::new(text, colour)
    }

    /// Creates a cell that says `yes` or `no`, according to the condition `Ready`.
    pub(in crate::cli) fn ready(conditions: &[Condition]) -> Self {
        let is_ready = condition::ready(conditions).is_some_and(|ready| ready.status);
        Self::state(if is_ready { "yes" } else { "no" })
    }

    /// Creates a cell for a value, or `-` if it is missing.
    pub(in crate::cli) fn optional(value: Option<impl std::fmt::Display>) -> Self {
        value.map_or_else(Self::missing, |value| Self::new(&value.to_string(), CellColour::Plain))
    }

    /// Creates the cell of a missing value.
    pub(in crate::cli) fn missing() -> Self {
        Self::new("-", CellColour::Faint)
    }

    /// Creates a cell for values separated by commas without spaces, or `-` if there are none.
    pub(in crate::cli) fn joined<T: std::fmt::Display>(values: impl IntoIterator<Item = T>) -> Self {
        Self::separated(values, ",")
    }

    /// Creates a cell for values separated by commas and spaces, for output that only people read.
    pub(in crate::cli) fn listed<T: std::fmt::Display>(values: impl IntoIterator<Item = T>) -> Self {
        Self::separated(values, ", ")
    }

    fn separated<T: std::fmt::Display>(values: impl IntoIterator<Item = T>, separator: &str) -> Self {
        let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
        Self::optional((!values.is_empty()).then(|| values.join(separator)))
    }

    /// Returns the meaning of its colour.
    pub(in crate::cli) fn colour(&self) -> CellColour {
        self.colour
    }

    pub(super) fn width(&self) -> usize {
        self.text.width()
    }

    /// The text in a column of this width, cut with `…` if it is longer.
    pub(in crate::cli) fn cut(&self, width: usize) -> Cow<'_, str> {
        cut(&self.text, width)
    }

    /// The text with its colour.
    pub(super) fn styled<'t>(&self, text: &'t str, is_coloured: bool) -> Cow<'t, str> {
        match self.colour {
            CellColour::Plain => text.into(),
            colour if is_coloured => format!("{}{text}\u{1b}[0m", colour.code()).into(),
            _ => text.into(),
        }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }
}

impl From<String> for TableCell {
    fn from(text: String) -> Self {
        Self::new(&text, CellColour::Plain)
    }
}

impl From<&str> for TableCell {
    fn from(text: &str) -> Self {
        Self::new(text, CellColour::Plain)
    }
}

/// The beginning of a text, with `…` at its end where something is missing.
fn cut(text: &str, width: usize) -> Cow<'_, str> {
    if text.width() <= width {
        return text.into();
    }
    let mut kept = String::new();
    let mut taken = 0;
    for letter in text.chars() {
        taken += letter.width().unwrap_or(0);
        if taken + 1 > width {
            break;
        }
        kept.push(letter);
    }
    kept.push('…');
    kept.into()
}

/// The API's word for a value, as `back_off`.
pub(in crate::cli) fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_by_display_width() {
        assert_eq!(cut("python train.py", 15), "python train.py");
        assert_eq!(cut("python train.py", 8), "python …");
        assert_eq!(cut("日本語", 5), "日本…");
        assert_eq!(cut("abc", 1), "…");
    }
}
