//! One control process: its three streams, its end, and its certain death.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{ChildStderr, ChildStdin};

use super::error::{LONGEST_REPLY, SessionError};
use super::pty::{self, Master};
use crate::host::{OwnChild, Signal};

/// Longest time for a control process to end by itself once its input is over.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// The most of standard error that is kept, in bytes.
const LONGEST_COMPLAINT: usize = 4096;

/// The most of what a control program wrote that a message repeats, in characters.
const SHOWN: usize = 200;

/// Failures in silence, in a row, from which the program is broken. One of 223 processes beside four other callers failed so
/// (driver 580, two H100s).
const SILENT_FAILURES: u32 = 8;

/// A running control process.
#[derive(Debug)]
pub(super) struct Channel {
    process: OwnChild,
    input: Option<ChildStdin>,
    output: Master,
    errors: Option<ChildStderr>,
    /// Output that was read and not yet handed out.
    held: Vec<u8>,
    complaint: Vec<u8>,
}

/// The result of reading up to a delimiter.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadOutcome {
    Reply(Vec<u8>),
    /// The output ended first.
    Ended,
    TooLong,
}

/// End of a control process.
#[derive(Debug)]
pub(super) struct Ending {
    /// `None` when it had to be killed.
    status: Option<ExitStatus>,
    pub(super) output: Vec<u8>,
    complaint: Vec<u8>,
}

