//! Sessions: commands sent to a daemon one by one, and their replies.
//!
//! ```text
//!            session()             first send()                  delimiter came back
//!   Control ──────────▶ unopened ───────────────▶ greeting ──────────────────────────▶ open ─┐ send(): line,
//!                                                 │  ▲  │                               │  ▲  │ delimiter, read
//!              Busy ◀── deadline ── pause (jitter)┘  │  └─ no end of its own by the      │  └──┘ up to it
//!                       ▲ output ended ──────────────┘     deadline ─▶ Unresponsive      │
//!                       │ "Cannot send…", silence     "Cannot find…" ─▶ NoDaemon         ├─ close() ─▶ over
//!                                                                                       └─ deadline, end ─▶ Unknown
//! ```
//!
//! Invariants:
//!
//! - One control process at a time, its standard output on a pty in raw mode: on a pipe the program would keep
//!   every reply until its input ends (recording 09). One session at a time a daemon is the caller's duty.
//! - A session greets the daemon with a bare delimiter, an unknown word that the daemon echoes, and sends a command
//!   only after that has come back. A daemon serves one caller at a time and turns others away whole (recording
//!   09: sessions win or lose as one), so whatever goes wrong before has run nothing and is tried again.
//! - A control process that was turned away may not say so: it takes the lost reply for an empty one and waits for
//!   the next line, forever (recording 15; on hardware about one attempt in thirty beside four other callers). So a
//!   greeting without an echo soon has its input closed. Such a process ends at once; one that a daemon which hangs
//!   keeps waiting does not, and that is how the two are distinguished. One that is merely slow still gives the echo
//!   before it ends, and the next greeting waits as long as that took (`echo.rs`).
//! - After a command comes a delimiter of its own, new and random, and the reply is what stands before it. The
//!   return code is never believed (49 of 500 callers got an empty reply and 0; recording 08).
//! - Once a command is on its way and its delimiter is not back, its outcome is [`SessionError::Unknown`]: killing
//!   the control process does not cancel the command (FACTS.md, "The control interface").
//! - However a session ends, dropped futures included, its process is killed and reaped.

pub(super) mod calls;
mod channel;
mod echo;
pub(super) mod error;
mod group;
mod pauses;
mod pty;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

pub use self::calls::Calls;
use self::channel::{Channel, Ending, ReadOutcome};
use self::echo::EchoTime;
pub use self::error::{LONGEST_REPLY, NoReplyCause, SessionError};
use self::pauses::Pauses;
use super::binaries::InstalledProgram;
use super::command::Command;
use super::control_channel::{ControlChannel, ControlSession};
use super::parse;

/// The longest line that is sent, in bytes. 3000 are safe, 4100 kill the daemon (recording 09).
pub const LONGEST_LINE: usize = 1024;

/// A way to talk to the daemon of one pipe directory.
#[derive(Debug, Clone)]
pub struct Control {
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
    calls: Arc<Calls>,
    echo: Arc<EchoTime>,
}

impl Control {
    /// Names a daemon by its pipe directory.
    pub fn new(program: &InstalledProgram, pipe_directory: PathBuf) -> Self {
        let mut environment = program.environment();
        environment.push(("CUDA_MPS_PIPE_DIRECTORY".into(), pipe_directory.into()));
        Self { program: program.path.clone(), environment, calls: Arc::default(), echo: Arc::default() }
    }

    fn open(&self) -> Result<Channel, SessionError> {
        let channel = Channel::open(&self.program, &self.environment)?;
        self.calls.spawned();
        Ok(channel)
    }

    /// Waits before the next attempt.
    async fn pause(
        &self,
        pauses: &mut Pauses,
        deadline: Instant,
        ending: &Ending,
    ) -> Result<(), SessionError> {
        self.calls.count_turned_away();
        pauses.pause(deadline, ending.to_string(), ending.turned_away()).await
    }

    /// Opens a session; nothing runs before its first command. Everything in it ends by `deadline`.
    pub fn session(&self, deadline: Instant) -> Result<PtySession, SessionError> {
        let nonce = getrandom::u64().map_err(|error| SessionError::Spawn(io::Error::other(error)))?;
        Ok(PtySession {
            control: self.clone(),
            deadline,
            nonce,
            delimiters: 0,
            processes: 0,
            state: SessionState::Unopened,
            alone: false,
        })
    }

