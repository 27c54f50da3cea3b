//! What there is to tell of servers and control processes that end or fail, and of whom that cost their work.
//!
//! Who lost work is what MPS said at the time, and who was connected when a process died; whatever leaves first changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::super::news::{Fault, News};
use super::super::trouble::Trouble;
use super::super::wedge::Replacement;
use super::{Chronicle, Seen};
use crate::domain::DaemonName;
use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::daemon::{Phase, Server};
use crate::domain::event::{
    AffectedClient, Because, Cause, Details, EventType, KnownFrom, NewEvent, Subject,
};

/// What befell a server that clients may have left because of it.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    Died,
    /// A fatal GPU error of these processes; of all of them where server.log does not tell.
    Fault(BTreeSet<u32>),
}

impl Fate {
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

impl Chronicle {
    /// A server that hung, or a control process that hung on without it, was killed.
    pub(in crate::supervisor) fn replaced(&mut self, daemon: &DaemonName, what: &Replacement) {
        let kind = if what.is_daemon { EventType::DaemonReplaced } else { EventType::ServerReplaced };
        let server = (!what.is_daemon).then_some(what.pid);
        self.killed.insert(what.pid);
        let working = what.working.iter().flatten().map(|pid| self.affected_client(*pid, &[])).collect();
        let details = Details::Death { pid: what.pid, clients: working, waiting: what.waiting.clone() };
        let subject = Subject { server, ..Subject::daemon(daemon) };
        let event = NewEvent::new(kind, subject, format!("daemon {daemon}: {what}"));
        self.happened(event.because(Because::Latest(EventType::DaemonWedged)).with(details));
    }

