//! Backup and restore of the state directory's database, beside a manager or without one.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{DATABASE, StartupError, refused, trusted};
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::audit::AttemptedAction;
use crate::host;
use crate::host::trust::{Content, Trust};
use crate::service::host::startup::NO_MACHINE_ID;
use crate::store::audit_head::AuditHead;
use crate::store::backup::{self, Backup};
use crate::store::lock;
use crate::store::restore::{self, Restored};

/// A backup, and whether it is recorded.
#[derive(Debug, serde::Serialize)]
pub struct Made {
    /// The backup.
    #[serde(flatten)]
    pub backup: Backup,
    /// Why the audit log and the events do not have it; `None` where they do.
    pub unrecorded: Option<String>,
}

/// Copies the database to a file that must not be there yet; a running manager serves meanwhile.
pub async fn backup(config: &Config, file: &Path) -> Result<Made, StartupError> {
    let database = config.state_dir.join(DATABASE);
    let backup = backup::copy(&database, file).await.map_err(refused)?;
    let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
    let now = Clock::system().unix_ms();
    // The backup is made, also where this fails.
    let recorded = backup::put_on_record(&database, &machine_id, &attempt("backup", file), now).await;
    Ok(Made { backup, unrecorded: recorded.err().map(|error| error.to_string()) })
}

/// Returns the record of what the caller does with a file.
fn attempt(action: &str, file: &Path) -> AttemptedAction {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    AttemptedAction::at_command_line(rustix::process::geteuid().as_raw(), action, &file)
}

/// Restores a backup in the place of the database; refuses while a manager serves.
///
/// A backup with a broken audit log is refused unless `broken_audit` is set.
pub async fn restore(config: &Config, file: &Path, broken_audit: bool) -> Result<Restored, StartupError> {
    // The owner of the directory: the manager may run as another user.
    let owner = std::fs::metadata(&config.state_dir).map(|directory| directory.uid());
    let trust = owner.map_or_else(|_| Trust::own(), |owner| Trust::own().and(owner));
    // Whoever can change the backup can put a token into it.
    trust
        .check(file, Content::File)
        .map_err(|untrusted| StartupError(format!("the backup is refused: {untrusted}")))?;
    // The backup is examined before anything is made.
    let backup = backup::examine(file).await.map_err(refused)?;
    trusted::check_state(&config.state_dir, &trust).map_err(refused)?;
    let lock = lock::take(&config.state_dir).await.map_err(refused)?;
    let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
    let database = config.state_dir.join(DATABASE);
    let attempt = attempt("restore", file);
    let now = Clock::system().unix_ms();
    let restored = restore::restore(backup, broken_audit, &database, &machine_id, &attempt, now).await;
    if restored.is_ok() {
        // The audit log now ends where that of the backup did, and with the restore: the head of the old one is obsolete.
        AuditHead::in_directory(&config.state_dir).forget().map_err(refused)?;
    }
    drop(lock);
    restored.map_err(refused)
}
