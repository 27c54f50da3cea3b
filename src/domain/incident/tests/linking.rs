//! The events and clients that belong to an incident.

use super::*;
use crate::event::IncidentNotice;

#[test]
fn incident_has_all_of_its_events() {
    let mut journal = Journal::default();
    journal.write(&daemon_died(&[10, 11]));
    journal.write(&DomainEvent::ClientLeft(left(10)));
    // One that was connected to another server, and lost nothing.
    journal.write(&DomainEvent::ClientLeft(left(12)));
    let started = DomainEvent::DaemonStarted { daemon: daemon("gpu0"), pid: 2 };
    journal.write_as(&started, None, Some(1));
    journal.write_as(&started, None, Some(3));
    let notice = |number| journal_notice(number);
    journal.write_as(&DomainEvent::IncidentOpened(notice(1)), None, Some(1));
    journal.write_as(&DomainEvent::IncidentOpened(notice(2)), None, Some(1));
    journal.write(&DomainEvent::ClientLeft(left(11)));
    journal.write(&ready());
    journal.write_as(&DomainEvent::IncidentRecovered(notice(1)), None, Some(9));
    assert_eq!(journal.only().events, [1, 2, 4, 6, 8, 9, 10]);
}

fn journal_notice(incident: i64) -> IncidentNotice {
    IncidentNotice {
        incident,
        kind: IncidentKind::DaemonDied,
        daemon: daemon("gpu0"),
        gpus: Vec::new(),
        tenants: Vec::new(),
        summary: String::new(),
    }
}

#[test]
fn clients_of_a_missing_gpu_lost_work() {
    let mut journal = Journal::default();
    journal.write(&DomainEvent::ClientLeft(left(10)));
    let lost = vec![(1, left(10).affected())];
    let board = Some("GPU 2 (PCI 00000000:00:04.0)".to_owned());
    journal.write(&DomainEvent::GpuMissing { gpu: gpu(), daemon: daemon("gpu0"), board, left: lost });
    journal.write(&DomainEvent::ClientLeft(left(11)));
    // One that the manager ended lost nothing with the GPU.
    journal.write_because(&DomainEvent::ClientLeft(left(12)), Some(EventType::DaemonStopped));
    journal.write(&ready());
    let open = journal.only();
    assert!(open.is_open() && open.events == [1, 2, 3]);
    assert_eq!(open.affected.iter().map(|client| client.pid).collect::<Vec<_>>(), [10, 11]);
    assert_eq!(
        open.summary(),
        "GPU 2 (PCI 00000000:00:04.0) of gpu0 is no longer listed by the driver; 2 clients of demo lost their work, as far as is known"
    );
    journal.write(&DomainEvent::GpuBack { gpu: gpu(), daemon: daemon("gpu0") });
    journal.write(&DomainEvent::ClientLeft(left(13)));
    assert_eq!((journal.only().is_open(), journal.only().affected.len()), (false, 2));
}

#[test]
fn missing_gpu_of_several_keeps_later_clients() {
    let mut journal = Journal::default();
    let gpus = GpuUuid::parse("GPU-00000000-8e68-f857-9f73-e438010e48cb").expect("a UUID");
    let missing =
        |gpu| DomainEvent::GpuMissing { gpu, daemon: daemon("gpu0"), board: None, left: Vec::new() };
    // Not the only one of its daemon: who leaves later may have worked on another.
    journal.write(&missing(gpus));
    journal.write(&DomainEvent::ClientLeft(left(11)));
    assert_eq!(journal.only().affected, []);
    assert!(journal.only().summary().ends_with("is no longer listed by the driver; no client lost its work"));
}
