//! `mps-manager status`: the host at a glance.

use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use reqwest::StatusCode;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use super::incident;
use super::nouns::{DAEMON, FOREIGN, GPU, INCIDENT, TENANT};
use super::output::{AlternateScreen, DIFFERS, ListLayout, OutputFormat, condition_sentence, line, remark};
use super::server::CallArgs;
use super::wait::INTERRUPTED;
use crate::client::{Client, ClientError};
use crate::domain::attention::{AttentionItem, attention_items};
use crate::domain::condition::{Condition, ConditionType, ReasonOutlook, ready};
use crate::domain::count::counted;
use crate::domain::duration::parse_duration;
use crate::domain::incident::IncidentState;
use crate::http::api::probes::Readiness;
use crate::service::daemons::DaemonView;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::host::{GpuView, HostView};
use crate::service::incidents::IncidentView;
use crate::service::tenants::TenantView;
use crate::words::tenant::{MARK, has_mark};

/// The shortest time between two snapshots.
const SHORTEST: Duration = Duration::from_millis(200);

/// The arguments of `status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager status
  mps-manager status --watch        every 2 seconds
  mps-manager status --watch 10s
  mps-manager status -o json")]
pub(super) struct StatusArgs {
    /// Show it again and again until interrupted; in a pipe or a file, once
    #[arg(short, long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "2s",
        value_parser = parse_duration)]
    watch: Option<Duration>,
    #[command(flatten)]
    call: CallArgs,
}

/// Everything that `status` and `top` show, read at about the same time.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct HostSnapshot {
    pub(super) host: HostView,
    readiness: Readiness,
    #[serde(skip)]
    pub(super) is_ready: bool,
    pub(super) gpus: Vec<GpuView>,
    pub(super) daemons: Vec<DaemonView>,
    pub(super) tenants: Vec<TenantView>,
    foreign_daemons: Vec<ForeignDaemonView>,
    /// Incidents that are open, or recent and not acknowledged.
    pub(super) incidents: Vec<IncidentView>,
}

impl HostSnapshot {
    /// Reads it.
    pub(super) async fn read(client: &Client) -> Result<Self, ClientError> {
        let host: HostView = client.get("/api/v1/host").await?;
        let (gpus, daemons) = (GPU.read(client, &[], 0).await?, DAEMON.read(client, &[], 0).await?);
        let tenants = TENANT.read(client, &[], 0).await?;
        let foreign_daemons = FOREIGN.read(client, &[], 0).await?;
        let incidents = INCIDENT.read(client, &[("current", Some("true".to_owned()))], 0).await?;
        let (code, readiness): (StatusCode, Readiness) = client.get_any("/readyz").await?;
        let is_ready = code.is_success();
        Ok(Self { host, readiness, is_ready, gpus, daemons, tenants, foreign_daemons, incidents })
    }
}

/// Prints the host; exit 1 if something is not ready, or an incident is open.
pub(super) async fn run(args: StatusArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let is_terminal = std::io::stdout().is_terminal();
    if let Some(interval) = args.watch.filter(|_| is_terminal) {
        return watch(&client, interval.max(SHORTEST), args.call.format()).await;
    }
    if args.watch.is_some() {
        remark("The output is not a terminal, so this is shown once.");
    }
    print_once(&client, args.call.format()).await
}

/// Shows the host again and again until a signal ends it.
async fn watch(client: &Client, interval: Duration, format: OutputFormat) -> Result<ExitCode, ClientError> {
    let failed = |error: std::io::Error| ClientError::Caller(format!("signals cannot be handled: {error}"));
    let (mut terminate, mut hang_up) =
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::hangup()).map_err(failed)?);
    let screen = AlternateScreen::enter();
    tokio::select! {
        never = repeat(client, &screen, interval, format) => match never {},
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(INTERRUPTED)),
        _ = terminate.recv() => Ok(ExitCode::SUCCESS),
        _ = hang_up.recv() => Ok(ExitCode::SUCCESS),
    }
}

async fn repeat(
    client: &Client,
    screen: &AlternateScreen,
    interval: Duration,
    format: OutputFormat,
) -> Infallible {
    loop {
        // A server that is being restarted comes back: the next reading shows it.
        match HostSnapshot::read(client).await {
            Ok(snapshot) => screen.show(|| print(&snapshot, format, true)),
            Err(error) => screen.show(|| line!("the host could not be read: {error}")),
        }
        tokio::time::sleep(interval).await;
    }
}

