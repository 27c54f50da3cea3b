//! Common parts of all changes of a daemon's layout: planned on a fresh poll, written as desired, waited for, reverted.
//!
//! The driver applies a layout; an operation writes the desired state and, in the same transaction, the state to go back to. So a manager
//! that dies at any point leaves either the old desired layout or the new one. The row of the change tells which: if it exists, the new one
//! is desired, unless the journal says that the operation was going back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::daemon::handle;
use super::engine::the_daemon;
use super::{Engine, OperationFailure, Result};
use crate::domain::client::ClientId;
use crate::domain::condition::{self};
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::Gpu;
use crate::domain::layout::active::{
    ActiveLayout, AppliedLayout, DesiredLayout, LayoutChange, Previous, chunk_sms,
};
use crate::domain::layout::blocked::Blocked;
use crate::domain::layout::execution::LayoutFailureCause;
use crate::domain::layout::outlook::{LayoutPlan, OutlookInput};
use crate::domain::layout::plan::{Plan, PlanInput, plan};
use crate::domain::layout::record::{ExecutedStep, PartitionRun, Record};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::layout::{Enforcement, Layout, PartitionChange, VersionRef};
use crate::domain::operation::Operation;
use crate::domain::partitions::PartitionRef;
use crate::domain::{DaemonName, GpuUuid, PartitionName};
use crate::host;
use crate::store::operations::CompletedStep;
use crate::store::{self, StoreError, transact};
use crate::supervisor::{FreshError, Handle, Observed};

/// Longest time for a layout to be applied, or taken back: a daemon that has to be started takes seconds.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for the poll that is planned on.
const POLL_TIMEOUT: Duration = Duration::from_secs(30);
/// The step that writes the desired state.
pub(super) const WRITE: &str = "write the layout";
/// The step that records the outcome.
pub(super) const READ_BACK: &str = "read back";

/// Reason why the effect of a layout cannot be determined.
#[derive(Debug, thiserror::Error)]
pub enum OutlookError {
    /// The daemon cannot be polled.
    #[error("{0}")]
    Fresh(#[from] FreshError),
    /// The stored state cannot be read.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The daemon cannot hold the layout in its present state.
    #[error("{0}")]
    Unfit(String),
}

impl From<OperationFailure> for OutlookError {
    fn from(failure: OperationFailure) -> Self {
        Self::Unfit(failure.to_string())
    }
}

impl From<OutlookError> for OperationFailure {
    fn from(error: OutlookError) -> Self {
        Self::NotDone(error.to_string())
    }
}

/// A daemon as it was polled for a layout.
pub struct PolledDaemon {
    /// State of the daemon at the poll.
    pub observed: Observed,
    /// Record of the partition commands in its present control process; `None` if there is none.
    pub run: Option<PartitionRun>,
    /// The layout as a driver would apply it.
    pub desired: DesiredLayout,
    /// The GPUs of the host, with what is remembered of those that are missing.
    gpus: Vec<Gpu>,
}

/// Layout that an operation wants a daemon to hold.
pub(super) struct DesiredLayoutChange {
    pub(super) active: ActiveLayout,
    /// The partition IDs that it has to get, if they come from elsewhere.
    pub(super) applied: Option<AppliedLayout>,
    pub(super) recreate: bool,
    /// True if the daemon's GPUs have to be empty.
    pub(super) from_empty: bool,
}

/// Processes by the partition that they were admitted to.
type AdmittedClients = BTreeMap<PartitionRef, Vec<ClientId>>;

/// A partition that a change removes, with its name if one of our layouts created it.
pub(super) type RemovedPartition = (PartitionRef, Option<PartitionName>);

/// End of a run that the driver gave up.
#[derive(Debug, Clone)]
pub(super) struct ApplyFailed {
    pub(super) why: String,
    pub(super) cause: Option<LayoutFailureCause>,
}

impl From<OperationFailure> for ApplyFailed {
    fn from(failure: OperationFailure) -> Self {
        Self { why: failure.to_string(), cause: None }
    }
}

impl std::fmt::Display for ApplyFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.why)
    }
}

