//! Tenants written and deleted, within the transaction of whichever use case does it.

use super::{not_found, without_daemon};
use crate::clock::Clock;
use crate::domain::daemon::Management;
use crate::domain::event::EventCause;
use crate::domain::gpu::Gpu;
use crate::domain::tenant::{Tenant, TenantSpec};
use crate::domain::token::TokenId;
use crate::domain::{TenantName, admission};
use crate::service::access::tokens;
use crate::service::tenants::leases::refuse_while_leased;
use crate::service::tenants::percentage_layout::refuse_own_share;
use crate::service::{Backend, ServiceError, WriteOptions, check_precondition, refuse_namesake};
use crate::store;

impl Backend {
    /// Writes a tenant's spec if it differs, and returns the tenant as it was; refuses what its daemon cannot be for it. Whether
    /// it fits beside the others is for [`Backend::admit_tenant`] to say.
    pub(in crate::service) async fn write_tenant(
        &self,
        db: store::Transaction<'_>,
        (name, spec): (&TenantName, TenantSpec),
        clock: Clock,
        options: &WriteOptions,
    ) -> Result<Option<Tenant>, ServiceError> {
        let current = store::tenants::get(&mut *db, name).await?;
        check_precondition(options, current.as_ref().map(|tenant| tenant.generation))?;
        refuse_namesake(&mut *db, "tenant", name.as_str()).await?;
        let daemon = store::daemons::get(&mut *db, &spec.daemon).await?.ok_or_else(|| {
            ServiceError::field(
                "/daemon",
                format!("there is no daemon {}: create it first, or name one that exists", spec.daemon),
            )
        })?;
        if daemon.spec.management == Management::Observed {
            return Err(ServiceError::Conflict(format!(
                "daemon {} is only observed, so a tenant's limits are not enforced on it: set its management to managed \
                 first, or choose another daemon",
                spec.daemon
            )));
        }
        refuse_own_share(&mut *db, &daemon, name, &spec).await?;
        if current.as_ref().is_some_and(|tenant| tenant.spec == spec) {
            return Ok(current);
        }
        let generation = store::daemons::touch(&mut *db, &spec.daemon).await?;
        store::tenants::put(&mut *db, name, &spec, generation, clock.unix_ms()).await?;
        if let Some(left) = current.as_ref().map(|tenant| &tenant.spec.daemon)
            && *left != spec.daemon
        {
            refuse_while_leased(&mut *db, name, &self.parts.fleet.context().boot_id).await?;
            store::daemons::touch(db, left).await?;
        }
        Ok(current)
    }

    /// Refuses a tenant, as it is in this transaction, that its daemon cannot hold beside the others.
    pub(super) async fn admit_tenant(
        &self,
        db: store::Transaction<'_>,
        name: &TenantName,
        gpus: &[Gpu],
    ) -> Result<(), ServiceError> {
        let tenant = store::tenants::get(&mut *db, name).await?.ok_or_else(|| not_found(name))?;
        let daemon = &tenant.spec.daemon;
        let stored = store::daemons::get(&mut *db, daemon).await?.ok_or_else(|| without_daemon(&tenant))?;
        let others = store::tenants::of_daemon(&mut *db, daemon).await?;
        let mut tenants: Vec<_> = others
            .into_iter()
            .filter(|other| other.name != *name)
            .map(|other| (other.name, other.spec))
            .collect();
        tenants.push((name.clone(), tenant.spec.clone()));
        let ceiling = self.parts.fleet.context().capability.client_ceiling();
        Ok(admission::admit(daemon.as_str(), &stored.spec, &tenants, gpus, ceiling)?)
    }

    /// Deletes a tenant, and returns its tokens that are revoked with it.
    pub(in crate::service) async fn remove_tenant(
        &self,
        db: store::Transaction<'_>,
        tenant: &Tenant,
        by: &EventCause,
        clock: Clock,
    ) -> Result<Vec<TokenId>, ServiceError> {
        refuse_while_leased(&mut *db, &tenant.name, &self.parts.fleet.context().boot_id).await?;
        store::tenants::delete(&mut *db, &tenant.name).await?;
        let revoked = tokens::revoke_of(&mut *db, &tenant.name, by, clock.unix_ms()).await?;
        store::daemons::touch(db, &tenant.spec.daemon).await?;
        Ok(revoked)
    }

    /// Refuses to delete a tenant that has processes.
    pub(in crate::service) async fn refuse_with_processes(
        &self,
        name: &TenantName,
    ) -> Result<(), ServiceError> {
        match self.processes_of(name).await? {
            0 => Ok(()),
            running => Err(ServiceError::Conflict(format!(
                "tenant {name} has processes running ({running}): end or terminate them, or revoke their leases first"
            ))),
        }
    }
}