    /// Asks the daemon to quit: at once without clients, else after `timeout_s`, else when they are gone.
    ///
    /// It goes without a delimiter, since none comes back where there is no server (recording 09). `Ok` means that
    /// the control process ended without complaint, which it also does when the daemon never heard it: only the
    /// death of the daemon's process says that it is over.
    pub async fn quit(&self, timeout_s: Option<u32>, deadline: Instant) -> Result<(), SessionError> {
        let line = Command::Quit { timeout: timeout_s }.line();
        let mut pauses = Pauses::default();
        loop {
            let mut channel = self.open()?;
            channel.write(&format!("{line}\n")).await;
            channel.close_input();
            let Ok(ending) = tokio::time::timeout_at(deadline, channel.finish()).await else {
                return Err(SessionError::Unknown { command: line, cause: NoReplyCause::Deadline });
            };
            if ending.no_daemon() {
                return Err(SessionError::NoDaemon);
            }
            if let Err(parse::ParseError::InsufficientPrivileges { text }) = parse::silent(&ending.output) {
                return Err(SessionError::Refused { text });
            }
            if !ending.turned_away() {
                return Ok(());
            }
            self.pause(&mut pauses, deadline, &ending).await?;
        }
    }
}

/// Commands sent to one daemon in a row.
#[derive(Debug)]
pub struct PtySession {
    control: Control,
    deadline: Instant,
    nonce: u64,
    delimiters: u32,
    processes: u32,
    state: SessionState,
    /// A command that runs alone was sent.
    alone: bool,
}

#[derive(Debug)]
enum SessionState {
    Unopened,
    Open(Box<Channel>),
    /// A command is on its way; a state that stays only if the caller dropped the future.
    Waiting {
        command: String,
    },
    Over,
}

impl PtySession {
    /// Sends a command and waits for its reply: the bytes before the delimiter, carriage returns removed.
    ///
    /// The reply is whole, and may be a refusal all the same: every error of the daemon is an ordinary reply.
    pub async fn send(&mut self, command: &Command) -> Result<Vec<u8>, SessionError> {
        let began = Instant::now();
        let reply = self.exchange_command(command).await;
        let commands = self.control.calls.commands();
        match &reply {
            Ok(_) => commands.answered(began.elapsed().as_secs_f64()),
            Err(error) => commands.failed(error.into()),
        }
        reply
    }

    /// Sends reads in a row: with one delimiter after the last where their replies can be distinguished, else one by one.
    pub async fn send_together(&mut self, commands: &[Command]) -> Result<Vec<Vec<u8>>, SessionError> {
        if group::can_share(commands)
            && let Some(replies) = self.exchange_group(commands).await?
        {
            return Ok(replies);
        }
        let mut replies = Vec::with_capacity(commands.len());
        for command in commands {
            replies.push(self.send(command).await?);
        }
        Ok(replies)
    }

    /// The replies to reads with one delimiter after the last; `None` where they cannot be distinguished after all.
    async fn exchange_group(&mut self, commands: &[Command]) -> Result<Option<Vec<Vec<u8>>>, SessionError> {
        let began = Instant::now();
        let lines: Vec<String> = commands.iter().map(Command::line).collect();
        for line in &lines {
            check_line(line)?;
        }
        let reply = self.exchange_lines(&lines.join("\n"), lines.join(", "), false).await;
        let counted = self.control.calls.commands();
        match &reply {
            Ok(_) => {
                let each =
                    began.elapsed().as_secs_f64() / f64::from(u32::try_from(commands.len()).unwrap_or(1));
                for _ in commands {
                    counted.answered(each);
                }
            }
            Err(error) => counted.failed(error.into()),
        }
        Ok(group::split(commands, &reply?))
    }

    async fn exchange_command(&mut self, command: &Command) -> Result<Vec<u8>, SessionError> {
        let line = command.line();
        check_line(&line)?;
        let first = matches!(self.state, SessionState::Unopened);
        if self.alone || matches!(command, Command::Quit { .. }) || (command.runs_alone() && !first) {
            return Err(SessionError::NotAlone { command: line });
        }
        self.exchange_lines(&line, line.clone(), command.runs_alone()).await
    }

