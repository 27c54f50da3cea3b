//! One thing, as labels and values.

use serde::Serialize;

use super::cell::TableCell;
use super::colour::is_coloured;
use super::format::OutputFormat;
use super::print::{emit_styled, line};
use crate::domain::condition::Condition;

/// What is shown of one thing.
#[derive(Debug, Default)]
pub(in crate::cli) struct DetailsTable {
    rows: Vec<(&'static str, TableCell)>,
    notes: Vec<String>,
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
        self.notes.extend(attention.map(|one| format!("{} ({}): {}", one.kind, one.reason, one.message)));
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
        for (label, cell) in &self.rows {
            let label = format!("{label}:");
            emit_styled(&format!("{label:width$}  {}", cell.styled(cell.text(), is_coloured())));
        }
        if !self.notes.is_empty() {
            line!("\nAttention:");
        }
        for note in &self.notes {
            line!("  {}", note.replace('\n', "\n    "));
        }
    }
}
