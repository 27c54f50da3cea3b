use super::super::{Result, Store, TransactionEnd};
use super::*;
use crate::domain::DaemonName;
use crate::domain::condition::ConditionReason;
use crate::domain::event::{
    AffectedClient, DaemonBlocker, DaemonDeath, DomainEvent, EventType, KnownFrom, LostEvents, LostWork,
    OperationFacts, ServerFault,
};
use crate::domain::fault::GpuFaultReport;
use crate::domain::incident::IncidentFilter;

fn daemon(name: &str) -> DaemonName {
    DaemonName::parse(name).expect("a name")
}

fn started(name: &str) -> NewEvent {
    DomainEvent::DaemonStarted { daemon: daemon(name), pid: 5 }.into()
}

fn died(name: &str) -> NewEvent {
    let lost = LostWork { clients: Vec::new(), is_uncertain: false };
    DomainEvent::DaemonDied { daemon: daemon(name), pid: 5, why: DaemonDeath::Unexplained, lost }.into()
}

fn drifted(name: &str) -> NewEvent {
    DomainEvent::SettingsDrifted { daemon: daemon(name), drifted: Vec::new(), command: None }.into()
}

async fn open() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&dir.path().join("test.db"), 0).await.expect("a store");
    (dir, store)
}

/// Writes events in one transaction each; gives their numbers.
async fn write(store: &Store, events: Vec<(NewEvent, i64)>, transaction_end: TransactionEnd) -> Vec<i64> {
    let mut ids = Vec::new();
    for (event, now) in events {
        let written: Result<i64> = store
            .write(move |db| Box::pin(async move { Ok((append(db, &event, now).await?, transaction_end)) }))
            .await;
        ids.push(written.expect("written"));
    }
    ids
}

async fn ids(store: &Store, filter: &EventFilter, order: Order, after: Option<i64>) -> Vec<i64> {
    let mut reader = store.read().await.expect("a reader");
    let events = page(&mut reader, filter, order, after, 100).await.expect("a page");
    // Incidents write events of their own between the others.
    let is_incident = |event: &Event| event.kind.as_str().starts_with("incident.");
    events.into_iter().filter(|event| !is_incident(event)).map(|event| event.id).collect()
}

/// The places of events among those that were written, counted from 1.
fn places(written: &[i64], found: &[i64]) -> Vec<usize> {
    let place = |id| written.iter().position(|one| one == id).expect("one of them") + 1;
    found.iter().map(place).collect()
}

#[tokio::test]
async fn event_ids_follow_commits_and_notify_watchers() {
    let (_dir, store) = open().await;
    let newest = store.newest_event();
    assert_eq!(*newest.borrow(), 0);
    let started = || (started("gpu0"), 5);
    assert_eq!(write(&store, vec![started(), started()], TransactionEnd::Commit).await, [1, 2]);
    assert_eq!(*newest.borrow(), 2);
    // What was tried and not kept takes no number.
    assert_eq!(write(&store, vec![started()], TransactionEnd::RollBack).await, [3]);
    assert_eq!(*newest.borrow(), 2);
    assert_eq!(write(&store, vec![started()], TransactionEnd::Commit).await, [3]);
    assert_eq!(*newest.borrow(), 3);
    let event = get(&mut store.read().await.expect("a reader"), 3).await.expect("read").expect("there");
    assert_eq!((event.id, event.at, event.kind), (3, 5, EventType::DaemonStarted));
    assert_eq!(event.subject, EventSubject::daemon(&daemon("gpu0")));
}

