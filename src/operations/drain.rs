//! Draining: no new client is admitted, and the present ones are waited for.
//!
//! A daemon is empty when a poll that began after it was cordoned sees no client, and no living process holds a lease of one of its
//! tenants. Processes recorded by operators are waited for, and are never signalled unless MPS lists them. A drain that fails or is
//! cancelled leaves the daemon as it was; one that succeeds leaves it cordoned.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::daemon::handle;
use super::engine::the_daemon;
use super::{Engine, OperationFailure, Result, Stop};
use crate::domain::DaemonName;
use crate::domain::client::{ClientId, LeaseKind, LeaseRecord, StoppedPolicy};
use crate::domain::count::{counted, enumerated};
use crate::domain::daemon::DaemonSpec;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::maintenance::{DrainLimit, OnTimeout};
use crate::domain::operation::{END_CLIENTS, Operation, Undo};
use crate::domain::timings::Timings;
use crate::host::process::{EndProcessError, EndedBy, death, end_process_while};
use crate::host::signal::{SignalError, SignalReason};
use crate::host::{self, Identity};
use crate::store::{self, transact};
use crate::supervisor::{FreshError, Handle, PIPE_ENV, TerminateError, Termination};

/// Name of the step that records whether the daemon took clients before the drain.
const NOTE: &str = "note schedulable";
/// Outcome of that step for a daemon that took clients.
const SCHEDULABLE: &str = "schedulable";
/// Name of the step from whose beginning the time limit counts.
const WAIT: &str = "wait for clients";
/// Longest wait for one poll.
const POLL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that a process that is no client gets to end by itself, and again after each signal.
const PROCESS_END: Duration = Duration::from_secs(2);
/// Maximum number of rounds of ending clients; each ends those that came during the one before.
const ROUNDS: usize = 3;
/// Maximum number of processes that a message names.
const NAMED: usize = 8;

pub(super) async fn run(
    engine: &Engine,
    operation: &Operation,
    limit: DrainLimit,
    undo: Option<Undo>,
) -> Result<(), Stop> {
    let daemon = the_daemon(operation)?;
    let drained = async {
        if let Some(undo) = undo {
            return Err(undo.into());
        }
        engine.open_to_cancel(operation.id).await?;
        note(engine, operation, daemon).await?;
        engine
            .step(operation.id, "cordon", async {
                set_schedulable(engine, operation, false).await.map(|_| ((), "cordoned".to_owned()))
            })
            .await?;
        empty(engine, operation, &Emptied::Cordoned(daemon), limit).await?;
        engine.close_to_cancel(operation.id).await
    };
    match drained.await {
        Ok(()) => Ok(()),
        Err(stop) => {
            engine.undo(operation.id, || undone(engine, operation)).await?;
            Err(stop)
        }
    }
}

/// Records whether the daemon takes clients now, unless an earlier manager has recorded it.
async fn note(engine: &Engine, operation: &Operation, daemon: &DaemonName) -> Result<()> {
    if noted(operation).is_some() {
        return Ok(());
    }
    let name = daemon.clone();
    engine
        .step(operation.id, NOTE, async {
            let mut reader = engine.store.read().await?;
            let daemon = store::daemons::get(&mut reader, &name).await?;
            let daemon = daemon.ok_or_else(|| format!("daemon {name} is gone"))?;
            Ok(((), if daemon.spec.schedulable { SCHEDULABLE } else { "cordoned already" }.to_owned()))
        })
        .await
}

/// Returns true if the daemon took clients before the drain; `None` if the drain did not get as far as recording it.
fn noted(operation: &Operation) -> Option<bool> {
    operation.outcome_of(NOTE).map(|outcome| outcome == SCHEDULABLE)
}

/// Restores the state from before the drain.
async fn undone(engine: &Engine, operation: &Operation) -> Result<((), String)> {
    // The journal as it is now: what this run has noted is not in `operation`.
    let mut reader = engine.store.read().await?;
    let journal = store::operations::get(&mut reader, operation.id).await?;
    drop(reader);
    let outcome = match journal.as_ref().and_then(noted) {
        None => "nothing was changed",
        Some(false) => "cordoned, as before",
        Some(true) if set_schedulable(engine, operation, true).await? => "schedulable again",
        Some(true) => "schedulable, as it was set meanwhile",
    };
    Ok(((), outcome.to_owned()))
}