    /// A control process was found dead.
    pub(in crate::supervisor) fn died(
        &mut self,
        daemon: &DaemonName,
        pid: u32,
        failure: &Trouble,
        news: &News,
    ) {
        self.died = true;
        // What its log says stays in the status: anybody may have written it.
        let (why, cause) = match failure.reason {
            _ if self.killed.remove(&pid) => ("", Because::Latest(EventType::DaemonReplaced)),
            "DiedInSession" => {
                (", while a session of somebody else was open", Cause::Outsider { command: None }.into())
            }
            "QuitByOthers" => {
                (", since another program sent it a quit", Cause::Outsider { command: None }.into())
            }
            _ => ("", Cause::Mps.into()),
        };
        let connected = self.clients.keys().filter(|client| !news.said_goodbye(client.pid));
        let clients: Vec<_> = connected.map(|client| affected_client(*client)).collect();
        let doubt = if clients.is_empty() { "" } else { news.doubt_of_lost_work() };
        let message = format!("process {pid}, the control daemon of {daemon}, died{why}{doubt}");
        self.happened(
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

    /// Gives what befell servers that clients may have left because of it.
    pub(super) fn tell_servers(&mut self, seen: &Seen<'_>, news: &mut News) -> BTreeMap<u32, Fate> {
        let mut fates: BTreeMap<u32, Fate> = self.dead.iter().map(|pid| (*pid, Fate::Died)).collect();
        let listed: &[Server] = match &seen.status.effective {
            Some(effective) => &effective.servers,
            None if seen.status.pid.is_none() => &[],
            // Not read yet.
            None => return fates,
        };
        let now: BTreeMap<(u32, u64), String> =
            listed.iter().map(|server| ((server.pid, server.start_time), server.status.clone())).collect();
        let gone: Vec<u32> =
            self.servers.keys().filter(|key| !now.contains_key(*key)).map(|(pid, _)| *pid).collect();
        for pid in gone {
            self.tell_end(seen, news, pid, &mut fates);
        }
        for server in listed {
            self.tell_server(seen, news, server, &mut fates);
        }
        if seen.looked {
            // Over before anybody looked, or forged.
            for (pid, fault) in news.take_faults_but(|pid| self.faulty.contains_key(&pid)) {
                self.fault(seen, pid, &fault, KnownFrom::ServerLog);
                fates.insert(pid, Fate::Fault(fault.affected));
            }
        }
        self.found &= seen.status.effective.is_none();
        self.servers = now;
        fates
    }

    /// Tells that a server is gone: with the clients that were connected to it, whether they are still listed or not, as long
    /// as it had not said goodbye to them.
    fn tell_end(&mut self, seen: &Seen<'_>, news: &News, pid: u32, fates: &mut BTreeMap<u32, Fate>) {
        let name = &seen.desired.name;
        let subject = Subject { server: Some(pid), ..Subject::daemon(name) };
        let killed = self.killed.remove(&pid);
        let lost = self.connected_to(pid, seen, news);
        self.faulty.remove(&pid);
        self.affected.remove(&pid);
        if !lost.is_empty() && seen.status.pid.is_some() && seen.status.phase != Phase::Stopping {
            let clients =
                if lost.len() == 1 { "a client".to_owned() } else { format!("{} clients", lost.len()) };
            let message = format!(
                "server {pid} of daemon {name} ended while it had {clients}: what they had on the GPU is lost{}",
                news.doubt_of_lost_work()
            );
            let cause = if killed { Because::Latest(EventType::ServerReplaced) } else { Cause::Mps.into() };
            let event = NewEvent::new(EventType::ServerDied, subject, message).because(cause);
            self.happened(event.with(Details::Death { pid, clients: lost, waiting: Vec::new() }));
            self.dead.insert(pid);
            fates.insert(pid, Fate::Died);
            return;
        }
        let cause = match (seen.status.pid, seen.status.phase) {
            _ if killed => Because::Latest(EventType::ServerReplaced),
            (None, Phase::Stopped | Phase::Stopping) => Because::Latest(EventType::DaemonStopped),
            (None, _) => Because::Latest(EventType::DaemonDied),
            _ => Cause::Mps.into(),
        };
        let message = format!("server {pid} of daemon {name} is gone");
        self.happened(
            NewEvent::new(EventType::ServerExited, subject, message)
                .because(cause)
                .with(Details::Process { pid, uid: None }),
        );
    }

    /// Who was connected to a server when it ended.
    fn connected_to(&self, server: u32, seen: &Seen<'_>, news: &News) -> Vec<AffectedClient> {
        let reported = self.clients.iter().filter(|(_, of)| **of == Some(server)).map(|(client, _)| *client);
        let listed = seen.clients.iter().filter(|client| client.server == server).map(|client| client.id);
        let known: BTreeSet<ClientId> = reported.chain(listed).collect();
        let known: Vec<ClientId> =
            known.into_iter().filter(|client| !news.said_goodbye(client.pid)).collect();
        let unlisted = news.unlisted(server).filter(|pid| known.iter().all(|client| client.pid != *pid));
        let unlisted = unlisted.map(|pid| AffectedClient { pid, client: None, tenant: None });
        known.iter().map(|client| affected_client(*client)).chain(unlisted).collect()
    }

    /// Tells what is new of a server that is listed.
    fn tell_server(
        &mut self,
        seen: &Seen<'_>,
        news: &mut News,
        server: &Server,
        fates: &mut BTreeMap<u32, Fate>,
    ) {
        let (name, pid) = (&seen.desired.name, server.pid);
        let subject = || Subject { server: Some(pid), ..Subject::daemon(name) };
        let before = self.servers.get(&(pid, server.start_time));
        let was_faulty = before.is_some_and(|status| status == "FAULT");
        let is_faulty = server.status == "FAULT";
        // What a process that was found has was there before.
        if before.is_none() && !self.found {
            let message = format!("server {pid} of daemon {name} was started");
            self.happened(
                NewEvent::new(EventType::ServerStarted, subject(), message)
                    .because(Cause::Mps)
                    .with(Details::Process { pid, uid: server.uid }),
            );
        }
        if is_faulty && !was_faulty {
            self.faulty.insert(pid, false);
        }
        // Seen in the middle of what the server writes of it, the rest is waited for, but not for long.
        let is_whole = news.fault_so_far(pid).is_none_or(|fault| fault.is_complete);
        if let Some(waited) = self.faulty.get_mut(&pid)
            && seen.looked
        {
            if is_whole || *waited || !is_faulty {
                self.faulty.remove(&pid);
                let fault = news.take_fault(pid).unwrap_or_default();
                self.fault(seen, pid, &fault, KnownFrom::Look);
                self.affected.insert(pid, fault.affected);
            } else {
                *waited = true;
            }
        }
        if is_faulty || was_faulty {
            let so_far = || news.fault_so_far(pid).map(|fault| fault.affected.clone());
            let affected = self.affected.get(&pid).cloned().or_else(so_far).unwrap_or_default();
            fates.insert(pid, Fate::Fault(affected));
        }
        if was_faulty && server.status == "ACTIVE" {
            let message = format!("server {pid} of daemon {name} takes clients again");
            let event = NewEvent::new(EventType::ServerRecovered, subject(), message);
            self.happened(event.because(Cause::Mps));
            self.affected.remove(&pid);
        }
    }

    /// Forgets dead servers once no event about their clients is left to write.
    pub(super) fn forget_servers(&mut self, seen: &Seen<'_>) {
        let (clients, servers) = (&self.clients, &self.servers);
        self.dead.retain(|server| clients.values().any(|of| *of == Some(*server)));
        self.killed
            .retain(|pid| servers.keys().any(|(server, _)| server == pid) || seen.status.pid == Some(*pid));
    }

    fn fault(&mut self, seen: &Seen<'_>, server: u32, fault: &Fault, known_from: KnownFrom) {
        let name = &seen.desired.name;
        let subject = Subject { server: Some(server), ..Subject::daemon(name) };
        let message = match known_from {
            KnownFrom::Look => format!(
                "server {server} of daemon {name} had a fatal GPU error: the clients it affects have lost their work, and no other \
                 gets in until they are gone"
            ),
            KnownFrom::ServerLog => format!(
                "server.log tells of a fatal GPU error of server {server} of daemon {name}, of which nothing else was seen"
            ),
        };
        let details = Details::Fault {
            reported: fault.reported.iter().copied().collect(),
            affected: fault.affected.iter().copied().collect(),
            clients: fault.affected.iter().map(|pid| self.affected_client(*pid, seen.clients)).collect(),
            known_from,
        };
        let event = NewEvent::new(EventType::ServerFault, subject, message);
        self.happened(event.because(Cause::Mps).with(details));
    }
}

fn affected_client(client: ClientId) -> AffectedClient {
    AffectedClient { pid: client.pid, client: Some(client), tenant: None }
}
