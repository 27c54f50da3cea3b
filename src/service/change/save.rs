//! The end of a change: everything that follows from the difference between the objects as they were loaded and as they are.

use std::collections::BTreeSet;

use super::tenants::TouchedTenant;
use super::{Change, Changed, Objects};
use crate::domain::audit::{EXPIRE, Target};
use crate::domain::daemon::Incarnation;
use crate::domain::event::{ChangedTenant, DomainEvent, changed_fields};
use crate::domain::plan::Desired;
use crate::domain::tenant::Tenant;
use crate::domain::token::TokenId;
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::service::Result;
use crate::service::access::audit_log::on_record;
use crate::service::access::tokens;
use crate::store;

impl Change<'_> {
    /// Numbers the changes and saves them, unless it is a dry run.
    pub(super) async fn finish<T>(mut self, manager_uid: u32, value: T) -> Result<Changed<T>> {
        self.number().await?;
        let revoked = if self.dry_run { Vec::new() } else { self.save().await? };
        let desired = self.desired(manager_uid).await?;
        let deleted = self.deleted_tenants();
        let Self { gpus, objects, adopted, dry_run, .. } = self;
        Ok(Changed { value, objects, gpus, desired, revoked, deleted, adopted, is_kept: !dry_run })
    }

    /// Raises the generation of each daemon whose tenants change, once, and numbers new tenants after earlier ones of their names.
    async fn number(&mut self) -> Result<()> {
        let new = self.objects.tenants.touched();
        let new = new.filter(|tenant| tenant.before.is_none() && tenant.after.is_some());
        let new: Vec<TenantName> = new.map(|tenant| tenant.name.clone()).collect();
        if !new.is_empty() {
            for (name, last) in store::tenants::last_generations(&mut *self.db, &new).await? {
                if let Some(tenant) = self.objects.tenants.get_mut(&name) {
                    tenant.generation += last;
                }
            }
        }
        for name in self.with_changed_tenants() {
            if let Some(daemon) = self.objects.daemons.get_mut(&name)
                && self.loaded.daemons.get(&name).is_some_and(|before| before.generation == daemon.generation)
            {
                daemon.generation += 1;
            }
        }
        let Objects { daemons, tenants, .. } = &mut self.objects;
        let changed = tenants.touched().filter(TouchedTenant::has_new_generation);
        let changed: Vec<TenantName> = changed.map(|tenant| tenant.name.clone()).collect();
        for name in changed {
            if let Some(tenant) = tenants.get_mut(&name)
                && let Some(daemon) = daemons.get(&tenant.spec.daemon)
            {
                tenant.daemon_generation = daemon.generation;
            }
        }
        Ok(())
    }

    /// The daemons that get or lose a tenant, or have one whose spec changed.
    pub(super) fn with_changed_tenants(&self) -> BTreeSet<DaemonName> {
        let changed = self.objects.tenants.touched().filter(TouchedTenant::has_new_generation);
        let sides = changed.flat_map(|tenant| tenant.before.into_iter().chain(tenant.after));
        sides.map(|tenant| tenant.spec.daemon.clone()).collect()
    }

    fn deleted_tenants(&self) -> Vec<TenantName> {
        let touched = self.objects.tenants.touched();
        let deleted = touched.filter(|tenant| tenant.before.is_some() && tenant.after.is_none());
        deleted.map(|tenant| tenant.name.clone()).collect()
    }

    /// Writes rows, events and audit rows; returns the tokens that are revoked with their tenants.
    async fn save(&mut self) -> Result<Vec<TokenId>> {
        let mut revoked = Vec::new();
        for name in self.deleted_tenants() {
            revoked.extend(self.delete_tenant(&name).await?);
        }
        self.save_daemons().await?;
        let changed = self.objects.tenants.touched().filter(|tenant| tenant.before != tenant.after);
        let changed: Vec<(Option<&Tenant>, &Tenant)> =
            changed.filter_map(|tenant| Some((tenant.before, tenant.after?))).collect();
        store::tenants::put(&mut *self.db, &changed.iter().map(|(_, after)| *after).collect::<Vec<_>>())
            .await?;
        for (before, tenant) in changed {
            let daemon = Some(tenant.spec.daemon.clone());
            let name = tenant.name.clone();
            let specs = (before.map(|before| on_record(&before.spec)), Some(on_record(&tenant.spec)));
            if specs.0 == specs.1 {
                continue;
            }
            self.record.events.push(match &specs.0 {
                None => DomainEvent::TenantCreated { tenant: name, daemon },
                Some(before) => DomainEvent::TenantChanged(ChangedTenant {
                    tenant: name,
                    daemon,
                    gpu: self.exchanged_for.clone(),
                    fields: changed_fields(Some(before), specs.1.as_ref()),
                }),
            });
            self.record.specs.insert(Target::Tenant(tenant.name.clone()), specs);
        }
        self.record.write(&mut *self.db, self.now).await?;
        Ok(revoked)
    }

    async fn delete_tenant(&mut self, name: &TenantName) -> Result<Vec<TokenId>> {
        let Some(tenant) = self.objects.tenants.loaded(name) else { return Ok(Vec::new()) };
        let before = store::tokens::of_tenant(&mut *self.db, name).await?;
        let by = self.record.by.clone();
        store::tenants::delete(&mut *self.db, name).await?;
        let revoked = tokens::revoke_of(&mut *self.db, name, &by, self.now).await?;
        for token in before.into_iter().filter(|token| revoked.contains(&token.id)) {
            let now = store::tokens::get(&mut *self.db, &token.id).await?;
            let specs = (Some(token.on_record()), now.map(|token| token.on_record()));
            self.record.specs.insert(Target::Token(token.id), specs);
        }
        let daemon = Some(tenant.spec.daemon.clone());
        let expired_at = tenant.spec.expires_at.filter(|_| self.record.is_of(EXPIRE));
        self.record.events.push(DomainEvent::TenantDeleted { tenant: name.clone(), daemon, expired_at });
        self.record.specs.insert(Target::Tenant(name.clone()), (Some(on_record(&tenant.spec)), None));
        Ok(revoked)
    }

    async fn save_daemons(&mut self) -> Result<()> {
        let (before, after) = (&self.loaded, &self.objects);
        let mut touched = Vec::new();
        for daemon in after.daemons.values() {
            let earlier = before.daemons.get(&daemon.name);
            if earlier.is_none_or(|earlier| earlier.revision != daemon.revision) {
                store::daemons::put(&mut *self.db, &daemon.name, &daemon.spec, self.now).await?;
                self.record.events.extend(match earlier {
                    None if self.record.is_adoption() => {
                        Some(DomainEvent::DaemonAdopted { daemon: daemon.name.clone() })
                    }
                    None => Some(DomainEvent::DaemonCreated { daemon: daemon.name.clone() }),
                    Some(earlier) => {
                        store::operations::daemon_changed(&daemon.name, &earlier.spec, &daemon.spec, None)
                    }
                });
                let specs = (earlier.map(|earlier| on_record(&earlier.spec)), Some(on_record(&daemon.spec)));
                self.record.specs.insert(Target::Daemon(daemon.name.clone()), specs);
            } else if earlier.is_some_and(|earlier| earlier.generation != daemon.generation) {
                touched.push(&daemon.name);
            }
        }
        if !touched.is_empty() {
            store::daemons::touch(&mut *self.db, &touched).await?;
        }
        let gpus: BTreeSet<&GpuUuid> = before.holders.keys().chain(after.holders.keys()).collect();
        for gpu in gpus.into_iter().filter(|gpu| before.holders.get(*gpu) != after.holders.get(*gpu)) {
            store::daemons::hold(&mut *self.db, gpu, after.holders.get(gpu)).await?;
        }
        if before.holders != after.holders {
            store::gpus::remember(&mut *self.db, &self.gpus, self.now).await?;
        }
        for daemon in before.daemons.values().filter(|daemon| !after.daemons.contains_key(&daemon.name)) {
            store::daemons::delete(&mut *self.db, &daemon.name, self.now).await?;
            // Deleting one stops it, which is an operation.
            self.record.events.push(DomainEvent::DaemonReleased { daemon: daemon.name.clone() });
            let specs = (Some(on_record(&daemon.spec)), None);
            self.record.specs.insert(Target::Daemon(daemon.name.clone()), specs);
        }
        if let Some(adopted) = &mut self.adopted
            && let Some(daemon) =
                after.daemons.values().find(|daemon| !before.daemons.contains_key(&daemon.name))
        {
            // Its settings were read back a moment ago, so nothing has to be written.
            *adopted = Incarnation { applied: daemon.generation, ..adopted.clone() };
            store::daemons::put_incarnation(&mut *self.db, &daemon.name, adopted, self.now).await?;
        }
        Ok(())
    }

    /// The desired values of the daemons concerned. One that gets a tenant comes before the one that loses it, so that the tenant's
    /// directory never has no owner. After a dry run there are none, and what could not be planned is refused all the same.
    async fn desired(&mut self, manager_uid: u32) -> Result<Vec<Desired>> {
        let changed = self.with_changed_tenants();
        let mut names: Vec<&DaemonName> = self.published.iter().collect();
        names.extend(changed.iter().filter(|name| !self.published.contains(*name)));
        let mut desired = Vec::new();
        for name in names {
            let Some(daemon) = self.objects.daemons.get(name) else { continue };
            let tenants: Vec<&Tenant> = self.objects.tenants_of(name).collect();
            let (db, gpus, maintenance) = (&mut *self.db, &self.gpus, self.maintenance.as_ref());
            if self.dry_run {
                store::plans::check(db, daemon, &tenants, gpus, maintenance, manager_uid).await?;
                continue;
            }
            let value = store::plans::desired_of(db, daemon, &tenants, gpus, maintenance, manager_uid);
            desired.push(value.await?);
        }
        Ok(desired)
    }
}
