//! `mps-manager kubelet-plugin`: the device plugin of a Kubernetes node.

use std::process::ExitCode;

use clap::Args;

use super::output::CommandResult;
use super::server::ServerArgs;
use crate::app::doctor::refuse_beside_nvidia;
use crate::config::LogFormat;
use crate::kubelet::{self, KubeletPluginOptions};
use crate::telemetry;

/// The arguments of `kubelet-plugin`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  mps-manager kubelet-plugin
  mps-manager kubelet-plugin --placement spread --features-file /etc/kubernetes/node-feature-discovery/features.d/mps-manager")]
pub(super) struct KubeletPluginArgs {
    #[command(flatten)]
    options: KubeletPluginOptions,
    #[command(flatten)]
    server: ServerArgs,
    /// Format of the log: text or json
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

pub(super) fn run(args: KubeletPluginArgs) -> CommandResult {
    refuse_beside_nvidia(&args.options.plugin_dir)?;
    let client = args.server.client()?;
    telemetry::start(args.log_format, "info")?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(kubelet::serve(client, args.options))?;
    Ok(ExitCode::SUCCESS)
}
