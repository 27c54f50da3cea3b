//! A control daemon that follows a script: its replies are those of `tests/fixtures/recordings`, and its processes are
//! real ones that only sleep, so that their deaths are real.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command as Program};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use crate::host::process::{death, identify};
use crate::mps::process::{DaemonStartError, StartSpec, Started, pipe_inode};
use crate::mps::session::{Calls, NoReplyCause};
use crate::mps::{Command, ControlChannel, ControlProgram, ControlSession, SessionError};

/// Replies to the getters of a daemon that was just started (recording 01).
const STARTED: [(&str, &str); 6] = [
    ("get_server_list", ""),
    ("get_default_active_thread_percentage", "100.0\n"),
    ("get_default_device_pinned_mem_limit 0", ""),
    ("get_default_device_pinned_mem_limit 1", ""),
    ("get_default_client_priority", "0\n"),
    ("ps", "Server not found\n"),
];
/// Output of the getters for the values that these tests write (recording 05).
const PRINTED: [(&str, &str); 5] =
    [("50.0", "50.0\n"), ("25.0", "25.0\n"), ("30", "30.0\n"), ("4096M", "4G\n"), ("1G", "1G\n")];

/// Fault of sessions until it is cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionFault {
    /// Other callers keep the daemon busy.
    Busy,
    /// The daemon does not answer.
    Silent,
    /// The command with this first word is sent, and its reply never comes.
    Lost(&'static str),
}

/// Session: the time at which it was opened, and the commands that were sent in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Transcript {
    pub(super) at: Duration,
    pub(super) commands: Vec<String>,
}

impl Transcript {
    /// Returns true if a command in it changes anything.
    pub(super) fn writes(&self) -> bool {
        self.commands.iter().any(|command| command.starts_with("set_") || command.starts_with("start_"))
    }
}

/// Scripted daemon; clones share one daemon.
#[derive(Debug, Clone)]
pub(super) struct Script(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    calls: Calls,
    state: Mutex<DaemonState>,
}

#[derive(Debug, Default)]
struct DaemonState {
    replies: BTreeMap<String, String>,
    control: Option<Sleeper>,
    server: Option<Sleeper>,
    trouble: Option<SessionFault>,
    /// Time that each command takes.
    pace: Duration,
    /// First words of the command during which the server dies, which the daemon notices after the session.
    fatal: Option<String>,
    /// Path of control.log, if sessions are written there.
    log: Option<PathBuf>,
    /// Command that another program sends as soon as the present session is over.
    next: Option<String>,
    fails_to_start: bool,
    stays: bool,
    sessions: Vec<Transcript>,
    starts: Vec<Duration>,
    quits: Vec<Option<u32>>,
}

/// Process that sleeps; dropping the value kills and reaps it.
#[derive(Debug)]
struct Sleeper(Child);

