//! Commits of use cases: each change, with its event and audit rows in the same transaction.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::BoxFuture;

use crate::domain::DaemonName;
use crate::domain::TenantName;
use crate::domain::audit::{AttemptedAction, EXPIRE, Target};
use crate::domain::client::{ClientId, LeaseKind, LeaseRecord};
use crate::domain::event::{ChangedTenant, DomainEvent, EventCause, GrantedLease, NewEvent, changed_fields};
use crate::domain::layout::Version;
use crate::domain::rfc3339;
use crate::domain::tenant::LabelSelector;
use crate::host::process::program_of;
use crate::service::access::context::Permit;
use crate::service::{Backend, ServiceError};
use crate::store::audit::AuditResult;
use crate::store::{self, StoreError, Transaction, TransactionEnd};

impl Backend {
    /// Runs a job on the writer, and writes the change's event and audit rows in the same transaction.
    ///
    /// A dry run writes neither, and a request that only reads can do nothing else.
    pub(in crate::service) async fn write<T, F>(&self, permit: &Permit, job: F) -> Result<T, ServiceError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd), ServiceError>>
            + Send
            + 'static,
    {
        let Some(attempt) = permit.attempt() else {
            return self.parts.store.write(|db| Box::pin(only_rehearsed(db, job))).await;
        };
        let (by, clock, any_spec) = (permit.ctx().cause(), self.parts.clock, permit.any_spec);
        self.parts
            .store
            .write(move |db| {
                Box::pin(async move {
                    let mut before = specs(&mut *db, &attempt.target, any_spec).await?;
                    let written = store::layouts::last_row(&mut *db).await?;
                    let (value, transaction_end) = job(&mut *db).await?;
                    if transaction_end == TransactionEnd::Commit {
                        let mut after = specs(&mut *db, &attempt.target, any_spec).await?;
                        if matches!(attempt.target, Target::Other(_)) {
                            new_layouts(&mut *db, written, &mut before, &mut after).await?;
                        }
                        let now = clock.unix_ms();
                        let (old, new) = (before.get(&attempt.target), after.get(&attempt.target));
                        if let Some(event) = change_event(&attempt, by, old, new) {
                            store::events::append(&mut *db, &event, now).await?;
                        }
                        // A single row for an attempt that writes several times could not be in each of its transactions.
                        for (target, came) in changes(&attempt.target, before, after) {
                            let attempt = AttemptedAction { target, ..attempt.clone() };
                            store::audit::append(&mut *db, &attempt, came, 1, now).await?;
                        }
                    }
                    Ok((value, transaction_end))
                })
            })
            .await
    }
}

/// A job of a request that changes nothing.
async fn only_rehearsed<T, F>(db: Transaction<'_>, job: F) -> Result<(T, TransactionEnd), ServiceError>
where
    F: for<'c> FnOnce(Transaction<'c>) -> BoxFuture<'c, Result<(T, TransactionEnd), ServiceError>>,
{
    match job(db).await? {
        (value, TransactionEnd::RollBack) => Ok((value, TransactionEnd::RollBack)),
        (_, TransactionEnd::Commit) => {
            Err(ServiceError::Internal("a request that only reads made a change".to_owned()))
        }
    }
}

