//! The one transaction in which a host file is written, with the operation that waits for the daemons.

use std::collections::BTreeSet;

use super::checks::Checked;
use super::faults::Faults;
use super::{Compared, stored};
use crate::clock::Clock;
use crate::domain::audit::{AttemptedAction, Target};
use crate::domain::daemon::{DaemonSpec, DesiredState};
use crate::domain::event::{ChangedTenant, DomainEvent, EventCause, changed_fields};
use crate::domain::host_file::{HostChangeAction, HostFile, HostObjectKind};
use crate::domain::operation::{HostLayout, Operation, OperationRequest};
use crate::domain::plan::Desired;
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::domain::token::TokenId;
use crate::domain::{DaemonName, LayoutName, TenantName};
use crate::service::access::context::Permit;
use crate::service::daemons::WrittenDaemon;
use crate::service::layouts::{may_change, put_if_new};
use crate::service::{Backend, ServiceError, WriteOptions};
use crate::store::audit::AuditResult;
use crate::store::layouts::NewVersion;
use crate::store::{self, Transaction, TransactionEnd};

/// Result of the transaction of a host file.
pub(super) struct WrittenHost {
    /// The operation, which is not stored after a dry run.
    pub(super) operation: Operation,
    desired: Vec<Desired>,
    revoked: Vec<TokenId>,
}

/// Context of the writes in the transaction.
struct Writing {
    compared: Compared,
    checked: Checked,
    by: EventCause,
    clock: Clock,
    author: String,
    attempt: Option<AttemptedAction>,
    dry_run: bool,
    faults: Faults,
    /// The daemons whose desired value changes.
    touched: BTreeSet<DaemonName>,
}

impl Backend {
    /// Writes a host file that was compared and checked, or nothing if the objects that it concerns were changed since.
    pub(super) async fn write_host(
        self: &std::sync::Arc<Self>,
        permit: &Permit,
        file: &HostFile,
        compared: Compared,
        checked: Checked,
        dry_run: bool,
    ) -> Result<Option<WrittenHost>, ServiceError> {
        let ctx = permit.ctx();
        let (by, clock, id) = (ctx.cause(), ctx.clock, ctx.clock.new_id());
        let writing = Writing {
            compared,
            checked,
            by: by.clone(),
            clock,
            author: ctx.actor.subject.to_string(),
            attempt: permit.attempt(),
            dry_run,
            faults: Faults::default(),
            touched: BTreeSet::new(),
        };
        let (service, manager_uid, file) = (self.clone(), self.parts.manager_uid, file.clone());
        let forgotten: Vec<TenantName> = writing.deleted_tenants();
        let written = self
            .write(permit, move |db| {
                Box::pin(async move {
                    let mut writing = writing;
                    if !writing.is_still_compared(&mut *db, &file).await? {
                        return Ok((None, TransactionEnd::RollBack));
                    }
                    if let Some(other) = store::operations::unfinished_of_kind(&mut *db, "apply_spec").await? {
                        return Err(ServiceError::Conflict(format!(
                            "operation {other} is applying a host file: wait for it, and compare this file again"
                        )));
                    }
                    let revoked = writing.delete_tenants(&mut *db, &service).await?;
                    writing.write_layouts(&mut *db).await?;
                    writing.write_daemons(&mut *db, &service).await?;
                    writing.write_tenants(&mut *db, &service).await?;
                    writing.admit(&mut *db, &service).await?;
                    let request = writing.what_follows(&mut *db).await?;
                    std::mem::take(&mut writing.faults).check()?;
                    let mut desired = Vec::new();
                    for name in &writing.touched {
                        let gpus = &writing.compared.gpus;
                        desired.extend(store::plans::desired(&mut *db, name, gpus, manager_uid).await?);
                    }
                    let now = clock.unix_ms();
                    store::operations::insert(&mut *db, id, &[], &request, None, now).await?;
                    store::operations::requested(&mut *db, id, by, now).await?;
                    let operation = store::operations::get(db, id).await?;
                    let operation = operation
                        .ok_or_else(|| ServiceError::Internal("the operation just written is gone".into()))?;
                    let transaction_end = if dry_run { TransactionEnd::RollBack } else { TransactionEnd::Commit };
                    Ok((Some(WrittenHost { operation, desired, revoked }), transaction_end))
                })
            })
            .await?;
        if let Some(written) = written.as_ref().filter(|_| !dry_run) {
            self.publish(written.desired.clone());
            self.parts.access.end(&written.revoked).await;
            for name in &forgotten {
                self.history.forget(name);
            }
            self.parts.engine.wake();
        }
        Ok(written)
    }
}

