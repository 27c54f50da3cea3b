//! Offset up to which the server.log of each daemon was read for events.

use super::rows::execute;
use super::{Db, Result};
use crate::domain::{DaemonName, FilePlace, Inode};

/// Writes the offset up to which the server.log of a daemon was read; nothing for a deleted daemon.
pub async fn put(db: &mut Db, daemon: &DaemonName, offset: FilePlace) -> Result<()> {
    execute!(
        db,
        "INSERT OR REPLACE INTO log_offsets (daemon, inode, inode_birth_ns, read_offset)
         SELECT name, ?2, ?3, ?4 FROM daemons WHERE name = ?1",
        daemon.as_str(),
        offset.inode.number.cast_signed(),
        offset.inode.born,
        offset.offset.cast_signed()
    )
}

/// Returns the offset up to which the server.log of a daemon was read.
pub async fn get(db: &mut Db, daemon: &DaemonName) -> Result<Option<FilePlace>> {
    let query = sqlx::query!(
        "SELECT inode, inode_birth_ns, read_offset FROM log_offsets WHERE daemon = ?",
        daemon.as_str()
    );
    let offset = query.map(|row| FilePlace {
        inode: Inode { number: row.inode.cast_unsigned(), born: row.inode_birth_ns },
        offset: row.read_offset.cast_unsigned(),
    });
    Ok(offset.fetch_optional(db).await?)
}
