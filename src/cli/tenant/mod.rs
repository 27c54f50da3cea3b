//! `mps-manager tenant`.

mod delete;
mod ensure;
mod fields;
mod set;

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;

use self::delete::TenantDeleteArgs;
use self::ensure::TenantEnsureArgs;
use self::set::{TENANTS, TenantSetArgs};
use super::completion;
use super::fetch::{GpuNames, all, filtered, require_daemon};
use super::incident::with_current;
use super::output::{
    DetailsTable, ListColumn, ListLayout, OutputFormat, TableCell, age, remark, with_workload,
};
use super::server::{CallArgs, ask};
use crate::client::ClientError;
use crate::domain::condition::{ConditionReason, ready};
use crate::domain::memory::Bytes;
use crate::domain::tenant::{EffectiveMemory, EnforcedBy, TenantEffective, VisibleDevices};
use crate::domain::{DaemonName, TenantName, rfc3339};
use crate::service::tenants::TenantView;

/// Commands on tenants.
#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// List tenants
    #[command(after_help = "Examples:
  mps-manager tenant list
  mps-manager tenant list --daemon gpu0 -o name
  mps-manager tenant list -l team=ml")]
    List {
        /// Only those of this daemon
        #[arg(long, add = ArgValueCandidates::new(completion::daemons))]
        daemon: Option<DaemonName>,
        /// Only those with these labels, for example team=ml,tier
        #[arg(short = 'l', long, value_name = "KEY[=VALUE]")]
        labels: Option<String>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a tenant
    #[command(after_help = "Examples:
  mps-manager tenant get web
  mps-manager tenant get web -o yaml")]
    Get {
        /// The tenant
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        name: TenantName,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Create a tenant, or change what the options say of it; exit 1 if it is not ready
    #[command(after_help = "Examples:
  mps-manager tenant set web                          on the only daemon, without limits
  mps-manager tenant set web --daemon gpu0 --memory-limit 4G --sms 32
  mps-manager tenant set web --priority below_normal  changes nothing else
  mps-manager tenant set web --unset sms --dry-run")]
    Set(Box<TenantSetArgs>),
    /// Create a tenant with exactly these settings, or replace it, and wait until it is ready; exit 1 if it is not
    #[command(after_help = "Examples:
  mps-manager tenant ensure job-17 --daemon gpu0 --memory-limit 4G --ttl 48h
  mps-manager tenant ensure job-17 --gpu 0 --uid 1000 --thread-percentage 25 --ttl 48h --timeout 20s")]
    Ensure(Box<TenantEnsureArgs>),
    /// Delete a tenant; exit 1 if it still has clients
    #[command(after_help = "Examples:
  mps-manager tenant delete web --dry-run
  mps-manager tenant delete web --yes
  mps-manager tenant delete job-17 --drain 30s --force")]
    Delete(TenantDeleteArgs),
}

/// Layout of the list of tenants, also in `status`.
pub(super) const LAYOUT: ListLayout<TenantView> = ListLayout {
    noun: "tenants",
    name: |tenant| tenant.name.to_string(),
    columns: &[
        ListColumn::new("TENANT", |tenant| with_workload(&tenant.name, tenant.workload.as_ref()).into()),
        ListColumn::ranked(3, ListColumn::new("DAEMON", |tenant| tenant.spec.daemon.as_str().into())),
        ListColumn::new("READY", |tenant| TableCell::ready(&tenant.status.conditions)),
        ListColumn::ranked(
            1,
            ListColumn::new("MEMORY", |tenant| {
                TableCell::optional(tenant.status.effective.as_ref().map(memory))
            }),
        ),
        ListColumn::ranked(2, ListColumn::new("SMS", |tenant| TableCell::optional(share(tenant)))),
        ListColumn::ranked(
            5,
            ListColumn::new("PRIORITY", |tenant| {
                TableCell::optional(tenant.status.effective.as_ref().map(priority))
            }),
        ),
        ListColumn::ranked(4, ListColumn::new("CLIENTS", |tenant| clients_of(tenant).into())),
        ListColumn::ranked(6, ListColumn::new("AGE", |tenant| age(tenant.created_at).into())),
        ListColumn::wide("WEIGHT", |tenant| tenant.spec.weight.to_string().into()),
        ListColumn::wide("UID", |tenant| tenant.spec.uid.to_string().into()),
        ListColumn::wide("GENERATION", |tenant| {
            format!("{}/{}", tenant.status.observed_generation, tenant.generation).into()
        }),
        ListColumn::wide("LABELS", |tenant| {
            TableCell::joined(tenant.spec.labels.iter().map(|(key, value)| format!("{key}={value}")))
        }),
        ListColumn::wide("EXPIRES", |tenant| {
            TableCell::optional(tenant.spec.expires_at.map(rfc3339::format))
        }),
        ListColumn::wide("GPUS", |tenant| TableCell::joined(&tenant.status.gpus)),
    ],
};

/// Returns the mark of a limit that only the environment enforces.
fn held(by: EnforcedBy) -> &'static str {
    if by == EnforcedBy::Environment { "*" } else { "" }
}

