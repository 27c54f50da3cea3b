//! Daemons, the GPUs they hold, and the control process each has.

use std::path::Path;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, replays, to_json};
use crate::domain::daemon::{Daemon, DaemonDirectories, DaemonSpec, Incarnation};
use crate::domain::{DaemonName, GpuUuid, Inode, LayoutName};

/// Reads daemons, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query_as!(
            Daemon,
            r#"SELECT name AS "name!: AsText<DaemonName>", spec AS "spec: AsJson<DaemonSpec>", revision, generation, created_at, updated_at
               FROM daemons "# + $rest
            $(, $value)*
        )
    };
}

/// The daemon of that name.
pub async fn get(db: &mut Db, name: &DaemonName) -> Result<Option<Daemon>> {
    Ok(select!("WHERE name = ?", name.as_str()).fetch_optional(db).await?)
}

/// All daemons, by name.
pub async fn all(db: &mut Db) -> Result<Vec<Daemon>> {
    Ok(select!("ORDER BY name").fetch_all(db).await?)
}

/// The daemons with one of these GPUs, by name, without those that are only observed: they are their owners'.
pub async fn managed_on(db: &mut Db, gpus: &[GpuUuid]) -> Result<Vec<DaemonName>> {
    let managed = all(db).await?.into_iter().filter(|daemon| !daemon.spec.is_observed());
    let matching = managed.filter(|daemon| daemon.spec.gpus.iter().any(|gpu| gpus.contains(gpu)));
    Ok(matching.map(|daemon| daemon.name).collect())
}

/// The daemons whose spec names a layout.
pub async fn with_layout(db: &mut Db, name: &LayoutName) -> Result<Vec<DaemonName>> {
    let named = |daemon: &Daemon| daemon.spec.layout.as_ref().is_some_and(|layout| layout.name == *name);
    Ok(all(db).await?.into_iter().filter(named).map(|daemon| daemon.name).collect())
}

/// Up to `limit` daemons by name, from the one after `after`.
pub async fn page(db: &mut Db, after: &str, limit: i64) -> Result<Vec<Daemon>> {
    Ok(select!("WHERE name > ? ORDER BY name LIMIT ?", after, limit).fetch_all(db).await?)
}

/// Writes a spec, new or changed, and raises revision and generation. A new daemon begins with generation 1, and with a revision that no
/// daemon of its name had before. The record of a restart ends where the layout is no longer desired.
pub async fn put(db: &mut Db, name: &DaemonName, spec: &DaemonSpec, now: i64) -> Result<()> {
    replays::call_off_restart(&mut *db, name, Some(spec), now).await?;
    execute!(
        db,
        "INSERT INTO daemons (name, spec, revision, generation, created_at, updated_at, events_visible_from)
         VALUES (?1, ?2, coalesce((SELECT revision FROM daemon_counters WHERE daemon = ?1), 0) + 1, 1, ?3, ?3,
                 coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0) + 1)
         ON CONFLICT (name) DO UPDATE
         SET spec = excluded.spec, revision = revision + 1, generation = generation + 1, updated_at = excluded.updated_at",
        name.as_str(),
        to_json(spec),
        now
    )
}

/// Gives a GPU to a daemon, or to none. The spec of a daemon that a host file replaces still names the GPUs that it handed on.
pub async fn hold(db: &mut Db, gpu: &GpuUuid, daemon: Option<&DaemonName>) -> Result<()> {
    execute!(db, "DELETE FROM daemon_gpus WHERE gpu = ?", gpu.as_str())?;
    execute!(
        db,
        "INSERT INTO daemon_gpus (gpu, daemon) SELECT ?1, name FROM daemons WHERE name = ?2",
        gpu.as_str(),
        daemon.map(DaemonName::as_str)
    )
}

/// The daemon that holds a GPU.
pub async fn holder(db: &mut Db, gpu: &GpuUuid) -> Result<Option<DaemonName>> {
    let query = sqlx::query_scalar!(
        r#"SELECT daemon AS "daemon: AsText<DaemonName>" FROM daemon_gpus WHERE gpu = ?"#,
        gpu.as_str()
    );
    Ok(query.fetch_optional(db).await?.map(|daemon| daemon.0))
}

