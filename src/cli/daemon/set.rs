//! `mps-manager daemon set`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::super::change::{SpecChange, SpecFields, change, memory_limit};
use super::super::confirm::ConfirmArgs;
use super::super::nouns::{DAEMON, GPU};
use super::super::output::{DIFFERS, complain, remark, word};
use super::super::server::CallArgs;
use super::super::spec_fields::{spec_fields, unset_words};
use super::super::values::{overcommit_ratio, thread_percentage, whole_number};
use super::super::wait::{ProgressLine, WaitArgs};
use super::arguments::NamedDaemon;
use crate::client::ClientError;
use crate::domain::condition::ready;
use crate::domain::daemon::Phase;
use crate::domain::duration::parse_seconds;
use crate::service::daemons::DaemonView;

/// Time within which a daemon must be as its spec says.
const READY: Duration = Duration::from_secs(60);

/// A daemon and the fields of its spec.
#[derive(Debug, Args)]
pub(in crate::cli) struct DaemonSetArgs {
    #[command(flatten)]
    daemon: NamedDaemon,
    #[command(flatten)]
    fields: DaemonFieldArgs,
    /// Fields to leave out, so that their defaults hold
    #[arg(long, value_name = "FIELD", value_delimiter = ',', value_parser = unset_words(DaemonFieldArgs::UNSET))]
    unset: Vec<String>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    call: CallArgs,
}

