//! The read-only commands, and how their results are printed.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use reqwest::StatusCode;

use super::vet::check_environment;
use super::{DIFFERS, OutputFormat, line};
use crate::client::{Client, ClientError};
use crate::domain::client::ClientId;
use crate::domain::condition::{self, Condition, ConditionReason};
use crate::domain::count::counted;
use crate::domain::incident::IncidentState;
use crate::domain::memory::Bytes;
use crate::domain::operation::{Operation, OperationState};
use crate::domain::printable::{printable, printable_lines};
use crate::domain::tenant::{EffectiveMemory, EffectiveThreads, EnforcedBy};
use crate::domain::{TenantName, environment};
use crate::http::api::List;
use crate::http::api::probes::Readiness;
use crate::service::daemons::DaemonView;
use crate::service::daemons::foreign::ForeignDaemonView;
use crate::service::host::HostView;
use crate::service::incidents::IncidentView;
use crate::service::tenants::clients::ClientView;
use crate::service::tenants::{EnvironmentView, TenantView};

/// How often a running operation is polled.
const POLL: Duration = Duration::from_millis(100);

/// Reads every page of a list.
pub(super) async fn all<T: serde::de::DeserializeOwned>(
    client: &Client,
    path: &str,
) -> Result<Vec<T>, ClientError> {
    let mut items = Vec::new();
    let mut cursor = String::new();
    loop {
        let joint = if path.contains('?') { '&' } else { '?' };
        let page: List<T> = client.get(&format!("{path}{joint}limit=1000{cursor}")).await?;
        items.extend(page.items);
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(items),
        }
    }
}

