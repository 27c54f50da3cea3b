//! A backup put in the place of the database, while no manager serves.
//!
//! Settings come from the backup. What is true of this host now, whatever the settings were, comes from the database that is
//! replaced: which control processes run, with which tokens, who holds which lease, which compute modes were there before.
//! Without that, a daemon that was started after the backup was made would be a stranger, and a stranger's pipe directory is
//! not touched. Nothing that was asked for when the backup was made is done again.

mod present;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use sqlx::sqlite::SqliteJournalMode;
use sqlx::{Connection as _, SqliteConnection};

use super::backup::{Backup, BackupError, Unfinished, sync_directory};
use super::{
    MIGRATIONS, StoreError, audit, compute_modes, daemons, events, host, inspect, known_version, layouts,
    leases, maintenance, options, partition_leases, partitions, sessions, tenants, tokens,
};
use crate::domain::audit::{Attempt, Broken, Target};
use crate::domain::daemon::{DesiredState, Incarnation};
use crate::domain::event::{Cause, Details, EventType, NewEvent, Subject};
use crate::domain::maintenance::MaintenanceState;
use crate::domain::tenant::Tenant;
use crate::domain::token::{Token, TokenState};
use crate::domain::{DaemonName, TenantName};

/// Why a backup was not put in place; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file is no backup, or cannot be read.
    #[error(transparent)]
    File(#[from] BackupError),
    /// The backup was made by a newer mps-manager.
    #[error(
        "{path} has schema version {found} and this mps-manager knows {known}: restore it with the mps-manager that made it, or \
         a newer one"
    )]
    Newer {
        /// The backup.
        path: PathBuf,
        /// Its version.
        found: i64,
        /// The newest version known here.
        known: i64,
    },
    /// The host is on its way into maintenance, or out of it.
    #[error(
        "the maintenance of this host is {0}, and a manager has to bring that to its end: start it, wait until \
         `GET /api/v1/host/maintenance` says active or nothing, stop it, and restore then"
    )]
    Maintenance(&'static str),
    /// Somebody meddled with the audit of the backup.
    #[error(
        "the audit of {path} is broken: {broken}. Restore another backup, or this one with --broken-audit if nothing better is there"
    )]
    Audit {
        /// The backup.
        path: PathBuf,
        /// What does not fit.
        broken: Broken,
    },
    /// The database that is to be replaced is not lost, and cannot be read.
    #[error(
        "{path} cannot be read now ({why}), and without what it knows tokens that were revoked would come back: mend that and \
         restore again, or move the file away to restore without it"
    )]
    Unread {
        /// The database.
        path: PathBuf,
        /// What stands in the way.
        why: String,
    },
    /// The copy could not be prepared.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was done, and what the next start makes of it.
#[derive(Debug, serde::Serialize)]
pub struct Restored {
    /// The backup.
    pub backup: Backup,
    /// The database that it is now.
    pub database: PathBuf,
    /// Where the one before is; `None` where there was none.
    pub replaced: Option<PathBuf>,
    /// What to know, a sentence each.
    pub notes: Vec<String>,
}

