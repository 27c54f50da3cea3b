//! Last result that a CUDA client found in the environment of each tenant.

use std::collections::BTreeMap;

use super::rows::changes;
use super::values::{AsJson, AsText};
use super::{Db, Result, to_json};
use crate::domain::TenantName;
use crate::domain::verification::{Verification, VerificationResult};

/// Returns the verification of a tenant; `None` if none was requested.
pub async fn get(db: &mut Db, tenant: &TenantName) -> Result<Option<Verification>> {
    Ok(between(db, tenant, tenant).await?.remove(tenant))
}

/// Returns the verifications of the tenants from one name to another.
pub async fn between(
    db: &mut Db,
    first: &TenantName,
    last: &TenantName,
) -> Result<BTreeMap<TenantName, Verification>> {
    let query = sqlx::query!(
        r#"SELECT tenant AS "tenant!: AsText<TenantName>", running_since, result AS "last: AsJson<VerificationResult>"
           FROM verifications WHERE tenant BETWEEN ? AND ?"#,
        first.as_str(),
        last.as_str()
    );
    let verification = query.map(|row| {
        let last = row.last.map(|last| last.0);
        (row.tenant.0, Verification { running_since: row.running_since, last })
    });
    Ok(verification.fetch_all(db).await?.into_iter().collect())
}

/// Records that a client was started, unless one is running that was started after `given_up`; returns true if it was recorded.
pub async fn begin(db: &mut Db, tenant: &TenantName, given_up: i64, now: i64) -> Result<bool> {
    changes!(
        db,
        "INSERT INTO verifications (tenant, running_since) VALUES (?1, ?2)
         ON CONFLICT (tenant) DO UPDATE SET running_since = excluded.running_since
         WHERE running_since IS NULL OR running_since <= ?3",
        tenant.as_str(),
        now,
        given_up
    )
}

/// Writes the result of the client that was started at `running_since`; false if no caller waits for it.
pub async fn end(
    db: &mut Db,
    tenant: &TenantName,
    running_since: i64,
    result: &VerificationResult,
) -> Result<bool> {
    changes!(
        db,
        "UPDATE verifications SET running_since = NULL, result = ? WHERE tenant = ? AND running_since = ?",
        to_json(result),
        tenant.as_str(),
        running_since
    )
}

/// Returns the tenants whose client is running, each with the time at which it was started.
pub async fn running(db: &mut Db) -> Result<Vec<(TenantName, i64)>> {
    let query = sqlx::query!(
        r#"SELECT tenant AS "tenant!: AsText<TenantName>", running_since AS "since!" FROM verifications WHERE running_since IS NOT NULL ORDER BY tenant"#
    );
    Ok(query.map(|row| (row.tenant.0, row.since)).fetch_all(db).await?)
}
