//! Failures that a driver notices: deaths, lost pipes, shortages, and the causes of failed polls.

use std::fs;
use std::time::Duration;

use super::Driver;
use crate::domain::Inode;
use crate::domain::client::ClientFacts;
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::FaultHolder;
use crate::domain::plan::Desired;
use crate::domain::wedge::ReplacedProcess;
use crate::host::process::death;
use crate::host::signal::{SignalReason, send};
use crate::host::{self, Identity, Signal};
use crate::mps::log;
use crate::mps::process::foreign::stranded;
use crate::mps::process::{self as daemon, DaemonStartError};
use crate::supervisor::blocker::Blocker;
use crate::supervisor::observe::evidence::{DiagnosisEvidence, Pipes};
use crate::supervisor::observe::gather;
use crate::supervisor::observe::log_state::{died_in_session, opened_before};
use crate::supervisor::observe::poll;
use crate::supervisor::observe::poll_outcome::{PollOutcome, out_of_files};
use crate::supervisor::reconcile::diagnosis::{self, log_disk_full, pipes_lost};
use crate::supervisor::reconcile::wedge::remedy;
use crate::supervisor::remedy::Remedy;

/// Bytes at the end of control.log that are searched for the session in which the daemon died.
const LAST_SESSION: usize = 64 * 1024;
/// Time that the servers of a dead daemon get to end by themselves.
const ORPHANS_END: Duration = Duration::from_secs(2);

impl Driver {
    /// Records a failed start. A shortage that explains it blocks the daemon, which is then checked again; any other failure
    /// is the daemon's own and counts for the back-off.
    pub(super) fn did_not_start(&mut self, error: &DaemonStartError) {
        let now = self.now();
        let shortages = gather::shortages(&self.log_directory, &[]);
        let blocker = match (error, shortages.log_room) {
            (DaemonStartError::Spawn(cause), _) if out_of_files(cause) => {
                diagnosis::name(&PollOutcome::NoFiles(cause.to_string()), &DiagnosisEvidence::default())
            }
            (_, Some(room)) => Some(Blocker {
                reason: ConditionReason::DiskFull,
                message: format!("{error}; {}", log_disk_full(&self.log_directory, room)),
            }),
            _ => None,
        };
        match blocker {
            Some(blocker) => self.state.blocked(blocker, now),
            None => {
                let message = one_line(&error.to_string());
                self.state.failed(Blocker { reason: ConditionReason::DiedOrDidNotStart, message }, now);
            }
        }
    }

    /// Updates the queue of clients and the shortages after a complete poll.
    pub(super) fn observe_surroundings(&mut self, desired: &Desired) {
        let listed = self.state.seen.iter().flat_map(|effective| &effective.servers);
        let serving = listed.clone().filter(|server| server.is_active()).map(|server| server.pid);
        self.logs.polled(listed.map(|server| server.pid));
        if self.context.capability.server_status() {
            // Where only the log reports the state of servers, nothing else shows that a fault is over.
            self.logs.recovered(serving);
        }
        self.logs.prune();
        self.note_fault_holders();
        if self.state.drift.present {
            self.state.drift.command = self.logs.state().foreign().map(str::to_owned);
        }
        let Some(read) = &self.state.seen else { return };
        self.state.queue = if desired.multi_user { Vec::new() } else { self.logs.queue(read, &self.clients) };
        self.read_shortages();
    }

    /// Reads the shortages of the daemon's own processes and of its logs.
    pub(super) fn read_shortages(&mut self) {
        let control = self.state.process.iter().map(|process| ("control daemon", process.identity.pid));
        let servers = self.servers().into_iter().map(|server| ("server", server.pid));
        let processes: Vec<_> = control.chain(servers).collect();
        self.state.shortages = gather::shortages(&self.log_directory, &processes);
    }

    /// Notes which clients keep a server with a fatal GPU error from taking others: the clients that it affects according to
    /// its log, or all of its clients where the log does not report them.
    fn note_fault_holders(&mut self) {
        let state = self.logs.state();
        let faulty = self.state.seen.iter_mut().flat_map(|effective| &mut effective.servers);
        for server in faulty.filter(|server| server.is_faulty()) {
            let affected = state.affected(server.pid);
            let holds = |client: &&ClientFacts| {
                client.server == server.pid && (affected.is_empty() || affected.contains(&client.id.pid))
            };
            server.held_by = self
                .clients
                .iter()
                .filter(holds)
                .map(|client| FaultHolder {
                    client: client.id,
                    stopped: host::process::is_stopped(client.id.pid),
                })
                .collect();
        }
    }

    /// Returns the longest time for a poll: shorter for a daemon whose server is known to hang than for one that may be busy.
    pub(super) fn timeout(&self) -> Duration {
        let hangs = self.logs.shows_hang() || self.state.silence.is_after_kill();
        if hangs { self.context.deadline.min(poll::HUNG_DEADLINE) } else { self.context.deadline }
    }

