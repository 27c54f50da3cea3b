//! Operations: actions that take time, with a journal of their steps.

use serde::{Deserialize, Serialize};

use super::client::{ClientId, StoppedPolicy};
use super::layout::active::PartitionPolicy;
use super::layout::{GpuMap, roles};
use super::maintenance::{DrainLimit, OnTimeout};
use super::{DaemonName, GpuUuid, LayoutName};

/// Name of the step in which a drain ends the clients that are left at its time limit; its outcome names what was left running.
pub const END_CLIENTS: &str = "terminate the clients";

/// Request of an operation: its kind and its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OperationRequest {
    /// Brings the daemon to the state in its spec, running.
    StartDaemon,
    /// Stops the daemon.
    StopDaemon {
        /// Seconds its clients are given to end; after that they lose their server.
        grace_s: u32,
    },
    /// Stops the daemon and starts it again.
    RestartDaemon {
        /// Seconds its clients are given to end.
        grace_s: u32,
    },
    /// Stops the daemon and deletes it.
    DeleteDaemon {
        /// Seconds its clients are given to end.
        grace_s: u32,
    },
    /// Ends a client in the safe order.
    TerminateClient {
        /// The client.
        client: ClientId,
        /// Policy if the client is stopped (SIGSTOP).
        #[serde(default)]
        stopped: StoppedPolicy,
    },
    /// Cordons the daemon and waits until no client is left; after success the daemon stays cordoned.
    DrainDaemon {
        /// Seconds that clients get to end by themselves.
        timeout_s: u32,
        /// Action on clients that are still connected then.
        on_timeout: OnTimeout,
    },
    /// Drains and stops the daemons of these GPUs and closes the driver.
    BeginMaintenance {
        /// The GPUs.
        gpus: Vec<GpuUuid>,
        /// Seconds that clients get to end by themselves.
        timeout_s: u32,
        /// Action on clients that are still connected then.
        on_timeout: OnTimeout,
    },
    /// Restores everything that maintenance took down.
    EndMaintenance,
    /// Applies a layout to the daemon; if that fails, the daemon gets its previous layout back.
    ApplyLayout {
        /// The layout.
        layout: LayoutName,
        /// Its version.
        version: u32,
        /// The GPU of each role of the layout.
        #[serde(with = "roles")]
        #[schema(schema_with = crate::layout::roles_by_uuid)]
        gpu_map: GpuMap,
        /// Policy for partitions that another program makes or removes.
        drift_policy: PartitionPolicy,
        /// True if partitions that stay may be recreated.
        recreate: bool,
        /// Limit of the wait for the clients of partitions that are removed; left out if the operation does not wait for them.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        drain: Option<DrainLimit>,
        /// Note on why it is done.
        note: Option<String>,
    },
    /// Takes the steps of a layout on empty GPUs and compares each ID with the recorded one.
    ReplayLayout {
        /// The record of the replay.
        replay: uuid::Uuid,
        /// The layout.
        layout: LayoutName,
        /// Its version.
        version: u32,
    },
    /// Carries out the changes of a host file: waits for its daemons, applies layouts, and deletes pruned objects.
    ApplySpec {
        /// Number of changes that the file made.
        changes: u32,
        /// True if objects that the file does not have are deleted.
        prune: bool,
        /// The daemons that are waited for until they are ready.
        daemons: Vec<DaemonName>,
        /// The layouts that are applied to running daemons, each by an operation of its own.
        layouts: Vec<HostLayout>,
        /// The daemons that are deleted, each by an operation of its own.
        delete_daemons: Vec<DaemonName>,
        /// The layouts that are deleted once no daemon has them.
        delete_layouts: Vec<LayoutName>,
    },
}

/// A layout that a host file applies to a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostLayout {
    /// The daemon.
    pub daemon: DaemonName,
    /// The layout.
    pub layout: LayoutName,
    /// Its version.
    pub version: u32,
    /// The GPU of each role of the layout.
    #[serde(with = "roles")]
    #[schema(schema_with = crate::layout::roles_by_uuid)]
    pub gpu_map: GpuMap,
    /// Policy for partitions that another program makes or removes.
    pub drift_policy: PartitionPolicy,
    /// True if partitions that stay may be recreated.
    #[serde(default)]
    pub recreate: bool,
}