/// Raises the generation of daemons: something that feeds them changed.
pub async fn touch(db: &mut Db, names: &[&DaemonName]) -> Result<()> {
    execute!(
        db,
        "UPDATE daemons SET generation = generation + 1 WHERE name IN (SELECT value FROM json_each(?))",
        to_json(&names)
    )
}

/// The last revision of a daemon that had this name; 0 if there was none.
pub async fn last_revision(db: &mut Db, name: &DaemonName) -> Result<i64> {
    let last = sqlx::query_scalar!("SELECT revision FROM daemon_counters WHERE daemon = ?", name.as_str());
    Ok(last.fetch_optional(db).await?.unwrap_or(0))
}

/// The first event of a daemon: those before are of another that had its name.
pub async fn events_visible_from(db: &mut Db, name: &DaemonName) -> Result<Option<i64>> {
    let from = sqlx::query_scalar!("SELECT events_visible_from FROM daemons WHERE name = ?", name.as_str());
    Ok(from.fetch_optional(db).await?)
}

/// Forgets a daemon and its control process; the record of a restart of it ends.
pub async fn delete(db: &mut Db, name: &DaemonName, now: i64) -> Result<()> {
    replays::call_off_restart(&mut *db, name, None, now).await?;
    execute!(db, "DELETE FROM daemons WHERE name = ?", name.as_str())
}

/// The incarnation of a daemon.
pub async fn incarnation(db: &mut Db, name: &DaemonName) -> Result<Option<Incarnation>> {
    let query = sqlx::query!(
        r#"SELECT token, boot_id, pid AS "pid: u32", start_time AS "start_time: u64", pipe_inode, pipe_birth_ns, applied_generation,
                  is_foreign AS "foreign: bool", pipe_directory, log_directory
           FROM incarnations WHERE daemon = ?"#,
        name.as_str()
    );
    let incarnation = query.map(|row| Incarnation {
        token: row.token,
        boot_id: row.boot_id,
        process: row.pid.zip(row.start_time),
        pipe_inode: row
            .pipe_inode
            .map(|number| Inode { number: number.cast_unsigned(), born: row.pipe_birth_ns }),
        applied: row.applied_generation,
        home: row.pipe_directory.zip(row.log_directory).map(|(pipe, log)| DaemonDirectories {
            pipe_directory: pipe.into(),
            log_directory: log.into(),
            foreign: row.foreign,
        }),
    });
    Ok(incarnation.fetch_optional(db).await?)
}

/// The daemon whose control process this is, by what was stored of it.
pub async fn with_process(db: &mut Db, boot_id: &str, process: (u32, u64)) -> Result<Option<DaemonName>> {
    let query = sqlx::query_scalar!(
        r#"SELECT daemon AS "daemon!: AsText<DaemonName>" FROM incarnations WHERE boot_id = ? AND pid = ? AND start_time = ?"#,
        boot_id,
        process.0,
        process.1.cast_signed()
    );
    Ok(query.fetch_optional(db).await?.map(|daemon| daemon.0))
}

/// Writes the incarnation of a daemon in place of the one before; nothing for a daemon that is gone.
pub async fn put_incarnation(
    db: &mut Db,
    name: &DaemonName,
    incarnation: &Incarnation,
    now: i64,
) -> Result<()> {
    let (pid, start_time) = incarnation.process.unzip();
    let home = incarnation.home.as_ref();
    // Adoption refuses a directory whose name is no text.
    let path = |path: &Path| path.to_string_lossy().into_owned();
    execute!(
        db,
        "INSERT OR REPLACE INTO incarnations
             (daemon, token, boot_id, pid, start_time, pipe_inode, applied_generation, written_at,
              is_foreign, pipe_directory, log_directory, pipe_birth_ns)
         SELECT name, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12 FROM daemons WHERE name = ?1",
        name.as_str(),
        incarnation.token,
        incarnation.boot_id,
        pid,
        start_time.map(u64::cast_signed),
        incarnation.pipe_inode.map(|inode| inode.number.cast_signed()),
        incarnation.applied,
        now,
        incarnation.is_foreign(),
        home.map(|home| path(&home.pipe_directory)),
        home.map(|home| path(&home.log_directory)),
        incarnation.pipe_inode.and_then(|inode| inode.born)
    )
}

