//! `mps-manager tenant`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCandidates;
use serde_json::{Value, json};

use super::change::{SpecChange, SpecFields, change, some_list};
use super::completion;
use super::confirm::{ConfirmArgs, owners};
use super::fetch::{all, daemon_or_only, filtered, require_daemon};
use super::output::{DIFFERS, DetailsTable, ListColumn, ListLayout, OutputFormat, TableCell, age, complain};
use super::server::{CallArgs, ask};
use super::wait::{POLL, ProgressLine, WaitArgs};
use crate::client::{Client, ClientError};
use crate::domain::condition::ready;
use crate::domain::count::counted;
use crate::domain::daemon::Phase;
use crate::domain::memory::Bytes;
use crate::domain::tenant::{EffectiveMemory, EffectiveThreads, EnforcedBy, TenantEffective};
use crate::domain::{DaemonName, TenantName};
use crate::host::user::number_of_user;
use crate::service::daemons::DaemonView;
use crate::service::tenants::TenantView;
use crate::service::tenants::clients::ClientView;

const TENANTS: &str = "/api/v1/tenants";
/// How long settings may take to be in force.
const IN_FORCE: Duration = Duration::from_secs(15);

/// Commands on tenants.
#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// List tenants
    List {
        /// Only those of this daemon
        #[arg(long, add = ArgValueCandidates::new(completion::daemons))]
        daemon: Option<DaemonName>,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a tenant
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
    /// Delete a tenant; exit 1 if it still has clients
    Delete {
        /// The tenant
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        name: TenantName,
        /// Say what would be done, and change nothing
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        confirm: ConfirmArgs,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// A tenant and the fields of its spec.
#[derive(Debug, Args)]
pub(super) struct TenantSetArgs {
    /// The tenant
    #[arg(add = ArgValueCandidates::new(completion::tenants))]
    name: TenantName,
    /// The daemon that serves it; for a new tenant, by default the only one of the host
    #[arg(long, add = ArgValueCandidates::new(completion::daemons))]
    daemon: Option<DaemonName>,
    /// The user that its processes run as, by name or number; for a new tenant, by default you
    #[arg(long, value_name = "USER", value_parser = user)]
    uid: Option<u32>,
    /// A GPU of the daemon that it sees, by index or UUID; may be repeated; by default all
    #[arg(long = "gpu", value_name = "GPU", value_delimiter = ',', add = ArgValueCandidates::new(completion::gpus))]
    gpus: Vec<String>,
    /// Memory of each of its processes on each GPU, for example 4G, or for each GPU, for example 0=4G,1=8G
    #[arg(long, value_name = "SIZE")]
    memory_limit: Option<String>,
    /// How many of its processes may be connected at once
    #[arg(long, value_name = "N")]
    max_clients: Option<u32>,
    /// SMs that each of its processes sees
    #[arg(long, value_name = "N", conflicts_with = "thread_percentage")]
    sms: Option<u32>,
    /// Share of the threads of a GPU instead of SMs, in percent
    #[arg(long, value_name = "PERCENT")]
    thread_percentage: Option<f64>,
    /// Its share beside others where the daemon's provisioning is weighted
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Its priority: normal or below_normal
    #[arg(long, value_name = "PRIORITY")]
    priority: Option<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Fields to leave out, so that their defaults hold
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    unset: Vec<UnsetTenantField>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// A field that may be left out.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum UnsetTenantField {
    Gpus,
    MemoryLimit,
    MaxClients,
    Sms,
    ThreadPercentage,
    Weight,
    Priority,
    Labels,
}

impl UnsetTenantField {
    fn path(self) -> &'static [&'static str] {
        match self {
            Self::Gpus => &["gpus"],
            Self::MemoryLimit => &["device_memory_limit"],
            Self::MaxClients => &["max_clients"],
            Self::Sms => &["sms"],
            Self::ThreadPercentage => &["active_thread_percentage"],
            Self::Weight => &["weight"],
            Self::Priority => &["priority"],
            Self::Labels => &["labels"],
        }
    }
}

fn user(text: &str) -> Result<u32, String> {
    text.parse().or_else(|_| number_of_user(text).map_err(|why| why.to_string()))
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, for example team=search")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// How tenants are listed, also by `status`.
pub(super) const LAYOUT: ListLayout<TenantView> = ListLayout {
    noun: "tenants",
    name: |tenant| tenant.name.to_string(),
    columns: &[
        ListColumn::new("TENANT", |tenant| tenant.name.as_str().into()),
        ListColumn::new("DAEMON", |tenant| tenant.spec.daemon.as_str().into()),
        ListColumn::new("READY", |tenant| TableCell::ready(&tenant.status.conditions)),
        ListColumn::new("MEMORY", |tenant| TableCell::optional(tenant.status.effective.as_ref().map(memory))),
        ListColumn::new("SMS", |tenant| {
            TableCell::optional(tenant.status.effective.as_ref().map(|effective| share(&effective.threads)))
        }),
        ListColumn::new("PRIORITY", |tenant| {
            TableCell::optional(tenant.status.effective.as_ref().map(priority))
        }),
        ListColumn::new("CLIENTS", |tenant| clients_of(tenant).into()),
        ListColumn::new("AGE", |tenant| age(tenant.created_at).into()),
        ListColumn::wide("UID", |tenant| tenant.spec.uid.to_string().into()),
        ListColumn::wide("GENERATION", |tenant| {
            format!("{}/{}", tenant.status.observed_generation, tenant.generation).into()
        }),
        ListColumn::wide("LABELS", |tenant| {
            TableCell::joined(tenant.spec.labels.iter().map(|(key, value)| format!("{key}={value}")))
        }),
        ListColumn::wide("GPUS", |tenant| TableCell::joined(&tenant.status.gpus)),
    ],
};

/// Marks what only the environment holds.
fn held(by: EnforcedBy) -> &'static str {
    if by == EnforcedBy::Environment { "*" } else { "" }
}

/// Whether a list has the mark, which then needs a word of explanation.
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

/// The memory limit of each GPU, once where all have the same.
pub(super) fn memory(effective: &TenantEffective) -> String {
    let shown = |limit: &EffectiveMemory| match limit.bytes {
        Some(bytes) => format!("{}{}", Bytes(bytes), held(limit.enforced_by)),
        None => "whole GPU".into(),
    };
    let mut limits: Vec<String> = effective.device_memory_limits.iter().map(shown).collect();
    limits.dedup();
    limits.join(", ")
}

fn priority(effective: &TenantEffective) -> String {
    format!("{}{}", effective.priority.priority.as_str(), held(effective.priority.enforced_by))
}

/// The SMs of a tenant: of its partitions, or by its thread percentage.
pub(super) fn share(threads: &EffectiveThreads) -> String {
    if threads.partitions.is_empty() {
        let sms = threads.predicted_sms.map_or_else(|| "?".into(), |sms| sms.to_string());
        return format!("{sms} ({}%){}", threads.active_thread_percentage, held(threads.enforced_by));
    }
    let partitions = threads.partitions.iter().map(|one| format!("{} in {}", one.sms, one.partition));
    partitions.collect::<Vec<_>>().join(", ")
}

fn clients_of(tenant: &TenantView) -> String {
    match tenant.spec.max_clients {
        Some(max) => format!("{}/{max}", tenant.status.clients),
        None => tenant.status.clients.to_string(),
    }
}

pub(super) fn run(command: TenantCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            TenantCommand::List { daemon, call } => list(&call, daemon.as_ref()).await,
            TenantCommand::Get { name, call } => get(&call, &name).await,
            TenantCommand::Set(args) => set(&args).await,
            TenantCommand::Delete { name, dry_run, confirm, call } => {
                delete(&call, &name, dry_run, confirm).await
            }
        }
    })
}

