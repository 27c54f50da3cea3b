//! The one transaction in which a host file is written, with the operation that waits for the daemons.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::checks::Checked;
use super::faults::Faults;
use super::{Compared, stored};
use crate::domain::audit::Target;
use crate::domain::daemon::{Daemon, DaemonSpec, DesiredState};
use crate::domain::event::DomainEvent;
use crate::domain::host_file::{HostChangeAction, HostFile, HostObjectKind};
use crate::domain::operation::{HostLayout, Operation, OperationRequest};
use crate::domain::{DaemonName, LayoutName};
use crate::service::access::audit_log::layout_on_record;
use crate::service::access::context::Permit;
use crate::service::change::{Change, ChangeScope};
use crate::service::daemons::WrittenDaemon;
use crate::service::error::conflict;
use crate::service::layouts::{may_change, put_if_new};
use crate::service::{Backend, Result, WriteOptions};
use crate::store::layouts::NewVersion;
use crate::store::{self, transact};

/// Context of the writes in the transaction.
struct Writing<'w, 'c> {
    service: &'w Backend,
    change: &'w mut Change<'c>,
    compared: Compared,
    checked: Checked,
    author: String,
    faults: Faults,
}

impl Backend {
    /// Writes a host file that was compared and checked, or nothing if the objects that it concerns were changed since. Returns the
    /// operation, which is not stored after a dry run.
    pub(super) async fn write_host(
        self: &Arc<Self>,
        permit: &Permit,
        file: &HostFile,
        compared: Compared,
        checked: Checked,
        dry_run: bool,
    ) -> Result<Option<Operation>> {
        let (author, id) = (permit.ctx().actor.subject.to_string(), permit.ctx().clock.new_id());
        let (service, file) = (Arc::clone(self), file.clone());
        let written = transact!(self, change(permit, ChangeScope::Whole, dry_run), |change| {
            let Some(compared) = compared.again(change, &file).await? else {
                change.dry_run = true;
                return Ok(None);
            };
            let faults = Faults::default();
            let mut writing = Writing { service: &service, change, compared, checked, author, faults };
            let request = writing.write().await?;
            let (now, by) = (change.now, change.by());
            store::operations::insert(&mut *change.db, id, &[], &request, None, now).await?;
            store::operations::requested(&mut *change.db, id, by, now).await?;
            Ok(store::operations::get(&mut *change.db, id).await?)
        })?;
        if !dry_run {
            self.parts.engine.wake();
        }
        Ok(written.value)
    }
}

impl Compared {
    /// Returns the comparison as it is in this transaction, if it and the checks made outside still hold: the same changes of the same daemons
    /// and layouts. Objects that the file leaves alone may have been created, changed or deleted meanwhile.
    async fn again(self, change: &mut Change<'_>, file: &HostFile) -> Result<Option<Self>> {
        let objects = change.objects.clone();
        let now = stored::with_layouts(&mut *change.db, objects, Some(file)).await?;
        if now == self.stored {
            return Ok(Some(self));
        }
        let again = Self::of(file, now, &self.gpus, self.file_options)?;
        let is_same = again.changes == self.changes && again.subject() == self.subject();
        Ok(is_same.then_some(again))
    }
}

impl Writing<'_, '_> {
    /// Writes everything that can be written at once, and returns the request of the operation that does the rest.
    async fn write(&mut self) -> Result<OperationRequest> {
        if let Some(other) = store::operations::unfinished_of_kind(&mut *self.change.db, "apply_spec").await?
        {
            return Err(conflict!(
                "operation {other} is applying a host file: wait for it, and compare this file again"
            ));
        }
        self.delete_tenants().await?;
        self.write_layouts().await?;
        self.write_daemons().await?;
        self.write_tenants().await?;
        self.admit()?;
        let request = self.what_follows().await?;
        std::mem::take(&mut self.faults).check()?;
        Ok(request)
    }

    async fn delete_tenants(&mut self) -> Result<()> {
        for name in self.compared.stored.tenants.keys() {
            if self.compared.deletes(HostObjectKind::Tenant, name.as_str()) {
                let removed = self.service.remove_tenant(self.change, name).await;
                self.faults.keep("/tenants", removed)?;
            }
        }
        Ok(())
    }

