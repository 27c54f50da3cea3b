//! Clients that have an event for their connection and none yet for its end.

use super::leases::columns;
use super::rows::execute;
use super::values::{AsJson, AsText};
use super::{Db, Result, to_json};
use crate::domain::attribution::AttributedBy;
use crate::domain::client::ClientId;
use crate::domain::event::{DomainEvent, EventCause, EventType, NewEvent, ObservedClient};
use crate::domain::{DaemonName, TenantName, rfc3339};

/// A client whose connection is in the events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedClient {
    /// The process.
    pub id: ClientId,
    /// The server it was connected to.
    pub server: u32,
    /// Its user.
    pub uid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
    /// Its tenant.
    pub tenant: Option<TenantName>,
    /// Evidence by which the tenant was known.
    pub attributed_by: AttributedBy,
}

impl ConnectedClient {
    /// Converts the client to the form in which its events report it.
    pub fn observed_on(self, daemon: &DaemonName) -> ObservedClient {
        let Self { id, server, uid, program, tenant, attributed_by } = self;
        ObservedClient {
            daemon: daemon.clone(),
            server,
            pid: id.pid,
            client: Some(id),
            uid,
            program,
            tenant,
            attributed_by,
            logged_at: None,
        }
    }
}

/// A statement about clients, by its beginning and end and its values; it finds each with its daemon.
macro_rules! clients {
    ($before:tt, $after:tt $(, $value:expr)*) => {
        sqlx::query!(
            $before + r#" daemon AS "daemon: AsText<DaemonName>", pid AS "pid: u32", start_time, server AS "server: u32",
                uid AS "uid: u32", program, tenant AS "tenant: AsText<TenantName>",
                attributed_by AS "attributed_by: AsJson<AttributedBy>" "# + $after
            $(, $value)*
        )
        .map(|row| {
            let client = ConnectedClient {
                id: ClientId { pid: row.pid, start_time: row.start_time.cast_unsigned() },
                server: row.server,
                uid: row.uid,
                program: row.program,
                tenant: row.tenant.map(|tenant| tenant.0),
                attributed_by: row.attributed_by.0,
            };
            (row.daemon.0, client)
        })
    };
}

/// Writes that a client connected; nothing for a daemon that is gone.
pub async fn put(db: &mut Db, daemon: &DaemonName, boot_id: &str, client: &ConnectedClient) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO connected_clients
             (daemon, pid, start_time, boot_id, server, uid, program, tenant, attributed_by)
         SELECT name, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM daemons WHERE name = ?1",
        daemon.as_str(),
        client.id.pid,
        client.id.start_time.cast_signed(),
        boot_id,
        client.server,
        client.uid,
        client.program,
        client.tenant.as_ref().map(TenantName::as_str),
        to_json(&client.attributed_by)
    )
}

/// A connected client, of this boot or an earlier one.
pub async fn get(db: &mut Db, id: ClientId) -> Result<Option<ConnectedClient>> {
    let (pid, start_time) = columns(id);
    let query =
        clients!("SELECT", "FROM connected_clients WHERE pid = ? AND start_time = ?", pid, start_time);
    Ok(query.fetch_optional(db).await?.map(|(_, client)| client))
}

/// Removes a client that disconnected; `None` for one whose connection is not in the events.
pub async fn remove(
    db: &mut Db,
    daemon: &DaemonName,
    boot_id: &str,
    id: ClientId,
) -> Result<Option<ConnectedClient>> {
    let (pid, start_time) = columns(id);
    let query = clients!(
        "DELETE FROM connected_clients WHERE daemon = ? AND pid = ? AND start_time = ? AND boot_id = ? RETURNING",
        "",
        daemon.as_str(),
        pid,
        start_time,
        boot_id
    );
    Ok(query.fetch_optional(db).await?.map(|(_, client)| client))
}

/// The connected clients of a daemon.
pub async fn of_daemon(db: &mut Db, daemon: &DaemonName, boot_id: &str) -> Result<Vec<ConnectedClient>> {
    let query = clients!(
        "SELECT",
        "FROM connected_clients WHERE daemon = ? AND boot_id = ? ORDER BY pid",
        daemon.as_str(),
        boot_id
    );
    Ok(query.map(|(_, client)| client).fetch_all(db).await?)
}

/// Deletes the clients of earlier boots, and returns events saying that they disconnected: the host went down while they were connected.
pub async fn remove_other_boots(db: &mut Db, boot_id: &str) -> Result<Vec<NewEvent>> {
    let query = clients!("SELECT", "FROM connected_clients WHERE boot_id <> ? ORDER BY daemon, pid", boot_id);
    let left = query.map(|(daemon, client)| {
        DomainEvent::ClientLeft(client.observed_on(&daemon)).because(EventCause::Host)
    });
    let left = left.fetch_all(&mut *db).await?;
    execute!(db, "DELETE FROM connected_clients WHERE boot_id <> ?", boot_id)?;
    Ok(left)
}

/// Returns true if there is already an event for the end of this client, known from server.log only.
pub async fn has_disconnect_event(
    db: &mut Db,
    daemon: &DaemonName,
    pid: u32,
    logged_at: Option<i64>,
) -> Result<bool> {
    let exists = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT 1 FROM events
               WHERE type = ? AND daemon = ? AND details ->> 'pid' = ? AND details ->> 'logged_at' = ?
           ) AS "found!: bool""#,
        EventType::ClientLeft.as_str(),
        daemon.as_str(),
        pid,
        // The payload of an event is stored as it is sent.
        logged_at.map(rfc3339::format)
    )
    .fetch_one(db)
    .await?;
    Ok(exists)
}
