//! Starting, stopping, restarting and forgetting a daemon.

use std::sync::Arc;
use std::time::Duration;

use super::engine::{names, the_daemon};
use super::{Engine, OperationFailure, Result};
use crate::domain::DaemonName;
use crate::domain::condition::{self, ConditionReason};
use crate::domain::daemon::{DaemonSpec, DaemonStatus, DesiredState, Phase};
use crate::domain::operation::{Operation, STOP};
use crate::store::{self, transact};
use crate::supervisor::{Handle, Observed};

/// Longest time for a daemon to become ready: a server of eight GPUs takes about three seconds.
const READY: Duration = Duration::from_secs(120);
/// Added to the grace for signals and clean-up.
const STOP_MARGIN: Duration = Duration::from_secs(60);

pub(super) async fn start(engine: &Engine, operation: &Operation) -> Result<()> {
    engine
        .step(operation.id, "write desired state", write_state(engine, operation, DesiredState::Running))
        .await?;
    await_ready(engine, operation, |_| true).await
}

/// Waits until the daemon is ready, in a process that will do.
async fn await_ready(
    engine: &Engine,
    operation: &Operation,
    will_do: impl Fn(&DaemonStatus) -> bool,
) -> Result<()> {
    let handle = handle(engine, the_daemon(operation)?)?;
    let is_ready = |status: &DaemonStatus| status.phase == Phase::Ready && will_do(status);
    let ready = async {
        let status = wait_until(engine, operation, &handle, READY, is_ready).await;
        let status = status.map_err(|why| format!("not ready{why}"))?;
        Ok(((), format!("generation {} read back", status.observed_generation)))
    };
    engine.step(operation.id, "wait until ready", ready).await
}

pub(super) async fn stop(engine: &Engine, operation: &Operation, grace_s: u32) -> Result<()> {
    let handle = handle(engine, the_daemon(operation)?)?;
    handle.set_grace(grace_s);
    engine
        .step(operation.id, "write desired state", write_state(engine, operation, DesiredState::Stopped))
        .await?;
    engine.step(operation.id, STOP, stopped(&handle, grace_s)).await
}

pub(super) async fn restart(engine: &Engine, operation: &Operation, grace_s: u32) -> Result<()> {
    let handle = handle(engine, the_daemon(operation)?)?;
    // After a restart of the manager the running process is found before it is judged.
    let observed = handle.wait_for(READY, |observed| observed.status.phase != Phase::Unknown).await;
    let before = observed
        .ok_or_else(|| format!("daemon {} was not polled within {READY:?}", names(&operation.daemons)))?
        .status;
    if before.phase == Phase::Stopped {
        let daemon = names(&operation.daemons);
        return Err(format!("daemon {daemon} is stopped, as its spec says: start it instead").into());
    }
    let timeout = Duration::from_secs(grace_s.into()) + STOP_MARGIN;
    let old = match operation.outcome_of(NOTE) {
        Some(old) => old.to_owned(),
        None => {
            let old = before.pid.map_or_else(|| "none".to_owned(), |pid| pid.to_string());
            engine.step(operation.id, NOTE, async { Ok::<_, OperationFailure>((old.clone(), old)) }).await?
        }
    };
    let another = |status: &DaemonStatus| status.pid.is_some_and(|pid| pid.to_string() != old);
    engine
        .step(operation.id, STOP, async {
            if !another(&handle.observed().status) {
                handle.set_grace(grace_s);
                handle.restart().await?;
            }
            let replaced = wait_until(engine, operation, &handle, timeout, another).await;
            let status = replaced.map_err(|why| format!("no new control process{why}"))?;
            Ok::<_, OperationFailure>(((), format!("replaced by process {}", status.pid.unwrap_or_default())))
        })
        .await?;
    await_ready(engine, operation, another).await
}

/// Name of the step of a restart that records the process to replace, for a manager that resumes the restart.
const NOTE: &str = "note the running process";

/// Name of the step of a deletion that records whether the daemon should run if it cannot be deleted.
const NOTE_STATE: &str = "note the desired state";

/// Name of the step of a deletion that removes the daemon.
const FORGET: &str = "forget";

pub(super) async fn delete(engine: &Engine, operation: &Operation, grace_s: u32) -> Result<()> {
    let before = match operation.outcome_of(NOTE_STATE) {
        // An earlier manager may have died between forgetting the daemon and saying so.
        Some(_) if is_forgotten(engine, operation).await? => return Ok(()),
        Some(before) => before.to_owned(),
        None => {
            engine
                .step(operation.id, NOTE_STATE, async {
                    let name = the_daemon(operation)?;
                    let mut reader = engine.store.read().await?;
                    let daemon = store::daemons::get(&mut reader, name).await?;
                    let state = daemon.ok_or_else(|| format!("daemon {name} is gone"))?.spec.desired_state;
                    let word = summary(state);
                    Ok::<_, OperationFailure>((word.clone(), word))
                })
                .await?
        }
    };
    let deleted = take_away(engine, operation, grace_s).await;
    let Err(why) = deleted else { return Ok(()) };
    if before == summary(DesiredState::Running) {
        // It is still there, so it is to be what it was.
        let back = write_state(engine, operation, DesiredState::Running);
        let back = engine.step(operation.id, "write the desired state back", back).await;
        back.map_err(|back| format!("{why}; and its desired state stays stopped: {back}"))?;
    }
    Err(why)
}

/// Returns true if the daemon to delete no longer exists; another daemon of that name may have been created since.
async fn is_forgotten(engine: &Engine, operation: &Operation) -> Result<bool> {
    if operation.outcome_of(FORGET).is_some() {
        return Ok(true);
    }
    let mut reader = engine.store.read().await?;
    let daemon = store::daemons::get(&mut reader, the_daemon(operation)?).await?;
    Ok(daemon.is_none_or(|daemon| daemon.created_at > operation.created_at))
}