/// Writes whether the daemon takes clients, and publishes it; false when it was so.
async fn set_schedulable(engine: &Engine, operation: &Operation, schedulable: bool) -> Result<bool> {
    let (_, changed) = transact!(engine, change_daemon(operation), |_, spec| {
        Ok((spec.schedulable != schedulable).then_some(DaemonSpec { schedulable, ..spec }))
    })?;
    Ok(changed)
}

/// Parts of the host that are emptied of clients.
pub(super) enum Emptied<'a> {
    /// A cordoned daemon; it fails if the daemon is made schedulable meanwhile.
    Cordoned(&'a DaemonName),
    /// Daemons that are stopped next, which ends the clients of those that cannot be read, too.
    GoingDown(&'a [DaemonName]),
    /// The partitions of a daemon that a layout removes.
    Partitions {
        /// The daemon.
        daemon: &'a DaemonName,
        /// The layout.
        active: &'a ActiveLayout,
    },
}

impl Emptied<'_> {
    fn daemons(&self) -> &[DaemonName] {
        match self {
            Self::GoingDown(daemons) => daemons,
            Self::Cordoned(daemon) | Self::Partitions { daemon, .. } => std::slice::from_ref(*daemon),
        }
    }
}

/// Waits until no client is left there, and at the time limit acts as `limit` demands.
pub(super) async fn empty(
    engine: &Engine,
    operation: &Operation,
    emptied: &Emptied<'_>,
    limit: DrainLimit,
) -> Result<(), Stop> {
    let began = operation.steps.iter().find(|step| step.name == WAIT).map(|step| step.started_at);
    let until = began.unwrap_or_else(|| engine.clock.unix_ms()) + i64::from(limit.timeout_s) * 1000;
    let left = engine
        .step(operation.id, WAIT, async {
            let left = wait(engine, operation, emptied, until).await?;
            match (&left, limit.on_timeout) {
                (None, _) => Ok((None, "no client is connected, and no lease is held".to_owned())),
                (Some(left), OnTimeout::Terminate) => {
                    let outcome = format!("still there after {} s: {left}", limit.timeout_s);
                    Ok((Some(()), outcome))
                }
                (Some(left), OnTimeout::Fail) => Err(Stop::Failed(format!(
                    "still there after {} s: {left}; end what is left, or have it terminated at the time limit \
                     (`--on-timeout terminate`, or on_timeout=terminate)",
                    limit.timeout_s
                ).into())),
            }
        })
        .await?;
    if left.is_none() {
        return Ok(());
    }
    engine.step(operation.id, END_CLIENTS, terminate(engine, operation, emptied)).await
}

/// Waits until no client is left; returns the remaining ones at the deadline.
async fn wait(
    engine: &Engine,
    operation: &Operation,
    emptied: &Emptied<'_>,
    until: i64,
) -> Result<Option<DaemonOccupants>, Stop> {
    let cancel = engine.cancel_token(operation.id);
    let poll = Timings::duration(engine.fleet.context().timings.drain_poll_ms);
    let mut reported = String::new();
    loop {
        let occupants = tokio::select! {
            () = cancel.cancelled() => return Err(Stop::Cancelled),
            occupants = occupants(engine, emptied) => occupants?,
        };
        if occupants.none() {
            return Ok(None);
        }
        if let Emptied::Cordoned(daemon) = emptied {
            refuse_uncordoned(engine, daemon).await?;
        }
        let left = u64::try_from(until - engine.clock.unix_ms()).unwrap_or(0);
        if left == 0 {
            return Ok(Some(occupants));
        }
        let remaining = occupants.to_string();
        if reported != remaining {
            engine.waits_for(operation.id, format!("waits for {remaining}")).await;
            reported = remaining;
        }
        let deaths: Vec<_> =
            occupants.processes().map(|process| Box::pin(death(Identity::from(process)))).collect();
        let cancelled = async {
            if deaths.is_empty() {
                return std::future::pending().await;
            }
            select_all(deaths).await;
        };
        tokio::select! {
            () = cancel.cancelled() => return Err(Stop::Cancelled),
            () = cancelled => {}
            () = tokio::time::sleep(poll.min(Duration::from_millis(left))) => {}
        }
    }
}