#[tokio::test]
async fn open_incidents_come_before_recovered_ones() {
    let (_dir, store) = open().await;
    let ready = || -> NewEvent { DomainEvent::DaemonReady { daemon: daemon("gpu0") }.into() };
    write(&store, vec![(drifted("gpu1"), 1), (died("gpu1"), 2)], TransactionEnd::Commit).await;
    for at in 3..9 {
        write(&store, vec![(died("gpu0"), at), (ready(), at)], TransactionEnd::Commit).await;
    }
    let mut reader = store.read().await.expect("a reader");
    let current = IncidentFilter::default().current(10);
    let worst = incidents::worst(&mut reader, &current, 3).await.expect("read");
    let ids: Vec<i64> = worst.iter().map(|one| one.id).collect();
    assert_eq!(ids, [2, 1, 8], "open ones by severity, then the newest");
    assert_eq!(incidents::count(&mut reader, &current).await.expect("counted"), (8, 2));
    let of_other = IncidentFilter { daemon: Some(daemon("gpu0")), ..current };
    assert_eq!(incidents::count(&mut reader, &of_other).await.expect("counted"), (6, 0));
}

#[tokio::test]
async fn opened_incident_has_its_severity() {
    let (_dir, store) = open().await;
    write(&store, vec![(drifted("gpu0"), 1), (died("gpu1"), 2)], TransactionEnd::Commit).await;
    let opened = EventFilter { types: vec![EventType::IncidentOpened], ..EventFilter::default() };
    let mut reader = store.read().await.expect("a reader");
    let events = page(&mut reader, &opened, Order::OldestFirst, None, 10).await.expect("a page");
    let severities: Vec<Severity> = events.iter().map(|event| event.severity).collect();
    assert_eq!(severities, [Severity::Warning, Severity::Error]);
}

#[tokio::test]
async fn events_are_filtered_by_subject_in_both_orders() {
    let (_dir, store) = open().await;
    let crashes =
        DaemonBlocker { daemon: daemon("gpu0"), reason: ConditionReason::CrashLoop, message: String::new() };
    let events = vec![
        (started("gpu0"), 10),
        (died("gpu1"), 20),
        (died("gpu0"), 30),
        (DomainEvent::DaemonCrashLoop(crashes).into(), 40),
    ];
    let written = write(&store, events, TransactionEnd::Commit).await;
    let all = EventFilter::default();
    for (order, after, expected) in [
        (Order::OldestFirst, None, vec![1, 2, 3, 4]),
        (Order::OldestFirst, Some(written[1]), vec![3, 4]),
        (Order::NewestFirst, None, vec![4, 3, 2, 1]),
        (Order::NewestFirst, Some(written[2]), vec![2, 1]),
    ] {
        assert_eq!(places(&written, &ids(&store, &all, order, after).await), expected, "after {after:?}");
    }
    let of = |change: fn(&mut EventFilter)| {
        let mut filter = EventFilter::default();
        change(&mut filter);
        filter
    };
    for (filter, expected) in [
        (of(|filter| filter.daemon = Some(daemon("gpu1"))), vec![2]),
        (of(|filter| filter.types = vec![EventType::DaemonDied]), vec![2, 3]),
        (of(|filter| filter.types = vec![EventType::DaemonDied, EventType::DaemonCrashLoop]), vec![2, 3, 4]),
        (of(|filter| filter.severity = Some(Severity::Critical)), vec![4]),
        (of(|filter| filter.severity = Some(Severity::Error)), vec![2, 3, 4]),
        (of(|filter| (filter.since, filter.until) = (Some(20), Some(40))), vec![2, 3]),
        (of(|filter| filter.client = Some("1-2".parse().expect("an ID"))), vec![]),
    ] {
        let found = ids(&store, &filter, Order::OldestFirst, None).await;
        assert_eq!(places(&written, &found), expected, "{filter:?}");
    }
}

