//! Watches the manager's own files while it serves, and compares them at the start with what was remembered.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{DATABASE, StartupError, refused};
use crate::clock::Clock;
use crate::domain::condition::ConditionReason;
use crate::domain::event::{AuditDamage, DomainEvent};
use crate::domain::health::{FaultReport, HostFault, HostHealth};
use crate::host::files::free_bytes;
use crate::store::audit_head::{self, AUDIT_HEAD, AuditHead};
use crate::store::{self, Store, transact};

/// Pause between two checks of the files; a row that was committed longer ago than this is remembered in `audit.head`.
const EVERY: Duration = Duration::from_secs(1);
/// Number of checks after which a failed write is tried again.
const RETRY: u64 = 5;
/// Free bytes below which the state directory has no room: a few writes.
const NO_ROOM: u64 = 64 << 10;

/// Describes why a state directory lacks its database, where other files in it show that it had one.
pub(super) fn missing_database(state_dir: &Path) -> Option<String> {
    let database = state_dir.join(DATABASE);
    let problem = match std::fs::metadata(&database) {
        Ok(file) if file.len() > 0 => return None,
        Ok(_) => "is empty",
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => "is missing",
        // Opening the database reports the error.
        Err(_) => return None,
    };
    let signs = [state_dir.join("admin.token"), state_dir.join(audit_head::AUDIT_HEAD)];
    let sign = signs.into_iter().find(|sign| sign.exists())?;
    Some(format!(
        "{} {problem}, though a manager has served from this state directory before ({} is there)",
        database.display(),
        sign.display()
    ))
}

/// Refuses a state directory that has lost its database, unless a new one is wanted; and a new one where a database exists.
pub(super) fn check_database(state_dir: &Path, new_database: bool) -> Result<(), StartupError> {
    let missing = missing_database(state_dir);
    if new_database && missing.is_none() && state_dir.join(DATABASE).exists() {
        return Err(StartupError(format!(
            "--new-database: there is a database at {}; leave the option out, or move the database away",
            state_dir.join(DATABASE).display()
        )));
    }
    match missing {
        Some(problem) if !new_database => Err(StartupError(format!(
            "{problem}: restore a backup (`mps-manager restore FILE --state-dir {}`), or give --new-database to begin with an empty \
             database; daemons that run are listed as foreign then",
            state_dir.display()
        ))),
        Some(_) => AuditHead::in_directory(state_dir).forget().map_err(refused),
        None => Ok(()),
    }
}

/// Compares the audit log with the row that was remembered outside of the database, and reports what is missing.
pub(super) async fn compare_audit(
    clock: Clock,
    store: &Store,
    head: &AuditHead,
    health: &HostHealth,
    machine_id: &str,
) -> Result<(), StartupError> {
    let (reason, damage, means) = match head.read() {
        Ok(None) => return Ok(()),
        Ok(Some(remembered)) => {
            let compared = audit_head::compare(&mut *store.read().await.map_err(refused)?, &remembered).await;
            let Err(lost) = compared.map_err(refused)? else { return Ok(()) };
            let damage = if lost.found.id < lost.known.id {
                AuditDamage::Truncated { known: lost.known.id, found: lost.found.id }
            } else {
                AuditDamage::RowReplaced(lost.known.id)
            };
            (ConditionReason::RowsMissing, damage, "the database lost")
        }
        Err(error) if error.kind() == io::ErrorKind::InvalidData => (
            ConditionReason::HeadUnreadable,
            AuditDamage::HeadChanged(AUDIT_HEAD),
            "the database may have lost",
        ),
        Err(error) => return Err(refused(error)),
    };
    let message = format!(
        "{damage}: {means} what was written last, settings among it, as when its log (-wal) was removed or an older copy was put in \
         its place. Restore a backup, or check daemons, tenants and layouts and accept the database as it is: \
         `mps-manager host confirm` (POST {{\"machine_id\": \"{machine_id}\"}} to /api/v1/host/confirm)"
    );
    tracing::error!("{message}");
    health.set(HostFault::AuditTruncated, Some(FaultReport { reason, message }));
    if store.is_sealed() {
        return Ok(());
    }
    let event = DomainEvent::DatabaseRowsLost(damage);
    let written = transact!(store, |db| store::events::append(db, &event.into(), clock.unix_ms()).await);
    written.map(drop).map_err(refused)
}

