//! Emptying the partitions that a layout removes, before it is applied: their tenants admit no process meanwhile, and the present clients
//! are waited for. Other partitions keep theirs.

use std::collections::BTreeSet;

use super::daemon::handle;
use super::drain::{self, Emptied};
use super::engine::the_daemon;
use super::layout::DesiredLayoutChange;
use super::{Engine, Operation, Result, Stop};
use crate::domain::TenantName;
use crate::domain::count::enumerated;
use crate::domain::layout::plan::Action;
use crate::domain::maintenance::DrainLimit;
use crate::store::{self, transact};

/// Holds the tenants of the partitions that a change removes, and waits until these have no client.
pub(super) async fn run(
    engine: &Engine,
    operation: &Operation,
    change: &DesiredLayoutChange,
    limit: DrainLimit,
) -> Result<(), Stop> {
    engine.open_to_cancel(operation.id).await?;
    engine.step(operation.id, "hold back the tenants", hold(engine, operation, change)).await?;
    let emptied = Emptied::Partitions { daemon: the_daemon(operation)?, active: &change.active };
    drain::empty(engine, operation, &emptied, limit).await?;
    engine.close_to_cancel(operation.id).await
}

async fn hold(engine: &Engine, operation: &Operation, change: &DesiredLayoutChange) -> Result<((), String)> {
    let daemon = the_daemon(operation)?;
    let plan = Box::pin(engine.planned(daemon, &change.active)).await?;
    let bound = handle(engine, daemon)?
        .of_observed(|observed| observed.status.layout.clone())
        .map(|layout| layout.partitions);
    let removed = plan.steps.iter().map(|step| &step.step).filter(|step| step.action == Action::Remove);
    let mut tenants: BTreeSet<TenantName> = BTreeSet::new();
    for step in removed {
        let of_step = bound.iter().flatten().filter(|one| one.gpu == step.gpu && one.id == step.id);
        tenants.extend(of_step.flat_map(|partition| partition.tenants.clone()));
    }
    let tenants: Vec<TenantName> = tenants.into_iter().collect();
    let names = enumerated(&tenants.iter().map(TenantName::as_str).collect::<Vec<_>>());
    let id = operation.id;
    transact!(engine, change_daemon(operation), |db, _| {
        store::tenants::hold(db, id, &tenants).await?;
        Ok(None)
    })?;
    Ok(((), if names.is_empty() { "no tenant is in them".to_owned() } else { names }))
}

/// Has the tenants that the operation held admit processes again.
pub(super) async fn release(engine: &Engine, operation: &Operation) -> Result<((), String)> {
    let id = operation.id;
    transact!(engine, change_daemon(operation), |db, _| {
        store::tenants::release(db, id).await?;
        Ok(None)
    })?;
    Ok(((), "the tenants admit processes again".to_owned()))
}
