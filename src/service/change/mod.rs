//! Changes of daemons and tenants: loaded once in the writer's transaction, changed in memory, and saved by comparison.
//!
//! A use case is a function of [`Change`]. It checks and changes objects; rows, events, audit rows and the desired values of the
//! daemons follow from what differs in the end ([`save`]). A dry run is a change that is not saved.

mod save;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sqlx::SqliteConnection;

use self::tenants::StagedTenants;
use crate::domain::daemon::{Daemon, DaemonSpec, Incarnation};
use crate::domain::event::{DomainEvent, EventCause};
use crate::domain::gpu::{Gpu, full_name, known};
use crate::domain::maintenance::Maintenance;
use crate::domain::plan::Desired;
use crate::domain::tenant::{Sharer, Tenant, TenantSpec};
use crate::domain::token::TokenId;
use crate::domain::{COLOURS, DaemonName, GpuUuid, TenantDirectory, TenantName};
use crate::gpu::Inventory;
use crate::service::access::audit_log::ChangeRecord;
use crate::service::access::context::Permit;
use crate::service::access::endings::{SessionEnd, SessionEnding};
use crate::service::cache::TenantsOfDaemons;
use crate::service::error::Found as _;
use crate::service::error::conflict;
use crate::service::{Backend, Result, ServiceError, namesake_refusal, refuse_namesake, unavailable};
use crate::store::{self, StoreError, Transaction, TransactionEnd};
use crate::supervisor::RememberedDaemon;

/// The tenants that a change needs. All daemons are always loaded: there are as many as GPUs.
pub(in crate::service) enum ChangeScope {
    /// All tenants of the host.
    Whole,
    /// The tenants of a daemon.
    Daemon(DaemonName),
    /// A tenant and those beside it, and those of the daemon that it moves to.
    Tenant(TenantName, Option<DaemonName>),
}

/// Daemons, tenants, and who holds which GPU.
#[derive(Debug, Clone, Default)]
pub(in crate::service) struct Objects {
    pub(in crate::service) daemons: BTreeMap<DaemonName, Daemon>,
    pub(in crate::service) tenants: StagedTenants,
    holders: BTreeMap<GpuUuid, DaemonName>,
}

impl Objects {
    /// Reads all daemons and tenants.
    pub(in crate::service) async fn load(db: &mut SqliteConnection) -> Result<Self, StoreError> {
        let daemons = store::daemons::all(&mut *db).await?;
        Ok(Self::of(daemons, Arc::new(store::tenants::all(db).await?)))
    }

    fn of(daemons: Vec<Daemon>, tenants: Arc<Vec<Tenant>>) -> Self {
        Self {
            daemons: daemons.into_iter().map(|daemon| (daemon.name.clone(), daemon)).collect(),
            tenants: StagedTenants::of(tenants),
            holders: BTreeMap::new(),
        }
    }

    /// The daemon that holds a GPU.
    pub(in crate::service) fn holder(&self, gpu: &GpuUuid) -> Option<&DaemonName> {
        self.holders.get(gpu)
    }

    /// The tenants of a daemon, by name.
    pub(in crate::service) fn tenants_of(&self, daemon: &DaemonName) -> impl Iterator<Item = &Tenant> {
        self.tenants.values().filter(move |tenant| tenant.spec.daemon == *daemon)
    }
}

/// A change within a transaction.
pub(in crate::service) struct Change<'c> {
    /// The transaction, for what is neither daemon nor tenant.
    pub(in crate::service) db: Transaction<'c>,
    /// The GPUs of the host, and the missing ones that daemons hold.
    pub(in crate::service) gpus: Vec<Gpu>,
    /// The time of the change.
    pub(in crate::service) now: i64,
    /// The maintenance of the host.
    pub(in crate::service) maintenance: Option<Maintenance>,
    /// The objects as they will be.
    pub(in crate::service) objects: Objects,
    /// Events and audit rows of what is neither daemon nor tenant.
    pub(in crate::service) record: ChangeRecord,
    /// True if nothing is to be saved.
    pub(in crate::service) dry_run: bool,
    /// The running process that a new daemon takes over.
    pub(in crate::service) adopted: Option<Incarnation>,
    /// The GPU by which a replaced one was exchanged in the changed tenants.
    pub(in crate::service) exchanged_for: Option<GpuUuid>,
    loaded: Objects,
    is_whole: bool,
    /// Daemons that get their desired value again, although it may be the same.
    published: BTreeSet<DaemonName>,
}

