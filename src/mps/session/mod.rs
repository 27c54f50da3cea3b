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
//! What always holds:
//!
//! - One control process at a time, its standard output on a pty in raw mode: on a pipe the program would keep
//!   every reply until its input ends (recording 09). One session at a time a daemon is the caller's duty.
//! - A session greets the daemon with a bare delimiter, an unknown word that the daemon echoes, and sends a command
//!   only after that has come back. A daemon serves one caller at a time and turns others away whole (recording
//!   09: sessions win or lose as one), so whatever goes wrong before has run nothing and is tried again.
//! - A control process that was turned away may not say so: it takes the lost reply for an empty one and waits for
//!   the next line, for ever (recording 15; on hardware about one attempt in thirty beside four other callers). So a
//!   greeting without an echo soon has its input closed. Such a process ends at once; one that a daemon which hangs
//!   keeps waiting does not, and that is how the two are distinguished. One that is merely slow still gives the echo
//!   before it ends, and the next greeting waits as long as that took (`echo.rs`).
//! - After a command comes a delimiter of its own, new and random, and the reply is what stands before it. The
//!   return code is never believed (49 of 500 callers got an empty reply and 0; recording 08).
//! - Once a command is on its way and its delimiter is not back, its outcome is [`SessionError::Unknown`]: killing
//!   the control process does not cancel the command (FACTS.md, "The control interface").
//! - However a session ends, dropped futures included, its process is killed and reaped.

mod channel;
mod echo;
mod group;
mod pty;

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use self::channel::{Channel, Ending, Reading};
use self::echo::EchoTime;
use super::binaries::base_environment;
use super::command::Command;
use super::parse;
use crate::metrics::control::{Commands, Failed};

/// The longest line that is sent, in bytes. 3000 are safe, 4100 kill the daemon (recording 09).
pub const LONGEST_LINE: usize = 1024;
/// The longest reply that is read, in bytes.
pub const LONGEST_REPLY: usize = 1 << 20;
/// The first pause after being turned away; each later one is up to twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause beside callers who come and go.
const LONGEST_PAUSE: Duration = Duration::from_millis(32);
/// Attempts from which a session that another program holds open is more likely than many short ones; pauses grow again.
const HELD_OPEN: u32 = 16;
/// The longest pause from then on.
const LONGEST_PAUSE_HELD: Duration = Duration::from_millis(256);

/// Why a session gave no reply.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// No daemon listens in the pipe directory. Nothing ran.
    #[error("no MPS control daemon answers in the pipe directory")]
    NoDaemon,
    /// Other callers kept the daemon busy up to the deadline. Nothing ran.
    #[error("{attempts} control processes in a row got no answer of the daemon; the last one: {last}")]
    Busy {
        /// Control processes that were turned away.
        attempts: u32,
        /// How the last one ended.
        last: String,
        /// Whether any of them said that the daemon did not take its command. One that is turned away may say nothing
        /// (recording 08), but not each time.
        said_so: bool,
    },
    /// The control program crashed, or wrote something that no control program writes. Nothing ran.
    #[error("{what}")]
    Misbehaved {
        /// What it did.
        what: String,
    },
    /// The daemon accepted a caller and said nothing up to the deadline, not even at the end of the input. Nothing ran; the daemon hangs, as it does
    /// while it terminates a stopped client.
    #[error("the daemon does not answer; nothing was sent to it")]
    Unresponsive,
    /// The control program is too slow for the deadline. Nothing ran; the daemon answers.
    #[error(
        "it took {:.1} s to its first answer, which is too long for a session of at most {:.1} s: raise control_deadline_s, \
         or find out what slows {} down",
        took.as_secs_f64(), allowed.as_secs_f64(), program.display()
    )]
    Slow {
        /// What the last first answer took.
        took: Duration,
        /// How long a session may take.
        allowed: Duration,
        /// The control program.
        program: PathBuf,
    },
    /// The command was sent and its reply never came: it may have run, and may still run later.
    #[error("the outcome of {command:?} is unknown: {cause}")]
    Unknown {
        /// The line that was sent.
        command: String,
        /// What happened instead of a reply.
        cause: Cause,
    },
    /// The command cannot be written as a safe line. Nothing was sent.
    #[error("{line:?} cannot be sent: {reason}")]
    Line {
        /// The line.
        line: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The command must have a session of its own. Nothing was sent.
    #[error("{command:?} has to run alone")]
    NotAlone {
        /// The line.
        command: String,
    },
    /// The daemon refuses this uid.
    #[error("the daemon refused: {text}")]
    Refused {
        /// What it said.
        text: String,
    },
    /// The session ended with an earlier error. Nothing was sent.
    #[error("the session is over")]
    Over,
    /// The control program could not be run.
    #[error("the control program cannot be run: {0}")]
    Spawn(io::Error),
}

