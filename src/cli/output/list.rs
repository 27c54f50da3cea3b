//! Lists of things in every output format, from one description of their columns.

use serde::Serialize;

use super::cell::TableCell;
use super::colour::is_coloured;
use super::format::OutputFormat;
use super::print::{emit_styled, line, remark};
use super::table::{TableHeading, fitted_widths, lines, shown_columns};
use super::terminal::terminal_width;

/// A column of a list: its heading, and the cell of an item.
#[derive(Debug)]
pub(in crate::cli) struct ListColumn<T: 'static> {
    heading: TableHeading,
    is_wide: bool,
    cell: fn(&T) -> TableCell,
}

impl<T> ListColumn<T> {
    /// A column that is always shown whole.
    pub(in crate::cli) const fn new(heading: &'static str, cell: fn(&T) -> TableCell) -> Self {
        Self { heading: TableHeading { text: heading, may_be_cut: false, rank: 0 }, is_wide: false, cell }
    }

    /// A column that is cut where the terminal is too narrow.
    pub(in crate::cli) const fn cut(heading: &'static str, cell: fn(&T) -> TableCell) -> Self {
        Self { heading: TableHeading { text: heading, may_be_cut: true, rank: 0 }, is_wide: false, cell }
    }

    /// A column that is left out of a terminal that has no room for it; one with a high rank goes first.
    pub(in crate::cli) const fn ranked(rank: u8, mut column: Self) -> Self {
        column.heading.rank = rank;
        column
    }

    /// A column for `-o wide` alone.
    pub(in crate::cli) const fn wide(heading: &'static str, cell: fn(&T) -> TableCell) -> Self {
        Self { heading: TableHeading { text: heading, may_be_cut: false, rank: 0 }, is_wide: true, cell }
    }
}

/// Presentation of a list in all formats.
#[derive(Debug)]
pub(in crate::cli) struct ListLayout<T: 'static> {
    /// Plural noun for the items, for the message about an empty list.
    pub(in crate::cli) noun: &'static str,
    /// Returns the name or ID of an item, which `-o name` prints.
    pub(in crate::cli) name: fn(&T) -> String,
    /// The columns.
    pub(in crate::cli) columns: &'static [ListColumn<T>],
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
        let chosen: Vec<&ListColumn<T>> =
            self.columns.iter().filter(|column| is_wide || !column.is_wide).collect();
        let headings: Vec<TableHeading> = chosen.iter().map(|column| column.heading).collect();
        let rows: Vec<Vec<TableCell>> =
            items.iter().map(|item| chosen.iter().map(|column| (column.cell)(item)).collect()).collect();
        let shown = shown_columns(&headings, &rows, width);
        let of_row =
            |row: &Vec<TableCell>| -> Vec<TableCell> { shown.iter().map(|at| row[*at].clone()).collect() };
        (shown.iter().map(|at| headings[*at]).collect(), rows.iter().map(of_row).collect())
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
