//! Incidents from sequences of events.

pub(super) mod faults;
mod linking;
mod outside_mps;

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::rules::CRASH_LOOP_MS;
use super::*;
use crate::bypass::Bypass;
use crate::client::ClientId;
use crate::condition::ConditionReason;
use crate::drift::Drifted;
use crate::event::{
    ClientRefusal, DaemonBlocker, DaemonDeath, DomainEvent, EventType, KnownFrom, LostWork, ObservedClient,
    ServerFault,
};
use crate::exposure::SocketExposure;
use crate::fault::GpuFaultReport;

pub(super) fn daemon(name: &str) -> DaemonName {
    DaemonName::parse(name).expect("a name")
}

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).expect("a name")
}

fn gpu() -> GpuUuid {
    GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
}

fn id(pid: u32) -> ClientId {
    ClientId { pid, start_time: 1 }
}

/// Clients of these processes; even ones are of demo, odd ones of web.
fn clients(pids: &[u32]) -> Vec<AffectedClient> {
    let whose = |pid: u32| if pid.is_multiple_of(2) { "demo" } else { "web" };
    pids.iter()
        .map(|pid| AffectedClient {
            client: Some(id(*pid)),
            tenant: Some(tenant(whose(*pid))),
            ..AffectedClient::of(*pid)
        })
        .collect()
}

fn lost(pids: &[u32]) -> LostWork {
    LostWork { clients: clients(pids), is_uncertain: false }
}

fn fault(server: u32, reported: &[u32], affected: &[u32], known_from: KnownFrom) -> DomainEvent {
    DomainEvent::ServerFault(ServerFault {
        daemon: daemon("gpu0"),
        server,
        report: GpuFaultReport { named_by_mps: reported.to_vec(), ..GpuFaultReport::default() },
        affected: affected.to_vec(),
        clients: clients(affected),
        known_from,
        logged_at: None,
    })
}

fn server_died(server: u32, pids: &[u32]) -> DomainEvent {
    DomainEvent::ServerDied { daemon: daemon("gpu0"), pid: server, lost: lost(pids) }
}

fn server_started(server: u32) -> DomainEvent {
    DomainEvent::ServerStarted { daemon: daemon("gpu0"), pid: server, uid: None }
}

fn daemon_died(pids: &[u32]) -> DomainEvent {
    DomainEvent::DaemonDied {
        daemon: daemon("gpu0"),
        pid: 1,
        why: DaemonDeath::Unexplained,
        lost: lost(pids),
    }
}

fn ready() -> DomainEvent {
    DomainEvent::DaemonReady { daemon: daemon("gpu0") }
}

fn drifted() -> DomainEvent {
    let drifted = Drifted { setting: "memory limit".into(), desired: "8G".into(), read: "1G".into() };
    DomainEvent::SettingsDrifted { daemon: daemon("gpu0"), drifted: vec![drifted], command: None }
}

fn repaired() -> DomainEvent {
    DomainEvent::SettingsRepaired { daemon: daemon("gpu0") }
}

fn crash_loop() -> DomainEvent {
    let (reason, message) = (ConditionReason::CrashLoop, String::new());
    DomainEvent::DaemonCrashLoop(DaemonBlocker { daemon: daemon("gpu0"), reason, message })
}

fn left(pid: u32) -> ObservedClient {
    ObservedClient {
        daemon: daemon("gpu0"),
        server: 5,
        pid,
        client: Some(id(pid)),
        uid: None,
        program: None,
        tenant: Some(tenant("demo")),
        attributed_by: crate::attribution::AttributedBy::Lease,
        logged_at: None,
    }
}

/// Incidents as the store keeps them.
#[derive(Default)]
struct Journal {
    incidents: Vec<StoredIncident>,
    events: i64,
    at: i64,
    connected: Vec<ClientId>,
    opened: usize,
    worsened: usize,
    ended: usize,
}

impl Journal {
    fn write(&mut self, event: &DomainEvent) {
        self.write_because(event, None);
    }

    fn write_because(&mut self, event: &DomainEvent, because: Option<EventType>) {
        self.write_as(event, because, None);
    }

