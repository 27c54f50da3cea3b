//! Events for servers and control processes that end or fail, and the clients that lost work.
//!
//! Clients lost work if MPS reported them at the time, or if they were connected when a process died. The order in which they
//! leave changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::server_end::ServerEnd;
use super::{EventDetector, Snapshot, TrackedClient};
use crate::domain::DaemonName;
use crate::domain::client::{ClientFacts, ClientId};
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::{Phase, Server, ServerStatus};
use crate::domain::event::{
    AffectedClient, DaemonDeath, DomainEvent, EventTrigger, EventType, KnownFrom, LostWork, ServerFault,
};
use crate::domain::fault::GpuFaultReport;
use crate::domain::wedge::ReplacedProcess;
use crate::supervisor::blocker::Blocker;
use crate::supervisor::observe::server_log_events::{LoggedFault, ServerLogEvents};

impl EventDetector {
    /// Reports that a server that hung, or a control process that still hung without it, was killed.
    pub(in crate::supervisor) fn replaced(&mut self, daemon: &DaemonName, process: &ReplacedProcess) {
        self.killed.insert(process.pid);
        let working = process.working.iter().flatten();
        let clients = working.map(|pid| self.affected_client(*pid, &[])).collect();
        let (daemon, process) = (daemon.clone(), process.clone());
        self.emit(if process.is_daemon {
            DomainEvent::DaemonReplaced { daemon, process, clients }
        } else {
            DomainEvent::ServerReplaced { daemon, process, clients }
        });
    }

    /// Reports that a control process was found dead.
    pub(in crate::supervisor) fn died(
        &mut self,
        daemon: &DaemonName,
        pid: u32,
        failure: &Blocker,
        server_log: &ServerLogEvents,
    ) {
        self.died = true;
        let why = match failure.reason {
            _ if self.killed.remove(&pid) => DaemonDeath::Killed,
            ConditionReason::DiedInSession => DaemonDeath::ForeignSession,
            ConditionReason::QuitByOthers => DaemonDeath::ForeignQuit,
            _ => DaemonDeath::Unexplained,
        };
        let connected = self.clients.iter().filter(|(client, _)| !server_log.has_disconnected(client.pid));
        let clients = connected.map(|(client, tracked)| tracked.affected(*client)).collect();
        let lost = LostWork { clients, is_uncertain: server_log.has_missed_disconnects() };
        self.emit(DomainEvent::DaemonDied { daemon: daemon.clone(), pid, why, lost });
    }

    /// Returns the known facts about a client with this PID.
    fn affected_client(&self, pid: u32, listed: &[ClientFacts]) -> AffectedClient {
        let listed = listed.iter().map(|client| (client.id, TrackedClient::of(client)));
        let tracked = [&self.clients, &self.left]
            .map(|tracked| tracked.iter().map(|(id, tracked)| (*id, tracked.clone())));
        let [here, left] = tracked;
        let client = here.chain(listed).chain(left).find(|(client, _)| client.pid == pid);
        client.map_or_else(|| AffectedClient::of(pid), |(client, tracked)| tracked.affected(client))
    }

    /// Returns the ends and faults of servers that may have cost clients their connection.
    pub(super) fn detect_servers(
        &mut self,
        latest: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
    ) -> BTreeMap<u32, ServerEnd> {
        let mut server_ends: BTreeMap<u32, ServerEnd> =
            self.dead.iter().map(|pid| (*pid, ServerEnd::Died)).collect();
        let listed: &[Server] = match &latest.status.effective {
            Some(effective) => &effective.servers,
            None if latest.status.pid.is_none() => &[],
            // The daemon has not been read yet.
            None => return server_ends,
        };
        let now: BTreeMap<(u32, u64), ServerStatus> =
            listed.iter().map(|server| ((server.pid, server.start_time), server.status.clone())).collect();
        let gone: Vec<u32> =
            self.servers.keys().filter(|key| !now.contains_key(*key)).map(|(pid, _)| *pid).collect();
        for pid in gone {
            self.detect_server_end(latest, server_log, pid, &mut server_ends);
        }
        for server in listed {
            self.detect_server(latest, server_log, server, &mut server_ends);
        }
        if latest.polled {
            self.detect_logged_faults(latest, server_log, &mut server_ends);
        }
        self.found &= latest.status.effective.is_none();
        self.servers = now;
        server_ends
    }

    /// Reports faults that no poll saw: over before the poll, or forged.
    ///
    /// A server accepts clients again once all clients that a fault affects are gone (recording 04). The fault is confirmed
    /// if such clients had been listed and none of them still is. If one still is, the poll may have listed it just before
    /// the fault, and the next poll decides.
    fn detect_logged_faults(
        &mut self,
        latest: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
        server_ends: &mut BTreeMap<u32, ServerEnd>,
    ) {
        let mut doubtful = std::mem::take(&mut self.doubtful);
        for server in server_log.faulty_servers() {
            let Some(fault) = server_log.fault_so_far(server).filter(|_| !self.faulty.contains_key(&server))
            else {
                continue;
            };
            let is_here = |of: &TrackedClient| of.server.is_none_or(|of| of == server);
            let were_listed = self.clients.iter().any(|(client, of)| is_here(of) && fault.names(client.pid));
            let is_listed = latest.clients.iter().any(|client| fault.names(client.id.pid));
            if is_listed && !doubtful.remove(&server) {
                self.doubtful.insert(server);
                continue;
            }
            let Some(fault) = server_log.take_fault(server) else { continue };
            let is_confirmed = were_listed && !is_listed;
            let known_from = if is_confirmed { KnownFrom::ServerLogAndPoll } else { KnownFrom::ServerLog };
            self.fault(latest, server, &fault, known_from);
            server_ends.insert(server, ServerEnd::Fault(fault.affected));
        }
    }

