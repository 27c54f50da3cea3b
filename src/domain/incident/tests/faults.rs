//! GPU faults: the clients that lost work, and the time of recovery.

use super::*;

/// A fault at 10 s that is open, of clients that connected at these times.
pub(in super::super) fn fault_incident(clients_at: &[(u32, Option<i64>)]) -> Incident {
    let pids: Vec<u32> = clients_at.iter().map(|(pid, _)| *pid).collect();
    let mut journal = Journal { at: 10_000, ..Journal::default() };
    journal.write(&fault(5, &[], &pids, KnownFrom::Poll));
    let mut incident = journal.only().clone();
    for (client, (_, at)) in incident.affected.iter_mut().zip(clients_at) {
        client.connected_at = *at;
    }
    incident
}

#[test]
fn fault_and_its_server_death_are_one_incident() {
    let mut journal = Journal { connected: vec![id(2), id(3), id(8)], ..Journal::default() };
    journal.write(&fault(5, &[3], &[2, 3], KnownFrom::Poll));
    let open = journal.only();
    assert_eq!(
        open.summary(),
        "Fatal GPU fault on gpu0: 2 clients of demo and web lost their work; 1 other client kept its work. \
         No new client is accepted yet"
    );
    assert!(open.remedy().contains("While the fault is open"));
    journal.at = 2_100;
    journal.write(&server_died(5, &[2, 3, 8]));
    journal.write(&server_started(6));
    let over = journal.only();
    assert_eq!((over.kind, pids(over)), (IncidentKind::GpuFault, vec![2, 3, 8]));
    assert_eq!((over.unaffected, over.time_to_recovery_ms()), (Some(0), Some(2_100)));
    assert_eq!(over.remedy(), "Restart the affected work.");
    assert_eq!(over.events, [1, 2, 3]);
    assert_eq!((journal.opened, journal.ended), (1, 1));
    assert_eq!(over.tenants(), [tenant("demo"), tenant("web")]);
    journal.at = 9_000;
    journal.write(&fault(5, &[3], &[2, 3], KnownFrom::ServerLog));
    assert_eq!(journal.only().recovered_at, Some(2_100), "its log is read later");
}

#[test]
fn fault_of_the_log_alone_hits_no_tenant() {
    let mut journal = Journal::default();
    journal.write(&fault(5, &[3], &[2, 3], KnownFrom::ServerLog));
    journal.write(&fault(5, &[3], &[2, 3], KnownFrom::ServerLog));
    let hint = journal.only().clone();
    assert!(!hint.is_open() && hint.is_hint && hint.tenants().is_empty());
    assert_eq!((hint.occurrences, journal.opened, journal.ended), (2, 1, 1));
    // A forged line hides no real loss.
    journal.write(&server_died(9, &[2, 3]));
    assert_eq!(pids(&journal.incidents[1].incident), [2, 3]);
}

#[test]
fn fault_over_before_poll_lasts_from_log_line() {
    let logged = |at: i64| {
        let fault = fault(5, &[3], &[2, 3], KnownFrom::ServerLogAndPoll);
        let DomainEvent::ServerFault(fault) = fault else { unreachable!("made as one") };
        DomainEvent::ServerFault(ServerFault { logged_at: Some(at), ..fault })
    };
    let mut journal = Journal { connected: vec![id(8)], at: 10_000_000, ..Journal::default() };
    journal.write(&logged(9_999_700));
    let over = journal.only();
    assert_eq!((over.opened_at, over.recovered_at), (9_999_700, Some(10_000_000)));
    assert_eq!(
        over.summary(),
        "Fatal GPU fault on gpu0: 2 clients of demo and web lost their work; 1 other client kept its work. \
         Recovered after 0.3 s"
    );
    assert_eq!(over.tenants(), [tenant("demo"), tenant("web")]);
    assert_eq!((journal.opened, journal.ended), (1, 1));
    journal.write(&server_died(5, &[2, 3]));
    assert_eq!(pids(&journal.incidents[1].incident), [0; 0], "their work was lost before");
    // A clock of another zone says nothing.
    for at in [10_000_000 + 3_600_000, 10_000_000 - 3_600_000] {
        let mut journal = Journal { at: 10_000_000, ..Journal::default() };
        journal.write(&logged(at));
        assert_eq!(journal.only().time_to_recovery_ms(), Some(0));
    }
    // A forged line before it takes nothing of it.
    let mut journal = Journal::default();
    journal.write(&fault(5, &[3], &[2, 3], KnownFrom::ServerLog));
    journal.write(&fault(5, &[3], &[2, 3], KnownFrom::ServerLogAndPoll));
    let hits: Vec<usize> = journal.incidents.iter().map(|one| one.incident.tenants().len()).collect();
    assert_eq!(hits, [0, 2]);
}

#[test]
fn next_fault_of_a_server_is_another_incident() {
    for known_from in [KnownFrom::Poll, KnownFrom::ServerLog, KnownFrom::ServerLogAndPoll] {
        let mut journal = Journal::default();
        journal.write(&fault(5, &[3], &[2, 3], known_from));
        journal.write(&DomainEvent::ServerRecovered { daemon: daemon("gpu0"), pid: 5 });
        journal.write(&fault(5, &[6], &[6, 7], KnownFrom::ServerLog));
        let affected: Vec<_> = journal.incidents.iter().map(|one| pids(&one.incident)).collect();
        assert_eq!(affected, [[2, 3], [6, 7]], "{known_from:?}");
    }
}

#[test]
fn fault_without_names_takes_those_who_leave() {
    let mut journal = Journal::default();
    journal.write(&fault(5, &[], &[], KnownFrom::Poll));
    assert!(journal.only().summary().contains("which clients lost their work is not known"));
    journal.write(&DomainEvent::ServerRecovered { daemon: daemon("gpu0"), pid: 5 });
    journal.write_because(&DomainEvent::ClientLeft(left(4)), Some(EventType::ServerFault));
    journal.write_because(&DomainEvent::ClientLeft(left(6)), None);
    assert_eq!((pids(journal.only()), journal.only().unaffected), (vec![4], None));
}

#[test]
fn mark_on_exit_belongs_to_the_fault() {
    let mut journal = Journal::default();
    journal.write(&fault(5, &[2], &[2, 3], KnownFrom::ServerLogAndPoll));
    let mark = |server, pid| DomainEvent::ClientInReset { daemon: daemon("gpu0"), server, pid };
    for (server, pid) in [(6, 3), (5, 4), (5, 3)] {
        journal.write(&mark(server, pid));
    }
    let marked: Vec<u32> = journal.only().suspected().iter().map(|one| one.pid).collect();
    assert_eq!((marked, journal.only().events.len()), (vec![3], 2));
}
