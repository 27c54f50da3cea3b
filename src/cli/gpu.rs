//! `mps-manager gpu`.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;
use serde_json::json;

use super::completion;
use super::fetch::{encoded, whole};
use super::incident::with_current;
use super::output::{DetailsTable, ListColumn, ListLayout, TableCell, word};
use super::server::{CallArgs, ask};
use crate::client::ClientError;
use crate::domain::memory::Bytes;
use crate::service::daemons::replace::Replacement;
use crate::service::host::GpuView;

const GPUS: &str = "/api/v1/gpus";

/// Commands on GPUs.
#[derive(Debug, Subcommand)]
pub(super) enum GpuCommand {
    /// List GPUs
    #[command(after_help = "Examples:
  mps-manager gpu list
  mps-manager gpu list -o wide")]
    List {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show a GPU and the processes on it
    #[command(after_help = "Examples:
  mps-manager gpu get 0")]
    Get {
        /// The GPU, by index or UUID
        #[arg(add = ArgValueCandidates::new(completion::gpus))]
        gpu: String,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Replace a missing GPU by another one, for its daemon and its tenants
    #[command(after_help = "Examples:
  mps-manager gpu replace GPU-74d43ed3-… --with 3")]
    Replace {
        /// The missing GPU, by UUID
        gpu: String,
        /// The new GPU, by index or UUID, which no daemon has
        #[arg(long, value_name = "GPU", add = ArgValueCandidates::new(completion::gpus))]
        with: String,
        #[command(flatten)]
        call: CallArgs,
    },
}

/// Layout of the list of GPUs, also in `status`.
pub(super) const LAYOUT: ListLayout<GpuView> = ListLayout {
    noun: "GPUs",
    name: |gpu| gpu.uuid.to_string(),
    columns: &[
        ListColumn::new("GPU", |gpu| TableCell::optional(index_or_address(gpu))),
        ListColumn::ranked(5, ListColumn::cut("NAME", |gpu| TableCell::optional(gpu.name.as_deref()))),
        ListColumn::ranked(4, ListColumn::new("SMS", |gpu| TableCell::optional(gpu.sms))),
        ListColumn::ranked(2, ListColumn::new("MEMORY", |gpu| memory(gpu).into())),
        ListColumn::ranked(3, ListColumn::new("LIMITS", |gpu| Bytes(gpu.memory_limits).to_string().into())),
        ListColumn::ranked(
            6,
            ListColumn::new("COMPUTE MODE", |gpu| TableCell::optional(gpu.compute_mode.map(word))),
        ),
        ListColumn::new("DAEMON", |gpu| TableCell::optional(gpu.daemon.as_ref())),
        ListColumn::ranked(1, ListColumn::new("STATE", |gpu| TableCell::state(state(gpu)))),
        ListColumn::wide("PCI", |gpu| TableCell::optional(gpu.pci_bus_id.as_deref())),
        ListColumn::wide("UUID", |gpu| gpu.uuid.to_string().into()),
    ],
};

/// Returns the index of a GPU, or the PCI address of a missing GPU whose index another one has now.
fn index_or_address(gpu: &GpuView) -> Option<String> {
    gpu.index.map(|index| index.to_string()).or(gpu.pci_bus_id.clone())
}

/// Returns the memory in use out of the total, as `2 GiB of 141 GiB`; `?` stands for an unknown amount.
pub(super) fn memory(gpu: &GpuView) -> String {
    let shown = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| Bytes(bytes).to_string());
    match gpu.memory_total {
        None if gpu.present => "not reported".to_owned(),
        total => format!("{} of {}", shown(gpu.memory_used), shown(total)),
    }
}

/// Returns the sum of the memory limits, out of the most that it may be if that is known.
pub(super) fn limits(gpu: &GpuView) -> String {
    let sum = Bytes(gpu.memory_limits);
    gpu.memory_capacity.map_or_else(|| sum.to_string(), |capacity| format!("{sum} of {}", Bytes(capacity)))
}

fn state(gpu: &GpuView) -> &'static str {
    match gpu {
        gpu if !gpu.present => "missing",
        gpu if !gpu.live => "released",
        gpu if gpu.mig_enabled == Some(true) => "mig",
        _ => "present",
    }
}

pub(super) fn run(command: GpuCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            GpuCommand::List { call } => {
                LAYOUT.print(&whole(&call.client()?, GPUS).await?, call.format());
                Ok(ExitCode::SUCCESS)
            }
            GpuCommand::Get { gpu, call } => get(&call, &gpu).await,
            GpuCommand::Replace { gpu, with, call } => replace(&call, &gpu, &with).await,
        }
    })
}

async fn get(call: &CallArgs, gpu: &str) -> Result<ExitCode, ClientError> {
    let client = call.client()?;
    let gpu: GpuView = client.get(&format!("{GPUS}/{}", encoded(gpu))).await?;
    let mut details = DetailsTable::default()
        .row("GPU", TableCell::optional(index_or_address(&gpu)))
        .row("UUID", gpu.uuid.to_string())
        .row("Name", TableCell::optional(gpu.name.as_deref()))
        .row("State", TableCell::state(state(&gpu)))
        .row("PCI address", TableCell::optional(gpu.pci_bus_id.as_deref()))
        .row("SMs", TableCell::optional(gpu.sms))
        .row("Memory", memory(&gpu))
        .row("Memory limits", limits(&gpu))
        .row("Compute mode", TableCell::optional(gpu.compute_mode.map(word)))
        .row("Daemon", TableCell::optional(gpu.daemon.as_ref()));
    for process in gpu.processes.iter().flatten() {
        let memory = process.used_memory.map_or_else(|| "?".to_owned(), |bytes| Bytes(bytes).to_string());
        let command = process.command.as_deref().unwrap_or("-");
        details =
            details.row("Process", format!("{}  {}  {memory}  {command}", process.pid, word(process.kind)));
    }
    let filters = [("gpu", Some(gpu.uuid.to_string()))];
    let details = with_current(details, call.format(), &client, &filters).await?;
    details.print(call.format(), gpu.uuid.to_string().as_str(), &gpu);
    Ok(ExitCode::SUCCESS)
}

async fn replace(call: &CallArgs, gpu: &str, with: &str) -> Result<ExitCode, ClientError> {
    let path = format!("{GPUS}/{}/replace", encoded(gpu));
    let done: Replacement = call.client()?.post(&path, &json!({ "with": with })).await?;
    let sentence = format!("{} replaces {} in daemon {}", done.with, done.replaced, done.daemon.name);
    call.format().announce(&sentence, done.with.to_string().as_str(), &done);
    Ok(ExitCode::SUCCESS)
}