/// Prints the host as it is now; exit 1 if something is not ready, or an incident is open.
pub(super) async fn print_once(client: &Client, format: OutputFormat) -> Result<ExitCode, ClientError> {
    let snapshot = HostSnapshot::read(client).await?;
    print(&snapshot, format, false);
    // The manager is at work without its host file, so that /readyz does not name it; the host is not as the file says.
    let holds_back_file = |condition: &Condition| condition.kind == ConditionType::HostFileNotApplied;
    let is_well = snapshot.is_ready
        && !snapshot.host.conditions.iter().any(holds_back_file)
        && snapshot
            .daemons
            .iter()
            .flat_map(|daemon| &daemon.status)
            .all(|status| is_as_desired(&status.conditions))
        && snapshot.tenants.iter().all(|tenant| is_as_desired(&tenant.status.conditions))
        && !incident::has_open(&snapshot.incidents);
    Ok(if is_well { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

/// Returns true for something that is ready, or of which its daemon, a cordon, maintenance or its expiry is the reason that it is not: the
/// daemon is checked itself, and an operator wanted the others.
fn is_as_desired(conditions: &[Condition]) -> bool {
    ready(conditions).is_none_or(|ready| {
        ready.status || matches!(ready.reason.outlook(), ReasonOutlook::OfDaemon | ReasonOutlook::Wanted)
    })
}

/// Prints a snapshot; output that may be cut begins with the incidents and conditions.
fn print(snapshot: &HostSnapshot, format: OutputFormat, may_be_cut: bool) {
    if format == OutputFormat::Name {
        return line!("{}", snapshot.host.hostname);
    }
    if format.print_value(snapshot) {
        return;
    }
    print_host(&snapshot.host, format);
    if may_be_cut {
        print_problems(snapshot, format);
    }
    line!("");
    print_section(&snapshot.daemons, DAEMON.layout(), format);
    line!("");
    print_section(&snapshot.tenants, TENANT.layout(), format);
    if has_mark(&snapshot.tenants) {
        line!("{}", MARK);
    }
    if !may_be_cut {
        print_problems(snapshot, format);
    }
    if !snapshot.foreign_daemons.is_empty() {
        line!("\nForeign control daemons (`mps-manager daemon adopt` takes one over):");
        FOREIGN.layout().print_rows(&snapshot.foreign_daemons, format);
        if snapshot.foreign_daemons.iter().any(|daemon| daemon.lost) {
            line!(
                "This manager's database has lost daemons of its own: `mps-manager daemon adopt --all-ours` takes them back"
            );
        }
    }
}

/// Prints the incidents, and what else needs attention.
fn print_problems(snapshot: &HostSnapshot, format: OutputFormat) {
    if !snapshot.incidents.is_empty() {
        line!("\nIncidents (`mps-manager incident get ID` shows one):");
        INCIDENT.layout().print_rows(&snapshot.incidents, format);
    }
    let attention = attention(snapshot);
    if !attention.is_empty() {
        line!("\nAttention:");
    }
    for item in attention {
        line!("  {}: {}", names(&item), condition_sentence(item.condition, item.message, format));
    }
}

fn print_host(host: &HostView, format: OutputFormat) {
    let simulated = match &host.profile {
        Some(profile) if host.simulated => format!(", SIMULATED ({profile})"),
        _ => String::new(),
    };
    let capacity = host.capacity.map(|clients| format!(", capacity {}", counted(clients, "client")));
    line!(
        "{}: {}{}, {}{simulated}",
        host.hostname,
        counted(host.gpus, "GPU"),
        capacity.unwrap_or_default(),
        host.software()
    );
    // Waiting for the driver is also a condition, and is shown as such.
    if let Some(read_only) = host.read_only.as_ref().filter(|read_only| !read_only.waiting_for_driver) {
        line!("\nREAD-ONLY: {}", read_only.reason);
    }
    for condition in &host.conditions {
        line!("\n{}: {}", condition.kind.words(), condition.message);
    }
    // A lack of scopes alone is no fault; private mounts, however, hide the daemons from clients.
    if format == OutputFormat::Wide || host.isolation.private_mounts == Some(true) {
        for remark in &host.isolation.remarks {
            line!("\nIsolation: {remark}");
        }
    }
}

fn print_section<T: Serialize>(items: &[T], layout: &ListLayout<T>, format: OutputFormat) {
    if items.is_empty() {
        return line!("No {}.", layout.noun);
    }
    layout.print_rows(items, format);
}

/// Returns the conditions that need attention, except those that an open incident shows already.
pub(super) fn attention(snapshot: &HostSnapshot) -> Vec<AttentionItem<'_>> {
    let is_incident = |item: &AttentionItem<'_>| {
        let mut open = snapshot.incidents.iter().filter(|incident| incident.state == IncidentState::Open);
        open.any(|incident| incident.daemon == *item.daemon && incident.kind.shows(item.condition.kind))
    };
    let daemons = snapshot.daemons.iter().map(|daemon| {
        let conditions = daemon.status.as_ref().map_or(&[][..], |status| &status.conditions);
        (&daemon.name, conditions)
    });
    let tenants = snapshot.tenants.iter();
    let mut items = attention_items(
        daemons,
        tenants.map(|tenant| (&tenant.name, &tenant.spec.daemon, &tenant.status.conditions[..])),
    );
    items.retain(|item| !is_incident(item));
    items
}

/// Names the subject of an item: the daemon or the tenants.
pub(super) fn names(item: &AttentionItem<'_>) -> String {
    if item.tenants.is_empty() {
        return item.daemon.to_string();
    }
    item.tenants.iter().map(|tenant| tenant.as_str()).collect::<Vec<_>>().join(", ")
}
