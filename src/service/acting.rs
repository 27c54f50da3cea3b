//! Who acts, and on what: it goes with the task of a use case that writes, so that whatever is written is told of and put on
//! record under its name, in the transaction that writes it.
//!
//! One place for all use cases: [`Service::write`]. What is refused is put on record by [`Service::refused`], for whoever
//! answers the caller.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;

use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::access::Origin;
use crate::domain::audit::{Attempt, Outcome, Target};
use crate::domain::event::{Cause, Details, EventType, NewEvent, Subject, changed_fields};
use crate::store::audit::Came;
use crate::store::{self, Fate, StoreError, Transaction};

/// Refused attempts of one actor that get rows of their own in a minute; the rest of them are counted in one.
const ROWS: u32 = 60;
/// Actors and addresses of which refusals are counted at once; beside so many they are counted together.
const COUNTED: usize = 1024;

tokio::task_local! {
    static ATTEMPT: Attempt;
}

/// Does something as an attempt of somebody.
pub async fn attempting<T>(attempt: Attempt, work: impl Future<Output = T>) -> T {
    ATTEMPT.scope(attempt, work).await
}

/// Does something as the attempt that is under way now, once it is known what that is about: a path does not name what is
/// only being made, or what a query names.
pub(super) async fn about<T>(target: Target, work: impl Future<Output = T>) -> T {
    match attempt() {
        Some(attempt) => attempting(Attempt { target, ..attempt }, work).await,
        None => work.await,
    }
}

/// Does something as the attempt that is under way now, on whatever task that is.
pub(super) fn carried<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let attempt = attempt();
    async move {
        match attempt {
            Some(attempt) => attempting(attempt, work).await,
            None => work.await,
        }
    }
}

/// What is being attempted, if that is known.
pub(super) fn attempt() -> Option<Attempt> {
    ATTEMPT.try_with(Clone::clone).ok()
}

/// Who is the cause of what is done now.
pub(super) fn cause() -> Cause {
    match attempt() {
        Some(attempt) if !attempt.is_manager => Cause::Actor { subject: attempt.actor },
        _ => Cause::Manager,
    }
}

/// Refusals that wait to be put on record together.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    counted: Mutex<HashMap<String, Counted>>,
}

#[derive(Debug)]
struct Counted {
    /// The first of those that have no row of their own.
    first: Option<(Attempt, String)>,
    rows: u32,
    more: i64,
}

impl Refusals {
    fn counted(&self) -> MutexGuard<'_, HashMap<String, Counted>> {
        // A panic elsewhere leaves the map as it was before or after one entry: both are whole.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this one gets a row of its own; if not, it is counted.
    fn takes_row(&self, key: &str, rows: u32, attempt: &Attempt, problem: &str) -> bool {
        let mut counted = self.counted();
        let key = if counted.len() >= COUNTED && !counted.contains_key(key) { "others" } else { key };
        let entry = counted.entry(key.to_owned()).or_insert(Counted { first: None, rows: 0, more: 0 });
        if entry.rows < rows {
            entry.rows += 1;
            return true;
        }
        entry.first.get_or_insert_with(|| (attempt.clone(), problem.to_owned()));
        entry.more += 1;
        false
    }

    /// Those that are to be put on record together; a new minute begins.
    fn take(&self) -> Vec<(Attempt, String, i64)> {
        let counted = std::mem::take(&mut *self.counted());
        let taken = counted.into_values();
        taken
            .filter_map(|counted| counted.first.map(|(attempt, problem)| (attempt, problem, counted.more)))
            .collect()
    }
}

