//! Backup and restore of the state directory's database, beside a manager or without one.

use std::path::Path;

use super::{DATABASE, StartError, refused};
use crate::clock::unix_ms;
use crate::config::Config;
use crate::host;
use crate::service::take_up::NO_MACHINE_ID;
use crate::store::backup::{self, Backup};
use crate::store::lock;
use crate::store::restore::{self, Restored};

/// Copies the database to a file that must not be there yet; a manager that serves goes on meanwhile.
pub async fn backup(config: &Config, file: &Path) -> Result<Backup, StartError> {
    backup::copy(&config.state_dir.join(DATABASE), file).await.map_err(refused)
}

/// Puts a backup in the place of the database; refuses while a manager serves.
///
/// One with a broken audit is refused unless that is allowed.
pub async fn restore(config: &Config, file: &Path, broken_audit: bool) -> Result<Restored, StartError> {
    // What is wrong with the file is said before anything is made.
    let backup = backup::examine(file).await.map_err(refused)?;
    let lock = lock::take(&config.state_dir).await.map_err(refused)?;
    let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
    let boot_id = host::boot_id().map_err(refused)?;
    let database = config.state_dir.join(DATABASE);
    let restored = restore::restore(backup, broken_audit, &database, &machine_id, &boot_id, unix_ms()).await;
    drop(lock);
    restored.map_err(refused)
}
