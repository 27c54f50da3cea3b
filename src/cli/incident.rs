//! `mps-manager incident …`: what broke, which clients lost their work, and who took note of it.

use std::process::ExitCode;

use clap::Subcommand;

use super::{DIFFERS, OutputFormat, ServerArgs, ask, line, show};
use crate::client::{Client, ClientError};
use crate::domain::incident::{IncidentState, duration_words};
use crate::domain::printable::printable;
use crate::domain::rfc3339;
use crate::service::incidents::{AcknowledgeRequest, IncidentView};

/// Commands on incidents.
#[derive(Debug, Subcommand)]
pub(super) enum IncidentCommand {
    /// List incidents, newest first; exit 1 while one is open
    List {
        #[command(flatten)]
        server: ServerArgs,
        /// Only those that are open
        #[arg(long)]
        open: bool,
        /// Only those of this daemon
        #[arg(long)]
        daemon: Option<crate::domain::DaemonName>,
        /// Only those that hit this tenant
        #[arg(long)]
        tenant: Option<crate::domain::TenantName>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// Show an incident: the suspected cause, the affected clients, and the time to recovery
    Get {
        #[command(flatten)]
        server: ServerArgs,
        /// The incident's ID, as `list` prints it
        id: i64,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// Acknowledge an incident; one that is open stays open
    Acknowledge {
        #[command(flatten)]
        server: ServerArgs,
        /// The incident's ID, as `list` prints it
        id: i64,
        /// What was found or done
        #[arg(long)]
        note: Option<String>,
    },
}

pub(super) fn run(command: IncidentCommand) -> Result<ExitCode, String> {
    match command {
        IncidentCommand::List { server, open, daemon, tenant, output } => ask(async move {
            let mut query = vec![];
            query.extend(open.then(|| "state=open".to_owned()));
            query.extend(daemon.map(|daemon| format!("daemon={daemon}")));
            query.extend(tenant.map(|tenant| format!("tenant={tenant}")));
            list(&server.client()?, &query.join("&"), output).await
        }),
        IncidentCommand::Get { server, id, output } => {
            ask(async move { get(&server.client()?, id, output).await })
        }
        IncidentCommand::Acknowledge { server, id, note } => ask(async move {
            let path = format!("/api/v1/incidents/{id}/acknowledge");
            let incident: IncidentView = server.client()?.post(&path, &AcknowledgeRequest { note }).await?;
            line!("Incident {id} is acknowledged: {}.", printable(&incident.summary));
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn list(client: &Client, query: &str, output: OutputFormat) -> Result<ExitCode, ClientError> {
    let incidents: Vec<IncidentView> = show::all(client, &format!("/api/v1/incidents?{query}")).await?;
    match output {
        OutputFormat::Json => line!("{:#}", serde_json::json!(incidents)),
        OutputFormat::Table if incidents.is_empty() => line!("No incidents."),
        OutputFormat::Table => {
            let mut rows = vec![["ID", "STATE", "KIND", "OPENED", "SUMMARY"].map(str::to_owned)];
            rows.extend(incidents.iter().map(|incident| {
                [
                    incident.id.to_string(),
                    state(incident).to_owned(),
                    incident.kind.as_str().to_owned(),
                    rfc3339::format(incident.opened_at),
                    incident.summary.clone(),
                ]
            }));
            show::table(&rows);
        }
    }
    let is_open = incidents.iter().any(|incident| incident.state == IncidentState::Open);
    Ok(if is_open { ExitCode::from(DIFFERS) } else { ExitCode::SUCCESS })
}

async fn get(client: &Client, id: i64, output: OutputFormat) -> Result<ExitCode, ClientError> {
    let incident: IncidentView = client.get(&format!("/api/v1/incidents/{id}")).await?;
    if matches!(output, OutputFormat::Json) {
        line!("{:#}", serde_json::json!(incident));
        return Ok(ExitCode::SUCCESS);
    }
    line!("Incident {id}: {}.", printable(&incident.summary));
    let fact = |name: &str, value: String| line!("  {:<18}{}", format!("{name}:"), printable(&value));
    fact("Kind", format!("{} ({})", incident.kind.as_str(), incident.severity.as_str()));
    fact("State", state(&incident).to_owned());
    fact("Daemon", incident.daemon.to_string());
    fact("GPUs", incident.gpus.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    fact("Opened", rfc3339::format(incident.opened_at));
    if let (Some(at), Some(ms)) = (incident.recovered_at, incident.time_to_recovery_ms) {
        fact("Recovered", format!("{} (after {})", rfc3339::format(at), duration_words(ms)));
    }
    for suspect in &incident.suspected {
        let tenant = suspect.tenant.as_ref().map(|tenant| format!(" of {tenant}")).unwrap_or_default();
        let reported = if incident.kind.loses_work() { " (reported by MPS, not certain)" } else { "" };
        fact("Suspected", format!("process {}{tenant}{reported}", suspect.pid));
    }
    for client in &incident.affected {
        let tenant = client.tenant.as_ref().map(|tenant| format!(" of {tenant}")).unwrap_or_default();
        fact("Affected", format!("process {}{tenant}", client.pid));
    }
    if let Some(unaffected) = incident.unaffected {
        fact("Unaffected", crate::domain::count::counted(unaffected, "other client"));
    }
    if let Some(detail) = &incident.detail {
        fact("Found", detail.clone());
    }
    if let Some(acknowledged) = &incident.acknowledged {
        let by = acknowledged.by.as_deref().unwrap_or("an operator");
        let note = acknowledged.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default();
        fact("Acknowledged", format!("{} by {by}{note}", rfc3339::format(acknowledged.at)));
    }
    fact("What to do", incident.remedy.clone());
    fact("Events", incident.events.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
    Ok(ExitCode::SUCCESS)
}

/// The word for its state.
fn state(incident: &IncidentView) -> &'static str {
    match incident.state {
        IncidentState::Open => "open",
        IncidentState::Recovered => "recovered",
    }
}
