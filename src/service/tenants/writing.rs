//! Tenants written and deleted, within the change of whichever use case does it.

use crate::domain::daemon::Management;
use crate::domain::tenant::TenantSpec;
use crate::domain::{TenantName, admission};
use crate::service::change::Change;
use crate::service::error::{conflict, field};
use crate::service::tenants::leases::refuse_while_leased;
use crate::service::tenants::percentage_layout::refuse_own_share;
use crate::service::{Backend, Result, WriteOptions, check_precondition};

impl Backend {
    /// Writes a tenant's spec; refuses what its daemon cannot be for it. Whether it fits beside the others is for
    /// [`Backend::admit_tenant`] to say.
    pub(in crate::service) async fn write_tenant(
        &self,
        change: &mut Change<'_>,
        name: &TenantName,
        spec: TenantSpec,
        options: &WriteOptions,
    ) -> Result<()> {
        let current = change.objects.tenants.get(name);
        let left = current.map(|tenant| tenant.spec.daemon.clone()).filter(|left| *left != spec.daemon);
        check_precondition(options, current.map(|tenant| tenant.generation))?;
        change.refuse_namesake("tenant", name.as_str()).await?;
        let daemon = change.objects.daemons.get(&spec.daemon).ok_or_else(|| {
            field!("/daemon", "there is no daemon {}: create it first, or name one that exists", spec.daemon)
        })?;
        if daemon.spec.management == Management::Observed {
            return Err(conflict!(
                "daemon {} is only observed, so a tenant's limits are not enforced on it: set its management to managed \
                 first, or choose another daemon",
                spec.daemon
            ));
        }
        refuse_own_share(&mut *change.db, daemon, name, &spec).await?;
        if left.is_some() {
            refuse_while_leased(&mut *change.db, name, &self.parts.fleet.context().boot_id).await?;
        }
        change.put_tenant(name, spec)
    }

    /// Refuses a tenant that its daemon cannot hold beside the others.
    pub(super) fn admit_tenant(&self, change: &Change<'_>, name: &TenantName) -> Result<()> {
        let spec = &change.tenant(name)?.spec;
        let mut tenants = change.specs_of(&spec.daemon);
        // The last one is at fault.
        tenants.sort_by_key(|(other, _)| *other == name);
        let ceiling = self.parts.fleet.context().capability.client_ceiling();
        let daemon = &change.daemon(&spec.daemon)?.spec;
        Ok(admission::admit(spec.daemon.as_str(), daemon, &tenants, &change.gpus, ceiling)?)
    }

    /// Deletes a tenant, and with it its tokens.
    pub(in crate::service) async fn remove_tenant(
        &self,
        change: &mut Change<'_>,
        name: &TenantName,
    ) -> Result<()> {
        refuse_while_leased(&mut *change.db, name, &self.parts.fleet.context().boot_id).await?;
        change.objects.tenants.remove(name);
        Ok(())
    }

    /// Refuses to delete a tenant that has processes.
    pub(in crate::service) async fn refuse_with_processes(&self, name: &TenantName) -> Result<()> {
        match self.processes_of(name).await? {
            0 => Ok(()),
            running => Err(conflict!(
                "tenant {name} has processes running ({running}): end or terminate them, or revoke their leases first"
            )),
        }
    }
}