/// Watches the database's files and the free space of their disk until shutdown, tries failed writes again, and remembers the end of the
/// audit log.
pub(super) async fn watch(store: Store, state_dir: PathBuf, health: HostHealth) {
    let head = AuditHead::in_directory(&state_dir);
    let mut committed = store.committed();
    committed.mark_changed();
    for second in 1u64.. {
        tokio::time::sleep(EVERY).await;
        store.check_files();
        check_room(&state_dir, &health);
        if health.has(HostFault::WritesFail) && second.is_multiple_of(RETRY) {
            // The writer reports the result.
            let _ = store.check_writes().await;
        }
        if committed.has_changed().unwrap_or(false) {
            committed.mark_unchanged();
            if !remember(&store, &head, &health).await {
                committed.mark_changed();
            }
        }
    }
}

/// Reports a state directory without room before a write fails: on a host where nothing changes that may be days later, when a daemon
/// dies and its start cannot be recorded.
fn check_room(state_dir: &Path, health: &HostHealth) {
    let Ok(room) = free_bytes(state_dir) else { return };
    let report = (room < NO_ROOM).then(|| FaultReport {
        reason: ConditionReason::DiskFull,
        message: format!(
            "the disk of the state directory {} has {room} bytes left, so that nothing more can be written soon: free space there",
            state_dir.display()
        ),
    });
    let is_full = report.is_some();
    if is_full != health.has(HostFault::StateDiskFull) {
        health.set(HostFault::StateDiskFull, report);
        if is_full {
            tracing::error!(room, "the disk of the state directory is full");
        } else {
            tracing::info!(room, "the disk of the state directory has room again");
        }
    }
}

/// Remembers the end of the audit log; returns true if that was done.
///
/// Nothing is remembered while the database is known to lack rows or is gone: the older record shows the loss to the next start.
pub(super) async fn remember(store: &Store, head: &AuditHead, health: &HostHealth) -> bool {
    if health.has(HostFault::AuditTruncated) || health.has(HostFault::DatabaseLost) {
        return false;
    }
    let Ok(mut reader) = store.read().await else { return false };
    let Ok(now) = store::audit::head(&mut reader).await else { return false };
    drop(reader);
    let head = head.clone();
    let written = tokio::task::spawn_blocking(move || match head.read() {
        Ok(Some(remembered)) if remembered == now => Ok(()),
        _ => head.write(&now),
    });
    match written.await {
        Ok(Ok(())) => true,
        Ok(Err(error)) => {
            tracing::debug!(%error, "where the audit ends could not be written beside the database");
            false
        }
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_database_is_distinguished_from_first_start() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        check_database(directory.path(), false).expect("a first start");
        std::fs::write(path(DATABASE), "").expect("written");
        check_database(directory.path(), false).expect("a first start that was cut off");
        for sign in ["admin.token", "audit.head"] {
            std::fs::write(path(sign), "x").expect("written");
            for empty in [true, false] {
                let _ = std::fs::remove_file(path(DATABASE));
                if empty {
                    std::fs::write(path(DATABASE), "").expect("written");
                }
                let text = check_database(directory.path(), false).expect_err("lost").to_string();
                assert!(text.contains(sign) && text.contains("--new-database"), "{text}");
                assert!(text.contains(if empty { "is empty" } else { "is missing" }), "{text}");
            }
            check_database(directory.path(), true).expect("a new one is wanted");
            assert!(!path("audit.head").exists());
            let _ = std::fs::remove_file(path(sign));
        }
        std::fs::write(path("admin.token"), "x").expect("written");
        std::fs::write(path(DATABASE), "something").expect("written");
        check_database(directory.path(), false).expect("there is one");
        assert!(
            check_database(directory.path(), true).expect_err("there is one").to_string().contains("leave")
        );
    }
}