impl Writing {
    fn deleted_tenants(&self) -> Vec<TenantName> {
        let stored = self.compared.stored.tenants.keys();
        stored.filter(|name| self.compared.deletes(HostObjectKind::Tenant, name.as_str())).cloned().collect()
    }

    /// Returns true if the comparison and the checks made outside the transaction still hold: the same changes of the same daemons and
    /// layouts. Objects that the file leaves alone may have been created, changed or deleted meanwhile.
    async fn is_still_compared(
        &mut self,
        db: Transaction<'_>,
        file: &HostFile,
    ) -> Result<bool, ServiceError> {
        let now = stored::load(db, Some(file)).await?;
        if now == self.compared.stored {
            return Ok(true);
        }
        let again = Compared::of(file, now, &self.compared.gpus, self.compared.file_options)?;
        let is_same = again.changes == self.compared.changes && again.subject() == self.compared.subject();
        if is_same {
            self.compared = again;
        }
        Ok(is_same)
    }

    async fn delete_tenants(
        &mut self,
        db: Transaction<'_>,
        service: &Backend,
    ) -> Result<Vec<TokenId>, ServiceError> {
        let mut revoked = Vec::new();
        for name in self.deleted_tenants() {
            let Some(tenant) = store::tenants::get(&mut *db, &name).await? else { continue };
            let removed = service.remove_tenant(&mut *db, &tenant, &self.by, self.clock).await;
            let Some(tokens) = self.faults.keep("/tenants", removed)? else { continue };
            revoked.extend(tokens);
            let daemon = tenant.spec.daemon;
            self.touched.insert(daemon.clone());
            let deleted = DomainEvent::TenantDeleted { tenant: name, daemon: Some(daemon), expired_at: None };
            self.event(db, deleted).await?;
        }
        Ok(revoked)
    }

    async fn write_layouts(&mut self, db: Transaction<'_>) -> Result<(), ServiceError> {
        for (name, (layout, note)) in &self.compared.spec.layouts {
            if !self.compared.writes(HostObjectKind::Layout, name.as_str()) {
                continue;
            }
            let before = store::layouts::newest(&mut *db, name).await?;
            let new = NewVersion { layout, author: &self.author, note: note.as_deref(), provenance: None };
            let put = put_if_new(&mut *db, name, before.as_ref(), &new, self.clock).await;
            self.faults.keep(&format!("/layouts/{name}"), put)?;
        }
        Ok(())
    }

    /// The spec of a daemon with the layout that it gets in this transaction.
    fn spec_now(&self, name: &DaemonName, stored: Option<&DaemonSpec>) -> Option<DaemonSpec> {
        let spec = self.compared.daemon(name)?;
        let before = stored.and_then(|daemon| daemon.layout.clone());
        let desired = self.compared.spec.bindings.get(name);
        let layout = match desired {
            Some(_) if self.checked.applied_later.contains(name) => {
                // A layout of the other mode goes with its mode.
                before.filter(|_| stored.is_some_and(|daemon| daemon.mode == spec.mode))
            }
            Some(active) => Some(active.clone()),
            None if self.compared.deletes(HostObjectKind::Binding, name.as_str()) => None,
            None => before,
        };
        Some(DaemonSpec { layout, ..spec.clone() })
    }

    async fn write_daemons(&mut self, db: Transaction<'_>, service: &Backend) -> Result<(), ServiceError> {
        let bound =
            self.compared.changed(HostObjectKind::Binding).filter_map(|change| change.name.parse().ok());
        let names: BTreeSet<DaemonName> = self.compared.spec.daemons.keys().cloned().chain(bound).collect();
        self.release_gpus(&mut *db).await?;
        for name in names {
            let stored = self.compared.stored.daemons.get(&name);
            let Some(spec) = self.spec_now(&name, stored) else { continue };
            if stored != Some(&spec) {
                self.write_daemon(&mut *db, service, name, spec).await?;
            }
        }
        Ok(())
    }