impl Service {
    /// Runs a job on the writer as the store does, and with it what the audit and the journal say of it.
    ///
    /// A dry run leaves nothing of either, as it leaves nothing else.
    pub(super) async fn write<T, F>(&self, job: F) -> Result<T, ServiceError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, Fate), ServiceError>> + Send + 'static,
    {
        let Some(attempt) = attempt() else { return self.parts.store.write(job).await };
        let by = cause();
        self.parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    let before = spec(&mut *db, &attempt.target).await?;
                    let (value, fate) = job(&mut *db).await?;
                    if fate == Fate::Commit {
                        let after = spec(&mut *db, &attempt.target).await?;
                        let now = unix_ms();
                        if let Some(event) = told(&attempt, by, before.as_ref(), after.as_ref()) {
                            store::events::append(&mut *db, &event, now).await?;
                        }
                        // One row for an attempt that writes more than once would not be in the transaction of each.
                        let changed = before != after;
                        let text = |spec: Option<serde_json::Value>| {
                            spec.filter(|_| changed).map(|spec| spec.to_string())
                        };
                        let came = Came { problem: None, before: text(before), after: text(after) };
                        store::audit::append(db, &attempt, came, 1, now).await?;
                    }
                    Ok((value, fate))
                })
            })
            .await
    }

    /// Puts an attempt on record that was refused, or at which the manager failed, by the type of its problem.
    pub async fn refused(&self, attempt: Attempt, outcome: Outcome, problem: String) {
        let key = attempt.actor.clone();
        if !self.refusals.takes_row(&key, ROWS, &attempt, &problem) {
            return;
        }
        self.put_on_record(vec![(attempt, problem, 1)], outcome).await;
    }

    /// Counts somebody who showed nothing that is valid; they are put on record by address, minute by minute.
    pub fn not_authenticated(&self, origin: Origin) {
        let attempt = Attempt::of_stranger(origin);
        let key = format!("from {origin}");
        self.refusals.takes_row(&key, 0, &attempt, "urn:mps-manager:problem:unauthorized");
    }

    /// Puts the refusals on record that were counted, for good when the manager ends.
    pub async fn record_refusals(&self) {
        let counted = self.refusals.take();
        if !counted.is_empty() {
            self.put_on_record(counted, Outcome::Refused).await;
        }
    }

    async fn put_on_record(&self, rows: Vec<(Attempt, String, i64)>, outcome: Outcome) {
        let written: Result<(), StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    for (attempt, problem, count) in rows {
                        let came = Came { problem: Some((outcome, problem)), ..Came::default() };
                        store::audit::append(&mut *db, &attempt, came, count, unix_ms()).await?;
                    }
                    Ok(((), Fate::Commit))
                })
            })
            .await;
        if let Err(error) = written {
            // Nothing was done, so nothing is undone for want of a record.
            tracing::error!(%error, "a refusal could not be put on record");
        }
    }
}

/// The spec of what is acted on, as it is in this transaction.
async fn spec(db: Transaction<'_>, target: &Target) -> Result<Option<serde_json::Value>, StoreError> {
    let json = |spec: Result<serde_json::Value, serde_json::Error>| {
        spec.map_err(|error| StoreError::Corrupt { what: "a spec", detail: error.to_string() })
    };
    Ok(match target {
        Target::Daemon(name) => match store::daemons::get(db, name).await? {
            Some(daemon) => Some(json(serde_json::to_value(&daemon.spec))?),
            None => None,
        },
        Target::Tenant(name) => match store::tenants::get(db, name).await? {
            Some(tenant) => Some(json(serde_json::to_value(&tenant.spec))?),
            None => None,
        },
        Target::Layout(name) => match store::layouts::newest(db, name).await? {
            Some(version) => {
                let content = json(serde_json::to_value(&version.layout))?;
                Some(serde_json::json!({ "version": version.version, "layout": content }))
            }
            None => None,
        },
        Target::Token(id) => match store::tokens::get(db, id).await? {
            Some(token) => Some(serde_json::json!({
                "name": token.name,
                "grant": token.grant,
                "expires_at": token.expires_at,
                "revoked_at": token.revoked_at,
            })),
            None => None,
        },
        Target::Other(_) => None,
    })
}