/// The end of a change.
pub(in crate::service) struct Changed<T> {
    /// The result of the use case.
    pub(in crate::service) value: T,
    /// The objects as they are now; after a dry run, as they would be.
    pub(in crate::service) objects: Objects,
    /// The GPUs with which it was planned.
    pub(in crate::service) gpus: Vec<Gpu>,
    desired: Vec<Desired>,
    revoked: Vec<TokenId>,
    deleted: Vec<TenantName>,
    adopted: Option<Incarnation>,
    is_kept: bool,
}

impl Backend {
    /// Runs a use case that changes daemons or tenants; after the commit, daemons follow and revoked tokens end.
    pub(in crate::service) async fn change<T, F>(
        &self,
        permit: &Permit,
        scope: ChangeScope,
        dry_run: bool,
        job: F,
    ) -> Result<Changed<T>>
    where
        T: Send + 'static,
        F: for<'a, 'c> FnOnce(&'a mut Change<'c>) -> BoxFuture<'a, Result<T>> + Send + 'static,
    {
        let gpus = self.query_inventory(Inventory::known_gpus).await?.map_err(unavailable)?;
        let gpus = self.with_mlopart(gpus).await?;
        let record = ChangeRecord::of(permit, dry_run)?;
        let cached = self.cache.tenants.last().map(|(_, cached)| cached);
        let (manager_uid, now) = (self.parts.manager_uid, permit.ctx().clock.unix_ms());
        let changed = self.parts.store.write(move |db| {
            Box::pin(async move {
                let mut change = Change::load(db, scope, cached, gpus, now, record, dry_run).await?;
                let value = job(&mut change).await?;
                let changed = change.finish(manager_uid, value).await?;
                let end = if changed.is_kept { TransactionEnd::Commit } else { TransactionEnd::RollBack };
                Ok::<_, ServiceError>((changed, end))
            })
        });
        let mut changed = changed.await?;
        if changed.is_kept {
            let mut remembered = changed.adopted.take().map(RememberedDaemon::of);
            for desired in std::mem::take(&mut changed.desired) {
                self.parts.fleet.publish(desired, remembered.take());
            }
            let by = permit.ctx().actor.subject.to_string();
            let ending = SessionEnding { at: permit.ctx().clock.unix_ms(), end: SessionEnd::Revoked(by) };
            self.parts.access.end(&changed.revoked, &ending).await;
            changed.deleted.iter().for_each(|tenant| self.recent.forget(tenant));
        }
        Ok(changed)
    }
}