    fn write_as(&mut self, event: &DomainEvent, because: Option<EventType>, cause: Option<i64>) {
        self.events += 1;
        let subject = event.subject().daemon;
        let Some(daemon) = event.concerned_daemon().or(subject.as_ref()) else { return };
        let recent = |one: &&StoredIncident| {
            one.incident.daemon == *daemon
                && one.incident.recovered_at.is_none_or(|at| at >= self.at - MEMORY_MS)
        };
        let known: Vec<StoredIncident> = self.incidents.iter().filter(recent).cloned().collect();
        let gpus = [gpu()];
        let seen = Occurrence {
            id: Some(self.events),
            at: self.at,
            event,
            because,
            cause,
            gpus: &gpus,
            connected: &self.connected,
        };
        for change in group(&seen, &known) {
            match change.transition {
                Transition::Opened => self.opened += 1,
                Transition::Ended => self.ended += 1,
                Transition::OpenedAndEnded => (self.opened, self.ended) = (self.opened + 1, self.ended + 1),
                Transition::Worsened => self.worsened += 1,
                Transition::Extended => {}
            }
            match change.id {
                Some(number) => {
                    let stored = self.incidents.iter_mut().find(|one| one.id == number).expect("known");
                    stored.incident = change.incident;
                }
                None => {
                    let id = i64::try_from(self.incidents.len()).expect("few") + 1;
                    self.incidents.push(StoredIncident { id, incident: change.incident });
                }
            }
        }
    }

    /// Reads the incidents back from JSON, as after a restart: everything kept only in memory is gone.
    fn reread(&mut self) {
        for stored in &mut self.incidents {
            let text = serde_json::to_string(&stored.incident).expect("JSON");
            stored.incident = serde_json::from_str(&text).expect("read");
        }
    }

    fn only(&self) -> &Incident {
        let [one] = self.incidents.as_slice() else { panic!("{:?}", self.incidents) };
        &one.incident
    }
}

fn pids(incident: &Incident) -> Vec<u32> {
    incident.affected.iter().map(|client| client.pid).collect()
}

#[test]
fn daemon_death_includes_its_server_in_either_order() {
    for server_first in [false, true] {
        let mut journal = Journal::default();
        if server_first {
            journal.write(&server_died(5, &[2]));
        }
        journal.write(&daemon_died(&[2, 4]));
        journal.write(&DomainEvent::ServerExited { daemon: daemon("gpu0"), pid: 5 });
        journal.at = 900;
        journal.write(&ready());
        let over = journal.only();
        assert_eq!((over.kind, pids(over), over.occurrences), (IncidentKind::DaemonDied, vec![2, 4], 1));
        assert_eq!(
            over.summary(),
            "gpu0's control daemon died and was restarted after 0.9 s; 2 clients of demo lost their work"
        );
    }
}

#[test]
fn repeated_deaths_become_one_crash_loop() {
    let mut journal = Journal::default();
    journal.write(&daemon_died(&[7]));
    for _ in 0..4 {
        journal.at += 1_000;
        journal.write(&daemon_died(&[]));
    }
    journal.write(&crash_loop());
    let open = journal.only();
    assert_eq!((open.kind, open.occurrences, pids(open)), (IncidentKind::CrashLoop, 5, vec![7]));
    assert_eq!(open.summary(), "gpu0's control daemon keeps crashing; 1 client of web lost its work");
    assert_eq!((journal.opened, journal.worsened), (1, 1));
    journal.at += 60_000;
    journal.write(&ready());
    assert!(!journal.only().is_open());
}

#[test]
fn deaths_between_recoveries_join_their_crash_loop() {
    let mut journal = Journal::default();
    for pid in 1..=7 {
        journal.write(&daemon_died(&[pid]));
        if pid >= 5 {
            journal.write(&crash_loop());
        }
        journal.at += 5_000;
        journal.write(&ready());
        journal.reread();
    }
    let kinds: Vec<IncidentKind> = journal.incidents.iter().map(|one| one.incident.kind).collect();
    let (died, looping) = (IncidentKind::DaemonDied, IncidentKind::CrashLoop);
    assert_eq!(kinds, [died, died, died, died, looping]);
    let last = &journal.incidents[4].incident;
    assert_eq!((pids(last), last.occurrences), (vec![5, 6, 7], 3));
    assert_eq!(last.time_to_recovery_ms(), Some(5_000), "since it was opened last");
    assert_eq!((journal.opened, journal.worsened, journal.ended), (7, 1, 7));
    // Long after it, or once it was acknowledged, a death is one of its own.
    journal.at += CRASH_LOOP_MS + 1;
    journal.write(&daemon_died(&[8]));
    assert_eq!(journal.incidents.len(), 6);
}

