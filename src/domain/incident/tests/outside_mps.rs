//! Processes outside MPS, and sockets that others have mounted.

use super::*;

#[test]
fn bypass_names_who_is_there_and_ends() {
    let process = |pid: u32, name: &str| Bypass { tenant: Some(tenant(name)), ..Bypass::of(pid, gpu()) };
    let (first, second) = (process(7, "web"), process(9, "demo"));
    let appeared = |one: &Bypass, present: &[&Bypass]| DomainEvent::BypassAppeared {
        daemon: daemon("gpu0"),
        processes: vec![one.clone()],
        unnamed: 0,
        present: present.iter().map(|one| (*one).clone()).collect(),
    };
    let mut journal = Journal::default();
    journal.write(&appeared(&first, &[&first]));
    assert_eq!(journal.only().summary(), "1 process of web uses a GPU of gpu0 outside MPS");
    journal.write(&ready());
    assert!(journal.only().is_open(), "a daemon that is ready does not end it");
    journal.write(&appeared(&second, &[&first, &second]));
    assert_eq!(journal.only().summary(), "2 processes of demo and web use a GPU of gpu0 outside MPS");
    journal.write(&DomainEvent::BypassChanged { daemon: daemon("gpu0"), present: vec![second] });
    let one_left = "1 process of demo uses a GPU of gpu0 outside MPS; 1 more has ended";
    assert_eq!(journal.only().summary(), one_left);
    assert_eq!(journal.only().tenants(), [tenant("demo"), tenant("web")], "both were concerned");
    journal.write(&DomainEvent::BypassEnded { daemon: daemon("gpu0") });
    assert_eq!(journal.only().summary(), "2 processes of demo and web used a GPU of gpu0 outside MPS");
}

#[test]
fn exposed_socket_names_process_container_and_path() {
    let exposure = |pid: u32, container: Option<&str>| SocketExposure {
        process: id(pid),
        uid: Some(0),
        program: Some("train".into()),
        container: container.map(|digit| digit.repeat(64)),
        point: "/mnt".into(),
    };
    let detected =
        |present: Vec<SocketExposure>| DomainEvent::ExposureDetected { daemon: daemon("gpu0"), present };
    let stopped = DomainEvent::DaemonStopped { daemon: daemon("gpu0"), pid: 1 };
    let mut journal = Journal::default();
    journal.write(&detected(vec![exposure(7, Some("a"))]));
    let head = "gpu0's own directory is mounted in another mount namespace: ";
    let first = "process 7 of uid 0 (train) in container aaaaaaaaaaaa has it at /mnt";
    assert_eq!(journal.only().summary(), format!("{head}{first}"));
    assert!(journal.only().tenants().is_empty() && journal.only().remedy().contains("container.mount"));
    journal.write(&stopped);
    journal.write(&ready());
    assert!(journal.only().is_open(), "it outlives the daemon");
    journal.write(&detected(vec![exposure(7, Some("a")), exposure(9, None)]));
    let second = "process 9 of uid 0 (train) has it at /mnt";
    assert_eq!(journal.only().summary(), format!("{head}{first}, {second}"));
    assert_eq!(journal.only().suspects.len(), 2);
    let times = journal.only().occurrences;
    journal.write(&detected(vec![exposure(9, None)]));
    assert_eq!(journal.only().summary(), format!("{head}{second}"));
    let has_ended: Vec<bool> = journal.only().suspects.iter().map(|one| one.has_ended).collect();
    assert_eq!(has_ended, [true, false]);
    assert_eq!(journal.only().occurrences, times, "nothing new");
    // The number of the first is another process's now.
    let mut reused = exposure(7, None);
    reused.process.start_time += 1;
    journal.write(&detected(vec![reused]));
    let identities: Vec<(u32, bool)> =
        journal.only().suspects.iter().map(|one| (one.pid, one.has_ended)).collect();
    assert_eq!(identities, [(7, true), (9, true), (7, false)]);
    journal.write(&DomainEvent::ExposureEnded { daemon: daemon("gpu0") });
    let last = "process 7 of uid 0 (train) has it at /mnt";
    assert_eq!(journal.only().summary(), format!("{}{last}", head.replace(" is ", " was ")));
    assert_eq!((journal.opened, journal.ended), (1, 1));
}

#[test]
fn bypass_named_later_is_no_second_one() {
    let bypass = |pid: u32| Bypass::of(pid, gpu());
    let appeared = |processes: &[u32], present: &[u32]| DomainEvent::BypassAppeared {
        daemon: daemon("gpu0"),
        processes: processes.iter().map(|pid| bypass(*pid)).collect(),
        unnamed: 0,
        present: present.iter().map(|pid| bypass(*pid)).collect(),
    };
    let ended = DomainEvent::BypassEnded { daemon: daemon("gpu0") };
    let mut journal = Journal::default();
    // The first is written; the second came and went in the minute after that, and is named after it.
    for event in [appeared(&[7], &[7]), ended.clone(), appeared(&[8], &[8]), ended, appeared(&[8], &[])] {
        journal.write(&event);
    }
    let over = journal.only();
    assert_eq!((over.is_open(), over.occurrences, over.events.len()), (false, 2, 5));
    assert!(over.suspects.iter().all(|one| one.has_ended), "{:?}", over.suspects);
    assert_eq!((journal.opened, journal.ended), (2, 2));
}