/// Forgets the process of a daemon that the manager stopped: a manager that finds it gone would take it for one that died.
pub async fn forget_process(db: &mut Db, name: &DaemonName, pid: u32, now: i64) -> Result<()> {
    let stored = incarnation(&mut *db, name).await?;
    match stored.filter(|stored| stored.process.is_some_and(|(stored_pid, _)| stored_pid == pid)) {
        Some(stored) => put_incarnation(db, name, &Incarnation { process: None, ..stored }, now).await,
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Store, TransactionEnd, events};
    use super::*;
    use crate::domain::event::DomainEvent;
    use crate::testing::h200;

    #[tokio::test]
    async fn recreated_daemon_begins_with_generation_one() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let read: Result<_> = store
            .write(|db| {
                Box::pin(async move {
                    let name = DaemonName::parse("gpu0").expect("a name");
                    let spec = DaemonSpec::of(vec![h200(0).uuid]);
                    put(&mut *db, &name, &spec, 1).await?;
                    touch(&mut *db, &[&name]).await?;
                    put(&mut *db, &name, &spec, 2).await?;
                    let first = get(&mut *db, &name).await?.expect("there");
                    let (daemon, gpus, operation) = (name.clone(), Vec::new(), None);
                    let event = DomainEvent::DaemonDeleted { daemon, gpus, operation };
                    let last = events::append(&mut *db, &event.into(), 3).await?;
                    delete(&mut *db, &name, 3).await?;
                    assert_eq!(events_visible_from(&mut *db, &name).await?, None);
                    put(&mut *db, &name, &spec, 4).await?;
                    let second = get(&mut *db, &name).await?.expect("there");
                    let from = events_visible_from(&mut *db, &name).await?.expect("there");
                    Ok(((first, second, last, from), TransactionEnd::RollBack))
                })
            })
            .await;
        let (first, second, last, from) = read.expect("written");
        assert_eq!((first.generation, second.generation), (3, 1));
        assert!(second.revision > first.revision, "an entity tag never fits another daemon");
        assert!(from > last, "its events are its own");
    }

    #[tokio::test]
    async fn gpu_is_held_by_one_daemon() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let holders: Result<_> = store
            .write(|db| {
                Box::pin(async move {
                    let [old, new] = ["old", "new"].map(|name| DaemonName::parse(name).expect("a name"));
                    let gpu = h200(0).uuid;
                    let spec = DaemonSpec::of(vec![gpu.clone()]);
                    put(&mut *db, &old, &spec, 1).await?;
                    hold(&mut *db, &gpu, Some(&old)).await?;
                    let first = holder(&mut *db, &gpu).await?;
                    put(&mut *db, &new, &spec, 2).await?;
                    hold(&mut *db, &gpu, Some(&new)).await?;
                    let second = holder(&mut *db, &gpu).await?;
                    // Written once more before it goes.
                    put(&mut *db, &old, &spec, 3).await?;
                    delete(&mut *db, &old, 4).await?;
                    let third = holder(&mut *db, &gpu).await?;
                    hold(&mut *db, &gpu, None).await?;
                    let none = holder(&mut *db, &gpu).await?;
                    Ok((([first, second, third], none), TransactionEnd::RollBack))
                })
            })
            .await;
        let (holders, none) = holders.expect("written");
        assert_eq!(holders.map(|holder| holder.expect("a holder").to_string()), ["old", "new", "new"]);
        assert_eq!(none, None);
    }

    #[tokio::test]
    async fn only_the_stopped_process_is_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let processes: Result<_> = store
            .write(|db| {
                Box::pin(async move {
                    let name = DaemonName::parse("gpu0").expect("a name");
                    put(&mut *db, &name, &DaemonSpec::of(vec![h200(0).uuid]), 1).await?;
                    let process = Some((7, 70));
                    let (token, boot_id) = ("t".to_owned(), "b".to_owned());
                    let started =
                        Incarnation { token, boot_id, process, pipe_inode: None, applied: 1, home: None };
                    put_incarnation(&mut *db, &name, &started, 1).await?;
                    forget_process(&mut *db, &name, 8, 2).await?;
                    let other = incarnation(&mut *db, &name).await?.expect("there").process;
                    forget_process(&mut *db, &name, 7, 3).await?;
                    let same = incarnation(&mut *db, &name).await?.expect("there");
                    Ok(((other, same), TransactionEnd::RollBack))
                })
            })
            .await;
        let (other, same) = processes.expect("written");
        assert_eq!((other, same.process, same.token.as_str()), (Some((7, 70)), None, "t"));
    }
}