#[tokio::test]
async fn event_with_several_subjects_is_found_by_each() {
    let (_dir, store) = open().await;
    let gpus = ["GPU-514466a0-8e68-f857-9f73-e438010e48cb", "GPU-614466a0-8e68-f857-9f73-e438010e48cb"];
    let gpus = gpus.map(|gpu| GpuUuid::parse(gpu).expect("uuid"));
    let daemons = [daemon("gpu0"), daemon("gpu1")];
    let about = |daemons: &[DaemonName], gpus: &[GpuUuid]| {
        let operation = OperationFacts {
            id: uuid::Uuid::nil(),
            kind: "begin_maintenance",
            daemons: daemons.to_vec(),
            gpus: gpus.to_vec(),
            client: None,
            tenant: None,
            layout: None,
        };
        (DomainEvent::OperationStarted(operation).into(), 1)
    };
    let events = vec![
        about(&daemons, &gpus),
        about(&daemons[..1], &gpus[..1]),
        about(&daemons[..1], &gpus),
        about(&daemons[1..], &gpus[1..]),
        about(&[], &[]),
    ];
    write(&store, events, TransactionEnd::Commit).await;
    let of = |daemon: Option<usize>, gpu: Option<usize>| EventFilter {
        daemon: daemon.map(|index| daemons[index].clone()),
        gpu: gpu.map(|index| gpus[index].clone()),
        ..EventFilter::default()
    };
    for (filter, expected) in [
        (of(Some(0), None), vec![1, 2, 3]),
        (of(Some(1), None), vec![1, 4]),
        (of(None, Some(0)), vec![1, 2, 3]),
        (of(None, Some(1)), vec![1, 3, 4]),
        (of(Some(0), Some(1)), vec![1, 3]),
        (of(Some(1), Some(1)), vec![1, 4]),
        (of(Some(1), Some(0)), vec![1]),
    ] {
        assert_eq!(ids(&store, &filter, Order::OldestFirst, None).await, expected, "{filter:?}");
        let back: Vec<i64> = expected.iter().rev().copied().collect();
        assert_eq!(ids(&store, &filter, Order::NewestFirst, None).await, back, "{filter:?}");
        let after: Vec<i64> = expected.iter().copied().filter(|id| *id > 1).collect();
        assert_eq!(ids(&store, &filter, Order::OldestFirst, Some(1)).await, after, "{filter:?}");
    }
    let mut reader = store.read().await.expect("a reader");
    let first = page(&mut reader, &of(None, Some(1)), Order::OldestFirst, None, 2).await.expect("a page");
    assert_eq!(first.iter().map(|event| event.id).collect::<Vec<_>>(), [1, 3]);
    drop(reader);
    let left: Result<i64> = store
        .commit(|db| {
            Box::pin(async move {
                prune(&mut *db, 100, 0, 100).await?;
                let left = sqlx::query_scalar("SELECT count(*) FROM event_subjects").fetch_one(db).await?;
                Ok(left)
            })
        })
        .await;
    assert_eq!(left.expect("pruned"), 0);
}

#[tokio::test]
async fn death_is_found_by_each_affected_tenant() {
    let (_dir, store) = open().await;
    let tenant = |name: &str| TenantName::parse(name).expect("a name");
    let lost = |names: &[&str]| {
        let clients =
            names.iter().map(|name| AffectedClient { tenant: Some(tenant(name)), ..AffectedClient::of(7) });
        let lost = LostWork { clients: clients.collect(), is_uncertain: false };
        (DomainEvent::ServerDied { daemon: daemon("gpu0"), pid: 5, lost }.into(), 1)
    };
    let own = DomainEvent::TenantCreated { tenant: tenant("a"), daemon: Some(daemon("gpu0")) };
    let written = write(
        &store,
        vec![lost(&["a", "b", "a"]), lost(&["b"]), (own.into(), 1), lost(&[])],
        TransactionEnd::Commit,
    )
    .await;
    for (name, on, expected) in [
        ("a", None, vec![1, 3]),
        ("b", None, vec![1, 2]),
        ("c", None, vec![]),
        ("a", Some("gpu0"), vec![1, 3]),
        ("a", Some("gpu1"), vec![]),
    ] {
        let filter =
            EventFilter { tenant: Some(tenant(name)), daemon: on.map(daemon), ..EventFilter::default() };
        let found = ids(&store, &filter, Order::OldestFirst, None).await;
        assert_eq!(places(&written, &found), expected, "{filter:?}");
    }
}