/// The change that an operation waits for.
#[derive(Clone, Copy)]
pub(super) struct Awaited<'a> {
    /// The layout, if one is desired.
    pub(super) layout: Option<&'a VersionRef>,
    /// The generation of the change. The change is applied once: later changes by others are left alone.
    pub(super) generation: i64,
    /// The time at which the last run began that does not belong to the change.
    pub(super) since: Option<i64>,
    /// The time at which the change was written: each of its runs began later.
    pub(super) from: i64,
}

/// Processes in the partitions that a change removes.
#[derive(Debug, Default)]
pub(super) struct InRemovedPartitions {
    pub(super) known: BTreeSet<ClientId>,
    /// Partitions that are in use by processes that cannot be determined.
    pub(super) unknown_in: Vec<String>,
}

/// Progress of a run, as far as it was observed.
#[derive(Debug, Clone, Default)]
pub(super) struct RunProgress {
    began: Option<i64>,
    pub(super) executed_steps: Vec<ExecutedStep>,
    pub(super) duration_us: Option<u64>,
}

impl Engine {
    /// Polls a daemon for a layout, unless it was polled within `age`.
    pub async fn poll_for_layout(
        &self,
        daemon: &DaemonName,
        active: &ActiveLayout,
        layout: &Layout,
        age: Duration,
        timeout: Duration,
    ) -> Result<PolledDaemon, OutlookError> {
        let handle = self.fleet.get(daemon);
        let handle = handle.ok_or_else(|| OutlookError::Fresh(FreshError::Gone(daemon.clone())))?;
        let observed = handle.aged(age, self.clock.unix_ms(), timeout).await?;
        let gpus = self.gpus().await?;
        let mut reader = self.store.read().await?;
        let gpus = store::gpus::all(&mut reader, gpus).await?;
        let incarnation = store::daemons::incarnation(&mut reader, daemon).await?;
        let run = store::partitions::run(&mut reader, daemon).await?;
        let run = run.filter(|run| incarnation.is_some_and(|incarnation| incarnation.token == run.token));
        let applied = store::layouts::applied(&mut reader, daemon).await?;
        let desired = DesiredLayout::of(active, layout, applied.as_ref(), None, &gpus)
            .map_err(|error| OutlookError::Unfit(error.to_string()))?;
        Ok(PolledDaemon { observed, run, desired, gpus })
    }

    /// Plans a layout for a daemon on a poll that is no older than `age`.
    pub async fn layout_plan(
        &self,
        daemon: &DaemonName,
        active: &ActiveLayout,
        layout: &Layout,
        age: Duration,
        timeout: Duration,
    ) -> Result<LayoutPlan, OutlookError> {
        let polled = self.poll_for_layout(daemon, active, layout, age, timeout).await?;
        let mut reader = self.store.read().await?;
        let spec = store::daemons::get(&mut reader, daemon).await?.map(|daemon| daemon.spec);
        let before = spec.as_ref().and_then(|spec| spec.layout.clone());
        let offered = spec.map(|spec| spec.gpus).unwrap_or_default();
        let mut tenants = store::tenants::of_daemon(&mut reader, daemon).await?;
        for name in layout.partitions().flat_map(|add| &add.tenants) {
            if tenants.iter().all(|tenant| tenant.name != *name)
                && let Some(tenant) = store::tenants::get(&mut reader, name).await?
            {
                tenants.push(tenant);
            }
        }
        let admitted = store::partition_leases::holders(&mut reader, &self.fleet.context().boot_id).await?;
        drop(reader);
        let (planned, chunks) = if layout.enforcement == Enforcement::Percentage {
            self.plan_shares(daemon, active, layout, before.as_ref(), &tenants).await?
        } else {
            plan_partitions(daemon, &polled, &living(admitted))?
        };
        let observed_at = polled
            .observed
            .status
            .effective
            .as_ref()
            .map_or_else(|| self.clock.unix_ms(), |effective| effective.observed_at);
        Ok(LayoutPlan::of(
            planned,
            &OutlookInput {
                version: &polled.desired.version,
                layout,
                daemon,
                offered: &offered,
                gpu_map: &active.gpu_map,
                chunk_sms: &chunks,
                tenants: &tenants,
                observed_at,
            },
        ))
    }