/// Puts `backup` in the place of `database`, one with a broken audit only if that is allowed; the caller holds the state
/// directory's lock.
pub async fn restore(
    backup: Backup,
    broken_audit: bool,
    database: &Path,
    machine_id: &str,
    boot_id: &str,
    attempt: &Attempt,
    now: i64,
) -> Result<Restored, RestoreError> {
    let known = known_version();
    if backup.schema_version > known {
        return Err(RestoreError::Newer { path: backup.file, found: backup.schema_version, known });
    }
    let mut notes = Vec::new();
    if backup.schema_version >= audit::FIRST_WITH_AUDIT
        && let Err(broken) = audit::verify(&backup.file, None).await?
    {
        if !broken_audit {
            return Err(RestoreError::Audit { path: backup.file, broken });
        }
        notes.push(format!("the audit of the backup is broken: {broken}"));
    }
    let file = |path: &Path, source| RestoreError::File(BackupError::File { path: path.to_owned(), source });
    let unfinished = Unfinished::beside(database)?;
    unfinished.fill(&backup.file).map_err(|source| file(&unfinished.path, source))?;
    if backup.schema_version < known {
        notes.push(format!("schema version {} was brought up to {known}", backup.schema_version));
    }
    let mut restored = connect(&unfinished.path).await?;
    let damaged = |detail| RestoreError::File(BackupError::Damaged { path: backup.file.clone(), detail });
    MIGRATIONS.run(&mut restored).await.map_err(|error| damaged(error.to_string()))?;
    if let Some(missing) = inspect::missing(&mut restored).await? {
        return Err(damaged(format!("{missing} is missing")));
    }
    let present = if database.exists() { present::present(database, known).await? } else { Err(None) };
    let mut transaction = restored.begin().await.map_err(StoreError::from)?;
    let db = &mut *transaction;
    host::call_off(&mut *db, "it was under way when the backup was made that was restored since", now)
        .await?;
    sessions::forget_all(&mut *db).await?;
    match present {
        Err(why) => {
            maintenance::delete(&mut *db).await?;
            forget_applied(&mut *db, now).await?;
            note_tokens(&mut *db, &mut notes, now).await?;
            if let Some(why) = why {
                notes.push(format!(
                    "the database that was replaced could not be read ({why}), so nothing is known of what was started since the \
                     backup: a control daemon that is not in the backup stays as it is, and the manager's daemon in its place is \
                     blocked until it ends. What its audit holds stays there: keep that file"
                ));
            }
        }
        Ok(mut present) => {
            let theirs = host::machine_id(&mut present.connection).await?;
            if theirs.as_deref() == Some(machine_id) && backup.machine_id == theirs {
                notes.extend(carry_over(&mut *db, &mut present.connection, boot_id, attempt, now).await?);
            } else {
                notes.push(
                    "the backup and the database that was replaced are not both this machine's: what runs here was not carried \
                     over"
                        .to_owned(),
                );
                note_tokens(&mut *db, &mut notes, now).await?;
            }
            present.connection.close().await.map_err(StoreError::from)?;
        }
    }
    let message = format!("{} was put in the place of the database", attempt.target);
    let event = NewEvent::new(EventType::DatabaseRestored, Subject::default(), message);
    let by = Cause::Actor { subject: attempt.actor.clone() };
    events::append(&mut *db, &event.because(by), now).await?;
    audit::append(&mut *db, attempt, audit::Came::default(), 1, now).await?;
    transaction.commit().await.map_err(StoreError::from)?;
    restored.close().await.map_err(StoreError::from)?;
    if backup.machine_id.as_deref().is_some_and(|theirs| theirs != machine_id) {
        notes.push(
            "the backup is of another machine: the next start changes nothing until somebody confirms that it is this one's \
             (POST /api/v1/host/confirm)"
                .to_owned(),
        );
    }
    let replaced = replace(&unfinished, database, now).map_err(|(path, source)| file(&path, source))?;
    Ok(Restored { backup, database: database.to_owned(), replaced, notes })
}

/// A connection to a file that is nobody else's yet, which leaves no other file beside it.
async fn connect(path: &Path) -> Result<SqliteConnection, StoreError> {
    let options = options(path)?.journal_mode(SqliteJournalMode::Delete);
    Ok(SqliteConnection::connect_with(&options).await?)
}

/// Nothing counts as applied: what the backup says was read back in another process, or long ago.
async fn forget_applied(db: &mut SqliteConnection, now: i64) -> Result<(), StoreError> {
    for daemon in daemons::all(&mut *db).await? {
        if let Some(incarnation) = daemons::incarnation(&mut *db, &daemon.name).await? {
            let incarnation = Incarnation { applied: 0, ..incarnation };
            daemons::put_incarnation(&mut *db, &daemon.name, &incarnation, now).await?;
        }
    }
    Ok(())
}

