//! Evidence from /proc and the file system for diagnosing a daemon, and resources that run out slowly.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use super::evidence::{DiagnosisEvidence, FileShortage, LogEvidence, Pipes, ResourceShortages};
use super::poll_outcome::PollOutcome;
use crate::domain::Inode;
use crate::domain::client::ClientFacts;
use crate::host::{Identity, process};
use crate::mps::process::{self as daemon, ForeignCaller, SOCKET, callers};

/// Time for which other callers are watched. [`PAUSE`] is the pause between two looks: each caller lives for some milliseconds.
const WATCHED: Duration = Duration::from_millis(250);
const PAUSE: Duration = Duration::from_millis(10);
/// Room on the file system of the logs below which it counts as full: enough for both logs at their bound.
const LOG_ROOM: u64 = 8 << 20;
/// Percentage of the files that a process may open beyond which a shortage is reported.
const OPEN_PERCENT: u64 = 90;

/// Gathers evidence that may explain a failed poll. Blocks for up to a quarter of a second.
pub(crate) fn gather(
    outcome: &PollOutcome,
    pipe_directory: &Path,
    pipe_inode: Option<Inode>,
    control: Identity,
    clients: &[ClientFacts],
    logged: &LogEvidence,
) -> DiagnosisEvidence {
    let mut evidence =
        DiagnosisEvidence { pipes: pipes(pipe_directory, pipe_inode), ..DiagnosisEvidence::default() };
    match outcome {
        PollOutcome::Busy(_) | PollOutcome::Mute(_) if evidence.pipes == Pipes::Whole => {
            watch_callers(&mut evidence, pipe_directory, control);
        }
        PollOutcome::Unanswered(_) => {
            evidence.stopped = own(control).filter(|(_, pid)| process::is_stopped(*pid)).collect();
            let clients_of_it = clients.iter().map(|client| client.id.pid);
            evidence.stopped_clients = clients_of_it.filter(|pid| process::is_stopped(*pid)).collect();
            evidence.files = near_their_limit(own(control));
            evidence.servers = daemon::servers(control.pid);
            let hangs = |server: &&Identity| logged.hung.contains(&server.pid);
            evidence.hung = evidence.servers.iter().filter(hangs).copied().collect();
            evidence.waiting.clone_from(&logged.waiting);
            evidence.waited = logged.waited;
            let about = if evidence.hung.is_empty() { &evidence.servers } else { &evidence.hung };
            let all_followed = about.iter().all(|server| logged.followed.contains(&server.pid));
            evidence.connected = all_followed.then(|| connected(clients, logged, about));
        }
        _ => {}
    }
    evidence
}

/// Checks a pipe directory against the inode of the one that its daemon was started with.
pub(crate) fn pipes(directory: &Path, started_with: Option<Inode>) -> Pipes {
    let present = daemon::pipe_inode(directory).ok();
    let is_it = |started_with| present.is_some_and(|present| present.is_same(started_with));
    if !started_with.is_none_or(is_it) {
        return Pipes::Lost(format!("its pipe directory {} was removed or replaced", directory.display()));
    }
    let socket = directory.join(SOCKET);
    // Only a clear answer counts: a socket that cannot be examined is not gone.
    match std::fs::symlink_metadata(&socket) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Pipes::Lost(format!("its socket {} was removed", socket.display()))
        }
        _ => Pipes::Whole,
    }
}

fn watch_callers(evidence: &mut DiagnosisEvidence, pipe_directory: &Path, control: Identity) {
    let began = Instant::now();
    let first = callers(pipe_directory, control);
    let mut last = first.clone();
    let mut all: Vec<ForeignCaller> = first.clone();
    while began.elapsed() < WATCHED {
        std::thread::sleep(PAUSE);
        last = callers(pipe_directory, control);
        for caller in &last {
            if !all.iter().any(|listed| listed.identity == caller.identity) {
                all.push(caller.clone());
            }
        }
    }
    let there = |list: &[ForeignCaller], id: Identity| list.iter().any(|caller| caller.identity == id);
    evidence.held =
        first.iter().map(|caller| caller.identity).filter(|identity| there(&last, *identity)).collect();
    evidence.callers = all;
}

/// Returns the living processes that have a context in one of these servers: those of the last poll, and those that came
/// since. A process that waits for a context has no work to lose.
fn connected(clients: &[ClientFacts], logged: &LogEvidence, servers: &[Identity]) -> Vec<u32> {
    let is_one = |pid: u32| servers.iter().any(|server| server.pid == pid);
    let listed = clients
        .iter()
        .filter(|client| is_one(client.server) && process::is_alive(client.id.into()))
        .map(|client| client.id.pid);
    let since = logged
        .connected
        .iter()
        .filter(|(pid, server)| is_one(*server) && process::identify(*pid).is_some())
        .map(|(pid, _)| *pid);
    let gone = |pid: &u32| logged.left.contains(pid) || logged.waiting.contains(pid);
    let all: BTreeSet<u32> = listed.chain(since).filter(|pid| !gone(pid)).collect();
    all.into_iter().collect()
}

/// Returns the daemon's own processes, each with its kind.
fn own(control: Identity) -> impl Iterator<Item = (&'static str, u32)> {
    let servers = daemon::servers(control.pid).into_iter().map(|server| ("server", server.pid));
    std::iter::once(("control daemon", control.pid)).chain(servers)
}

/// Returns those of these processes that are near their limit on open files. A daemon that may open 24 answers nobody once it
/// has a server (recording 13).
fn near_their_limit(processes: impl Iterator<Item = (&'static str, u32)>) -> Vec<FileShortage> {
    processes
        .filter_map(|(what, pid)| {
            let (open, limit) = process::open_files(pid)?;
            let many = limit / 100 * OPEN_PERCENT + limit % 100 * OPEN_PERCENT / 100;
            (open >= many).then_some(FileShortage { what, pid, open, limit })
        })
        .collect()
}

/// Searches for shortages, by some system calls only.
pub(crate) fn shortages(log_directory: &Path, processes: &[(&'static str, u32)]) -> ResourceShortages {
    let room = rustix::fs::statvfs(log_directory).ok().map(|files| {
        // A file system with a limited number of files may have none left.
        let out_of_files = files.f_files > 0 && files.f_ffree == 0;
        if out_of_files { 0 } else { files.f_bavail.saturating_mul(files.f_frsize) }
    });
    ResourceShortages {
        log_room: room.filter(|room| *room < LOG_ROOM),
        files: near_their_limit(processes.iter().copied()),
    }
}