#[test]
fn daemon_without_server_is_one_incident() {
    let mut journal = Journal::default();
    journal.write(&daemon_died(&[7]));
    let (reason, message) = (ConditionReason::ServerExits, "its server ends, twice".to_owned());
    let without = DomainEvent::DaemonWithoutServer(DaemonBlocker { daemon: daemon("gpu0"), reason, message });
    journal.write(&without);
    assert!(!journal.incidents[0].incident.is_open(), "the control daemon is back");
    journal.at += 1_000;
    journal.write(&without);
    assert_eq!(journal.incidents.len(), 2);
    let open = &journal.incidents[1].incident;
    assert_eq!((open.kind, open.occurrences, open.is_open()), (IncidentKind::NoServer, 2, true));
    assert_eq!(open.summary(), "gpu0 has no server: its server ends, twice");
    journal.at += 60_000;
    journal.write(&ready());
    assert!(!journal.incidents[1].incident.is_open());
}

#[test]
fn wedged_daemon_that_continues_keeps_all_work() {
    let reason = ConditionReason::Wedged;
    let message = "stopped (SIGSTOP): control daemon 7".to_owned();
    let wedged = DaemonBlocker { daemon: daemon("gpu0"), reason, message };
    let mut journal = Journal { connected: vec![id(2), id(3)], ..Journal::default() };
    journal.write(&DomainEvent::DaemonWedged(wedged));
    assert_eq!(journal.only().detail.as_deref(), Some("stopped (SIGSTOP): control daemon 7"));
    assert_eq!(journal.only().summary(), "gpu0 does not answer; no client lost its work");
    journal.write(&ready());
    assert_eq!((journal.only().unaffected, journal.only().affected.len()), (Some(2), 0));
}

#[test]
fn incident_recovers_after_manager_restart() {
    let mut journal = Journal::default();
    journal.write(&daemon_died(&[2]));
    journal.write(&drifted());
    journal.reread();
    journal.at = 5_000;
    journal.write(&ready());
    assert!(journal.incidents.iter().all(|one| one.incident.time_to_recovery_ms() == Some(5_000)));
}

#[test]
fn repeated_drift_reopens_until_acknowledged() {
    let mut journal = Journal::default();
    for _ in 0..3 {
        journal.write(&drifted());
        journal.write(&repaired());
        journal.at += 1_000;
    }
    assert_eq!((journal.only().occurrences, journal.only().time_to_recovery_ms()), (3, Some(0)));
    assert_eq!(
        journal.only().summary(),
        "Another program changed settings of gpu0 3 times, which are restored: memory limit is 1G instead of 8G"
    );
    let acknowledged = Acknowledgement { at: journal.at, by: Some("admin".into()), note: None };
    journal.incidents[0].incident.acknowledged = Some(acknowledged);
    journal.write(&drifted());
    assert_eq!(journal.incidents.len(), 2);
    journal.write(&repaired());
    journal.at += MEMORY_MS + 1;
    journal.write(&drifted());
    assert_eq!(journal.incidents.len(), 3, "long after the last one");
}

#[test]
fn stopped_and_deleted_daemons_have_no_open_incidents() {
    let stopped = DomainEvent::DaemonStopped { daemon: daemon("gpu0"), pid: 1 };
    let deleted = DomainEvent::DaemonDeleted { daemon: daemon("gpu0"), gpus: vec![], operation: None };
    for (event, by) in [(stopped, IncidentEnd::Stopped), (deleted, IncidentEnd::Replaced)] {
        let mut journal = Journal::default();
        journal.write(&daemon_died(&[]));
        journal.write(&event);
        assert_eq!(journal.only().ended_by, Some(by));
        assert!(journal.only().summary().starts_with("gpu0 was down after a crash until gpu0 was"));
    }
}

#[test]
fn change_of_gpus_and_layout_ends_both() {
    let mut journal = Journal::default();
    journal.write(&DomainEvent::GpuMissing { gpu: gpu(), daemon: daemon("gpu0"), board: None, left: vec![] });
    let layout = crate::event::DaemonLayout {
        daemon: daemon("gpu0"),
        layout: None,
        version: None,
        drift: vec![],
        degraded: vec![],
    };
    journal.write(&DomainEvent::LayoutDegraded(layout));
    let fields = vec!["gpus".to_owned(), "layout".to_owned()];
    journal.write(&DomainEvent::DaemonChanged {
        daemon: daemon("gpu0"),
        gpus: vec![],
        fields,
        operation: None,
    });
    let ends: Vec<_> = journal.incidents.iter().map(|one| one.incident.ended_by).collect();
    assert_eq!(ends, [Some(IncidentEnd::Replaced); 2]);
}