    /// Plans a stored layout for a daemon on a fresh poll.
    pub(super) async fn planned(&self, daemon: &DaemonName, active: &ActiveLayout) -> Result<LayoutPlan> {
        let mut reader = self.store.read().await?;
        let layout = store::layouts::content(&mut reader, active).await?;
        drop(reader);
        Ok(self.layout_plan(daemon, active, &layout, Duration::ZERO, POLL_TIMEOUT).await?)
    }

    /// Returns the processes in the partitions that a layout removes, on a fresh poll.
    pub(super) async fn in_removed_partitions(
        &self,
        daemon: &DaemonName,
        active: &ActiveLayout,
    ) -> Result<InRemovedPartitions> {
        let mut inside = InRemovedPartitions::default();
        for blocker in self.planned(daemon, active).await?.blocked {
            let Blocked::InUse { clients, partition, gpu, id } = blocker.what else { continue };
            if clients.is_empty() {
                let name = partition.map_or_else(|| format!("{gpu}/{id}"), |name| name.to_string());
                inside.unknown_in.push(format!("partition {name}"));
            }
            inside.known.extend(clients);
        }
        Ok(inside)
    }

    /// Writes what a daemon is to hold and what it goes back to, and publishes it; once, whichever process dies meanwhile. Gives the
    /// generation of the desired state.
    ///
    /// Refused where a client was admitted to a partition that it takes away since it was planned. After it no client is, before the
    /// layout is in force: an admitted client holds a proof of what was desired before.
    pub(super) async fn write_change(
        &self,
        operation: &Operation,
        requested: DesiredLayoutChange,
        removed: Vec<RemovedPartition>,
    ) -> Result<i64> {
        let (id, name, now) = (operation.id, the_daemon(operation)?.clone(), self.clock.unix_ms());
        let boot_id = self.fleet.context().boot_id.clone();
        let (generation, _) = transact!(self, change_daemon(operation), |db, spec| {
            let admitted = living(store::partition_leases::holders(&mut *db, &boot_id).await?);
            refuse_held(&removed, &admitted)?;
            let applied = store::layouts::applied(&mut *db, &name).await?;
            let previous = Previous { layout: spec.layout.clone(), applied };
            let change = LayoutChange { previous, recreate: requested.recreate };
            store::layouts::put_change(&mut *db, id, &name, &change).await?;
            store::tenants::release(&mut *db, id).await?;
            if requested.applied.is_some() {
                store::layouts::put_applied(db, &name, requested.applied.as_ref(), now).await?;
            }
            Ok(Some(DaemonSpec { layout: Some(requested.active), ..spec }))
        })?;
        Ok(generation)
    }

    /// Returns true if the operation has written its desired state, which it does once.
    pub(super) async fn has_written(&self, operation: &Operation) -> Result<bool> {
        Ok(self.change_of(operation).await?.is_some())
    }

    /// Returns the change that an operation has written, with the state to go back to.
    pub(super) async fn change_of(&self, operation: &Operation) -> Result<Option<LayoutChange>> {
        let daemon = the_daemon(operation)?;
        let mut reader = self.store.read().await?;
        let change = store::layouts::change(&mut reader, daemon).await?;
        Ok(change.filter(|(id, _)| *id == operation.id).map(|(_, change)| change))
    }

    /// Writes the state from before the change, and publishes it; `None` if nothing was changed.
    async fn write_back(&self, operation: &Operation) -> Result<Option<Previous>> {
        let Some(change) = self.change_of(operation).await? else { return Ok(None) };
        let previous = change.previous.clone();
        let back = LayoutChange { recreate: false, ..change };
        self.rewrite(operation, back, true).await?;
        Ok(Some(previous))
    }