#[tokio::test]
async fn fault_from_log_alone_names_no_tenant() {
    let (_dir, store) = open().await;
    let tenant = TenantName::parse("a").expect("a name");
    let fault = |known_from: KnownFrom| {
        let clients = vec![AffectedClient { tenant: Some(tenant.clone()), ..AffectedClient::of(7) }];
        let (report, affected) =
            (GpuFaultReport { named_by_mps: vec![7], ..GpuFaultReport::default() }, vec![7]);
        let (daemon, logged_at) = (daemon("gpu0"), None);
        let fault = ServerFault { daemon, server: 5, report, affected, clients, known_from, logged_at };
        (DomainEvent::ServerFault(fault).into(), 1)
    };
    let written =
        write(&store, vec![fault(KnownFrom::ServerLog), fault(KnownFrom::Poll)], TransactionEnd::Commit)
            .await;
    let filter = EventFilter { tenant: Some(tenant.clone()), ..EventFilter::default() };
    assert_eq!(places(&written, &ids(&store, &filter, Order::OldestFirst, None).await), [2]);
}

#[tokio::test]
async fn streams_report_lost_events_of_their_scope() {
    let (_dir, store) = open().await;
    let lost = |lost: LostEvents| (DomainEvent::EventsLost(lost).into(), 1);
    let of_daemon = |name: &str| lost(LostEvents::LinesMissed { daemon: daemon(name) });
    let whole = lost(LostEvents::NotWritten { count: 1, from: 1, until: 1 });
    let events = vec![of_daemon("gpu0"), whole, of_daemon("gpu1")];
    write(&store, events, TransactionEnd::Commit).await;
    let mut reader = store.read().await.expect("a reader");
    for (tenant, of, from, expected) in [
        (None, None, None, vec![1, 2, 3]),
        (None, Some("gpu1"), None, vec![2, 3]),
        (Some("a"), None, None, vec![2]),
        (Some("a"), None, Some(3), vec![]),
    ] {
        let filter = EventFilter {
            types: vec![EventType::ClientLeft],
            tenant: tenant.map(|name| TenantName::parse(name).expect("a name")),
            daemon: of.map(daemon),
            from,
            ..EventFilter::default()
        };
        let events = follow(&mut reader, &filter, 0, 10).await.expect("events");
        assert_eq!(events.iter().map(|event| event.id).collect::<Vec<_>>(), expected, "{filter:?}");
    }
}

#[tokio::test]
async fn event_names_the_event_that_caused_it() {
    let (_dir, store) = open().await;
    let cause = EventTrigger::Latest(EventType::DaemonDied);
    let back = || (NewEvent { cause: cause.clone(), ..started("gpu0") }, 1);
    let events = vec![back(), (died("gpu0"), 1), (died("gpu1"), 1), back()];
    let written = write(&store, events, TransactionEnd::Commit).await;
    let mut reader = store.read().await.expect("a reader");
    let mut causes = Vec::new();
    for id in [written[0], written[3]] {
        causes.push(get(&mut reader, id).await.expect("read").expect("there").cause);
    }
    assert_eq!(causes, [EventCause::Manager, EventCause::Event { id: written[1] }]);
}

#[tokio::test]
async fn oldest_events_are_pruned_without_renumbering() {
    let (_dir, store) = open().await;
    let events = (0..10).map(|at| (started("gpu0"), at)).collect();
    write(&store, events, TransactionEnd::Commit).await;
    let pruned = |before, last, most| {
        let store = store.clone();
        async move {
            let done: Result<u64> = store.commit(move |db| Box::pin(prune(db, before, last, most))).await;
            done.expect("pruned")
        }
    };
    assert_eq!(pruned(4, 0, 3).await, 3, "by age, three at a time");
    assert_eq!(pruned(4, 0, 3).await, 1);
    assert_eq!(pruned(4, 0, 3).await, 0);
    assert_eq!(pruned(0, 9, 100).await, 5, "by number");
    let mut reader = store.read().await.expect("a reader");
    assert_eq!(
        (oldest(&mut reader).await.expect("read"), newest(&mut reader).await.expect("read")),
        (Some(10), 10)
    );
    drop(reader);
    assert_eq!(pruned(100, 100, 100).await, 1);
    assert_eq!(write(&store, vec![(died("gpu0"), 1)], TransactionEnd::Commit).await, [11]);
}

