//! Layouts, their versions, and what each daemon holds or is to hold of them.

use uuid::Uuid;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, StoreError, events, to_json};
use crate::domain::daemon::Daemon;
use crate::domain::event::{DomainEvent, EventCause};
use crate::domain::gpu::Gpu;
use crate::domain::layout::active::{
    ActiveLayout, AppliedLayout, DesiredLayout, LayoutChange, PartitionIdSource, Previous,
};
use crate::domain::layout::{Enforcement, GpuMap, Layout, Version, VersionRef, percentage, record};
use crate::domain::{DaemonName, LayoutName};

/// Reads versions of layouts, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query_as!(
            Version,
            r#"SELECT layout AS "name: AsText<LayoutName>", version AS "version: u32", content AS "layout: AsJson<Layout>", author,
                note, created_at FROM layout_versions AS newest "# + $rest
            $(, $value)*
        )
    };
}

/// A version that is to be written.
#[derive(Debug)]
pub struct NewVersion<'v> {
    /// Content of the version.
    pub layout: &'v Layout,
    /// Author of the version.
    pub author: &'v str,
    /// Reason for the version, as its author gives it.
    pub note: Option<&'v str>,
    /// Origin of the version, if it was imported.
    pub provenance: Option<&'v serde_json::Value>,
}

/// The newest version of a layout.
pub async fn newest(db: &mut Db, name: &LayoutName) -> Result<Option<Version>> {
    let query = select!("WHERE layout = ? ORDER BY version DESC LIMIT 1", name.as_str());
    Ok(query.fetch_optional(db).await?)
}

/// One version of a layout.
pub async fn version(db: &mut Db, wanted: &VersionRef) -> Result<Option<Version>> {
    let query = select!("WHERE layout = ? AND version = ?", wanted.name.as_str(), wanted.version);
    Ok(query.fetch_optional(db).await?)
}

/// Up to `limit` layouts by name, each in its newest version, from the one after `after`.
pub async fn page(db: &mut Db, after: &str, limit: i64) -> Result<Vec<Version>> {
    let query = select!(
        "WHERE layout > ?1 AND version = (SELECT max(version) FROM layout_versions WHERE layout = newest.layout)
           ORDER BY layout LIMIT ?2",
        after,
        limit
    );
    Ok(query.fetch_all(db).await?)
}

/// The last row of any version; 0 before the first. Rows are added and removed, and never changed.
pub async fn last_row(db: &mut Db) -> Result<i64> {
    // The macro does not know the type of a row's number.
    Ok(sqlx::query_scalar("SELECT coalesce(max(rowid), 0) FROM layout_versions").fetch_one(db).await?)
}

/// The versions that were written after a row, in their order.
pub async fn written_after(db: &mut Db, row: i64) -> Result<Vec<Version>> {
    Ok(select!("WHERE rowid > ? ORDER BY rowid", row).fetch_all(db).await?)
}

/// Up to `limit` versions of a layout, the newest first, from the one before `before`.
pub async fn versions(
    db: &mut Db,
    name: &LayoutName,
    before: Option<u32>,
    limit: i64,
) -> Result<Vec<Version>> {
    let before = before.map_or(i64::MAX, i64::from);
    let query = select!(
        "WHERE layout = ? AND version < ? ORDER BY version DESC LIMIT ?",
        name.as_str(),
        before,
        limit
    );
    Ok(query.fetch_all(db).await?)
}

/// The number that the next version of a layout has: 1, or one more than any that it ever had.
pub async fn next_number(db: &mut Db, name: &LayoutName) -> Result<u32> {
    let highest = sqlx::query_scalar!(
        r#"SELECT version AS "version: u32" FROM layout_counters WHERE layout = ?"#,
        name.as_str()
    );
    Ok(highest.fetch_optional(db).await?.unwrap_or(0) + 1)
}