    /// Ends the change: partitions are no longer recreated.
    pub(super) async fn complete(&self, operation: &Operation) -> Result<()> {
        let Some(change) = self.change_of(operation).await? else { return Ok(()) };
        if !change.recreate {
            return Ok(());
        }
        let over = LayoutChange { recreate: false, ..change };
        self.rewrite(operation, over, false).await
    }

    /// Rewrites a change, with what was before it if `back`, and publishes what follows.
    async fn rewrite(&self, operation: &Operation, change: LayoutChange, back: bool) -> Result<()> {
        let (id, name, now) = (operation.id, the_daemon(operation)?.clone(), self.clock.unix_ms());
        transact!(self, change_daemon(operation), |db, spec| {
            store::layouts::put_change(&mut *db, id, &name, &change).await?;
            if back {
                let Previous { layout, applied } = change.previous;
                store::layouts::put_applied(db, &name, applied.as_ref(), now).await?;
                return Ok(Some(DaemonSpec { layout, ..spec }));
            }
            store::daemons::touch(db, &[&name]).await?;
            Ok(None)
        })?;
        Ok(())
    }

    /// Reverts the change, and waits until the daemon has its earlier layout; returns a description of the layout that it has.
    pub(super) async fn go_back(&self, operation: &Operation) -> Result<((), String)> {
        let Some(previous) = self.write_back(operation).await? else {
            return Ok(((), "nothing was changed".to_owned()));
        };
        let version = previous.layout.map(|layout| layout.version_ref());
        let words = version.as_ref().map_or_else(
            || "no layout, as before".to_owned(),
            |version| format!("layout {version}, as before"),
        );
        let handle = handle(self, the_daemon(operation)?)?;
        let since = handle.of_observed(|observed| observed.status.layout.as_ref()?.ran_at);
        let awaited = Awaited { layout: version.as_ref(), generation: handle.generation(), since, from: 0 };
        let outcome = match self.reconcile(operation, &handle, awaited).await {
            Ok((Some(status), _)) if !status.degraded.is_empty() => {
                let degraded: Vec<String> = status.degraded.iter().map(ToString::to_string).collect();
                format!(
                    "{words}; degraded: {}. Applied again with recreate, it has the IDs that its steps give",
                    degraded.join("; ")
                )
            }
            Ok(_) => words,
            // The desired state is the old one, and the driver continues with it whenever it can.
            Err((why, _)) => format!("{words}, by the daemon's spec, but it is not in force: {why}"),
        };
        self.complete(operation).await?;
        Ok(((), outcome))
    }

    /// Waits until the driver has applied the desired state, or gives up; journals each command as it is seen.
    pub(super) async fn reconcile(
        &self,
        operation: &Operation,
        handle: &Handle,
        awaited: Awaited<'_>,
    ) -> Result<(Option<LayoutStatus>, RunProgress), (ApplyFailed, RunProgress)> {
        let mut ran = RunProgress::default();
        match tokio::time::timeout(TIMEOUT, self.watch(operation, handle, awaited, &mut ran)).await {
            Ok(Ok(status)) => Ok((status, ran)),
            Ok(Err(failed)) => Err((failed, ran)),
            Err(_) => {
                let status = handle.observed().status;
                let why = condition::ready(&status.conditions).map(|condition| condition.message.clone());
                let why = format!("not within {TIMEOUT:?}: {}", why.unwrap_or_default());
                Err((ApplyFailed { why, cause: None }, ran))
            }
        }
    }