async fn refuse_uncordoned(engine: &Engine, name: &DaemonName) -> Result<()> {
    let mut reader = engine.store.read().await?;
    let daemon = store::daemons::get(&mut reader, name).await?;
    if daemon.is_some_and(|daemon| daemon.spec.schedulable) {
        return Err(format!("daemon {name} was made schedulable again while it was drained").into());
    }
    Ok(())
}

/// Ends the remaining clients, in the safe order.
///
/// A daemon that cannot be read is a failure, unless it is going down: it is then stopped next, if need be with signals, and that ends its
/// clients, too.
async fn terminate(
    engine: &Engine,
    operation: &Operation,
    emptied: &Emptied<'_>,
) -> Result<((), String), Stop> {
    let (daemons, going_down) = (emptied.daemons(), matches!(emptied, Emptied::GoingDown(_)));
    let cancel = engine.cancel_token(operation.id);
    let mut ended = 0;
    let mut spared = Spared::default();
    for _ in 0..ROUNDS {
        let occupants = spared.without(occupants(engine, emptied).await?);
        if occupants.none() {
            return Ok(((), format!("{ended} ended{spared}")));
        }
        if !occupants.unread.is_empty() && !going_down {
            // A signal before MPS has confirmed that its work is ended can take the others of a server along.
            return Err(Stop::Failed(format!("{ended} were ended; still there: {occupants}").into()));
        }
        if occupants.only_unread() {
            break;
        }
        for (daemon, client) in &occupants.clients {
            // Between two clients is where it can be stopped: one that is being ended is ended.
            if cancel.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            match end_client(&handle(engine, daemon)?, *client).await {
                Ok(_) => ended += 1,
                // It has left MPS meanwhile, and may live on: the next round decides.
                Err(TerminateError::NotAClient(_)) => {}
                Err(TerminateError::Protected { what, .. }) => spared.protected.push((*client, what)),
                Err(error) => {
                    let why = format!("client {client} of daemon {daemon} was not ended: {error}");
                    return Err(Stop::Failed(why.into()));
                }
            }
        }
        for holder in &occupants.holders {
            if cancel.is_cancelled() {
                return Err(Stop::Cancelled);
            }
            if !is_command(engine, daemons, *holder) {
                spared.protected.push((*holder, "no command that run has started".to_owned()));
                continue;
            }
            // It is no client: nothing of MPS depends on how it ends.
            let has_reason =
                || async { holds_lease(engine, daemons, *holder).await.map_err(|why| why.to_string()) };
            match end_process_while((*holder).into(), PROCESS_END, SignalReason::RanUnderLease, has_reason)
                .await
            {
                Ok(how) => ended += u32::from(how == EndedBy::BySignal),
                // Its lease was revoked.
                Err(EndProcessError::Spared) => {}
                Err(EndProcessError::Signal(SignalError::Protected { what, .. })) => {
                    spared.protected.push((*holder, what.to_string()));
                }
                Err(error) => return Err(Stop::Failed(format!("process {holder} {error}").into())),
            }
        }
    }
    match spared.without(occupants(engine, emptied).await?) {
        left if left.none() => Ok(((), format!("{ended} ended{spared}"))),
        left if going_down && left.only_unread() => {
            Ok(((), format!("{ended} ended{spared}; what cannot be read goes down with its daemon: {left}")))
        }
        left => Err(Stop::Failed(format!("{ended} were ended; still there: {left}").into())),
    }
}

/// Returns true if a process holds a lease that it took itself. Such a lease may be revoked at any time.
async fn holds_lease(engine: &Engine, daemons: &[DaemonName], holder: ClientId) -> Result<bool> {
    let leases = leases_on(engine, daemons).await?;
    Ok(leases.iter().any(|record| record.lease.holder == holder && record.kind == LeaseKind::Own))
}

/// The leases of the tenants of these daemons.
async fn leases_on(engine: &Engine, daemons: &[DaemonName]) -> Result<Vec<LeaseRecord>> {
    let mut reader = engine.store.read().await?;
    let mut tenants = Vec::new();
    for daemon in daemons {
        tenants.extend(store::tenants::of_daemon(&mut reader, daemon).await?);
    }
    let mut records = store::leases::records(&mut reader, &engine.fleet.context().boot_id).await?;
    records.retain(|record| tenants.iter().any(|tenant| tenant.name == record.lease.tenant));
    Ok(records)
}