spec_fields! {
    /// The fields of a daemon's spec.
    DaemonFieldArgs {
        /// A GPU that it offers, by index or UUID, or a MIG instance, as 0/mig1; may be repeated; a new daemon needs one
        gpus: Vec<String>, ["gpus"],
            (long = "gpu", value_name = "GPU", value_delimiter = ',', add = GPU.complete());
        /// Mode in which its clients share the SMs: shared or static
        mode: Option<String>, ["mode"],
            (long, value_name = "MODE", hide_possible_values = true, value_parser = ["shared", "static"]);
        /// Desired state: running or stopped
        desired_state: Option<String>, ["desired_state"],
            (long, value_name = "STATE", hide_possible_values = true, value_parser = ["running", "stopped"]);
        /// Give clients MLOPart devices in place of whole GPUs
        mlopart: Option<bool>, ["mlopart"],
            (long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true");
        /// Let clients of several users be connected at once
        multi_user: Option<bool>, ["multi_user"],
            (long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true");
        /// A user who may reach it although no tenant has them, as a number; may be repeated, and replaces those before
        users: Vec<u32>, ["users"], (long = "user", value_name = "UID", value_delimiter = ','), unset "users";
        /// Let every user of the host reach it
        any_user: Option<bool>, ["any_user"],
            (long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true");
        /// Let it start on a GPU that another control daemon serves
        share_gpus: Option<bool>, ["share_gpus"],
            (long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true");
        /// The compute mode of its GPUs while it runs: default or `exclusive_process`
        compute_mode: Option<String>, ["compute_mode"],
            (long, value_name = "MODE", hide_possible_values = true, value_parser = ["default", "exclusive_process"]),
            unset "compute-mode";
        /// Strategy for the default thread percentages of tenants: none, uniform, relaxed or weighted
        provisioning: Option<String>, ["provisioning", "strategy"],
            (long, value_name = "STRATEGY", hide_possible_values = true,
            value_parser = ["none", "uniform", "relaxed", "weighted"]);
        /// Clients that provisioning divides a GPU among
        expected_clients: Option<u32>, ["provisioning", "expected_clients"],
            (long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number),
            unset "expected-clients";
        /// Default memory limit of tenants, for example 8G, or for each GPU, for example 0=8G,1=4G
        memory_limit: Option<String>, ["defaults", "device_memory_limit"],
            (long, value_name = "SIZE", allow_hyphen_values = true, value_parser = memory_limit), unset "memory-limit";
        /// Default thread percentage of tenants
        thread_percentage: Option<f64>, ["defaults", "active_thread_percentage"],
            (long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = thread_percentage),
            unset "thread-percentage";
        /// Default priority of tenants: normal or `below_normal`
        priority: Option<String>, ["defaults", "priority"],
            (long, value_name = "PRIORITY", hide_possible_values = true, value_parser = ["normal", "below_normal"]),
            unset "priority";
        /// Admission: open, or reserved if tenants reserve what they may use
        admission: Option<String>, ["admission"],
            (long, value_name = "MODE", hide_possible_values = true, value_parser = ["open", "reserved"]);
        /// With reserved admission, how many times the memory may be reserved
        memory_overcommit: Option<f64>, ["memory_overcommit"],
            (long, value_name = "RATIO", allow_negative_numbers = true, value_parser = overcommit_ratio),
            unset "memory-overcommit";
        /// Action on settings that others change: report or repair
        drift_policy: Option<String>, ["drift_policy"],
            (long, value_name = "POLICY", hide_possible_values = true, value_parser = ["report", "repair"]);
        /// Action on clients of users without a tenant, where one user is served at a time: terminate or report
        foreign_user_policy: Option<String>, ["foreign_user_policy"],
            (long, value_name = "POLICY", hide_possible_values = true, value_parser = ["terminate", "report"]);
        /// Action when a server hangs with clients: replace it or wait for them
        wedge_policy: Option<String>, ["wedge_policy"],
            (long, value_name = "POLICY", hide_possible_values = true, value_parser = ["replace", "wait"]);
        /// Time to wait for clients of a server that hangs before it is replaced, for example 1m
        wedge_grace: Option<u32>, ["wedge_grace_s"],
            (long, value_name = "DURATION", value_parser = parse_seconds::<u32>);
        unset "layout", ["layout"];
    }
}

pub(super) async fn set(args: &DaemonSetArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let name = &args.daemon.name;
    let path = DAEMON.path_of(name);
    let new = async || {
        if args.fields.gpus.is_empty() {
            return Err(format!(
                "there is no daemon {name}: to create it, give its GPU, for example --gpu 0"
            )
            .into());
        }
        Ok(json!({}))
    };
    let progress = ProgressLine::new(&format!("applying the settings of daemon {name}"));
    let wait = if args.wait.no_wait { Duration::ZERO } else { READY };
    let mut fields = SpecFields::without(&args.unset, DaemonFieldArgs::UNSET);
    args.fields.add_to(&mut fields);
    let answer = change(&client, &path, &fields, new, args.dry_run, wait, ConfirmArgs::NEVER).await?;
    drop(progress);
    let (sentence, made) = (format!("daemon {name} {}", answer.words(args.dry_run)), answer.made);
    let daemon: DaemonView = answer.view()?;
    let format = args.call.format();
    if args.dry_run || args.wait.no_wait {
        format.announce(&sentence, name.as_str(), &daemon);
        return Ok(ExitCode::SUCCESS);
    }
    let status = daemon.status.as_ref();
    let provisioning = status.and_then(|status| status.provisioning.as_ref());
    if let Some(provisioning) = provisioning.filter(|_| made != SpecChange::Unchanged) {
        remark(&provisioning.meaning());
        for share in provisioning.shares_in_words() {
            remark(&share);
        }
    }
    let phase = status.map_or(Phase::Unknown, |status| status.phase);
    match phase {
        Phase::Ready | Phase::Stopped | Phase::Observed => {
            format.announce(&format!("{sentence}; it is {}", word(phase)), name.as_str(), &daemon);
            Ok(ExitCode::SUCCESS)
        }
        _ => {
            format.announce(&sentence, name.as_str(), &daemon);
            let why = status.and_then(|status| ready(&status.conditions)).map(|ready| ready.message.clone());
            complain(&format!("daemon {name} is not ready: {}", why.unwrap_or_else(|| word(phase))));
            Ok(ExitCode::from(DIFFERS))
        }
    }
}
