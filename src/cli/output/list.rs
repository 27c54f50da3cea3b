//! Lists and details of things in every output format, from one description of their fields.

use serde::Serialize;

use super::super::fetch::GpuNames;
use super::cell::TableCell;
use super::colour::is_coloured;
use super::details::DetailsTable;
use super::format::OutputFormat;
use super::print::{emit_styled, line, remark};
use super::table::{TableHeading, fitted_widths, lines, shown_columns};
use super::terminal::terminal_width;

/// Value of a field: a cell of a list, and a row of details.
#[derive(Debug)]
enum FieldValue<T: 'static> {
    Cell(fn(&T) -> TableCell),
    /// A cell that names GPUs, for details alone.
    Named(fn(&T, &GpuNames) -> TableCell),
    /// Any number of rows, each with its label, for details alone.
    Rows(fn(&T) -> Vec<(&'static str, String)>),
}

/// A column of a list, a row of the details of one item, or both.
#[derive(Debug)]
pub(in crate::cli) struct ListField<T: 'static> {
    /// Heading of the column; empty for a field of details alone.
    heading: TableHeading,
    is_wide: bool,
    /// Label of the row; empty for a field of lists alone.
    label: &'static str,
    is_left_out: bool,
    value: FieldValue<T>,
}

impl<T> ListField<T> {
    /// A column that is always shown whole.
    pub(in crate::cli) const fn column(heading: &'static str, cell: fn(&T) -> TableCell) -> Self {
        Self::both(heading, "", cell)
    }

    /// A column for `-o wide` alone.
    pub(in crate::cli) const fn wide(heading: &'static str, cell: fn(&T) -> TableCell) -> Self {
        let mut column = Self::both(heading, "", cell);
        column.is_wide = true;
        column
    }

    /// A row of details.
    pub(in crate::cli) const fn detail(label: &'static str, cell: fn(&T) -> TableCell) -> Self {
        Self::both("", label, cell)
    }

    /// A row of details that names GPUs.
    pub(in crate::cli) const fn named(label: &'static str, cell: fn(&T, &GpuNames) -> TableCell) -> Self {
        Self::new("", label, FieldValue::Named(cell))
    }

    /// Any number of rows of details, each with its label.
    pub(in crate::cli) const fn rows(rows: fn(&T) -> Vec<(&'static str, String)>) -> Self {
        Self::new("", "", FieldValue::Rows(rows))
    }

    /// A column, and a row of details.
    pub(in crate::cli) const fn both(
        heading: &'static str,
        label: &'static str,
        cell: fn(&T) -> TableCell,
    ) -> Self {
        Self::new(heading, label, FieldValue::Cell(cell))
    }

    const fn new(heading: &'static str, label: &'static str, value: FieldValue<T>) -> Self {
        let heading = TableHeading { text: heading, may_be_cut: false, rank: 0 };
        Self { heading, is_wide: false, label, is_left_out: false, value }
    }

    /// Lets the column be cut where the terminal is too narrow.
    pub(in crate::cli) const fn cut(mut self) -> Self {
        self.heading.may_be_cut = true;
        self
    }

    /// Leaves the column out of a terminal that has no room for it; one with a high rank goes first.
    pub(in crate::cli) const fn rank(mut self, rank: u8) -> Self {
        self.heading.rank = rank;
        self
    }

    /// Leaves the row out of details where its value is missing.
    pub(in crate::cli) const fn if_known(mut self) -> Self {
        self.is_left_out = true;
        self
    }

    /// Returns the cell of an item in a list.
    fn cell(&self, item: &T) -> TableCell {
        match self.value {
            FieldValue::Cell(cell) => cell(item),
            FieldValue::Named(_) | FieldValue::Rows(_) => TableCell::missing(),
        }
    }
}

/// Presentation of a list in all formats.
#[derive(Debug)]
pub(in crate::cli) struct ListLayout<T: 'static> {
    /// Plural noun for the items, for the message about an empty list.
    pub(in crate::cli) noun: &'static str,
    /// Returns the name or ID of an item, which `-o name` prints.
    pub(in crate::cli) name: fn(&T) -> String,
    /// The columns, and the rows of the details of one item.
    pub(in crate::cli) fields: &'static [ListField<T>],
}