    /// Sends lines and reads up to the delimiter after them; `command` is what errors call them.
    async fn exchange_lines(
        &mut self,
        lines: &str,
        command: String,
        alone: bool,
    ) -> Result<Vec<u8>, SessionError> {
        if self.alone {
            return Err(SessionError::NotAlone { command });
        }
        let mut channel = match std::mem::replace(&mut self.state, SessionState::Over) {
            SessionState::Unopened => self.greet().await?,
            SessionState::Open(channel) => *channel,
            SessionState::Waiting { command } => {
                return Err(SessionError::Unknown { command, cause: NoReplyCause::Abandoned });
            }
            SessionState::Over => return Err(SessionError::Over),
        };
        self.alone = alone;
        self.state = SessionState::Waiting { command: command.clone() };
        let exchanged = self.exchange(&mut channel, Some(lines), self.deadline).await;
        self.state = SessionState::Over;
        let cause = match exchanged {
            Ok(ReadOutcome::Reply(reply)) => {
                self.state = SessionState::Open(Box::new(channel));
                return Ok(reply);
            }
            Ok(ReadOutcome::Ended) => {
                let ending = tokio::time::timeout_at(self.deadline, channel.finish()).await;
                NoReplyCause::Ended {
                    ending: ending.map_or_else(|_| "in silence".into(), |ending| ending.to_string()),
                }
            }
            Ok(ReadOutcome::TooLong) => NoReplyCause::TooLong,
            Err(_) => NoReplyCause::Deadline,
        };
        channel.abandon().await;
        Err(SessionError::Unknown { command, cause })
    }

    /// Ends the session: closes the control process's input and waits for it.
    pub async fn close(self) {
        if let SessionState::Open(channel) = self.state {
            channel.close().await;
        }
    }

    /// Control processes spawned so far, those that were turned away included.
    pub fn processes(&self) -> u32 {
        self.processes
    }

    /// Gets the daemon's attention: a control process whose first delimiter has come back.
    async fn greet(&mut self) -> Result<Channel, SessionError> {
        let control = self.control.clone();
        let echo = Arc::clone(&control.echo);
        let allowed = self.deadline.saturating_duration_since(Instant::now());
        let mut pauses = Pauses::default();
        let mut late = 0;
        let mut failures = 0;
        loop {
            let unheard_before = control.calls.is_unheard();
            let mut channel = control.open()?;
            self.processes += 1;
            let began = Instant::now();
            let timeout = echo.timeout(self.deadline.saturating_duration_since(began));
            let is_cut_short = timeout < echo.last() * 2;
            let slow = |took| SessionError::Slow { took, allowed, program: control.program.clone() };
            match self.exchange(&mut channel, None, began + timeout).await {
                Ok(ReadOutcome::Reply(_)) => {
                    echo.record(began.elapsed());
                    control.calls.set_unheard(false);
                    return Ok(channel);
                }
                Ok(ReadOutcome::Ended) => {}
                Ok(ReadOutcome::TooLong) => {
                    channel.abandon().await;
                    return Err(too_long());
                }
                Err(_) => channel.close_input(),
            }
            let closed = Instant::now();
            let Ok(ending) = tokio::time::timeout_at(self.deadline, channel.finish()).await else {
                channel.abandon().await;
                if late > 0 && is_cut_short {
                    return Err(slow(echo.last()));
                }
                // Cut off before a lost reply could be distinguished from a daemon that hangs: what came before has to say.
                let too_short = closed.elapsed() < echo::SHORTEST;
                return Err(match pauses.attempts {
                    1.. if too_short => pauses.given_up(),
                    _ => SessionError::Unresponsive,
                });
            };
            if ending.no_daemon() {
                // It reached nobody, and says nothing about an earlier one that a dying daemon had accepted.
                control.calls.set_unheard(unheard_before);
                return Err(SessionError::NoDaemon);
            }
            // The daemon answered after all: the next process is waited for as long as this one took.
            if ending.has_echo(&self.delimiter()) {
                late += 1;
                // One whose output goes through a pipe answers at the end of its input, however long it is waited for.
                if late > 1 && is_cut_short {
                    return Err(slow(echo.last()));
                }
                echo.record(began.elapsed());
                continue;
            }
            late = 0;
            failures = if ending.failed_in_silence() { failures + 1 } else { 0 };
            if let Some(what) = ending.misbehaviour(failures) {
                return Err(SessionError::Misbehaved { what });
            }
            control.pause(&mut pauses, self.deadline, &ending).await?;
        }
    }