/// Returns true if the list of these tenants shows the mark, which then has to be explained.
pub(super) fn has_mark(tenants: &[TenantView]) -> bool {
    let of = |effective: &TenantEffective| {
        let mut limits = effective.device_memory_limits.iter().map(|limit| limit.enforced_by);
        [effective.threads.enforced_by, effective.priority.enforced_by].contains(&EnforcedBy::Environment)
            || limits.any(|by| by == EnforcedBy::Environment)
    };
    tenants.iter().filter_map(|tenant| tenant.status.effective.as_ref()).any(of)
}

/// The explanation of the mark.
pub(super) const MARK: &str =
    "* set by the environment alone: a process that changes its environment escapes it";

/// Returns the memory limits of the GPUs; equal limits of adjacent GPUs are shown once.
pub(super) fn memory(effective: &TenantEffective) -> String {
    let mut limits: Vec<String> = effective.device_memory_limits.iter().map(limit_words).collect();
    limits.dedup();
    limits.join(", ")
}

fn limit_words(limit: &EffectiveMemory) -> String {
    match limit.bytes {
        Some(bytes) => format!("{}{}", Bytes(bytes), held(limit.enforced_by)),
        None => "whole GPU".into(),
    }
}

/// Returns the memory limits, each with its GPU if they differ.
fn memory_by_gpu(effective: &TenantEffective, names: &GpuNames) -> String {
    let limits = &effective.device_memory_limits;
    if limits.windows(2).all(|pair| limit_words(&pair[0]) == limit_words(&pair[1])) {
        return memory(effective);
    }
    let limits = limits.iter().map(|limit| format!("{}: {}", names.name(&limit.gpu), limit_words(limit)));
    limits.collect::<Vec<_>>().join(", ")
}

fn priority(effective: &TenantEffective) -> String {
    format!("{}{}", effective.priority.priority.as_str(), held(effective.priority.enforced_by))
}

/// Describes the SMs of a tenant: those of its partitions, or those of its thread percentage.
pub(super) fn share(tenant: &TenantView) -> Option<String> {
    let threads = &tenant.status.effective.as_ref()?.threads;
    if !threads.partitions.is_empty() {
        let partitions = threads.partitions.iter().map(|one| format!("{} in {}", one.sms, one.partition));
        return Some(partitions.collect::<Vec<_>>().join(", "));
    }
    let lacks_partition = ready(&tenant.status.conditions)
        .is_some_and(|ready| ready.reason == ConditionReason::PartitionNotProven);
    if lacks_partition {
        return Some("no partition".into());
    }
    let percentage = format!("{}%", threads.active_thread_percentage);
    let words =
        threads.predicted_sms.map_or_else(|| percentage.clone(), |sms| format!("{sms} ({percentage})"));
    Some(format!("{words}{}", held(threads.enforced_by)))
}

