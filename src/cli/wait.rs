//! Waiting for what takes time, with progress on a terminal.

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::time::Instant;
use uuid::Uuid;

use super::output::{DIFFERS, OutputFormat, complain, line, remark};
use crate::client::{Client, ClientError};
use crate::domain::operation::{END_CLIENTS, Operation, OperationState};
use crate::domain::printable::printable;

/// Interval at which the spinner of a progress line moves.
const TICK: Duration = Duration::from_millis(100);
/// Time for which the manager holds an answer, and so the interval at which a progress line shows the present step.
const NEWS: Duration = Duration::from_secs(1);
/// Longest time for which the manager holds an answer.
const LONGEST: Duration = Duration::from_secs(60);
/// Interval between attempts to reach a manager that is away.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which the manager may be away, as for a restart.
const AWAY: Duration = Duration::from_secs(30);
/// Exit code of a program that SIGINT ended, as shells report it.
pub(super) const INTERRUPTED: u8 = 130;

/// Option for commands that wait by default.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct WaitArgs {
    /// Return at once: the server goes on by itself
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// Adds the query by which the manager holds its answer, in whole seconds and for at most [`LONGEST`].
pub(super) fn waiting(path: &str, longest: Duration) -> String {
    let seconds = longest.min(LONGEST).as_secs();
    if seconds == 0 { path.to_owned() } else { format!("{path}?wait_s={seconds}") }
}

/// Repeats a read while the manager is away, as long as a restart may take; `waits` is called before each pause.
pub(super) async fn when_back<T>(
    read: impl AsyncFn() -> Result<T, ClientError>,
    waits: impl Fn(),
) -> Result<T, ClientError> {
    let until = Instant::now() + AWAY;
    loop {
        match read().await {
            Err(error) if error.is_away() && Instant::now() < until => waits(),
            answer => return answer,
        }
        tokio::time::sleep(RETRY).await;
    }
}

/// A progress line on a terminal; prints nothing elsewhere.
pub(super) struct ProgressLine(Option<ProgressBar>);

