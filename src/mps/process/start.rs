//! Starting a daemon.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use tokio::time::Instant;

use crate::domain::daemon::Mode;
use crate::domain::{GpuUuid, Inode};
use crate::host::signal::{SignalReason, send};
use crate::host::{Identity, OwnChild, Signal, process};

use super::super::binaries::InstalledProgram;
use super::super::command::Command;
use super::super::log;
use super::super::parse;
use super::super::session::{Control, SessionError};
use super::find::{DaemonSearch, PipeDirectoryOccupant, find, mode, occupant};
use super::{LOG_ENV, PIPE_ENV, TOKEN_ENV, pipe_inode};

/// Pause between two searches for a daemon that is about to appear.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Longest time for which a daemon may stay unseen after `-d` has returned. It has forked by then.
const UNSEEN: Duration = Duration::from_millis(500);
/// Most bytes of a program's output and of a log in an error.
const SHOWN: usize = 4096;

/// A daemon to start.
#[derive(Debug, Clone)]
pub struct StartSpec {
    /// Where its sockets go; see [`super::check_directories`].
    pub pipe_directory: PathBuf,
    /// Where its logs go.
    pub log_directory: PathBuf,
    /// The GPUs that it serves; its ordinals follow this order.
    pub gpus: Vec<GpuUuid>,
    /// Mode of the daemon: static if it serves static SM partitions (`-S`).
    pub mode: Mode,
    /// The option by which clients of several users share one server, where they do.
    pub multi_user: Option<&'static str>,
    /// The value of [`TOKEN_ENV`] that names this start, stored before it.
    pub token: String,
    /// The program that starts it in a place of its own; without one, or if that fails, it is started where this program is.
    pub launcher: Option<Launcher>,
    /// Longest time until it answers.
    pub deadline: Duration,
}

/// A program that executes the command after its own arguments in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, up to the command.
    pub arguments: Vec<OsString>,
}

/// A daemon that runs and answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Started {
    /// Its process.
    pub identity: Identity,
    /// The inode of its pipe directory.
    pub pipe_inode: Inode,
    /// Why it was not started by the launcher that it should have been started by.
    pub refused: Option<String>,
}

/// Why no daemon was started.
#[derive(Debug, thiserror::Error)]
pub enum DaemonStartError {
    /// Another daemon holds the pipe directory. Nothing was started.
    #[error("{} is held by another MPS control daemon{}", directory.display(), described(occupant))]
    Occupied {
        /// The pipe directory.
        directory: PathBuf,
        /// The daemon that holds it.
        occupant: PipeDirectoryOccupant,
    },
    /// The program could not be run.
    #[error("the control daemon cannot be started: {0}")]
    Spawn(io::Error),
    /// The program returned and left no daemon behind.
    #[error("the control program ended ({status}) and left no daemon{}", shown(output, log_tail))]
    NoDaemon {
        /// Exit status of the program, which says nothing by itself.
        status: String,
        /// The program's output.
        output: String,
        /// The end of control.log.
        log_tail: String,
    },
    /// A daemon came and went.
    #[error("the control daemon died while it started{}", shown(output, log_tail))]
    Died {
        /// The program's output.
        output: String,
        /// The end of control.log.
        log_tail: String,
    },
    /// A daemon came and did not answer in time; it was killed.
    #[error("the control daemon gave no answer in time ({waiting}){}", shown(output, log_tail))]
    Silent {
        /// The event that was being waited for.
        waiting: String,
        /// The program's output.
        output: String,
        /// The end of control.log.
        log_tail: String,
    },
    /// A daemon came in another mode than requested; it was killed.
    #[error("the control daemon came in another mode than it was started in{}", shown(output, log_tail))]
    OtherMode {
        /// The program's output.
        output: String,
        /// The end of control.log.
        log_tail: String,
    },
    /// Something has the token and is not the daemon. What had it before is left alone; what came by this start
    /// was killed.
    #[error("{reason}")]
    Doubtful {
        /// The contradiction.
        reason: String,
    },
}

fn described(occupant: &PipeDirectoryOccupant) -> String {
    match (occupant.pid, occupant.uid) {
        (Some(pid), Some(uid)) => format!(" (process {pid} of uid {uid})"),
        (Some(pid), None) => format!(" (process {pid})"),
        _ => String::new(),
    }
}

