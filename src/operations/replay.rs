//! Replaying a layout: from empty GPUs, held to the recorded IDs, with a record of its own.

use uuid::Uuid;

use super::apply::{apply, back};
use super::layout::DesiredLayoutChange;
use super::{Engine, Result, Stop};
use crate::domain::layout::document::PartitionShare;
use crate::domain::layout::replay::{Replay, Verdict};
use crate::domain::operation::{Operation, Undo};
use crate::store::operations::CompletedStep;
use crate::store::{self, transact};

/// The step that compares what was seen with what is recorded.
const COMPARE: &str = "compare";

pub(super) async fn run(
    engine: &Engine,
    operation: &Operation,
    replay: Uuid,
    undo: Option<Undo>,
) -> Result<(), Stop> {
    let replay = recorded(engine, replay).await?;
    let is_judged = replay.verdict != Verdict::Pending;
    let given_up = |replay: Replay, why: String| {
        let (steps, took) = engine.commands_since(&replay.daemon, &replay.version_ref(), replay.created_at);
        replay.given_up(why, None, steps, took)
    };
    let (replay, why) = match undo {
        // Judged once: what the daemon holds by now may be of a later run.
        Some(undo) if is_judged => (replay, Some(undo.into())),
        None if is_judged => {
            let why = replay.error.clone().map(|why| Stop::Failed(why.into()));
            (replay, why)
        }
        Some(undo) => {
            let stop = Stop::from(undo);
            (given_up(replay, stop.to_string()), Some(stop))
        }
        None => Box::pin(tried(engine, operation, replay)).await?,
    };
    let ended = match why {
        None => Ok(engine.complete(operation).await?),
        // The verdict is recorded before the undo, which another manager may have to finish.
        Some(why) => {
            put(engine, replay.clone()).await?;
            back(engine, operation, why).await
        }
    };
    let error = match &ended {
        Err(Stop::Failed(failure)) => Some(failure.to_string()),
        _ => replay.error.clone(),
    };
    let finished_at = replay.finished_at.or_else(|| Some(engine.clock.unix_ms()));
    put(engine, Replay { error, finished_at, ..replay }).await?;
    ended
}

async fn tried(engine: &Engine, operation: &Operation, replay: Replay) -> Result<(Replay, Option<Stop>)> {
    let mut reader = engine.store.read().await?;
    let daemon = store::daemons::get(&mut reader, &replay.daemon).await?;
    let active = replay.active(&daemon.ok_or_else(|| "the daemon is gone".to_owned())?.spec);
    let layout = store::layouts::content(&mut reader, &active).await;
    drop(reader);
    let applied = replay.applied(&layout?)?;
    let change = DesiredLayoutChange { active, applied, recreate: false, from_empty: true };
    let (status, ran) = match apply(engine, operation, change).await {
        Ok(result) => result,
        Err((failed, ran)) => {
            let why = failed.why;
            let replay =
                replay.given_up(why.clone(), failed.cause.as_ref(), ran.executed_steps, ran.duration_us);
            return Ok((replay, Some(Stop::Failed(why.into()))));
        }
    };
    // The driver compares IDs; shares are compared with the record here.
    let (verified, differs) = engine.verify_shares(operation, status.as_ref()).await?;
    let shares = status.and_then(|status| PartitionShare::of(&status.partitions)).unwrap_or_default();
    match differs.or_else(|| replay.other_sms(&shares)) {
        None => Ok((replay.done(verified, ran.executed_steps, ran.duration_us), None)),
        Some(why) => {
            let noted = CompletedStep { name: COMPARE.to_owned(), outcome: why.clone() };
            engine.note(operation, vec![noted]).await?;
            Ok((replay.differed(why.clone(), verified, ran.duration_us), Some(Stop::Failed(why.into()))))
        }
    }
}

async fn recorded(engine: &Engine, id: Uuid) -> Result<Replay> {
    let mut reader = engine.store.read().await?;
    let replay = store::replays::get(&mut reader, id).await?;
    replay.ok_or_else(|| format!("the record of replay {id} is gone").into())
}

async fn put(engine: &Engine, replay: Replay) -> Result<()> {
    let written = transact!(engine.store, |db| store::replays::put(db, &replay).await);
    Ok(written?)
}
