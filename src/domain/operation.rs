//! Operations: actions that take time, with a journal of their steps.

use serde::{Deserialize, Serialize};

use super::client::{ClientId, StoppedPolicy};
use super::layout::active::PartitionPolicy;
use super::layout::{GpuMap, roles};
use super::maintenance::OnTimeout;
use super::{DaemonName, GpuUuid, LayoutName};

/// What an operation does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OperationRequest {
    /// Brings the daemon to what its spec says, running.
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
    /// Stops the daemon and forgets it.
    DeleteDaemon {
        /// Seconds its clients are given to end.
        grace_s: u32,
    },
    /// Ends a client in the safe order.
    TerminateClient {
        /// The client.
        client: ClientId,
        /// What to do where it is stopped.
        #[serde(default)]
        stopped: StoppedPolicy,
    },
    /// Takes no new clients and waits until none is left; succeeded, the daemon stays cordoned.
    DrainDaemon {
        /// Seconds that clients get to end by themselves.
        timeout_s: u32,
        /// What happens to those that are still there then.
        on_timeout: OnTimeout,
    },
    /// Drains and stops the daemons of these GPUs and closes the driver.
    BeginMaintenance {
        /// The GPUs.
        gpus: Vec<GpuUuid>,
        /// Seconds that clients get to end by themselves.
        timeout_s: u32,
        /// What happens to those that are still there then.
        on_timeout: OnTimeout,
    },
    /// Brings everything back that maintenance took down.
    EndMaintenance,
    /// Puts a layout on the daemon; failed, it has the layout that it had before.
    ApplyLayout {
        /// The layout.
        layout: LayoutName,
        /// Its version.
        version: u32,
        /// Which GPU plays which role.
        #[serde(with = "roles")]
        #[schema(schema_with = crate::layout::roles_by_uuid)]
        gpu_map: GpuMap,
        /// What to do about partitions that another program makes or removes.
        drift_policy: PartitionPolicy,
        /// Whether partitions that stay may be made again.
        recreate: bool,
        /// Why it is done.
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
    /// Carries out what a host file changed: waits for its daemons, applies layouts, and deletes what was pruned.
    ApplySpec {
        /// How many changes the file made.
        changes: u32,
        /// Whether what the file does not have is deleted.
        prune: bool,
        /// The daemons that are waited for until they are ready.
        daemons: Vec<DaemonName>,
        /// The layouts that are put on daemons which run, each by an operation of its own.
        layouts: Vec<HostLayout>,
        /// The daemons that are deleted, each by an operation of its own.
        delete_daemons: Vec<DaemonName>,
        /// The layouts that are deleted once no daemon has them.
        delete_layouts: Vec<LayoutName>,
    },
}

/// A layout that a host file puts on a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HostLayout {
    /// The daemon.
    pub daemon: DaemonName,
    /// The layout.
    pub layout: LayoutName,
    /// Its version.
    pub version: u32,
    /// Which GPU plays which role.
    #[serde(with = "roles")]
    #[schema(schema_with = crate::layout::roles_by_uuid)]
    pub gpu_map: GpuMap,
    /// What to do about partitions that another program makes or removes.
    pub drift_policy: PartitionPolicy,
    /// Whether partitions that stay may be made again.
    #[serde(default)]
    pub recreate: bool,
}

impl HostLayout {
    /// The operation that puts it on its daemon.
    pub fn request(&self) -> OperationRequest {
        let Self { layout, version, gpu_map, drift_policy, recreate, .. } = self.clone();
        let note = Some("host file".to_owned());
        OperationRequest::ApplyLayout { layout, version, gpu_map, drift_policy, recreate, note }
    }
}

impl OperationRequest {
    /// What [`OperationRequest::kind`] may give.
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

    /// One word for logs and lists.
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

    /// Whether what it did is undone when it does not complete.
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
    /// Called off: before it began, or where its last step says.
    Cancelled,
}

impl OperationState {
    /// All states, in the order in which an operation can come to them.
    pub const ALL: [Self; 5] = [Self::Pending, Self::Running, Self::Succeeded, Self::Failed, Self::Cancelled];