pub(super) async fn status(client: &Client, output: OutputFormat) -> Result<ExitCode, ClientError> {
    let host: HostView = client.get("/api/v1/host").await?;
    let daemons: Vec<DaemonView> = all(client, "/api/v1/daemons").await?;
    let tenants: Vec<TenantView> = all(client, "/api/v1/tenants").await?;
    let foreign: Vec<ForeignDaemonView> = client.get::<List<_>>("/api/v1/foreign-daemons").await?.items;
    let incidents: Vec<IncidentView> = all(client, "/api/v1/incidents?current=true").await?;
    let (code, readiness): (StatusCode, Readiness) = client.get_any("/readyz").await?;
    match output {
        OutputFormat::Json => {
            let all = serde_json::json!({ "host": host, "readiness": readiness, "daemons": daemons, "tenants": tenants, "foreign_daemons": foreign, "incidents": incidents });
            line!("{all:#}");
        }
        OutputFormat::Table => {
            print_status(&host, &daemons, &tenants);
            print_foreign(&foreign);
            print_incidents(&incidents);
        }
    }
    let is_open = incidents.iter().any(|incident| incident.state == IncidentState::Open);
    Ok(if code.is_success() && !is_open { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

fn print_status(host: &HostView, daemons: &[DaemonView], tenants: &[TenantView]) {
    let simulated = match &host.profile {
        Some(profile) if host.simulated => format!("  SIMULATED ({profile})"),
        _ => String::new(),
    };
    line!(
        "{}: {}, driver {}, MPS {}{simulated}\n",
        host.hostname,
        counted(host.gpus, "GPU"),
        host.driver_version,
        host.mps_binary_version
    );
    if let Some(read_only) = &host.read_only {
        line!("READ-ONLY: {}\n", read_only.reason);
    }
    for condition in &host.conditions {
        line!("{}: {}\n", condition.kind, condition.message);
    }
    let mut rows = vec![["DAEMON", "STATE", "PID", "GPUS", "SERVER", "GENERATION"].map(str::to_owned)];
    for daemon in daemons {
        let status = daemon.status.as_ref();
        let servers = status.and_then(|status| status.effective.as_ref()).map_or_else(String::new, |seen| {
            seen.servers
                .iter()
                .map(|server| format!("{} {}", server.pid, server.status))
                .collect::<Vec<_>>()
                .join(", ")
        });
        rows.push([
            daemon.name.to_string(),
            status.map_or_else(|| "-".into(), |status| word(status.phase)),
            status.and_then(|status| status.pid).map_or_else(|| "-".into(), |pid| pid.to_string()),
            daemon.spec.gpus.len().to_string(),
            if servers.is_empty() { "-".into() } else { servers },
            format!("{}/{}", status.map_or(0, |status| status.observed_generation), daemon.generation),
        ]);
    }
    table(&rows);
    line!("");
    let mut rows =
        vec![["TENANT", "DAEMON", "READY", "MEMORY", "SMS", "PRIORITY", "CLIENTS"].map(str::to_owned)];
    for tenant in tenants {
        let effective = tenant.status.effective.as_ref();
        let ready = condition::ready(&tenant.status.conditions).is_some_and(|condition| condition.status);
        rows.push([
            tenant.name.to_string(),
            tenant.spec.daemon.to_string(),
            if ready { "yes".into() } else { "no".into() },
            effective.map_or_else(|| "-".into(), |effective| limits(&effective.device_memory_limits)),
            effective.map_or_else(|| "-".into(), |effective| share(&effective.threads)),
            effective.map_or_else(
                || "-".into(),
                |effective| {
                    let priority = &effective.priority;
                    format!("{}{}", priority.priority.as_str(), held(priority.enforced_by))
                },
            ),
            match tenant.spec.max_clients {
                Some(max) => format!("{}/{max}", tenant.status.clients),
                None => tenant.status.clients.to_string(),
            },
        ]);
    }
    table(&rows);
    let attention = attention(daemons, tenants);
    if !attention.is_empty() {
        line!("\nAttention:");
    }
    for (name, condition) in attention {
        let message = printable_lines(&condition.message).replace('\n', "\n    ");
        line!("  {name}: {} ({}): {message}", condition.kind, condition.reason);
    }
    for remark in &host.isolation.remarks {
        line!("\nIsolation: {remark}");
    }
}

/// Conditions that need attention, with their daemon or tenant. A daemon's condition is not repeated for its tenants.
fn attention<'a>(daemons: &'a [DaemonView], tenants: &'a [TenantView]) -> Vec<(String, &'a Condition)> {
    let mut found = Vec::new();
    let mut shown = BTreeSet::new();
    for daemon in daemons {
        let conditions = daemon.status.iter().flat_map(|status| &status.conditions);
        for condition in conditions.filter(|condition| condition.needs_attention()) {
            shown.insert((daemon.name.as_str(), condition.reason));
            found.push((daemon.name.to_string(), condition));
        }
    }
    for tenant in tenants {
        let is_shown = |condition: &&Condition| {
            let reason = condition.reason;
            reason == ConditionReason::DaemonNotReady
                || shown.contains(&(tenant.spec.daemon.as_str(), reason))
        };
        let own = tenant.status.conditions.iter().filter(|condition| condition.needs_attention());
        for condition in own.filter(|one| !is_shown(one)) {
            // One line for what several tenants have in common.
            let same = |known: &Condition| {
                (known.kind, known.reason, &known.message)
                    == (condition.kind, condition.reason, &condition.message)
            };
            match found.iter_mut().find(|(_, known)| same(known)) {
                Some((names, _)) => *names = format!("{names}, {}", tenant.name),
                None => found.push((tenant.name.to_string(), condition)),
            }
        }
    }
    found
}

/// The memory limit of each GPU, each once where they follow each other.
fn limits(limits: &[EffectiveMemory]) -> String {
    let shown = |limit: &EffectiveMemory| match limit.bytes {
        Some(bytes) => format!("{}{}", Bytes(bytes), held(limit.enforced_by)),
        None => "whole GPU".into(),
    };
    let mut limits: Vec<String> = limits.iter().map(shown).collect();
    limits.dedup();
    limits.join(", ")
}

/// Marks what only the environment holds.
fn held(by: EnforcedBy) -> &'static str {
    if by == EnforcedBy::Environment { " (env)" } else { "" }
}

/// The SMs of a tenant: of its partitions, or by its thread percentage.
fn share(threads: &EffectiveThreads) -> String {
    if threads.partitions.is_empty() {
        let sms = threads.predicted_sms.map_or_else(|| "?".into(), |sms| sms.to_string());
        return format!("{sms} of {}%{}", threads.active_thread_percentage, held(threads.enforced_by));
    }
    let partitions = threads.partitions.iter().map(|one| format!("{} in {}", one.sms, one.partition));
    partitions.collect::<Vec<_>>().join(", ")
}

/// Incidents that are open, or recent and not acknowledged.
fn print_incidents(incidents: &[IncidentView]) {
    if incidents.is_empty() {
        return;
    }
    line!("\nIncidents (`mps-manager incident get ID` shows one):");
    for incident in incidents {
        let state = if incident.state == IncidentState::Open { "open" } else { "recovered" };
        line!("  {}  {state:<9}  {}", incident.id, printable(&incident.summary));
    }
}

/// Foreign control daemons, which tenants may not see.
fn print_foreign(foreign: &[ForeignDaemonView]) {
    if foreign.is_empty() {
        return;
    }
    line!("\nForeign control daemons (adopt or observe them through the API):");
    let mut rows =
        vec![["PROCESS", "UID", "GPUS", "CLIENTS", "PIPE DIRECTORY", "ADOPTION"].map(str::to_owned)];
    for daemon in foreign {
        let adoption = match (&daemon.adoption.managed, &daemon.adoption.observed) {
            (managed, _) if managed.possible => "possible".to_owned(),
            (_, observed) if observed.possible => "observe only".to_owned(),
            (_, observed) => observed.reason.clone().unwrap_or_default(),
        };
        rows.push([
            daemon.id.to_string(),
            daemon.uid.map_or_else(|| "?".into(), |uid| uid.to_string()),
            daemon.gpus.as_ref().map_or_else(|| "?".into(), |gpus| gpus.len().to_string()),
            if daemon.effective.is_some() { daemon.clients.len().to_string() } else { "?".into() },
            daemon.pipe_directory.clone().unwrap_or_else(|| "?".into()),
            adoption,
        ]);
    }
    table(&rows);
}

/// The API's word for a value, as `back_off`.
fn word(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "-".into(),
    }
}

