//! Which commands a control program knows, by a daemon of it that is started to be asked.
//!
//! A daemon without clients starts no server and touches no GPU, and one answers `Unknown command "word"` to what it lacks (recording
//! 22). It runs in a directory of its own that nobody is told of, and is ended at once. What it knew is kept by the program's file, so
//! that the next start asks nothing.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::super::binaries::InstalledProgram;
use super::super::command::{Command, DeviceSelector};
use super::super::parse::{self, ParseError};
use super::super::process::{DaemonStartError, StartSpec, end_all_of, start, stop};
use super::super::session::{Control, SessionError};
use super::error::ProbeError;
use crate::domain::Priority;
use crate::domain::daemon::Mode;

/// Longest time for the daemon to start, and for its answers.
const DEADLINE: Duration = Duration::from_secs(10);
/// A server that no daemon has: commands that name it change nothing.
const NO_SERVER: u32 = 1;
/// The option for several users of a program that does not describe itself (recorded with driver 555).
pub(super) const MULTI_USER: &str = "-multiuser-server";

/// Commands and options that a control program knew when a daemon of it was asked.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownCommands {
    program: PathBuf,
    /// Its file: device, inode, size, and time of the last change in nanoseconds.
    file: (u64, u64, u64, i128),
    /// The commands that it was asked, since a later manager may ask more.
    asked: BTreeSet<String>,
    commands: BTreeSet<String>,
    options: BTreeSet<String>,
}

/// The commands that a control program takes, and of its options those on which something depends.
pub(super) async fn commands(
    program: &InstalledProgram,
    place: &Path,
) -> Result<(BTreeSet<String>, BTreeSet<String>), ProbeError> {
    let failed = |why: String| ProbeError::NotAsked { path: program.path.clone(), why };
    let file = identity(&program.path).map_err(|error| failed(error.to_string()))?;
    let kept = place.with_extension("json");
    let read = fs::read(&kept).ok().and_then(|text| serde_json::from_slice::<KnownCommands>(&text).ok());
    let asked = words();
    let is_current =
        |saved: &KnownCommands| saved.program == program.path && saved.file == file && saved.asked == asked;
    if let Some(saved) = read.filter(is_current) {
        return Ok((saved.commands, saved.options));
    }
    let answered = ask_daemon(program, place).await;
    // Nothing of it is needed any more, whatever came of it.
    let _ = fs::remove_dir_all(place);
    let (commands, options) = answered.map_err(failed)?;
    let answer = KnownCommands { program: program.path.clone(), file, asked, commands, options };
    let text = serde_json::to_vec(&answer).unwrap_or_default();
    if let Err(error) = fs::write(&kept, text) {
        tracing::debug!(path = %kept.display(), %error, "what the control program knows is asked again at the next start");
    }
    Ok((answer.commands, answer.options))
}

fn identity(path: &Path) -> io::Result<(u64, u64, u64, i128)> {
    let file = fs::metadata(path)?;
    let changed = i128::from(file.mtime()) * 1_000_000_000 + i128::from(file.mtime_nsec());
    Ok((file.dev(), file.ino(), file.size(), changed))
}

async fn ask_daemon(
    program: &InstalledProgram,
    place: &Path,
) -> Result<(BTreeSet<String>, BTreeSet<String>), String> {
    let token = format!("asked in {}", place.display());
    // A manager that was killed meanwhile has left one.
    end_all_of(&token).await;
    let (pipe_directory, log_directory) = (place.join("pipe"), place.join("log"));
    let make = || {
        let _ = fs::remove_dir_all(place);
        let mut builder = fs::DirBuilder::new();
        builder.mode(0o700);
        [place, &pipe_directory, &log_directory].into_iter().try_for_each(|path| builder.create(path))
    };
    make().map_err(|error| format!("{}: {error}", place.display()))?;
    let spec = StartSpec {
        pipe_directory: pipe_directory.clone(),
        log_directory,
        gpus: Vec::new(),
        mode: Mode::Shared,
        multi_user: Some(MULTI_USER),
        token: token.clone(),
        launcher: None,
        deadline: DEADLINE,
    };
    // Up to CUDA 12.4 an option that it does not know makes it overlook all of them, and no daemon starts.
    let (started, knows_option) = match start(program, &spec).await {
        Ok(started) => (started, true),
        // Another user than root is told that only root may have it.
        Err(refused @ DaemonStartError::NoDaemon { .. }) => {
            let knows_option = refused.to_string().contains(MULTI_USER);
            let started = start(program, &StartSpec { multi_user: None, ..spec }).await;
            (started.map_err(|error: DaemonStartError| error.to_string())?, knows_option)
        }
        // That it was late, say, says nothing of what it knows.
        Err(error) => return Err(error.to_string()),
    };
    let control = Control::new(program, pipe_directory);
    let asked = ask(&control).await.map_err(|error| error.to_string());
    let stopped = stop(&control, started.identity, 0).await;
    // Also one that did not go on request.
    end_all_of(&token).await;
    let commands = asked?;
    stopped.map_err(|error| error.to_string())?;
    Ok((commands, knows_option.then(|| MULTI_USER.to_owned()).into_iter().collect()))
}

/// Each command that can be missing, with arguments that change nothing; that which runs alone is the last.
fn commands_to_ask() -> Vec<Command> {
    let device = || DeviceSelector::Ordinal(0);
    let server = NO_SERVER;
    vec![
        Command::GetServerList,
        Command::GetServerStatus { server },
        Command::GetClientList { server },
        Command::GetDeviceClientList { server: None },
        Command::Ps { server: None },
        Command::DeviceQuery { server: None },
        Command::Lspart,
        Command::GetDefaultThreadPercentage,
        Command::GetThreadPercentage { server },
        Command::GetDefaultMemoryLimit { device: device() },
        Command::SetDefaultMemoryLimit { device: device(), limit: None },
        Command::GetMemoryLimit { server, device: device() },
        Command::SetMemoryLimit { server, device: device(), limit: None },
        Command::GetDefaultPriority,
        Command::SetDefaultPriority(Priority::Normal),
        Command::ShutdownServer { server },
        Command::TerminateClient { server, client: NO_SERVER },
    ]
}

fn words() -> BTreeSet<String> {
    commands_to_ask().iter().map(word).collect()
}

fn word(command: &Command) -> String {
    command.line().split(' ').next().unwrap_or_default().to_owned()
}

/// Asks a daemon what it knows.
async fn ask(control: &Control) -> Result<BTreeSet<String>, SessionError> {
    let mut commands = BTreeSet::new();
    let mut session = control.session(Instant::now() + DEADLINE)?;
    for command in commands_to_ask() {
        if command.runs_alone() {
            session.close().await;
            session = control.session(Instant::now() + DEADLINE)?;
        }
        let reply = session.send(&command).await?;
        if !matches!(parse::silent(&reply), Err(ParseError::UnknownCommand { .. })) {
            commands.insert(word(&command));
        }
    }
    session.close().await;
    Ok(commands)
}