#[test]
fn refusals_name_the_tenant_and_are_over() {
    let refusal = |reason: &str| {
        DomainEvent::ClientRefused(ClientRefusal {
            daemon: daemon("gpu0"),
            server: 5,
            reason: reason.into(),
            pid: Some(9),
            tenant: Some(tenant("web")),
            process: None,
            logged_at: None,
        })
    };
    let mut journal = Journal::default();
    journal.write(&refusal("Maximum number of clients (48) reached."));
    journal.at = 47_000;
    journal.write(&refusal("Maximum number of clients (48) reached."));
    let refused = journal.only();
    assert_eq!(
        refused.summary(),
        "MPS refused a client of web of gpu0 twice: Maximum number of clients (48) reached."
    );
    assert_eq!(refused.tenants(), [tenant("web")]);
    assert!(!refused.is_open() && refused.suspects[0].has_ended);
    assert_eq!((refused.recovered_at, refused.time_to_recovery_ms()), (Some(47_000), None));
    assert_eq!((refused.occurrences, journal.opened, journal.ended), (2, 1, 1));
    // A server that handles a fault refuses everyone: that is no incident of its own.
    let mut journal = Journal::default();
    journal.write(&fault(5, &[3], &[3], KnownFrom::Poll));
    journal.write(&refusal("Server teardown in progress."));
    assert_eq!(journal.only().kind, IncidentKind::GpuFault);
}

#[test]
fn documentation_lists_every_kind() {
    let documented = include_str!("../../../../docs/incidents.md");
    let rows: Vec<&str> = documented.lines().filter(|line| line.starts_with("| `")).collect();
    let kinds: Vec<String> = IncidentKind::ALL
        .iter()
        .map(|kind| format!("| `{}` | {} | {} |", kind.as_str(), kind.severity().as_str(), kind.meaning()))
        .collect();
    assert_eq!(rows, kinds, "rewrite the table of docs/incidents.md:\n{}", kinds.join("\n"));
}

/// A blow to a daemon, or a client that comes or goes.
#[derive(Debug, Clone)]
enum Strike {
    Connect(u8),
    Leave,
    Fault { hit: u8, kills_server: bool },
    KillServer,
    KillDaemon { deaths: u8, server_first: bool },
    Drift,
}

fn strikes() -> impl Strategy<Value = Vec<(Strike, u32)>> {
    let strike = prop_oneof![
        4 => (1..6_u8).prop_map(Strike::Connect),
        1 => Just(Strike::Leave),
        2 => (1..6_u8, any::<bool>()).prop_map(|(hit, kills_server)| Strike::Fault { hit, kills_server }),
        2 => Just(Strike::KillServer),
        2 => (1..7_u8, any::<bool>()).prop_map(|(deaths, server_first)| Strike::KillDaemon { deaths, server_first }),
        1 => Just(Strike::Drift),
    ];
    prop::collection::vec((strike, 0..400_000_u32), 1..40)
}

/// A daemon under strikes, with the clients that each strike is expected to cost their work.
struct Struck {
    journal: Journal,
    server: u32,
    next_pid: u32,
    clients: Vec<u32>,
    expected: Vec<BTreeSet<u32>>,
    /// Index of the crash loop in `expected`, and the time until which another death belongs to it.
    crash_loop: Option<(usize, i64)>,
    drifts: usize,
}