/// Prints rows in aligned columns.
pub(super) fn table<const N: usize>(rows: &[[String; N]]) {
    for row in in_columns(rows) {
        line!("{row}");
    }
}

/// One line per row, whatever the cells contain.
fn in_columns<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let rows: Vec<[Cow<'_, str>; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| printable(cell))).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[Cow<'_, str>; N]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

pub(super) async fn clients(
    client: &Client,
    tenant: Option<&TenantName>,
    output: OutputFormat,
) -> Result<ExitCode, ClientError> {
    let filter = tenant.map_or_else(String::new, |tenant| format!("&tenant={tenant}"));
    let clients: Vec<ClientView> = all(client, &format!("/api/v1/clients?fresh=true{filter}")).await?;
    if matches!(output, OutputFormat::Json) {
        line!("{:#}", serde_json::json!(clients));
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows =
        vec![["ID", "TENANT", "BY", "DAEMON", "UID", "MEMORY", "SINCE", "COMMAND"].map(str::to_owned)];
    for client in &clients {
        let memory: u64 = client.memory.iter().filter_map(|memory| memory.used_bytes).sum();
        rows.push([
            client.id.to_string(),
            client.tenant.as_ref().map_or_else(|| "-".into(), ToString::to_string),
            word(client.attributed_by),
            client.daemon.to_string(),
            client.uid.map_or_else(|| "-".into(), |uid| uid.to_string()),
            Bytes(memory).to_string(),
            jiff::Timestamp::from_millisecond(client.since)
                .map_or_else(|_| "-".into(), |at| at.strftime("%F %TZ").to_string()),
            client.command.clone(),
        ]);
    }
    table(&rows);
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn environment(
    client: &Client,
    tenant: &TenantName,
    format: EnvFormat,
) -> Result<ExitCode, ClientError> {
    let view: EnvironmentView = client.get(&format!("/api/v1/tenants/{tenant}/environment")).await?;
    // A shell that evaluates the lines would run anything else in them.
    check_environment(&view.variables, &view.unset).map_err(ClientError::Address)?;
    match format {
        EnvFormat::Json => line!("{:#}", serde_json::json!(view)),
        EnvFormat::Sh => {
            line!("{}", environment::as_shell(&view.variables.into_iter().collect::<Vec<_>>()).trim_end());
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn terminate(
    client: &Client,
    id: ClientId,
    stopped: Option<StoppedClientAction>,
) -> Result<ExitCode, ClientError> {
    let chosen = match stopped {
        None => "",
        Some(StoppedClientAction::Continue) => "?stopped=continue",
        Some(StoppedClientAction::Kill) => "?stopped=kill",
    };
    let path = format!("/api/v1/clients/{id}/terminate{chosen}");
    let operation: Operation = client.post(&path, &serde_json::json!({})).await?;
    followed(client, operation, &format!("client {id} was not terminated")).await
}

/// Waits for an operation and prints its steps; exit 1 with this message and the reason if it did not succeed.
pub(super) async fn followed(
    client: &Client,
    operation: Operation,
    failed: &str,
) -> Result<ExitCode, ClientError> {
    let operation = ended(client, operation).await?;
    for step in &operation.steps {
        line!("{}: {}", step.name, printable(step.outcome.as_deref().unwrap_or("running")));
    }
    if operation.state == OperationState::Succeeded {
        return Ok(ExitCode::SUCCESS);
    }
    crate::cli::complain(&format!("{failed}: {}", operation.error.unwrap_or_default()));
    Ok(ExitCode::from(DIFFERS))
}

/// The operation once it has ended.
pub(super) async fn ended(client: &Client, mut operation: Operation) -> Result<Operation, ClientError> {
    while !operation.state.is_final() {
        tokio::time::sleep(POLL).await;
        operation = client.get(&format!("/api/v1/operations/{}", operation.id)).await?;
    }
    Ok(operation)
}

/// What to do with a stopped client.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum StoppedClientAction {
    /// Continue it, then end it in the safe order
    Continue,
    /// Kill it without MPS
    Kill,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum EnvFormat {
    Sh,
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_cannot_forge_a_row() {
        let rows = [
            ["ID", "COMMAND"].map(str::to_owned),
            ["7-1", "\u{1b}[31mtrain\r\n8-1  demo"].map(str::to_owned),
        ];
        assert_eq!(in_columns(&rows), ["ID   COMMAND", "7-1  \\u001b[31mtrain\\u000d\\u000a8-1  demo"]);
    }
}