/// Writes a version with the next number; returns that number.
pub async fn put(db: &mut Db, name: &LayoutName, new: &NewVersion<'_>, now: i64) -> Result<u32> {
    let number = next_number(&mut *db, name).await?;
    execute!(
        db,
        "INSERT INTO layouts (name, created_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
        name.as_str(),
        now
    )?;
    execute!(
        db,
        "INSERT INTO layout_versions (layout, version, content, author, note, created_at, provenance)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        name.as_str(),
        number,
        to_json(new.layout),
        new.author,
        new.note,
        now,
        new.provenance.map(to_json)
    )?;
    let event = DomainEvent::LayoutVersionWritten { layout: name.clone(), version: number };
    let by = EventCause::Actor { subject: new.author.to_owned() };
    events::append(db, &event.because(by), now).await?;
    Ok(number)
}

/// Returns the origin of a version, if it was imported.
pub async fn provenance(db: &mut Db, wanted: &VersionRef) -> Result<Option<serde_json::Value>> {
    let query = sqlx::query_scalar!(
        r#"SELECT provenance AS "provenance: AsJson<serde_json::Value>" FROM layout_versions WHERE layout = ? AND version = ?"#,
        wanted.name.as_str(),
        wanted.version
    );
    Ok(query.fetch_optional(db).await?.flatten().map(|provenance| provenance.0))
}

/// Deletes a layout with all its versions and the records about it.
///
/// The caller has made sure that no daemon names it and no operation waits for it.
pub async fn delete(db: &mut Db, name: &LayoutName) -> Result<()> {
    execute!(db, "DELETE FROM applied_layouts WHERE layout = ?", name.as_str())?;
    execute!(db, "DELETE FROM layouts WHERE name = ?", name.as_str())
}

/// Returns the record of a daemon's layout: the partition IDs that its steps gave.
pub async fn applied(db: &mut Db, daemon: &DaemonName) -> Result<Option<AppliedLayout>> {
    let query = sqlx::query!(
        r#"SELECT layout AS "name: AsText<LayoutName>", version AS "version: u32", gpu_map AS "gpu_map: AsJson<GpuMap>",
               record AS "record: AsJson<record::Record>", source AS "source: AsText<PartitionIdSource>"
           FROM applied_layouts WHERE daemon = ?"#,
        daemon.as_str()
    );
    let applied = query.map(|row| AppliedLayout {
        version: VersionRef { name: row.name.0, version: row.version },
        gpu_map: row.gpu_map.0,
        record: row.record.0,
        source: row.source.0,
    });
    Ok(applied.fetch_optional(db).await?)
}

/// Writes the record of a daemon's layout, or deletes it.
pub async fn put_applied(
    db: &mut Db,
    daemon: &DaemonName,
    applied: Option<&AppliedLayout>,
    now: i64,
) -> Result<()> {
    let Some(applied) = applied else {
        return execute!(db, "DELETE FROM applied_layouts WHERE daemon = ?", daemon.as_str());
    };
    execute!(
        db,
        "INSERT OR REPLACE INTO applied_layouts (daemon, layout, version, gpu_map, record, source, at)
         VALUES (?, ?, ?, ?, ?, ?, ?)",
        daemon.as_str(),
        applied.version.name.as_str(),
        applied.version.version,
        to_json(&applied.gpu_map),
        to_json(&applied.record),
        applied.source.as_str(),
        now
    )
}

/// The change of a daemon's layout that is under way, and the operation that makes it.
pub async fn change(db: &mut Db, daemon: &DaemonName) -> Result<Option<(Uuid, LayoutChange)>> {
    let query = sqlx::query!(
        r#"SELECT operation AS "operation!: AsText<Uuid>", previous AS "previous: AsJson<Previous>", recreate AS "recreate: bool"
           FROM layout_changes WHERE daemon = ?"#,
        daemon.as_str()
    );
    let change =
        query.map(|row| (row.operation.0, LayoutChange { previous: row.previous.0, recreate: row.recreate }));
    Ok(change.fetch_optional(db).await?)
}

