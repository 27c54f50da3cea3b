//! Ending a client in the safe order, each part of it a step.

use std::time::Duration;

use super::daemon::handle;
use super::engine::the_daemon;
use super::{Engine, Result};
use crate::domain::client::{ClientFacts, ClientId, StoppedPolicy};
use crate::domain::operation::Operation;
use crate::supervisor::{Handle, Terminating, Termination};

/// Longest time for which MPS may list a client after its process has ended.
const LISTED: Duration = Duration::from_secs(10);

const WORK_ENDED: &str = "MPS ended its work";
const BY_ITSELF: &str = "it ended by itself";
const KILLED: &str = "it was killed";
const NO_LONGER_LISTED: &str = "its daemon no longer lists it";
const STILL_LISTED: &str = "its daemon lists it still, as it was seen last";

/// Every outcome of the steps of a termination that do not fail: words that name nobody. The first two are of terminations with one step.
pub const OUTCOMES: [&str; 9] = [
    Termination::ByMps.as_str(),
    Termination::ByMpsAndSignal.as_str(),
    Termination::AlreadyGone.as_str(),
    Termination::StoppedAndKilled.as_str(),
    WORK_ENDED,
    BY_ITSELF,
    KILLED,
    NO_LONGER_LISTED,
    STILL_LISTED,
];

pub(super) async fn run(
    engine: &Engine,
    operation: &Operation,
    client: ClientId,
    stopped: StoppedPolicy,
) -> Result<()> {
    let handle = handle(engine, the_daemon(operation)?)?;
    let begun = engine
        .step(operation.id, "ask MPS to end its work", request_termination(&handle, client, stopped))
        .await?;
    let StartedTermination::WorkEnded(terminating) = begun else { return Ok(()) };
    engine.step(operation.id, "end its process", ended(terminating)).await?;
    engine.step(operation.id, "confirm that it is gone", gone(&handle, client)).await
}

enum StartedTermination {
    WorkEnded(Terminating),
    AlreadyGone,
}

async fn request_termination(
    handle: &Handle,
    client: ClientId,
    stopped: StoppedPolicy,
) -> Result<(StartedTermination, String)> {
    let mut terminating = handle.start_termination(client, stopped).await?;
    if terminating.work_ended().await {
        return Ok((StartedTermination::WorkEnded(terminating), WORK_ENDED.to_owned()));
    }
    let ended = terminating.ended().await?;
    Ok((StartedTermination::AlreadyGone, ended.as_str().to_owned()))
}

async fn ended(terminating: Terminating) -> Result<((), String)> {
    let how = match terminating.ended().await? {
        Termination::ByMps => BY_ITSELF,
        Termination::ByMpsAndSignal => KILLED,
        other @ (Termination::AlreadyGone | Termination::StoppedAndKilled) => other.as_str(),
    };
    Ok(((), how.to_owned()))
}

async fn gone(handle: &Handle, client: ClientId) -> Result<((), String)> {
    let is_gone = |clients: &[ClientFacts]| clients.iter().all(|listed| listed.id != client);
    let observed = handle.wait_for(LISTED, |observed| is_gone(&observed.clients)).await;
    let outcome = if observed.is_some() { NO_LONGER_LISTED } else { STILL_LISTED };
    Ok(((), outcome.to_owned()))
}