    /// The delimiter that was sent last.
    fn delimiter(&self) -> String {
        format!("zz-{:016x}-{}", self.nonce, self.delimiters)
    }

    /// Sends a line, if there is one, and a delimiter, and reads up to it.
    async fn exchange(
        &mut self,
        channel: &mut Channel,
        line: Option<&str>,
        until: Instant,
    ) -> Result<ReadOutcome, tokio::time::error::Elapsed> {
        self.delimiters += 1;
        let delimiter = self.delimiter();
        let lines = line.map_or_else(|| format!("{delimiter}\n"), |line| format!("{line}\n{delimiter}\n"));
        tokio::time::timeout_at(until, async {
            channel.write(&lines).await;
            channel.read_to(&delimiter).await
        })
        .await
    }
}

impl ControlChannel for Control {
    fn session(&self, deadline: Instant) -> Result<Box<dyn ControlSession>, SessionError> {
        Ok(Box::new(Control::session(self, deadline)?))
    }

    fn quit(&self, timeout_s: Option<u32>, deadline: Instant) -> BoxFuture<'_, Result<(), SessionError>> {
        Box::pin(Control::quit(self, timeout_s, deadline))
    }

    fn in_directory(&self, pipe_directory: PathBuf) -> Arc<dyn ControlChannel> {
        let mut environment = self.environment.clone();
        environment.push(("CUDA_MPS_PIPE_DIRECTORY".into(), pipe_directory.into()));
        Arc::new(Self { environment, ..self.clone() })
    }

    fn calls(&self) -> &Calls {
        &self.calls
    }
}

impl ControlSession for PtySession {
    fn extend(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn send<'a>(&'a mut self, command: &'a Command) -> BoxFuture<'a, Result<Vec<u8>, SessionError>> {
        Box::pin(PtySession::send(self, command))
    }

    fn send_together<'a>(
        &'a mut self,
        commands: &'a [Command],
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, SessionError>> {
        Box::pin(PtySession::send_together(self, commands))
    }

    fn processes(&self) -> u32 {
        self.processes
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(PtySession::close(*self))
    }
}

fn too_long() -> SessionError {
    let what = format!("the control program wrote more than {LONGEST_REPLY} bytes that are no answer");
    SessionError::Misbehaved { what }
}

fn check_line(line: &str) -> Result<(), SessionError> {
    let reason = if line.len() > LONGEST_LINE {
        "it is longer than 1024 bytes, and a daemon dies of 4100"
    } else if line.is_empty() || !line.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        "it holds something else than printable ASCII"
    } else {
        return Ok(());
    };
    Err(SessionError::Line { line: line.chars().take(80).collect(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_short_printable_lines_may_leave() {
        assert!(check_line("get_server_list").is_ok());
        assert!(check_line(&"x".repeat(1024)).is_ok());
        for bad in ["", "a\nquit", "a\0", "é", "\x1b[A", &"x".repeat(1025)] {
            assert!(matches!(check_line(bad), Err(SessionError::Line { .. })), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn exclusive_command_is_refused_in_a_session() {
        let program = InstalledProgram {
            path: "/nonexistent/program".into(),
            server_directory: None,
            extra_env: Vec::new(),
        };
        let control = Control::new(&program, "/nonexistent/pipe".into());
        let mut session = control.session(Instant::now()).expect("nothing runs yet");
        let quit = Command::Quit { timeout: None };
        assert!(matches!(session.send(&quit).await, Err(SessionError::NotAlone { .. })));
        assert_eq!(session.processes(), 0);
        assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::Spawn(_))));
    }
}
