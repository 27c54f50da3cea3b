use super::*;
use crate::clock::Clock;
use crate::domain::access::Right;
use crate::domain::audit::{EXPIRE, Target};
use crate::domain::event::{Details, DomainEvent, Event, EventFilter, EventType};
use crate::service::Result;
use crate::service::access::context::RequestContext;
use crate::store::Store;
use crate::store::events::Order;
use crate::testing::{h200, spec};

fn gpu0() -> DaemonName {
    DaemonName::parse("gpu0").expect("a name")
}

fn web() -> TenantName {
    TenantName::parse("web").expect("a name")
}

/// A database with a daemon of one GPU.
async fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
    let created = change(&store, "PUT", false, |change| {
        Box::pin(async move { Ok(change.put_daemon(&gpu0(), DaemonSpec::of(vec![h200(0).uuid])).await?) })
    });
    created.await.expect("written");
    (directory, store)
}

/// Makes a change as the manager would, for the reason `action`.
async fn change<T, F>(store: &Store, action: &'static str, dry_run: bool, job: F) -> Result<Changed<T>>
where
    T: Send + 'static,
    F: for<'a, 'c> FnOnce(&'a mut Change<'c>) -> BoxFuture<'a, Result<T>> + Send + 'static,
{
    change_beside(store, None, action, dry_run, job).await
}

/// Makes a change with tenants that are in memory.
async fn change_beside<T, F>(
    store: &Store,
    cached: Option<Arc<TenantsOfDaemons>>,
    action: &'static str,
    dry_run: bool,
    job: F,
) -> Result<Changed<T>>
where
    T: Send + 'static,
    F: for<'a, 'c> FnOnce(&'a mut Change<'c>) -> BoxFuture<'a, Result<T>> + Send + 'static,
{
    let ctx = RequestContext::of_manager(Clock::system(), action, Target::Daemon(gpu0()));
    let permit = ctx.require(Right::Administer).expect("the manager may");
    let permit = if action == "ADOPT" { permit.adopting(gpu0()) } else { permit };
    let record = ChangeRecord::of(&permit, dry_run)?;
    let changed = store.write(move |db| {
        Box::pin(async move {
            let scope = ChangeScope::Whole;
            let mut change = Change::load(db, scope, cached, vec![h200(0)], 1, record, dry_run).await?;
            let value = job(&mut change).await?;
            let changed = change.finish(0, value).await?;
            let end = if changed.is_kept { TransactionEnd::Commit } else { TransactionEnd::RollBack };
            Ok::<_, ServiceError>((changed, end))
        })
    });
    changed.await
}

async fn put_web(store: &Store, dry_run: bool, more: &str) -> Tenant {
    let spec = spec(&format!("{{\"daemon\":\"gpu0\",\"uid\":7{more}}}"));
    let changed =
        change(store, "PUT", dry_run, |change| Box::pin(async move { change.put_tenant(&web(), spec) }));
    changed.await.expect("written").objects.tenants.get(&web()).expect("a tenant").clone()
}

async fn delete_web(store: &Store, action: &'static str) {
    let changed = change(store, action, false, |change| {
        Box::pin(async move {
            change.objects.tenants.remove(&web());
            Ok(())
        })
    });
    changed.await.expect("written");
}

async fn last_event(store: &Store) -> Event {
    let mut reader = store.read().await.expect("a reader");
    let filter = EventFilter::default();
    store::events::page(&mut reader, &filter, Order::NewestFirst, None, 1).await.expect("read").remove(0)
}

#[tokio::test]
async fn event_of_change_lists_changed_fields() {
    let (_directory, store) = store().await;
    let first = put_web(&store, false, ",\"sms\":8").await;
    let created = last_event(&store).await;
    assert_eq!(created.kind, EventType::TenantCreated);
    let second = put_web(&store, false, ",\"sms\":16").await;
    let changed = last_event(&store).await;
    assert_eq!(changed.kind, EventType::TenantChanged);
    assert_eq!(changed.details, Some(Details::Changed { fields: vec!["sms".to_owned()] }));
    assert_eq!(changed.subject.daemon, Some(gpu0()));
    assert_eq!((first.generation, second.generation), (1, 2));
    assert!(first.daemon_generation < second.daemon_generation);
    put_web(&store, false, ",\"sms\":16").await;
    assert_eq!(last_event(&store).await.id, changed.id, "nothing changed");
}

#[tokio::test]
async fn dry_run_is_numbered_and_not_saved() {
    let (_directory, store) = store().await;
    put_web(&store, false, "").await;
    delete_web(&store, "DELETE").await;
    let before = last_event(&store).await.id;
    let rehearsed = put_web(&store, true, "").await;
    assert_eq!(last_event(&store).await.id, before);
    let written = put_web(&store, false, "").await;
    assert_eq!((rehearsed.generation, written.generation), (2, 2), "an entity tag never fits another tenant");
    assert_eq!(rehearsed.daemon_generation, written.daemon_generation);
    let mut reader = store.read().await.expect("a reader");
    let stored = store::tenants::get(&mut reader, &web()).await.expect("read");
    assert_eq!(stored, Some(written));
    let daemon = store::daemons::get(&mut reader, &gpu0()).await.expect("read").expect("there");
    assert_eq!(daemon.generation, rehearsed.daemon_generation);
}

#[tokio::test]
async fn deletion_names_expiry_only_as_reason() {
    let (_directory, store) = store().await;
    for (action, expired) in [("DELETE", None), (EXPIRE, Some(Some(1_764_047_029_120)))] {
        put_web(&store, false, ",\"expires_at\":\"2025-11-25T05:03:49.120Z\"").await;
        delete_web(&store, action).await;
        let deleted = last_event(&store).await;
        let event =
            DomainEvent::TenantDeleted { tenant: web(), daemon: Some(gpu0()), expired_at: expired.flatten() };
        assert_eq!((deleted.kind, deleted.message), (EventType::TenantDeleted, event.message()));
        assert_eq!(deleted.details, event.details(), "{action}");
    }
}

#[tokio::test]
async fn adoption_and_release_have_own_events() {
    let (_directory, store) = store().await;
    assert_eq!(last_event(&store).await.kind, EventType::DaemonCreated);
    for (is_there, kind) in [(false, EventType::DaemonReleased), (true, EventType::DaemonAdopted)] {
        let changed = change(&store, "ADOPT", false, move |change| {
            Box::pin(async move {
                if is_there {
                    change.put_daemon(&gpu0(), DaemonSpec::of(vec![h200(0).uuid])).await?;
                } else {
                    change.remove_daemon(&gpu0());
                }
                Ok(())
            })
        });
        let held = changed.await.expect("written").objects.holder(&h200(0).uuid).cloned();
        assert_eq!((last_event(&store).await.kind, held), (kind, is_there.then(gpu0)));
    }
}

#[tokio::test]
async fn tenants_in_memory_count_while_they_hold() {
    let (_directory, store) = store().await;
    put_web(&store, false, ",\"sms\":8").await;
    // An empty list in place of the tenants shows which of the two was used.
    let cached = async || {
        let mut reader = store.read().await.expect("a reader");
        let daemons = store::daemons::all(&mut reader).await.expect("daemons");
        let marks = store::tenants::marks(&mut reader).await.expect("marks");
        Arc::new(TenantsOfDaemons { daemons, marks, tenants: Arc::default() })
    };
    let is_read = async |cached: &Arc<TenantsOfDaemons>| {
        let job = |change: &mut Change<'_>| change.objects.tenants.get(&web()).is_some();
        let cached = Some(Arc::clone(cached));
        let seen = change_beside(&store, cached, "PUT", true, move |change| {
            let is_there = job(change);
            Box::pin(async move { Ok(is_there) })
        });
        seen.await.expect("seen").value
    };
    let before = cached().await;
    assert!(!is_read(&before).await, "nothing has changed");
    put_web(&store, false, ",\"sms\":16").await;
    assert!(is_read(&before).await, "the generation of the daemon has");
    let before = cached().await;
    let finished = change(&store, "PUT", false, |change| {
        change.objects.tenants.get_mut(&web()).expect("there").finished = true;
        Box::pin(async { Ok(()) })
    });
    finished.await.expect("written");
    assert!(is_read(&before).await, "a mark has");
    assert!(!is_read(&cached().await).await);
}
