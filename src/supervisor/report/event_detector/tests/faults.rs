//! Faults of servers: the affected clients, and the evidence.

use super::*;
use crate::domain::event::KnownFrom;

const FAULT: &str = "Client {PID: 5, Context: 1} encountered a fatal GPU error.";
const STICKY: &str = "The following client process have a sticky error set:";

#[test]
fn only_the_affected_leave_because_of_a_fault() {
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(
        &mut event_detector,
        &ready(&[(20, "ACTIVE")]),
        &[client(5), client(6), client(7)],
        &mut server_log,
    );
    read_record(&mut server_log, &[FAULT, STICKY, "5", "6", "Client process 5 disconnected"]);
    let observations =
        detect(&mut event_detector, &ready(&[(20, "FAULT")]), &[client(6), client(7)], &mut server_log);
    assert_eq!(named(&observations, EventType::ServerFault), [5, 6]);
    assert_eq!(short(&observations), ["server.fault", "-5 after server.fault"]);
    // 7 ends normally before the server recovers.
    read_record(&mut server_log, &["Client process 7 disconnected"]);
    assert_eq!(
        short(&detect(&mut event_detector, &ready(&[(20, "FAULT")]), &[client(6)], &mut server_log)),
        ["-7"]
    );
    read_record(&mut server_log, &["Client process 6 disconnected"]);
    assert_eq!(
        short(&detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[], &mut server_log)),
        ["server.recovered", "-6 after server.fault"]
    );
}

#[test]
fn fault_waits_for_the_rest_of_its_lines() {
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5)], &mut server_log);
    // A client that leaves meanwhile is known all the same.
    read_record(&mut server_log, &[FAULT, "Client process 5 disconnected"]);
    let faulty = ready(&[(20, "FAULT")]);
    assert_eq!(short(&detect(&mut event_detector, &faulty, &[], &mut server_log)), ["-5 after server.fault"]);
    read_record(&mut server_log, &[STICKY, "5", "6"]);
    let observations = detect(&mut event_detector, &faulty, &[], &mut server_log);
    assert_eq!(named(&observations, EventType::ServerFault), [5, 6]);
    assert!(format!("{observations:?}").contains("pid: 5, client: Some("), "{observations:?}");
    // The event does not wait forever.
    let (mut event_detector, mut server_log) = (EventDetector::default(), ServerLogEvents::default());
    detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5)], &mut server_log);
    read_record(&mut server_log, &[FAULT]);
    detect(&mut event_detector, &faulty, &[client(5)], &mut server_log);
    assert_eq!(short(&detect(&mut event_detector, &faulty, &[client(5)], &mut server_log)), ["server.fault"]);
}

#[test]
fn server_fault_is_cause_of_client_disconnects() {
    let mut event_detector = EventDetector::default();
    reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[client(5), client(6)]);
    assert_eq!(
        reported(&mut event_detector, &ready(&[(20, "FAULT")]), &[client(6)]),
        ["server.fault", "-5 after server.fault"]
    );
    assert_eq!(
        reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[]),
        ["server.recovered", "-6 after server.fault"]
    );
}

#[test]
fn fault_event_names_its_source() {
    let mut event_detector = EventDetector::default();
    let mut server_log = ServerLogEvents::default();
    reported(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[]);
    let read_record = |server_log: &mut ServerLogEvents| read_record(server_log, &[FAULT, STICKY, "5"]);
    let from = |observations: &[Observation]| match &observations[0] {
        Observation::Event(event) => match event.event.details() {
            Some(Details::Fault { known_from, report, .. }) => (known_from, report.named_by_mps),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    read_record(&mut server_log);
    let faulty = detect(&mut event_detector, &ready(&[(20, "FAULT")]), &[], &mut server_log);
    assert_eq!(from(&faulty), (KnownFrom::Poll, vec![5]));
    assert_eq!(
        short(&detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[], &mut server_log)),
        ["server.recovered"]
    );
    read_record(&mut server_log);
    let logged = detect(&mut event_detector, &ready(&[(20, "ACTIVE")]), &[], &mut server_log);
    assert_eq!(from(&logged), (KnownFrom::ServerLog, vec![5]));
}

#[test]
fn logged_fault_is_confirmed_once_clients_are_gone() {
    let serves = ready(&[(20, "ACTIVE")]);
    let connected = || {
        let mut event_detector = EventDetector::default();
        reported(&mut event_detector, &serves, &[client(5), client(6)]);
        let mut server_log = ServerLogEvents::default();
        read_record(&mut server_log, &[FAULT, STICKY, "5", "6"]);
        (event_detector, server_log)
    };
    let fault = |observations: &[Observation]| match observations.first() {
        Some(Observation::Event(event)) => match &event.event {
            DomainEvent::ServerFault(fault) => {
                let known = fault.clients.iter().all(|client| client.client.is_some());
                Some((fault.known_from, known, fault.logged_at.is_some()))
            }
            other => panic!("{other:?}"),
        },
        _ => None,
    };
    let (mut event_detector, mut server_log) = connected();
    let seen = detect(&mut event_detector, &serves, &[], &mut server_log);
    assert_eq!(short(&seen), ["server.fault", "-5 after server.fault", "-6 after server.fault"]);
    assert_eq!(fault(&seen), Some((KnownFrom::ServerLogAndPoll, true, true)));
    // The poll listed them just before the fault.
    let (mut event_detector, mut server_log) = connected();
    let first = detect(&mut event_detector, &serves, &[client(5), client(6)], &mut server_log);
    assert!(first.is_empty(), "{:?}", short(&first));
    let second = detect(&mut event_detector, &serves, &[], &mut server_log);
    assert_eq!(fault(&second), Some((KnownFrom::ServerLogAndPoll, true, true)));
    // A forged fault: a client that it names goes on.
    let (mut event_detector, mut server_log) = connected();
    assert!(detect(&mut event_detector, &serves, &[client(6)], &mut server_log).len() < 2);
    let second = detect(&mut event_detector, &serves, &[client(6)], &mut server_log);
    assert_eq!(fault(&second), Some((KnownFrom::ServerLog, true, true)));
    // The next poll sees the server in the fault.
    let (mut event_detector, mut server_log) = connected();
    detect(&mut event_detector, &serves, &[client(5), client(6)], &mut server_log);
    let faulty = ready(&[(20, "FAULT")]);
    let seen = detect(&mut event_detector, &faulty, &[client(5), client(6)], &mut server_log);
    assert_eq!(fault(&seen), Some((KnownFrom::Poll, true, true)));
    // A client was gone at the poll before, and the published state changed in between.
    let (mut event_detector, _) = connected();
    let mut server_log = ServerLogEvents::default();
    read_record(&mut server_log, &["Client process 5 disconnected"]);
    let left = detect(&mut event_detector, &serves, &[client(6)], &mut server_log);
    assert_eq!(short(&left), ["-5"]);
    let desired = desired();
    for _ in 0..3 {
        let unpolled = Snapshot {
            desired: &desired,
            status: &serves,
            clients: &[client(6)],
            poll_failure: None,
            polled: false,
        };
        assert!(event_detector.detect(&unpolled, &mut server_log).is_empty());
    }
    read_record(&mut server_log, &[FAULT, STICKY, "5", "6"]);
    let seen = detect(&mut event_detector, &faulty, &[client(6)], &mut server_log);
    assert_eq!(fault(&seen), Some((KnownFrom::Poll, true, true)));
}