    async fn write_layouts(&mut self) -> Result<()> {
        for (name, (layout, note)) in &self.compared.spec.layouts {
            if !self.compared.writes(HostObjectKind::Layout, name.as_str()) {
                continue;
            }
            let (db, now) = (&mut *self.change.db, self.change.now);
            let before = store::layouts::newest(&mut *db, name).await?;
            let new = NewVersion { layout, author: &self.author, note: note.as_deref(), provenance: None };
            let put = put_if_new(db, name, before.as_ref(), &new, now).await;
            if let Some(written) = self.faults.keep(&format!("/layouts/{name}"), put)? {
                let specs = (before.as_ref().map(layout_on_record), Some(layout_on_record(&written)));
                self.change.record.specs.insert(Target::Layout(name.clone()), specs);
            }
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

    async fn write_daemons(&mut self) -> Result<()> {
        let bound =
            self.compared.changed(HostObjectKind::Binding).filter_map(|change| change.name.parse().ok());
        let names: BTreeSet<DaemonName> = self.compared.spec.daemons.keys().cloned().chain(bound).collect();
        self.release_gpus().await?;
        for name in names {
            let stored = self.compared.stored.daemons.get(&name);
            let Some(spec) = self.spec_now(&name, stored).filter(|spec| stored != Some(spec)) else {
                continue;
            };
            let objection = self.checked.objections.get(&name).cloned();
            let place = format!("/daemons/{name}");
            let written = WrittenDaemon { name, spec, objection, in_host_file: true };
            let written = self.service.write_daemon(self.change, written, &WriteOptions::default()).await;
            self.faults.keep(&place, written)?;
        }
        Ok(())
    }

    /// Releases the GPUs of daemons that give some up, so that others can get them whatever the order of the writes. A pruned daemon stops
    /// at once, and the operation deletes it; the driver of a daemon waits until no other daemon serves its GPUs.
    async fn release_gpus(&mut self) -> Result<()> {
        for (name, before) in self.compared.stored.daemons.clone() {
            if before.is_observed() {
                continue;
            }
            match self.compared.spec.daemons.get(&name) {
                Some(after) if after.gpus == before.gpus && !after.is_observed() => {}
                Some(_) => self.change.release_gpus(&name),
                None if self.is_replaced(&name, &before) => {
                    let stopped = DaemonSpec { desired_state: DesiredState::Stopped, ..before };
                    self.change.put_daemon(&name, stopped).await?;
                    self.change.release_gpus(&name);
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

    async fn write_tenants(&mut self) -> Result<()> {
        for (name, spec) in self.compared.spec.tenants.clone() {
            if !self.compared.writes(HostObjectKind::Tenant, name.as_str()) {
                continue;
            }
            // What is wrong with its daemon was said already.
            if !self.change.objects.daemons.contains_key(&spec.daemon) && !self.faults.is_empty() {
                continue;
            }
            let options = WriteOptions::default();
            let written = self.service.write_tenant(self.change, &name, spec, &options).await;
            self.faults.keep(&format!("/tenants/{name}"), written)?;
        }
        Ok(())
    }

    /// Checks that each daemon can hold its tenants, once all of them are written.
    fn admit(&mut self) -> Result<()> {
        for name in self.change.concerned() {
            if let Err(refusal) = self.service.admit_tenants(self.change, &name)? {
                self.faults.conflict(format!("/daemons/{name}"), refusal.detail);
            }
        }
        Ok(())
    }

    /// Builds the request of the operation that does the rest: it applies layouts to running daemons, and deletes objects that can only go
    /// once they are stopped or unused.
    async fn what_follows(&mut self) -> Result<OperationRequest> {
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
            let allowed = may_change(&mut *self.change.db, &name, &layout.request()).await;
            self.faults.keep(&format!("/bindings/{name}"), allowed)?;
            layouts.push(layout);
        }
        let mut delete_daemons = Vec::new();
        for name in self.compared.stored.daemons.keys() {
            if !self.compared.deletes(HostObjectKind::Daemon, name.as_str()) {
                continue;
            }
            if let Some(operation) = store::operations::unfinished(&mut *self.change.db, name).await? {
                self.faults.conflict(
                    "/daemons".to_owned(),
                    format!("operation {operation} works on daemon {name}, which would be deleted: wait for it, or cancel it"),
                );
            }
            delete_daemons.push(name.clone());
        }
        let delete_layouts = self.delete_layouts().await?;
        let mut daemons = self.change.concerned();
        daemons.retain(|name| {
            let runs = self.change.objects.daemons.get(name).is_some_and(|daemon| {
                daemon.spec.desired_state == DesiredState::Running && !daemon.spec.is_observed()
            });
            runs && !delete_daemons.contains(name)
        });
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
    async fn delete_layouts(&mut self) -> Result<Vec<LayoutName>> {
        let mut later = Vec::new();
        let deleted = self.compared.changed(HostObjectKind::Layout);
        let deleted = deleted.filter(|change| change.action == HostChangeAction::Delete);
        let names: Vec<LayoutName> = deleted.filter_map(|change| change.name.parse().ok()).collect();
        for name in names {
            let has_it =
                |daemon: &Daemon| daemon.spec.layout.as_ref().is_some_and(|layout| layout.name == name);
            let is_held = self.change.objects.daemons.values().any(has_it);
            let db = &mut *self.change.db;
            if let Some(operation) = store::operations::with_layout(&mut *db, &name).await? {
                let reason = format!(
                    "operation {operation} uses layout {name}, which would be deleted: wait for it, or cancel it"
                );
                self.faults.conflict("/layouts".to_owned(), reason);
            } else if !is_held {
                let before = store::layouts::newest(&mut *db, &name).await?;
                store::layouts::delete(db, &name).await?;
                let version = before.as_ref().map(|version| version.version);
                self.change.report(DomainEvent::LayoutDeleted { layout: name.clone(), version });
                let specs = (before.as_ref().map(layout_on_record), None);
                self.change.record.specs.insert(Target::Layout(name), specs);
            } else {
                later.push(name);
            }
        }
        Ok(later)
    }
}
