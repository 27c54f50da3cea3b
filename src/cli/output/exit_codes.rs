//! The exit codes of every command.

use std::error::Error;
use std::process::ExitCode;

/// Exit code of a command, or the error that it ends with.
pub(in crate::cli) type CommandResult = Result<ExitCode, Box<dyn Error>>;

/// Exit code for a negative answer: something differs or is not ready, the state of the host refused or undid it, or the caller
/// declined.
pub(in crate::cli) const DIFFERS: u8 = 1;

/// Exit code of an error.
pub(in crate::cli) const ERROR: u8 = 2;

/// The exit codes of every command, for `--help` and the documentation.
pub(in crate::cli) const EXIT_CODES: &str = "\
Exit codes:
  0  done, or the answer is yes
  1  the answer is no: something differs or is not ready, the state of the host refused or undid it,
     or you declined when asked
  2  an error: wrong arguments, an unknown name, no permission, or no answer
  Ctrl-C ends a wait with 130, and a closed pipe, as of `| head`, any command with 141
  `run` exits with the code of the command that it became, with 126 or 127 if that cannot be run,
  or with 2 if it got no lease, whatever the reason";
