//! A database looked at from outside: whether a manager serves from it or not, without changing a byte.

use std::collections::BTreeSet;
use std::path::Path;

use sqlx::{Connection as _, SqliteConnection};

use super::{MIGRATIONS, StoreError, daemons, host, known_version, open_to_read, tenants, version_of};
use crate::domain::daemon::Daemon;
use crate::domain::tenant::Tenant;

/// What a database holds.
#[derive(Debug)]
pub struct Inspection {
    /// Its schema version; 0 for a file that is not this program's.
    pub version: i64,
    /// The newest schema version that this program knows.
    pub known: i64,
    /// What SQLite found wrong with it; `None` where it is whole.
    pub damage: Option<String>,
    /// The rest, for a database of the version that is known here.
    pub contents: Option<Contents>,
}

/// What is of use of a database.
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

/// Looks at a database.
pub async fn inspect(path: &Path) -> Result<Inspection, StoreError> {
    let mut connection = open_to_read(path).await?;
    let damage = damage(&mut connection).await?;
    let (version, known) = (version_of(&mut connection).await?, known_version());
    let contents =
        if version == known && damage.is_none() { Some(contents(&mut connection).await?) } else { None };
    connection.close().await?;
    Ok(Inspection { version, known, damage, contents })
}

/// What SQLite finds wrong with a database; `None` where it is whole.
pub(super) async fn damage(db: &mut SqliteConnection) -> Result<Option<String>, StoreError> {
    let found: Vec<String> = sqlx::query_scalar("PRAGMA quick_check(1)").fetch_all(db).await?;
    Ok((found != ["ok"]).then(|| found.into_iter().next().unwrap_or_default()))
}

/// What a database lacks that one of the newest schema has: a table, or a column of one. SQLite calls it whole all the same, and no
/// version of this program takes one away.
pub(super) async fn missing(db: &mut SqliteConnection) -> Result<Option<String>, StoreError> {
    let mut model = SqliteConnection::connect("sqlite::memory:").await?;
    MIGRATIONS.run(&mut model).await?;
    let (expected, found) = (columns(&mut model).await?, columns(db).await?);
    model.close().await?;
    Ok(expected.difference(&found).next().map(|(table, column)| {
        if found.iter().any(|(known, _)| known == table) {
            format!("the column {column} of its table {table}")
        } else {
            format!("its table {table}")
        }
    }))
}

/// The columns of all tables.
async fn columns(db: &mut SqliteConnection) -> Result<BTreeSet<(String, String)>, StoreError> {
    let query = "SELECT tables.name, columns.name FROM sqlite_schema AS tables, pragma_table_info(tables.name) AS columns
                 WHERE tables.type = 'table'";
    Ok(sqlx::query_as(query).fetch_all(db).await?.into_iter().collect())
}

async fn contents(db: &mut SqliteConnection) -> Result<Contents, StoreError> {
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
