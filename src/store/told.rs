//! What it was told of: the clients that came and have not left, and how far each server.log was read for that.

use sqlx::SqliteConnection;

use super::{StoreError, events, from_json, parsed, to_json};
use crate::domain::client::{AttributedBy, ClientId};
use crate::domain::event::{Cause, Details, EventType, KnownFrom, NewEvent, Subject};
use crate::domain::{DaemonName, FilePlace, Inode, TenantName};

/// A client of which it was told that it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToldClient {
    /// The process.
    pub id: ClientId,
    /// The server it was connected to.
    pub server: u32,
    /// Its user.
    pub uid: Option<u32>,
    /// Its program.
    pub program: Option<String>,
    /// Whose it was.
    pub tenant: Option<TenantName>,
    /// How that was known.
    pub attributed_by: AttributedBy,
}

struct Row {
    daemon: String,
    pid: i64,
    start_time: i64,
    server: i64,
    uid: Option<i64>,
    program: Option<String>,
    tenant: Option<String>,
    attributed_by: String,
}

impl Row {
    fn client(self) -> Result<(DaemonName, ToldClient), StoreError> {
        let uid = self.uid.map(u32::try_from).transpose();
        let tenant = self.tenant.as_deref().map(TenantName::parse).transpose();
        let client = ToldClient {
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

/// Writes that a client came; nothing for a daemon that is gone.
pub async fn put_client(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    boot_id: &str,
    client: &ToldClient,
) -> Result<(), StoreError> {
    let (daemon, pid) = (daemon.as_str(), i64::from(client.id.pid));
    let (start_time, server) = (client.id.start_time.cast_signed(), i64::from(client.server));
    let (uid, tenant) = (client.uid.map(i64::from), client.tenant.as_ref().map(TenantName::as_str));
    let attributed_by = to_json(&client.attributed_by);
    sqlx::query!(
        "INSERT OR REPLACE INTO told_clients
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

/// Whose a client is of which it was told that it came.
pub async fn tenant(db: &mut SqliteConnection, id: ClientId) -> Result<Option<TenantName>, StoreError> {
    let (pid, start_time) = (i64::from(id.pid), id.start_time.cast_signed());
    let tenant = sqlx::query_scalar!(
        "SELECT tenant FROM told_clients WHERE pid = ? AND start_time = ? AND tenant IS NOT NULL",
        pid,
        start_time
    )
    .fetch_optional(db)
    .await?
    .flatten();
    tenant.map(|name| parsed("a tenant's name", TenantName::parse(&name))).transpose()
}

/// Takes a client that left; `None` for one of which it was not told.
pub async fn take_client(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    boot_id: &str,
    id: ClientId,
) -> Result<Option<ToldClient>, StoreError> {
    let (daemon, pid, start_time) = (daemon.as_str(), i64::from(id.pid), id.start_time.cast_signed());
    let row = sqlx::query_as!(
        Row,
        "SELECT daemon, pid, start_time, server, uid, program, tenant, attributed_by
         FROM told_clients WHERE daemon = ? AND pid = ? AND start_time = ? AND boot_id = ?",
        daemon,
        pid,
        start_time,
        boot_id
    )
    .fetch_optional(&mut *db)
    .await?;
    sqlx::query!(
        "DELETE FROM told_clients WHERE daemon = ? AND pid = ? AND start_time = ? AND boot_id = ?",
        daemon,
        pid,
        start_time,
        boot_id
    )
    .execute(db)
    .await?;
    Ok(row.map(Row::client).transpose()?.map(|(_, client)| client))
}

/// The clients of a daemon of which it was told that they came.
pub async fn clients(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    boot_id: &str,
) -> Result<Vec<ToldClient>, StoreError> {
    let daemon = daemon.as_str();
    let rows = sqlx::query_as!(
        Row,
        "SELECT daemon, pid, start_time, server, uid, program, tenant, attributed_by
         FROM told_clients WHERE daemon = ? AND boot_id = ? ORDER BY pid",
        daemon,
        boot_id
    )
    .fetch_all(db)
    .await?;
    rows.into_iter().map(|row| Ok(row.client()?.1)).collect()
}

/// Tells that the clients of an earlier boot have left: the host went down under them.
pub async fn clients_of_other_boots_left(
    db: &mut SqliteConnection,
    boot_id: &str,
    now: i64,
) -> Result<(), StoreError> {
    let rows = sqlx::query_as!(
        Row,
        "SELECT daemon, pid, start_time, server, uid, program, tenant, attributed_by
         FROM told_clients WHERE boot_id <> ? ORDER BY daemon, pid",
        boot_id
    )
    .fetch_all(&mut *db)
    .await?;
    sqlx::query!("DELETE FROM told_clients WHERE boot_id <> ?", boot_id).execute(&mut *db).await?;
    for row in rows {
        let (daemon, client) = row.client()?;
        events::append(&mut *db, &left(&daemon, &client).because(Cause::Host), now).await?;
    }
    Ok(())
}

/// What is told of a client that has left.
pub fn left(daemon: &DaemonName, client: &ToldClient) -> NewEvent {
    let subject = Subject {
        client: Some(client.id),
        server: Some(client.server),
        tenant: client.tenant.clone(),
        ..Subject::daemon(daemon)
    };
    let message = format!("process {} is no client of daemon {daemon} any more", client.id.pid);
    NewEvent::new(EventType::ClientLeft, subject, message).because(Cause::Client).with(Details::Client {
        pid: client.id.pid,
        uid: client.uid,
        program: client.program.clone(),
        attributed_by: client.attributed_by,
        known_from: KnownFrom::Look,
        logged_at: None,
    })
}

/// Writes how far the server.log of a daemon was read; nothing for a daemon that is gone.
pub async fn put_place(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    place: FilePlace,
) -> Result<(), StoreError> {
    let (daemon, inode) = (daemon.as_str(), place.inode.number.cast_signed());
    let read_to = place.offset.cast_signed();
    sqlx::query!(
        "INSERT OR REPLACE INTO log_places (daemon, inode, born, read_to)
         SELECT name, ?2, ?3, ?4 FROM daemons WHERE name = ?1",
        daemon,
        inode,
        place.inode.born,
        read_to
    )
    .execute(db)
    .await?;
    Ok(())
}

/// How far the server.log of a daemon was read.
pub async fn place(db: &mut SqliteConnection, daemon: &DaemonName) -> Result<Option<FilePlace>, StoreError> {
    let daemon = daemon.as_str();
    let row = sqlx::query!("SELECT inode, born, read_to FROM log_places WHERE daemon = ?", daemon)
        .fetch_optional(db)
        .await?;
    Ok(row.map(|row| FilePlace {
        inode: Inode { number: row.inode.cast_unsigned(), born: row.born },
        offset: row.read_to.cast_unsigned(),
    }))
}

/// Whether it was told already of a client that server.log alone tells of.
pub async fn was_told(
    db: &mut SqliteConnection,
    daemon: &DaemonName,
    pid: u32,
    logged_at: Option<i64>,
) -> Result<bool, StoreError> {
    let (daemon, kind) = (daemon.as_str(), EventType::ClientLeft.as_str());
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
