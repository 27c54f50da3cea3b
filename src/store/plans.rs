//! The desired value of a daemon, read in one transaction.

use sqlx::SqliteConnection;

use super::{StoreError, daemons, maintenance, parsed, tenants};
use crate::domain::DaemonName;
use crate::domain::gpu::Gpu;
use crate::domain::plan::{self, Desired};

/// What the daemon should hold now; `None` when there is no such daemon.
pub async fn desired(
    db: &mut SqliteConnection,
    name: &DaemonName,
    gpus: &[Gpu],
    manager_uid: u32,
) -> Result<Option<Desired>, StoreError> {
    let Some(daemon) = daemons::get(&mut *db, name).await? else { return Ok(None) };
    let tenants: Vec<_> =
        tenants::of_daemon(&mut *db, name).await?.into_iter().map(|tenant| tenant.spec).collect();
    let maintenance = maintenance::get(db).await?;
    let maintenance = maintenance.filter(|maintenance| maintenance.covers(&daemon.spec.gpus));
    let state = maintenance.map(|maintenance| maintenance.state);
    let plan = plan::desired(name, daemon.generation, &daemon.spec, &tenants, gpus, manager_uid, state);
    Ok(Some(parsed("a tenant's share that its GPU cannot give", plan)?))
}
