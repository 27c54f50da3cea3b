//! Last result that a CUDA client found in the environment of each tenant.

use std::collections::BTreeMap;

use sqlx::SqliteConnection;

use super::{StoreError, from_json, parsed, to_json};
use crate::domain::TenantName;
use crate::domain::verification::{Verification, VerificationResult};

struct VerificationRow {
    tenant: String,
    running_since: Option<i64>,
    result: Option<String>,
}

impl VerificationRow {
    fn read(self) -> Result<(TenantName, Verification), StoreError> {
        let last = self.result.as_deref().map(|result| from_json("a verification", result)).transpose()?;
        let tenant = parsed("a tenant's name", TenantName::parse(&self.tenant))?;
        Ok((tenant, Verification { running_since: self.running_since, last }))
    }
}

/// Returns the verification of a tenant; `None` if none was requested.
pub async fn get(db: &mut SqliteConnection, tenant: &TenantName) -> Result<Option<Verification>, StoreError> {
    Ok(between(db, tenant, tenant).await?.remove(tenant))
}

/// Returns the verifications of the tenants from one name to another.
pub async fn between(
    db: &mut SqliteConnection,
    first: &TenantName,
    last: &TenantName,
) -> Result<BTreeMap<TenantName, Verification>, StoreError> {
    let (first, last) = (first.as_str(), last.as_str());
    let rows = sqlx::query_as!(
        VerificationRow,
        r#"SELECT tenant AS "tenant!", running_since, result FROM verifications WHERE tenant BETWEEN ? AND ?"#,
        first,
        last
    );
    rows.fetch_all(db).await?.into_iter().map(VerificationRow::read).collect()
}

/// Records that a client was started, unless one is running that was started after `given_up`; returns true if it was recorded.
pub async fn begin(
    db: &mut SqliteConnection,
    tenant: &TenantName,
    given_up: i64,
    now: i64,
) -> Result<bool, StoreError> {
    let tenant = tenant.as_str();
    let begun = sqlx::query!(
        "INSERT INTO verifications (tenant, running_since) VALUES (?1, ?2)
         ON CONFLICT (tenant) DO UPDATE SET running_since = excluded.running_since
         WHERE running_since IS NULL OR running_since <= ?3",
        tenant,
        now,
        given_up
    );
    Ok(begun.execute(db).await?.rows_affected() > 0)
}

/// Writes the result of the client that was started at `running_since`; false if no caller waits for it.
pub async fn end(
    db: &mut SqliteConnection,
    tenant: &TenantName,
    running_since: i64,
    result: &VerificationResult,
) -> Result<bool, StoreError> {
    let (tenant, result) = (tenant.as_str(), to_json(result));
    let ended = sqlx::query!(
        "UPDATE verifications SET running_since = NULL, result = ? WHERE tenant = ? AND running_since = ?",
        result,
        tenant,
        running_since
    );
    Ok(ended.execute(db).await?.rows_affected() > 0)
}

/// Returns the tenants whose client is running, each with the time at which it was started.
pub async fn running(db: &mut SqliteConnection) -> Result<Vec<(TenantName, i64)>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT tenant AS "tenant!", running_since AS "since!" FROM verifications WHERE running_since IS NOT NULL ORDER BY tenant"#
    );
    let read = |tenant: &str, since| Ok((parsed("a tenant's name", TenantName::parse(tenant))?, since));
    rows.fetch_all(db).await?.into_iter().map(|row| read(&row.tenant, row.since)).collect()
}
