//! One thing, as labels and values.

use serde::Serialize;

use super::cell::TableCell;
use super::colour::is_coloured;
use super::format::OutputFormat;
use super::print::{emit_styled, line};
use super::terminal::{terminal_width, wrapped};
use crate::domain::condition::{Condition, ConditionType};
use crate::domain::printable::printable_lines;

/// Values are not wrapped to fewer columns.
const NARROWEST: usize = 20;

/// Details of one object: labelled rows, and conditions below them.
#[derive(Debug, Default)]
pub(in crate::cli) struct DetailsTable {
    rows: Vec<(&'static str, TableCell)>,
    conditions: Vec<Condition>,
}

/// A condition that needs attention as a sentence; its codes, for those who look them up, only with `-o wide`.
pub(in crate::cli) fn condition_sentence(
    condition: &Condition,
    message: &str,
    format: OutputFormat,
) -> String {
    let state = if condition.kind == ConditionType::Ready { "not ready: " } else { "" };
    let codes = match format {
        OutputFormat::Wide => format!(" ({}: {})", condition.kind, condition.reason),
        _ => String::new(),
    };
    printable_lines(&format!("{state}{message}{codes}")).replace('\n', "\n    ")
}

impl DetailsTable {
    /// Adds a line.
    pub(in crate::cli) fn row(mut self, label: &'static str, value: impl Into<TableCell>) -> Self {
        self.rows.push((label, value.into()));
        self
    }

    /// Adds the conditions that need attention, below the lines.
    pub(in crate::cli) fn conditions(mut self, conditions: &[Condition]) -> Self {
        let attention = conditions.iter().filter(|condition| condition.needs_attention());
        self.conditions.extend(attention.cloned());
        self
    }

    /// Prints it, or the value or the name instead, as the format says.
    pub(in crate::cli) fn print(&self, format: OutputFormat, name: &str, value: &impl Serialize) {
        if format == OutputFormat::Name {
            return line!("{name}");
        }
        if format.print_value(value) {
            return;
        }
        let width = self.rows.iter().map(|(label, _)| label.len() + 1).max().unwrap_or(0);
        let columns = if format == OutputFormat::Wide { None } else { terminal_width() };
        for (label, cell) in &self.rows {
            let mut label = if label.is_empty() { String::new() } else { format!("{label}:") };
            for line in wrapped(cell.text(), value_columns(columns, width)) {
                emit_styled(&format!("{label:width$}  {}", cell.styled(&line, is_coloured())));
                label.clear();
            }
        }
        if !self.conditions.is_empty() {
            line!("\nAttention:");
        }
        for condition in &self.conditions {
            line!("  {}", condition_sentence(condition, &condition.message, format));
        }
    }
}

/// Returns the columns for values beside labels of this width; `None` if values are not wrapped.
fn value_columns(terminal: Option<usize>, labels: usize) -> Option<usize> {
    terminal.map(|columns| columns.saturating_sub(labels + 2)).filter(|columns| *columns >= NARROWEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::condition::ConditionReason;

    #[test]
    fn values_are_wrapped_beside_their_labels() {
        assert_eq!(value_columns(Some(80), "What to do:".len()), Some(67));
        assert_eq!(value_columns(None, 11), None, "no terminal");
        assert_eq!(value_columns(Some(30), 11), None, "too narrow");
    }

    #[test]
    fn conditions_read_as_sentences() {
        let condition =
            Condition::new(ConditionType::Ready, false, ConditionReason::Wedged, "it did not answer");
        let shown = |format| condition_sentence(&condition, &condition.message, format);
        assert_eq!(shown(OutputFormat::Table), "not ready: it did not answer");
        assert_eq!(shown(OutputFormat::Wide), "not ready: it did not answer (Ready: Wedged)");
    }
}
