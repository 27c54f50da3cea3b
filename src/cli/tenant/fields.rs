//! A tenant on the command line: its name and its spec.

use serde_json::{Map, Value, json};

use super::super::change::{SpecFields, memory_limit};
use super::super::fetch::daemon_for;
use super::super::nouns::{DAEMON, GPU};
use super::super::spec_fields::spec_fields;
use super::super::values::{thread_percentage, time_to_live, user, whole_number};
use crate::client::{Client, ClientError};
use crate::clock::Clock;
use crate::domain::{DaemonName, InvalidValue, rfc3339};

spec_fields! {
    /// The fields of a tenant's spec.
    TenantFieldArgs {
        /// The daemon that serves it; for a new tenant, by default the one that has its GPUs, or the only one of the host
        daemon: Option<DaemonName>, ["daemon"], (long, add = DAEMON.complete());
        /// The user that its processes run as, by name or number; for a new tenant, by default you
        uid: Option<u32>, ["uid"], (long, value_name = "USER", value_parser = user);
        /// A GPU of the daemon that it sees, by index or UUID, or an MLOPart device, as 0/mlo1; may be repeated; by default all
        gpus: Vec<String>, ["gpus"],
            (long = "gpu", value_name = "GPU", value_delimiter = ',', add = GPU.complete()), unset "gpus";
        /// Memory of each of its processes on each GPU, for example 4G, or for each GPU, for example 0=4G,1=8G
        memory_limit: Option<String>, ["device_memory_limit"],
            (long, value_name = "SIZE", allow_hyphen_values = true, value_parser = memory_limit), unset "memory-limit";
        /// Most of its processes that may be connected at once
        max_clients: Option<u32>, ["max_clients"],
            (long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number), unset "max-clients";
        /// SMs that each of its processes sees
        sms: Option<u32>, ["sms"],
            (long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number,
            conflicts_with = "thread_percentage"), unset "sms";
        /// Share of the threads of a GPU instead of SMs, in percent
        thread_percentage: Option<f64>, ["active_thread_percentage"],
            (long, value_name = "PERCENT", allow_hyphen_values = true, value_parser = thread_percentage),
            unset "thread-percentage";
        /// Its share beside others where the daemon's provisioning is weighted
        weight: Option<u32>, ["weight"],
            (long, value_name = "N", allow_negative_numbers = true, value_parser = whole_number), unset "weight";
        /// Its priority: normal or `below_normal`
        priority: Option<String>, ["priority"],
            (long, value_name = "PRIORITY", hide_possible_values = true, value_parser = ["normal", "below_normal"]),
            unset "priority";
        /// Form in which its processes are told their GPUs: uuid, or ordinal for programs that take `CUDA_VISIBLE_DEVICES` for numbers
        visible_devices: Option<String>, ["visible_devices"],
            (long, value_name = "HOW", hide_possible_values = true, value_parser = ["uuid", "ordinal"]),
            unset "visible-devices";
        /// A label; may be repeated
        labels: Vec<Map<String, Value>>, ["labels"], (long = "label", value_name = "KEY=VALUE", value_parser = label), unset "labels";
        /// Time to live from now on, for example 48h: then it admits no process, and is deleted once it has none
        ttl: Option<String>, ["expires_at"],
            (long, value_name = "DURATION", allow_hyphen_values = true, value_parser = expiry), unset "ttl";
    }
}

/// Returns the user who runs this command; through sudo, the user who called that.
fn caller() -> u32 {
    let own = rustix::process::geteuid().as_raw();
    let before_sudo = std::env::var("SUDO_UID").ok().and_then(|uid| uid.parse().ok());
    if own == 0 { before_sudo.unwrap_or(own) } else { own }
}

/// Reads a label.
fn label(text: &str) -> Result<Map<String, Value>, String> {
    let (key, value) = text.split_once('=').ok_or("give KEY=VALUE, for example team=search")?;
    Ok(Map::from_iter([(key.to_owned(), json!(value))]))
}

/// Reads a time to live, and returns the time at which it is over, counted from now.
fn expiry(text: &str) -> Result<String, InvalidValue> {
    let ttl = i64::try_from(time_to_live(text)?.as_millis()).unwrap_or(i64::MAX);
    Ok(rfc3339::format(Clock::system().unix_ms().saturating_add(ttl)))
}

impl TenantFieldArgs {
    /// Returns the change with the fields that were given; SMs and a thread percentage replace each other.
    pub(super) fn added_to(&self, mut fields: SpecFields) -> SpecFields {
        if self.sms.is_some() {
            fields.unset(&["active_thread_percentage"]);
        }
        if self.thread_percentage.is_some() {
            fields.unset(&["sms"]);
        }
        self.add_to(&mut fields);
        fields
    }

    /// Creates the spec of a new tenant, with its daemon and its user.
    pub(super) async fn new_spec(&self, client: &Client) -> Result<Value, ClientError> {
        let mut spec = json!({ "daemon": daemon_for(client, self.daemon.as_ref(), &self.gpus).await? });
        // On another host the caller's ID may be anybody's.
        if let Some(uid) = self.uid.or_else(|| client.is_of_this_host().then(caller)) {
            spec["uid"] = json!(uid);
        }
        Ok(spec)
    }
}
