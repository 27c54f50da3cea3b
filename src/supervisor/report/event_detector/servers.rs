//! What there is to report servers and control processes that end or fail, and of whom that cost their work.
//!
//! Who lost work is what MPS said at the time, and who was connected when a process died; whatever leaves first changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::{EventDetector, Snapshot};
use crate::domain::DaemonName;
use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::daemon::{Phase, Server};
use crate::domain::event::{
    AffectedClient, Because, Cause, Details, EventType, KnownFrom, NewEvent, Subject,
};
use crate::supervisor::reconcile::wedge::Replacement;
use crate::supervisor::report::diagnosis::Diagnosis;
use crate::supervisor::report::server_log_events::{LoggedFault, ServerLogEvents};

/// Why a server may have lost its clients.
#[derive(Debug, Clone)]
pub(super) enum ServerEnd {
    Died,
    /// A fatal GPU error of these processes; of all of them where server.log does not report.
    Fault(BTreeSet<u32>),
}

impl ServerEnd {
    /// Why a client is gone, if this is why.
    pub(super) fn cause_for(&self, pid: u32) -> Option<EventType> {
        match self {
            Self::Died => Some(EventType::ServerDied),
            Self::Fault(affected) => {
                (affected.is_empty() || affected.contains(&pid)).then_some(EventType::ServerFault)
            }
        }
    }
}

impl EventDetector {
    /// A server that hung, or a control process that hung on without it, was killed.
    pub(in crate::supervisor) fn replaced(&mut self, daemon: &DaemonName, what: &Replacement) {
        let kind = if what.is_daemon { EventType::DaemonReplaced } else { EventType::ServerReplaced };
        let server = (!what.is_daemon).then_some(what.pid);
        self.killed.insert(what.pid);
        let working = what.working.iter().flatten().map(|pid| self.affected_client(*pid, &[])).collect();
        let details = Details::Death { pid: what.pid, clients: working, waiting: what.waiting.clone() };
        let subject = Subject { server, ..Subject::daemon(daemon) };
        let event = NewEvent::new(kind, subject, format!("daemon {daemon}: {what}"));
        self.emit(event.because(Because::Latest(EventType::DaemonWedged)).with(details));
    }

    /// A control process was found dead.
    pub(in crate::supervisor) fn died(
        &mut self,
        daemon: &DaemonName,
        pid: u32,
        failure: &Diagnosis,
        server_log: &ServerLogEvents,
    ) {
        self.died = true;
        // What its log says stays in the status: anybody may have written it.
        let (why, cause) = match failure.reason {
            _ if self.killed.remove(&pid) => ("", Because::Latest(EventType::DaemonReplaced)),
            "DiedInSession" => {
                (", while a session of another program was open", Cause::Outsider { command: None }.into())
            }
            "QuitByOthers" => {
                (", since another program sent it a quit", Cause::Outsider { command: None }.into())
            }
            _ => ("", Cause::Mps.into()),
        };
        let connected = self.clients.keys().filter(|client| !server_log.has_disconnected(client.pid));
        let clients: Vec<_> = connected.map(|client| affected_client(*client)).collect();
        let doubt = if clients.is_empty() { "" } else { server_log.doubt_of_lost_work() };
        let message = format!("process {pid}, the control daemon of {daemon}, died{why}{doubt}");
        self.emit(
            NewEvent::new(EventType::DaemonDied, Subject::daemon(daemon), message)
                .because(cause)
                .with(Details::Death { pid, clients, waiting: Vec::new() }),
        );
    }

    /// What is known of a client by its process ID.
    fn affected_client(&self, pid: u32, listed: &[ClientFacts]) -> AffectedClient {
        let mut known = self.clients.keys().copied().chain(listed.iter().map(|client| client.id));
        let client = known.find(|client| client.pid == pid);
        AffectedClient { pid, client, tenant: None }
    }