impl From<&SessionError> for Failed {
    fn from(error: &SessionError) -> Self {
        match error {
            SessionError::NoDaemon => Self::NoDaemon,
            SessionError::Busy { .. } => Self::Busy,
            SessionError::Unresponsive => Self::Unresponsive,
            SessionError::Unknown { .. } => Self::Unknown,
            SessionError::Refused { .. } => Self::Refused,
            SessionError::Line { .. }
            | SessionError::NotAlone { .. }
            | SessionError::Over
            | SessionError::Misbehaved { .. }
            | SessionError::Slow { .. }
            | SessionError::Spawn(_) => Self::NotSent,
        }
    }
}

/// What happened instead of a reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The deadline passed; the daemon hangs.
    #[error("no reply before the deadline")]
    Deadline,
    /// The control process ended, most likely with its daemon.
    #[error("the control process ended: {said}")]
    Ended {
        /// Its exit status and its last words.
        said: String,
    },
    /// The reply passed [`LONGEST_REPLY`].
    #[error("the reply is longer than {LONGEST_REPLY} bytes")]
    TooLong,
    /// The caller dropped the future that was waiting for the reply.
    #[error("nobody waited for the reply")]
    Abandoned,
}

/// A way to talk to the daemon of one pipe directory.
#[derive(Debug, Clone)]
pub struct Control {
    program: PathBuf,
    pipe_directory: PathBuf,
    environment: Vec<(OsString, OsString)>,
    calls: Arc<Calls>,
}

/// What asking a daemon has cost, counted over all clones of a [`Control`].
#[derive(Debug, Default)]
struct Calls {
    processes: AtomicU64,
    turned_away: AtomicU64,
    /// Whether the daemon has yet to show that it heard the last of them.
    unheard: AtomicBool,
    commands: Arc<Commands>,
    echo: EchoTime,
}

impl Control {
    /// Names a daemon by its pipe directory. `extra_env` goes to each control process, over what it needs anyway.
    pub fn new(program: PathBuf, pipe_directory: PathBuf, extra_env: Vec<(OsString, OsString)>) -> Self {
        let mut environment = base_environment();
        environment.extend(extra_env);
        environment.push(("CUDA_MPS_PIPE_DIRECTORY".into(), pipe_directory.clone().into()));
        Self { program, pipe_directory, environment, calls: Arc::default() }
    }

    /// The same way to a daemon in another pipe directory; the cost of its commands is counted together.
    #[must_use]
    pub fn in_directory(&self, pipe_directory: PathBuf) -> Self {
        let mut environment = self.environment.clone();
        environment.push(("CUDA_MPS_PIPE_DIRECTORY".into(), pipe_directory.clone().into()));
        Self { pipe_directory, environment, program: self.program.clone(), calls: Arc::clone(&self.calls) }
    }

    /// The pipe directory of the daemon.
    pub fn pipe_directory(&self) -> &Path {
        &self.pipe_directory
    }

    /// Control processes spawned so far.
    pub fn processes(&self) -> u64 {
        self.calls.processes.load(Ordering::Relaxed)
    }

    /// Those of them that the daemon turned away for another caller; each was followed by another attempt, or by
    /// the end of its deadline.
    pub fn turned_away(&self) -> u64 {
        self.calls.turned_away.load(Ordering::Relaxed)
    }

    /// Whether the daemon has yet to show that it heard the last control process: a session that control.log shows
    /// without a command may be the one of that process.
    pub fn is_unheard(&self) -> bool {
        self.calls.unheard.load(Ordering::Relaxed)
    }

    /// What commands took, and why some of them got no reply.
    pub fn commands(&self) -> Arc<Commands> {
        Arc::clone(&self.calls.commands)
    }

