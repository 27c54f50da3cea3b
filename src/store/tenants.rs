//! Tenants.

use std::collections::BTreeMap;

use sqlx::{QueryBuilder, Sqlite};
use uuid::Uuid;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, partition_leases, to_json};
use crate::domain::attribution::Candidate;
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::domain::{DaemonName, TenantDirectory, TenantName};

/// Most rows of one statement: it may have 32 766 values.
const ROWS: usize = 1000;

/// Reads tenants, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query!(
            r#"SELECT name AS "name!: AsText<TenantName>", spec AS "spec: AsJson<TenantSpec>", generation, daemon_generation, created_at,
                updated_at, directory AS "directory: AsText<TenantDirectory>", expires_at, draining AS "draining: bool",
                finished AS "finished: bool", held_by IS NOT NULL AS "held: bool" FROM tenants "# + $rest
            $(, $value)*
        )
        .map(|row| Tenant {
            name: row.name.0,
            spec: TenantSpec { expires_at: row.expires_at, ..row.spec.0 },
            generation: row.generation,
            daemon_generation: row.daemon_generation,
            created_at: row.created_at,
            updated_at: row.updated_at,
            directory: row.directory.0,
            draining: row.draining,
            finished: row.finished,
            held: row.held,
        })
    };
}

/// The tenant of that name.
pub async fn get(db: &mut Db, name: &TenantName) -> Result<Option<Tenant>> {
    Ok(select!("WHERE name = ?", name.as_str()).fetch_optional(db).await?)
}

/// All tenants, by name.
pub async fn all(db: &mut Db) -> Result<Vec<Tenant>> {
    Ok(select!("ORDER BY name").fetch_all(db).await?)
}

/// The tenants of a daemon, by name.
pub async fn of_daemon(db: &mut Db, daemon: &DaemonName) -> Result<Vec<Tenant>> {
    Ok(select!("WHERE daemon = ? ORDER BY name", daemon.as_str()).fetch_all(db).await?)
}

/// The tenants that have expired at this time or are drained, the first to expire first.
pub async fn expired(db: &mut Db, now: i64) -> Result<Vec<Tenant>> {
    let query = select!("WHERE expires_at <= ? OR draining = 1 ORDER BY expires_at, name", now);
    Ok(query.fetch_all(db).await?)
}

/// The directories of all tenants.
pub async fn directories(db: &mut Db) -> Result<Vec<TenantDirectory>> {
    let query = sqlx::query_scalar!(
        r#"SELECT directory AS "directory: AsText<TenantDirectory>" FROM tenants ORDER BY directory"#
    );
    Ok(query.fetch_all(db).await?.into_iter().map(|directory| directory.0).collect())
}

/// Returns the tenants of a daemon by name, as attribution sees them, without reading each spec.
pub async fn candidates(db: &mut Db, daemon: &DaemonName) -> Result<Vec<Candidate>> {
    let query = sqlx::query!(
        r#"SELECT name AS "tenant!: AsText<TenantName>", coalesce(json_extract(spec, '$.uid'), 0) AS "uid!: u32",
               directory AS "directory: AsText<TenantDirectory>"
           FROM tenants WHERE daemon = ? ORDER BY name"#,
        daemon.as_str()
    );
    let candidates = query.map(|row| {
        let (AsText(tenant), AsText(directory)) = (row.tenant, row.directory);
        Candidate { tenant, daemon: daemon.clone(), uid: row.uid, directory }
    });
    Ok(candidates.fetch_all(db).await?)
}

/// The tenants that are held by an operation or finished, by name: marks that change without their daemon's generation.
pub async fn marks(db: &mut Db) -> Result<Vec<TenantMark>> {
    let query = sqlx::query!(
        r#"SELECT name AS "name!: AsText<TenantName>", held_by IS NOT NULL AS "held: bool", finished AS "finished: bool"
           FROM tenants WHERE held_by IS NOT NULL OR finished ORDER BY name"#
    );
    Ok(query.map(|row| (row.name.0, row.held, row.finished)).fetch_all(db).await?)
}

/// A tenant that is held or finished: its name, and which of the two.
pub type TenantMark = (TenantName, bool, bool);

/// A tenant with those beside it, and with those of another daemon, by name.
pub async fn beside(db: &mut Db, tenant: &TenantName, other: Option<&DaemonName>) -> Result<Vec<Tenant>> {
    let query = select!(
        "WHERE daemon IN (?2, (SELECT daemon FROM tenants WHERE name = ?1)) ORDER BY name",
        tenant.as_str(),
        other.map(DaemonName::as_str)
    );
    Ok(query.fetch_all(db).await?)
}

/// The last generation of each tenant that ever had one of these names.
pub async fn last_generations(db: &mut Db, names: &[TenantName]) -> Result<BTreeMap<TenantName, i64>> {
    let query = sqlx::query!(
        r#"SELECT tenant AS "tenant!: AsText<TenantName>", generation
           FROM tenant_counters WHERE tenant IN (SELECT value FROM json_each(?))"#,
        to_json(&names)
    );
    Ok(query.map(|row| (row.tenant.0, row.generation)).fetch_all(db).await?.into_iter().collect())
}

