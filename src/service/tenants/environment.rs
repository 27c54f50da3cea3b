//! The environment of a tenant's processes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::TenantName;
use crate::domain::access::Right;
use crate::domain::environment::{self, container::ContainerAccess};
use crate::domain::gpu::Gpu;
use crate::domain::resolution::Resolved;
use crate::domain::tenant::Tenant;
use crate::service::access::context::RequestContext;
use crate::service::access::redaction::{AudienceText, Redacted};
use crate::service::host::startup::waiting_words;
use crate::service::tenants::conditions::refuse_closed;
use crate::service::tenants::placement::Placement;
use crate::service::tenants::provisioning::share_basis;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::supervisor::ClientDirectory;

/// The environment of a tenant's processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EnvironmentView {
    /// Variables to set, by name.
    pub variables: BTreeMap<String, String>,
    /// Variables to unset, and with them every other variable whose name begins with `CUDA_MPS_`: each would change the
    /// behaviour of the client.
    pub unset: Vec<String>,
    /// Settings that a container needs in addition to the variables; `null` if no container may get the socket.
    #[serde(default)]
    pub container: Option<ContainerAccess>,
    /// Reason why no container may get the socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container_refused: Option<String>,
    /// The tenant's CDI device, as `mps-manager.dev/tenant=web`, to be requested beside its GPUs; `null` if no CDI specification is
    /// kept, or no container may get the socket.
    #[serde(default)]
    pub cdi_device: Option<String>,
}

impl Service {
    /// The environment of a tenant's processes.
    pub async fn tenant_environment(
        &self,
        ctx: &RequestContext,
        name: &TenantName,
    ) -> Result<EnvironmentView> {
        let backend = self.with(&ctx.require(Right::ViewTenant(name))?);
        let tenant = backend.stored_tenant(name).await?;
        refuse_closed(&tenant, ctx.clock.unix_ms())?;
        let daemon = backend.followed_daemon(&tenant).await?;
        let gpus = backend.held_gpus().await?;
        let basis = share_basis(&daemon, &backend.stored_tenants().await?, &gpus)?;
        let resolved = backend.resolved(&tenant, &daemon, basis.as_ref(), &gpus)?;
        let placement = backend.proven_placement(&tenant, &resolved, daemon.generation).await?;
        let mut view = backend.environment_of(&tenant, &resolved, &placement, &gpus)?;
        let is_open =
            || backend.parts.fleet.context().handouts.open_directories().contains_key(&tenant.directory);
        if view.container.is_some() && view.cdi_device.is_none() && is_open() {
            // It may have become ready only now.
            backend.await_engine_files(name, tenant.generation).await;
            view.cdi_device = backend.cdi_device(name);
        }
        Ok(view)
    }
}

impl Backend {
    pub(super) fn environment_of(
        &self,
        tenant: &Tenant,
        resolved: &Resolved,
        placement: &Placement,
        gpus: &[Gpu],
    ) -> Result<EnvironmentView> {
        let directory = self.client_directory(tenant)?;
        Ok(self.environment_in(directory, tenant, resolved, placement, gpus))
    }

    pub(super) fn environment_in(
        &self,
        ClientDirectory { path, shared }: ClientDirectory,
        tenant: &Tenant,
        resolved: &Resolved,
        placement: &Placement,
        gpus: &[Gpu],
    ) -> EnvironmentView {
        let mut variables = environment::variables(tenant, resolved, &path.display().to_string());
        variables.extend(placement.variable());
        for (name, value) in &self.parts.fleet.context().extra_env {
            // The kernel of the simulated host is a directory that its processes must find.
            variables.push((name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        }
        let unset = environment::unset(&variables);
        let container = match &shared {
            None => {
                let mount = path.display().to_string();
                Some(ContainerAccess::of(mount, tenant.spec.uid, resolved, gpus, &variables))
            }
            Some(_) => None,
        };
        let refused = shared.map(|why| {
            format!("containers never get the daemon's own directory, where root is an operator of the daemon: {why}")
        });
        EnvironmentView {
            variables: variables.into_iter().collect(),
            unset,
            cdi_device: self.cdi_device(&tenant.name).filter(|_| container.is_some()),
            container,
            container_refused: refused,
        }
    }

    /// The client directory of a tenant, checked now.
    pub(super) fn client_directory(&self, tenant: &Tenant) -> Result<ClientDirectory> {
        if let Some(missing) = &self.parts.waiting_for_driver {
            return Err(ServiceError::Unavailable(waiting_words(missing)));
        }
        self.parts.fleet.context().handouts.client_directory(&tenant.directory).map_err(|problem| {
            let host = format!("tenant {} cannot be given its socket: {}", tenant.name, problem.message);
            let redacted = Redacted::NoSocket(&tenant.name, problem.reason);
            AudienceText::new(host, &redacted).error(ServiceError::Unavailable)
        })
    }
}