fn shown(output: &str, log_tail: &str) -> String {
    let part = |name: &str, text: &str| {
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!("; {name}: {text}") }
    };
    format!("{}{}", part("output", output), part("control.log", log_tail))
}

/// Starts a daemon with `-d` and waits until it answers.
///
/// The daemon leaves this program's session by itself. Should the future be dropped, or this program die, it may
/// be running all the same: [`find`] decides by the token.
pub async fn start(program: &InstalledProgram, spec: &StartSpec) -> Result<Started, DaemonStartError> {
    if let Some(occupant) = occupant(&spec.pipe_directory) {
        return Err(DaemonStartError::Occupied { directory: spec.pipe_directory.clone(), occupant });
    }
    if let Some(id) = process::find_by_env(TOKEN_ENV, &spec.token).first() {
        return Err(DaemonStartError::Doubtful {
            reason: format!("process {} has the token of this start already", id.pid),
        });
    }
    let until = Instant::now() + spec.deadline;
    let mut refused = None;
    if let Some(launcher) = &spec.launcher {
        let deadline = until.min(Instant::now() + spec.deadline / 2);
        let mut output = Output::new().map_err(DaemonStartError::Spawn)?;
        refused = match run(program, spec, Some(launcher), &output, deadline).await {
            Ok(Some(status)) if status.success() => {
                return answering(program, spec, status, output, until, None).await;
            }
            Ok(Some(status)) => Some(format!("{status}{}", shown(&output.text(), ""))),
            Ok(None) => Some("it did not end in time".to_owned()),
            Err(error) => Some(error.to_string()),
        }
        .map(|why| format!("{} failed: {why}", launcher.program.display()));
        abandon(spec);
    }
    let mut output = Output::new().map_err(DaemonStartError::Spawn)?;
    match run(program, spec, None, &output, until).await.map_err(DaemonStartError::Spawn)? {
        Some(status) => answering(program, spec, status, output, until, refused).await,
        None => {
            abandon(spec);
            Err(spec.silent("-d did not return", &mut output))
        }
    }
}

/// Runs the program with `-d` to its end; `None` when it did not come in time, and was killed.
async fn run(
    program: &InstalledProgram,
    spec: &StartSpec,
    launcher: Option<&Launcher>,
    output: &Output,
    until: Instant,
) -> io::Result<Option<ExitStatus>> {
    let mut child = launch(program, spec, launcher, output)?;
    match tokio::time::timeout_at(until, child.wait()).await {
        Ok(status) => status.map(Some),
        Err(_) => {
            child.end_now().await;
            Ok(None)
        }
    }
}

/// Waits until the daemon that `-d` left behind answers.
async fn answering(
    program: &InstalledProgram,
    spec: &StartSpec,
    status: ExitStatus,
    mut output: Output,
    until: Instant,
    refused: Option<String>,
) -> Result<Started, DaemonStartError> {
    let identity = match appeared(spec, until).await {
        // Its starter has ended, so this is the daemon even if it stayed in this program's session.
        DaemonSearch::Ours(identity) | DaemonSearch::Starting(identity) => identity,
        DaemonSearch::Doubtful { reason } => {
            abandon(spec);
            return Err(DaemonStartError::Doubtful { reason });
        }
        DaemonSearch::None => {
            abandon(spec);
            let (output, log_tail) = spec.words(&mut output);
            return Err(DaemonStartError::NoDaemon { status: status.to_string(), output, log_tail });
        }
    };
    // The exit code does not show that an option was not understood.
    if mode(identity.pid) != spec.mode {
        abandon(spec);
        let (output, log_tail) = spec.words(&mut output);
        return Err(DaemonStartError::OtherMode { output, log_tail });
    }
    match answers(program, spec, identity, until).await {
        Ok(()) => {}
        Err(waiting) => {
            let died = !process::is_alive(identity);
            abandon(spec);
            if died {
                let (output, log_tail) = spec.words(&mut output);
                return Err(DaemonStartError::Died { output, log_tail });
            }
            return Err(spec.silent(&waiting, &mut output));
        }
    }
    let pipe_inode = pipe_inode(&spec.pipe_directory).map_err(DaemonStartError::Spawn)?;
    Ok(Started { identity, pipe_inode, refused })
}