impl HostLayout {
    /// Returns the request of the operation that applies it to its daemon.
    pub fn request(&self) -> OperationRequest {
        let Self { layout, version, gpu_map, drift_policy, recreate, .. } = self.clone();
        let note = Some("host file".to_owned());
        let drain = None;
        OperationRequest::ApplyLayout { layout, version, gpu_map, drift_policy, recreate, drain, note }
    }
}

impl OperationRequest {
    /// All results of [`OperationRequest::kind`].
    pub const KINDS: [&'static str; 11] = [
        "start_daemon",
        "stop_daemon",
        "restart_daemon",
        "delete_daemon",
        "terminate_client",
        "drain_daemon",
        "begin_maintenance",
        "end_maintenance",
        "apply_layout",
        "replay_layout",
        "apply_spec",
    ];

    /// Returns the kind in one word, for logs and lists.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::StartDaemon => "start_daemon",
            Self::StopDaemon { .. } => "stop_daemon",
            Self::RestartDaemon { .. } => "restart_daemon",
            Self::DeleteDaemon { .. } => "delete_daemon",
            Self::TerminateClient { .. } => "terminate_client",
            Self::DrainDaemon { .. } => "drain_daemon",
            Self::BeginMaintenance { .. } => "begin_maintenance",
            Self::EndMaintenance => "end_maintenance",
            Self::ApplyLayout { .. } => "apply_layout",
            Self::ReplayLayout { .. } => "replay_layout",
            Self::ApplySpec { .. } => "apply_spec",
        }
    }

    /// Returns true if its effects are undone when it does not complete.
    pub fn is_undone(&self) -> bool {
        matches!(
            self,
            Self::DrainDaemon { .. }
                | Self::BeginMaintenance { .. }
                | Self::ApplyLayout { .. }
                | Self::ReplayLayout { .. }
        )
    }
}

/// The state of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// Waiting for its turn on each of its daemons.
    Pending,
    /// Under way.
    Running,
    /// Done, and seen to be done.
    Succeeded,
    /// Given up; `error` says why.
    Failed,
    /// Cancelled: before it began, or at its last step.
    Cancelled,
}

api_words!(OperationState:
    Pending "pending", Running "running", Succeeded "succeeded", Failed "failed", Cancelled "cancelled",
);

impl OperationState {
    /// Parses the word of a state.
    pub fn parse(text: &str) -> Result<Self, String> {
        let state = Self::ALL.into_iter().find(|state| state.as_str() == text);
        state.ok_or_else(|| {
            let states = Self::ALL.map(Self::as_str).join(", ");
            let shown: String = text.chars().take(80).collect();
            format!("{shown:?} is not a state of an operation: give one of {states}")
        })
    }

    /// Returns true if the state is final.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// Filter of a list of operations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationFilter {
    /// Only operations that work on this daemon.
    pub daemon: Option<DaemonName>,
    /// Only operations in one of these states; in any, if none is named.
    pub states: Vec<OperationState>,
    /// Only operations that were requested at this time or later, in unix milliseconds.
    pub since: Option<i64>,
}

impl OperationFilter {
    /// Selects the operations of all daemons that are not over.
    pub fn unfinished() -> Self {
        Self { states: vec![OperationState::Pending, OperationState::Running], ..Self::default() }
    }

    /// Parses states that are separated by commas.
    pub fn parse_states(text: &str) -> Result<Vec<OperationState>, String> {
        text.split(',').map(OperationState::parse).collect()
    }
}

/// One step of an operation: written before it is taken, completed after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Step {
    /// Name of the step.
    pub name: String,
    /// When it began.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub started_at: i64,
    /// When it ended; `null` while it runs, or when the manager died in it.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<i64>,
    /// Its outcome; while it runs, the reason why it waits, if that is known.
    pub outcome: Option<String>,
}

/// An operation with its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Operation {
    /// Its ID, a UUID of version 7.
    pub id: uuid::Uuid,
    /// Its request.
    pub request: OperationRequest,
    /// The daemons it works on; one operation at a time runs on each.
    pub daemons: Vec<DaemonName>,
    /// Its state.
    pub state: OperationState,
    /// Reason why it failed.
    pub error: Option<String>,
    /// When it was requested.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub created_at: i64,
    /// When it began.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<i64>,
    /// When it ended.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<i64>,
    /// True if it is running and can be stopped at its present step.
    pub cancellable: bool,
    /// When its cancellation was requested while it ran.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<i64>,
    /// Its steps so far.
    pub steps: Vec<Step>,
}

