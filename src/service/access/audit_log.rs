//! Commits of use cases: each change, with its event and audit rows in the same transaction.

use std::collections::BTreeMap;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::domain::TenantName;
use crate::domain::audit::{AttemptedAction, Target};
use crate::domain::client::{ClientId, LeaseKind, LeaseRecord};
use crate::domain::event::{DomainEvent, EventCause, GrantedLease, NewEvent};
use crate::domain::layout::Version;
use crate::host::process::program_of;
use crate::service::access::context::Permit;
use crate::service::{Backend, Result, ServiceError};
use crate::store::audit::AuditResult;
use crate::store::{self, StoreError, Transaction, TransactionEnd, transact};

/// The events and the audit rows of a change, written in its transaction.
pub(in crate::service) struct ChangeRecord {
    /// The attempt; `None` for a request that only reads.
    attempt: Option<AttemptedAction>,
    /// The cause of its events.
    pub(in crate::service) by: EventCause,
    /// Its events.
    pub(in crate::service) events: Vec<DomainEvent>,
    /// The specs of what was changed, as they were before and are after.
    pub(in crate::service) specs: BTreeMap<Target, (Option<Value>, Option<Value>)>,
}

impl ChangeRecord {
    /// Begins the record of a request; one that only reads can do nothing but rehearse.
    pub(in crate::service) fn of(permit: &Permit, dry_run: bool) -> Result<Self> {
        let attempt = permit.attempt();
        if attempt.is_none() && !dry_run {
            return Err(only_reads());
        }
        Ok(Self { attempt, by: permit.ctx().cause(), events: Vec::new(), specs: BTreeMap::new() })
    }

    /// Returns true if the attempt is this action.
    pub(in crate::service) fn is_of(&self, action: &str) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.action == action)
    }

    /// Returns true if a daemon is adopted or released.
    pub(in crate::service) fn is_adoption(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.adoption)
    }

    /// Writes the events, and an audit row for each object that changed, or a single one without specs.
    pub(in crate::service) async fn write(
        &mut self,
        db: Transaction<'_>,
        now: i64,
    ) -> Result<(), StoreError> {
        let events: Vec<NewEvent> = std::mem::take(&mut self.events)
            .into_iter()
            .map(|event| event.because(self.by.clone()))
            .collect();
        store::events::append_all(&mut *db, &events, now).await?;
        let Some(attempt) = &self.attempt else { return Ok(()) };
        let text = |spec: Option<Value>| spec.map(|spec| spec.to_string());
        let changed =
            std::mem::take(&mut self.specs).into_iter().filter(|(_, (before, after))| before != after);
        let mut rows: Vec<(AttemptedAction, AuditResult)> = changed
            .map(|(target, (before, after))| {
                let result = AuditResult { problem: None, before: text(before), after: text(after) };
                (AttemptedAction { target, ..attempt.clone() }, result)
            })
            .collect();
        if rows.is_empty() {
            rows.push((attempt.clone(), AuditResult::default()));
        }
        store::audit::append_all(db, rows, now).await
    }
}

impl Backend {
    /// Runs a job on the writer, and writes the change's event and audit rows in the same transaction. Daemons and tenants are changed
    /// by [`Backend::change`].
    ///
    /// A dry run writes neither, and a request that only reads can do nothing else.
    pub(in crate::service) async fn write<T, F>(&self, permit: &Permit, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd)>> + Send + 'static,
    {
        let (attempt, clock, applied) = (permit.attempt(), self.parts.clock, permit.applied());
        let mut record = ChangeRecord::of(permit, attempt.is_none())?;
        transact!(self.parts.store, write(), |db| {
            let Some(AttemptedAction { target, .. }) = attempt else {
                let (value, end) = job(db).await?;
                return if end == TransactionEnd::RollBack { Ok((value, end)) } else { Err(only_reads()) };
            };
            let before = spec(&mut *db, &target).await?;
            let written = store::layouts::last_row(&mut *db).await?;
            let (value, end) = job(&mut *db).await?;
            if end == TransactionEnd::Commit {
                let after = spec(&mut *db, &target).await?;
                record.events.extend(change_event(&target, before.as_ref(), after.as_ref()));
                if matches!(target, Target::Other(_)) {
                    record.specs.extend(new_layouts(&mut *db, written).await?);
                }
                record.specs.insert(target, with_applied(before, after, applied));
                record.write(db, clock.unix_ms()).await?;
            }
            Ok((value, end))
        })
    }
}