    /// Returns the ends and faults of servers that may have cost clients their connection.
    pub(super) fn detect_servers(
        &mut self,
        seen: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
    ) -> BTreeMap<u32, ServerEnd> {
        let mut server_ends: BTreeMap<u32, ServerEnd> =
            self.dead.iter().map(|pid| (*pid, ServerEnd::Died)).collect();
        let listed: &[Server] = match &seen.status.effective {
            Some(effective) => &effective.servers,
            None if seen.status.pid.is_none() => &[],
            // Not read yet.
            None => return server_ends,
        };
        let now: BTreeMap<(u32, u64), String> =
            listed.iter().map(|server| ((server.pid, server.start_time), server.status.clone())).collect();
        let gone: Vec<u32> =
            self.servers.keys().filter(|key| !now.contains_key(*key)).map(|(pid, _)| *pid).collect();
        for pid in gone {
            self.detect_server_end(seen, server_log, pid, &mut server_ends);
        }
        for server in listed {
            self.detect_server(seen, server_log, server, &mut server_ends);
        }
        if seen.polled {
            // Over before the next poll, or forged.
            for (pid, fault) in server_log.take_faults_but(|pid| self.faulty.contains_key(&pid)) {
                self.fault(seen, pid, &fault, KnownFrom::ServerLog);
                server_ends.insert(pid, ServerEnd::Fault(fault.affected));
            }
        }
        self.found &= seen.status.effective.is_none();
        self.servers = now;
        server_ends
    }

    /// Tells that a server is gone: with the clients that were connected to it, whether they are still listed or not, as long
    /// as it had not said goodbye to them.
    fn detect_server_end(
        &mut self,
        seen: &Snapshot<'_>,
        server_log: &ServerLogEvents,
        pid: u32,
        server_ends: &mut BTreeMap<u32, ServerEnd>,
    ) {
        let name = &seen.desired.name;
        let subject = Subject { server: Some(pid), ..Subject::daemon(name) };
        let killed = self.killed.remove(&pid);
        let lost = self.connected_to(pid, seen, server_log);
        self.faulty.remove(&pid);
        self.affected.remove(&pid);
        if !lost.is_empty() && seen.status.pid.is_some() && seen.status.phase != Phase::Stopping {
            let clients =
                if lost.len() == 1 { "a client".to_owned() } else { format!("{} clients", lost.len()) };
            let message = format!(
                "server {pid} of daemon {name} ended while it had {clients}: what they had on the GPU is lost{}",
                server_log.doubt_of_lost_work()
            );
            let cause = if killed { Because::Latest(EventType::ServerReplaced) } else { Cause::Mps.into() };
            let event = NewEvent::new(EventType::ServerDied, subject, message).because(cause);
            self.emit(event.with(Details::Death { pid, clients: lost, waiting: Vec::new() }));
            self.dead.insert(pid);
            server_ends.insert(pid, ServerEnd::Died);
            return;
        }
        let cause = match (seen.status.pid, seen.status.phase) {
            _ if killed => Because::Latest(EventType::ServerReplaced),
            (None, Phase::Stopped | Phase::Stopping) => Because::Latest(EventType::DaemonStopped),
            (None, _) => Because::Latest(EventType::DaemonDied),
            _ => Cause::Mps.into(),
        };
        let message = format!("server {pid} of daemon {name} is gone");
        self.emit(
            NewEvent::new(EventType::ServerExited, subject, message)
                .because(cause)
                .with(Details::Process { pid, uid: None }),
        );
    }

    /// Who was connected to a server when it ended.
    fn connected_to(
        &self,
        server: u32,
        seen: &Snapshot<'_>,
        server_log: &ServerLogEvents,
    ) -> Vec<AffectedClient> {
        let reported = self.clients.iter().filter(|(_, of)| **of == Some(server)).map(|(client, _)| *client);
        let listed = seen.clients.iter().filter(|client| client.server == server).map(|client| client.id);
        let known: BTreeSet<ClientId> = reported.chain(listed).collect();
        let known: Vec<ClientId> =
            known.into_iter().filter(|client| !server_log.has_disconnected(client.pid)).collect();
        let unlisted =
            server_log.unlisted(server).filter(|pid| known.iter().all(|client| client.pid != *pid));
        let unlisted = unlisted.map(|pid| AffectedClient { pid, client: None, tenant: None });
        known.iter().map(|client| affected_client(*client)).chain(unlisted).collect()
    }