/// The specs that an attempt may change, as they are in this transaction: the target's, or those of all daemons and tenants.
async fn specs(
    db: Transaction<'_>,
    target: &Target,
    any_spec: bool,
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
            // Deleting the tenant revokes them.
            tokens = store::tokens::of_tenant(db, name).await?;
        }
        Target::Lease(tenant, holder) => {
            let found = store::leases::of(db, tenant, *holder).await?;
            return Ok(found.map(|record| (target.clone(), lease_on_record(&record))).into_iter().collect());
        }
        Target::Layout(name) => layouts.extend(store::layouts::newest(db, name).await?),
        Target::Token(id) => tokens.extend(store::tokens::get(db, id).await?),
        Target::Other(_) if !any_spec => {}
        Target::Other(_) => {
            daemons = store::daemons::all(&mut *db).await?;
            tenants =
                store::tenants::page(&mut *db, None, None, &LabelSelector::default(), "", i64::MAX).await?;
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

/// Adds the layouts that got a version after `row`, as they were before and after. There may be thousands of others, which
/// are not read.
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

/// A lease as stored in the audit log.
fn lease_on_record(record: &LeaseRecord) -> serde_json::Value {
    let ClientId { pid, start_time } = record.lease.holder;
    serde_json::json!({
        "pid": pid, "start_time": start_time, "kind": record.kind.as_str(), "command": record.command,
    })
}

/// The event for a lease that was granted, claimed by its process, or revoked.
fn lease_event(
    tenant: &TenantName,
    holder: ClientId,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<DomainEvent> {
    let kind_of =
        |lease: &serde_json::Value| lease["kind"].as_str().and_then(|kind| LeaseKind::parse(kind).ok());
    let before = before.and_then(|lease| Some((lease, kind_of(lease)?)));
    let after = after.and_then(|lease| Some((lease, kind_of(lease)?)));
    let granted = |(lease, kind): (&serde_json::Value, LeaseKind)| {
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

/// The audit rows of an attempt: one for each resource that changed, or a single one without specs.
fn changes(
    target: &Target,
    mut before: BTreeMap<Target, serde_json::Value>,
    mut after: BTreeMap<Target, serde_json::Value>,
) -> Vec<(Target, AuditResult)> {
    let targets: BTreeSet<Target> = before.keys().chain(after.keys()).cloned().collect();
    let mut rows = Vec::new();
    for target in targets {
        let (before, after) = (before.remove(&target), after.remove(&target));
        if before != after {
            let text = |spec: Option<serde_json::Value>| spec.map(|spec| spec.to_string());
            rows.push((target, AuditResult { problem: None, before: text(before), after: text(after) }));
        }
    }
    if rows.is_empty() {
        rows.push((target.clone(), AuditResult::default()));
    }
    rows
}

/// The event for a change of a daemon, a tenant, a layout or a lease.
fn change_event(
    attempt: &AttemptedAction,
    by: EventCause,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<NewEvent> {
    let event = match &attempt.target {
        Target::Daemon(name) => daemon_event(name.clone(), attempt.adoption, before, after),
        Target::Tenant(name) => tenant_event(name.clone(), attempt.action == EXPIRE, before, after),
        // The event of a version is written with the version itself, which happens elsewhere too.
        Target::Layout(_) if after.is_some() => None,
        Target::Layout(name) => before.map(|spec| {
            let version = spec["version"].as_u64().and_then(|version| u32::try_from(version).ok());
            DomainEvent::LayoutDeleted { layout: name.clone(), version }
        }),
        Target::Lease(tenant, holder) => lease_event(tenant, *holder, before, after),
        // Their events are written elsewhere; a token that is deleted with its tenant is no target.
        Target::Token(_) | Target::Other(_) => None,
    };
    event.map(|event| event.because(by))
}

fn daemon_event(
    daemon: DaemonName,
    adoption: bool,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<DomainEvent> {
    let (gpus, operation) = (Vec::new(), None);
    Some(match (before, after) {
        (None, Some(_)) if adoption => DomainEvent::DaemonAdopted { daemon },
        (None, Some(_)) => DomainEvent::DaemonCreated { daemon },
        (Some(old), Some(new)) if old != new => {
            DomainEvent::DaemonChanged { daemon, gpus, fields: changed_fields(before, after), operation }
        }
        (Some(_), None) if adoption => DomainEvent::DaemonReleased { daemon },
        (Some(_), None) => DomainEvent::DaemonDeleted { daemon, gpus, operation },
        _ => return None,
    })
}

fn tenant_event(
    tenant: TenantName,
    has_expired: bool,
    before: Option<&serde_json::Value>,
    after: Option<&serde_json::Value>,
) -> Option<DomainEvent> {
    let daemon = after.or(before).and_then(|spec| spec["daemon"].as_str()?.parse().ok());
    Some(match (before, after) {
        (None, Some(_)) => DomainEvent::TenantCreated { tenant, daemon },
        (Some(old), Some(new)) if old != new => {
            let fields = changed_fields(before, after);
            DomainEvent::TenantChanged(ChangedTenant { tenant, daemon, gpu: None, fields })
        }
        (Some(spec), None) => {
            let expiry = spec["expires_at"].as_str().filter(|_| has_expired);
            let expired_at = expiry.and_then(|at| rfc3339::parse(at).ok());
            DomainEvent::TenantDeleted { tenant, daemon, expired_at }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::access::{Actor, Grant, Origin, Principal as Who, Role};
    use crate::domain::event::{Details, EventType};

    fn attempt_of(path: &str, action: &str) -> AttemptedAction {
        let grant = Grant::Host(Role::Admin);
        let actor = Actor { subject: Who::User(7), grant, origin: Origin::Socket };
        AttemptedAction::of(&actor, None, action.to_owned(), Target::of_request(path, path))
    }

    #[test]
    fn change_event_lists_changed_fields() {
        let attempt = attempt_of("tenants/web", "PUT /api/v1/tenants/{name}");
        let (small, large) = (
            serde_json::json!({ "daemon": "gpu0", "uid": 7, "sms": 8 }),
            serde_json::json!({ "daemon": "gpu0", "uid": 7, "sms": 16 }),
        );
        let event = |before, after| change_event(&attempt, EventCause::Manager, before, after);
        let created = event(None, Some(&small)).expect("an event").event;
        assert_eq!(
            (created.kind(), created.details()),
            (EventType::TenantCreated, Some(Details::Changed { fields: vec![] }))
        );
        let changed = event(Some(&small), Some(&large)).expect("an event").event;
        assert_eq!(changed.details(), Some(Details::Changed { fields: vec!["sms".to_owned()] }));
        assert_eq!(changed.subject().daemon.as_ref().map(ToString::to_string), Some("gpu0".to_owned()));
        assert!(event(Some(&small), Some(&small)).is_none());
        assert_eq!(event(Some(&small), None).expect("an event").event.kind(), EventType::TenantDeleted);
        assert!(super::change_event(&attempt_of("host", "POST"), EventCause::Manager, None, None).is_none());
    }

    #[test]
    fn deletion_names_expiry_only_as_its_reason() {
        let spec =
            serde_json::json!({ "daemon": "gpu0", "uid": 0, "expires_at": "2025-11-25T05:03:49.120Z" });
        let expired_at = |action: &str| {
            let attempt = attempt_of("tenants/web", action);
            match change_event(&attempt, EventCause::Manager, Some(&spec), None).expect("an event").event {
                DomainEvent::TenantDeleted { expired_at, .. } => expired_at,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(expired_at(EXPIRE), Some(1_764_047_029_120));
        assert_eq!(expired_at("DELETE /api/v1/tenants/{name}"), None);
    }

    #[test]
    fn adoption_and_release_have_events_of_their_own() {
        let usual = attempt_of("daemons/gpu0", "PUT /api/v1/daemons/{name}");
        let adoption = AttemptedAction { adoption: true, ..usual.clone() };
        let spec = serde_json::json!({ "gpus": ["0"] });
        let kind = |attempt: &AttemptedAction, before, after| {
            change_event(attempt, EventCause::Manager, before, after).expect("an event").event.kind()
        };
        assert_eq!(kind(&usual, None, Some(&spec)), EventType::DaemonCreated);
        assert_eq!(kind(&usual, Some(&spec), None), EventType::DaemonDeleted);
        assert_eq!(kind(&adoption, None, Some(&spec)), EventType::DaemonAdopted);
        assert_eq!(kind(&adoption, Some(&spec), None), EventType::DaemonReleased);
    }
}