impl Operation {
    /// Returns the outcome of a step, from the first time that it completed.
    pub fn outcome_of(&self, name: &str) -> Option<&str> {
        let ended = |step: &&Step| step.name == name && step.finished_at.is_some();
        self.steps.iter().filter(ended).find_map(|step| step.outcome.as_deref())
    }
}

/// Continuation of an operation that was under way when the manager died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// Resume it: its steps are idempotent.
    Finish,
    /// Undo its effects: it was cancelled, or it had failed and was being undone.
    Undo(Undo),
    /// Nothing remains to be done: it had its effect already.
    Done,
    /// Give it up: its outcome is unknown, and it must not be repeated.
    Abandon(&'static str),
}

/// Reason why an operation is undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// Its cancellation was requested.
    Cancelled,
    /// A step failed.
    Failed(String),
}

/// The step in which a restart stops its daemon.
pub const STOP: &str = "stop";

/// The step in which an operation is undone.
pub const UNDO: &str = "undo";

/// End of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationEnd {
    /// All of it was done.
    Succeeded,
    /// It was given up.
    Failed {
        /// Reason, in words for the operator.
        error: String,
        /// True if it may have had its effect, or may still have it.
        outcome_is_unknown: bool,
    },
    /// It was cancelled.
    Cancelled,
}

impl OperationEnd {
    /// Returns the state in which it leaves the operation.
    pub fn state(&self) -> OperationState {
        match self {
            Self::Succeeded => OperationState::Succeeded,
            Self::Failed { .. } => OperationState::Failed,
            Self::Cancelled => OperationState::Cancelled,
        }
    }

    /// Returns the reason why it failed, if it did.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error, .. } => Some(error),
            Self::Succeeded | Self::Cancelled => None,
        }
    }
}

/// Decides the continuation of an operation that is found running at the start of the manager.
///
/// `client_alive` is true if the client of a termination still runs.
pub fn resume(operation: &Operation, client_alive: bool) -> Resume {
    match operation.request {
        OperationRequest::StartDaemon
        | OperationRequest::StopDaemon { .. }
        | OperationRequest::DeleteDaemon { .. }
        | OperationRequest::EndMaintenance
        | OperationRequest::ApplySpec { .. } => Resume::Finish,
        OperationRequest::DrainDaemon { .. }
        | OperationRequest::BeginMaintenance { .. }
        | OperationRequest::ApplyLayout { .. }
        | OperationRequest::ReplayLayout { .. } => undoing(operation).map_or(Resume::Finish, Resume::Undo),
        OperationRequest::RestartDaemon { .. } => {
            // Once the stop has been journaled as done, the driver brings the daemon up by itself; a second
            // stop would cost the clients that came since.
            let stopped = operation.steps.iter().any(|step| step.name == STOP && step.finished_at.is_some());
            if stopped { Resume::Done } else { Resume::Finish }
        }
        OperationRequest::TerminateClient { .. } if !client_alive => Resume::Done,
        OperationRequest::TerminateClient { .. } => Resume::Abandon(
            "the manager was restarted while the client was being terminated, and the termination may still take effect: if the client still \
             runs, terminate it again",
        ),
    }
}

