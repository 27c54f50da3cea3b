//! Inspection of a database, which may be in use by a manager, without changing a byte.

use std::path::Path;

use sqlx::Connection as _;

use super::schema::{self, Schema};
use super::{Db, Result, daemons, host, tenants};
use crate::domain::daemon::Daemon;
use crate::domain::tenant::Tenant;

/// Findings about a database.
#[derive(Debug)]
pub struct Inspection {
    /// Its schema.
    pub schema: Schema,
    /// First damage that SQLite finds, or a difference from its schema; `None` if it is intact.
    pub damage: Option<String>,
    /// Contents of an intact database of the newest schema.
    pub contents: Option<Contents>,
}

/// Contents that `doctor` needs.
#[derive(Debug)]
pub struct Contents {
    /// The machine it belongs to.
    pub machine_id: Option<String>,
    /// The daemons.
    pub daemons: Vec<Daemon>,
    /// The tokens of their control processes.
    pub tokens: Vec<String>,
    /// The processes, by ID and start time, that were adopted and carry no token.
    pub processes: Vec<(u32, u64)>,
    /// The tenants.
    pub tenants: Vec<Tenant>,
}

/// Inspects a database.
pub async fn inspect(path: &Path) -> Result<Inspection> {
    let mut connection = schema::open_to_read(path).await?;
    let mut damage = damage(&mut connection).await?;
    let schema = schema::read(&mut connection).await?;
    let is_newest = schema == Schema::Version(schema::newest());
    if is_newest && damage.is_none() {
        damage = schema::difference(&mut connection).await?;
    }
    let is_readable = is_newest && damage.is_none();
    let contents = if is_readable { Some(contents(&mut connection).await?) } else { None };
    connection.close().await?;
    Ok(Inspection { schema, damage, contents })
}

/// Returns the first damage that SQLite finds in a database; `None` if it is intact.
pub(super) async fn damage(db: &mut Db) -> Result<Option<String>> {
    let check: Vec<String> = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_all(db).await?;
    Ok((check != ["ok"]).then(|| check.into_iter().next().unwrap_or_default()))
}

async fn contents(db: &mut Db) -> Result<Contents> {
    let machine_id = host::machine_id(&mut *db).await?;
    let daemons = daemons::all(&mut *db).await?;
    let (mut tokens, mut processes) = (Vec::new(), Vec::new());
    for daemon in &daemons {
        if let Some(incarnation) = daemons::incarnation(&mut *db, &daemon.name).await? {
            tokens.push(incarnation.token);
            processes.extend(incarnation.process);
        }
    }
    let tenants = tenants::all(db).await?;
    Ok(Contents { machine_id, daemons, tokens, processes, tenants })
}
