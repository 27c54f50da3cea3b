//! The maintenance of the host, of which there is one at a time.

use std::path::Path;

use sqlx::Connection as _;
use uuid::Uuid;

use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, schema, to_json};
use crate::domain::GpuUuid;
use crate::domain::maintenance::{Maintenance, MaintenanceState};

/// The maintenance, if there is one.
pub async fn get(db: &mut Db) -> Result<Option<Maintenance>> {
    let query = sqlx::query_as!(
        Maintenance,
        r#"SELECT operation AS "operation: AsText<Uuid>", state AS "state: AsText<MaintenanceState>",
               gpus AS "gpus: AsJson<Vec<GpuUuid>>", since FROM maintenance"#
    );
    Ok(query.fetch_optional(db).await?)
}

/// Writes the state of the maintenance in place of the one before; the inventory stays.
pub async fn put(db: &mut Db, maintenance: &Maintenance) -> Result<()> {
    execute!(
        db,
        "INSERT INTO maintenance (id, operation, state, gpus, since) VALUES (1, ?, ?, ?, ?)
         ON CONFLICT (id) DO UPDATE SET state = excluded.state",
        maintenance.operation.to_string(),
        maintenance.state.as_str(),
        to_json(&maintenance.gpus),
        maintenance.since
    )
}

/// Writes that the driver is unloaded, with the inventory that is shown meanwhile.
pub async fn put_active(db: &mut Db, inventory: &str) -> Result<()> {
    let state = MaintenanceState::Active.as_str();
    execute!(db, "UPDATE maintenance SET state = ?, inventory = ?", state, inventory)
}

/// Forgets the maintenance: it is over.
pub async fn delete(db: &mut Db) -> Result<()> {
    execute!(db, "DELETE FROM maintenance")
}

/// The inventory that is shown while the driver is unloaded; `None` while the driver is queried, and for another machine's
/// maintenance.
pub async fn inventory(db: &mut Db, machine_id: &str) -> Result<Option<String>> {
    let row = sqlx::query_scalar!(
        "SELECT inventory FROM maintenance WHERE state = ? AND (SELECT machine_id FROM host) = ?",
        MaintenanceState::Active.as_str(),
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
