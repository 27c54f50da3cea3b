//! Completion of a host file: its transaction is committed, and this operation waits for the daemons and does the parts that take time.
//!
//! Layouts on daemons that run, and deletions of daemons, are operations of their own, which wait for their turn on a daemon, resume and
//! are rolled back like any other. The ID of each is written with it, so a manager that resumes this operation finds them again. A part
//! that fails does not stop the others; the end lists the parts that were done and those that were not.

use std::time::Duration;

use uuid::Uuid;

use super::{Engine, OperationFailure, Result, daemon, engine};
use crate::domain::count::counted;
use crate::domain::event::DomainEvent;
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::operation::{HostLayout, Operation, OperationRequest, OperationState};
use crate::domain::{DaemonName, LayoutName};
use crate::store::operations::CompletedStep;
use crate::store::{self, StoreError, transact};
use crate::supervisor::Observed;

/// Seconds that clients of a pruned daemon get: it had none when the file was accepted.
const GRACE_S: u32 = 10;
/// Longest wait for a layout that a new daemon starts with.
const LAYOUT: Duration = Duration::from_secs(120);

/// Work that remains after the transaction of a host file.
pub(super) struct AppliedSpec<'o> {
    pub(super) daemons: &'o [DaemonName],
    pub(super) layouts: &'o [HostLayout],
    pub(super) delete_daemons: &'o [DaemonName],
    pub(super) delete_layouts: &'o [LayoutName],
}

/// Outcome of the parts: the number that succeeded, and the reason of each that failed.
#[derive(Default)]
struct AppliedParts {
    done: usize,
    failed: Vec<String>,
}

impl AppliedParts {
    fn add(&mut self, part: &str, result: Result<()>) {
        match result {
            Ok(()) => self.done += 1,
            Err(why) => self.failed.push(format!("{part}: {why}")),
        }
    }
}

pub(super) async fn run(engine: &Engine, operation: &Operation, spec: AppliedSpec<'_>) -> Result<()> {
    let mut parts = AppliedParts::default();
    for name in spec.daemons {
        let name_of_part = format!("daemon {name}");
        parts.add(&name_of_part, await_daemon(engine, operation, name).await);
    }
    let applied = spec.layouts.iter().map(|layout| {
        let part = format!("layout {} of daemon {}", layout.layout, layout.daemon);
        (part, &layout.daemon, layout.request())
    });
    children(engine, operation, &mut parts, applied.collect()).await;
    let deleted = spec.delete_daemons.iter().map(|name| {
        (format!("deletion of daemon {name}"), name, OperationRequest::DeleteDaemon { grace_s: GRACE_S })
    });
    children(engine, operation, &mut parts, deleted.collect()).await;
    for name in spec.delete_layouts {
        let part = format!("deletion of layout {name}");
        let deleting = delete_layout(engine, operation.id, name.clone());
        parts.add(&part, engine.step(operation.id, &part, deleting).await);
    }
    if parts.failed.is_empty() {
        return Ok(());
    }
    let why = format!(
        "{} failed, and {} done: {}. What was done stays; compare the file again to see what is left, and apply it once the cause is \
         removed",
        counted(parts.failed.len(), "part"),
        if parts.done == 1 { "1 was".to_owned() } else { format!("{} were", parts.done) },
        parts.failed.join("; ")
    );
    Err(why.into())
}

/// Waits until a daemon is in its desired state, its layout included.
async fn await_daemon(engine: &Engine, operation: &Operation, name: &DaemonName) -> Result<()> {
    let waiting = async {
        // The commit may have been the last thing that an earlier manager did.
        engine.publish(name).await?;
        let handle = daemon::handle(engine, name)?;
        daemon::readiness(&handle).await?;
        let generation = handle.generation();
        let is_decided = |observed: &Observed| {
            let decided = |layout: &LayoutStatus| layout.generation >= generation && layout.is_decided();
            observed.status.layout.as_ref().is_none_or(decided)
        };
        let observed = handle.wait_for(LAYOUT, is_decided).await;
        let observed = observed.ok_or_else(|| format!("its layout was not applied within {LAYOUT:?}"))?;
        match &observed.status.layout {
            Some(layout) if layout.state == LayoutState::Failed => {
                let why = layout.failure.as_ref().map(|failure| failure.message.clone());
                Err(why.unwrap_or_else(|| "its layout could not be applied".to_owned()).into())
            }
            _ => Ok(((), "ready".to_owned())),
        }
    };
    engine.step(operation.id, &format!("daemon {name}"), waiting).await
}

