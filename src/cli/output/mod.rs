//! Output of the command line, and its exit codes.
//!
//! Results go to standard output, everything else to standard error. Text of other programs is printed with control characters
//! escaped, whatever the format.

mod age;
mod cell;
mod colour;
mod details;
mod exit_codes;
mod format;
mod list;
mod print;
mod table;
mod terminal;

pub(super) use self::age::age;
pub(super) use self::cell::{CellColour, TableCell, word};
pub(super) use self::colour::{ColourChoice, choose_colour};
pub(super) use self::details::{DetailsTable, condition_sentence};
pub(super) use self::exit_codes::{CommandResult, DIFFERS, ERROR, EXIT_CODES};
pub(super) use self::format::{OutputArgs, OutputFormat};
pub(super) use self::list::{ListField, ListLayout};
pub(super) use self::print::{complain, emit, line, print_cells, remark};
pub(super) use self::terminal::{AlternateScreen, terminal_width, wrapped};