/// Returns the reason why an operation was being undone when the manager died; `None` if it was not.
fn undoing(operation: &Operation) -> Option<Undo> {
    if operation.cancel_requested_at.is_some() {
        return Some(Undo::Cancelled);
    }
    let undo = operation.steps.iter().position(|step| step.name == UNDO)?;
    // The outcome of the step before has the error.
    let why = operation.steps[..undo].iter().rev().find_map(|step| step.outcome.clone());
    Some(Undo::Failed(why.unwrap_or_else(|| "it failed before the manager was restarted".to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(request: OperationRequest, steps: Vec<Step>) -> Operation {
        Operation {
            id: uuid::Uuid::nil(),
            request,
            daemons: vec![DaemonName::parse("gpu0").expect("name")],
            state: OperationState::Running,
            error: None,
            created_at: 0,
            started_at: Some(0),
            finished_at: None,
            cancellable: false,
            cancel_requested_at: None,
            steps,
        }
    }

    #[test]
    fn operation_kinds_match_their_api_names() {
        let unknown = serde_json::from_str::<OperationRequest>(r#"{"kind":"none"}"#).expect_err("no kind");
        let message = unknown.to_string();
        let (_, kinds) = message.split_once("expected one of ").expect("the kinds that there are");
        let kinds: Vec<&str> = kinds.split('`').skip(1).step_by(2).collect();
        assert_eq!(kinds, OperationRequest::KINDS);
        assert_eq!(OperationRequest::StartDaemon.kind(), OperationRequest::KINDS[0]);
    }

    #[test]
    fn a_restart_is_not_done_twice() {
        let request = OperationRequest::RestartDaemon { grace_s: 1 };
        let step = Step { name: STOP.into(), started_at: 0, finished_at: Some(1), outcome: None };
        assert_eq!(resume(&operation(request.clone(), vec![step]), false), Resume::Done);
        assert_eq!(resume(&operation(request, vec![]), false), Resume::Finish);
    }

    #[test]
    fn interrupted_drain_resumes_unless_undoing() {
        let request = OperationRequest::DrainDaemon { timeout_s: 1, on_timeout: OnTimeout::Fail };
        let step = |name: &str, outcome: Option<&str>| Step {
            name: name.into(),
            started_at: 0,
            finished_at: outcome.map(|_| 1),
            outcome: outcome.map(str::to_owned),
        };
        let waiting = vec![step("cordon", Some("cordoned")), step("wait for clients", None)];
        assert_eq!(resume(&operation(request.clone(), waiting.clone()), false), Resume::Finish);
        let mut cancelled = operation(request.clone(), waiting);
        cancelled.cancel_requested_at = Some(1);
        assert_eq!(resume(&cancelled, false), Resume::Undo(Undo::Cancelled));
        let failed = vec![step("wait for clients", Some("one is left")), step(UNDO, None)];
        assert_eq!(
            resume(&operation(request, failed), false),
            Resume::Undo(Undo::Failed("one is left".into()))
        );
        assert_eq!(resume(&operation(OperationRequest::EndMaintenance, vec![]), false), Resume::Finish);
    }

    #[test]
    fn interrupted_apply_resumes_unless_undoing() {
        let request: OperationRequest = serde_json::from_value(serde_json::json!({
            "kind": "apply_layout", "layout": "web", "version": 2, "drift_policy": "repair", "recreate": false, "note": null,
            "gpu_map": {"1": "GPU-514466a0-8e68-f857-9f73-e438010e48cb"},
        }))
        .expect("a request");
        assert!(
            matches!(&request, OperationRequest::ApplyLayout { gpu_map, .. } if gpu_map.contains_key(&1))
        );
        let text = serde_json::to_string(&request).expect("text");
        assert_eq!(serde_json::from_str::<OperationRequest>(&text).expect("read"), request);
        let step = |name: &str, outcome: Option<&str>| Step {
            name: name.into(),
            started_at: 0,
            finished_at: outcome.map(|_| 1),
            outcome: outcome.map(str::to_owned),
        };
        let made = [step("write the layout", Some("written")), step("add web", Some("GPU-a/b"))];
        assert_eq!(resume(&operation(request.clone(), made.to_vec()), false), Resume::Finish);
        let failed = [made.as_slice(), &[step("read back", Some("another ID")), step(UNDO, None)]].concat();
        assert_eq!(
            resume(&operation(request, failed), false),
            Resume::Undo(Undo::Failed("another ID".into()))
        );
    }

    #[test]
    fn interrupted_step_has_no_outcome() {
        let request = OperationRequest::DrainDaemon { timeout_s: 1, on_timeout: OnTimeout::Fail };
        let step = |outcome: Option<&str>| Step {
            name: "note".into(),
            started_at: 0,
            finished_at: outcome.map(|_| 1),
            outcome: outcome.map(str::to_owned),
        };
        let cut = operation(request.clone(), vec![step(None)]);
        assert_eq!(cut.outcome_of("note"), None);
        let again = operation(request, vec![step(None), step(Some("first")), step(Some("second"))]);
        assert_eq!(again.outcome_of("note"), Some("first"));
        assert_eq!(again.outcome_of("another"), None);
    }

    #[test]
    fn unfinished_termination_is_never_repeated() {
        let client = ClientId { pid: 1, start_time: 1 };
        let request = OperationRequest::TerminateClient { client, stopped: StoppedPolicy::Refuse };
        assert_eq!(resume(&operation(request.clone(), vec![]), false), Resume::Done);
        assert!(matches!(resume(&operation(request, vec![]), true), Resume::Abandon(_)));
    }
}
