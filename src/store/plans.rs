//! The desired value of a daemon, read in one transaction.

use sqlx::SqliteConnection;

use super::{StoreError, daemons, gpus, layouts, maintenance, tenants};
use crate::domain::DaemonName;
use crate::domain::gpu::Gpu;
use crate::domain::plan::{self, Desired};

/// What the daemon should hold now; `None` when there is no such daemon.
///
/// A GPU that is not among `present` is planned for as it was when it was last seen.
pub async fn desired(
    db: &mut SqliteConnection,
    name: &DaemonName,
    present: &[Gpu],
    manager_uid: u32,
) -> Result<Option<Desired>, StoreError> {
    let Some(daemon) = daemons::get(&mut *db, name).await? else { return Ok(None) };
    let gpus = gpus::all(&mut *db, present.to_vec()).await?;
    let tenants: Vec<_> =
        tenants::of_daemon(&mut *db, name).await?.into_iter().map(|tenant| tenant.spec).collect();
    let maintenance = maintenance::get(&mut *db).await?;
    // One that is only observed is somebody else's, and nothing is done to it.
    let maintenance =
        maintenance.filter(|maintenance| !daemon.spec.is_observed() && maintenance.covers(&daemon.spec.gpus));
    let state = maintenance.map(|maintenance| maintenance.state);
    let plan = plan::desired(name, daemon.generation, &daemon.spec, &tenants, &gpus, manager_uid, state);
    let mut desired =
        plan.map_err(|error| StoreError::Unplannable { daemon: name.clone(), detail: error.to_string() })?;
    desired.layout = layouts::desired(db, &daemon, &gpus).await?;
    Ok(Some(desired))
}
