//! Operations: the list, and one step by step while it runs.

use askama::Template;
use axum::Router;
use axum::response::{IntoResponse as _, Redirect};
use axum::routing::{get, post};
use uuid::Uuid;

use super::format::{self, Badge, Lasting, Tone};
use super::frame::{Frame, PageLink, Section};
use super::gpus::GpuDisplayNames;
use super::lists::{ListQuery, list_page};
use super::rendered;
use crate::domain::access::Role;
use crate::domain::event::{EventCause, EventFilter, EventType};
use crate::domain::maintenance::OnTimeout;
use crate::domain::operation::{Operation, OperationFilter, OperationRequest, OperationState, Step};
use crate::domain::{DaemonName, GpuUuid};
use crate::http::AppState;
use crate::http::extract::{Call, Path};
use crate::http::problem::{Problem, Reply};
use crate::service::WriteOptions;
use crate::service::events::Order;
use crate::service::page::Page;

/// Most operations shown as running.
const MAX_ACTIVE: u32 = 10;
/// The states that the filter offers.
const STATES: [(&str, &str); 4] = [
    ("pending,running", "active"),
    ("succeeded", "succeeded"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
];

pub(super) fn router() -> Router<AppState> {
    Router::new()
        .route("/operations", get(list))
        .route("/operations/{id}", get(show))
        .route("/operations/{id}/cancel", post(cancel))
}

list_page!(OperationsPage, "operations.html", OperationSummary);

impl OperationsPage {
    /// Returns true if the filter offers the selected state: an address may name others.
    fn is_offered(&self) -> bool {
        let state = self.query.text("state");
        state.is_empty() || STATES.iter().any(|(value, _)| *value == state)
    }
}

#[derive(Template)]
#[template(path = "operation.html")]
struct OperationPage {
    frame: Frame,
    row: OperationSummary,
    steps: Vec<StepRow>,
    facts: Vec<(&'static str, String)>,
    /// The GPUs that it changes, and their names.
    gpus: Vec<GpuUuid>,
    names: GpuDisplayNames,
    /// Actor who requested it, as long as its event exists.
    by: Option<String>,
    /// Effect of cancelling it; `None` if it cannot be cancelled.
    cancel_effect: Option<&'static str>,
}

/// An operation as lists and its page show it.
pub(super) struct OperationSummary {
    now: i64,
    pub(super) operation: Operation,
    pub(super) badge: Badge,
    /// Its verb, as `Restart`.
    pub(super) verb: String,
    /// Its subjects, in the order of the links back.
    pub(super) subjects: Vec<PageLink>,
}

impl OperationSummary {
    pub(super) fn of(operation: Operation, now: i64) -> Self {
        Self {
            now,
            badge: format::operation(operation.state),
            verb: verb(&operation.request),
            subjects: subjects(&operation),
            operation,
        }
    }

    /// Its title: the verb and the first subject.
    pub(super) fn title(&self) -> String {
        let subject = self.subjects.first().map_or("", |subject| subject.label.as_str());
        format!("{} {subject}", self.verb)
    }

    /// Its duration so far; `None` before it starts.
    pub(super) fn lasting(&self) -> Option<Lasting> {
        let begun = self.operation.started_at?;
        Some(Lasting::between(begun, self.operation.finished_at.unwrap_or(self.now)))
    }

    /// Its latest status, in one line.
    fn progress(&self) -> String {
        if let Some(error) = &self.operation.error {
            return error.clone();
        }
        let Some(step) = self.operation.steps.last() else { return "–".to_owned() };
        match &step.outcome {
            Some(outcome) => format!("{}: {outcome}", step.name),
            None => step.name.clone(),
        }
    }

    /// The present step, with what it waits for if known.
    pub(super) fn now(&self) -> String {
        match self.operation.steps.last() {
            Some(_) => self.progress(),
            None => "waiting: only one operation at a time runs on a daemon".to_owned(),
        }
    }

    pub(super) fn is_stopping(&self) -> bool {
        !self.operation.state.is_final() && self.operation.cancel_requested_at.is_some()
    }
}

/// A step of an operation.
struct StepRow {
    step: Step,
    lasting: Lasting,
    badge: Badge,
}

impl StepRow {
    /// Creates the row of a step; `is_last` is true if no step follows.
    fn of(step: &Step, operation: &Operation, is_last: bool, now: i64) -> Self {
        // The operation's error begins with the failed step's outcome; the steps that undo it follow.
        let error = operation.error.as_deref().unwrap_or_default();
        let of_error = |step: &Step| {
            step.outcome.as_deref().is_some_and(|outcome| !outcome.is_empty() && error.starts_with(outcome))
        };
        let is_failure = if operation.steps.iter().any(of_error) { of_error(step) } else { is_last };
        let badge = match (step.finished_at, operation.state) {
            (None, OperationState::Running) if is_last => Badge::of("running"),
            (None, _) => Badge::new("interrupted", Tone::Warn),
            (Some(_), OperationState::Failed) if is_failure => Badge::of("failed"),
            (Some(_), _) => Badge::of("done"),
        };
        let lasting = Lasting::between(step.started_at, step.finished_at.unwrap_or(now));
        Self { step: step.clone(), lasting, badge }
    }
}

/// The verb of an operation, from its kind.
fn verb(request: &OperationRequest) -> String {
    let mut letters = request.kind().chars().take_while(|letter| *letter != '_');
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

/// The subjects of an operation, first the one that the user came from.
fn subjects(operation: &Operation) -> Vec<PageLink> {
    let subject = match &operation.request {
        OperationRequest::TerminateClient { client, .. } => {
            Some((format!("/clients/{client}"), format!("client {}", client.pid)))
        }
        OperationRequest::BeginMaintenance { .. } | OperationRequest::EndMaintenance => {
            Some(("/settings#maintenance".to_owned(), "maintenance".to_owned()))
        }
        OperationRequest::ApplyLayout { layout, version, .. } => {
            let href = format!("/layouts/{layout}/versions/{version}");
            Some((href, format!("layout {layout} version {version}")))
        }
        OperationRequest::ReplayLayout { replay, layout, version } => {
            Some((format!("/replays/{replay}"), format!("layout {layout} version {version}")))
        }
        OperationRequest::ApplySpec { .. } => {
            Some(("/settings#host-file".to_owned(), "host file".to_owned()))
        }
        OperationRequest::StartDaemon
        | OperationRequest::StopDaemon { .. }
        | OperationRequest::RestartDaemon { .. }
        | OperationRequest::DeleteDaemon { .. }
        | OperationRequest::DrainDaemon { .. } => None,
    };
    let gone = matches!(operation.request, OperationRequest::DeleteDaemon { .. })
        && operation.state == OperationState::Succeeded;
    let daemons = operation.daemons.iter().map(|name| {
        let href = if gone { "/daemons".to_owned() } else { format!("/daemons/{name}") };
        (href, format!("daemon {name}"))
    });
    subject.into_iter().chain(daemons).map(|(href, label)| PageLink { href, label }).collect()
}

/// The parameters of the request.
fn facts(request: &OperationRequest) -> Vec<(&'static str, String)> {
    let grace = |seconds: u32| vec![("Grace for clients", format!("{seconds} s"))];
    let drain = |timeout_s: u32, on_timeout: OnTimeout| {
        let then = match on_timeout {
            OnTimeout::Fail => "they keep running, and the operation fails",
            OnTimeout::Terminate => "they are terminated",
        };
        vec![("Clients get", format!("{timeout_s} s to end")), ("Those left then", then.to_owned())]
    };
    match request {
        OperationRequest::StopDaemon { grace_s }
        | OperationRequest::RestartDaemon { grace_s }
        | OperationRequest::DeleteDaemon { grace_s } => grace(*grace_s),
        OperationRequest::DrainDaemon { timeout_s, on_timeout }
        | OperationRequest::BeginMaintenance { timeout_s, on_timeout, .. } => drain(*timeout_s, *on_timeout),
        OperationRequest::ApplyLayout { recreate, drain: limit, note, .. } => {
            let kept = if *recreate { "may be recreated" } else { "unchanged" };
            let mut facts = vec![("Partitions that stay", kept.to_owned())];
            facts.extend(limit.iter().flat_map(|limit| drain(limit.timeout_s, limit.on_timeout)));
            facts.extend(note.clone().map(|note| ("Note", note)));
            facts
        }
        OperationRequest::ApplySpec { changes, prune, .. } => vec![
            ("Changes", changes.to_string()),
            ("What the file lacks", if *prune { "is deleted" } else { "stays" }.to_owned()),
        ],
        OperationRequest::StartDaemon
        | OperationRequest::TerminateClient { .. }
        | OperationRequest::EndMaintenance
        | OperationRequest::ReplayLayout { .. } => Vec::new(),
    }
}

/// The effect of cancelling an operation; `None` if it cannot be cancelled.
pub(super) fn cancel_effect(operation: &Operation) -> Option<&'static str> {
    match operation.state {
        OperationState::Pending => Some("It has not started, and never will once it is cancelled."),
        OperationState::Running if operation.cancellable && operation.cancel_requested_at.is_none() => {
            Some("It stops and undoes its changes.")
        }
        _ => None,
    }
}

async fn list(call: Call, query: ListQuery) -> Reply {
    let operations = async {
        let filter = OperationFilter {
            daemon: query.parsed("daemon", DaemonName::parse)?,
            states: query.parsed("state", OperationFilter::parse_states)?.unwrap_or_default(),
            since: None,
        };
        call.app.service.operations(&call.ctx, &filter, &query.page()?).await
    };
    let page = query.list(&call, Section::Operations, &["daemon", "state"], operations).await?;
    let page = page.map(|operation| OperationSummary::of(operation, call.now()));
    Ok(page.with_daemons(&call).await?.answer(|page| OperationsPage { page }))
}

/// Active operations, newest first: all, or those of a daemon.
pub(super) async fn under_way(
    call: &Call,
    daemon: Option<&DaemonName>,
) -> Result<Vec<OperationSummary>, Problem> {
    let filter = OperationFilter { daemon: daemon.cloned(), ..OperationFilter::unfinished() };
    let active = call.app.service.operations(&call.ctx, &filter, &Page::first(MAX_ACTIVE)).await?.items;
    Ok(active.into_iter().map(|operation| OperationSummary::of(operation, call.now())).collect())
}

async fn show(call: Call, Path(id): Path<Uuid>) -> Reply {
    let Call { app, ctx } = &call;
    let operation = app.service.operation(ctx, id).await?;
    let by = requested_by(&call, id).await?;
    let (last, now) = (operation.steps.len().saturating_sub(1), call.now());
    let step = |(at, step): (usize, &Step)| StepRow::of(step, &operation, at == last, now);
    let steps = operation.steps.iter().enumerate().map(step).collect();
    let facts = facts(&operation.request);
    let row = OperationSummary::of(operation, now);
    let frame = call.frame(Section::Operations, &row.title()).await.live();
    let cancel_effect = cancel_effect(&row.operation).filter(|_| frame.operates());
    let (gpus, names) = match &row.operation.request {
        OperationRequest::ApplyLayout { gpu_map, .. } if frame.may(Role::Viewer) => {
            (gpu_map.values().cloned().collect(), call.gpu_names().await)
        }
        _ => (Vec::new(), GpuDisplayNames::default()),
    };
    Ok(rendered(&OperationPage { frame, row, steps, facts, gpus, names, by, cancel_effect }))
}

/// Finds the actor who requested an operation, from its event; `None` once that is pruned.
async fn requested_by(Call { app, ctx }: &Call, id: Uuid) -> Result<Option<String>, Problem> {
    let filter = EventFilter {
        types: vec![EventType::OperationRequested],
        operation: Some(id),
        ..EventFilter::default()
    };
    let requested = app.service.events(ctx, filter, Order::OldestFirst, &Page::first(1)).await?.items;
    Ok(requested.into_iter().next().map(|event| match event.cause {
        EventCause::Actor { subject } => subject,
        _ => "the manager itself".to_owned(),
    }))
}

async fn cancel(Call { app, ctx }: Call, Path(id): Path<Uuid>) -> Reply {
    app.service.cancel_operation(&ctx, id, WriteOptions::default()).await?;
    Ok(Redirect::to(&format!("/operations/{id}")).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(state: OperationState, request: OperationRequest) -> Operation {
        Operation {
            id: Uuid::nil(),
            request,
            daemons: vec!["gpu0".parse().expect("a name")],
            state,
            error: None,
            created_at: 0,
            started_at: Some(0),
            finished_at: None,
            cancellable: false,
            cancel_requested_at: None,
            steps: Vec::new(),
        }
    }

    #[test]
    fn unfinished_step_runs_only_in_a_running_operation() {
        let step = |finished_at| Step { name: "stop".into(), started_at: 0, finished_at, outcome: None };
        let word = |finished_at, state, is_last| {
            let operation = operation(state, OperationRequest::StartDaemon);
            StepRow::of(&step(finished_at), &operation, is_last, 0).badge.word
        };
        assert_eq!(word(None, OperationState::Running, true), "running");
        assert_eq!(word(None, OperationState::Running, false), "interrupted", "a manager died in it");
        assert_eq!(word(None, OperationState::Failed, true), "interrupted");
        assert_eq!(word(Some(1), OperationState::Failed, true), "failed");
        assert_eq!(word(Some(1), OperationState::Failed, false), "done");
    }

    #[test]
    fn failed_step_differs_from_undo_steps() {
        let step = |name: &str, outcome: &str| Step {
            name: name.into(),
            started_at: 0,
            finished_at: Some(1),
            outcome: Some(outcome.into()),
        };
        let drain = OperationRequest::DrainDaemon { timeout_s: 1, on_timeout: OnTimeout::Fail };
        let mut failed = operation(OperationState::Failed, drain);
        failed.error = Some("1 client is there".into());
        failed.steps = vec![step("wait for clients", "1 client is there"), step("undo", "schedulable again")];
        let words: Vec<&str> = failed
            .steps
            .iter()
            .enumerate()
            .map(|(at, step)| StepRow::of(step, &failed, at == 1, 0).badge.word)
            .collect();
        assert_eq!(words, ["failed", "done"]);
    }

    #[test]
    fn cancellation_is_offered_once() {
        let drain = OperationRequest::DrainDaemon { timeout_s: 1, on_timeout: OnTimeout::Fail };
        assert!(cancel_effect(&operation(OperationState::Pending, drain.clone())).is_some());
        let mut running = operation(OperationState::Running, drain);
        assert!(cancel_effect(&running).is_none());
        running.cancellable = true;
        assert!(cancel_effect(&running).is_some());
        running.cancel_requested_at = Some(1);
        assert!(cancel_effect(&running).is_none());
    }

    #[test]
    fn titles_repeat_no_word() {
        let title = |request| OperationSummary::of(operation(OperationState::Pending, request), 0).title();
        let layout: crate::domain::LayoutName = "prod".parse().expect("a name");
        let (replay, version) = (Uuid::nil(), 1);
        assert_eq!(
            title(OperationRequest::ReplayLayout { replay, layout, version }),
            "Replay layout prod version 1"
        );
        assert_eq!(title(OperationRequest::EndMaintenance), "End maintenance");
        assert_eq!(title(OperationRequest::StartDaemon), "Start daemon gpu0");
    }

    #[test]
    fn link_back_from_deleted_daemon_is_the_list() {
        let delete = OperationRequest::DeleteDaemon { grace_s: 1 };
        let back = |state| subjects(&operation(state, delete.clone()))[0].href.clone();
        assert_eq!(back(OperationState::Running), "/daemons/gpu0");
        assert_eq!(back(OperationState::Failed), "/daemons/gpu0");
        assert_eq!(back(OperationState::Succeeded), "/daemons");
    }
}