    /// Determines why a poll that began at `began` failed, and explains it. Replaces a server that hangs, and a daemon that
    /// still hangs without it.
    pub(super) async fn explain(&mut self, outcome: PollOutcome, began: i64) {
        let Some(process) = &self.state.process else { return };
        let (directory, control) = (self.pipe_directory.clone(), process.identity);
        let (inode, clients) = (self.pipe_inode(), self.clients.clone());
        let (gpus, observed, wedge) = {
            let desired = self.desired.borrow();
            (desired.gpus.clone(), desired.is_observed(), desired.wedge)
        };
        if matches!(outcome, PollOutcome::Unanswered(_)) {
            self.state.silence.note_silence(began, self.now());
        }
        self.logs.read(&gpus);
        let (logged, silence, clock) = (self.logs.evidence(), self.state.silence, self.context.clock);
        let diagnosed = tokio::task::spawn_blocking(move || {
            let mut evidence = gather::gather(&outcome, &directory, inode, control, &clients, &logged);
            evidence.wedge = wedge;
            evidence.waited |= silence.has_seen_waiting();
            if matches!(outcome, PollOutcome::Unanswered(_)) && !observed {
                evidence.remedy = remedy(silence, &evidence, wedge, clock.unix_ms());
            }
            (diagnosis::name(&outcome, &evidence), evidence)
        });
        let Ok((Some(poll_failure), evidence)) = diagnosed.await else { return };
        if evidence.waited {
            self.state.silence.client_waited();
        }
        if evidence.is_explained() {
            self.state.silence.note_explained();
        }
        self.state.explain(poll_failure);
        self.replace(&evidence);
    }

    /// Kills the processes that hang, if the evidence calls for it.
    fn replace(&mut self, evidence: &DiagnosisEvidence) {
        let name = self.desired.borrow().name.clone();
        let killed = match &evidence.remedy {
            Remedy::None | Remedy::WaitForClients => return,
            Remedy::WaitUntil(until) => return self.state.poll_by(*until),
            Remedy::KillServers(servers) => servers.clone(),
            Remedy::KillDaemon => self.state.process.iter().map(|process| process.identity).collect(),
        };
        let is_daemon = evidence.remedy == Remedy::KillDaemon;
        for process in killed {
            let grounds = if is_daemon { SignalReason::ControlDaemon } else { SignalReason::Server };
            match send(process, Signal::KILL, grounds) {
                Ok(_) => {
                    let replaced = ReplacedProcess {
                        at: self.now(),
                        pid: process.pid,
                        is_daemon,
                        waiting: evidence.waiting.clone(),
                        working: evidence.connected.clone(),
                    };
                    tracing::error!(daemon = %name, %process, %replaced, "killed a process that hung");
                    self.event_detector.replaced(&name, &replaced);
                    self.state.replaced = Some(replaced);
                }
                Err(error) => {
                    tracing::error!(daemon = %name, %process, %error, "a process that hangs cannot be killed");
                }
            }
        }
        if !is_daemon {
            self.state.silence.server_killed(self.now());
        }
        self.state.request_poll();
    }

    /// Returns the inode of the pipe directory that the process was started with.
    pub(super) fn pipe_inode(&self) -> Option<Inode> {
        self.incarnation.as_ref().and_then(|incarnation| incarnation.pipe_inode)
    }

    /// Notices that the pipe directory is no longer the one that the process was started with. Nobody can reach the daemon
    /// then, and a client that tries runs outside MPS.
    pub(super) fn notice_lost_pipes(&mut self, desired: &Desired) {
        if self.state.process.is_none() {
            return;
        }
        let Pipes::Lost(what) = gather::pipes(&self.pipe_directory, self.pipe_inode()) else { return };
        // The daemon cannot be asked for its clients; those that are dead are gone.
        self.clients.retain(|client| host::process::is_alive(client.id.into()));
        if self.clients.is_empty() && !self.state.restart && !desired.is_observed() {
            tracing::error!(daemon = %desired.name, what, "no client is connected: restarting the daemon");
            self.state.restart = true;
        }
        self.state
            .explain(Blocker { reason: ConditionReason::PipeDirectoryLost, message: pipes_lost(&what) });
    }

    /// Notices that the control process is gone, and ends its servers.
    pub(super) async fn notice_death(&mut self, desired: &Desired) {
        let Some(process) = &self.state.process else { return };
        if host::process::is_alive(process.identity) {
            return;
        }
        let identity = process.identity;
        // Comes first: clients that arrive now would run outside MPS.
        self.context.handouts.daemon_died(&desired.name, identity);
        self.counts.deaths += 1;
        // A `quit` that was sent to it is in the lines that have not been read yet.
        self.logs.read(&desired.gpus);
        let text = log::tail(&self.log_directory.join("control.log"), LAST_SESSION);
        let since = self.control_log_length().zip(self.logged_before_action);
        let since = since.and_then(|(now, before)| usize::try_from(now.checked_sub(before)?).ok());
        let may_be_ours =
            self.control.calls().is_unheard() && !since.is_some_and(|since| opened_before(&text, since));
        let quit = self.logs.state().quit().filter(|_| !self.quit_sent);
        let failure = death_notice(identity.pid, quit, &log::read(text.as_bytes()), may_be_ours);
        self.event_detector.died(&desired.name, identity.pid, &failure, self.logs.server_log_events());
        self.clients.clear();
        if desired.is_observed() {
            tracing::warn!(daemon = %desired.name, process = %identity, "the observed control daemon is gone");
            self.state.absent(failure, self.now());
            return;
        }
        tracing::error!(daemon = %desired.name, process = %identity, "the control daemon died");
        self.end_orphaned_servers(desired).await;
        self.state.failed(failure, self.now());
    }

