//! Who acts, and on what: it goes with the task of a use case that writes, so that whatever is written is told of and put on
//! record under its name, in the transaction that writes it.
//!
//! One place for all use cases: [`Service::write`]. What is refused is put on record by [`Service::refused`], for whoever
//! answers the caller.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::BoxFuture;

use super::{Service, ServiceError};
use crate::clock::unix_ms;
use crate::domain::TenantName;
use crate::domain::access::Origin;
use crate::domain::audit::{Attempt, Outcome, Target};
use crate::domain::client::{ClientId, LeaseKind, LeaseRecord};
use crate::domain::event::{Cause, Details, EventType, NewEvent, Subject, changed_fields};
use crate::domain::layout::Version;
use crate::store::audit::Came;
use crate::store::{self, Fate, StoreError, Transaction};

/// Refused attempts of one actor that get rows of their own in a minute; the rest of them are counted in one.
const ROWS: u32 = 60;
/// Actors and addresses of which refusals are counted at once; beside so many they are counted together.
const COUNTED: usize = 1024;
/// Kinds of refusals, by action and problem, of one actor that are told apart in a minute; beyond so many, which takes almost every
/// action with almost every problem, only the problems are.
const KINDS: usize = 512;

/// Rows that are put on record in one change, so that no other one waits long.
const TOGETHER: usize = 100;
/// What begins the path of an attempt that changes no daemon and no tenant.
const BESIDE: [&str; 8] =
    ["clients", "layouts", "login", "logout", "operations", "sessions", "tokens", "users"];

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

/// Attempts that are put on record in one row: what they have in common, what came of them, the type of their problem, and how
/// many.
type Summed = (Attempt, Outcome, String, i64);

#[derive(Debug, Default)]
struct Counted {
    rows: u32,
    /// Those that have no row of their own, by what was tried and the type of its problem: who sends many of one kind must not
    /// hide one of another behind them.
    more: BTreeMap<(String, String), Summed>,
}

impl Refusals {
    fn counted(&self) -> MutexGuard<'_, HashMap<String, Counted>> {
        // A panic elsewhere leaves the map as it was before or after one entry: both are whole.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this one gets a row of its own; if not, it is counted.
    fn takes_row(&self, key: &str, rows: u32, attempt: &Attempt, outcome: Outcome, problem: &str) -> bool {
        let mut counted = self.counted();
        let key = if counted.len() >= COUNTED && !counted.contains_key(key) { "others" } else { key };
        let entry = counted.entry(key.to_owned()).or_default();
        if entry.rows < rows {
            entry.rows += 1;
            return true;
        }
        let mut kind = (attempt.action.clone(), problem.to_owned());
        if entry.more.len() >= KINDS && !entry.more.contains_key(&kind) {
            kind.0.clear();
        }
        match entry.more.entry(kind) {
            Entry::Vacant(place) => {
                place.insert((attempt.clone(), outcome, problem.to_owned(), 1));
            }
            Entry::Occupied(mut place) => {
                let (common, _, _, count) = place.get_mut();
                common.keep_common(attempt);
                *count += 1;
            }
        }
        false
    }

