//! One control process: its three streams, its end, and its certain death.

use std::fmt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin};

use super::pty::{self, Master};
use super::{Control, LONGEST_REPLY, SessionError};

/// How long a control process may take to end by itself once its input is over, or once it was killed.
const LAST_MOMENT: Duration = Duration::from_secs(1);
/// The most of standard error that is kept, in bytes.
const LONGEST_COMPLAINT: usize = 4096;

/// A running control process.
#[derive(Debug)]
pub(super) struct Channel {
    process: Process,
    input: Option<ChildStdin>,
    output: Master,
    errors: Option<ChildStderr>,
    /// Output that was read and not yet handed out.
    held: Vec<u8>,
    complaint: Vec<u8>,
}

/// What reading up to a delimiter came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Reply(Vec<u8>),
    /// The output ended first.
    Ended,
    TooLong,
}

/// How a control process ended.
#[derive(Debug)]
pub(super) struct Ending {
    /// `None` when it had to be killed.
    status: Option<ExitStatus>,
    pub(super) output: Vec<u8>,
    complaint: Vec<u8>,
}

impl Channel {
    /// Starts the control program.
    pub(super) fn open(control: &Control) -> Result<Self, SessionError> {
        let (output, slave) = pty::open().map_err(SessionError::Spawn)?;
        let mut command = tokio::process::Command::new(&control.program);
        command
            .env_clear()
            .envs(control.environment.iter().map(|(key, value)| (key, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(slave)
            .stderr(Stdio::piped())
            // Not in our group: a Ctrl-C at the manager's terminal must not cut a command off.
            .process_group(0)
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(SessionError::Spawn)?;
        // The command holds the child's end of the pty, and the output ends when nobody does.
        drop(command);
        let (input, errors) = (child.stdin.take(), child.stderr.take());
        Ok(Self {
            process: Process(Some(child)),
            input,
            output,
            errors,
            held: Vec::new(),
            complaint: Vec::new(),
        })
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
    /// The echo need not begin a line: a reply whose last line is cut short is still told from it, since nobody
    /// else knows the nonce.
    pub(super) async fn read_to(&mut self, delimiter: &str) -> Reading {
        let echo = format!("Unknown command \"{delimiter}\"");
        let mut searched = 0;
        loop {
            if let Some((start, end)) = find_line(&self.held, searched, echo.as_bytes()) {
                let mut reply: Vec<u8> = self.held.drain(..end).take(start).collect();
                reply.retain(|b| *b != b'\r');
                return Reading::Reply(reply);
            }
            // The echo may have come in part, its end of line included.
            searched = self.held.len().saturating_sub(echo.len() + 2);
            if self.held.len() > LONGEST_REPLY {
                return Reading::TooLong;
            }
            if !self.read_some().await {
                return Reading::Ended;
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
        let status = self.process.end().await;
        Ending {
            status,
            output: std::mem::take(&mut self.held),
            complaint: std::mem::take(&mut self.complaint),
        }
    }

    /// Ends the input and waits for the process, but not for ever.
    pub(super) async fn close(mut self) {
        self.input = None;
        self.process.end().await;
    }

    /// Kills the process and reaps it.
    pub(super) async fn kill(mut self) {
        self.process.kill().await;
    }
}

async fn read_errors(errors: &mut Option<ChildStderr>, buffer: &mut [u8]) -> Option<usize> {
    errors.as_mut()?.read(buffer).await.ok().filter(|count| *count > 0)
}

/// Finds `line`, ended by `\n` or `\r\n`, at or after `from`: where it begins, and where what follows it begins.
fn find_line(bytes: &[u8], from: usize, line: &[u8]) -> Option<(usize, usize)> {
    let found = bytes.get(from..)?.windows(line.len()).enumerate().filter(|(_, window)| *window == line);
    found.map(|(at, _)| at + from).find_map(|at| {
        let after = at + line.len();
        match bytes.get(after..)? {
            [b'\n', ..] => Some((at, after + 1)),
            [b'\r', b'\n', ..] => Some((at, after + 2)),
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

    fn says(&self, words: &str) -> bool {
        [&self.output, &self.complaint]
            .iter()
            .any(|said| said.windows(words.len()).any(|window| window == words.as_bytes()))
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}")?,
            None => f.write_str("it had to be killed")?,
        }
        let said = String::from_utf8_lossy(&self.complaint);
        let said: String = said.trim().chars().take(200).collect();
        if said.is_empty() { f.write_str(", without a word") } else { write!(f, ", saying {said:?}") }
    }
}

/// A child that never outlives this value by more than it takes to be killed and reaped.
#[derive(Debug)]
struct Process(Option<Child>);

impl Process {
    /// Waits for its end, kills it where that does not come, and reaps it.
    async fn end(&mut self) -> Option<ExitStatus> {
        let child = self.0.as_mut()?;
        if let Ok(status) = tokio::time::timeout(LAST_MOMENT, child.wait()).await {
            self.0 = None;
            return status.ok();
        }
        self.kill().await;
        None
    }

    async fn kill(&mut self) {
        let Some(child) = self.0.as_mut() else { return };
        kill_group(child);
        // Longer than a moment only for a process stuck in the kernel; then `drop` leaves it to its own task.
        if tokio::time::timeout(LAST_MOMENT, child.kill()).await.is_ok() {
            self.0 = None;
        }
    }
}

impl Drop for Process {
    /// Reaps in a task of its own: the runtime's own care for dropped children may wait for the next child.
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        kill_group(&child);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { child.kill().await });
        }
    }
}

/// Kills the child's process group, which it leads: the program may be a wrapper that runs another.
///
/// The group cannot be somebody else's, since the child was not reaped yet.
fn kill_group(child: &Child) {
    let Some(leader) = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?)) else { return };
    if let Err(error) = kill_process_group(leader, Signal::KILL) {
        tracing::debug!(%error, "a control process is gone already");
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
