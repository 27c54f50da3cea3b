//! `mps-manager tenant set`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use clap_complete::engine::ArgValueCandidates;
use serde_json::{Value, json};

use super::super::change::{SpecAnswer, SpecChange, SpecFields, change, memory_limit, some_list};
use super::super::completion;
use super::super::fetch::{GpuNames, daemon_or_only};
use super::super::output::{DIFFERS, complain, remark};
use super::super::server::CallArgs;
use super::super::values::{thread_percentage, user, whole_number};
use super::super::wait::{POLL, ProgressLine, WaitArgs};
use crate::client::{Client, ClientError};
use crate::domain::condition::{ConditionReason, ready};
use crate::domain::count::enumerated;
use crate::domain::daemon::Phase;
use crate::domain::tenant::TenantEffective;
use crate::domain::{DaemonName, TenantName};
use crate::service::daemons::DaemonView;
use crate::service::tenants::TenantView;

/// Where tenants are in the API.
pub(super) const TENANTS: &str = "/api/v1/tenants";
/// How long settings may take to be in force.
const IN_FORCE: Duration = Duration::from_secs(15);
/// How long something has to keep a tenant from being ready until it is not waited for: a layout may just be read back.
const SETTLING: Duration = Duration::from_secs(1);

/// A tenant and the fields of its spec.
#[derive(Debug, Args)]
pub(in crate::cli) struct TenantSetArgs {
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
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = memory_limit)]
    memory_limit: Option<String>,
    /// How many of its processes may be connected at once
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    max_clients: Option<u32>,
    /// SMs that each of its processes sees
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number,
        conflicts_with = "thread_percentage")]
    sms: Option<u32>,
    /// Share of the threads of a GPU instead of SMs, in percent
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = thread_percentage)]
    thread_percentage: Option<f64>,
    /// Its share beside others where the daemon's provisioning is weighted
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    weight: Option<u32>,
    /// Its priority: normal or `below_normal`
    #[arg(long, value_name = "PRIORITY", hide_possible_values = true, value_parser = ["normal", "below_normal"])]
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

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, for example team=search")?;
    Ok((key.to_owned(), value.to_owned()))
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

pub(super) async fn set(args: &TenantSetArgs) -> Result<ExitCode, ClientError> {
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
    let answer = change(&client, &path, &fields, new, args.dry_run).await?;
    let (name, format) = (args.name.as_str(), args.call.format());
    let made = answer.made;
    let (sentence, written) = announced(&client, args, answer).await?;
    let provisioning = written.status.provisioning.as_ref().filter(|_| made != SpecChange::Unchanged);
    if let Some(words) = provisioning.and_then(|provisioning| provisioning.share_of(&written.name)) {
        remark(&words);
    }
    if args.dry_run || args.wait.no_wait {
        format.announce(&sentence, name, &written);
        return Ok(ExitCode::SUCCESS);
    }
    let tenant = in_force(&client, &path, written).await?;
    if let Some(words) = tenant.status.effective.as_ref().and_then(TenantEffective::other_limits) {
        remark(&format!("{words}."));
    }
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

/// What was done, in a sentence, and the tenant that the server answered.
async fn announced(
    client: &Client,
    args: &TenantSetArgs,
    answer: SpecAnswer,
) -> Result<(String, TenantView), ClientError> {
    let mut parts = vec![format!("tenant {} {}", args.name, answer.words(args.dry_run))];
    let written: TenantView =
        serde_json::from_value(answer.view).map_err(|error| ClientError::Unreadable(error.to_string()))?;
    if answer.made == SpecChange::Created && args.uid.is_none() {
        parts.push(format!("its processes run as uid {}", written.spec.uid));
    }
    if !written.status.weakens.is_empty() {
        let daemon: DaemonView = client.get(&format!("/api/v1/daemons/{}", written.spec.daemon)).await?;
        let names = GpuNames::read(client).await;
        let without = written.status.gpus.iter();
        let without = without.filter(|gpu| written.spec.memory_limit(&daemon.spec, gpu).is_none());
        let without: Vec<String> = without.map(|gpu| names.name(gpu)).collect();
        let place = if without.len() == written.status.gpus.len() {
            String::new()
        } else {
            format!(" on {}", enumerated(&without))
        };
        let weakened: Vec<&str> = written.status.weakens.iter().map(TenantName::as_str).collect();
        let (count, weakened) = (weakened.len(), enumerated(&weakened));
        parts.push(match count {
            1 => format!(
                "it has no memory limit{place}, so that of {weakened} is held by the environment alone"
            ),
            _ => format!(
                "it has no memory limit{place}, so those of {weakened} are held by their environments alone"
            ),
        });
    }
    Ok((parts.join("; "), written))
}

/// The tenant once its settings are in force, or as it is when something keeps it from being ready or that takes too long.
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
    let mut kept_since = Instant::now();
    loop {
        let has_arrived = tenant.status.observed_generation >= tenant.generation;
        let state = ready(&tenant.status.conditions).filter(|_| has_arrived);
        let is_ready = state.is_some_and(|ready| ready.status);
        if state.is_none_or(|ready| !stays(ready.reason)) {
            kept_since = Instant::now();
        }
        if is_ready || kept_since.elapsed() >= SETTLING || Instant::now() >= until {
            drop(progress);
            return Ok(tenant);
        }
        tokio::time::sleep(POLL).await;
        tenant = client.get(path).await?;
    }
}

/// Whether a tenant whose settings are in force is not ready for something that waiting does not change.
fn stays(reason: ConditionReason) -> bool {
    matches!(
        reason,
        ConditionReason::Cordoned
            | ConditionReason::Maintenance
            | ConditionReason::DirectoryUnreachable
            | ConditionReason::PartitionInUse
            | ConditionReason::PartitionNotProven
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_partition_is_not_waited_for() {
        assert!(stays(ConditionReason::PartitionNotProven));
        assert!(!stays(ConditionReason::AwaitingReadBack));
        assert!(!stays(ConditionReason::SocketNotHandedOut), "the driver hands it out");
    }
}