    /// Reports that a server is gone, with the clients that were connected to it, whether they are still listed or not,
    /// unless it had logged their end.
    fn detect_server_end(
        &mut self,
        latest: &Snapshot<'_>,
        server_log: &ServerLogEvents,
        pid: u32,
        server_ends: &mut BTreeMap<u32, ServerEnd>,
    ) {
        let daemon = latest.desired.name.clone();
        let killed = self.killed.remove(&pid);
        let clients = self.connected_to(pid, latest, server_log);
        self.faulty.remove(&pid);
        self.affected.remove(&pid);
        let cause = match (latest.status.pid, latest.status.phase) {
            _ if killed => Some(EventType::ServerReplaced),
            (None, Phase::Stopped | Phase::Stopping) => Some(EventType::DaemonStopped),
            (None, _) if self.died => Some(EventType::DaemonDied),
            // Between the two commands of a restart.
            (None, _) => Some(EventType::DaemonStopped),
            _ => None,
        };
        let lost_work =
            !clients.is_empty() && latest.status.pid.is_some() && latest.status.phase != Phase::Stopping;
        let event = if lost_work {
            self.dead.insert(pid);
            server_ends.insert(pid, ServerEnd::Died);
            let lost = LostWork { clients, is_uncertain: server_log.has_missed_disconnects() };
            DomainEvent::ServerDied { daemon, pid, lost }
        } else {
            DomainEvent::ServerExited { daemon, pid }
        };
        match cause {
            Some(kind) => self.emit(event.because(EventTrigger::Latest(kind))),
            None => self.emit(event),
        }
    }

    /// Returns the clients that were connected to a server when it ended.
    fn connected_to(
        &self,
        server: u32,
        latest: &Snapshot<'_>,
        server_log: &ServerLogEvents,
    ) -> Vec<AffectedClient> {
        let listed = latest.clients.iter().filter(|client| client.server == server);
        let mut connected: BTreeMap<ClientId, TrackedClient> =
            listed.map(|client| (client.id, TrackedClient::of(client))).collect();
        connected.extend(
            self.clients.iter().filter(|(_, of)| of.server == Some(server)).map(|(id, of)| (*id, of.clone())),
        );
        connected.retain(|client, _| !server_log.has_disconnected(client.pid));
        let unlisted =
            server_log.unlisted(server).filter(|pid| connected.keys().all(|client| client.pid != *pid));
        let unlisted = unlisted.map(AffectedClient::of);
        connected.iter().map(|(client, tracked)| tracked.affected(*client)).chain(unlisted).collect()
    }

    /// Reports the changes of a server that is listed.
    fn detect_server(
        &mut self,
        latest: &Snapshot<'_>,
        server_log: &mut ServerLogEvents,
        server: &Server,
        server_ends: &mut BTreeMap<u32, ServerEnd>,
    ) {
        let (daemon, pid) = (|| latest.desired.name.clone(), server.pid);
        let before = self.servers.get(&(pid, server.start_time));
        let was_faulty = before.is_some_and(|status| *status == ServerStatus::Fault);
        let is_faulty = server.is_faulty();
        // Servers of a process that was found existed before.
        if before.is_none() && !self.found {
            self.emit(DomainEvent::ServerStarted { daemon: daemon(), pid, uid: server.uid });
        }
        if is_faulty && !was_faulty {
            self.faulty.insert(pid, false);
        }
        // If the poll came while the server was still writing about the fault, the remaining lines are awaited, but not for long.
        let is_whole = server_log.fault_so_far(pid).is_none_or(|fault| fault.is_complete);
        if let Some(waited) = self.faulty.get_mut(&pid)
            && latest.polled
        {
            if is_whole || *waited || !is_faulty {
                self.faulty.remove(&pid);
                let fault = server_log.take_fault(pid).unwrap_or_default();
                self.fault(latest, pid, &fault, KnownFrom::Poll);
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
        if was_faulty && server.is_active() {
            self.emit(DomainEvent::ServerRecovered { daemon: daemon(), pid });
            self.affected.remove(&pid);
        }
    }

    /// Forgets dead servers once no event about their clients is left to write.
    pub(super) fn forget_servers(&mut self, latest: &Snapshot<'_>) {
        let (clients, servers) = (&self.clients, &self.servers);
        self.dead.retain(|server| clients.values().any(|of| of.server == Some(*server)));
        self.killed
            .retain(|pid| servers.keys().any(|(server, _)| server == pid) || latest.status.pid == Some(*pid));
    }

    fn fault(&mut self, latest: &Snapshot<'_>, server: u32, fault: &LoggedFault, known_from: KnownFrom) {
        // If several contexts ended at that moment, this is no evidence.
        let ended: BTreeSet<u32> =
            if fault.ended_with_it.len() == 1 { fault.ended_with_it.clone() } else { BTreeSet::new() };
        let clients = fault.affected.union(&ended).map(|pid| AffectedClient {
            ended_with_it: ended.contains(pid),
            ..self.affected_client(*pid, latest.clients)
        });
        let clients = clients.collect();
        self.emit(DomainEvent::ServerFault(ServerFault {
            daemon: latest.desired.name.clone(),
            server,
            report: GpuFaultReport {
                named_by_mps: fault.named.iter().copied().collect(),
                ..GpuFaultReport::default()
            },
            affected: fault.affected.iter().copied().collect(),
            clients,
            known_from,
            logged_at: fault.at,
        }));
    }
}