    /// Those that are to be put on record together; a new minute begins.
    fn take(&self) -> Vec<Summed> {
        let counted = std::mem::take(&mut *self.counted());
        counted.into_values().flat_map(|counted| counted.more.into_values()).collect()
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
                    let mut before = specs(&mut *db, &attempt.target).await?;
                    let written = store::layouts::last_row(&mut *db).await?;
                    let (value, fate) = job(&mut *db).await?;
                    if fate == Fate::Commit {
                        let mut after = specs(&mut *db, &attempt.target).await?;
                        if matches!(attempt.target, Target::Other(_)) {
                            new_layouts(&mut *db, written, &mut before, &mut after).await?;
                        }
                        let now = unix_ms();
                        let (old, new) = (before.get(&attempt.target), after.get(&attempt.target));
                        if let Some(event) = told(&attempt, by, old, new) {
                            store::events::append(&mut *db, &event, now).await?;
                        }
                        // One row for an attempt that writes more than once would not be in the transaction of each.
                        for (target, came) in changes(&attempt.target, before, after) {
                            let attempt = Attempt { target, ..attempt.clone() };
                            store::audit::append(&mut *db, &attempt, came, 1, now).await?;
                        }
                    }
                    Ok((value, fate))
                })
            })
            .await
    }

    /// Puts an attempt on record that was refused, or at which the manager failed, by the type of its problem.
    pub async fn refused(&self, attempt: Attempt, outcome: Outcome, problem: String) {
        let attempt = Attempt { target: attempt.target.without_secrets(), ..attempt };
        let key = attempt.actor.clone();
        if !self.refusals.takes_row(&key, ROWS, &attempt, outcome, &problem) {
            return;
        }
        self.put_on_record(vec![(attempt, outcome, problem, 1)]).await;
    }

    /// Counts somebody who showed nothing that is valid; they are put on record by address, minute by minute.
    pub fn not_authenticated(&self, origin: Origin) {
        let attempt = Attempt::of_stranger(origin);
        let key = format!("from {origin}");
        let problem = "urn:mps-manager:problem:unauthorized";
        self.refusals.takes_row(&key, 0, &attempt, Outcome::Refused, problem);
    }

    /// Puts the refusals on record that were counted, for good when the manager ends.
    pub async fn record_refusals(&self) {
        let counted = self.refusals.take();
        if !counted.is_empty() {
            self.put_on_record(counted).await;
        }
    }

    async fn put_on_record(&self, rows: Vec<Summed>) {
        for rows in rows.chunks(TOGETHER) {
            self.put_part_on_record(rows.to_vec()).await;
        }
    }

    async fn put_part_on_record(&self, rows: Vec<Summed>) {
        let written: Result<(), StoreError> = self
            .parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    for (attempt, outcome, problem, count) in rows {
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

/// The specs that an attempt may change, as they are in this transaction: that of what it is about, or those of all daemons and
/// tenants where its path does not name it.
async fn specs(
    db: Transaction<'_>,
    target: &Target,
) -> Result<BTreeMap<Target, serde_json::Value>, StoreError> {
    let json = |spec: Result<serde_json::Value, serde_json::Error>| {
        spec.map_err(|error| StoreError::Corrupt { what: "a spec", detail: error.to_string() })
    };
    let (mut daemons, mut tenants, mut layouts) = (Vec::new(), Vec::new(), Vec::new());
    let mut tokens = Vec::new();
    match target {
        Target::Daemon(name) => daemons.extend(store::daemons::get(db, name).await?),
        Target::Tenant(name) => {
            tenants.extend(store::tenants::get(&mut *db, name).await?);
            // Its end revokes them.
            tokens = store::tokens::of_tenant(db, name).await?;
        }
        Target::Lease(tenant, holder) => {
            let found = store::leases::of(db, tenant, *holder).await?;
            return Ok(found.map(|record| (target.clone(), lease_on_record(&record))).into_iter().collect());
        }
        Target::Layout(name) => layouts.extend(store::layouts::newest(db, name).await?),
        Target::Token(id) => tokens.extend(store::tokens::get(db, id).await?),
        Target::Other(path) if BESIDE.contains(&path.split('/').next().unwrap_or_default()) => {}
        Target::Other(_) => {
            daemons = store::daemons::all(&mut *db).await?;
            tenants = store::tenants::page(&mut *db, None, None, "", i64::MAX).await?;
        }
    }
    let mut specs = BTreeMap::new();
    for daemon in daemons {
        specs.insert(Target::Daemon(daemon.name), json(serde_json::to_value(&daemon.spec))?);
    }
    for tenant in tenants {
        specs.insert(Target::Tenant(tenant.name), json(serde_json::to_value(&tenant.spec))?);
    }
    for version in layouts {
        let (target, spec) = layout_spec(version)?;
        specs.insert(target, spec);
    }
    for token in tokens {
        let spec = token.on_record();
        specs.insert(Target::Token(token.id), spec);
    }
    Ok(specs)
}

fn layout_spec(version: Version) -> Result<(Target, serde_json::Value), StoreError> {
    let content = serde_json::to_value(&version.layout)
        .map_err(|error| StoreError::Corrupt { what: "a spec", detail: error.to_string() })?;
    let spec = serde_json::json!({ "version": version.version, "layout": content });
    Ok((Target::Layout(version.name), spec))
}

/// Adds the layouts that got a version since `row` was the last one, as they were before and as they are after. There may be
/// thousands of others, which nobody reads for this.
async fn new_layouts(
    db: Transaction<'_>,
    row: i64,
    before: &mut BTreeMap<Target, serde_json::Value>,
    after: &mut BTreeMap<Target, serde_json::Value>,
) -> Result<(), StoreError> {
    for version in store::layouts::written_after(&mut *db, row).await? {
        if let Some(previous) =
            store::layouts::versions(&mut *db, &version.name, Some(version.version), 1).await?.pop()
        {
            let (target, spec) = layout_spec(previous)?;
            before.entry(target).or_insert(spec);
        }
        let (target, spec) = layout_spec(version)?;
        after.insert(target, spec);
    }
    Ok(())
}

/// A lease as the audit keeps it.
fn lease_on_record(record: &LeaseRecord) -> serde_json::Value {
    let ClientId { pid, start_time } = record.lease.holder;
    serde_json::json!({
        "pid": pid, "start_time": start_time, "kind": record.kind.as_str(), "command": record.command,
    })
}

/// What is told of a lease that was granted, became the process's own, or was revoked.
fn lease_event(
    tenant: &TenantName,
    holder: ClientId,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<NewEvent> {
    let kind_of =
        |lease: &serde_json::Value| lease["kind"].as_str().and_then(|kind| LeaseKind::parse(kind).ok());
    let before = before.and_then(|lease| Some((lease, kind_of(lease)?)));
    let after = after.and_then(|lease| Some((lease, kind_of(lease)?)));
    let pid = holder.pid;
    let (event, (lease, kind), message) = match (before, after) {
        (Some((_, old)), Some((_, new))) if old == new => return None,
        (_, Some(new)) if new.1 == LeaseKind::Own => {
            (EventType::LeaseGranted, new, format!("process {pid} took a lease of tenant {tenant}"))
        }
        (_, Some(new)) => (
            EventType::LeaseGranted,
            new,
            format!("process {pid} was recorded as a process of tenant {tenant}"),
        ),
        (Some(old), None) => {
            let message = format!(
                "the lease of process {pid} for tenant {tenant} was revoked; the process was left as it is"
            );
            (EventType::LeaseRevoked, old, message)
        }
        (None, None) => return None,
    };
    // The program and nothing behind it, as for clients.
    let first = lease["command"].as_str().and_then(|command| command.split_whitespace().next());
    let program = first.and_then(|first| first.rsplit('/').next()).filter(|name| !name.is_empty());
    let details = Details::Lease {
        pid,
        start_time: holder.start_time,
        lease: kind,
        program: program.map(|name| name.chars().take(64).collect()),
    };
    let subject = Subject { tenant: Some(tenant.clone()), client: Some(holder), ..Subject::default() };
    Some(NewEvent::new(event, subject, message).with(details))
}

/// The rows that an attempt leaves: one for each thing that it changed, or one without a spec before and after.
fn changes(
    target: &Target,
    mut before: BTreeMap<Target, serde_json::Value>,
    mut after: BTreeMap<Target, serde_json::Value>,
) -> Vec<(Target, Came)> {
    let targets: BTreeSet<Target> = before.keys().chain(after.keys()).cloned().collect();
    let mut rows = Vec::new();
    for target in targets {
        let (before, after) = (before.remove(&target), after.remove(&target));
        if before != after {
            let text = |spec: Option<serde_json::Value>| spec.map(|spec| spec.to_string());
            rows.push((target, Came { problem: None, before: text(before), after: text(after) }));
        }
    }
    if rows.is_empty() {
        rows.push((target.clone(), Came::default()));
    }
    rows
}

/// What is told of a change of a daemon, a tenant or a layout.
fn told(
    attempt: &Attempt,
    by: Cause,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<NewEvent> {
    if let Target::Lease(tenant, holder) = &attempt.target {
        return lease_event(tenant, *holder, before, after).map(|event| event.because(by));
    }
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
        Target::Lease(..) | Target::Token(_) | Target::Other(_) => return None,
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
        Target::Lease(..) | Target::Token(_) | Target::Other(_) => return None,
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
        Attempt::of(&actor, None, action.to_owned(), Target::of_request(path, path))
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
        let rows = (0..100)
            .filter(|_| refusals.takes_row("uid 7", 60, &attempt, Outcome::Refused, "forbidden"))
            .count();
        assert_eq!(rows, 60);
        for address in 0..3 * COUNTED {
            let key = format!("from {address}");
            refusals.takes_row(&key, 0, &attempt, Outcome::Refused, "unauthorized");
        }
        let taken = refusals.take();
        assert!(taken.len() <= COUNTED + 1, "{}", taken.len());
        let all: i64 = taken.iter().map(|(_, _, _, count)| count).sum();
        assert_eq!(all, 40 + 3 * i64::try_from(COUNTED).expect("small"));
        assert!(refusals.take().is_empty());
    }

    #[test]
    fn noise_hides_nothing_that_is_of_another_kind_and_a_sum_says_what_its_attempts_have_in_common() {
        let refusals = Refusals::default();
        let forbidden =
            |attempt: &Attempt| refusals.takes_row("uid 7", 0, attempt, Outcome::Refused, "forbidden");
        let noise = |name: &str, id: &str| Attempt {
            request: Some(id.to_owned()),
            ..attempt_of(&format!("daemons/{name}/drain"), "POST …/drain")
        };
        for (name, id) in [("gpu0", "1"), ("gpu0", "2"), ("gpu1", "3")] {
            assert!(!forbidden(&noise(name, id)));
        }
        let tried = Attempt { request: Some("4".to_owned()), ..attempt_of("tenants/web", "DELETE …") };
        forbidden(&tried);
        for _ in 0..2 {
            forbidden(&attempt_of("layouts/a", "PUT …"));
        }
        let taken: Vec<_> = refusals
            .take()
            .into_iter()
            .map(|(common, _, _, count)| (common.action, common.target.to_string(), common.request, count))
            .collect();
        let row = |action: &str, target: &str, request: Option<&str>, count: i64| {
            (action.to_owned(), target.to_owned(), request.map(ToOwned::to_owned), count)
        };
        assert_eq!(
            taken,
            [
                row("DELETE …", "tenants/web", Some("4"), 1),
                row("POST …/drain", "", None, 3),
                row("PUT …", "layouts/a", None, 2),
            ]
        );
    }

    #[test]
    fn kinds_take_no_memory_without_end_and_strangers_beside_too_many_have_no_address() {
        let refusals = Refusals::default();
        for number in 0..2 * KINDS {
            let attempt = attempt_of("tenants/web", &format!("PUT {number}"));
            refusals.takes_row("uid 7", 0, &attempt, Outcome::Refused, "forbidden");
        }
        let taken = refusals.take();
        assert_eq!(taken.len(), KINDS + 1);
        let (common, _, problem, count) = &taken[0];
        assert_eq!((common.action.as_str(), problem.as_str()), ("", "forbidden"));
        assert_eq!(*count, i64::try_from(KINDS).expect("small"));
        for address in 0..=u16::try_from(COUNTED).expect("small") + 1 {
            let [high, low] = address.to_be_bytes();
            let origin = Origin::Address([192, 0, high, low].into());
            refusals.takes_row(&origin.to_string(), 0, &Attempt::of_stranger(origin), Outcome::Refused, "no");
        }
        let taken = refusals.take();
        let together: Vec<_> = taken.iter().filter(|(_, _, _, count)| *count > 1).collect();
        assert_eq!((taken.len(), together.len()), (COUNTED + 1, 1));
        assert_eq!((together[0].0.actor.as_str(), together[0].0.origin.as_str()), ("nobody", ""));
    }

    #[test]
    fn what_is_summed_up_is_of_one_problem_and_one_outcome() {
        let refusals = Refusals::default();
        let attempt = attempt_of("tenants/web", "PUT");
        for _ in 0..62 {
            refusals.takes_row("uid 7", 60, &attempt, Outcome::Failed, "internal");
        }
        for _ in 0..9 {
            refusals.takes_row("uid 7", 60, &attempt, Outcome::Refused, "not-found");
        }
        let taken: Vec<(Outcome, String, i64)> = refusals
            .take()
            .into_iter()
            .map(|(_, outcome, problem, count)| (outcome, problem, count))
            .collect();
        assert_eq!(
            taken,
            [(Outcome::Failed, "internal".to_owned(), 2), (Outcome::Refused, "not-found".to_owned(), 9)]
        );
    }
}