    /// Releases the GPUs of daemons that give some up, so that others can get them whatever the order of the writes. A pruned daemon stops
    /// at once, and the operation deletes it; the driver of a daemon waits until no other daemon serves its GPUs.
    async fn release_gpus(&mut self, db: Transaction<'_>) -> Result<(), ServiceError> {
        for (name, before) in self.compared.stored.daemons.clone() {
            if before.is_observed() {
                continue;
            }
            match self.compared.spec.daemons.get(&name) {
                Some(after) if after.gpus == before.gpus && !after.is_observed() => {}
                Some(_) => store::daemons::release_gpus(&mut *db, &name).await?,
                None if self.is_replaced(&name, &before) => {
                    let stopped = DaemonSpec { desired_state: DesiredState::Stopped, ..before.clone() };
                    if stopped != before {
                        store::daemons::put(&mut *db, &name, &stopped, self.clock.unix_ms()).await?;
                    }
                    store::daemons::release_gpus(&mut *db, &name).await?;
                    if let Some(event) = store::operations::daemon_changed(&name, &before, &stopped, None)? {
                        self.event(&mut *db, event).await?;
                    }
                    self.touched.insert(name);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Returns true if a daemon is pruned while another one gets one of its GPUs.
    fn is_replaced(&self, name: &DaemonName, before: &DaemonSpec) -> bool {
        let mut managed = self.compared.spec.daemons.values().filter(|spec| !spec.is_observed());
        self.compared.deletes(HostObjectKind::Daemon, name.as_str())
            && managed.any(|spec| spec.gpus.iter().any(|gpu| before.gpus.contains(gpu)))
    }

    async fn write_daemon(
        &mut self,
        db: Transaction<'_>,
        service: &Backend,
        name: DaemonName,
        spec: DaemonSpec,
    ) -> Result<(), ServiceError> {
        let objection = self.checked.objections.get(&name).cloned();
        let written = WrittenDaemon { name: name.clone(), spec: spec.clone(), objection, in_host_file: true };
        let options = WriteOptions::default();
        let before = service.write_daemon(&mut *db, written, &self.compared.gpus, self.clock, &options).await;
        let Some(before) = self.faults.keep(&format!("/daemons/{name}"), before)? else { return Ok(()) };
        self.touched.insert(name.clone());
        let event = match before {
            None => Some(DomainEvent::DaemonCreated { daemon: name }),
            Some(before) => store::operations::daemon_changed(&name, &before.spec, &spec, None)?,
        };
        if let Some(event) = event {
            self.event(&mut *db, event).await?;
        }
        Ok(())
    }

    async fn write_tenants(&mut self, db: Transaction<'_>, service: &Backend) -> Result<(), ServiceError> {
        for (name, spec) in self.compared.spec.tenants.clone() {
            if !self.compared.writes(HostObjectKind::Tenant, name.as_str()) {
                continue;
            }
            // What is wrong with its daemon was said already.
            if store::daemons::get(&mut *db, &spec.daemon).await?.is_none() && !self.faults.is_empty() {
                continue;
            }
            let options = WriteOptions::default();
            let before = service.write_tenant(&mut *db, (&name, spec.clone()), self.clock, &options).await;
            let Some(before) = self.faults.keep(&format!("/tenants/{name}"), before)? else { continue };
            self.touched.insert(spec.daemon.clone());
            self.touched.extend(before.as_ref().map(|tenant| tenant.spec.daemon.clone()));
            let event = tenant_event(name, before.as_ref(), &spec)?;
            self.event(&mut *db, event).await?;
        }
        Ok(())
    }

    /// Checks that each daemon can hold its tenants, once all of them are written.
    async fn admit(&mut self, db: Transaction<'_>, service: &Backend) -> Result<(), ServiceError> {
        for name in self.touched.clone() {
            if store::daemons::get(&mut *db, &name).await?.is_none() {
                continue;
            }
            if let Err(refusal) = service.admit_tenants(&mut *db, &name, &self.compared.gpus).await? {
                self.faults.conflict(format!("/daemons/{name}"), refusal.detail);
            }
        }
        Ok(())
    }

    /// Builds the request of the operation that does the rest: it applies layouts to running daemons, and deletes objects that can only go
    /// once they are stopped or unused.
    async fn what_follows(&mut self, db: Transaction<'_>) -> Result<OperationRequest, ServiceError> {
        let mut layouts = Vec::new();
        for name in self.checked.applied_later.clone() {
            let Some(active) = self.compared.spec.bindings.get(&name) else { continue };
            let layout = HostLayout {
                daemon: name.clone(),
                layout: active.name.clone(),
                version: active.version,
                gpu_map: active.gpu_map.clone(),
                drift_policy: active.drift_policy,
                recreate: self.compared.file_options.recreate,
            };
            let allowed = may_change(&mut *db, &name, &layout.request()).await;
            self.faults.keep(&format!("/bindings/{name}"), allowed)?;
            layouts.push(layout);
        }
        let mut delete_daemons = Vec::new();
        for name in self.compared.stored.daemons.keys() {
            if !self.compared.deletes(HostObjectKind::Daemon, name.as_str()) {
                continue;
            }
            if let Some(operation) = store::operations::unfinished(&mut *db, name).await? {
                self.faults.conflict(
                    "/daemons".to_owned(),
                    format!("operation {operation} works on daemon {name}, which would be deleted: wait for it, or cancel it"),
                );
            }
            delete_daemons.push(name.clone());
        }
        let delete_layouts = self.delete_layouts(&mut *db).await?;
        let mut daemons = Vec::new();
        for name in &self.touched {
            let daemon = store::daemons::get(&mut *db, name).await?;
            let runs = daemon.is_some_and(|daemon| {
                daemon.spec.desired_state == DesiredState::Running && !daemon.spec.is_observed()
            });
            if runs && !delete_daemons.contains(name) {
                daemons.push(name.clone());
            }
        }
        let changes = u32::try_from(self.compared.changes.len()).unwrap_or(u32::MAX);
        Ok(OperationRequest::ApplySpec {
            changes,
            prune: self.compared.file_options.prune,
            daemons,
            layouts,
            delete_daemons,
            delete_layouts,
        })
    }

    /// Deletes the layouts that are unused; returns those that a daemon has until it gets another one or is deleted.
    async fn delete_layouts(&mut self, db: Transaction<'_>) -> Result<Vec<LayoutName>, ServiceError> {
        let mut later = Vec::new();
        let deleted = self.compared.changed(HostObjectKind::Layout);
        let deleted = deleted.filter(|change| change.action == HostChangeAction::Delete);
        let names: Vec<LayoutName> = deleted.filter_map(|change| change.name.parse().ok()).collect();
        for name in names {
            let holders = store::daemons::with_layout(&mut *db, &name).await?;
            if let Some(operation) = store::operations::with_layout(&mut *db, &name).await? {
                let reason = format!(
                    "operation {operation} uses layout {name}, which would be deleted: wait for it, or cancel it"
                );
                self.faults.conflict("/layouts".to_owned(), reason);
            } else if holders.is_empty() {
                let before = store::layouts::newest(&mut *db, &name).await?;
                store::layouts::delete(&mut *db, &name).await?;
                let version = before.as_ref().map(|version| version.version);
                self.event(&mut *db, DomainEvent::LayoutDeleted { layout: name.clone(), version }).await?;
                if let Some(attempt) = &self.attempt {
                    let content = before.map(|version| {
                        serde_json::json!({ "version": version.version, "layout": version.layout })
                            .to_string()
                    });
                    let attempt = AttemptedAction { target: Target::Layout(name), ..attempt.clone() };
                    let came = AuditResult { before: content, ..AuditResult::default() };
                    store::audit::append(&mut *db, &attempt, came, 1, self.clock.unix_ms()).await?;
                }
            } else {
                later.push(name);
            }
        }
        Ok(later)
    }

    async fn event(&self, db: Transaction<'_>, event: DomainEvent) -> Result<(), ServiceError> {
        if !self.dry_run {
            store::events::append(db, &event.because(self.by.clone()), self.clock.unix_ms()).await?;
        }
        Ok(())
    }
}

fn tenant_event(
    name: TenantName,
    before: Option<&Tenant>,
    after: &TenantSpec,
) -> Result<DomainEvent, ServiceError> {
    let daemon = Some(after.daemon.clone());
    let Some(before) = before else { return Ok(DomainEvent::TenantCreated { tenant: name, daemon }) };
    let json = |spec: &TenantSpec| {
        serde_json::to_value(spec).map_err(|error| ServiceError::Internal(error.to_string()))
    };
    let fields = changed_fields(Some(&json(&before.spec)?), Some(&json(after)?));
    Ok(DomainEvent::TenantChanged(ChangedTenant { tenant: name, daemon, gpu: None, fields }))
}