/// Writes tenants, new or changed, as they are.
pub async fn put(db: &mut Db, tenants: &[&Tenant]) -> Result<()> {
    for part in tenants.chunks(ROWS) {
        let mut query = QueryBuilder::<Sqlite>::new(
            "INSERT INTO tenants (name, daemon, spec, generation, daemon_generation, created_at, updated_at, directory, expires_at,
                                  draining, finished, events_visible_from) ",
        );
        query.push_values(part, |mut row, tenant| {
            // The expiry has a column of its own.
            let spec = to_json(&TenantSpec { expires_at: None, ..tenant.spec.clone() });
            row.push_bind(tenant.name.as_str()).push_bind(tenant.spec.daemon.as_str()).push_bind(spec);
            row.push_bind(tenant.generation).push_bind(tenant.daemon_generation);
            row.push_bind(tenant.created_at).push_bind(tenant.updated_at);
            row.push_bind(tenant.directory.as_str()).push_bind(tenant.spec.expires_at);
            row.push_bind(tenant.draining).push_bind(tenant.finished);
            row.push("coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0) + 1");
        });
        query.push(
            " ON CONFLICT (name) DO UPDATE
             SET daemon = excluded.daemon, spec = excluded.spec, generation = excluded.generation,
                 daemon_generation = excluded.daemon_generation, updated_at = excluded.updated_at, expires_at = excluded.expires_at,
                 draining = excluded.draining, finished = excluded.finished,
                 held_by = CASE WHEN daemon = excluded.daemon THEN held_by END",
        );
        query.build().execute(&mut *db).await?;
    }
    Ok(())
}

/// Has tenants admit no process while this operation waits for theirs.
pub async fn hold(db: &mut Db, operation: Uuid, tenants: &[TenantName]) -> Result<()> {
    execute!(
        db,
        "UPDATE tenants SET held_by = ? WHERE name IN (SELECT value FROM json_each(?))",
        operation.to_string(),
        to_json(&tenants)
    )
}

/// Has the tenants that an operation held admit processes again.
pub async fn release(db: &mut Db, operation: Uuid) -> Result<()> {
    execute!(db, "UPDATE tenants SET held_by = NULL WHERE held_by = ?", operation.to_string())
}

/// The first event that a tenant's tokens may read: earlier ones are of another tenant that had its name.
pub async fn events_visible_from(db: &mut Db, name: &TenantName) -> Result<Option<i64>> {
    let from = sqlx::query_scalar!("SELECT events_visible_from FROM tenants WHERE name = ?", name.as_str());
    Ok(from.fetch_optional(db).await?)
}

/// Deletes a tenant and the leases of its processes. Its operations and partition leases stay without a tenant, also if another
/// tenant gets its name.
pub async fn delete(db: &mut Db, name: &TenantName) -> Result<()> {
    partition_leases::disown(&mut *db, name).await?;
    execute!(db, "UPDATE operations SET tenant = NULL WHERE tenant = ?", name.as_str())?;
    execute!(db, "DELETE FROM tenants WHERE name = ?", name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::{Store, daemons};
    use super::*;
    use crate::domain::daemon::DaemonSpec;
    use crate::testing::{h200, spec, tenant};

    #[tokio::test]
    async fn expiry_is_kept_found_and_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Store::open(&directory.path().join("test.db"), 0).await.expect("a store");
        let written: Result<()> = store
            .commit(|db| {
                Box::pin(async move {
                    let daemon = DaemonName::parse("gpu0").expect("a name");
                    daemons::put(&mut *db, &daemon, &DaemonSpec::of(vec![h200(0).uuid]), 1).await?;
                    let stays = spec(r#"{"daemon":"gpu0","uid":0}"#);
                    let until = |at| TenantSpec { expires_at: Some(at), ..stays.clone() };
                    let name = |text| TenantName::parse(text).expect("a name");
                    for (text, spec) in
                        [("late", until(200)), ("stays", stays.clone()), ("early", until(100))]
                    {
                        let directory = TenantDirectory::new([text.as_bytes()[0]; 5]);
                        let tenant =
                            Tenant { spec, directory, ..tenant(text, r#"{"daemon":"gpu0","uid":0}"#) };
                        put(&mut *db, &[&tenant]).await?;
                    }
                    let late = get(&mut *db, &name("late")).await?.expect("there");
                    assert_eq!(late.spec, until(200));
                    for (now, names) in [(99, &[][..]), (100, &["early"]), (i64::MAX, &["early", "late"])] {
                        let found = expired(&mut *db, now).await?;
                        let found: Vec<&str> = found.iter().map(|tenant| tenant.name.as_str()).collect();
                        assert_eq!(found, names, "{now}");
                    }
                    for (text, spec) in [("early", until(300)), ("late", stays)] {
                        let mut tenant = get(&mut *db, &name(text)).await?.expect("there");
                        tenant.change(spec, 2);
                        put(&mut *db, &[&tenant]).await?;
                    }
                    assert!(expired(&mut *db, 299).await?.is_empty());
                    let late = get(&mut *db, &name("late")).await?.expect("there");
                    assert_eq!((late.spec.expires_at, late.generation), (None, 2));
                    Ok(())
                })
            })
            .await;
        written.expect("written");
    }
}