/// Writes into `db` what `present` knows of this host; says what is not in both.
async fn carry_over(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
    boot_id: &str,
    attempt: &Attempt,
    now: i64,
) -> Result<Vec<String>, RestoreError> {
    let mut notes = carry_maintenance(&mut *db, &mut *present).await?;
    daemons::raise_numbers(&mut *db, &daemons::numbers(&mut *present).await?).await?;
    tenants::raise_numbers(&mut *db, &tenants::numbers(&mut *present).await?).await?;
    let running = daemons::all(&mut *present).await?;
    let restored = daemons::all(&mut *db).await?;
    for mut daemon in restored {
        let name = daemon.name.clone();
        daemons::forget_process(&mut *db, &name).await?;
        let Some(here) = running.iter().find(|daemon| daemon.name == name) else {
            notes.push(format!(
                "daemon {name} is in the backup and was deleted since: the next start begins it afresh, as its spec says"
            ));
            continue;
        };
        if let Some(incarnation) = daemons::incarnation(&mut *present, &name).await? {
            let incarnation = Incarnation { applied: 0, ..incarnation };
            daemons::put_incarnation(&mut *db, &name, &incarnation, now).await?;
        }
        if let Some(run) = partitions::run(&mut *present, &name).await? {
            partitions::carry_run(&mut *db, &name, &run, now).await?;
        }
        // To be up or down is no setting but where it was left.
        if daemon.spec.desired_state != here.spec.desired_state {
            let word = |state| if state == DesiredState::Running { "running" } else { "stopped" };
            let (then, stays) = (word(daemon.spec.desired_state), word(here.spec.desired_state));
            notes.push(format!("daemon {name} was to be {then} when the backup was made, and stays {stays}"));
            daemon.spec.desired_state = here.spec.desired_state;
            daemons::put(&mut *db, &name, &daemon.spec, now).await?;
        }
    }
    for daemon in &running {
        if daemons::get(&mut *db, &daemon.name).await?.is_none() {
            notes.push(left_out(&mut *present, &daemon.name).await?);
        }
    }
    carry_tenants(&mut *db, &mut *present, &mut notes).await?;
    carry_processes(&mut *db, &mut *present, boot_id, now).await?;
    if !audit::carry(&mut *db, &mut *present).await? {
        notes.push(
            "the audit of the database that was replaced does not go on from the backup's, so it stays there: keep that file"
                .to_owned(),
        );
    }
    carry_events(&mut *db, &mut *present, now).await?;
    carry_access(&mut *db, &mut *present, &mut notes, attempt, now).await?;
    layouts::raise_numbers(&mut *db, &layouts::numbers(&mut *present).await?).await?;
    Ok(notes)
}

/// A daemon that the backup does not know.
async fn left_out(present: &mut SqliteConnection, name: &DaemonName) -> Result<String, StoreError> {
    let process = daemons::incarnation(present, name).await?.and_then(|incarnation| incarnation.process);
    Ok(match process {
        Some((pid, _)) => format!(
            "daemon {name} was made after the backup: its control daemon {pid} and its clients run on if they run now, listed as \
             foreign (`mps-manager status`), and it can be adopted or quit"
        ),
        None => format!("daemon {name} was made after the backup, and is forgotten"),
    })
}

/// The host stays in the maintenance that it is in, and in none that it was in once.
async fn carry_maintenance(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
) -> Result<Vec<String>, RestoreError> {
    maintenance::delete(&mut *db).await?;
    let Some(now) = maintenance::get(&mut *present).await? else { return Ok(Vec::new()) };
    if now.state != MaintenanceState::Active {
        return Err(RestoreError::Maintenance(now.state.as_str()));
    }
    maintenance::put(&mut *db, &now).await?;
    if let Some(text) = maintenance::remembered_text(&mut *present).await? {
        maintenance::put_active(&mut *db, &text).await?;
    }
    Ok(vec!["the host stays in maintenance".to_owned()])
}

