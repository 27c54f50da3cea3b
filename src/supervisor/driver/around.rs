//! What a driver notices around its daemon: deaths, lost pipes, what runs out, and why a look failed.

use std::path::Path;
use std::time::Duration;

use super::super::logs::Logs;
use super::super::look;
use super::super::state::{Look, Obstacle};
use super::super::told::died_in_session;
use super::super::trouble::{self, Evidence, Pipes, Trouble, log_disk_full, pipes_lost};
use super::super::witness::{self, Hints};
use super::Driver;
use crate::clock::unix_ms;
use crate::domain::Inode;
use crate::domain::gpu::GpuUuid;
use crate::domain::plan::Desired;
use crate::host::process::death;
use crate::host::{self, Identity, Signal};
use crate::mps::log;
use crate::mps::process::foreign::stranded;
use crate::mps::process::{self as daemon, StartError};

/// How much of a dead daemon's log is kept for the operator.
const LAST_WORDS: usize = 2048;
/// How much of it is searched for the session in which it died.
const LAST_SESSION: usize = 64 * 1024;
/// How long the servers of a dead daemon get to follow it by themselves.
const ORPHANS_END: Duration = Duration::from_secs(2);

impl Driver {
    /// A start failed: by what ran out, if something did, which is no failure of the daemon's and is looked at again;
    /// else it counts for the back-off.
    pub(super) fn did_not_start(&mut self, error: &StartError) {
        let now = unix_ms();
        let shortages = witness::shortages(&self.log_directory, &[]);
        let obstacle = match (error, shortages.log_room) {
            (StartError::Spawn(cause), _) if look::out_of_files(cause) => {
                trouble::name(&Look::NoFiles(cause.to_string()), &Evidence::default())
            }
            (_, Some(room)) => Some(Trouble {
                reason: "LogDiskFull",
                message: format!("{error}; {}", log_disk_full(&self.log_directory, room)),
            }),
            _ => None,
        };
        match obstacle {
            Some(Trouble { reason, message }) => self.state.blocked(Obstacle { reason, message }, now),
            None => {
                self.state.failed(Trouble { reason: "DiedOrDidNotStart", message: error.to_string() }, now);
            }
        }
    }

    /// After a look that saw everything: who waits, and what runs out.
    pub(super) fn see_around(&mut self, desired: &Desired) {
        let listed = self.state.seen.iter().flat_map(|seen| &seen.servers).map(|server| server.pid);
        self.logs.looked(listed);
        self.logs.prune();
        if self.state.drift.present {
            self.state.drift.command = self.logs.told().foreign().map(str::to_owned);
        }
        let Some(seen) = &self.state.seen else { return };
        self.state.queue = if desired.multi_user { Vec::new() } else { self.logs.queue(seen, &self.clients) };
        let control = self.state.process.iter().map(|process| ("control daemon", process.identity.pid));
        let servers = seen.servers.iter().map(|server| ("server", server.pid));
        let processes: Vec<_> = control.chain(servers).collect();
        self.state.shortages = witness::shortages(&self.log_directory, &processes);
    }

    /// Finds out why a look failed, and names it; ends a server that hangs and serves nobody.
    pub(super) async fn explain(&mut self, look: Look) {
        let Some(process) = &self.state.process else { return };
        let (directory, control) = (self.pipe_directory.clone(), process.identity);
        let (inode, clients) = (self.pipe_inode(), self.clients.clone());
        let (gpus, observed) = {
            let desired = self.desired.borrow();
            (desired.gpus.clone(), desired.is_observed())
        };
        self.logs.read(&gpus);
        let told = self.logs.told();
        let hints = Hints {
            hung: told.hung().collect(),
            let_in: told.let_in().collect(),
            left: told.left().collect(),
            followed: told.followed().collect(),
        };
        let found = tokio::task::spawn_blocking(move || {
            let evidence = witness::gather(&look, &directory, inode, control, &clients, &hints);
            (trouble::name(&look, &evidence), evidence)
        });
        let Ok((Some(trouble), evidence)) = found.await else { return };
        let nobody = evidence.connected.as_ref().is_some_and(Vec::is_empty);
        let useless = trouble.reason == "ServerHangs" && nobody && !observed;
        for server in evidence.hung.iter().filter(|_| useless) {
            tracing::error!(%server, "killing a server that hangs and that nobody is connected to");
            let _ = host::process::signal(*server, Signal::KILL);
        }
        self.state.explain(trouble);
    }