async fn list(call: &CallArgs, daemon: Option<&DaemonName>) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    require_daemon(&client, daemon).await?;
    let path = filtered(TENANTS, &[("daemon", daemon.map(ToString::to_string))]);
    LAYOUT.print(&all(&client, &path).await?, call.format());
    Ok(ExitCode::SUCCESS)
}

async fn get(call: &CallArgs, name: &TenantName) -> Result<ExitCode, ClientError> {
    let tenant: TenantView = call.client()?.get(&format!("{TENANTS}/{name}")).await?;
    details(&tenant).print(call.format(), name.as_str(), &tenant);
    Ok(ExitCode::SUCCESS)
}

fn details(tenant: &TenantView) -> DetailsTable {
    let effective = tenant.status.effective.as_ref();
    DetailsTable::default()
        .row("Tenant", tenant.name.as_str())
        .row("Daemon", tenant.spec.daemon.as_str())
        .row("Ready", TableCell::ready(&tenant.status.conditions))
        .row("User", format!("uid {}", tenant.spec.uid))
        .row("GPUs", TableCell::joined(&tenant.status.gpus))
        .row("Memory limit", TableCell::optional(effective.map(memory)))
        .row("SMs", TableCell::optional(effective.map(|effective| share(&effective.threads))))
        .row("Priority", TableCell::optional(effective.map(priority)))
        .row("Clients", clients_of(tenant))
        .row("Waiting", TableCell::optional(Some(tenant.status.waiting.len()).filter(|waiting| *waiting > 0)))
        .row(
            "Labels",
            TableCell::joined(tenant.spec.labels.iter().map(|(key, value)| format!("{key}={value}"))),
        )
        .row("Age", age(tenant.created_at))
        .conditions(&tenant.status.conditions)
}

/// Who runs this command, also through sudo.
fn caller() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    let before_sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    if own == 0 { before_sudo.unwrap_or(own) } else { own }
}