impl Struck {
    fn strike(&mut self, strike: &Strike) {
        match strike {
            Strike::Connect(count) => {
                for _ in 0..*count {
                    self.clients.push(self.next_pid);
                    self.next_pid += 1;
                }
            }
            Strike::Leave => {
                if let Some(pid) = self.clients.pop() {
                    self.journal.write(&DomainEvent::ClientLeft(left(pid)));
                }
            }
            Strike::Fault { hit, kills_server } => {
                let hit: Vec<u32> = self.clients.iter().copied().take((*hit).into()).collect();
                if hit.is_empty() {
                    return;
                }
                let mut affected: BTreeSet<u32> = hit.iter().copied().collect();
                self.journal.write(&fault(self.server, &hit[..1], &hit, KnownFrom::Poll));
                if *kills_server {
                    affected.extend(&self.clients);
                    self.journal.write(&server_died(self.server, &self.clients));
                    self.leave_all(EventType::ServerDied);
                    self.replace_server();
                } else {
                    self.clients.retain(|pid| !affected.contains(pid));
                    for pid in &hit {
                        let event = DomainEvent::ClientLeft(left(*pid));
                        self.journal.write_because(&event, Some(EventType::ServerFault));
                    }
                    let recovered = DomainEvent::ServerRecovered { daemon: daemon("gpu0"), pid: self.server };
                    self.journal.write(&recovered);
                }
                self.expected.push(affected);
            }
            Strike::KillServer => {
                if self.clients.is_empty() {
                    self.journal
                        .write(&DomainEvent::ServerExited { daemon: daemon("gpu0"), pid: self.server });
                } else {
                    self.journal.write(&server_died(self.server, &self.clients));
                    self.expected.push(self.clients.iter().copied().collect());
                    self.leave_all(EventType::ServerDied);
                }
                self.replace_server();
            }
            Strike::KillDaemon { deaths, server_first } => {
                let is_server_first = *server_first && !self.clients.is_empty();
                let lasting =
                    self.crash_loop.filter(|(_, until)| !is_server_first && self.journal.at <= *until);
                match lasting {
                    Some((which, _)) => self.expected[which].extend(&self.clients),
                    None => self.expected.push(self.clients.iter().copied().collect()),
                }
                let which = lasting.map_or(self.expected.len() - 1, |(which, _)| which);
                if is_server_first {
                    self.journal.write(&server_died(self.server, &self.clients));
                }
                self.journal.write(&daemon_died(&self.clients));
                self.leave_all(EventType::DaemonDied);
                for death in 1..*deaths {
                    self.journal.at += 500;
                    self.journal.write(&daemon_died(&[]));
                    if death == 4 {
                        self.journal.write(&crash_loop());
                    }
                }
                self.journal.write(&ready());
                if lasting.is_some() || *deaths > 4 {
                    self.crash_loop = Some((which, self.journal.at + CRASH_LOOP_MS));
                }
                self.replace_server();
            }
            Strike::Drift => {
                self.drifts += 1;
                self.journal.write(&drifted());
                self.journal.write(&repaired());
            }
        }
        self.journal.connected = self.clients.iter().map(|pid| id(*pid)).collect();
    }

    fn leave_all(&mut self, because: EventType) {
        for pid in std::mem::take(&mut self.clients) {
            self.journal.write_because(&DomainEvent::ClientLeft(left(pid)), Some(because));
        }
    }

    fn replace_server(&mut self) {
        self.server += 1;
        self.journal.write(&server_started(self.server));
    }
}

proptest! {
    #[test]
    fn affected_clients_are_those_that_were_struck(history in strikes()) {
        let mut struck = Struck {
            journal: Journal::default(),
            server: 1_000_000,
            next_pid: 2,
            clients: Vec::new(),
            expected: Vec::new(),
            crash_loop: None,
            drifts: 0,
        };
        for (strike, pause) in &history {
            struck.journal.at += i64::from(*pause) + 1;
            struck.strike(strike);
            if pause.is_multiple_of(3) {
                struck.journal.reread();
            }
        }
        let losses = struck.journal.incidents.iter().filter(|one| one.incident.kind.loses_work());
        let found: Vec<BTreeSet<u32>> = losses.map(|one| pids(&one.incident).into_iter().collect()).collect();
        prop_assert_eq!(found, struck.expected);
        let all: Vec<u32> = struck.journal.incidents.iter().flat_map(|one| pids(&one.incident)).collect();
        prop_assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "no client is hit twice");
        let drifts = struck.journal.incidents.iter().filter(|one| one.incident.kind == IncidentKind::Drift);
        let times: u32 = drifts.map(|one| one.incident.occurrences).sum();
        prop_assert_eq!(usize::try_from(times).expect("few"), struck.drifts);
        prop_assert!(struck.journal.incidents.iter().all(|one| !one.incident.is_open()));
        prop_assert_eq!(struck.journal.opened, struck.journal.ended);
    }
}
