//! Shares that the strategy of a daemon gives its tenants, and clients that run with other values.

use crate::domain::GpuUuid;
use crate::domain::daemon::Daemon;
use crate::domain::environment::percentage;
use crate::domain::gpu::Gpu;
use crate::domain::provisioning::{ProvisioningStatus, ShareBasis};
use crate::domain::resolution::{Resolved, resolve};
use crate::domain::tenant::{Tenant, TenantStatus};
use crate::domain::verification::Staleness;
use crate::domain::{TenantName, ThreadPercentage, shares};
use crate::service::tenants::clients::ClientView;
use crate::service::tenants::conditions::share_below_minimum;
use crate::service::{Backend, Result, ServiceError};

/// Returns the basis from which the shares of a daemon's tenants are computed; `tenants` may be those of all daemons.
pub(super) fn share_basis(daemon: &Daemon, tenants: &[Tenant], gpus: &[Gpu]) -> Result<Option<ShareBasis>> {
    let of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name);
    shares::basis(&daemon.spec, of_daemon.map(|tenant| &tenant.spec), gpus)
        .map_err(|error| ServiceError::Conflict(error.to_string()))
}

/// Returns the shares of a daemon's tenants, with the number of connected clients that were started with another value.
pub(super) fn provisioning_status(
    daemon: &Daemon,
    tenants: &[Tenant],
    gpus: &[Gpu],
    clients: &[ClientView],
) -> Option<ProvisioningStatus> {
    let of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name);
    let with_another = |name: &TenantName, percentage: ThreadPercentage| {
        let of_tenant = clients.iter().filter(|client| client.tenant.as_ref() == Some(name));
        let another =
            of_tenant.filter(|client| client.started_with.percentage.is_some_and(|with| with != percentage));
        u64::try_from(another.count()).unwrap_or(u64::MAX)
    };
    shares::status(&daemon.spec, of_daemon.map(|tenant| (&tenant.name, &tenant.spec)), gpus, with_another)
}

/// Adds to a status the shares that the strategy of its daemon gives, and the conditions that follow from them.
pub(super) fn add_shares(status: &mut TenantStatus, tenant: &Tenant, provisioning: &ProvisioningStatus) {
    if let Some(share) = provisioning.shares.iter().find(|share| share.tenant == tenant.name) {
        status.conditions.extend(share_below_minimum(share, provisioning));
        if let Some(last) = status.verification.as_mut().and_then(|verification| verification.last.as_mut())
            && last.stale.is_none()
            && last.blocker.is_none()
            && percentage(&last.environment) != share.active_thread_percentage
        {
            last.stale = Some(Staleness::ShareChanged);
        }
    }
    status.provisioning = Some(provisioning.clone());
}

/// Removes the shares of all other tenants.
pub(super) fn keep_own_share(tenant: &TenantName, status: &mut TenantStatus) {
    if let Some(provisioning) = &mut status.provisioning {
        provisioning.shares.retain(|share| share.tenant == *tenant);
    }
}

impl Backend {
    /// Resolves a tenant's values; `basis` is that of its daemon.
    pub(super) fn resolved(
        &self,
        tenant: &Tenant,
        daemon: &Daemon,
        basis: Option<&ShareBasis>,
        gpus: &[Gpu],
    ) -> Result<Resolved> {
        let mut resolved = resolve(&tenant.spec, &daemon.spec, basis, gpus)
            .map_err(|error| ServiceError::Conflict(error.to_string()).visible_to_tenants())?;
        if let Some(share) = self.share_of(tenant, &resolved.gpus, daemon.generation)? {
            resolved.percentage = share;
        }
        let is_gone =
            |uuid: &&GpuUuid| uuid.is_mig() && !gpus.iter().any(|gpu| gpu.uuid == **uuid && gpu.present);
        if let Some(gone) = resolved.gpus.iter().find(is_gone) {
            let text = format!(
                "MIG instance {gone} of daemon {} is not there now: it has to be made again, or replaced by another (`mps-manager gpu replace`)",
                daemon.name
            );
            return Err(ServiceError::Conflict(text).visible_to_tenants());
        }
        if daemon.spec.mlopart {
            let devices = self.mlopart_devices_of(&daemon.name);
            let limit = |device: &GpuUuid| tenant.spec.memory_limit(&daemon.spec, device);
            let placed = resolved.on_devices(&devices, limit);
            placed.map_err(|error| ServiceError::Conflict(error.to_string()).visible_to_tenants())?;
        }
        Ok(resolved)
    }

    /// Returns the shares that the strategy of a daemon gives its tenants; `None` without a strategy.
    pub(in crate::service) async fn provisioning_of(
        &self,
        daemon: &Daemon,
    ) -> Result<Option<ProvisioningStatus>> {
        if !daemon.spec.provisioning.is_active() {
            return Ok(None);
        }
        let (tenants, gpus) = (self.stored_tenants().await?, self.held_gpus().await?);
        Ok(provisioning_status(daemon, &tenants, &gpus, &self.attributed().await?))
    }
}