impl<'c> Change<'c> {
    async fn load(
        db: Transaction<'c>,
        scope: ChangeScope,
        cached: Option<Arc<TenantsOfDaemons>>,
        known_gpus: Vec<Gpu>,
        now: i64,
        record: ChangeRecord,
        dry_run: bool,
    ) -> Result<Self, StoreError> {
        let daemons = store::daemons::all(&mut *db).await?;
        let cached = cached.filter(|cached| cached.daemons == daemons);
        let tenants = match (cached, &scope) {
            (Some(cached), _) if cached.marks == store::tenants::marks(&mut *db).await? => {
                Arc::clone(&cached.tenants)
            }
            (_, ChangeScope::Whole) => Arc::new(store::tenants::all(&mut *db).await?),
            (_, ChangeScope::Daemon(name)) => Arc::new(store::tenants::of_daemon(&mut *db, name).await?),
            (_, ChangeScope::Tenant(name, to)) => {
                Arc::new(store::tenants::beside(&mut *db, name, to.as_ref()).await?)
            }
        };
        let mut loaded = Objects::of(daemons, tenants);
        let mut facts = BTreeMap::new();
        for (gpu, (daemon, gpu_facts)) in store::gpus::holders(&mut *db).await? {
            loaded.holders.insert(gpu.clone(), daemon);
            facts.insert(gpu, gpu_facts);
        }
        Ok(Self {
            gpus: known(known_gpus, &facts),
            now,
            maintenance: store::maintenance::get(&mut *db).await?,
            objects: loaded.clone(),
            record,
            dry_run,
            adopted: None,
            exchanged_for: None,
            loaded,
            is_whole: matches!(scope, ChangeScope::Whole),
            published: BTreeSet::new(),
            db,
        })
    }

    /// A daemon.
    pub(in crate::service) fn daemon(&self, name: &DaemonName) -> Result<&Daemon> {
        self.objects.daemons.get(name).found("daemon", name)
    }

    /// A tenant.
    pub(in crate::service) fn tenant(&self, name: &TenantName) -> Result<&Tenant> {
        self.objects.tenants.get(name).found("tenant", name)
    }

