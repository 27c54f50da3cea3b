//! Finding a daemon: our own by its token, a foreign one by its pipe directory.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::domain::Inode;
use crate::domain::daemon::Mode;
use crate::host::process::variable;
use crate::host::signal::runs;
use crate::host::{Identity, process};

use super::super::binaries::CONTROL;
use super::{PID_FILE, PIPE_ENV, SOCKET, TOKEN_ENV, pipe_inode};

/// The result of the search for our own daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DaemonSearch {
    /// It runs, and everything agrees.
    Ours(Identity),
    /// No process has the token, but for servers that outlived their daemon ([`orphans`]).
    None,
    /// A control program is still starting the daemon: the program that ran it may have died meanwhile. Search again.
    Starting(Identity),
    /// Something has the token and something else does not agree: touch nothing, and say so.
    Doubtful {
        /// The contradiction.
        reason: String,
    },
}

/// Facts of a daemon that were stored when it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedProcess {
    /// Its process.
    pub identity: Identity,
    /// The inode of its pipe directory.
    pub pipe_inode: Inode,
}

/// A daemon that holds a pipe directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PipeDirectoryOccupant {
    /// Its process; `None` when something answers at the socket and its process is not known.
    pub pid: Option<u32>,
    /// Its uid.
    pub uid: Option<u32>,
    /// The token in its environment, where it is a daemon of a manager.
    pub ours: Option<String>,
}

/// Searches all processes for the daemon that was started with `token` in `pipe_directory`.
///
/// It is ours when its command line is the control program's, its uid is ours, and the pipe directory in its
/// environment is this one. Servers inherit the token; they are no control programs. Nor is the program that starts
/// the daemon: it ends as soon as that answers, and only the daemon leads a session (recording 01).
///
/// That nothing was found is confirmed by a second search. A daemon is forked by a program that ends then: a search that lists
/// the processes before the fork and reads that program after its end sees neither.
pub fn find(token: &str, pipe_directory: &Path) -> DaemonSearch {
    match search(token, pipe_directory) {
        DaemonSearch::None => search(token, pipe_directory),
        result => result,
    }
}

fn search(token: &str, pipe_directory: &Path) -> DaemonSearch {
    let marked = process::find_by_env(TOKEN_ENV, token);
    let controls: Vec<Identity> = marked.iter().copied().filter(|id| is_control(id.pid)).collect();
    // While a daemon forks a server, that child still looks like the daemon.
    let daemons: Vec<Identity> = controls
        .iter()
        .copied()
        .filter(|id| {
            let parent = process::parent(id.pid);
            !controls.iter().any(|other| Some(other.pid) == parent)
        })
        .collect();
    let doubtful = |reason: String| DaemonSearch::Doubtful { reason };
    match daemons.as_slice() {
        [] => {
            // It may be a script, and what it runs before it becomes the daemon has the token too.
            let launcher = marked.iter().find(|id| is_launcher(id.pid));
            match (launcher, marked.iter().find(|id| !is_server(id.pid))) {
                (Some(launcher), _) => DaemonSearch::Starting(*launcher),
                (None, Some(process)) => doubtful(format!(
                    "process {} has the daemon's token and is not a control daemon",
                    process.pid
                )),
                (None, None) => DaemonSearch::None,
            }
        }
        [daemon] => match objection(*daemon, pipe_directory) {
            // One that has ended by now leads none either: it may have been the program that starts the daemon.
            None if !process::leads_session(daemon.pid) => DaemonSearch::Starting(*daemon),
            None => DaemonSearch::Ours(*daemon),
            Some(reason) => doubtful(reason),
        },
        several => {
            let pids: Vec<String> = several.iter().map(|id| id.pid.to_string()).collect();
            doubtful(format!("processes {} all have the daemon's token", pids.join(", ")))
        }
    }
}