    async fn watch(
        &self,
        operation: &Operation,
        handle: &Handle,
        awaited: Awaited<'_>,
        ran: &mut RunProgress,
    ) -> Result<Option<LayoutStatus>, ApplyFailed> {
        let Awaited { layout: version, generation, since, from } = awaited;
        let desired_generation = handle.generation();
        let tried = handle.reconcile_layout(generation).await.map_err(OperationFailure::from)?;
        let mut reported: Option<String> = None;
        loop {
            let recorded = |layout: &LayoutStatus| {
                if layout.ran_at == ran.began {
                    ran.executed_steps.len()
                } else {
                    journaled(operation, &layout.executed_steps)
                }
            };
            let is_new = |observed: &Observed| {
                observed.has_tried(tried)
                    && (observed.follows() >= desired_generation)
                    && (of_this(observed, since, from)
                        .is_some_and(|layout| layout.executed_steps.len() > recorded(layout))
                        || layout_result(observed, desired_generation, version).is_some()
                        || observed.blocker(tried).is_some_and(|new| reported.as_ref() != Some(&new.message)))
            };
            let Some(observed) = handle.wait_for(TIMEOUT, is_new).await else {
                // The whole has a timeout of its own.
                return std::future::pending().await;
            };
            if let Some(layout) = of_this(&observed, since, from) {
                let new_commands: Vec<CompletedStep> =
                    layout.executed_steps.iter().skip(recorded(layout)).map(noted).collect();
                ran.began = layout.ran_at;
                ran.executed_steps.clone_from(&layout.executed_steps);
                ran.duration_us = layout.duration_us;
                self.note(operation, new_commands).await?;
            }
            match layout_result(&observed, desired_generation, version) {
                Some(Ok(status)) => return Ok(status),
                Some(Err(failed)) => return Err(failed),
                None => {}
            }
            if let Some(blocker) = observed.blocker(tried) {
                if blocker.needs_operator() {
                    return Err(ApplyFailed { why: blocker.message.clone(), cause: None });
                }
                reported = Some(blocker.message.clone());
            }
        }
    }

    /// The commands of the run that put a layout on a daemon since then, as far as its driver knows them, and how long they took.
    pub(super) fn commands_since(
        &self,
        daemon: &DaemonName,
        version: &VersionRef,
        since: i64,
    ) -> (Vec<ExecutedStep>, Option<u64>) {
        let status = self
            .fleet
            .get(daemon)
            .and_then(|handle| handle.of_observed(|observed| observed.status.layout.clone()));
        let of_this = |layout: &LayoutStatus| {
            layout.version_ref().as_ref() == Some(version) && layout.ran_at.is_some_and(|at| at >= since)
        };
        status
            .filter(of_this)
            .map_or_else(Default::default, |layout| (layout.executed_steps, layout.duration_us))
    }

    /// Writes steps that were seen when they were over.
    pub(super) async fn note(&self, operation: &Operation, steps: Vec<CompletedStep>) -> Result<()> {
        if steps.is_empty() {
            return Ok(());
        }
        let (id, clock) = (operation.id, self.clock);
        let noted =
            transact!(self.store, |db| store::operations::note_steps(db, id, &steps, clock.unix_ms()).await);
        Ok(noted?)
    }
}

/// The plan of static partitions, with the SMs of a chunk of each GPU.
fn plan_partitions(
    daemon: &DaemonName,
    polled: &PolledDaemon,
    admitted: &AdmittedClients,
) -> Result<(Plan, BTreeMap<GpuUuid, u32>), OutlookError> {
    let effective = polled.observed.status.effective.as_ref();
    let Some(present) = effective.and_then(|effective| effective.partitions.as_ref()) else {
        return Err(OutlookError::Unfit(polled.observed.status.without_partitions(daemon)));
    };
    let nothing = Record::default();
    let chunks = chunk_sms(&polled.gpus, present.iter().map(|gpu| &gpu.gpu));
    let planned = plan(&PlanInput {
        steps: &polled.desired.steps,
        expected: polled.desired.expected.as_deref(),
        record: polled.run.as_ref().map_or(&nothing, |run| &run.record),
        before: polled.run.as_ref().and_then(|run| run.before.as_ref()),
        present,
        chunk_sms: &chunks,
        admitted,
    });
    Ok((planned, chunks))
}

