//! Maintenance of the host: its daemons are drained and stopped, the driver is released, and all of it is started again.
//!
//! The progress is one row of the store, which determines the desired state of the daemons. A step does nothing if the row shows that it
//! was taken, so a manager that resumes a maintenance simply goes through all steps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::Instant;

use super::daemon::{handle, readiness, stopped};
use super::drain::{self, Emptied};
use super::engine::names;
use super::holders::Holders;
use super::{Engine, OperationFailure, Result, Stop};
use crate::domain::count::{counted, joined};
use crate::domain::daemon::{Daemon, DesiredState};
use crate::domain::event::DomainEvent;
use crate::domain::maintenance::{DeviceHolder, DrainLimit, Maintenance, MaintenanceState};
use crate::domain::operation::{Operation, Undo};
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::{Inventory, InventoryError, Suspendable, SuspendedGpus, TimeLimited};
use crate::store::{self, Transaction, transact};

/// Longest time for which a process of ours that is about to exit may keep a GPU open.
const PROCESS_EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for the compute modes to be restored, including one failure that is tried again.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time for which the driver may not answer before the operation fails.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(15);
/// Longest wait for the driver's pending calls, which have to end before it is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two scans for holders.
const POLL: Duration = Duration::from_millis(200);
/// Maximum number of processes that a message names.
const NAMED: usize = 16;

pub(super) async fn begin(
    engine: &Engine,
    operation: &Operation,
    gpus: &[GpuUuid],
    limit: DrainLimit,
    undo: Option<Undo>,
) -> Result<(), Stop> {
    let begun = match undo {
        Some(undo) => Err(undo.into()),
        None => take_down(engine, operation, gpus, limit).await,
    };
    let Err(stop) = begun else { return Ok(()) };
    engine.undo(operation.id, || undone(engine)).await?;
    Err(stop)
}

async fn take_down(
    engine: &Engine,
    operation: &Operation,
    gpus: &[GpuUuid],
    limit: DrainLimit,
) -> Result<(), Stop> {
    let id = operation.id;
    let now = state(engine).await?;
    if now.is_none_or(|now| now == MaintenanceState::Draining) {
        engine.step(id, "see who has the GPUs open", foresee(engine, gpus)).await?;
        engine.open_to_cancel(id).await?;
        let maintenance = Maintenance {
            operation: id,
            state: MaintenanceState::Draining,
            gpus: gpus.to_vec(),
            since: engine.clock.unix_ms(),
        };
        engine
            .step(id, "cordon", async {
                let put =
                    transact!(engine, write_maintenance(), |db, _| store::maintenance::put(db, &maintenance)
                        .await);
                let daemons = put?;
                Ok::<_, OperationFailure>(((), format!("no new clients on {}", listed(&daemons))))
            })
            .await?;
        loop {
            let emptied = covered(engine).await?;
            drain::empty(engine, operation, &Emptied::GoingDown(&emptied), limit).await?;
            engine.close_to_cancel(id).await?;
            if hold_down(engine, emptied).await? {
                break;
            }
            // A daemon has come to these GPUs meanwhile, and its clients were not checked.
            engine.open_to_cancel(id).await?;
        }
    }
    if state(engine).await? != Some(MaintenanceState::Active) {
        engine.step(id, "quit the daemons", quit(engine)).await?;
        engine.step(id, "restore compute modes", restored(engine, gpus)).await?;
        engine.step(id, "release the driver", release_driver(engine)).await?;
    }
    engine.step(id, "prove that nothing of ours has a GPU open", prove(engine, gpus)).await?;
    Ok(())
}

/// Writes that the covered daemons stay down from now on, if they are the ones that were emptied; false if not.
async fn hold_down(engine: &Engine, emptied: Vec<DaemonName>) -> Result<bool> {
    transact!(engine, write_maintenance(), |db, before| {
        let Some(before) = before else { return Ok(()) };
        let covered = store::daemons::managed_on(&mut *db, &before.gpus).await?;
        if covered.iter().all(|daemon| emptied.contains(daemon)) {
            let state = MaintenanceState::Quitting;
            store::maintenance::put(db, &Maintenance { state, ..before }).await?;
        }
        Ok(())
    })?;
    Ok(state(engine).await? == Some(MaintenanceState::Quitting))
}