    fn control_log_length(&self) -> Option<u64> {
        fs::metadata(self.log_directory.join("control.log")).ok().map(|log| log.len())
    }

    /// Notes the length of control.log before an action that may open a session, unless an earlier session may still be open.
    pub(super) fn note_action(&mut self) {
        if !self.control.calls().is_unheard() {
            self.logged_before_action = self.control_log_length();
        }
    }

    /// Ends the servers that outlive their control daemon. Most end by themselves, but one that hangs keeps its memory on the
    /// GPU forever (seen on 13.0). They carry the token of the incarnation.
    pub(super) async fn end_orphaned_servers(&self, desired: &Desired) {
        let Some(incarnation) = &self.incarnation else { return };
        let servers = if incarnation.is_foreign() {
            // The servers of an adopted daemon carry no token of this manager. Its own are those that it listed last, and
            // those that an earlier manager left in its pipe directory without a daemon above them.
            let directory = self.pipe_directory.clone();
            let stranded =
                tokio::task::spawn_blocking(move || stranded(&directory)).await.unwrap_or_default();
            let mut servers = self.servers();
            servers.extend(stranded.into_iter().filter(|server| !self.servers().contains(server)));
            servers
        } else {
            let token = incarnation.token.clone();
            tokio::task::spawn_blocking(move || daemon::orphans(&token)).await.unwrap_or_default()
        };
        for server in servers {
            if tokio::time::timeout(ORPHANS_END, death(server)).await.is_err() {
                tracing::warn!(daemon = %desired.name, %server, "killing a server that outlived its control daemon");
                kill_server(server);
            }
        }
    }
}

fn kill_server(server: Identity) {
    if let Err(error) = send(server, Signal::KILL, SignalReason::Server) {
        tracing::error!(%server, %error, "the server was not killed");
    }
}

/// Joins the lines of a text into one.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Explains in one line why a control process died.
fn death_notice(pid: u32, quit: Option<&str>, records: &[log::LogRecord], may_be_ours: bool) -> Blocker {
    if let Some(command) = quit {
        let message = format!(
            "process {pid} was sent {command:?} by another program (control.log has it): find out which program reaches its socket, and have \
             them use this API instead"
        );
        return Blocker { reason: ConditionReason::QuitByOthers, message };
    }
    if let Some(message) = died_in_session(records, may_be_ours) {
        return Blocker { reason: ConditionReason::DiedInSession, message };
    }
    let message = match log::last_word(records, pid) {
        Some(line) => format!("process {pid} died; its last line in control.log is {line:?}"),
        None => format!(
            "process {pid} died and wrote nothing about it to control.log: it was killed, or it crashed"
        ),
    };
    Blocker { reason: ConditionReason::DiedOrDidNotStart, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(texts: &[&str]) -> Vec<log::LogRecord> {
        let lines: String =
            texts.iter().flat_map(|text| ["[2026-11-21 02:53:15.169 Control  1308] ", text, "\n"]).collect();
        log::read(lines.as_bytes())
    }

    #[test]
    fn death_notice_is_one_line_without_banners() {
        let banners = [
            "Starting control daemon using socket /p/control",
            "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/p",
            "CUDA MPS Control binary version: 13000",
            "Accepting connection...",
            "NEW UI",
            "Cmd:zz-00c0ffee00c0ffee-1",
            "Unknown command \"zz-00c0ffee00c0ffee-1\"",
            "UI closed",
            "NEW CLIENT 7 from user 0: Server already exists",
        ];
        let silent = death_notice(1308, None, &records(&banners), false);
        assert!(silent.message.contains("wrote nothing about it"), "{silent}");
        let died = death_notice(
            1308,
            None,
            &records(&["Starting control daemon using socket /p", "Failed: no\nGPU"]),
            false,
        );
        assert!(died.message.contains("Failed: no") && !died.message.contains("Starting"), "{died}");
        let other = death_notice(9, None, &records(&["Failed to start server"]), false);
        assert!(other.message.contains("wrote nothing"), "another process did: {other}");
        for poll_failure in [silent, died, other] {
            assert_eq!(
                (poll_failure.reason, poll_failure.message.lines().count()),
                (ConditionReason::DiedOrDidNotStart, 1)
            );
        }
    }

    #[test]
    fn quit_of_an_outsider_is_named() {
        let notice = death_notice(1308, Some("quit -t 1"), &records(&["NEW UI", "Cmd:quit -t 1"]), false);
        assert_eq!(notice.reason, ConditionReason::QuitByOthers);
        assert!(notice.message.contains("\"quit -t 1\""), "{notice}");
    }
}