/// Returns the number of its clients, out of the most that it may have if that is limited.
pub(super) fn clients_of(tenant: &TenantView) -> String {
    match tenant.spec.max_clients {
        Some(max) if tenant.status.clients > max => format!("{}/{max} over", tenant.status.clients),
        Some(max) => format!("{}/{max}", tenant.status.clients),
        None => tenant.status.clients.to_string(),
    }
}

pub(super) fn run(command: TenantCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            TenantCommand::List { daemon, labels, call } => list(&call, daemon.as_ref(), labels).await,
            TenantCommand::Get { name, call } => get(&call, &name).await,
            TenantCommand::Set(args) => set::set(&args).await,
            TenantCommand::Ensure(args) => ensure::ensure(&args).await,
            TenantCommand::Delete(args) => delete::delete(&args).await,
        }
    })
}

async fn list(
    call: &CallArgs,
    daemon: Option<&DaemonName>,
    labels: Option<String>,
) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    require_daemon(&client, daemon).await?;
    let path = filtered(TENANTS, &[("daemon", daemon.map(ToString::to_string)), ("labels", labels)]);
    let mut tenants: Vec<TenantView> = all(&client, &path).await?;
    tenants.sort_by_cached_key(|tenant| tenant.name.natural_key());
    LAYOUT.print(&tenants, call.format());
    if matches!(call.format(), OutputFormat::Table | OutputFormat::Wide) && has_mark(&tenants) {
        remark(MARK);
    }
    Ok(ExitCode::SUCCESS)
}

async fn get(call: &CallArgs, name: &TenantName) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let tenant: TenantView = client.get(&format!("{TENANTS}/{name}")).await?;
    let details = details(&tenant, &GpuNames::read(&client).await);
    // Not those of an earlier tenant of that name.
    let since = Some(rfc3339::format(tenant.created_at));
    let filters = [("tenant", Some(name.to_string())), ("since", since)];
    let details = with_current(details, call.format(), &client, &filters).await?;
    details.print(call.format(), name.as_str(), &tenant);
    Ok(ExitCode::SUCCESS)
}

fn details(tenant: &TenantView, names: &GpuNames) -> DetailsTable {
    let effective = tenant.status.effective.as_ref();
    let waiting = tenant.status.waiting.len();
    let provisioning = tenant.status.provisioning.as_ref();
    let share_of_strategy = provisioning.and_then(|status| status.share_of(&tenant.name));
    let mut details = DetailsTable::default()
        .row("Tenant", tenant.name.as_str())
        .row("Daemon", tenant.spec.daemon.as_str())
        .row("Ready", TableCell::ready(&tenant.status.conditions))
        .row("User", format!("uid {}", tenant.spec.uid))
        .row("GPUs", TableCell::joined(tenant.status.gpus.iter().map(|gpu| names.name(gpu))))
        .row("Memory limit", TableCell::optional(effective.map(|effective| memory_by_gpu(effective, names))))
        .row("SMs", TableCell::optional(share(tenant)))
        .row("Priority", TableCell::optional(effective.map(priority)))
        .row(
            "GPUs are named",
            TableCell::optional(
                Some("by ordinal").filter(|_| tenant.spec.visible_devices == VisibleDevices::Ordinal),
            ),
        )
        .row("Clients", clients_of(tenant))
        .row("Waiting for the daemon", TableCell::optional(Some(waiting).filter(|waiting| *waiting > 0)))
        .row(
            "Waiting for a slot",
            TableCell::optional(Some(tenant.status.queued).filter(|queued| *queued > 0)),
        )
        .row(
            "Labels",
            TableCell::joined(tenant.spec.labels.iter().map(|(key, value)| format!("{key}={value}"))),
        )
        .row("Age", age(tenant.created_at));
    if let Some(at) = tenant.spec.expires_at {
        details = details.row("Expires", rfc3339::format(at));
    }
    if let Some(words) = effective.and_then(TenantEffective::other_limits) {
        details = details.row("Older clients", words);
    }
    if let Some(words) = share_of_strategy {
        details = details.row("Share", words);
    }
    details.conditions(&tenant.status.conditions)
}