impl ProgressLine {
    pub(super) fn new(text: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})");
            let bar = ProgressBar::new_spinner().with_style(style.expect("a constant template"));
            bar.enable_steady_tick(TICK);
            bar
        });
        let progress = Self(bar);
        progress.say(text);
        progress
    }

    pub(super) fn say(&self, text: &str) {
        if let Some(bar) = &self.0 {
            bar.set_message(printable(text).into_owned());
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Words about an operation, for progress and its result.
pub(super) struct OperationWords<'a> {
    /// Text while it runs, as `restarting daemon gpu0`.
    pub(super) doing: &'a str,
    /// Text after success, as `daemon gpu0 is ready`.
    pub(super) done: &'a str,
    /// Text after a failure, as `daemon gpu0 was not restarted`.
    pub(super) failed: &'a str,
}

/// Waits for an operation and prints its result; exit 1 if it did not succeed.
pub(super) async fn follow(
    client: &Client,
    operation: Operation,
    wait: WaitArgs,
    format: OutputFormat,
    outcome: OperationWords<'_>,
) -> Result<ExitCode, ClientError> {
    let (operation, code) = follow_one_of_several(client, operation, wait, format, outcome).await?;
    format.print_value(&operation);
    Ok(code)
}

/// Waits for one of several operations and prints its result, except as JSON or YAML: the caller prints all as one document.
pub(super) async fn follow_one_of_several(
    client: &Client,
    operation: Operation,
    wait: WaitArgs,
    format: OutputFormat,
    outcome: OperationWords<'_>,
) -> Result<(Operation, ExitCode), ClientError> {
    let id = operation.id.to_string();
    let announce = |sentence: &str, operation: &Operation| {
        if !format.is_structured() {
            format.announce(sentence, &id, operation);
        }
    };
    if wait.no_wait && !operation.state.is_final() {
        let sentence = format!("{}: operation {id} (mps-manager operation wait {id})", outcome.doing);
        announce(&sentence, &operation);
        return Ok((operation, ExitCode::SUCCESS));
    }
    let operation = ended(client, operation, outcome.doing).await?;
    if format == OutputFormat::Wide {
        print_steps(&operation);
    }
    if operation.state == OperationState::Succeeded {
        announce(&format!("{}{}", outcome.done, took(&operation)), &operation);
        if let Some(ended) = operation.outcome_of(END_CLIENTS) {
            remark(ended);
        }
        return Ok((operation, ExitCode::SUCCESS));
    }
    let why = operation.error.clone().unwrap_or_else(|| operation.state.as_str().to_owned());
    complain(&format!("{}: {why}", outcome.failed));
    remark(&format!("`mps-manager operation get {id}` shows its steps"));
    Ok((operation, ExitCode::from(DIFFERS)))
}

/// Returns the duration of an operation, as ` (0.3 s)`; empty if it is not known.
fn took(operation: &Operation) -> String {
    let (Some(began), Some(ended)) = (operation.started_at, operation.finished_at) else {
        return String::new();
    };
    let ms = (ended - began).max(0);
    format!(" ({}.{} s)", ms / 1000, ms % 1000 / 100)
}

/// Prints the steps of an operation.
pub(super) fn print_steps(operation: &Operation) {
    for step in &operation.steps {
        line!("{}: {}", step.name, printable(step.outcome.as_deref().unwrap_or("running")));
    }
}

/// Waits until an operation has ended. An interrupted wait leaves it running, and says so.
pub(super) async fn ended(
    client: &Client,
    operation: Operation,
    doing: &str,
) -> Result<Operation, ClientError> {
    let (id, progress) = (operation.id, ProgressLine::new(doing));
    tokio::select! {
        ended = polled_to_its_end(client, operation, doing, &progress) => ended,
        _ = tokio::signal::ctrl_c() => {
            remark(&format!("\noperation {id} goes on without this command: `mps-manager operation wait {id}`"));
            std::process::exit(INTERRUPTED.into());
        }
    }
}

/// Waits until an operation of one of several hosts has ended; the caller shows how many have.
pub(super) async fn ended_among_others(
    client: &Client,
    operation: Operation,
) -> Result<Operation, ClientError> {
    polled_to_its_end(client, operation, "", &ProgressLine(None)).await
}

async fn polled_to_its_end(
    client: &Client,
    mut operation: Operation,
    doing: &str,
    progress: &ProgressLine,
) -> Result<Operation, ClientError> {
    while !operation.state.is_final() {
        operation = read_again(client, operation.id, doing, progress).await?;
        let step = operation.steps.last().map(|step| match &step.outcome {
            Some(outcome) => format!("{doing}: {} ({outcome})", step.name),
            None => format!("{doing}: {}", step.name),
        });
        progress.say(step.as_deref().unwrap_or(doing));
    }
    Ok(operation)
}

/// Reads the operation again. A manager that is away is waited for: it resumes the operation when it is back.
async fn read_again(
    client: &Client,
    id: Uuid,
    doing: &str,
    progress: &ProgressLine,
) -> Result<Operation, ClientError> {
    let path = waiting(&format!("/api/v1/operations/{id}"), NEWS);
    let waits = || progress.say(&format!("{doing}: waiting for the manager"));
    when_back(async || client.get(&path).await, waits).await.map_err(|error| match error {
        error if error.is_away() => format!(
            "{error}\nOperation {id} is resumed when the manager is back: `mps-manager operation wait {id}` waits for it"
        )
        .into(),
        error => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lost_manager_leaves_the_operations_id() {
        let client = Client::over_url("http://127.0.0.1:1", None, None).expect("a URL");
        let (began, id) = (Instant::now(), Uuid::nil());
        let progress = ProgressLine::new("restarting");
        let read = read_again(&client, id, "restarting", &progress).await;
        let error = read.expect_err("nobody listens").to_string();
        assert!(error.contains(&format!("`mps-manager operation wait {id}`")), "{error}");
        assert!(began.elapsed() >= AWAY);
    }
}