impl<T: Serialize> ListLayout<T> {
    /// Prints a list; instead of an empty table, standard error says that there are no items.
    pub(in crate::cli) fn print(&self, items: &[T], format: OutputFormat) {
        match format {
            OutputFormat::Json | OutputFormat::Yaml => drop(format.print_value(&items)),
            OutputFormat::Name => {
                for item in items {
                    line!("{}", (self.name)(item));
                }
            }
            OutputFormat::Table | OutputFormat::Wide if items.is_empty() => {
                remark(&format!("There are no {}.", self.noun));
            }
            OutputFormat::Table | OutputFormat::Wide => self.print_rows(items, format),
        }
    }
}

impl<T> ListLayout<T> {
    /// Returns the headings and rows, and the width of each column in a terminal of this width.
    pub(in crate::cli) fn grid(&self, items: &[T], width: usize) -> (Vec<Vec<TableCell>>, Vec<usize>) {
        let (headings, rows) = self.cells(items, false, Some(width));
        let widths = fitted_widths(&headings, &rows, Some(width));
        let heading = headings.iter().map(|heading| heading.text.into()).collect();
        (std::iter::once(heading).chain(rows).collect(), widths)
    }

    fn cells(
        &self,
        items: &[T],
        is_wide: bool,
        width: Option<usize>,
    ) -> (Vec<TableHeading>, Vec<Vec<TableCell>>) {
        let is_shown = |field: &&ListField<T>| !field.heading.text.is_empty() && (is_wide || !field.is_wide);
        let chosen: Vec<&ListField<T>> = self.fields.iter().filter(is_shown).collect();
        let headings: Vec<TableHeading> = chosen.iter().map(|column| column.heading).collect();
        let rows: Vec<Vec<TableCell>> =
            items.iter().map(|item| chosen.iter().map(|column| column.cell(item)).collect()).collect();
        let shown = shown_columns(&headings, &rows, width);
        let cells = |row: &Vec<TableCell>| -> Vec<TableCell> {
            shown.iter().map(|column| row[*column].clone()).collect()
        };
        (shown.iter().map(|column| headings[*column]).collect(), rows.iter().map(cells).collect())
    }

    /// Returns true if the details of an item name GPUs.
    pub(in crate::cli) fn names_gpus(&self) -> bool {
        self.fields.iter().any(|field| matches!(field.value, FieldValue::Named(_)))
    }

    /// Returns the details of an item.
    pub(in crate::cli) fn details(&self, item: &T, names: &GpuNames) -> DetailsTable {
        let mut details = DetailsTable::default();
        for field in self.fields {
            let cell = match field.value {
                FieldValue::Rows(rows) => {
                    details = rows(item).into_iter().fold(details, |all, (label, text)| all.row(label, text));
                    continue;
                }
                FieldValue::Cell(cell) if !field.label.is_empty() => cell(item),
                FieldValue::Cell(_) => continue,
                FieldValue::Named(cell) => cell(item, names),
            };
            if !field.is_left_out || cell != TableCell::missing() {
                details = details.row(field.label, cell);
            }
        }
        details
    }

    /// Prints the table alone, as part of a longer text.
    pub(in crate::cli) fn print_rows(&self, items: &[T], format: OutputFormat) {
        let is_wide = format == OutputFormat::Wide;
        let width = if is_wide { None } else { terminal_width() };
        let (headings, rows) = self.cells(items, is_wide, width);
        for line in lines(&headings, &rows, width, is_coloured()) {
            emit_styled(&line);
        }
    }
}