/// Searches as [`find`] does, and compares with what was stored of the daemon.
pub fn find_recorded(token: &str, pipe_directory: &Path, recorded: RecordedProcess) -> DaemonSearch {
    let search = find(token, pipe_directory);
    let DaemonSearch::Ours(identity) = search else { return search };
    let inode = pipe_inode(pipe_directory).ok();
    if identity != recorded.identity {
        return DaemonSearch::Doubtful {
            reason: format!(
                "process {identity} has the daemon's token, and {} was stored",
                recorded.identity
            ),
        };
    }
    if !inode.is_some_and(|inode| inode.is_same(recorded.pipe_inode)) {
        return DaemonSearch::Doubtful { reason: moved(pipe_directory, recorded.pipe_inode, inode) };
    }
    search
}

/// Searches for a daemon that was started outside this manager and that was adopted: it carries no token, so its PID and start
/// time name it, and its command and its pipe directory must still be what they were.
///
/// `of_anybody` is for one that is only observed; one that is managed is of our own uid.
pub fn find_adopted(pipe_directory: &Path, recorded: RecordedProcess, of_anybody: bool) -> DaemonSearch {
    let Identity { pid, .. } = recorded.identity;
    if !process::is_alive(recorded.identity) {
        // The number may be another program's by now; that process is none of ours.
        return DaemonSearch::None;
    }
    let doubtful = |reason: String| DaemonSearch::Doubtful { reason };
    if !is_control(pid) {
        return doubtful(format!(
            "process {pid} was adopted as a control daemon and runs something else now"
        ));
    }
    let me = rustix::process::geteuid().as_raw();
    if !of_anybody && process::uid(pid) != Some(me) {
        return doubtful(format!("process {pid} was adopted and has another uid than {me}"));
    }
    match pipe_inode(pipe_directory).ok() {
        Some(inode) if inode.is_same(recorded.pipe_inode) => DaemonSearch::Ours(recorded.identity),
        inode => doubtful(moved(pipe_directory, recorded.pipe_inode, inode)),
    }
}

fn moved(pipe_directory: &Path, recorded: Inode, now: Option<Inode>) -> String {
    format!(
        "{} is not the directory that the daemon was started in (inode {recorded}, now {})",
        pipe_directory.display(),
        now.map_or_else(|| "none".to_owned(), |inode| inode.to_string()),
    )
}

/// The servers that outlived the daemon with this token: most follow it by themselves, but one that hangs keeps its
/// memory on the GPU forever (seen on 13.0).
pub fn orphans(token: &str) -> Vec<Identity> {
    process::find_by_env(TOKEN_ENV, token).into_iter().filter(|id| is_server(id.pid)).collect()
}

/// The server processes of a daemon: its children that run the server program.
pub fn servers(daemon: u32) -> Vec<Identity> {
    process::children(daemon).into_iter().filter(|id| is_server(id.pid)).collect()
}

/// Returns the reason why a process cannot be our daemon of this directory; `None` if nothing contradicts it.
fn objection(daemon: Identity, pipe_directory: &Path) -> Option<String> {
    let Identity { pid, .. } = daemon;
    let me = rustix::process::geteuid().as_raw();
    let uid = process::uid(pid);
    if uid != Some(me) {
        return Some(format!("process {pid} has the daemon's token and another uid than {me}"));
    }
    let pipe = variable(pid, PIPE_ENV);
    if !pipe.as_deref().is_some_and(|pipe| is_same_directory(Path::new(pipe), pipe_directory)) {
        let pipe = pipe.unwrap_or_default();
        return Some(format!(
            "process {pid} has the daemon's token and the pipe directory {} instead of {}",
            Path::new(&pipe).display(),
            pipe_directory.display()
        ));
    }
    None
}

