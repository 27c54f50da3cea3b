//! The control daemon's text: written, read, and run.
//!
//! The daemon has no API but a program that turns lines on its standard input into lines on its standard output,
//! with no prompt, no delimiter, and a return code of 0 for every refusal. Each part of that is one module here
//! and none does another's work: [`command`] writes lines, [`parse`] and [`log`] read bytes (never a panic; the
//! raw text stays in the error), [`session`] moves lines and replies, [`process`] starts, finds and stops daemons.
//! Facts with no other source are NVIDIA's behaviour as recorded in `tests/fixtures/recordings`.

pub mod binaries;
pub mod capability;
pub mod command;
pub mod control_channel;
pub mod control_program;
pub mod handshake;
pub mod log;
pub mod parse;
pub mod process;
pub mod session;

pub use binaries::{Binaries, BinariesError, InstalledProgram};
pub use capability::{Capability, ProbeError};
pub use command::{Command, DeviceSelector, Effect};
pub use control_channel::{ControlChannel, ControlSession};
pub use control_program::ControlProgram;
pub use session::{Control, PtySession, SessionError};