/// Why what was given to the tenant of a name is not the backup's to go on with; `None` where it is the same tenant in both.
///
/// A name says nothing: it may have been given again.
async fn is_another(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
    name: &TenantName,
) -> Result<Option<&'static str>, StoreError> {
    let made = |tenant: Option<Tenant>| tenant.map(|tenant| tenant.created_at);
    let (here, there) = (made(tenants::get(db, name).await?), made(tenants::get(present, name).await?));
    Ok(match here {
        None => Some("its tenant is forgotten"),
        Some(_) if here != there => Some("the backup has another tenant of that name"),
        Some(_) => None,
    })
}

/// Leaves tenants the directories that they have here, which containers may have mounted; says which tenants the backup does not
/// know, and for which it has another of the same name.
async fn carry_tenants(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
    notes: &mut Vec<String>,
) -> Result<(), StoreError> {
    for daemon in daemons::all(&mut *present).await? {
        for tenant in tenants::of_daemon(&mut *present, &daemon.name).await? {
            let name = &tenant.name;
            if tenants::get(&mut *db, name).await?.is_none() {
                notes.push(format!(
                    "tenant {name} was made after the backup and is forgotten; its processes run on, and are nobody's"
                ));
            } else if is_another(&mut *db, &mut *present, name).await?.is_some() {
                notes.push(format!(
                    "tenant {name} was made after the backup and is forgotten, and the backup has another tenant of that name: \
                     processes of the one that is forgotten run on without a lease, and count as the other's where their user or \
                     their environment says so (`mps-manager clients` shows by what): end those that must not"
                ));
            } else {
                tenants::put_directory(&mut *db, name, &tenant.directory).await?;
            }
        }
    }
    Ok(())
}

/// Goes on behind the last number that was given here, and tells readers of what was written since the backup that it is gone.
async fn carry_events(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
    now: i64,
) -> Result<(), StoreError> {
    let (kept, given) = (events::newest(&mut *db).await?, events::newest(&mut *present).await?);
    if given <= kept {
        return Ok(());
    }
    events::begin_after(&mut *db, given).await?;
    let message = format!(
        "a backup was restored that ends with event {kept}: what was written after it, up to event {given}, is gone"
    );
    let details = Details::Lost {
        count: u64::try_from(given - kept).ok(),
        from: None,
        until: None,
        whole_from: Some(given + 1),
    };
    let event = NewEvent::new(EventType::EventsLost, Subject::default(), message).with(details);
    events::append(db, &event, now).await?;
    Ok(())
}

/// Who may come in is as it was a moment ago: a token that was revoked or expired since the backup does not come back, one that
/// was made since goes on, and whoever was logged in logs in again.
async fn carry_access(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
    notes: &mut Vec<String>,
    attempt: &Attempt,
    now: i64,
) -> Result<(), StoreError> {
    tokens::forget_all(&mut *db).await?;
    for token in tokens::page(&mut *present, "", i64::MAX).await? {
        let why = match token.grant.tenant() {
            None => None,
            Some(name) => is_another(&mut *db, &mut *present, name).await?,
        };
        tokens::put(&mut *db, &token).await?;
        if let Some(why) = why.filter(|_| token.state(now) == TokenState::Active) {
            revoke(&mut *db, &token, attempt, now).await?;
            notes.push(format!("token {} ({}) is revoked, since {why}", token.id, token.name));
        }
    }
    Ok(())
}