impl TenantSetArgs {
    fn fields(&self) -> SpecFields {
        let mut fields = SpecFields::default();
        for field in &self.unset {
            fields.unset(field.path());
        }
        // Each replaces the other.
        if self.sms.is_some() {
            fields.unset(&["active_thread_percentage"]);
        }
        if self.thread_percentage.is_some() {
            fields.unset(&["sms"]);
        }
        fields
            .set(&["daemon"], self.daemon.as_ref().map(DaemonName::as_str))
            .set(&["uid"], self.uid)
            .set(&["gpus"], some_list(&self.gpus))
            .set(&["device_memory_limit"], self.memory_limit.as_deref())
            .set(&["max_clients"], self.max_clients)
            .set(&["sms"], self.sms)
            .set(&["active_thread_percentage"], self.thread_percentage)
            .set(&["weight"], self.weight)
            .set(&["priority"], self.priority.as_deref());
        fields
    }
}

async fn set(args: &TenantSetArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let path = format!("{TENANTS}/{}", args.name);
    let mut fields = args.fields();
    if !args.labels.is_empty() {
        // Labels that are not named stay.
        let now: Option<(Value, String)> = client.get_tagged(&path).await?;
        let mut labels = now.map_or_else(|| json!({}), |(tenant, _)| tenant["spec"]["labels"].clone());
        for (key, value) in &args.labels {
            labels[key] = json!(value);
        }
        fields.set(&["labels"], Some(labels));
    }
    let new = async || {
        let daemon = daemon_or_only(&client, args.daemon.as_ref()).await?;
        Ok(json!({ "daemon": daemon, "uid": args.uid.unwrap_or_else(caller) }))
    };
    let (made, view) = change(&client, &path, &fields, new, args.dry_run).await?;
    let (name, format) = (args.name.as_str(), args.call.format());
    let written: TenantView =
        serde_json::from_value(view).map_err(|error| ClientError::Unreadable(error.to_string()))?;
    let mut sentence = format!("tenant {name} {}", made.words(args.dry_run));
    if made == SpecChange::Created && args.uid.is_none() {
        sentence += &format!("; its processes run as uid {}", written.spec.uid);
    }
    if !written.status.weakens.is_empty() {
        let names: Vec<String> = written.status.weakens.iter().map(ToString::to_string).collect();
        sentence += &format!(
            "; it has no memory limit, so that of {} is held by the environment alone",
            names.join(", ")
        );
    }
    if args.dry_run || args.wait.no_wait {
        format.announce(&sentence, name, &written);
        return Ok(ExitCode::SUCCESS);
    }
    let tenant = in_force(&client, &path, written).await?;
    let state = ready(&tenant.status.conditions);
    if state.is_some_and(|ready| ready.status) {
        format.announce(&format!("{sentence}; it is ready"), name, &tenant);
        return Ok(ExitCode::SUCCESS);
    }
    format.announce(&sentence, name, &tenant);
    let why = state.map(|ready| ready.message.clone()).unwrap_or_default();
    complain(&format!("tenant {name} is not ready: {why}"));
    Ok(ExitCode::from(DIFFERS))
}

/// The tenant once its settings are in force, or as it is when its daemon is down or that takes too long.
async fn in_force(client: &Client, path: &str, written: TenantView) -> Result<TenantView, ClientError> {
    let daemon: DaemonView = client.get(&format!("/api/v1/daemons/{}", written.spec.daemon)).await?;
    let is_down = daemon.status.is_none_or(|status| {
        matches!(status.phase, Phase::Stopped | Phase::Blocked | Phase::CrashLoop | Phase::Absent)
    });
    if is_down {
        return client.get(path).await;
    }
    let progress = ProgressLine::new(&format!("applying the settings of tenant {}", written.name));
    let until = Instant::now() + IN_FORCE;
    let mut tenant = written;
    loop {
        let has_arrived = tenant.status.observed_generation >= tenant.generation;
        let is_ready = ready(&tenant.status.conditions).is_some_and(|ready| ready.status);
        if (has_arrived && is_ready) || Instant::now() >= until {
            drop(progress);
            return Ok(tenant);
        }
        tokio::time::sleep(POLL).await;
        tenant = client.get(path).await?;
    }
}

async fn delete(
    call: &CallArgs,
    name: &TenantName,
    dry_run: bool,
    confirm: ConfirmArgs,
) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let path = format!("{TENANTS}/{name}");
    if !dry_run {
        let clients: Vec<ClientView> = all(&client, &format!("{path}/clients")).await?;
        let question = if clients.is_empty() {
            format!("Delete tenant {name}?")
        } else {
            format!(
                "Tenant {name} has {} ({}). Delete it?",
                counted(clients.len(), "client"),
                owners(&clients)
            )
        };
        confirm.ask(&question)?;
    }
    client.delete(&filtered(&path, &[("dry_run", dry_run.then(|| "true".into()))])).await?;
    let words = if dry_run { "would be deleted" } else { "was deleted" };
    if matches!(call.format(), OutputFormat::Json | OutputFormat::Yaml) {
        call.format().print_value(&json!({ "name": name, "deleted": !dry_run }));
    } else {
        call.format().announce(&format!("tenant {name} {words}"), name.as_str(), &());
    }
    Ok(ExitCode::SUCCESS)
}
