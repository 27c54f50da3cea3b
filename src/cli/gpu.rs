//! `mps-manager gpu`.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::nouns::GPU;
use super::server::CallArgs;
use crate::client::ClientError;
use crate::service::daemons::replace::Replacement;

/// Commands on GPUs.
#[derive(Debug, Subcommand)]
pub(super) enum GpuCommand {
    /// List GPUs
    #[command(after_help = "Examples:
  mps-manager gpu list
  mps-manager gpu list -o wide")]
    List(CallArgs),
    /// Show a GPU and the processes on it
    #[command(after_help = "Examples:
  mps-manager gpu get 0")]
    Get {
        /// The GPU, by index or UUID, or a part of one, as 0/mig1 or 0/mlo1
        #[arg(add = GPU.complete())]
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
        /// The new GPU, by index or UUID, or a MIG instance, as 0/mig1, which no daemon has
        #[arg(long, value_name = "GPU", add = GPU.complete())]
        with: String,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: GpuCommand) -> Result<ExitCode, ClientError> {
    match command {
        GpuCommand::List(call) => GPU.list(&call, &[], 0).await,
        GpuCommand::Get { gpu, call } => GPU.get(&call, gpu).await,
        GpuCommand::Replace { gpu, with, call } => replace(&call, &gpu, &with).await,
    }
}

async fn replace(call: &CallArgs, gpu: &str, with: &str) -> Result<ExitCode, ClientError> {
    let path = format!("{}/replace", GPU.path_of(gpu));
    let done: Replacement = call.client()?.post(&path, &json!({ "with": with })).await?;
    let sentence = format!("{} replaces {} in daemon {}", done.with, done.replaced, done.daemon.name);
    call.format().announce(&sentence, done.with.to_string().as_str(), &done);
    Ok(ExitCode::SUCCESS)
}
