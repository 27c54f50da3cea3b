//! The maintenance of the host, of which there is one at a time.

use std::path::Path;

use sqlx::{Connection as _, SqliteConnection};

use super::{StoreError, from_json, parsed, schema, to_json};
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

/// Writes the state of the maintenance in place of the one before; the inventory stays.
pub async fn put(db: &mut SqliteConnection, maintenance: &Maintenance) -> Result<(), StoreError> {
    let (operation, state) = (maintenance.operation.to_string(), maintenance.state.as_str());
    let gpus = to_json(&maintenance.gpus);
    sqlx::query!(
        "INSERT INTO maintenance (id, operation, state, gpus, since) VALUES (1, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET state = excluded.state",
        operation,
        state,
        gpus,
        maintenance.since
    )
    .execute(db)
    .await?;
    Ok(())
}

/// Writes that the driver is unloaded, with the inventory that is shown meanwhile.
pub async fn put_active(db: &mut SqliteConnection, inventory: &str) -> Result<(), StoreError> {
    let state = MaintenanceState::Active.as_str();
    sqlx::query!("UPDATE maintenance SET state = ?, inventory = ?", state, inventory).execute(db).await?;
    Ok(())
}

/// Forgets the maintenance: it is over.
pub async fn delete(db: &mut SqliteConnection) -> Result<(), StoreError> {
    sqlx::query!("DELETE FROM maintenance").execute(db).await?;
    Ok(())
}

/// The inventory that is shown while the driver is unloaded; `None` while the driver is queried, and for another machine's
/// maintenance.
pub async fn inventory(db: &mut SqliteConnection, machine_id: &str) -> Result<Option<String>, StoreError> {
    let active = MaintenanceState::Active.as_str();
    let row = sqlx::query_scalar!(
        "SELECT inventory FROM maintenance WHERE state = ? AND (SELECT machine_id FROM host) = ?",
        active,
        machine_id
    );
    Ok(row.fetch_optional(db).await?.flatten())
}

/// Reads the inventory from a file that is not open yet, of any schema version, without changing a byte of it.
///
/// The driver is opened before the store, and must not be queried during maintenance. `None` if the file does not tell: the inventory is
/// read again once the store is open.
pub async fn peek_inventory(path: &Path, machine_id: &str) -> Option<String> {
    if !path.exists() {
        return None;
    }
    let mut connection = schema::open_to_read(path).await.ok()?;
    let inventory = inventory(&mut connection, machine_id).await.ok().flatten();
    let _ = connection.close().await;
    inventory
}