/// Returns true if a process that took a lease is a tenant's command, or `mps-manager run` that is about to become one.
///
/// A program that forwards the requests of others, such as a proxy in front of the socket, takes a lease for itself by mistake, and has
/// none of a tenant's variables in its environment.
fn is_command(engine: &Engine, daemons: &[DaemonName], holder: ClientId) -> bool {
    let context = engine.fleet.context();
    let is_handed_out = |pipe: &Path| {
        // An adopted daemon whose socket cannot be linked hands out its own directory.
        pipe.starts_with(context.handouts.root())
            || daemons.iter().any(|daemon| pipe == engine.fleet.pipe_directory(daemon))
    };
    host::process::variable(holder.pid, PIPE_ENV).is_some_and(|pipe| is_handed_out(Path::new(&pipe)))
        || host::process::runs_same_program(holder.pid)
}

/// Ends a client in the safe order. A stopped client is continued first, and killed if that does not help: MPS would hang if it were asked
/// to terminate a stopped one.
async fn end_client(handle: &Handle, client: ClientId) -> Result<Termination, TerminateError> {
    match handle.terminate(client, StoppedPolicy::Continue).await {
        Err(TerminateError::Stopped(_)) => handle.terminate(client, StoppedPolicy::Kill).await,
        ended => ended,
    }
}

/// Processes that are not signalled, though they hold leases or are clients.
#[derive(Debug, Default)]
struct Spared {
    /// Processes that operators have recorded and that MPS does not list.
    recorded: Vec<ClientId>,
    /// Processes that became something that is never signalled, with its description.
    protected: Vec<(ClientId, String)>,
}

impl Spared {
    /// Removes the processes that are not signalled, and remembers which of them are recorded.
    fn without(&mut self, mut occupants: DaemonOccupants) -> DaemonOccupants {
        let is_protected = |process: &ClientId| self.protected.iter().any(|(spared, _)| spared == process);
        occupants.holders.retain(|holder| !is_protected(holder));
        occupants.clients.retain(|(_, client)| !is_protected(client));
        occupants.recorded.retain(|recorded| !is_protected(recorded));
        self.recorded = std::mem::take(&mut occupants.recorded);
        occupants
    }
}

impl std::fmt::Display for Spared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let recorded = self
            .recorded
            .iter()
            .map(|process| format!("process {process} is recorded for a tenant and no client of MPS"));
        let protected = self.protected.iter().map(|(process, what)| format!("process {process} is {what}"));
        let all: Vec<String> = recorded.chain(protected).collect();
        if all.is_empty() {
            return Ok(());
        }
        let named = all.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let more = if all.len() > NAMED { ", …" } else { "" };
        write!(f, "; not signalled and left running: {named}{more}")
    }
}

/// Processes that use the daemons.
#[derive(Debug, Default)]
struct DaemonOccupants {
    clients: Vec<(DaemonName, ClientId)>,
    /// Processes started by `run` that are not, or not yet, clients.
    holders: Vec<ClientId>,
    /// Processes recorded by operators that are not, or not yet, clients.
    recorded: Vec<ClientId>,
    /// Partitions that are in use by processes that cannot be determined.
    unknown: Vec<String>,
    /// Daemons that could not be read, with the reason; their processes are unknown.
    unread: Vec<(DaemonName, OperationFailure)>,
}

impl DaemonOccupants {
    /// Keeps these processes alone; one that is neither a client nor holds a lease is only waited for.
    fn retain(&mut self, mut those: BTreeSet<ClientId>) {
        self.clients.retain(|(_, client)| those.remove(client));
        self.holders.retain(|holder| those.remove(holder));
        self.recorded.retain(|holder| those.remove(holder));
        self.recorded.extend(those);
    }

    fn none(&self) -> bool {
        let is_any_known = !self.clients.is_empty() || self.leased().next().is_some();
        !is_any_known && self.unread.is_empty() && self.unknown.is_empty()
    }

    /// Returns true if no client is left, except on daemons that cannot be read.
    fn only_unread(&self) -> bool {
        self.clients.is_empty() && self.leased().next().is_none() && !self.unread.is_empty()
    }

    /// Processes that hold leases and are no clients.
    fn leased(&self) -> impl Iterator<Item = ClientId> {
        self.holders.iter().chain(&self.recorded).copied()
    }

    fn processes(&self) -> impl Iterator<Item = ClientId> {
        self.clients.iter().map(|(_, client)| *client).chain(self.leased())
    }
}