/// Stops every daemon that the maintenance covers.
async fn quit(engine: &Engine) -> Result<((), String)> {
    let daemons = covered(engine).await?;
    let grace_s = engine.fleet.context().grace_s;
    let stops = daemons.iter().map(|daemon| async move {
        let done = stopped(&handle(engine, daemon)?, grace_s).await;
        done.map(drop).map_err(|why| OperationFailure::from(format!("daemon {daemon}: {why}")))
    });
    let failures = failures(join_all(stops).await);
    if failures.is_empty() {
        return Ok(((), format!("{} stopped", listed(&daemons))));
    }
    Err(failures.join("; ").into())
}

/// Waits until the drivers have restored the compute modes that were ours, as each does when its daemon is stopped.
///
/// The mode of a missing GPU is restored when the GPU is back.
async fn restored(engine: &Engine, gpus: &[GpuUuid]) -> Result<((), String)> {
    let until = Instant::now() + RESTORE_TIMEOUT;
    loop {
        let ours = engine.fleet.context().modes.among(gpus);
        if ours.is_empty() {
            return Ok(((), restored_modes(&ours)));
        }
        let present = answered(engine, until, Inventory::gpus).await?;
        let (held, missing): (Vec<GpuUuid>, Vec<GpuUuid>) =
            ours.into_iter().partition(|gpu| present.iter().any(|present| present.uuid == *gpu));
        if held.is_empty() {
            return Ok(((), restored_modes(&missing)));
        }
        if Instant::now() > until {
            return Err(format!("the compute mode of {} was not restored: see the log", uuids(&held)).into());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn restored_modes(missing: &[GpuUuid]) -> String {
    if missing.is_empty() {
        return "no compute mode of these GPUs is ours".to_owned();
    }
    format!(
        "no compute mode of the GPUs that are here is ours; that of {}, which is missing, is restored when it is here again",
        uuids(missing)
    )
}

fn uuids(gpus: &[GpuUuid]) -> String {
    joined(gpus, ", ")
}

/// Closes the driver, after the state of the GPUs to report meanwhile has been written.
async fn release_driver(engine: &Engine) -> Result<((), String)> {
    let remembered: SuspendedGpus =
        answered(engine, Instant::now() + DRIVER_TIMEOUT, TimeLimited::remember).await?;
    let text = serde_json::to_string(&remembered)?;
    transact!(engine, write_maintenance(), |db, _| store::maintenance::put_active(db, &text).await)?;
    let inventory = Arc::clone(&engine.inventory);
    let closed = blocking(move || inventory.suspend(remembered, CLOSE_TIMEOUT)).await?;
    closed.map_err(|error| format!("the driver could not be released: {error}"))?;
    Ok(((), "the driver is not queried from now on".to_owned()))
}

/// Fails, before any client loses work, if a process of ours that stopping these daemons does not end has a GPU open; otherwise returns a
/// list of the other processes that have.
async fn foresee(engine: &Engine, gpus: &[GpuUuid]) -> Result<((), String)> {
    let mut reader = engine.store.read().await?;
    let stopped = store::daemons::managed_on(&mut reader, gpus).await?;
    drop(reader);
    let holders = unheld(engine, gpus, |holder| holder.outlasts(&stopped)).await?;
    let others: Vec<&DeviceHolder> = holders.processes.iter().filter(|holder| !holder.ours).collect();
    let outcome = if others.is_empty() {
        "only processes of ours have".to_owned()
    } else {
        format!(
            "beside processes of ours: {}; those that are no clients of ours have to be ended by you",
            words(&others)
        )
    };
    Ok(((), outcome))
}

/// Waits until no process of ours has any of the GPUs open.
async fn prove(engine: &Engine, gpus: &[GpuUuid]) -> Result<((), String)> {
    let holders = unheld(engine, gpus, |holder| holder.ours).await?;
    Ok(((), proven(&holders)))
}

/// Waits until no process of ours that is meant has any of the GPUs open; returns who else has.
async fn unheld(engine: &Engine, gpus: &[GpuUuid], meant: impl Fn(&DeviceHolder) -> bool) -> Result<Holders> {
    let until = Instant::now() + PROCESS_EXIT_TIMEOUT;
    loop {
        let holders = engine.holders(gpus).await?;
        let left: Vec<&DeviceHolder> = holders.processes.iter().filter(|holder| meant(holder)).collect();
        if left.is_empty() {
            return Ok(holders);
        }
        if Instant::now() > until {
            let beyond: BTreeSet<&str> =
                left.iter().filter_map(|holder| Some(holder.daemon.as_ref()?.as_str())).collect();
            let remedy = if beyond.is_empty() {
                "end them, or find out what keeps them".to_owned()
            } else {
                let beyond = joined(beyond, ", ");
                format!("they are of {beyond}, so take all of its GPUs into the maintenance")
            };
            return Err(
                format!("processes of ours have the device files open: {}; {remedy}", words(&left)).into()
            );
        }
        tokio::time::sleep(POLL).await;
    }
}

fn proven(Holders { processes, unexamined, unproven }: &Holders) -> String {
    let others: Vec<&DeviceHolder> = processes.iter().collect();
    let mut outcome = vec!["no process of ours has the device files open".to_owned()];
    if !unproven.is_empty() {
        outcome.push(format!(
            "not proven for {}, whose device file is not known or not there: check them yourself",
            uuids(unproven)
        ));
    }
    if !others.is_empty() {
        outcome.push(format!("others that have: {}", words(&others)));
    }
    if *unexamined > 0 {
        outcome.push(format!("{} of other users could not be examined", counted(*unexamined, "process")));
    }
    outcome.join("; ")
}

/// Undoes a maintenance that failed or was cancelled.
async fn undone(engine: &Engine) -> Result<((), String)> {
    if state(engine).await?.is_none() {
        return Ok(((), "nothing was changed".to_owned()));
    }
    open_driver(engine).await?;
    let daemons = transact!(engine, write_maintenance(), |db, _| store::maintenance::delete(db).await)?;
    Ok(((), format!("{} as before", listed(&daemons))))
}

async fn open_driver(engine: &Engine) -> Result<()> {
    let inventory = Arc::clone(&engine.inventory);
    let opened = blocking(move || inventory.resume()).await?;
    opened.map_err(|error| {
        format!("the driver cannot be queried again, so the maintenance stays: {error}").into()
    })
}

pub(super) async fn end(engine: &Engine, operation: &Operation) -> Result<()> {
    let id = operation.id;
    if state(engine).await?.is_none() {
        // The previous manager finished the maintenance and died before it recorded that.
        return Ok(());
    }
    engine
        .step(id, "open the driver", async {
            open_driver(engine).await?;
            Ok::<_, OperationFailure>(((), "the driver is queried again".to_owned()))
        })
        .await?;
    engine
        .step(id, "start the daemons", async {
            let daemons = transact!(engine, write_maintenance(), |db, before| {
                let Some(before) = before else { return Ok(()) };
                let state = MaintenanceState::Ending;
                store::maintenance::put(db, &Maintenance { state, ..before }).await
            })?;
            Ok::<_, OperationFailure>(((), format!("{} are what their specs say", listed(&daemons))))
        })
        .await?;
    let unready = engine
        .step(id, "wait until ready", async {
            let unready = unready(engine).await?;
            let outcome = if unready.is_empty() { "all are ready".to_owned() } else { unready.join("; ") };
            Ok::<_, OperationFailure>((unready, outcome))
        })
        .await?;
    engine
        .step(id, "take clients again", async {
            let daemons =
                transact!(engine, write_maintenance(), |db, _| store::maintenance::delete(db).await)?;
            Ok::<_, OperationFailure>(((), format!("{} as their specs say", listed(&daemons))))
        })
        .await?;
    if unready.is_empty() {
        return Ok(());
    }
    Err(format!("the maintenance is over, but not every daemon became ready: {}", unready.join("; ")).into())
}

/// Waits for each covered daemon that should run, and returns the reason of each that does not become ready.
async fn unready(engine: &Engine) -> Result<Vec<String>> {
    let Some(maintenance) = current(engine).await? else { return Ok(Vec::new()) };
    let mut daemons = store::daemons::all(&mut *engine.store.read().await?).await?;
    daemons.retain(|Daemon { spec, .. }| {
        !spec.is_observed() && maintenance.covers(&spec.gpus) && spec.desired_state == DesiredState::Running
    });
    let waits = daemons.iter().map(|Daemon { name, .. }| async move {
        let ready = readiness(&handle(engine, name)?).await;
        ready.map_err(|why| OperationFailure::from(format!("daemon {name}: {why}")))
    });
    Ok(failures(join_all(waits).await))
}

/// Returns the messages of the failures.
fn failures(results: Vec<Result<()>>) -> Vec<String> {
    results.into_iter().filter_map(Result::err).map(|failure| failure.to_string()).collect()
}

impl Engine {
    /// Changes how far the maintenance is and, in the same transaction, raises the generation of each daemon that it covers;
    /// publishes what they should be after the commit, and returns them.
    async fn write_maintenance<F>(&self, change: F) -> Result<Vec<DaemonName>>
    where
        F: for<'c> FnOnce(Transaction<'c>, Option<Maintenance>) -> BoxFuture<'c, store::Result<()>>
            + Send
            + 'static,
    {
        let gpus = self.gpus().await?;
        let (manager_uid, clock) = (self.manager_uid, self.clock);
        let desired = transact!(self.store, |db| {
            let before = store::maintenance::get(&mut *db).await?;
            change(&mut *db, before.clone()).await?;
            let after = store::maintenance::get(&mut *db).await?;
            if let Some(event) = maintenance_event(before.as_ref(), after.as_ref()) {
                store::events::append(&mut *db, &event.into(), clock.unix_ms()).await?;
            }
            let mut desired = Vec::new();
            for daemon in store::daemons::all(&mut *db).await? {
                let covers = |maintenance: &Maintenance| maintenance.covers(&daemon.spec.gpus);
                if !daemon.spec.is_observed() && before.iter().chain(&after).any(covers) {
                    store::daemons::touch(&mut *db, &[&daemon.name]).await?;
                    desired.extend(store::plans::desired(&mut *db, &daemon.name, &gpus, manager_uid).await?);
                }
            }
            Ok(desired)
        })?;
        let daemons = desired.iter().map(|desired| desired.name.clone()).collect();
        for desired in desired {
            self.fleet.publish(desired, None);
        }
        Ok(daemons)
    }
}

async fn current(engine: &Engine) -> Result<Option<Maintenance>> {
    let mut reader = engine.store.read().await?;
    Ok(store::maintenance::get(&mut reader).await?)
}

async fn state(engine: &Engine) -> Result<Option<MaintenanceState>> {
    Ok(current(engine).await?.map(|maintenance| maintenance.state))
}

/// The daemons that the maintenance covers now: one may have been created since it began.
async fn covered(engine: &Engine) -> Result<Vec<DaemonName>> {
    let Some(maintenance) = current(engine).await? else { return Ok(Vec::new()) };
    let mut reader = engine.store.read().await?;
    Ok(store::daemons::managed_on(&mut reader, &maintenance.gpus).await?)
}

/// Runs work that may wait for the driver or the kernel on a thread where that blocks nothing else.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    Ok(tokio::task::spawn_blocking(work).await?)
}

/// Queries the driver, and retries until the deadline while it is silent.
async fn answered<T: Send + 'static>(
    engine: &Engine,
    until: Instant,
    call: fn(&TimeLimited<Suspendable>) -> Result<T, InventoryError>,
) -> Result<T> {
    loop {
        let inventory = Arc::clone(&engine.inventory);
        match blocking(move || call(&inventory)).await? {
            Ok(answer) => return Ok(answer),
            Err(InventoryError::Silent { .. }) if Instant::now() < until => tokio::time::sleep(POLL).await,
            Err(error) => return Err(error.into()),
        }
    }
}

fn listed(daemons: &[DaemonName]) -> String {
    if daemons.is_empty() { "no daemon".to_owned() } else { names(daemons) }
}

fn words(holders: &[&DeviceHolder]) -> String {
    let named: Vec<String> = holders.iter().take(NAMED).map(ToString::to_string).collect();
    let more = holders.len().saturating_sub(NAMED);
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

/// The event for a change of the maintenance.
fn maintenance_event(before: Option<&Maintenance>, after: Option<&Maintenance>) -> Option<DomainEvent> {
    let active = |maintenance: &&Maintenance| maintenance.state == MaintenanceState::Active;
    match (before, after) {
        (None, Some(now)) => Some(DomainEvent::MaintenanceBegun(now.clone())),
        (Some(before), None) => Some(DomainEvent::MaintenanceEnded(before.clone())),
        (Some(before), Some(now)) if active(&now) && !active(&before) => {
            Some(DomainEvent::MaintenanceActive(now.clone()))
        }
        _ => None,
    }
}