impl Sleeper {
    /// Starts a process under this `name`, which the manager checks before it signals anything.
    fn new(name: &str) -> Self {
        Self(Program::new("sleep").arg0(name).arg("3600").spawn().expect("sleep runs"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Script {
    pub(super) fn new() -> Self {
        let inner = Inner { began: Instant::now(), calls: Calls::default(), state: Mutex::default() };
        Self(Arc::new(inner))
    }

    fn state(&self) -> MutexGuard<'_, DaemonState> {
        self.0.state.lock().expect("no test panics while it holds it")
    }

    fn elapsed(&self) -> Duration {
        self.0.began.elapsed()
    }

    /// Sets the fault of sessions from now on; `None` clears it.
    pub(super) fn trouble(&self, trouble: Option<SessionFault>) {
        self.state().trouble = trouble;
    }

    /// Sets the time that each command takes from now on.
    pub(super) fn pace(&self, pace: Duration) {
        self.state().pace = pace;
    }

    /// Makes starts fail, or succeed, from now on.
    pub(super) fn fail_to_start(&self, fails: bool) {
        self.state().fails_to_start = fails;
    }

    /// Makes it ignore a `quit`, as with clients that stay.
    pub(super) fn stay_on_quit(&self) {
        self.state().stays = true;
    }

    /// Writes sessions to control.log from now on, as MPS does.
    pub(super) fn log_sessions(&self, log: &Path) {
        self.state().log = Some(log.to_owned());
    }

    /// Sends a command of another program that changes a setting.
    pub(super) fn external(&self, command: &str) {
        self.state().external(command);
    }

    /// Sends a command of another program as soon as the next session is over, before anybody reads its log.
    pub(super) fn external_after_session(&self, command: &str) {
        self.state().next = Some(command.to_owned());
    }

    /// Opens a session whose owner control.log does not show.
    pub(super) fn open_session(&self) {
        self.state().log(&["Accepting connection...", "NEW UI"]);
    }

    /// Kills the control process, and its server with it.
    pub(super) fn kill_daemon(&self) {
        self.state().die();
    }

    /// Kills the server; the daemon then lists none.
    pub(super) fn kill_server(&self) {
        self.state().end_server();
    }

    /// Kills the server during the next command that begins so: the daemon, which has not noticed, then answers nothing.
    pub(super) fn kill_server_during(&self, command: String) {
        self.state().fatal = Some(command);
    }

    /// Returns the PID of the control process, while one runs.
    pub(super) fn control_pid(&self) -> Option<u32> {
        self.state().control.as_ref().map(|process| process.0.id())
    }

    pub(super) fn server_pid(&self) -> Option<u32> {
        self.state().server.as_ref().map(|process| process.0.id())
    }

    /// Returns the times at which control processes were started.
    pub(super) fn starts(&self) -> Vec<Duration> {
        self.state().starts.clone()
    }

    /// Returns the sessions so far, including those that failed.
    pub(super) fn sessions(&self) -> Vec<Transcript> {
        self.state().sessions.clone()
    }

    /// Returns the graces of the `quit`s so far.
    pub(super) fn quits(&self) -> Vec<Option<u32>> {
        self.state().quits.clone()
    }

    /// Answers a command that was sent in the last session.
    fn answer(&self, command: &str) -> Vec<u8> {
        let mut state = self.state();
        state.write(command);
        if let Some(session) = state.sessions.last_mut() {
            session.commands.push(command.to_owned());
        }
        if state.fatal.take_if(|fatal| command.starts_with(fatal.as_str())).is_some() {
            state.server = None;
            return Vec::new();
        }
        let reply = state.replies.get(command).cloned();
        match reply {
            Some(reply) => reply.into_bytes(),
            None if command.starts_with("set_") || command.starts_with("start_server") => Vec::new(),
            None => format!("Unknown command \"{command}\"\n").into_bytes(),
        }
    }
}

impl DaemonState {
    /// Applies a command to the replies of the getters.
    fn write(&mut self, command: &str) {
        if command.starts_with("start_server") {
            return self.start_server();
        }
        let Some((setting, value)) = command.strip_prefix("set_").and_then(|set| set.rsplit_once(' ')) else {
            return;
        };
        let printed = PRINTED.iter().find(|(written, _)| *written == value);
        let (_, printed) = printed.unwrap_or_else(|| panic!("no recorded reply after {command:?}"));
        self.replies.insert(format!("get_{setting}"), (*printed).to_owned());
    }

    fn external(&mut self, command: &str) {
        self.write(command);
        self.log(&["Accepting connection...", "NEW UI", &format!("Cmd:{command}"), "UI closed"]);
    }

    fn start_server(&mut self) {
        let server = Sleeper::new("nvidia-cuda-mps-server");
        let pid = server.0.id();
        self.server = Some(server);
        let default = self.replies["get_default_active_thread_percentage"].clone();
        let limit =
            |ordinal: u32| self.replies[&format!("get_default_device_pinned_mem_limit {ordinal}")].clone();
        let limits =
            [0, 1].map(|ordinal| (format!("get_device_pinned_mem_limit {pid} {ordinal}"), limit(ordinal)));
        for (command, reply) in [
            ("get_server_list".to_owned(), format!("{pid}\n")),
            (format!("get_server_status {pid}"), "ACTIVE\n".to_owned()),
            (format!("get_active_thread_percentage {pid}"), default),
            ("ps".to_owned(), String::new()),
        ]
        .into_iter()
        .chain(limits)
        {
            self.replies.insert(command, reply);
        }
    }

    fn end_server(&mut self) {
        self.server = None;
        self.notice_dead_server();
    }

    fn notice_dead_server(&mut self) {
        for (command, reply) in STARTED.iter().filter(|(command, _)| !command.starts_with("get_default")) {
            self.replies.insert((*command).to_owned(), (*reply).to_owned());
        }
    }

    fn die(&mut self) {
        self.end_server();
        self.control = None;
    }

    fn log(&self, messages: &[&str]) {
        let Some(path) = &self.log else { return };
        let mut file = fs::File::options().append(true).create(true).open(path).expect("control.log");
        for message in messages {
            writeln!(file, "[2026-11-21 02:54:14.673 Control   896] {message}").expect("written");
        }
    }
}

impl ControlProgram for Script {
    fn channel(&self, _: PathBuf) -> Arc<dyn ControlChannel> {
        Arc::new(self.clone())
    }

    fn start<'a>(&'a self, spec: &'a StartSpec) -> BoxFuture<'a, Result<Started, DaemonStartError>> {
        let at = self.elapsed();
        let mut state = self.state();
        state.starts.push(at);
        if state.fails_to_start {
            let (status, output, log_tail) = ("exit status: 1".into(), "no".into(), String::new());
            return Box::pin(async { Err(DaemonStartError::NoDaemon { status, output, log_tail }) });
        }
        fs::write(spec.pipe_directory.join("control"), "").expect("a socket's place");
        state.replies = STARTED.iter().map(|(command, reply)| ((*command).into(), (*reply).into())).collect();
        let control = Sleeper::new("nvidia-cuda-mps-control");
        let identity = identify(control.0.id()).expect("it sleeps");
        state.control = Some(control);
        let pipe_inode = pipe_inode(&spec.pipe_directory).expect("made");
        Box::pin(async move { Ok(Started { identity, pipe_inode, refused: None }) })
    }
}

impl ControlChannel for Script {
    fn session(&self, deadline: Instant) -> Result<Box<dyn ControlSession>, SessionError> {
        let at = self.elapsed();
        self.0.calls.spawned();
        let mut state = self.state();
        if state.server.is_none() {
            state.notice_dead_server();
        }
        state.sessions.push(Transcript { at, commands: Vec::new() });
        Ok(Box::new(ScriptedSession { script: self.clone(), deadline }))
    }

    fn quit(&self, timeout_s: Option<u32>, deadline: Instant) -> BoxFuture<'_, Result<(), SessionError>> {
        let stays = {
            let mut state = self.state();
            state.quits.push(timeout_s);
            if !state.stays {
                state.die();
            }
            state.stays
        };
        Box::pin(async move {
            if stays {
                tokio::time::sleep_until(deadline).await;
                let command = Command::Quit { timeout: timeout_s }.line();
                return Err(SessionError::Unknown { command, cause: NoReplyCause::Deadline });
            }
            Ok(())
        })
    }

    fn in_directory(&self, _: PathBuf) -> Arc<dyn ControlChannel> {
        Arc::new(self.clone())
    }

    fn calls(&self) -> &Calls {
        &self.0.calls
    }
}

struct ScriptedSession {
    script: Script,
    deadline: Instant,
}

impl ScriptedSession {
    async fn exchange(&mut self, command: &Command) -> Result<Vec<u8>, SessionError> {
        let line = command.line();
        let (trouble, pace, control) = {
            let state = self.script.state();
            (state.trouble, state.pace, state.control.as_ref().and_then(|control| identify(control.0.id())))
        };
        let Some(control) = control else { return Err(SessionError::NoDaemon) };
        match trouble {
            Some(SessionFault::Busy) => {
                tokio::time::sleep_until(self.deadline).await;
                let last =
                    "exit status: 1, saying \"Cannot send command to MPS control daemon process\"".into();
                Err(SessionError::Busy { attempts: 40, last, said_so: true })
            }
            Some(SessionFault::Silent) => tokio::select! {
                () = tokio::time::sleep_until(self.deadline) => Err(SessionError::Unresponsive),
                () = death(control) => Err(SessionError::NoDaemon),
            },
            Some(SessionFault::Lost(word)) if line.starts_with(word) => {
                if let Some(session) = self.script.state().sessions.last_mut() {
                    session.commands.push(line.clone());
                }
                tokio::time::sleep_until(self.deadline).await;
                Err(SessionError::Unknown { command: line, cause: NoReplyCause::Deadline })
            }
            _ => {
                tokio::time::sleep(pace).await;
                self.script.0.calls.set_unheard(false);
                Ok(self.script.answer(&line))
            }
        }
    }
}

impl ControlSession for ScriptedSession {
    fn extend(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn send<'a>(&'a mut self, command: &'a Command) -> BoxFuture<'a, Result<Vec<u8>, SessionError>> {
        Box::pin(self.exchange(command))
    }

    fn send_together<'a>(
        &'a mut self,
        commands: &'a [Command],
    ) -> BoxFuture<'a, Result<Vec<Vec<u8>>, SessionError>> {
        Box::pin(async move {
            let mut replies = Vec::new();
            for command in commands {
                replies.push(self.exchange(command).await?);
            }
            Ok(replies)
        })
    }

    fn processes(&self) -> u32 {
        1
    }

    fn close(self: Box<Self>) -> BoxFuture<'static, ()> {
        let mut state = self.script.state();
        state.log(&["Accepting connection...", "NEW UI", "Cmd:zz-00c0ffee00c0ffee-1", "UI closed"]);
        if let Some(command) = state.next.take() {
            state.external(&command);
        }
        drop(state);
        Box::pin(async {})
    }
}
