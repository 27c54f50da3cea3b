//! Clients that have an event for their connection and none yet for its end.

use sqlx::SqliteConnection;

use super::{StoreError, from_json, parsed, to_json};
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

/// Reads clients, by the rest of a statement and its values.
macro_rules! select {
    ($rest:tt $(, $value:expr)*) => {
        sqlx::query_as!(
            ConnectedClientRow,
            r#"SELECT daemon, pid, start_time, server, uid, program, tenant, attributed_by FROM connected_clients "# + $rest
            $(, $value)*
        )
    };
}

struct ConnectedClientRow {
    daemon: String,
    pid: i64,
    start_time: i64,
    server: i64,
    uid: Option<i64>,
    program: Option<String>,
    tenant: Option<String>,
    attributed_by: String,
}

impl ConnectedClientRow {
    fn client(self) -> Result<(DaemonName, ConnectedClient), StoreError> {
        let uid = self.uid.map(u32::try_from).transpose();
        let tenant = self.tenant.as_deref().map(TenantName::parse).transpose();
        let client = ConnectedClient {
            id: ClientId {
                pid: parsed("a process ID", u32::try_from(self.pid))?,
                start_time: self.start_time.cast_unsigned(),
            },
            server: parsed("a process ID", u32::try_from(self.server))?,
            uid: parsed("a user", uid)?,
            program: self.program,
            tenant: parsed("a tenant's name", tenant)?,
            attributed_by: from_json("an attribution", &self.attributed_by)?,
        };
        Ok((parsed("a daemon's name", DaemonName::parse(&self.daemon))?, client))
    }
}

/// Writes that a client connected; nothing for a daemon that is gone.
pub async fn put(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    boot_id: &str,
    client: &ConnectedClient,
) -> Result<(), StoreError> {
    let (daemon, pid) = (daemon.as_str(), i64::from(client.id.pid));
    let (start_time, server) = (client.id.start_time.cast_signed(), i64::from(client.server));
    let (uid, tenant) = (client.uid.map(i64::from), client.tenant.as_ref().map(TenantName::as_str));
    let attributed_by = to_json(&client.attributed_by);
    sqlx::query!(
        "INSERT OR REPLACE INTO connected_clients
             (daemon, pid, start_time, boot_id, server, uid, program, tenant, attributed_by)
         SELECT name, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 FROM daemons WHERE name = ?1",
        daemon,
        pid,
        start_time,
        boot_id,
        server,
        uid,
        client.program,
        tenant,
        attributed_by
    )
    .execute(db)
    .await?;
    Ok(())
}

/// A connected client, of this boot or an earlier one.
pub async fn get(db: &mut SqliteConnection, id: ClientId) -> Result<Option<ConnectedClient>, StoreError> {
    let (pid, start_time) = (i64::from(id.pid), id.start_time.cast_signed());
    let row = select!("WHERE pid = ? AND start_time = ?", pid, start_time).fetch_optional(db).await?;
    Ok(row.map(ConnectedClientRow::client).transpose()?.map(|(_, client)| client))
}

/// Removes a client that disconnected; `None` for one whose connection is not in the events.
pub async fn remove(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    boot_id: &str,
    id: ClientId,
) -> Result<Option<ConnectedClient>, StoreError> {
    let (daemon, pid, start_time) = (daemon.as_str(), i64::from(id.pid), id.start_time.cast_signed());
    let row = select!(
        "WHERE daemon = ? AND pid = ? AND start_time = ? AND boot_id = ?",
        daemon,
        pid,
        start_time,
        boot_id
    )
    .fetch_optional(&mut *db)
    .await?;
    sqlx::query!(
        "DELETE FROM connected_clients WHERE daemon = ? AND pid = ? AND start_time = ? AND boot_id = ?",
        daemon,
        pid,
        start_time,
        boot_id
    )
    .execute(db)
    .await?;
    Ok(row.map(ConnectedClientRow::client).transpose()?.map(|(_, client)| client))
}

/// The connected clients of a daemon.
pub async fn of_daemon(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    boot_id: &str,
) -> Result<Vec<ConnectedClient>, StoreError> {
    let daemon = daemon.as_str();
    let rows =
        select!("WHERE daemon = ? AND boot_id = ? ORDER BY pid", daemon, boot_id).fetch_all(db).await?;
    rows.into_iter().map(|row| Ok(row.client()?.1)).collect()
}

/// Deletes the clients of earlier boots, and returns events saying that they disconnected: the host went down while they were connected.
pub async fn remove_other_boots(
    db: &mut SqliteConnection,
    boot_id: &str,
) -> Result<Vec<NewEvent>, StoreError> {
    let rows = select!("WHERE boot_id <> ? ORDER BY daemon, pid", boot_id).fetch_all(&mut *db).await?;
    sqlx::query!("DELETE FROM connected_clients WHERE boot_id <> ?", boot_id).execute(db).await?;
    let left = |row: ConnectedClientRow| {
        let (daemon, client) = row.client()?;
        Ok(DomainEvent::ClientLeft(client.observed_on(&daemon)).because(EventCause::Host))
    };
    rows.into_iter().map(left).collect()
}

/// Returns true if there is already an event for the end of this client, known from server.log only.
pub async fn has_disconnect_event(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    pid: u32,
    logged_at: Option<i64>,
) -> Result<bool, StoreError> {
    let (daemon, kind) = (daemon.as_str(), EventType::ClientLeft.as_str());
    // The payload of an event is stored as it is sent.
    let logged_at = logged_at.map(rfc3339::format);
    let found = sqlx::query_scalar!(
        r#"SELECT EXISTS (
               SELECT 1 FROM events
               WHERE type = ? AND daemon = ? AND details ->> 'pid' = ? AND details ->> 'logged_at' = ?
           ) AS "found!: bool""#,
        kind,
        daemon,
        pid,
        logged_at
    )
    .fetch_one(db)
    .await?;
    Ok(found)
}