    /// Reads one word.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|state| state.as_str() == text);
        found.ok_or_else(|| {
            let known = Self::ALL.map(Self::as_str).join(", ");
            let shown: String = text.chars().take(80).collect();
            format!("{shown:?} is not a state of an operation: give one of {known}")
        })
    }

    /// The word in the store and in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether nothing more will happen to it.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// Which operations.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OperationFilter {
    /// Those that work on this daemon.
    pub daemon: Option<DaemonName>,
    /// Those in one of these states; in any, if none is named.
    pub states: Vec<OperationState>,
    /// Those requested at this time or later.
    pub since: Option<i64>,
}

impl OperationFilter {
    /// Those that are not over, of all daemons.
    pub fn unfinished() -> Self {
        Self { states: vec![OperationState::Pending, OperationState::Running], ..Self::default() }
    }

    /// Reads states with commas between.
    pub fn parse_states(text: &str) -> Result<Vec<OperationState>, String> {
        text.split(',').map(OperationState::parse).collect()
    }
}

/// One step of an operation: written before it is taken, completed after.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Step {
    /// What is done.
    pub name: String,
    /// When it began.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub started_at: i64,
    /// When it ended; `null` while it runs, or when the manager died in it.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub finished_at: Option<i64>,
    /// Its outcome; while it runs, what it waits for, if that is known.
    pub outcome: Option<String>,
}

/// An operation with its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Operation {
    /// Its ID, a UUID of version 7.
    pub id: uuid::Uuid,
    /// What it does.
    pub request: OperationRequest,
    /// The daemons it works on; one operation at a time runs on each.
    pub daemons: Vec<DaemonName>,
    /// Its state.
    pub state: OperationState,
    /// Why it failed.
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
    /// Whether it is running and can be stopped where it is.
    pub cancellable: bool,
    /// When its cancellation was requested while it ran.
    #[serde(with = "crate::rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub cancel_requested_at: Option<i64>,
    /// Its steps so far.
    pub steps: Vec<Step>,
}

impl Operation {
    /// What came of a step, from the first time that it completed.
    pub fn outcome_of(&self, name: &str) -> Option<&str> {
        let ended = |step: &&Step| step.name == name && step.finished_at.is_some();
        self.steps.iter().filter(ended).find_map(|step| step.outcome.as_deref())
    }
}

/// What a restarted manager does with an operation that was under way when it died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resume {
    /// Take it up again: its steps say what should be, and doing them twice is harmless.
    Finish,
    /// It was cancelled, or had failed and was being undone: undo what it did.
    Undo(Undo),
    /// Its effect is seen already.
    Done,
    /// Its outcome is unknown, and it is not repeated.
    Abandon(&'static str),
}

/// Why an operation is undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Undo {
    /// It was requested.
    Cancelled,
    /// A step failed.
    Failed(String),
}

/// The step in which a restart stops its daemon.
pub const STOP: &str = "stop";

/// The step in which an operation is undone.
pub const UNDO: &str = "undo";

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationEnd {
    /// All of it was done.
    Succeeded,
    /// It was given up.
    Failed {
        /// Why, in words for the operator.
        error: String,
        /// Whether it may have done what was requested, or may yet.
        outcome_is_unknown: bool,
    },
    /// It was called off.
    Cancelled,
}

impl OperationEnd {
    /// The state that it leaves the operation in.
    pub fn state(&self) -> OperationState {
        match self {
            Self::Succeeded => OperationState::Succeeded,
            Self::Failed { .. } => OperationState::Failed,
            Self::Cancelled => OperationState::Cancelled,
        }
    }

    /// Why it failed, if it did.
    pub fn error(&self) -> Option<&str> {
        match self {
            Self::Failed { error, .. } => Some(error),
            Self::Succeeded | Self::Cancelled => None,
        }
    }
}

/// Decides what becomes of an operation found running at start.
///
/// `client_alive` is whether the client that a termination named still runs.
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

/// Why an operation that can be undone was on its way back when the manager died.
fn undoing(operation: &Operation) -> Option<Undo> {
    if operation.cancel_requested_at.is_some() {
        return Some(Undo::Cancelled);
    }
    let undo = operation.steps.iter().position(|step| step.name == UNDO)?;
    // The step before says what went wrong.
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
        let (_, known) = message.split_once("expected one of ").expect("the kinds that there are");
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        assert_eq!(known, OperationRequest::KINDS);
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