fn summary(state: DesiredState) -> String {
    format!("{state:?}").to_lowercase()
}

async fn take_away(engine: &Engine, operation: &Operation, grace_s: u32) -> Result<()> {
    stop(engine, operation, grace_s).await?;
    let (id, name, clock) = (operation.id, the_daemon(operation)?.clone(), engine.clock);
    let forget = async {
        let revision = transact!(engine.store, OperationFailure, |db| {
            if !store::tenants::of_daemon(&mut *db, &name).await?.is_empty() {
                let why =
                    "a tenant was put on the daemon meanwhile: delete or move it, then delete the daemon";
                return Err(why.to_owned().into());
            }
            let daemon = store::daemons::get(&mut *db, &name).await?;
            if let Some(daemon) = &daemon {
                store::operations::daemon_deleted(&mut *db, id, daemon, clock.unix_ms()).await?;
            }
            store::daemons::delete(db, &name, clock.unix_ms()).await?;
            Ok(daemon.map(|daemon| daemon.revision))
        })?;
        Ok::<_, OperationFailure>((revision, "forgotten".to_owned()))
    };
    let revision = engine.step(operation.id, FORGET, forget).await?;
    engine.fleet.forget(the_daemon(operation)?, revision);
    // A caller may have created a daemon of that name between the two lines above, and published it to the driver
    // that has just been ended.
    engine.publish(the_daemon(operation)?).await
}

/// The handle of a daemon's driver.
pub(super) fn handle(engine: &Engine, daemon: &DaemonName) -> Result<Handle> {
    engine.fleet.get(daemon).ok_or_else(|| format!("daemon {daemon} is gone").into())
}

/// Writes whether the daemon should run, and publishes it.
async fn write_state(engine: &Engine, operation: &Operation, state: DesiredState) -> Result<((), String)> {
    transact!(engine, change_daemon(operation), |_, spec| {
        Ok((spec.desired_state != state).then_some(DaemonSpec { desired_state: state, ..spec }))
    })?;
    Ok(((), summary(state)))
}

/// Waits until the daemon is in its desired state, or something blocks it that needs an operator.
pub(super) async fn readiness(handle: &Handle) -> Result<()> {
    let desired = handle.generation();
    let has_started = |status: &DaemonStatus| match status.phase {
        // What was published last may be from before the newest generation.
        Phase::Ready => status.observed_generation >= desired,
        phase => matches!(phase, Phase::Blocked | Phase::CrashLoop) || has_no_server(status),
    };
    match handle.wait_for(READY, |observed| has_started(&observed.status)).await {
        Some(observed) if observed.status.phase == Phase::Ready => Ok(()),
        Some(observed) => Err(words(&observed.status).into()),
        None => Err(format!("not ready within {READY:?}: {}", words(&handle.observed().status)).into()),
    }
}

/// Retries at once and waits until `done`. Fails if a blocker needs an operator; other blockers go into the journal. The
/// error completes the sentence of the caller ("not ready …").
async fn wait_until(
    engine: &Engine,
    operation: &Operation,
    handle: &Handle,
    timeout: Duration,
    done: impl Fn(&DaemonStatus) -> bool,
) -> Result<Arc<DaemonStatus>> {
    let mut reported: Option<String> = None;
    let waiting = async {
        let tried = handle.try_again().await.map_err(|error| format!(": {error}"))?;
        loop {
            let is_new = |message: &String| reported.as_ref() != Some(message);
            let keeps_failing = |latest: &Observed| latest.has_tried(tried) && has_no_server(&latest.status);
            let news = |observed: &Observed| {
                done(&observed.status)
                    || keeps_failing(observed)
                    || observed.blocker(tried).is_some_and(|blocker| is_new(&blocker.message))
            };
            // The whole has a timeout of its own.
            let Some(observed) = handle.wait_for(timeout, news).await else {
                return std::future::pending().await;
            };
            if keeps_failing(&observed) {
                return Err(format!(": {}", words(&observed.status)).into());
            }
            let Some(blocker) = observed.blocker(tried).filter(|_| !done(&observed.status)) else {
                return Ok(observed.status);
            };
            if blocker.needs_operator() {
                return Err(format!(
                    ": {}. It is to run from now on, and is started as soon as this is out of the way",
                    blocker.message
                )
                .into());
            }
            engine.waits_for(operation.id, format!("waits: {}", blocker.message)).await;
            reported = Some(blocker.message.clone());
        }
    };
    match tokio::time::timeout(timeout, waiting).await {
        Ok(ended) => ended,
        Err(_) => Err(format!(" within {timeout:?}: {}", words(&handle.observed().status)).into()),
    }
}

pub(super) async fn stopped(handle: &Handle, grace_s: u32) -> Result<((), String)> {
    let timeout = Duration::from_secs(grace_s.into()) + STOP_MARGIN;
    match handle.wait_for(timeout, |observed| observed.status.phase == Phase::Stopped).await {
        Some(_) => Ok(((), "stopped".to_owned())),
        None => Err(format!("not stopped within {timeout:?}: {}", words(&handle.observed().status)).into()),
    }
}

/// Returns true if the daemon stays without a server because each one exits as soon as it is started.
fn has_no_server(status: &DaemonStatus) -> bool {
    condition::ready(&status.conditions).is_some_and(|ready| ready.reason == ConditionReason::ServerExits)
}

/// Returns the message of the daemon's `Ready` condition, for the message of a failure.
fn words(status: &DaemonStatus) -> String {
    condition::ready(&status.conditions).map(|condition| condition.message.clone()).unwrap_or_default()
}