/// Finds the holder of a pipe directory: a control daemon by its pid file, or any process that answers at its socket.
///
/// The pid file can be forged, so `/proc` has the last word on it; a socket that accepts or is too busy to is a daemon whatever the pid
/// file says. Stale files after a `kill -9` are no occupant (recording 02).
pub fn occupant(pipe_directory: &Path) -> Option<PipeDirectoryOccupant> {
    let by_file = daemon_of_pid_file(pipe_directory);
    let by_socket = answering(&pipe_directory.join(SOCKET));
    if by_file.is_none() && by_socket == Socket::Silent {
        return None;
    }
    let by_socket = match by_socket {
        Socket::Answers { pid } => pid.filter(|pid| is_control(*pid)),
        Socket::Silent => None,
    };
    let pid = by_socket.or(by_file);
    Some(PipeDirectoryOccupant {
        pid,
        uid: pid.and_then(process::uid),
        ours: pid.and_then(|pid| variable(pid, TOKEN_ENV)).and_then(|token| token.into_string().ok()),
    })
}

/// The control daemon that the pid file names, if it lives and has that pipe directory.
pub fn daemon_of_pid_file(pipe_directory: &Path) -> Option<u32> {
    let path = pipe_directory.join(PID_FILE);
    // Everybody may write it, and it could be a FIFO by now.
    fs::symlink_metadata(&path).ok().filter(|file| file.is_file() && file.len() < 32)?;
    let pid: u32 = fs::read_to_string(&path).ok()?.trim().parse().ok()?;
    process::identify(pid)?;
    let is_here =
        variable(pid, PIPE_ENV).is_none_or(|pipe| is_same_directory(Path::new(&pipe), pipe_directory));
    (is_control(pid) && is_here).then_some(pid)
}

/// Result of a try to connect to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Socket {
    Answers {
        /// The PID that began to listen, where the kernel reports it.
        pid: Option<u32>,
    },
    Silent,
}

/// Returns true if something listens at a socket; connects to find out.
pub fn is_listened_at(socket: &Path) -> bool {
    answering(socket) != Socket::Silent
}

/// Tries a socket.
///
/// Connecting and leaving is what any client does first (`User did not send valid credentials`, recording 01).
fn answering(path: &Path) -> Socket {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    let Some(address) = SocketAddrUnix::new(path).ok().filter(|_| is_socket) else { return Socket::Silent };
    for kind in [SocketType::STREAM, SocketType::SEQPACKET] {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = socket_with(AddressFamily::UNIX, kind, flags, None) else { break };
        match connect(&socket, &address) {
            Ok(()) => {
                let peer = sockopt::socket_peercred(&socket).ok();
                return Socket::Answers { pid: peer.map(|peer| peer.pid.as_raw_pid().unsigned_abs()) };
            }
            // The queue of a daemon that hangs is full.
            Err(Errno::AGAIN) => return Socket::Answers { pid: None },
            Err(Errno::PROTOTYPE) => {}
            Err(_) => break,
        }
    }
    Socket::Silent
}

/// Returns true if a process runs the control program: by the name it was called by, a wrapper's interpreter allowed.
pub(super) fn is_control(pid: u32) -> bool {
    runs(pid, CONTROL)
}

/// The mode that a control daemon was started in, by its command line.
pub fn mode(pid: u32) -> Mode {
    mode_of(&process::command(pid).unwrap_or_default())
}

/// The mode that these words of a command line ask for.
pub(super) fn mode_of(words: &[String]) -> Mode {
    let is_static = words.iter().any(|word| word == "-S" || word == "--static-partitioning");
    if is_static { Mode::Static } else { Mode::Shared }
}

/// Returns true if a process is about to execute the control program in its place, as `systemd-run --scope` does.
fn is_launcher(pid: u32) -> bool {
    let words = process::command(pid).unwrap_or_default();
    words.iter().skip(2).any(|word| Path::new(word).file_name() == Some(OsStr::new(CONTROL)))
}

pub(super) fn is_server(pid: u32) -> bool {
    runs(pid, super::super::binaries::SERVER)
}

/// Returns true if two paths lead to one directory.
pub fn is_same_directory(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| -> io::Result<(u64, u64)> {
        let metadata = fs::metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    };
    one == other || matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}