impl Channel {
    /// Starts the control program.
    pub(super) fn open(program: &Path, environment: &[(OsString, OsString)]) -> Result<Self, SessionError> {
        let (output, slave) = pty::open().map_err(SessionError::Spawn)?;
        let mut command = tokio::process::Command::new(program);
        command
            .env_clear()
            .envs(environment.iter().map(|(key, value)| (key, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(slave)
            .stderr(Stdio::piped());
        let mut child = OwnChild::spawn(&mut command).map_err(SessionError::Spawn)?;
        // The command holds the child's end of the pty, and the output ends when nobody does.
        drop(command);
        let (input, errors) = (child.stdin(), child.stderr());
        Ok(Self { process: child, input, output, errors, held: Vec::new(), complaint: Vec::new() })
    }

    /// Writes lines. A process that is gone is no error here: the output says so, and says more.
    pub(super) async fn write(&mut self, lines: &str) {
        let Some(input) = &mut self.input else { return };
        if let Err(error) = input.write_all(lines.as_bytes()).await {
            tracing::debug!(%error, "the control process takes no more input");
            self.input = None;
        }
    }

    /// Ends the input.
    pub(super) fn close_input(&mut self) {
        self.input = None;
    }

    /// Reads up to the daemon's echo of `delimiter`, which is an unknown word to it:
    ///
    /// ```text
    /// 511
    /// Unknown command "zz-0123456789abcdef-2"
    /// ```
    ///
    /// The echo need not begin a line: a reply whose last line is cut short is still distinguished from it, since nobody
    /// else knows the nonce.
    pub(super) async fn read_to(&mut self, delimiter: &str) -> ReadOutcome {
        let echo = format!("Unknown command \"{delimiter}\"");
        let mut searched = 0;
        loop {
            if let Some((start, end)) = find_line(&self.held, searched, echo.as_bytes()) {
                let mut reply: Vec<u8> = self.held.drain(..end).take(start).collect();
                reply.retain(|b| *b != b'\r');
                return ReadOutcome::Reply(reply);
            }
            // The echo may have come in part, its end of line included.
            searched = self.held.len().saturating_sub(echo.len() + 2);
            if self.held.len() > LONGEST_REPLY {
                return ReadOutcome::TooLong;
            }
            if !self.read_some().await {
                return ReadOutcome::Ended;
            }
        }
    }

    /// Reads whatever comes next; false when the output is over.
    async fn read_some(&mut self) -> bool {
        let (mut buffer, mut complaint) = ([0; 8192], [0; 1024]);
        loop {
            tokio::select! {
                biased;
                count = self.output.read(&mut buffer) => match count {
                    Ok(count @ 1..) => {
                        self.held.extend_from_slice(&buffer[..count]);
                        return true;
                    }
                    Ok(0) => return false,
                    Err(error) => {
                        tracing::warn!(%error, "a control process cannot be read");
                        return false;
                    }
                },
                count = read_errors(&mut self.errors, &mut complaint), if self.errors.is_some() => match count {
                    Some(count) => self.complain(&complaint[..count]),
                    None => self.errors = None,
                },
            }
        }
    }

    fn complain(&mut self, bytes: &[u8]) {
        let room = LONGEST_COMPLAINT.saturating_sub(self.complaint.len());
        self.complaint.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// Waits for the end of the process, and gathers what it said last. It is reaped when this returns.
    pub(super) async fn finish(&mut self) -> Ending {
        while self.held.len() <= LONGEST_REPLY && self.read_some().await {}
        let mut complaint = [0; 1024];
        let rest = async {
            while let Some(count) = read_errors(&mut self.errors, &mut complaint).await {
                let room = LONGEST_COMPLAINT.saturating_sub(self.complaint.len());
                self.complaint.extend_from_slice(&complaint[..count.min(room)]);
            }
        };
        // Its output is over, so it is ending; what else holds its standard error is no reason to wait longer.
        drop(tokio::time::timeout(LAST_MOMENT, rest).await);
        self.input = None;
        let status = self.process.end(LAST_MOMENT).await;
        Ending {
            status,
            output: std::mem::take(&mut self.held),
            complaint: std::mem::take(&mut self.complaint),
        }
    }

    /// Ends the input and waits for the process, but not forever.
    pub(super) async fn close(mut self) {
        self.input = None;
        self.process.end(LAST_MOMENT).await;
    }

    /// Kills the process and reaps it.
    pub(super) async fn abandon(mut self) {
        self.process.end_now().await;
    }
}

async fn read_errors(errors: &mut Option<ChildStderr>, buffer: &mut [u8]) -> Option<usize> {
    errors.as_mut()?.read(buffer).await.ok().filter(|count| *count > 0)
}

/// Finds `line`, ended by `\n` or `\r\n`, at or after `from`: where it begins, and where what follows it begins.
fn find_line(bytes: &[u8], from: usize, line: &[u8]) -> Option<(usize, usize)> {
    let matches = bytes.get(from..)?.windows(line.len()).enumerate().filter(|(_, window)| *window == line);
    matches.map(|(start, _)| start + from).find_map(|start| {
        let after = start + line.len();
        match bytes.get(after..)? {
            [b'\n', ..] => Some((start, after + 1)),
            [b'\r', b'\n', ..] => Some((start, after + 2)),
            _ => None,
        }
    })
}

impl Ending {
    /// The words of the control program where no daemon listens (recording 01, with return code 1).
    pub(super) fn no_daemon(&self) -> bool {
        self.says("Cannot find MPS control daemon process")
    }

    /// The words of the control program when the daemon is another caller's (recordings 07 and 08).
    pub(super) fn turned_away(&self) -> bool {
        self.says("Cannot send")
    }

    /// Returns true if it failed without a word, with the code of a program that was turned away: its words can be lost.
    pub(super) fn failed_in_silence(&self) -> bool {
        let code = self.status.and_then(|status| status.code());
        code == Some(1) && self.output.trim_ascii().is_empty() && self.complaint.trim_ascii().is_empty()
    }

    /// Describes behaviour that no control program shows whose daemon is busy with another caller; `None` for one that may have been turned
    /// away, which ends in silence or with a message. `failures` is the number of failures in silence in a row, this one included; a few of
    /// them may have been turned away.
    pub(super) fn misbehaviour(&self, failures: u32) -> Option<String> {
        if self.turned_away() || (self.failed_in_silence() && failures < SILENT_FAILURES) {
            return None;
        }
        if self.output.len() > LONGEST_REPLY {
            return Some(format!(
                "the control program wrote more than {LONGEST_REPLY} bytes that are no answer"
            ));
        }
        if let Some(signal) = self.status.and_then(|status| status.signal()) {
            let name = if signal == Signal::SEGV.as_raw() { " (SIGSEGV)" } else { "" };
            return Some(format!("the control program crashed: signal {signal}{name}"));
        }
        let message = String::from_utf8_lossy(&self.output);
        let message: String = message.trim().chars().take(SHOWN).collect();
        if !message.is_empty() {
            return Some(format!("the control program wrote something else than an answer: {message:?}"));
        }
        match self.status {
            Some(status) if !status.success() => Some(format!("the control program failed: {self}")),
            _ => None,
        }
    }

    /// Returns true where the daemon's whole echo of `delimiter` is in its output.
    pub(super) fn has_echo(&self, delimiter: &str) -> bool {
        find_line(&self.output, 0, format!("Unknown command \"{delimiter}\"").as_bytes()).is_some()
    }

    /// Returns true if these words are in its output or on its standard error.
    pub(super) fn says(&self, words: &str) -> bool {
        [&self.output, &self.complaint]
            .iter()
            .any(|part| part.windows(words.len()).any(|window| window == words.as_bytes()))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => f.write_str("it had to be killed")?,
        }
        let message = String::from_utf8_lossy(&self.complaint);
        let message: String = message.trim().chars().take(200).collect();
        if message.is_empty() { f.write_str(", without a word") } else { write!(f, ", saying {message:?}") }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delimiter_is_found_whole_and_not_before() {
        let echo = b"Unknown command \"zz-1\"";
        assert_eq!(find_line(b"511\r\nUnknown command \"zz-1\"\r\nmore", 0, echo), Some((5, 29)));
        assert_eq!(find_line(b"cut shortUnknown command \"zz-1\"\n", 0, echo), Some((9, 32)));
        assert_eq!(find_line(b"511\r\nUnknown command \"zz-1\"", 0, echo), None);
        assert_eq!(find_line(b"511\r\nUnknown command \"zz-1\"\r", 0, echo), None);
        assert_eq!(find_line(b"Unknown command \"zz-2\"\n", 0, echo), None);
        assert_eq!(find_line(b"", 7, echo), None);
    }
}
