//! A tenant on the command line: its name and its spec.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::super::change::{SpecFields, memory_limit, some_list};
use super::super::fetch::daemon_for;
use super::super::nouns::{DAEMON, GPU, TENANT};
use super::super::values::{thread_percentage, time_to_live, user, whole_number};
use crate::client::{Client, ClientError};
use crate::clock::Clock;
use crate::domain::{DaemonName, TenantName, rfc3339};

/// A tenant and the fields of its spec.
#[derive(Debug, Args)]
pub(super) struct TenantFieldArgs {
    /// The tenant
    #[arg(add = TENANT.complete())]
    pub(super) name: TenantName,
    /// The daemon that serves it; for a new tenant, by default the one that has its GPUs, or the only one of the host
    #[arg(long, add = DAEMON.complete())]
    daemon: Option<DaemonName>,
    /// The user that its processes run as, by name or number; for a new tenant, by default you
    #[arg(long, value_name = "USER", value_parser = user)]
    pub(super) uid: Option<u32>,
    /// A GPU of the daemon that it sees, by index or UUID; may be repeated; by default all
    #[arg(long = "gpu", value_name = "GPU", value_delimiter = ',', add = GPU.complete())]
    gpus: Vec<String>,
    /// Memory of each of its processes on each GPU, for example 4G, or for each GPU, for example 0=4G,1=8G
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, value_parser = memory_limit)]
    memory_limit: Option<String>,
    /// Most of its processes that may be connected at once
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    max_clients: Option<u32>,
    /// SMs that each of its processes sees
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number,
        conflicts_with = "thread_percentage")]
    sms: Option<u32>,
    /// Share of the threads of a GPU instead of SMs, in percent
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = thread_percentage)]
    thread_percentage: Option<f64>,
    /// Its share beside others where the daemon's provisioning is weighted
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number)]
    weight: Option<u32>,
    /// Its priority: normal or `below_normal`
    #[arg(long, value_name = "PRIORITY", hide_possible_values = true, value_parser = ["normal", "below_normal"])]
    priority: Option<String>,
    /// Form in which its processes are told their GPUs: uuid, or ordinal for programs that take `CUDA_VISIBLE_DEVICES` for numbers
    #[arg(long, value_name = "HOW", hide_possible_values = true, value_parser = ["uuid", "ordinal"])]
    visible_devices: Option<String>,
    /// A label; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(super) labels: Vec<(String, String)>,
    /// Time to live from now on, for example 48h: then it admits no process, and is deleted once it has none
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = time_to_live)]
    ttl: Option<Duration>,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, for example team=search")?;
    Ok((key.to_owned(), value.to_owned()))
}

/// Returns the user who runs this command; through sudo, the user who called that.
fn caller() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    let before_sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    if own == 0 { before_sudo.unwrap_or(own) } else { own }
}

/// Returns the time at which something with this time to live expires, counted from now.
fn expiry(ttl: Duration) -> String {
    let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX);
    rfc3339::format(Clock::system().unix_ms().saturating_add(ttl))
}

impl TenantFieldArgs {
    /// Sets the fields that were given, apart from the labels.
    pub(super) fn add_to(&self, fields: &mut SpecFields) {
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
            .set(&["priority"], self.priority.as_deref())
            .set(&["visible_devices"], self.visible_devices.as_deref())
            .set(&["expires_at"], self.ttl.map(expiry));
    }

    /// Returns the fields of a spec with these settings and no others.
    pub(super) fn exactly(&self) -> SpecFields {
        let mut fields = SpecFields::exactly();
        self.add_to(&mut fields);
        let labels: BTreeMap<&String, &String> =
            self.labels.iter().map(|(key, value)| (key, value)).collect();
        fields.set(&["labels"], (!labels.is_empty()).then(|| json!(labels)));
        fields
    }

    /// Creates the spec of a new tenant, with its daemon and its user.
    pub(super) async fn new_spec(&self, client: &Client) -> Result<Value, ClientError> {
        let daemon = daemon_for(client, self.daemon.as_ref(), &self.gpus).await?;
        let mut spec = json!({ "daemon": daemon });
        // On another host the caller's ID may be anybody's.
        if let Some(uid) = self.uid.or_else(|| client.is_of_this_host().then(caller)) {
            spec["uid"] = json!(uid);
        }
        Ok(spec)
    }
}