impl std::fmt::Display for DaemonOccupants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (clients, holders) = (self.clients.len(), self.leased().count());
        // A daemon that does not answer does not say which of them are clients.
        let other = if self.unread.is_empty() && clients > 0 { "other " } else { "" };
        let connected = (clients > 0).then(|| counted(clients, "client"));
        let processes = |count: usize, what: &str| match count {
            0 => None,
            1 => Some(format!("1 {other}process {what}")),
            several => Some(format!("{several} {other}processes {what}")),
        };
        let started = processes(self.holders.len(), "started by `run`");
        let recorded = processes(self.recorded.len(), "recorded for a tenant");
        let counted: Vec<String> = connected.into_iter().chain(started).chain(recorded).collect();
        let is_anyone_known = !counted.is_empty();
        let unknown = || "processes that are not known".to_owned();
        write!(f, "{}", if is_anyone_known { counted.join(" and ") } else { unknown() })?;
        if clients + holders > 0 {
            let named: Vec<String> =
                self.processes().take(NAMED).map(|process| process.to_string()).collect();
            let more = if clients + holders > NAMED { ", …" } else { "" };
            write!(f, " ({}{more})", named.join(", "))?;
        }
        if is_anyone_known && !self.unread.is_empty() {
            write!(f, ", and perhaps others")?;
        }
        if !self.unknown.is_empty() {
            write!(f, "; in {} are processes that cannot be determined", enumerated(&self.unknown))?;
        }
        for (daemon, why) in &self.unread {
            write!(
                f,
                "; daemon {daemon} cannot be read: {why} (`mps-manager daemon stop {daemon}` ends it with all its clients)"
            )?;
        }
        Ok(())
    }
}

async fn occupants(engine: &Engine, emptied: &Emptied<'_>) -> Result<DaemonOccupants> {
    let mut occupants = all_occupants(engine, emptied.daemons()).await?;
    if let Emptied::Partitions { daemon, active } = emptied {
        let inside = Box::pin(engine.in_removed_partitions(daemon, active)).await?;
        occupants.retain(inside.known);
        occupants.unknown = inside.unknown_in;
    }
    Ok(occupants)
}

async fn all_occupants(engine: &Engine, daemons: &[DaemonName]) -> Result<DaemonOccupants> {
    let mut occupants = DaemonOccupants::default();
    let polls = daemons.iter().map(|daemon| async move {
        let handle = handle(engine, daemon)?;
        match handle.fresh(POLL_TIMEOUT).await {
            Ok(observed) => Ok(observed.clients.iter().map(|client| client.id).collect::<Vec<_>>()),
            Err(FreshError::Gone(_)) => Ok(Vec::new()),
            Err(error) => Err(OperationFailure::from(error)),
        }
    });
    for (daemon, poll) in daemons.iter().zip(join_all(polls).await) {
        match poll {
            Ok(clients) => {
                occupants.clients.extend(clients.into_iter().map(|client| (daemon.clone(), client)));
            }
            Err(why) => occupants.unread.push((daemon.clone(), why)),
        }
    }
    for record in leases_on(engine, daemons).await? {
        let holder = record.lease.holder;
        let is_client = occupants.clients.iter().any(|(_, client)| *client == holder);
        if is_client || !host::process::is_alive(Identity::from(holder)) {
            continue;
        }
        match record.kind {
            LeaseKind::Own => occupants.holders.push(holder),
            LeaseKind::Recorded => occupants.recorded.push(holder),
        }
    }
    Ok(occupants)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drain_spares_protected_clients_and_names_them() {
        let client = |pid| ClientId { pid, start_time: 1 };
        let daemon = DaemonName::parse("gpu0").expect("a name");
        let occupants = |pids: &[u32]| DaemonOccupants {
            clients: pids.iter().map(|pid| (daemon.clone(), client(*pid))).collect(),
            recorded: pids.iter().map(|pid| client(*pid)).collect(),
            ..DaemonOccupants::default()
        };
        let mut spared =
            Spared { protected: vec![(client(7), "an MPS server".to_owned())], ..Spared::default() };
        assert!(spared.without(occupants(&[7])).none());
        assert_eq!(spared.to_string(), "; not signalled and left running: process 7-1 is an MPS server");
        assert_eq!(spared.without(occupants(&[7, 8])).clients, [(daemon.clone(), client(8))]);
    }
}
