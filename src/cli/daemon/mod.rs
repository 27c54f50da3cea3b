//! `mps-manager daemon`.

mod actions;
mod arguments;
mod logs;
mod set;

use std::process::ExitCode;

use clap::Subcommand;

pub(super) use self::arguments::TimeoutAction;
use self::arguments::{ActionArgs, AdoptArgs, DAEMONS, EndingArgs, NamedDaemon, phase};
use self::logs::DaemonLogArgs;
use self::set::DaemonSetArgs;
use super::confirm::ConfirmArgs;
use super::fetch::{GpuNames, all};
use super::gpu;
use super::incident::with_current;
use super::output::{DetailsTable, ListColumn, ListLayout, TableCell, age, word};
use super::server::{CallArgs, ask};
use crate::client::ClientError;
use crate::domain::count::counted;
use crate::domain::duration::parse_seconds;
use crate::domain::provisioning::ProvisioningStatus;
use crate::domain::{DaemonName, DeviceMemoryLimit, Priority, rfc3339};
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;

/// Commands on daemons.
#[derive(Debug, Subcommand)]
pub(super) enum DaemonCommand {
    /// List daemons
    #[command(after_help = "Examples:
  mps-manager daemon list
  mps-manager daemon list -o wide")]
    List {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a daemon
    #[command(after_help = "Examples:
  mps-manager daemon get gpu0")]
    Get {
        #[command(flatten)]
        daemon: NamedDaemon,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Create a daemon, or change what the options say of it; exit 1 if it is not ready
    #[command(after_help = "Examples:
  mps-manager daemon set gpu1 --gpu 1
  mps-manager daemon set gpu1 --gpu 1 --mode static
  mps-manager daemon set gpu0 --memory-limit 8G --dry-run
  mps-manager daemon set gpu0 --unset memory-limit")]
    Set(Box<DaemonSetArgs>),
    /// Stop a daemon and delete it; exit 1 if it still has tenants
    #[command(after_help = "Examples:
  mps-manager daemon delete gpu1
  mps-manager daemon delete gpu1 --grace 30s --yes")]
    Delete(EndingArgs),
    /// Start a daemon
    #[command(after_help = "Examples:
  mps-manager daemon start gpu0")]
    Start(ActionArgs),
    /// Stop a daemon, which ends the work of its clients
    #[command(after_help = "Examples:
  mps-manager daemon stop gpu0
  mps-manager daemon stop gpu0 --grace 5m --yes")]
    Stop(EndingArgs),
    /// Restart a daemon, which ends the work of its clients
    #[command(after_help = "Examples:
  mps-manager daemon restart gpu0
  mps-manager daemon restart gpu0 --grace 30s --no-wait")]
    Restart(EndingArgs),
    /// Admit no new clients, and wait until those that are connected have ended
    #[command(after_help = "Examples:
  mps-manager daemon drain gpu0
  mps-manager daemon drain gpu0 --timeout 10m --on-timeout terminate")]
    Drain {
        #[command(flatten)]
        action: ActionArgs,
        /// Time for clients to end, for example 10m
        #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_seconds::<u32>)]
        timeout: u32,
        /// Action on clients that are left after the timeout
        #[arg(long, value_enum, default_value_t = TimeoutAction::Fail)]
        on_timeout: TimeoutAction,
        #[command(flatten)]
        confirm: ConfirmArgs,
    },
    /// Admit no new clients; connected ones stay
    #[command(after_help = "Examples:
  mps-manager daemon cordon gpu0")]
    Cordon {
        #[command(flatten)]
        daemon: NamedDaemon,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Admit new clients again
    #[command(after_help = "Examples:
  mps-manager daemon uncordon gpu0")]
    Uncordon {
        #[command(flatten)]
        daemon: NamedDaemon,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Adopt a control daemon that another program started, or take back our own after the loss of the state directory
    #[command(after_help = "Examples:
  mps-manager foreign list
  mps-manager daemon adopt gpu0 --process 1234-567890
  mps-manager daemon adopt gpu0 --process 1234 --observe
  mps-manager daemon adopt --all-ours")]
    Adopt(AdoptArgs),
    /// Print the log of a daemon's servers, or of the control daemon itself
    #[command(after_help = "Examples:
  mps-manager daemon logs gpu0
  mps-manager daemon logs gpu0 control -f --contains error")]
    Logs(DaemonLogArgs),
    /// Give up an adopted daemon, and leave its process running
    #[command(after_help = "Examples:
  mps-manager daemon release gpu0")]
    Release {
        #[command(flatten)]
        daemon: NamedDaemon,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Layout of the list of daemons, also in `status`.
pub(super) const LAYOUT: ListLayout<DaemonView> = ListLayout {
    noun: "daemons",
    name: |daemon| daemon.name.to_string(),
    columns: &[
        ListColumn::new("DAEMON", |daemon| daemon.name.as_str().into()),
        ListColumn::new("STATE", |daemon| TableCell::state(&phase(daemon))),
        ListColumn::ranked(
            4,
            ListColumn::new("PID", |daemon| {
                TableCell::optional(daemon.status.as_ref().and_then(|status| status.pid))
            }),
        ),
        ListColumn::ranked(5, ListColumn::new("MODE", |daemon| word(daemon.spec.mode).into())),
        ListColumn::ranked(2, ListColumn::new("GPUS", |daemon| daemon.spec.gpus.len().to_string().into())),
        ListColumn::ranked(3, ListColumn::new("SERVER", |daemon| TableCell::joined(servers(daemon)))),
        ListColumn::ranked(
            1,
            ListColumn::new("LAYOUT", |daemon| {
                TableCell::optional(
                    daemon.spec.layout.as_ref().map(|layout| format!("{} v{}", layout.name, layout.version)),
                )
            }),
        ),
        ListColumn::ranked(6, ListColumn::new("AGE", |daemon| age(daemon.created_at).into())),
        ListColumn::wide("GENERATION", |daemon| {
            let observed = daemon.status.as_ref().map_or(0, |status| status.observed_generation);
            format!("{observed}/{}", daemon.generation).into()
        }),
        ListColumn::wide("SCHEDULABLE", |daemon| {
            TableCell::state(if daemon.spec.schedulable { "yes" } else { "cordoned" })
        }),
        ListColumn::wide("UUIDS", |daemon| TableCell::joined(&daemon.spec.gpus)),
        ListColumn::wide("PIPE DIRECTORY", |daemon| {
            TableCell::optional(daemon.status.as_ref().map(|status| &status.pipe_directory))
        }),
    ],
};

fn servers(daemon: &DaemonView) -> Vec<String> {
    let effective = daemon.status.as_ref().and_then(|status| status.effective.as_ref());
    effective
        .map(|effective| effective.servers.iter().map(|one| format!("{} {}", one.pid, one.status)).collect())
        .unwrap_or_default()
}

/// A memory limit, the same on each GPU or its own on each.
fn limit_words(limit: &DeviceMemoryLimit, names: &GpuNames) -> String {
    match limit {
        DeviceMemoryLimit::Same(limit) => limit.to_string(),
        DeviceMemoryLimit::PerGpu(limits) => {
            let limits = limits.iter().map(|(gpu, limit)| format!("{}: {limit}", names.name(gpu)));
            limits.collect::<Vec<_>>().join(", ")
        }
    }
}

/// Describes the admission mode; if tenants reserve memory, with the over-commit ratio.
fn admission_words(daemon: &DaemonView) -> String {
    let admission = word(daemon.spec.admission);
    if daemon.spec.reserves() {
        format!("{admission}, memory × {}", f64::from(daemon.spec.memory_overcommit))
    } else {
        admission
    }
}

/// Returns the sum of the tenants' memory limits on each GPU, beside the most that it may be.
fn limit_sums(daemon: &DaemonView, names: &GpuNames) -> TableCell {
    let known = daemon.spec.gpus.iter().filter_map(|uuid| names.find(uuid));
    let sum = |gpu: &GpuView| {
        let sum = gpu::limits(gpu);
        if daemon.spec.gpus.len() == 1 { sum } else { format!("{}: {sum}", names.name(&gpu.uuid)) }
    };
    let sums: Vec<String> = known.map(sum).collect();
    TableCell::optional((!sums.is_empty()).then(|| sums.join(", ")))
}

/// Returns the provisioning strategy, with its meaning for clients if the daemon's status reports it.
fn provisioning_words(daemon: &DaemonView) -> String {
    let strategy = daemon.spec.provisioning.strategy.as_str();
    let status = daemon.status.as_ref().and_then(|status| status.provisioning.as_ref());
    status.map_or_else(|| strategy.to_owned(), |status| format!("{strategy}. {}", status.meaning()))
}

pub(super) fn run(command: DaemonCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            DaemonCommand::List { call } => {
                let mut daemons: Vec<DaemonView> = all(&call.client()?, DAEMONS).await?;
                daemons.sort_by_cached_key(|daemon| daemon.name.natural_key());
                LAYOUT.print(&daemons, call.format());
                Ok(ExitCode::SUCCESS)
            }
            DaemonCommand::Get { daemon, call } => get(&call, &daemon.name).await,
            DaemonCommand::Set(args) => set::set(&args).await,
            DaemonCommand::Delete(args) => actions::delete(&args).await,
            DaemonCommand::Start(args) => actions::start(&args).await,
            DaemonCommand::Stop(args) => actions::stop(&args).await,
            DaemonCommand::Restart(args) => actions::restart(&args).await,
            DaemonCommand::Drain { action, timeout, on_timeout, confirm } => {
                actions::drain(&action, timeout, on_timeout, confirm).await
            }
            DaemonCommand::Cordon { daemon, call } => actions::cordon(&call, &daemon.name, true).await,
            DaemonCommand::Uncordon { daemon, call } => actions::cordon(&call, &daemon.name, false).await,
            DaemonCommand::Adopt(args) => actions::adopt(args).await,
            DaemonCommand::Logs(args) => logs::logs(&args).await,
            DaemonCommand::Release { daemon, call } => actions::release(&call, &daemon.name).await,
        }
    })
}

async fn get(call: &CallArgs, name: &DaemonName) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let daemon: DaemonView = client.get(&format!("{DAEMONS}/{name}")).await?;
    let names = GpuNames::read(&client).await;
    let status = daemon.status.as_ref();
    let conditions = status.map(|status| status.conditions.clone()).unwrap_or_default();
    let yes_or_no = |is: bool| if is { "yes" } else { "no" };
    let mut details = DetailsTable::default()
        .row("Daemon", daemon.name.as_str())
        .row("State", TableCell::state(&phase(&daemon)))
        .row("Desired state", word(daemon.spec.desired_state))
        .row("Mode", word(daemon.spec.mode))
        .row("GPUs", TableCell::joined(daemon.spec.gpus.iter().map(|gpu| names.name(gpu))))
        .row("PID", TableCell::optional(status.and_then(|status| status.pid)))
        .row("Server", TableCell::joined(servers(&daemon)))
        .row("Cordoned", TableCell::state(yes_or_no(!daemon.spec.schedulable)))
        .row("Admission", admission_words(&daemon))
        .row("Memory limits", limit_sums(&daemon, &names))
        .row("Several users", yes_or_no(daemon.spec.multi_user))
        .row(
            "Default memory limit",
            TableCell::optional(
                daemon.spec.defaults.device_memory_limit.as_ref().map(|limit| limit_words(limit, &names)),
            ),
        )
        .row("Default percentage", TableCell::optional(daemon.spec.defaults.active_thread_percentage))
        .row("Default priority", TableCell::optional(daemon.spec.defaults.priority.map(Priority::as_str)))
        .row("Provisioning", provisioning_words(&daemon));
    let provisioning = status.and_then(|status| status.provisioning.as_ref());
    let capacity = provisioning.and_then(|provisioning| provisioning.capacity);
    if let Some(capacity) = capacity.or(daemon.spec.provisioning.expected_clients.map(u64::from)) {
        details = details.row("Capacity", counted(capacity, "client"));
    }
    for share in provisioning.map(ProvisioningStatus::shares_in_words).unwrap_or_default() {
        details = details.row("Share", share);
    }
    details = details.row("Settings drift", word(daemon.spec.drift_policy));
    if let Some(layout) = &daemon.spec.layout {
        details = details.row("Layout", format!("{} version {}", layout.name, layout.version));
    }
    let partitions = status.and_then(|status| status.layout.as_ref()).map(|layout| &layout.partitions);
    for partition in partitions.into_iter().flatten() {
        let sms = partition.sms.map_or_else(String::new, |sms| format!(", {sms} SMs"));
        details = details.row("Partition", format!("{}{sms}", partition.partition));
    }
    if let Some(status) = status {
        details = details
            .row("Pipe directory", status.pipe_directory.as_str())
            .row("Log directory", status.log_directory.as_str());
    }
    details = details.row("Age", age(daemon.created_at)).conditions(&conditions);
    // Not those of an earlier daemon of that name.
    let since = Some(rfc3339::format(daemon.created_at));
    let filters = [("daemon", Some(name.to_string())), ("since", since)];
    let details = with_current(details, call.format(), &client, &filters).await?;
    details.print(call.format(), name.as_str(), &daemon);
    Ok(ExitCode::SUCCESS)
}
