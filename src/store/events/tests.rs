use super::super::{Fate, Store};
use super::*;
use crate::domain::DaemonName;
use crate::domain::event::EventType;

fn daemon(name: &str) -> DaemonName {
    DaemonName::parse(name).expect("a name")
}

fn told(kind: EventType, name: &str) -> NewEvent {
    NewEvent::new(kind, Subject::daemon(&daemon(name)), "it happened")
}

async fn open() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&dir.path().join("test.db"), 0).await.expect("a store");
    (dir, store)
}

/// Writes events in one transaction each; gives their numbers.
async fn write(store: &Store, events: Vec<(NewEvent, i64)>, fate: Fate) -> Vec<i64> {
    let mut ids = Vec::new();
    for (event, now) in events {
        let written: Result<i64, StoreError> =
            store.write(move |db| Box::pin(async move { Ok((append(db, &event, now).await?, fate)) })).await;
        ids.push(written.expect("written"));
    }
    ids
}

async fn ids(store: &Store, filter: &EventFilter, order: Order, after: Option<i64>) -> Vec<i64> {
    let mut reader = store.read().await.expect("a reader");
    let events = page(&mut reader, filter, order, after, 100).await.expect("a page");
    events.into_iter().map(|event| event.id).collect()
}

#[tokio::test]
async fn numbers_are_those_of_the_commits_and_raise_the_watch() {
    let (_dir, store) = open().await;
    let newest = store.newest_event();
    assert_eq!(*newest.borrow(), 0);
    let started = || (told(EventType::DaemonStarted, "gpu0"), 5);
    assert_eq!(write(&store, vec![started(), started()], Fate::Commit).await, [1, 2]);
    assert_eq!(*newest.borrow(), 2);
    // What was tried and not kept takes no number.
    assert_eq!(write(&store, vec![started()], Fate::RollBack).await, [3]);
    assert_eq!(*newest.borrow(), 2);
    assert_eq!(write(&store, vec![started()], Fate::Commit).await, [3]);
    assert_eq!(*newest.borrow(), 3);
    let event = get(&mut store.read().await.expect("a reader"), 3).await.expect("read").expect("there");
    assert_eq!((event.id, event.at, event.kind), (3, 5, EventType::DaemonStarted));
    assert_eq!(event.subject, Subject::daemon(&daemon("gpu0")));
}

#[tokio::test]
async fn events_are_found_by_what_they_are_about_in_both_orders() {
    let (_dir, store) = open().await;
    let events = vec![
        (told(EventType::DaemonStarted, "gpu0"), 10),
        (told(EventType::DaemonDied, "gpu1"), 20),
        (told(EventType::DaemonDied, "gpu0"), 30),
        (told(EventType::DaemonCrashLoop, "gpu0"), 40),
    ];
    write(&store, events, Fate::Commit).await;
    let all = EventFilter::default();
    assert_eq!(ids(&store, &all, Order::OldestFirst, None).await, [1, 2, 3, 4]);
    assert_eq!(ids(&store, &all, Order::OldestFirst, Some(2)).await, [3, 4]);
    assert_eq!(ids(&store, &all, Order::NewestFirst, None).await, [4, 3, 2, 1]);
    assert_eq!(ids(&store, &all, Order::NewestFirst, Some(3)).await, [2, 1]);
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
        assert_eq!(ids(&store, &filter, Order::OldestFirst, None).await, expected, "{filter:?}");
    }
}