    /// Tells what is new of a server that is listed.
    fn detect_server(
        &mut self,
        seen: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
        server: &Server,
        server_ends: &mut BTreeMap<u32, ServerEnd>,
    ) {
        let (name, pid) = (&seen.desired.name, server.pid);
        let subject = || Subject { server: Some(pid), ..Subject::daemon(name) };
        let before = self.servers.get(&(pid, server.start_time));
        let was_faulty = before.is_some_and(|status| status == "FAULT");
        let is_faulty = server.status == "FAULT";
        // What a process that was found has was there before.
        if before.is_none() && !self.found {
            let message = format!("server {pid} of daemon {name} was started");
            self.emit(
                NewEvent::new(EventType::ServerStarted, subject(), message)
                    .because(Cause::Mps)
                    .with(Details::Process { pid, uid: server.uid }),
            );
        }
        if is_faulty && !was_faulty {
            self.faulty.insert(pid, false);
        }
        // Polled in the middle of what the server writes of it, the rest is waited for, but not for long.
        let is_whole = server_log.fault_so_far(pid).is_none_or(|fault| fault.is_complete);
        if let Some(waited) = self.faulty.get_mut(&pid)
            && seen.polled
        {
            if is_whole || *waited || !is_faulty {
                self.faulty.remove(&pid);
                let fault = server_log.take_fault(pid).unwrap_or_default();
                self.fault(seen, pid, &fault, KnownFrom::Look);
                self.affected.insert(pid, fault.affected);
            } else {
                *waited = true;
            }
        }
        if is_faulty || was_faulty {
            let so_far = || server_log.fault_so_far(pid).map(|fault| fault.affected.clone());
            let affected = self.affected.get(&pid).cloned().or_else(so_far).unwrap_or_default();
            server_ends.insert(pid, ServerEnd::Fault(affected));
        }
        if was_faulty && server.status == "ACTIVE" {
            let message = format!("server {pid} of daemon {name} takes clients again");
            let event = NewEvent::new(EventType::ServerRecovered, subject(), message);
            self.emit(event.because(Cause::Mps));
            self.affected.remove(&pid);
        }
    }

    /// Forgets dead servers once no event about their clients is left to write.
    pub(super) fn forget_servers(&mut self, seen: &Snapshot<'_>) {
        let (clients, servers) = (&self.clients, &self.servers);
        self.dead.retain(|server| clients.values().any(|of| *of == Some(*server)));
        self.killed
            .retain(|pid| servers.keys().any(|(server, _)| server == pid) || seen.status.pid == Some(*pid));
    }

    fn fault(&mut self, seen: &Snapshot<'_>, server: u32, fault: &LoggedFault, known_from: KnownFrom) {
        let name = &seen.desired.name;
        let subject = Subject { server: Some(server), ..Subject::daemon(name) };
        let message = match known_from {
            KnownFrom::Look => format!(
                "server {server} of daemon {name} had a fatal GPU error: the clients it affects have lost their work, and no other \
                 gets in until they are gone"
            ),
            KnownFrom::ServerLog => format!(
                "server.log reports a fatal GPU error of server {server} of daemon {name}, of which nothing else was seen"
            ),
        };
        let details = Details::Fault {
            reported: fault.reported.iter().copied().collect(),
            affected: fault.affected.iter().copied().collect(),
            clients: fault.affected.iter().map(|pid| self.affected_client(*pid, seen.clients)).collect(),
            known_from,
        };
        let event = NewEvent::new(EventType::ServerFault, subject, message);
        self.emit(event.because(Cause::Mps).with(details));
    }
}

fn affected_client(client: ClientId) -> AffectedClient {
    AffectedClient { pid: client.pid, client: Some(client), tenant: None }
}