    /// The tenants of a daemon with their specs, by name.
    pub(in crate::service) fn specs_of(&self, daemon: &DaemonName) -> Vec<Sharer<'_>> {
        self.objects.tenants_of(daemon).map(|tenant| (&tenant.name, &tenant.spec)).collect()
    }

    /// Writes the spec of a daemon, new or changed; one that is managed takes its GPUs, as far as no other has them.
    pub(in crate::service) async fn put_daemon(
        &mut self,
        name: &DaemonName,
        spec: DaemonSpec,
    ) -> Result<(), StoreError> {
        self.published.insert(name.clone());
        let is_same = self.objects.daemons.get(name).is_some_and(|daemon| daemon.spec == spec);
        if is_same {
            return Ok(());
        }
        self.release_gpus(name);
        for gpu in spec.gpus.iter().filter(|_| !spec.is_observed()) {
            self.objects.holders.entry(gpu.clone()).or_insert_with(|| name.clone());
        }
        if let Some(daemon) = self.objects.daemons.get_mut(name) {
            daemon.change(spec, self.now);
            return Ok(());
        }
        let revision = store::daemons::last_revision(&mut *self.db, name).await? + 1;
        let (created_at, updated_at) = (self.now, self.now);
        let daemon = Daemon { name: name.clone(), spec, revision, generation: 1, created_at, updated_at };
        self.objects.daemons.insert(name.clone(), daemon);
        Ok(())
    }

    /// Takes the GPUs of a daemon from it, for others in the same change.
    pub(in crate::service) fn release_gpus(&mut self, name: &DaemonName) {
        self.objects.holders.retain(|_, holder| holder != name);
    }

    /// Forgets a daemon.
    pub(in crate::service) fn remove_daemon(&mut self, name: &DaemonName) {
        self.objects.daemons.remove(name);
        self.release_gpus(name);
    }

    /// Writes the spec of a tenant, new or changed.
    pub(in crate::service) fn put_tenant(&mut self, name: &TenantName, spec: TenantSpec) -> Result<()> {
        self.published.insert(spec.daemon.clone());
        match self.objects.tenants.get_mut(name) {
            Some(tenant) if tenant.spec == spec => {}
            Some(tenant) => tenant.change(spec, self.now),
            None => {
                // The colour that fewest of those beside it have.
                let beside = self.objects.tenants_of(&spec.daemon).map(|tenant| tenant.directory.colour());
                let mut taken = [0; COLOURS as usize];
                beside.for_each(|colour| taken[usize::from(colour)] += 1);
                let colour = (0..COLOURS).min_by_key(|colour| taken[usize::from(*colour)]).unwrap_or(0);
                let mut random = [0; TenantDirectory::LENGTH / 2];
                getrandom::fill(&mut random).map_err(|error| ServiceError::Internal(error.to_string()))?;
                let tenant = Tenant {
                    name: name.clone(),
                    spec,
                    generation: 1,
                    daemon_generation: 0,
                    created_at: self.now,
                    updated_at: self.now,
                    directory: TenantDirectory::new(random).coloured(colour),
                    draining: false,
                    finished: false,
                    held: false,
                };
                self.objects.tenants.insert(tenant);
            }
        }
        Ok(())
    }

    /// Refuses the GPUs if a daemon of this manager other than `name` has one of them.
    pub(in crate::service) fn refuse_held(&self, gpus: &[GpuUuid], name: Option<&DaemonName>) -> Result<()> {
        let held = gpus
            .iter()
            .find_map(|gpu| Some((gpu, self.objects.holder(gpu).filter(|holder| Some(*holder) != name)?)));
        held.map_or(Ok(()), |(gpu, holder)| Err(ServiceError::Conflict(held_by(gpu, holder, &self.gpus))))
    }

    /// Refuses a daemon with GPUs that are in maintenance.
    pub(in crate::service) fn refuse_in_maintenance(
        &self,
        name: &DaemonName,
        spec: &DaemonSpec,
    ) -> Result<()> {
        refuse_covered(name, spec, self.maintenance.as_ref())
    }

    /// The daemons that were written, or whose tenants were.
    pub(in crate::service) fn concerned(&self) -> Vec<DaemonName> {
        let changed = self.with_changed_tenants();
        self.published
            .union(&changed)
            .filter(|name| self.objects.daemons.contains_key(*name))
            .cloned()
            .collect()
    }

    /// Reports an event that does not follow from a changed spec.
    pub(in crate::service) fn report(&mut self, event: DomainEvent) {
        self.record.events.push(event);
    }

    /// The cause of the change's events.
    pub(in crate::service) fn by(&self) -> EventCause {
        self.record.by.clone()
    }

    /// Refuses a new name that differs from one that is there only in hyphens and underscores.
    pub(in crate::service) async fn refuse_namesake(&mut self, kind: &'static str, name: &str) -> Result<()> {
        let mut names: Box<dyn Iterator<Item = &str> + Send> = match kind {
            "daemon" => Box::new(self.objects.daemons.keys().map(DaemonName::as_str)),
            "tenant" if self.is_whole => {
                Box::new(self.objects.tenants.values().map(|tenant| tenant.name.as_str()))
            }
            _ => return refuse_namesake(&mut *self.db, kind, name).await,
        };
        let folded = |name: &str| name.replace('-', "_");
        let taken = names.find(|taken| *taken != name && folded(taken) == folded(name));
        taken.map_or(Ok(()), |taken| Err(namesake_refusal(kind, taken, name)))
    }
}

/// Says which daemon holds a GPU.
pub(in crate::service) fn held_by(gpu: &GpuUuid, holder: &DaemonName, gpus: &[Gpu]) -> String {
    let gpu = full_name(gpu, gpus);
    format!("{gpu} belongs to daemon {holder}: remove it there first, or choose another GPU")
}

/// Refuses a daemon with GPUs that are in maintenance.
pub(in crate::service) fn refuse_covered(
    name: &DaemonName,
    spec: &DaemonSpec,
    maintenance: Option<&Maintenance>,
) -> Result<()> {
    match maintenance.filter(|maintenance| maintenance.covers(&spec.gpus)) {
        None => Ok(()),
        Some(maintenance) => {
            Err(conflict!(
                "the host is in maintenance with GPUs of daemon {name} ({}), which takes no new clients and is not started \
                 meanwhile: end that first (`mps-manager maintenance end`), or use another daemon",
                maintenance.state.as_str()
            ).visible_to_tenants())
        }
    }
}