    fn open(&self) -> Result<Channel, SessionError> {
        let channel = Channel::open(self)?;
        self.calls.processes.fetch_add(1, Ordering::Relaxed);
        self.calls.unheard.store(true, Ordering::Relaxed);
        Ok(channel)
    }

    /// Waits before the next attempt.
    async fn pause(
        &self,
        pauses: &mut Pauses,
        deadline: Instant,
        ending: &Ending,
    ) -> Result<(), SessionError> {
        self.calls.turned_away.fetch_add(1, Ordering::Relaxed);
        pauses.pause(deadline, ending).await
    }

    /// Opens a session; nothing runs before its first command. Everything in it ends by `deadline`.
    #[allow(clippy::unused_async, reason = "opening may come to need it, and callers await it already")]
    pub async fn session(&self, deadline: Instant) -> Result<Session, SessionError> {
        let nonce = getrandom::u64().map_err(|error| SessionError::Spawn(io::Error::other(error)))?;
        Ok(Session {
            control: self.clone(),
            deadline,
            nonce,
            delimiters: 0,
            processes: 0,
            state: State::Unopened,
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
                return Err(SessionError::Unknown { command: line, cause: Cause::Deadline });
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
pub struct Session {
    control: Control,
    deadline: Instant,
    nonce: u64,
    delimiters: u32,
    processes: u32,
    state: State,
    /// A command that runs alone was sent.
    alone: bool,
}

#[derive(Debug)]
enum State {
    Unopened,
    Open(Box<Channel>),
    /// A command is on its way; a state that stays only if the caller dropped the future.
    Waiting {
        command: String,
    },
    Over,
}

impl Session {
    /// Moves the end of the session: each command of many may have the time of a whole session.
    pub fn extend(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Sends a command and waits for its reply: the bytes before the delimiter, carriage returns removed.
    ///
    /// The reply is whole, and may be a refusal all the same: every error of the daemon is an ordinary reply.
    pub async fn send(&mut self, command: &Command) -> Result<Vec<u8>, SessionError> {
        let began = Instant::now();
        let reply = self.exchange_command(command).await;
        let commands = &self.control.calls.commands;
        match &reply {
            Ok(_) => commands.answered(began.elapsed().as_secs_f64()),
            Err(error) => commands.failed(error.into()),
        }
        reply
    }

    /// Sends reads whose replies can be distinguished with one delimiter after the last; `None` where they cannot, and then
    /// the caller sends them one by one.
    pub async fn send_together(
        &mut self,
        commands: &[Command],
    ) -> Result<Option<Vec<Vec<u8>>>, SessionError> {
        if !group::can_share(commands) {
            return Ok(None);
        }
        let began = Instant::now();
        let lines: Vec<String> = commands.iter().map(Command::line).collect();
        for line in &lines {
            check_line(line)?;
        }
        let reply = self.exchange_lines(&lines.join("\n"), lines.join(", "), false).await;
        let counted = &self.control.calls.commands;
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
        let first = matches!(self.state, State::Unopened);
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
        let mut channel = match std::mem::replace(&mut self.state, State::Over) {
            State::Unopened => self.greet().await?,
            State::Open(channel) => *channel,
            State::Waiting { command } => {
                return Err(SessionError::Unknown { command, cause: Cause::Abandoned });
            }
            State::Over => return Err(SessionError::Over),
        };
        self.alone = alone;
        self.state = State::Waiting { command: command.clone() };
        let exchanged = self.exchange(&mut channel, Some(lines), self.deadline).await;
        self.state = State::Over;
        let cause = match exchanged {
            Ok(Reading::Reply(reply)) => {
                self.state = State::Open(Box::new(channel));
                return Ok(reply);
            }
            Ok(Reading::Ended) => {
                let ending = tokio::time::timeout_at(self.deadline, channel.finish()).await;
                Cause::Ended {
                    said: ending.map_or_else(|_| "in silence".into(), |ending| ending.to_string()),
                }
            }
            Ok(Reading::TooLong) => Cause::TooLong,
            Err(_) => Cause::Deadline,
        };
        channel.abandon().await;
        Err(SessionError::Unknown { command, cause })
    }

    /// Ends the session: closes the control process's input and waits for it.
    pub async fn close(self) {
        if let State::Open(channel) = self.state {
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
        let echo = &control.calls.echo;
        let allowed = self.deadline.saturating_duration_since(Instant::now());
        let mut pauses = Pauses::default();
        let mut late = false;
        loop {
            let unheard_before = control.is_unheard();
            let mut channel = control.open()?;
            self.processes += 1;
            let began = Instant::now();
            let patience = echo.patience(self.deadline.saturating_duration_since(began));
            match self.exchange(&mut channel, None, began + patience).await {
                Ok(Reading::Reply(_)) => {
                    echo.record(began.elapsed());
                    control.calls.unheard.store(false, Ordering::Relaxed);
                    return Ok(channel);
                }
                Ok(Reading::Ended) => {}
                Ok(Reading::TooLong) => {
                    channel.abandon().await;
                    return Err(too_long());
                }
                Err(_) => channel.close_input(),
            }
            let closed = Instant::now();
            let Ok(ending) = tokio::time::timeout_at(self.deadline, channel.finish()).await else {
                channel.abandon().await;
                if late && patience < echo.last() * 2 {
                    return Err(SessionError::Slow { took: echo.last(), allowed, program: control.program });
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
                control.calls.unheard.store(unheard_before, Ordering::Relaxed);
                return Err(SessionError::NoDaemon);
            }
            // The daemon answered after all: the next process is waited for as long as this one took.
            late = ending.says(&format!("Unknown command \"zz-{:016x}-", self.nonce));
            if late {
                echo.record(began.elapsed());
                continue;
            }
            if let Some(what) = ending.misbehaviour() {
                return Err(SessionError::Misbehaved { what });
            }
            control.pause(&mut pauses, self.deadline, &ending).await?;
        }
    }

    /// Sends a line, if there is one, and a delimiter, and reads up to it.
    async fn exchange(
        &mut self,
        channel: &mut Channel,
        line: Option<&str>,
        until: Instant,
    ) -> Result<Reading, tokio::time::error::Elapsed> {
        self.delimiters += 1;
        let delimiter = format!("zz-{:016x}-{}", self.nonce, self.delimiters);
        let lines = line.map_or_else(|| format!("{delimiter}\n"), |line| format!("{line}\n{delimiter}\n"));
        tokio::time::timeout_at(until, async {
            channel.write(&lines).await;
            channel.read_to(&delimiter).await
        })
        .await
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

/// Pauses between attempts, random so that callers do not meet again.
#[derive(Debug, Default)]
struct Pauses {
    /// Attempts that were turned away.
    attempts: u32,
    /// How the last of them ended.
    last: String,
    /// Whether any of them said that it was turned away.
    said_so: bool,
}

impl Pauses {
    /// Waits before the next attempt; gives up where that would be past the deadline.
    async fn pause(&mut self, deadline: Instant, ending: &Ending) -> Result<(), SessionError> {
        self.attempts += 1;
        self.last = ending.to_string();
        self.said_so |= ending.turned_away();
        let ceiling = match self.attempts.checked_sub(HELD_OPEN) {
            None => (FIRST_PAUSE * 2u32.saturating_pow(self.attempts)).min(LONGEST_PAUSE),
            Some(more) => (LONGEST_PAUSE * 2u32.saturating_pow(more.min(8))).min(LONGEST_PAUSE_HELD),
        };
        // A pause without jitter is still a pause, should the system have no randomness to give.
        let random = getrandom::u32().unwrap_or(u32::MAX / 2);
        let pause = ceiling.mul_f64(f64::from(random) / f64::from(u32::MAX)).max(FIRST_PAUSE / 2);
        if Instant::now() + pause >= deadline {
            return Err(self.given_up());
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// What it means that the deadline comes in a pause: a daemon that turns callers away is well.
    fn given_up(&mut self) -> SessionError {
        let last = std::mem::take(&mut self.last);
        SessionError::Busy { attempts: self.attempts, last, said_so: self.said_so }
    }
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
        let control = Control::new("/nonexistent/program".into(), "/nonexistent/pipe".into(), vec![]);
        let mut session = control.session(Instant::now()).await.expect("nothing runs yet");
        let quit = Command::Quit { timeout: None };
        assert!(matches!(session.send(&quit).await, Err(SessionError::NotAlone { .. })));
        assert_eq!(session.processes(), 0);
        assert!(matches!(session.send(&Command::GetServerList).await, Err(SessionError::Spawn(_))));
    }
}