/// Keeps only the admitted processes that are alive.
fn living(admitted: AdmittedClients) -> AdmittedClients {
    let living = admitted.into_iter().map(|(partition, holders)| {
        let living = holders.into_iter().filter(|holder| host::process::is_alive((*holder).into()));
        (partition, living.collect::<Vec<_>>())
    });
    living.filter(|(_, holders)| !holders.is_empty()).collect()
}

/// Refuses to remove partitions to which clients were admitted.
fn refuse_held(removed: &[RemovedPartition], admitted: &AdmittedClients) -> Result<()> {
    let blocked = removed.iter().filter_map(|(partition, name)| {
        let PartitionRef { gpu, id } = partition.clone();
        let clients = admitted.get(partition)?.clone();
        Some(Blocked::InUse { partition: name.clone(), gpu, id, clients }.to_string())
    });
    let blocked: Vec<String> = blocked.collect();
    if blocked.is_empty() { Ok(()) } else { Err(blocked.join("; ").into()) }
}

/// Returns the status of a run that began after the known one, and not before `from`.
fn of_this(observed: &Observed, since: Option<i64>, from: i64) -> Option<&LayoutStatus> {
    let layout = observed.status.layout.as_ref()?;
    (layout.ran_at.is_some_and(|at| at >= from) && layout.ran_at != since).then_some(layout)
}

/// Counts the commands that stand at the end of the journal with which the operation was claimed: a manager that died has journaled some or
/// all of them.
fn journaled(operation: &Operation, executed_steps: &[ExecutedStep]) -> usize {
    let journal: Vec<(&str, Option<&str>)> =
        operation.steps.iter().map(|step| (step.name.as_str(), step.outcome.as_deref())).collect();
    let commands: Vec<CompletedStep> = executed_steps.iter().map(noted).collect();
    let commands: Vec<(&str, Option<&str>)> =
        commands.iter().map(|noted| (noted.name.as_str(), Some(noted.outcome.as_str()))).collect();
    (0..=commands.len()).rev().find(|count| journal.ends_with(&commands[..*count])).unwrap_or(0)
}

/// Returns the result for a generation, once it is decided; the driver follows that generation or a later one.
fn layout_result(
    observed: &Observed,
    desired_generation: i64,
    version: Option<&VersionRef>,
) -> Option<Result<Option<LayoutStatus>, ApplyFailed>> {
    let layout = observed.status.layout.as_ref();
    let held = layout.and_then(LayoutStatus::version_ref);
    if held.as_ref() != version {
        // What is applied then says nothing about this change.
        let words =
            |version: Option<&VersionRef>| version.map_or_else(|| "none".to_owned(), ToString::to_string);
        let why = format!(
            "the layout in the daemon's spec was changed meanwhile: it is {} in place of {}",
            words(held.as_ref()),
            words(version)
        );
        return Some(Err(ApplyFailed { why, cause: None }));
    }
    let Some(layout) = layout else { return Some(Ok(None)) };
    if layout.generation < desired_generation {
        return None;
    }
    match layout.state {
        LayoutState::Pending | LayoutState::Applying => None,
        LayoutState::Applied | LayoutState::Drifted | LayoutState::Degraded => Some(Ok(Some(layout.clone()))),
        LayoutState::Failed => {
            let failure = layout.failure.as_ref();
            let why = failure.map_or_else(|| "it failed".to_owned(), |failure| failure.cause.to_string());
            Some(Err(ApplyFailed { why, cause: failure.map(|failure| failure.cause.clone()) }))
        }
    }
}

/// A command as the journal has it.
fn noted(taken: &ExecutedStep) -> CompletedStep {
    let verb = match taken.change {
        PartitionChange::Add => "add",
        PartitionChange::Remove => "remove",
    };
    let name = taken.partition.as_ref().map_or("a partition of no layout", |name| name.as_str());
    let undo = if taken.undo { "undo: " } else { "" };
    let id = taken.id.as_ref().map(|id| format!("{}/{id}", taken.gpu));
    let outcome: Vec<String> = id.into_iter().chain(taken.problem.clone()).collect();
    CompletedStep { name: format!("{undo}{verb} {name}"), outcome: outcome.join(": ") }
}