/// Takes a token back, which is told of and put on record as any other revocation is.
async fn revoke(
    db: &mut SqliteConnection,
    token: &Token,
    attempt: &Attempt,
    now: i64,
) -> Result<(), StoreError> {
    tokens::revoke(&mut *db, &token.id, now).await?;
    let by = Cause::Actor { subject: attempt.actor.clone() };
    events::append(&mut *db, &token.told(EventType::TokenRevoked).because(by), now).await?;
    let after = tokens::get(&mut *db, &token.id).await?;
    let came = audit::Came {
        problem: None,
        before: Some(token.on_record().to_string()),
        after: after.map(|token| token.on_record().to_string()),
    };
    let attempt = Attempt { target: Target::Token(token.id.clone()), ..attempt.clone() };
    audit::append(db, &attempt, came, 1, now).await
}

/// Says which tokens of the backup come back, where nothing is known of what was revoked since.
async fn note_tokens(db: &mut SqliteConnection, notes: &mut Vec<String>, now: i64) -> Result<(), StoreError> {
    let living = tokens::living(&mut *db, now).await?.len();
    if living > 0 {
        notes.push(format!(
            "tokens that can be used again as they could when the backup was made: {living}; revoke those that were revoked since \
             (`mps-manager token list`)"
        ));
    }
    Ok(())
}

/// Leases and compute modes as they are now.
///
/// The lease of a tenant that is forgotten goes with it. That into a partition stays, of nobody: the process may be in there still.
async fn carry_processes(
    db: &mut SqliteConnection,
    present: &mut SqliteConnection,
    boot_id: &str,
    now: i64,
) -> Result<(), StoreError> {
    leases::forget_all(&mut *db).await?;
    for record in leases::records(&mut *present, boot_id).await? {
        if is_another(&mut *db, &mut *present, &record.lease.tenant).await?.is_none() {
            leases::put(&mut *db, &record, boot_id).await?;
        }
    }
    for mut lease in partition_leases::all(&mut *present, boot_id).await? {
        if let Some(name) = &lease.tenant
            && is_another(&mut *db, &mut *present, name).await?.is_some()
        {
            lease.tenant = None;
        }
        partition_leases::put(&mut *db, &lease, boot_id, now).await?;
    }
    for (gpu, _) in compute_modes::all(&mut *db).await? {
        compute_modes::put(&mut *db, &gpu, None, now).await?;
    }
    for (gpu, held) in compute_modes::all(&mut *present).await? {
        compute_modes::put(&mut *db, &gpu, Some(&held), now).await?;
    }
    Ok(())
}

/// Gives the new file the database's name, and keeps the one before under another.
///
/// At every moment the name leads to the old database or to the new one. A log is left only by a database that could not be
/// opened; it goes along with it, before, since no other database may find it.
fn replace(
    new: &Unfinished,
    database: &Path,
    now: i64,
) -> Result<Option<PathBuf>, (PathBuf, std::io::Error)> {
    let at = |path: &Path| {
        let path = path.to_owned();
        move |error| (path, error)
    };
    let beside = |path: &Path, suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    if geteuid().is_root()
        && let Some(parent) = database.parent()
    {
        // The manager may be another user, whose directory it is.
        let owner = std::fs::metadata(parent).map_err(at(parent))?;
        std::os::unix::fs::chown(&new.path, Some(owner.uid()), Some(owner.gid())).map_err(at(&new.path))?;
    }
    std::fs::File::open(&new.path).and_then(|file| file.sync_all()).map_err(at(&new.path))?;
    let kept = database.with_extension(format!("replaced-{now}.db"));
    let replaced = database.exists().then_some(kept);
    if let Some(kept) = &replaced {
        for suffix in ["-wal", "-shm"] {
            let log = beside(database, suffix);
            if log.exists() {
                std::fs::rename(&log, beside(kept, suffix)).map_err(at(&log))?;
            }
        }
        std::fs::hard_link(database, kept).map_err(at(kept))?;
    }
    std::fs::rename(&new.path, database).map_err(at(database))?;
    sync_directory(database).map_err(at(database))?;
    Ok(replaced)
}

#[cfg(test)]
mod tests;