/// Writes a change of a daemon's layout, in place of an earlier one of the same operation.
pub async fn put_change(
    db: &mut Db,
    operation: Uuid,
    daemon: &DaemonName,
    change: &LayoutChange,
) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO layout_changes (operation, daemon, previous, recreate) VALUES (?, ?, ?, ?)",
        operation.to_string(),
        daemon.as_str(),
        to_json(&change.previous),
        change.recreate
    )
}

/// The layout of a daemon as its driver applies it; `None` for a daemon without one.
pub async fn desired(db: &mut Db, daemon: &Daemon, gpus: &[Gpu]) -> Result<Option<DesiredLayout>> {
    let Some(active) = &daemon.spec.layout else { return Ok(None) };
    let layout = content(&mut *db, active).await?;
    let applied = applied(&mut *db, &daemon.name).await?;
    let change = change(&mut *db, &daemon.name).await?.map(|(_, change)| change);
    let unplannable = |error: crate::domain::InvalidValue| StoreError::Unplannable {
        daemon: daemon.name.clone(),
        detail: error.to_string(),
    };
    let desired = DesiredLayout::of(active, &layout, applied.as_ref(), change.as_ref(), gpus);
    let mut desired = desired.map_err(unplannable)?;
    if layout.enforcement == Enforcement::Percentage {
        desired.shares = percentage::shares(&layout, &active.gpu_map, gpus).map_err(unplannable)?;
    }
    Ok(Some(desired))
}