/// Adds what is to be applied to the specs of a target: alone, unless the same request wrote a new version.
fn with_applied(
    before: Option<Value>,
    after: Option<Value>,
    applied: Option<Value>,
) -> (Option<Value>, Option<Value>) {
    match (applied, after) {
        (None, after) => (before, after),
        (Some(applied), Some(mut version)) if before.as_ref() != Some(&version) => {
            version["applied"] = applied;
            (before, Some(version))
        }
        (Some(applied), _) => (None, Some(serde_json::json!({ "applied": applied }))),
    }
}

fn only_reads() -> ServiceError {
    ServiceError::Internal("a request that only reads made a change".to_owned())
}

/// The spec of the target of an attempt that is neither daemon nor tenant, as it is in this transaction.
async fn spec(db: Transaction<'_>, target: &Target) -> store::Result<Option<Value>> {
    Ok(match target {
        Target::Lease(tenant, holder) => {
            store::leases::of(db, tenant, *holder).await?.map(|record| lease_on_record(&record))
        }
        Target::Layout(name) => store::layouts::newest(db, name).await?.as_ref().map(layout_on_record),
        Target::Token(id) => store::tokens::get(db, id).await?.map(|token| token.on_record()),
        Target::Daemon(_) | Target::Tenant(_) | Target::Other(_) => None,
    })
}

/// The layouts that got a version after `row`, as they were before and after. There may be thousands of others, which are not read.
async fn new_layouts(
    db: Transaction<'_>,
    row: i64,
) -> Result<Vec<(Target, (Option<Value>, Option<Value>))>, StoreError> {
    let mut specs = Vec::new();
    for version in store::layouts::written_after(&mut *db, row).await? {
        let before = store::layouts::versions(&mut *db, &version.name, Some(version.version), 1).await?.pop();
        let spec = (before.as_ref().map(layout_on_record), Some(layout_on_record(&version)));
        specs.push((Target::Layout(version.name), spec));
    }
    Ok(specs)
}

/// A spec as stored in the audit log.
pub(in crate::service) fn on_record(spec: &impl serde::Serialize) -> Value {
    serde_json::to_value(spec).expect("a spec has string keys only")
}

/// A version of a layout as stored in the audit log.
pub(in crate::service) fn layout_on_record(version: &Version) -> Value {
    serde_json::json!({ "version": version.version, "layout": on_record(&version.layout) })
}

/// A lease as stored in the audit log.
fn lease_on_record(record: &LeaseRecord) -> Value {
    let ClientId { pid, start_time } = record.lease.holder;
    serde_json::json!({
        "pid": pid, "start_time": start_time, "kind": record.kind.as_str(), "command": record.command,
    })
}

/// The event for a lease that was granted, claimed by its process, or revoked.
fn lease_event(
    tenant: &TenantName,
    holder: ClientId,
    before: Option<&Value>,
    after: Option<&Value>,
) -> Option<DomainEvent> {
    let kind_of = |lease: &Value| serde_json::from_value::<LeaseKind>(lease["kind"].clone()).ok();
    let before = before.and_then(|lease| Some((lease, kind_of(lease)?)));
    let after = after.and_then(|lease| Some((lease, kind_of(lease)?)));
    let granted = |(lease, kind): (&Value, LeaseKind)| {
        let program = lease["command"].as_str().and_then(program_of);
        GrantedLease { tenant: tenant.clone(), holder, kind, program }
    };
    match (before, after) {
        (Some((_, old)), Some((_, new))) if old == new => None,
        (_, Some(new)) => Some(DomainEvent::LeaseGranted(granted(new))),
        (Some(old), None) => Some(DomainEvent::LeaseRevoked(granted(old))),
        (None, None) => None,
    }
}

/// The event for a change of a layout or a lease.
fn change_event(target: &Target, before: Option<&Value>, after: Option<&Value>) -> Option<DomainEvent> {
    match target {
        // The event of a version is written with the version itself, which happens elsewhere too.
        Target::Layout(_) if after.is_some() => None,
        Target::Layout(name) => before.map(|spec| {
            let version = spec["version"].as_u64().and_then(|version| u32::try_from(version).ok());
            DomainEvent::LayoutDeleted { layout: name.clone(), version }
        }),
        Target::Lease(tenant, holder) => lease_event(tenant, *holder, before, after),
        // Their events are written elsewhere.
        Target::Daemon(_) | Target::Tenant(_) | Target::Token(_) | Target::Other(_) => None,
    }
}
