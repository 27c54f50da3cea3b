//! What a CUDA client saw last in the environment of each tenant.

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

/// That of a tenant; `None` where none was requested.
pub async fn get(db: &mut SqliteConnection, tenant: &TenantName) -> Result<Option<Verification>, StoreError> {
    Ok(between(db, tenant, tenant).await?.remove(tenant))
}

/// Those of the tenants from one name to another.
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

/// Writes that a client is on its way, unless one is that was sent after `given_up`; true where it was written.
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

/// Writes what the client that was sent at `running_since` came to; false where no caller waits for it.
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

/// The tenants whose client is on its way, each with when it was sent.
pub async fn running(db: &mut SqliteConnection) -> Result<Vec<(TenantName, i64)>, StoreError> {
    let rows = sqlx::query!(
        r#"SELECT tenant AS "tenant!", running_since AS "since!" FROM verifications WHERE running_since IS NOT NULL ORDER BY tenant"#
    );
    let read = |tenant: &str, since| Ok((parsed("a tenant's name", TenantName::parse(tenant))?, since));
    rows.fetch_all(db).await?.into_iter().map(|row| read(&row.tenant, row.since)).collect()
}