#[tokio::test]
async fn what_is_about_several_is_found_by_each_in_order_and_is_pruned_whole() {
    let (_dir, store) = open().await;
    let gpus = ["GPU-514466a0-8e68-f857-9f73-e438010e48cb", "GPU-614466a0-8e68-f857-9f73-e438010e48cb"];
    let gpus = gpus.map(|gpu| GpuUuid::parse(gpu).expect("uuid"));
    let daemons = [daemon("gpu0"), daemon("gpu1")];
    let about = |daemons: &[DaemonName], gpus: &[GpuUuid]| {
        (NewEvent::new(EventType::OperationStarted, Subject::default(), "it began").about(daemons, gpus), 1)
    };
    let events = vec![
        about(&daemons, &gpus),
        about(&daemons[..1], &gpus[..1]),
        about(&daemons[..1], &gpus),
        about(&daemons[1..], &gpus[1..]),
        about(&[], &[]),
    ];
    write(&store, events, Fate::Commit).await;
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
    let left: Result<i64, StoreError> = store
        .write(|db| {
            Box::pin(async move {
                prune(&mut *db, 100, 0, 100).await?;
                let left = sqlx::query_scalar("SELECT count(*) FROM event_also").fetch_one(db).await?;
                Ok((left, Fate::Commit))
            })
        })
        .await;
    assert_eq!(left.expect("pruned"), 0);
}

#[tokio::test]
async fn what_follows_on_another_event_names_it() {
    let (_dir, store) = open().await;
    let back = || (told(EventType::DaemonStarted, "gpu0").because(Because::Latest(EventType::DaemonDied)), 1);
    let events = vec![
        back(),
        (told(EventType::DaemonDied, "gpu0"), 1),
        (told(EventType::DaemonDied, "gpu1"), 1),
        back(),
    ];
    write(&store, events, Fate::Commit).await;
    let mut reader = store.read().await.expect("a reader");
    let all = page(&mut reader, &EventFilter::default(), Order::OldestFirst, None, 9).await.expect("a page");
    assert_eq!((&all[0].cause, &all[3].cause), (&Cause::Manager, &Cause::Event { id: 2 }));
}

#[tokio::test]
async fn the_oldest_are_pruned_in_steps_and_their_numbers_stay_theirs() {
    let (_dir, store) = open().await;
    let events = (0..10).map(|at| (told(EventType::DaemonStarted, "gpu0"), at)).collect();
    write(&store, events, Fate::Commit).await;
    let pruned = |before, last, most| {
        let store = store.clone();
        async move {
            let done: Result<u64, StoreError> = store
                .write(move |db| {
                    Box::pin(async move { Ok((prune(db, before, last, most).await?, Fate::Commit)) })
                })
                .await;
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
    assert_eq!(write(&store, vec![(told(EventType::DaemonDied, "gpu0"), 1)], Fate::Commit).await, [11]);
}

#[tokio::test]
async fn a_page_of_what_is_asked_for_is_read_by_an_index() {
    let (_dir, store) = open().await;
    let plan = |filter: EventFilter| {
        let store = store.clone();
        async move {
            let head = format!("EXPLAIN QUERY PLAN {COLUMNS}");
            let mut reader = store.read().await.expect("a reader");
            let mut query = select(&head, &filter, Found::Itself, Order::NewestFirst, Some(5), 100);
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
async fn an_event_of_a_later_version_hides_no_other() {
    let (_dir, store) = open().await;
    let started = || (told(EventType::DaemonStarted, "gpu0"), 5);
    write(&store, vec![started(), started(), started()], Fate::Commit).await;
    let changed: Result<(), StoreError> = store
        .write(|db| {
            Box::pin(async move {
                for change in [
                    "UPDATE events SET type = 'daemon.teleported' WHERE id = 1",
                    "UPDATE events SET cause = '{\"by\":\"a comet\"}', details = '{\"kind\":\"new\"}' WHERE id = 2",
                ] {
                    sqlx::query(change).execute(&mut *db).await?;
                }
                Ok(((), Fate::Commit))
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
    assert_eq!(events[0].message, "daemon.teleported: it happened (this version cannot read its type)");
    assert_eq!(events[0].subject, Subject::daemon(&daemon("gpu0")));
    assert_eq!(
        events[1].message,
        "daemon.started: it happened (this version cannot read its cause, details)"
    );
    assert_eq!((events[1].cause.clone(), events[1].details.clone()), (Cause::Manager, None));
    let followed = follow(&mut reader, &all, 0, 10).await.expect("followed");
    assert_eq!(followed.len(), 3);
}
