//! Other hosts, each with its encrypted token.

use super::rows::{changes, execute};
use super::values::AsText;
use super::{Db, Result};
use crate::domain::HostName;
use crate::domain::saved_host::{HostUrl, SavedHost};

/// A row: the host, and its encrypted token.
#[derive(Debug, Clone)]
pub struct SavedHostRow {
    /// The host.
    pub host: SavedHost,
    /// Its token, encrypted.
    pub token: Vec<u8>,
}

/// Writes a host, in the place of one of its name.
pub async fn put(db: &mut Db, host: &SavedHost, token: &[u8]) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO saved_hosts (name, url, ca, token, saved_at, saved_by) VALUES (?, ?, ?, ?, ?, ?)",
        host.name.as_str(),
        host.url.as_str(),
        host.ca,
        token,
        host.saved_at,
        host.saved_by
    )
}

/// All hosts, by name.
pub async fn all(db: &mut Db) -> Result<Vec<SavedHostRow>> {
    let rows = sqlx::query!(
        r#"SELECT name AS "name: AsText<HostName>", url AS "url: AsText<HostUrl>", ca, token, saved_at, saved_by
           FROM saved_hosts ORDER BY name"#
    );
    let stored = rows.map(|row| SavedHostRow {
        host: SavedHost {
            name: row.name.0,
            url: row.url.0,
            ca: row.ca,
            saved_at: row.saved_at,
            saved_by: row.saved_by,
        },
        token: row.token,
    });
    Ok(stored.fetch_all(db).await?)
}

/// Removes a host; false if there is none of that name.
pub async fn remove(db: &mut Db, name: &HostName) -> Result<bool> {
    changes!(db, "DELETE FROM saved_hosts WHERE name = ?", name.as_str())
}