/// Returns the content of a daemon's layout.
pub async fn content(db: &mut Db, active: &ActiveLayout) -> Result<Layout> {
    let wanted = active.version_ref();
    let stored = version(db, &wanted).await?;
    stored.map(|stored| stored.layout).ok_or_else(|| StoreError::Corrupt {
        what: "a daemon's layout",
        detail: format!("there is no layout {wanted}"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Store, daemons, operations, partitions, plans};
    use super::*;
    use crate::domain::daemon::DaemonSpec;
    use crate::domain::layout::active::{PartitionIdSource, Previous};
    use crate::domain::layout::record::{PartitionRun, Record, RecordedStep};
    use crate::domain::operation::{OperationEnd, OperationRequest};
    use crate::domain::{PartitionId, PartitionName};
    use crate::testing::h200;

    fn layout(chunks: u32) -> Layout {
        let step = format!("{{\"add\": {{\"gpu\": 0, \"partition\": \"web\", \"chunks\": {chunks}}}}}");
        serde_json::from_str(&format!("{{\"steps\": [{step}]}}")).expect("a layout")
    }

    fn name(text: &str) -> LayoutName {
        LayoutName::parse(text).expect("a name")
    }

    async fn write<T: Send + 'static>(
        store: &Store,
        job: impl for<'c> FnOnce(&'c mut Db) -> futures_util::future::BoxFuture<'c, Result<T>> + Send + 'static,
    ) -> Result<T> {
        store.commit(job).await
    }

    async fn write_version(store: &Store, layout_name: &str, chunks: u32) -> u32 {
        let layout_name = name(layout_name);
        let written = write(store, move |db| {
            Box::pin(async move {
                let layout = layout(chunks);
                let new = NewVersion { layout: &layout, author: "me", note: Some("why"), provenance: None };
                put(db, &layout_name, &new, 7).await
            })
        });
        written.await.expect("written")
    }

    #[tokio::test]
    async fn versions_are_counted_listed_and_never_changed() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        for (layout, chunks, number) in [("a", 1, 1), ("a", 2, 2), ("b", 3, 1), ("a", 4, 3)] {
            assert_eq!(write_version(&store, layout, chunks).await, number);
        }
        let mut db = store.read().await.expect("a reader");
        let listed = page(&mut db, "", 10).await.expect("listed");
        let seen: Vec<_> = listed.iter().map(|one| one.version_ref().to_string()).collect();
        assert_eq!(seen, ["a version 3", "b version 1"]);
        let older = versions(&mut db, &name("a"), Some(3), 1).await.expect("listed");
        assert_eq!((older.len(), &older[0].layout, older[0].version), (1, &layout(2), 2));
        let first = version(&mut db, &VersionRef { name: name("a"), version: 1 }).await.expect("read");
        let first = first.expect("there");
        assert_eq!((first.author.as_str(), first.note.as_deref(), first.created_at), ("me", Some("why"), 7));
        drop(db);
        let changed = write(&store, |db| {
            Box::pin(async move {
                sqlx::query("UPDATE layout_versions SET content = '{}'").execute(db).await?;
                Ok(())
            })
        });
        let error = changed.await.expect_err("never changed").to_string();
        assert!(error.contains("never changed"), "{error}");
        write(&store, |db| Box::pin(async move { delete(db, &name("a")).await })).await.expect("deleted");
        let mut db = store.read().await.expect("a reader");
        assert_eq!(newest(&mut db, &name("a")).await.expect("read"), None);
        assert_eq!(newest(&mut db, &name("b")).await.expect("read").expect("there").version, 1);
    }

    fn run(chunks: u32, before: bool) -> PartitionRun {
        let step = RecordedStep {
            gpu: h200(0).uuid,
            partition: PartitionName::parse("web").expect("a name"),
            chunks,
            change: crate::domain::layout::PartitionChange::Add,
            id: PartitionId::parse("Dx4A").expect("an ID"),
        };
        let mut run = PartitionRun::new("token".into());
        run.layout = Some(VersionRef { name: name("a"), version: 1 });
        run.record = Record(vec![step]);
        run.before = before.then(Default::default);
        run
    }

    #[tokio::test]
    async fn first_completed_run_is_the_reference() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        write_version(&store, "a", 3).await;
        let daemon = DaemonName::parse("gpu0").expect("a name");
        let active: ActiveLayout = serde_json::from_value(serde_json::json!({
            "name": "a", "version": 1, "gpu_map": {"0": h200(0).uuid},
        }))
        .expect("a layout");
        let key = daemon.clone();
        write(&store, move |db| {
            Box::pin(async move {
                let spec = DaemonSpec { layout: Some(active), ..DaemonSpec::of(vec![h200(0).uuid]) };
                daemons::put(db, &key, &spec, 0).await
            })
        })
        .await
        .expect("written");
        let expected = async || {
            let mut db = store.read().await.expect("a reader");
            let desired = plans::desired(&mut db, &daemon, &[h200(0)], 0).await.expect("planned");
            desired.expect("there").layout.expect("a layout")
        };
        assert_eq!(expected().await.expected, None);
        for (chunks, before, known) in [(3, true, false), (4, false, false), (3, false, true)] {
            let key = daemon.clone();
            write(&store, move |db| {
                Box::pin(async move { partitions::put_run(db, &key, &run(chunks, before), 0).await })
            })
            .await
            .expect("written");
            let on_record = expected().await.expected;
            assert_eq!(on_record.is_some(), known, "{chunks} {before}");
        }
        let layout = expected().await;
        assert_eq!(layout.expected, Some(run(3, false).record.ids()));
        assert_eq!(layout.chunk_sms, [(h200(0).uuid, 8)].into());
        assert!(!layout.recreate);

        // A change that is under way is the driver's to know of, and over with its operation.
        let (id, key) = (Uuid::from_u128(1), daemon.clone());
        write(&store, move |db| {
            Box::pin(async move {
                let daemons = std::slice::from_ref(&key);
                operations::insert(&mut *db, id, daemons, &OperationRequest::StartDaemon, None, 0).await?;
                let applied = applied(&mut *db, &key).await?;
                assert_eq!(applied.as_ref().map(|applied| applied.source), Some(PartitionIdSource::Applied));
                let previous = Previous { layout: None, applied };
                let change = LayoutChange { previous, recreate: true };
                put_change(&mut *db, id, &key, &change).await?;
                assert_eq!(super::change(db, &key).await?, Some((id, change)));
                Ok(())
            })
        })
        .await
        .expect("written");
        assert!(expected().await.recreate);
        write(&store, move |db| {
            Box::pin(async move { operations::finish(db, id, OperationEnd::Succeeded, 1).await })
        })
        .await
        .expect("written");
        assert!(!expected().await.recreate);
    }
}
