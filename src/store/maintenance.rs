//! The maintenance of the host, of which there is one at a time.

use std::path::Path;
use std::str::FromStr as _;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};

use super::{StoreError, from_json, parsed, to_json};
use crate::domain::maintenance::{Maintenance, MaintenanceState};

/// The maintenance, if there is one.
pub async fn get(db: &mut SqliteConnection) -> Result<Option<Maintenance>, StoreError> {
    let row =
        sqlx::query!("SELECT operation, state, gpus, since FROM maintenance").fetch_optional(db).await?;
    row.map(|row| {
        Ok(Maintenance {
            operation: parsed("an operation's ID", row.operation.parse())?,
            state: from_json("a maintenance's state", &format!("\"{}\"", row.state))?,
            gpus: from_json("a maintenance's GPUs", &row.gpus)?,
            since: row.since,
        })
    })
    .transpose()
}

/// Writes how far the maintenance is, in place of what was written before; what is remembered stays.
pub async fn put(db: &mut SqliteConnection, maintenance: &Maintenance) -> Result<(), StoreError> {
    let (operation, state) = (maintenance.operation.to_string(), maintenance.state.as_str());
    let gpus = to_json(&maintenance.gpus);
    sqlx::query!(
        "INSERT INTO maintenance (only_one, operation, state, gpus, since) VALUES (1, ?, ?, ?, ?)
         ON CONFLICT (only_one) DO UPDATE SET state = excluded.state",
        operation,
        state,
        gpus,
        maintenance.since
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Writes what is told of the GPUs while the driver is let go, and that it is.
pub async fn put_active(db: &mut SqliteConnection, remembered: &str) -> Result<(), StoreError> {
    let state = MaintenanceState::Active.as_str();
    sqlx::query!("UPDATE maintenance SET state = ?, remembered = ?", state, remembered).execute(db).await?;
    Ok(())
}

/// What is remembered of the GPUs while the driver is let go, as it was written.
pub async fn remembered_text(db: &mut SqliteConnection) -> Result<Option<String>, StoreError> {
    Ok(sqlx::query_scalar!("SELECT remembered FROM maintenance").fetch_optional(db).await?.flatten())
}

/// Forgets the maintenance: it is over.
pub async fn delete(db: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM maintenance").execute(db).await?;
    Ok(())
}

/// What is told of the GPUs while the driver is let go; `None` while it is asked, and for another machine's maintenance.
pub async fn remembered(db: &mut SqliteConnection, machine_id: &str) -> Result<Option<String>, StoreError> {
    let active = MaintenanceState::Active.as_str();
    let row = sqlx::query_scalar!(
        "SELECT remembered FROM maintenance WHERE state = ? AND (SELECT machine_id FROM host) = ?",
        active,
        machine_id
    );
    Ok(row.fetch_optional(db).await?.flatten())
}

/// The same from a file that nobody has opened yet, of any version, without changing a byte of it.
///
/// Whether the driver may be asked has to be known before the store is opened, which comes after the driver. `None`
/// where the file does not tell: whoever opens the store looks again.
pub async fn peek(path: &Path, machine_id: &str) -> Option<String> {
    if !path.exists() {
        return None;
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let options = SqliteConnectOptions::from_str("sqlite:").ok()?.filename(path).read_only(true);
    let mut connection =
        SqliteConnection::connect_with(&options.immutable(!Path::new(&log).exists())).await.ok()?;
    let remembered = remembered(&mut connection, machine_id).await.ok().flatten();
    let _ = connection.close().await;
    remembered
}