/// What is told of a change of a daemon, a tenant or a layout.
fn told(
    attempt: &Attempt,
    by: Cause,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<NewEvent> {
    let (created, changed, deleted) = match &attempt.target {
        Target::Daemon(_) if attempt.action.ends_with("/adopt") => {
            (EventType::DaemonAdopted, EventType::DaemonChanged, EventType::DaemonReleased)
        }
        Target::Daemon(_) if attempt.action.ends_with("/release") => {
            (EventType::DaemonCreated, EventType::DaemonChanged, EventType::DaemonReleased)
        }
        Target::Daemon(_) => (EventType::DaemonCreated, EventType::DaemonChanged, EventType::DaemonDeleted),
        Target::Tenant(_) => (EventType::TenantCreated, EventType::TenantChanged, EventType::TenantDeleted),
        // Each version is told of where it is written, which is not only here.
        Target::Layout(_) if after.is_some() => return None,
        Target::Layout(_) => {
            (EventType::LayoutVersionWritten, EventType::LayoutVersionWritten, EventType::LayoutDeleted)
        }
        // Told of where it is written: one that is deleted with its tenant is nobody's target.
        Target::Token(_) | Target::Other(_) => return None,
    };
    let (kind, what) = match (before, after) {
        (None, Some(_)) => (created, "was written"),
        (Some(before), Some(after)) if before != after => (changed, "was changed"),
        (Some(_), None) => (deleted, "was forgotten"),
        _ => return None,
    };
    let spec = after.or(before);
    let daemon = spec.and_then(|spec| spec["daemon"].as_str());
    let (subject, name) = match &attempt.target {
        Target::Daemon(name) => (Subject::daemon(name), format!("daemon {name}")),
        Target::Tenant(name) => {
            let daemon = daemon.and_then(|daemon| daemon.parse().ok());
            let subject = Subject { tenant: Some(name.clone()), daemon, ..Subject::default() };
            (subject, format!("tenant {name}"))
        }
        Target::Layout(name) => {
            let subject = Subject { layout: Some(name.clone()), ..Subject::default() };
            (subject, format!("layout {name}"))
        }
        Target::Token(_) | Target::Other(_) => return None,
    };
    let details = match (&attempt.target, spec) {
        (Target::Layout(_), Some(spec)) => Details::Layout {
            version: spec["version"].as_u64().and_then(|version| u32::try_from(version).ok()),
            drift: Vec::new(),
            degraded: Vec::new(),
        },
        _ => Details::Changed { fields: changed_fields(before, after) },
    };
    Some(NewEvent::new(kind, subject, format!("{name} {what}")).because(by).with(details))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::access::{Actor, Grant, Role, Subject as Who};

    fn attempt_of(path: &str, action: &str) -> Attempt {
        let grant = Grant::Host(Role::Admin);
        let actor = Actor { subject: Who::User(7), grant, origin: Origin::Socket };
        Attempt::of(&actor, None, action.to_owned(), Target::parse(path))
    }

    #[test]
    fn a_change_is_told_by_its_fields_and_no_change_is_not_told() {
        let attempt = attempt_of("tenants/web", "PUT /api/v1/tenants/{name}");
        let (small, large) = (
            serde_json::json!({ "daemon": "gpu0", "uid": 7, "sms": 8 }),
            serde_json::json!({ "daemon": "gpu0", "uid": 7, "sms": 16 }),
        );
        let told = |before, after| told(&attempt, Cause::Manager, before, after);
        let created = told(None, Some(&small)).expect("told");
        assert_eq!(
            (created.kind, created.details),
            (EventType::TenantCreated, Some(Details::Changed { fields: vec![] }))
        );
        let changed = told(Some(&small), Some(&large)).expect("told");
        assert_eq!(changed.details, Some(Details::Changed { fields: vec!["sms".to_owned()] }));
        assert_eq!(changed.subject.daemon.as_ref().map(ToString::to_string), Some("gpu0".to_owned()));
        assert!(told(Some(&small), Some(&small)).is_none());
        assert_eq!(told(Some(&small), None).expect("told").kind, EventType::TenantDeleted);
        assert!(super::told(&attempt_of("host", "POST"), Cause::Manager, None, None).is_none());
    }

    #[test]
    fn refusals_beyond_a_number_are_counted_and_who_asks_takes_no_memory_without_end() {
        let refusals = Refusals::default();
        let attempt = attempt_of("tenants/web", "DELETE");
        let rows = (0..100).filter(|_| refusals.takes_row("uid 7", 60, &attempt, "forbidden")).count();
        assert_eq!(rows, 60);
        for address in 0..3 * COUNTED {
            refusals.takes_row(&format!("from {address}"), 0, &attempt, "unauthorized");
        }
        let taken = refusals.take();
        assert!(taken.len() <= COUNTED + 1, "{}", taken.len());
        let all: i64 = taken.iter().map(|(_, _, count)| count).sum();
        assert_eq!(all, 40 + 3 * i64::try_from(COUNTED).expect("small"));
        assert!(refusals.take().is_empty());
    }
}
