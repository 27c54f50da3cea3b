//! Aligned columns, cut to the width of the terminal.

use unicode_width::UnicodeWidthStr as _;

use super::cell::TableCell;

/// Space between columns.
const GAP: usize = 2;
/// Smallest width to which a column is cut.
const LEAST: usize = 8;
/// Width that a column that may be cut must keep if another column is to be shown beside it.
const LEGIBLE: usize = 16;

/// A heading, whether the column may be cut (one with names and IDs may not), and how dispensable it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableHeading {
    pub(super) text: &'static str,
    pub(super) may_be_cut: bool,
    /// Order in which columns are shown: 0 is always shown, and the others by ascending rank as far as the terminal has room.
    pub(super) rank: u8,
}

/// Returns the indices of the columns that a terminal of this width has room for, in their order.
pub(super) fn shown_columns(
    headings: &[TableHeading],
    rows: &[Vec<TableCell>],
    width: Option<usize>,
) -> Vec<usize> {
    let all = 0..headings.len();
    let Some(width) = width else { return all.collect() };
    let needed = |column: usize| {
        let natural = natural_width(column, headings, rows);
        let legible = LEGIBLE.max(headings[column].text.width());
        if headings[column].may_be_cut { natural.min(legible) } else { natural }
    };
    let mut shown: Vec<usize> = all.clone().filter(|column| headings[*column].rank == 0).collect();
    let mut optional: Vec<usize> = all.filter(|column| headings[*column].rank > 0).collect();
    optional.sort_by_key(|column| headings[*column].rank);
    let mut taken: usize = shown.iter().map(|column| needed(*column) + GAP).sum();
    for column in optional {
        let more = needed(column) + GAP;
        if taken + more <= width + GAP {
            taken += more;
            shown.push(column);
        }
    }
    shown.sort_unstable();
    shown
}

/// Returns the width of the widest cell of a column, its heading included.
fn natural_width(column: usize, headings: &[TableHeading], rows: &[Vec<TableCell>]) -> usize {
    rows.iter().map(|row| row[column].width()).chain([headings[column].text.width()]).max().unwrap_or(0)
}

/// Returns one line for the headings and one for each row, at most `width` wide as far as columns may be cut.
pub(super) fn lines(
    headings: &[TableHeading],
    rows: &[Vec<TableCell>],
    width: Option<usize>,
    is_coloured: bool,
) -> Vec<String> {
    let widths = fitted_widths(headings, rows, width);
    let heading: Vec<TableCell> = headings.iter().map(|heading| heading.text.into()).collect();
    let line = |row: &Vec<TableCell>| {
        let mut line = String::new();
        let mut missing = 0;
        for (cell, width) in row.iter().zip(&widths) {
            let text = cell.cut(*width);
            // Blanks at the end of a line are left out.
            line.extend(std::iter::repeat_n(' ', if text.is_empty() { 0 } else { missing }));
            missing = if text.is_empty() { missing } else { 0 } + width - text.width() + GAP;
            line.push_str(&cell.styled(&text, is_coloured));
        }
        line
    };
    std::iter::once(&heading).chain(rows).map(line).collect()
}

/// Returns the width of each column: that of its widest cell, or less if it may be cut and the terminal is narrow.
pub(super) fn fitted_widths(
    headings: &[TableHeading],
    rows: &[Vec<TableCell>],
    width: Option<usize>,
) -> Vec<usize> {
    let mut widths: Vec<usize> =
        (0..headings.len()).map(|column| natural_width(column, headings, rows)).collect();
    let Some(width) = width else { return widths };
    let gaps = GAP * widths.len().saturating_sub(1);
    // Always cuts the widest column, so that short ones stay whole.
    while widths.iter().sum::<usize>() + gaps > width {
        let cuttable = (0..widths.len()).filter(|column| {
            headings[*column].may_be_cut && widths[*column] > LEAST.max(headings[*column].text.width())
        });
        let Some(widest) = cuttable.max_by_key(|column| widths[*column]) else { break };
        widths[widest] -= 1;
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: Option<usize>) -> Vec<String> {
        let heading = |text, may_be_cut| TableHeading { text, may_be_cut, rank: 0 };
        let headings = [heading("ID", false), heading("TENANT", false), heading("COMMAND", true)];
        let rows = [
            vec!["1234567-890".into(), "demo".into(), "python train.py --epochs 100".into()],
            vec!["7-1".into(), TableCell::optional(None::<u32>), "sh".into()],
            vec!["8-1".into(), "".into(), "".into()],
        ];
        lines(&headings, &rows, width, false)
    }

    #[test]
    fn columns_are_aligned_without_trailing_blanks() {
        let expected = [
            "ID           TENANT  COMMAND",
            "1234567-890  demo    python train.py --epochs 100",
            "7-1          -       sh",
            "8-1",
        ];
        assert_eq!(table(None), expected);
        assert_eq!(table(Some(200)), expected);
    }

    #[test]
    fn only_cuttable_columns_are_cut() {
        let narrow = table(Some(40));
        assert_eq!(narrow[1], "1234567-890  demo    python train.py --…");
        assert!(narrow.iter().all(|line| line.width() <= 40), "{narrow:?}");
        assert_eq!(table(Some(10))[1], "1234567-890  demo    python …", "IDs are never cut");
    }

    #[test]
    fn dispensable_columns_are_left_out_first() {
        let heading = |text, rank| TableHeading { text, may_be_cut: text == "COMMAND", rank };
        let headings = [heading("ID", 0), heading("TENANT", 1), heading("AGE", 3), heading("COMMAND", 2)];
        let rows =
            [vec!["1234567-890".into(), "demo".into(), "5h12m".into(), "python train.py --epochs".into()]];
        let shown = |width| shown_columns(&headings, &rows, width);
        assert_eq!(shown(None), [0, 1, 2, 3]);
        assert_eq!(shown(Some(44)), [0, 1, 2, 3], "11 + 6 + 5 + 16 and three gaps");
        assert_eq!(shown(Some(43)), [0, 1, 3]);
        assert_eq!(shown(Some(36)), [0, 1, 2], "what has a high rank still gets the room that is left");
        assert_eq!(shown(Some(5)), [0]);
    }

    #[test]
    fn colour_takes_no_width() {
        let headings = [
            TableHeading { text: "READY", may_be_cut: false, rank: 0 },
            TableHeading { text: "N", may_be_cut: false, rank: 0 },
        ];
        let rows = [vec![TableCell::state("yes"), "1".into()]];
        assert_eq!(lines(&headings, &rows, None, true)[1], "\u{1b}[32myes\u{1b}[0m    1");
    }

    #[test]
    fn a_command_line_cannot_forge_a_row() {
        let headings = [
            TableHeading { text: "ID", may_be_cut: false, rank: 0 },
            TableHeading { text: "COMMAND", may_be_cut: true, rank: 0 },
        ];
        let rows = [vec!["7-1".into(), "\u{1b}[31mtrain\r\n8-1  demo".into()]];
        let lines = lines(&headings, &rows, None, true);
        assert_eq!(lines, ["ID   COMMAND", "7-1  \\u001b[31mtrain\\u000d\\u000a8-1  demo"]);
    }
}
