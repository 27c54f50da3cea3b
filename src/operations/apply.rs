//! Applying a layout: planned on a fresh poll, written as desired, and waited for; reverted if it fails.

use super::daemon::handle;
use super::engine::the_daemon;
use super::layout::{
    ApplyFailed, Awaited, DesiredLayoutChange, READ_BACK, RemovedPartition, RunProgress, WRITE,
};
use super::{Engine, OperationFailure, Result, Stop, partition_drain};
use crate::domain::count::counted;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::layout::outlook::{Allowed, LayoutPlanStep};
use crate::domain::layout::plan::Action;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::maintenance::DrainLimit;
use crate::domain::operation::{Operation, Undo};
use crate::domain::partitions::PartitionRef;
use crate::store::operations::CompletedStep;

pub(super) async fn run(
    engine: &Engine,
    operation: &Operation,
    active: ActiveLayout,
    recreate: bool,
    drain: Option<DrainLimit>,
    undo: Option<Undo>,
) -> Result<(), Stop> {
    let change = DesiredLayoutChange { active, applied: None, recreate, from_empty: false };
    let done = match undo {
        Some(undo) => Err(undo.into()),
        None => Box::pin(drained_and_applied(engine, operation, change, drain)).await,
    };
    let Err(stop) = done else { return Ok(()) };
    if drain.is_some() && !engine.has_written(operation).await? {
        engine.undo(operation.id, || partition_drain::release(engine, operation)).await?;
    }
    back(engine, operation, stop).await
}

async fn drained_and_applied(
    engine: &Engine,
    operation: &Operation,
    change: DesiredLayoutChange,
    drain: Option<DrainLimit>,
) -> Result<(), Stop> {
    if let Some(limit) = drain
        && !engine.has_written(operation).await?
    {
        partition_drain::run(engine, operation, &change, limit).await?;
    }
    let (status, _) =
        apply(engine, operation, change).await.map_err(|(failed, _)| Stop::Failed(failed.why.into()))?;
    match engine.verify_shares(operation, status.as_ref()).await? {
        (_, None) => Ok(engine.complete(operation).await?),
        (_, Some(why)) => Err(Stop::Failed(why.into())),
    }
}

/// Plans, writes the desired state, and waits for it; an operation that has written it before only waits.
pub(super) async fn apply(
    engine: &Engine,
    operation: &Operation,
    change: DesiredLayoutChange,
) -> Result<(Option<LayoutStatus>, RunProgress), (ApplyFailed, RunProgress)> {
    let early = |why: OperationFailure| (ApplyFailed::from(why), RunProgress::default());
    let daemon = the_daemon(operation).map_err(early)?;
    let written = engine.has_written(operation).await.map_err(early)?;
    let (mut since, mut generation) = (None, None);
    // Of a run before this change, another manager may have written the commands.
    let wrote = operation.steps.iter().find(|step| step.name == WRITE && written);
    let from = wrote.map_or(0, |step| step.started_at);
    let desired = change.active.version_ref();
    if !written {
        let removed = plan(engine, operation, &change).await.map_err(early)?;
        since = handle(engine, daemon)
            .map_err(early)?
            .of_observed(|observed| observed.status.layout.as_ref()?.ran_at);
        let writing = async {
            let written = engine.write_change(operation, change, removed).await?;
            Ok::<_, OperationFailure>((written, format!("layout {desired}")))
        };
        generation = Some(engine.step(operation.id, WRITE, writing).await.map_err(early)?);
    }
    let handle = handle(engine, daemon).map_err(early)?;
    let generation = generation.unwrap_or_else(|| handle.generation());
    let awaited = Awaited { layout: Some(&desired), generation, since, from };
    let result = engine.reconcile(operation, &handle, awaited).await;
    let outcome = match &result {
        Ok((Some(status), ran)) => {
            let took = ran.duration_us.map_or_else(String::new, |us| format!(", {} ms", us.div_ceil(1000)));
            format!(
                "layout {desired}: {}, {}{took}",
                counted(status.partitions.len(), "partition"),
                counted(ran.executed_steps.len(), "command")
            )
        }
        Ok((None, _)) => format!("layout {desired}"),
        Err((failed, _)) => failed.why.clone(),
    };
    let noted = engine.note(operation, vec![CompletedStep { name: READ_BACK.to_owned(), outcome }]).await;
    match (result, noted) {
        (Ok((_, ran)), Err(why)) => Err((ApplyFailed::from(why), ran)),
        (result, _) => result,
    }
}

/// Plans the change on a fresh poll, and refuses it, with nothing changed, if the plan does; returns the partitions that it removes.
async fn plan(
    engine: &Engine,
    operation: &Operation,
    change: &DesiredLayoutChange,
) -> Result<Vec<RemovedPartition>> {
    let planning = async {
        let daemon = the_daemon(operation)?;
        let plan = engine.planned(daemon, &change.active).await?;
        if change.from_empty
            && let Some(message) = plan.not_empty()
        {
            return Err(message.into());
        }
        let refusals: Vec<&str> = plan
            .refusals(Allowed { recreate: change.recreate, drain: false })
            .map(|blocked| blocked.message.as_str())
            .collect();
        if !refusals.is_empty() {
            return Err(refusals.join("; ").into());
        }
        if plan.reserves_nothing {
            return Ok((Vec::new(), "no commands: its tenants get their thread percentages".to_owned()));
        }
        let commands = plan.steps.iter().filter(|step| step.step.action != Action::Keep).count();
        let removals = plan.steps.into_iter().filter(|step| step.step.action == Action::Remove);
        let removed = removals.filter_map(|LayoutPlanStep { step, .. }| {
            Some((PartitionRef { gpu: step.gpu, id: step.id? }, step.partition))
        });
        Ok::<_, OperationFailure>((removed.collect(), counted(commands, "command")))
    };
    engine.step(operation.id, "plan", planning).await
}

/// Reverts the change, and adds to the error which layout the daemon has now.
pub(super) async fn back(engine: &Engine, operation: &Operation, stop: Stop) -> Result<(), Stop> {
    match engine.change_of(operation).await {
        Ok(None) => return Err(stop),
        Ok(Some(_)) => {}
        Err(why) => tracing::error!(operation = %operation.id, %why, "what was changed is not known yet"),
    }
    let outcome = std::sync::Mutex::new(String::new());
    engine
        .undo(operation.id, || async {
            let back = engine.go_back(operation).await?;
            if let Ok(mut outcome) = outcome.lock() {
                outcome.clone_from(&back.1);
            }
            Ok(back)
        })
        .await?;
    let outcome = outcome.into_inner().unwrap_or_default();
    Err(match stop {
        Stop::Failed(why) => Stop::Failed(format!("{why}. The daemon has {outcome}").into()),
        Stop::Cancelled => Stop::Cancelled,
    })
}
