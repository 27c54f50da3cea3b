//! The desired value of a daemon, read in one transaction.

use super::{Db, Result, StoreError, daemons, gpus, layouts, maintenance, tenants};
use crate::domain::daemon::Daemon;
use crate::domain::gpu::Gpu;
use crate::domain::layout::Enforcement;
use crate::domain::maintenance::Maintenance;
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
    db: &mut Db,
    name: &DaemonName,
    present: &[Gpu],
    manager_uid: u32,
) -> Result<Option<Desired>> {
    let Some(daemon) = daemons::get(&mut *db, name).await? else { return Ok(None) };
    let gpus = gpus::all(&mut *db, present.to_vec()).await?;
    let tenants = tenants::of_daemon(&mut *db, name).await?;
    let maintenance = maintenance::get(&mut *db).await?;
    let tenants: Vec<&Tenant> = tenants.iter().collect();
    Ok(Some(desired_of(db, &daemon, &tenants, &gpus, maintenance.as_ref(), manager_uid).await?))
}

/// Returns the desired state of a daemon with these tenants.
pub async fn desired_of(
    db: &mut Db,
    daemon: &Daemon,
    tenants: &[&Tenant],
    gpus: &[Gpu],
    maintenance: Option<&Maintenance>,
    manager_uid: u32,
) -> Result<Desired> {
    let mut desired = without_directories(db, daemon, tenants, gpus, maintenance, manager_uid).await?;
    desired.directories = tenants.iter().map(|tenant| directory_tenant(tenant)).collect();
    let closed = tenants.iter().filter(|tenant| tenant.draining || tenant.held);
    desired.draining = closed.map(|tenant| tenant.directory.clone()).collect();
    Ok(desired)
}

/// Refuses a daemon with these tenants that has no desired state.
pub async fn check(
    db: &mut Db,
    daemon: &Daemon,
    tenants: &[&Tenant],
    gpus: &[Gpu],
    maintenance: Option<&Maintenance>,
    manager_uid: u32,
) -> Result<()> {
    without_directories(db, daemon, tenants, gpus, maintenance, manager_uid).await.map(drop)
}

/// Returns the desired state of a daemon with these tenants, but for their directories.
async fn without_directories(
    db: &mut Db,
    daemon: &Daemon,
    tenants: &[&Tenant],
    gpus: &[Gpu],
    maintenance: Option<&Maintenance>,
    manager_uid: u32,
) -> Result<Desired> {
    let Daemon { name, spec, generation, revision, .. } = daemon;
    let specs: Vec<_> = tenants.iter().map(|tenant| &tenant.spec).collect();
    // One that is only observed is another program's, and nothing is done to it.
    let maintenance = maintenance.filter(|held| !spec.is_observed() && held.covers(&spec.gpus));
    let state = maintenance.map(|maintenance| maintenance.state);
    let plan = plan::desired(name, *generation, spec, &specs, gpus, manager_uid, state);
    let unplannable =
        |error: InvalidValue| StoreError::Unplannable { daemon: name.clone(), detail: error.to_string() };
    let mut desired = plan.map_err(unplannable)?;
    desired.revision = *revision;
    desired.layout = layouts::desired(db, daemon, gpus).await?;
    if let Some(layout) =
        desired.layout.as_ref().filter(|layout| layout.enforcement == Enforcement::Percentage)
    {
        desired.percentage = plan::server_percentage(layout, spec, tenants, gpus).map_err(unplannable)?;
    }
    Ok(desired)
}