#[tokio::test]
async fn filtered_event_pages_use_an_index() {
    let (_dir, store) = open().await;
    let plan = |filter: EventFilter| {
        let store = store.clone();
        async move {
            let head = format!("EXPLAIN QUERY PLAN {COLUMNS}");
            let mut reader = store.read().await.expect("a reader");
            let mut query = select(&head, &filter, FoundAs::Itself, Order::NewestFirst, Some(5), 100);
            let rows = query.build().fetch_all(&mut *reader).await.expect("a plan");
            let lines = rows.iter().map(|row| row.get::<String, _>("detail"));
            lines.collect::<Vec<_>>().join("; ")
        }
    };
    let all = EventFilter::default();
    let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
    let client = Some("1-2".parse().expect("an ID"));
    for (filter, index) in [
        (all.clone(), "INTEGER PRIMARY KEY (rowid<?)"),
        (
            EventFilter { daemon: Some(daemon("gpu0")), ..all.clone() },
            "events_by_daemon (daemon=? AND rowid<?)",
        ),
        (EventFilter { gpu: Some(gpu), ..all.clone() }, "events_by_gpu (gpu=? AND rowid<?)"),
        (EventFilter { client, ..all.clone() }, "events_by_client (client=? AND rowid<?)"),
        (EventFilter { cause: Some(3), ..all.clone() }, "events_by_cause (<expr>=? AND rowid<?)"),
        (
            EventFilter { operation: Some(uuid::Uuid::nil()), ..all.clone() },
            "events_by_operation (operation=? AND rowid<?)",
        ),
        (
            EventFilter { types: vec![EventType::DaemonDied], ..all.clone() },
            "events_by_type (type=? AND rowid<?)",
        ),
    ] {
        let plan = plan(filter).await;
        assert!(plan.contains(index) && !plan.contains("TEMP B-TREE"), "{plan}");
    }
}

#[tokio::test]
async fn event_of_later_version_hides_no_other() {
    let (_dir, store) = open().await;
    let started = || (started("gpu0"), 5);
    write(&store, vec![started(), started(), started()], TransactionEnd::Commit).await;
    let changed: Result<()> = store
        .commit(|db| {
            Box::pin(async move {
                for change in [
                    "UPDATE events SET type = 'daemon.teleported' WHERE id = 1",
                    "UPDATE events SET cause = '{\"by\":\"a comet\"}', details = '{\"kind\":\"new\"}' WHERE id = 2",
                ] {
                    sqlx::query(change).execute(&mut *db).await?;
                }
                Ok(())
            })
        })
        .await;
    changed.expect("changed");
    let mut reader = store.read().await.expect("a reader");
    let all = EventFilter::default();
    let events = page(&mut reader, &all, Order::OldestFirst, None, 10).await.expect("a page");
    let seen: Vec<_> = events.iter().map(|event| (event.id, event.kind)).collect();
    let (unknown, known) = (EventType::EventUnknown, EventType::DaemonStarted);
    assert_eq!(seen, [(1, unknown), (2, known), (3, known)]);
    assert_eq!(
        events[0].message,
        "daemon.teleported: the control daemon of gpu0 was started (process 5) (this version cannot read its type)"
    );
    assert_eq!(events[0].subject, EventSubject::daemon(&daemon("gpu0")));
    assert_eq!(
        events[1].message,
        "daemon.started: the control daemon of gpu0 was started (process 5) (this version cannot read its cause, details)"
    );
    assert_eq!((events[1].cause.clone(), events[1].details.clone()), (EventCause::Manager, None));
    let followed = follow(&mut reader, &all, 0, 10).await.expect("followed");
    assert_eq!(followed.len(), 3);
}
