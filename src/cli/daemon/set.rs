//! `mps-manager daemon set`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use clap_complete::engine::ArgValueCandidates;
use serde_json::json;

use super::super::change::{SpecChange, SpecFields, change, memory_limit, some_list};
use super::super::completion;
use super::super::confirm::ConfirmArgs;
use super::super::output::{DIFFERS, complain, remark, word};
use super::super::server::CallArgs;
use super::super::values::{overcommit_ratio, thread_percentage, whole_number};
use super::super::wait::{ProgressLine, WaitArgs};
use super::arguments::{DAEMONS, NamedDaemon};
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
    /// A GPU that it offers, by index or UUID; may be repeated; a new daemon needs one
    #[arg(long = "gpu", value_name = "GPU", value_delimiter = ',', add = ArgValueCandidates::new(completion::gpus))]
    gpus: Vec<String>,
    /// Mode in which its clients share the SMs: shared or static
    #[arg(long, value_name = "MODE", hide_possible_values = true, value_parser = ["shared", "static"])]
    mode: Option<String>,
    /// Desired state: running or stopped
    #[arg(long, value_name = "STATE", hide_possible_values = true, value_parser = ["running", "stopped"])]
    desired_state: Option<String>,
    /// Let clients of several users be connected at once
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    multi_user: Option<bool>,
    /// A user who may reach it although no tenant has them, as a number; may be repeated, and replaces those before
    #[arg(long = "user", value_name = "UID", value_delimiter = ',')]
    users: Vec<u32>,
    /// Let every user of the host reach it
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    any_user: Option<bool>,
    /// Let it start on a GPU that another control daemon serves
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    share_gpus: Option<bool>,
    /// The compute mode of its GPUs while it runs: default or `exclusive_process`
    #[arg(long, value_name = "MODE", hide_possible_values = true, value_parser = ["default", "exclusive_process"])]
    compute_mode: Option<String>,
    /// Strategy for thread percentages of tenants that state none: none, uniform, relaxed or weighted
    #[arg(long, value_name = "STRATEGY", hide_possible_values = true, value_parser = ["none", "uniform", "relaxed", "weighted"])]
    provisioning: Option<String>,
    /// Clients that provisioning divides a GPU among
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    expected_clients: Option<u32>,
    /// Memory limit of tenants that state none, for example 8G, or for each GPU, for example 0=8G,1=4G
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = memory_limit)]
    memory_limit: Option<String>,
    /// Thread percentage of tenants that state none
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = thread_percentage)]
    thread_percentage: Option<f64>,
    /// Priority of tenants that state none: normal or `below_normal`
    #[arg(long, value_name = "PRIORITY", hide_possible_values = true, value_parser = ["normal", "below_normal"])]
    priority: Option<String>,
    /// Admission: open, or reserved if tenants reserve what they may use
    #[arg(long, value_name = "MODE", hide_possible_values = true, value_parser = ["open", "reserved"])]
    admission: Option<String>,
    /// With reserved admission, how many times the memory may be reserved
    #[arg(long, value_name = "RATIO", allow_negative_numbers = true, value_parser = overcommit_ratio)]
    memory_overcommit: Option<f64>,
    /// Action on settings that others change: report or repair
    #[arg(long, value_name = "POLICY", hide_possible_values = true, value_parser = ["report", "repair"])]
    drift_policy: Option<String>,
    /// Action on clients of users without a tenant, where one user is served at a time: terminate or report
    #[arg(long, value_name = "POLICY", hide_possible_values = true, value_parser = ["terminate", "report"])]
    foreign_user_policy: Option<String>,
    /// Action when a server hangs with clients: replace it or wait for them
    #[arg(long, value_name = "POLICY", hide_possible_values = true, value_parser = ["replace", "wait"])]
    wedge_policy: Option<String>,
    /// Time to wait for clients of a server that hangs before it is replaced, for example 1m
    #[arg(long, value_name = "DURATION", value_parser = parse_seconds::<u32>)]
    wedge_grace: Option<u32>,
    /// Fields to leave out, so that their defaults hold
    #[arg(long, value_name = "FIELD", value_delimiter = ',')]
    unset: Vec<UnsetDaemonField>,
    /// Say what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArgs,
    #[command(flatten)]
    call: CallArgs,
}

/// A field that may be left out.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum UnsetDaemonField {
    ComputeMode,
    MemoryLimit,
    ThreadPercentage,
    Priority,
    MemoryOvercommit,
    ExpectedClients,
    Layout,
    Users,
}

impl UnsetDaemonField {
    fn path(self) -> &'static [&'static str] {
        match self {
            Self::ComputeMode => &["compute_mode"],
            Self::MemoryLimit => &["defaults", "device_memory_limit"],
            Self::ThreadPercentage => &["defaults", "active_thread_percentage"],
            Self::Priority => &["defaults", "priority"],
            Self::MemoryOvercommit => &["memory_overcommit"],
            Self::ExpectedClients => &["provisioning", "expected_clients"],
            Self::Layout => &["layout"],
            Self::Users => &["users"],
        }
    }
}

impl DaemonSetArgs {
    fn fields(&self) -> SpecFields {
        let mut fields = SpecFields::default();
        for field in &self.unset {
            fields.unset(field.path());
        }
        fields
            .set(&["gpus"], some_list(&self.gpus))
            .set(&["mode"], self.mode.as_deref())
            .set(&["desired_state"], self.desired_state.as_deref())
            .set(&["multi_user"], self.multi_user)
            .set(&["users"], (!self.users.is_empty()).then(|| json!(self.users)))
            .set(&["any_user"], self.any_user)
            .set(&["share_gpus"], self.share_gpus)
            .set(&["compute_mode"], self.compute_mode.as_deref())
            .set(&["provisioning", "strategy"], self.provisioning.as_deref())
            .set(&["provisioning", "expected_clients"], self.expected_clients)
            .set(&["defaults", "device_memory_limit"], self.memory_limit.as_deref())
            .set(&["defaults", "active_thread_percentage"], self.thread_percentage)
            .set(&["defaults", "priority"], self.priority.as_deref())
            .set(&["admission"], self.admission.as_deref())
            .set(&["memory_overcommit"], self.memory_overcommit)
            .set(&["drift_policy"], self.drift_policy.as_deref())
            .set(&["foreign_user_policy"], self.foreign_user_policy.as_deref())
            .set(&["wedge_policy"], self.wedge_policy.as_deref())
            .set(&["wedge_grace_s"], self.wedge_grace);
        fields
    }
}

pub(super) async fn set(args: &DaemonSetArgs) -> Result<ExitCode, ClientError> {
    let client = args.call.client()?;
    let name = &args.daemon.name;
    let path = format!("{DAEMONS}/{name}");
    let new = async || {
        if args.gpus.is_empty() {
            return Err(format!(
                "there is no daemon {name}: to create it, give its GPU, for example --gpu 0"
            )
            .into());
        }
        Ok(json!({}))
    };
    let progress = ProgressLine::new(&format!("applying the settings of daemon {name}"));
    let wait = if args.wait.no_wait { Duration::ZERO } else { READY };
    let answer = change(&client, &path, &args.fields(), new, args.dry_run, wait, ConfirmArgs::NEVER).await?;
    drop(progress);
    let (sentence, made) = (format!("daemon {name} {}", answer.words(args.dry_run)), answer.made);
    let daemon: DaemonView =
        serde_json::from_value(answer.view).map_err(|error| ClientError::Unreadable(error.to_string()))?;
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
