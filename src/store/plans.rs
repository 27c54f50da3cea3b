//! The desired value of a daemon, read in one transaction.

use sqlx::SqliteConnection;

use super::{StoreError, daemons, gpus, layouts, maintenance, tenants};
use crate::domain::gpu::Gpu;
use crate::domain::layout::Enforcement;
use crate::domain::plan::{self, Desired, DirectoryTenant};
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, InvalidValue, TenantDirectory};

/// Returns the directory of a tenant with the tenant's name and user.
pub fn directory_tenant(tenant: &Tenant) -> (TenantDirectory, DirectoryTenant) {
    (tenant.directory.clone(), DirectoryTenant { name: tenant.name.clone(), uid: tenant.spec.uid })
}

/// Returns the present desired state of a daemon; `None` if there is no such daemon.
///
/// A GPU that is not in `present` is planned for with its last known state.
pub async fn desired(
    db: &mut SqliteConnection,
    name: &DaemonName,
    present: &[Gpu],
    manager_uid: u32,
) -> Result<Option<Desired>, StoreError> {
    let Some(daemon) = daemons::get(&mut *db, name).await? else { return Ok(None) };
    let gpus = gpus::all(&mut *db, present.to_vec()).await?;
    let tenants = tenants::of_daemon(&mut *db, name).await?;
    let specs: Vec<_> = tenants.iter().map(|tenant| tenant.spec.clone()).collect();
    let maintenance = maintenance::get(&mut *db).await?;
    // One that is only observed is another program's, and nothing is done to it.
    let maintenance =
        maintenance.filter(|maintenance| !daemon.spec.is_observed() && maintenance.covers(&daemon.spec.gpus));
    let state = maintenance.map(|maintenance| maintenance.state);
    let plan = plan::desired(name, daemon.generation, &daemon.spec, &specs, &gpus, manager_uid, state);
    let unplannable =
        |error: InvalidValue| StoreError::Unplannable { daemon: name.clone(), detail: error.to_string() };
    let mut desired = plan.map_err(unplannable)?;
    desired.revision = daemon.revision;
    desired.directories = tenants.iter().map(directory_tenant).collect();
    let draining = tenants.iter().filter(|tenant| tenant.draining);
    desired.draining = draining.map(|tenant| tenant.directory.clone()).collect();
    desired.layout = layouts::desired(db, &daemon, &gpus).await?;
    if let Some(layout) =
        desired.layout.as_ref().filter(|layout| layout.enforcement == Enforcement::Percentage)
    {
        desired.percentage =
            plan::server_percentage(layout, &daemon.spec, &tenants, &gpus).map_err(unplannable)?;
    }
    Ok(Some(desired))
}