/// Requests an operation for each of these daemons, which run side by side, and waits for all of them.
async fn children(
    engine: &Engine,
    operation: &Operation,
    parts: &mut AppliedParts,
    wanted: Vec<(String, &DaemonName, OperationRequest)>,
) {
    let mut requested = Vec::new();
    for (part, daemon, request) in wanted {
        match child(engine, operation, &part, daemon, request).await {
            Ok(id) => requested.push((part, id)),
            Err(why) => parts.add(&part, Err(why)),
        }
    }
    for (part, id) in requested {
        let waiting = async {
            let ended = ended(engine, id).await?;
            match (ended.state, ended.error) {
                (OperationState::Succeeded, _) => Ok(((), format!("operation {id} succeeded"))),
                (_, Some(why)) => Err(why.into()),
                (state, None) => Err(format!("operation {id} was {}", state.as_str()).into()),
            }
        };
        parts.add(&part, engine.step(operation.id, &part, waiting).await);
    }
}

/// Requests an operation, unless an earlier manager has done so; returns its ID.
async fn child(
    engine: &Engine,
    operation: &Operation,
    part: &str,
    daemon: &DaemonName,
    request: OperationRequest,
) -> Result<Uuid> {
    let step = format!("request: {part}");
    match operation.outcome_of(&step) {
        Some(id) => id.parse().map_err(|_| format!("{id:?} is not the ID of an operation").into()),
        None => request_child(engine, operation.id, step, daemon.clone(), request).await,
    }
}

/// Writes an operation together with its ID in the journal of the one that needs it.
async fn request_child(
    engine: &Engine,
    parent: Uuid,
    step: String,
    daemon: DaemonName,
    request: OperationRequest,
) -> Result<Uuid> {
    let (clock, id) = (engine.clock, engine.clock.new_id());
    transact!(engine.store, |db| {
        let now = clock.unix_ms();
        store::operations::insert(&mut *db, id, &[daemon], &request, None, now).await?;
        let cause = store::events::start_of(&mut *db, parent).await?;
        store::operations::requested(&mut *db, id, cause, now).await?;
        let note = CompletedStep { name: step, outcome: id.to_string() };
        store::operations::note_steps(db, parent, &[note], now).await?;
        Ok(())
    })?;
    engine.wake();
    Ok(id)
}

/// The operation at its end.
async fn ended(engine: &Engine, id: Uuid) -> Result<Operation> {
    let mut committed = engine.store.committed();
    loop {
        committed.borrow_and_update();
        let mut reader = engine.store.read().await?;
        let stored = store::operations::get(&mut reader, id).await?;
        drop(reader);
        let operation = stored.ok_or_else(|| format!("operation {id} is gone"))?;
        if operation.state.is_final() {
            return Ok(operation);
        }
        committed.changed().await.map_err(|_| StoreError::Closed)?;
    }
}

/// Deletes a layout that no daemon has any more.
async fn delete_layout(engine: &Engine, operation: Uuid, name: LayoutName) -> Result<((), String)> {
    let clock = engine.clock;
    transact!(engine.store, OperationFailure, |db| {
        let holders = store::daemons::with_layout(&mut *db, &name).await?;
        if !holders.is_empty() {
            return Err(format!("it is still on daemon {}", engine::names(&holders)).into());
        }
        let Some(newest) = store::layouts::newest(&mut *db, &name).await? else { return Ok(()) };
        store::layouts::delete(&mut *db, &name).await?;
        let event = DomainEvent::LayoutDeleted { layout: name, version: Some(newest.version) };
        let cause = store::events::start_of(&mut *db, operation).await?;
        store::events::append(db, &event.because(cause), clock.unix_ms()).await?;
        Ok(())
    })?;
    Ok(((), "deleted".to_owned()))
}