fn launch(
    program: &InstalledProgram,
    spec: &StartSpec,
    launcher: Option<&Launcher>,
    output: &Output,
) -> io::Result<OwnChild> {
    let gpus: Vec<&str> = spec.gpus.iter().map(GpuUuid::as_str).collect();
    let mut command = match launcher {
        None => tokio::process::Command::new(&program.path),
        Some(launcher) => {
            let mut command = tokio::process::Command::new(&launcher.program);
            command.args(&launcher.arguments).arg(&program.path);
            command
        }
    };
    command.arg("-d");
    if spec.mode == Mode::Static {
        command.arg("-S");
    }
    command.args(spec.multi_user);
    command
        .env_clear()
        .envs(program.environment())
        .env(PIPE_ENV, &spec.pipe_directory)
        .env(LOG_ENV, &spec.log_directory)
        .env("CUDA_VISIBLE_DEVICES", gpus.join(","))
        .env(TOKEN_ENV, &spec.token)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output.end()?)
        .stderr(output.end()?);
    OwnChild::spawn(&mut command)
}

/// Waits for the daemon's process, which exists by the time that `-d` returns.
async fn appeared(spec: &StartSpec, until: Instant) -> DaemonSearch {
    let until = until.min(Instant::now() + UNSEEN);
    loop {
        let search = find(&spec.token, &spec.pipe_directory);
        if matches!(search, DaemonSearch::Ours(_)) || Instant::now() >= until {
            return search;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Waits until a session gets an answer; says what it was still waiting for when the time is over.
async fn answers(
    program: &InstalledProgram,
    spec: &StartSpec,
    identity: Identity,
    until: Instant,
) -> Result<(), String> {
    let control = Control::new(program, spec.pipe_directory.clone());
    let mut last = "its socket".to_owned();
    let asking = async {
        loop {
            match ask(&control, until).await {
                Ok(()) => return,
                Err(error) => last = error.to_string(),
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    let answered = tokio::select! {
        answered = tokio::time::timeout_at(until, asking) => answered.is_ok(),
        () = process::death(identity) => false,
    };
    if answered { Ok(()) } else { Err(last) }
}

async fn ask(control: &Control, until: Instant) -> Result<(), SessionError> {
    let mut session = control.session(until)?;
    let reply = session.send(&Command::GetServerList).await?;
    session.close().await;
    if let Err(error) = parse::server_list(&reply) {
        tracing::warn!(%error, "a daemon that was just started answers strangely");
    }
    Ok(())
}

/// Kills what this start has left running, and nothing else will ever find: nothing had its token before.
fn abandon(spec: &StartSpec) {
    kill_all_of(&spec.token);
}

/// Ends every process that has the token of a start, and waits for its death.
pub async fn end_all_of(token: &str) {
    let dying = kill_all_of(token).into_iter().map(process::death);
    let _ = tokio::time::timeout(UNSEEN, futures_util::future::join_all(dying)).await;
}

fn kill_all_of(token: &str) -> Vec<Identity> {
    let processes = process::find_by_env(TOKEN_ENV, token);
    for id in &processes {
        if let Err(error) = send(*id, Signal::KILL, SignalReason::FailedStart) {
            tracing::warn!(pid = id.pid, %error, "a process of a failed start is left over");
        }
    }
    processes
}

impl StartSpec {
    fn silent(&self, waiting: &str, output: &mut Output) -> DaemonStartError {
        let (output, log_tail) = self.words(output);
        DaemonStartError::Silent { waiting: waiting.to_owned(), output, log_tail }
    }

    fn words(&self, output: &mut Output) -> (String, String) {
        (output.text(), log::tail(&self.log_directory.join("control.log"), SHOWN))
    }
}

/// Output of a program, in memory and not through a pipe: the daemon may keep its end open for as long as it lives, and must not die of
/// a closed pipe when this program ends.
struct Output(File);

impl Output {
    fn new() -> io::Result<Self> {
        Ok(Self(memfd_create("mps-control-output", MemfdFlags::CLOEXEC)?.into()))
    }

    fn end(&self) -> io::Result<Stdio> {
        Ok(self.0.try_clone()?.into())
    }

    fn text(&mut self) -> String {
        let mut bytes = Vec::new();
        let read = self.0.rewind().and_then(|()| (&self.0).take(SHOWN as u64).read_to_end(&mut bytes));
        if let Err(error) = read {
            tracing::debug!(%error, "a program's output is lost");
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