    /// The inode of the pipe directory that the process was started with.
    pub(super) fn pipe_inode(&self) -> Option<Inode> {
        self.incarnation.as_ref().and_then(|incarnation| incarnation.pipe_inode)
    }

    /// Notices that the pipe directory is no longer the one the process was started with: nobody reaches it any
    /// more, and a client that tries runs outside MPS.
    pub(super) fn notice_lost_pipes(&mut self, desired: &Desired) {
        if self.state.process.is_none() {
            return;
        }
        let Pipes::Lost(what) = witness::pipes(&self.pipe_directory, self.pipe_inode()) else { return };
        // Nobody can be asked who is connected; who is dead is not.
        self.clients.retain(|client| host::process::is_alive(client.id.into()));
        if self.clients.is_empty() && !self.state.restart && !desired.is_observed() {
            tracing::error!(daemon = %desired.name, what, "no client is connected: restarting the daemon");
            self.state.restart = true;
        }
        self.state.explain(Trouble { reason: "PipeDirectoryLost", message: pipes_lost(&what) });
    }

    /// Notices that the control process is gone, and sees its servers off.
    pub(super) async fn notice_death(&mut self, desired: &Desired) {
        let Some(process) = &self.state.process else { return };
        if host::process::is_alive(process.identity) {
            return;
        }
        let identity = process.identity;
        self.deaths += 1;
        let log = self.log_directory.join("control.log");
        let words = log::last_words(&log, LAST_WORDS);
        let failure = match died_in_session(&log::read(log::tail(&log, LAST_SESSION).as_bytes())) {
            Some(session) => Trouble { reason: "DiedInSession", message: format!("{session}\n{words}") },
            None => Trouble { reason: "DiedOrDidNotStart", message: words },
        };
        self.chronicle.died(&desired.name, identity.pid, &failure);
        self.clients.clear();
        if desired.is_observed() {
            tracing::warn!(daemon = %desired.name, process = %identity, "the observed control daemon is gone");
            self.state.absent(failure, unix_ms());
            return;
        }
        tracing::error!(daemon = %desired.name, process = %identity, "the control daemon died");
        self.see_off_servers(desired).await;
        self.state.failed(failure, unix_ms());
    }

    /// Ends the servers that outlive their control daemon: most follow it by themselves, but one that hangs keeps its
    /// memory on the GPU for ever (seen on 13.0). They carry the token of the incarnation.
    pub(super) async fn see_off_servers(&self, desired: &Desired) {
        let Some(incarnation) = &self.incarnation else { return };
        let servers = if incarnation.home.as_ref().is_some_and(|home| home.foreign) {
            // An adopted daemon gave its servers no token of ours: those it listed last are its own, and so is what an
            // earlier manager has left in its pipe directory with no daemon above it.
            let directory = self.pipe_directory.clone();
            let stranded =
                tokio::task::spawn_blocking(move || stranded(&directory)).await.unwrap_or_default();
            let mut servers = self.servers();
            servers.extend(stranded.into_iter().filter(|one| !self.servers().contains(one)));
            servers
        } else {
            let token = incarnation.token.clone();
            tokio::task::spawn_blocking(move || daemon::orphans(&token)).await.unwrap_or_default()
        };
        for server in servers {
            if tokio::time::timeout(ORPHANS_END, death(server)).await.is_err() {
                tracing::warn!(daemon = %desired.name, %server, "killing a server that outlived its control daemon");
                let _ = host::process::signal(server, Signal::KILL);
            }
        }
    }
}

/// Completes when the logs tell of something that is worth a look, or when the pipe directory is lost.
pub(super) async fn happens(
    logs: &mut Logs,
    gpus: &[GpuUuid],
    pipe_directory: &Path,
    pipe_inode: Option<Inode>,
) {
    loop {
        logs.changed().await;
        logs.read(gpus);
        if logs.is_woken() || witness::pipes(pipe_directory, pipe_inode) != Pipes::Whole {
            return;
        }
    }
}

/// Completes when the first of these processes dies; never for none.
pub(super) async fn dies(processes: Vec<Identity>) {
    if processes.is_empty() {
        return std::future::pending().await;
    }
    let deaths: Vec<_> = processes.into_iter().map(|identity| Box::pin(death(identity))).collect();
    futures_util::future::select_all(deaths).await;
}
