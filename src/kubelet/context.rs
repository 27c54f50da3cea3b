//! State that the parts of the plugin share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout};

use super::places::NodeOffer;
use super::preference::GpuPreference;
use crate::client::{Client, ClientError};
use crate::clock::Clock;
use crate::domain::duration::parse_duration;
use crate::domain::{GpuUuid, InvalidValue, TenantName};

/// Longest time for the manager to answer.
const MANAGER_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// Options of the plugin.
#[derive(Debug, Clone, clap::Args)]
pub struct KubeletPluginOptions {
    /// The kubelet's directory of device plugins
    #[arg(long, value_name = "DIR", default_value = "/var/lib/kubelet/device-plugins")]
    pub plugin_dir: PathBuf,
    /// The socket on which the kubelet says which devices its pods have
    #[arg(long, value_name = "SOCKET", default_value = "/var/lib/kubelet/pod-resources/kubelet.sock")]
    pub pod_resources: PathBuf,
    /// The domain of the resources
    #[arg(long, value_name = "DOMAIN", default_value = "mps-manager.dev", value_parser = domain)]
    pub resource_domain: String,
    /// The kind of the CDI devices of GPUs, which the container runtime knows by another specification
    #[arg(long, value_name = "KIND", default_value = "nvidia.com/gpu")]
    pub gpu_kind: String,
    /// Answer environment and mounts instead of CDI devices, as kubelets before 1.31 need it
    #[arg(long)]
    pub legacy_env: bool,
    /// Tell programs their GPU as 0 in place of its UUID, for those that take `CUDA_VISIBLE_DEVICES` for numbers; daemons need one GPU each
    #[arg(long)]
    pub ordinals: bool,
    /// Which GPU a pod gets
    #[arg(long, value_name = "GPU", value_enum, default_value = "pack")]
    pub placement: GpuPreference,
    /// The user of the containers, by number; several users at once need daemons with `multi_user`
    #[arg(long, value_name = "UID", default_value_t = 0)]
    pub uid: u32,
    /// Time after which a tenant expires unless the plugin renews it
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = lifetime)]
    pub ttl: Duration,
    /// Longest time for an allocation
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Interval at which the kubelet is asked which devices are in use
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = interval)]
    pub interval: Duration,
    /// Shortest time for which an allocation is kept, since the kubelet lists it some time after it was made
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub min_age: Duration,
    /// Time without an answer of the manager after which all places are unhealthy
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub grace: Duration,
    /// Write facts about the node to this file, as those of node-feature-discovery's directory features.d
    #[arg(long, value_name = "FILE")]
    pub features_file: Option<PathBuf>,
}

fn domain(text: &str) -> Result<String, InvalidValue> {
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    if text.len() <= 253 && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err(InvalidValue(format!("{text:?} is not a domain: give one as mps-manager.dev")))
}

/// Parses a lifetime, which has to be long enough to be renewed at half of it each time.
fn lifetime(text: &str) -> Result<Duration, InvalidValue> {
    let ttl = parse_duration(text)?;
    if ttl < Duration::from_secs(60) {
        return Err(InvalidValue(format!("{text:?} is too short: give at least 1m, for example 24h")));
    }
    Ok(ttl)
}

fn interval(text: &str) -> Result<Duration, InvalidValue> {
    let interval = parse_duration(text)?;
    if interval < Duration::from_millis(100) {
        return Err(InvalidValue(format!("{text:?} is too short: give at least 100ms, for example 5s")));
    }
    Ok(interval)
}

/// State of a tenant that holds places.
#[derive(Debug)]
pub(super) struct TrackedTenant {
    /// Time since which the tenant is known, or at which it was last allocated.
    pub(super) since: Instant,
    /// Time until which an allocation may be under way: the kubelet cannot list its places yet, and may have stopped waiting.
    pub(super) made_until: Option<Instant>,
    /// Number of times in a row that the kubelet did not list its places.
    pub(super) unlisted: u32,
}

impl TrackedTenant {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), made_until: None, unlisted: 0 }
    }

    /// Returns true if the tenant is so young that the kubelet may not list its places yet.
    pub(super) fn is_young(&self, min_age: Duration) -> bool {
        self.since.elapsed() < min_age || self.made_until.is_some_and(|until| Instant::now() < until)
    }
}

/// The manager, the options, and the state that is known of the manager and of the kubelet.
pub(super) struct PluginContext {
    pub(super) client: Client,
    pub(super) options: KubeletPluginOptions,
    pub(super) clock: Clock,
    pub(super) offer: watch::Sender<Arc<NodeOffer>>,
    /// The GPUs of which another device plugin offers replicas, each with the resource.
    pub(super) replicated: watch::Sender<BTreeMap<GpuUuid, String>>,
    /// Requests that every class is listed to the kubelet again, although it has not changed.
    pub(super) relist: watch::Sender<()>,
    /// True if the kubelet had no checkpoint when a class was registered with it; it writes one then.
    pub(super) is_checkpoint_lost: AtomicBool,
    /// Tenants that hold places. Locked while a tenant is deleted, so that a tenant that is being allocated again is not deleted.
    pub(super) tracked: Mutex<BTreeMap<TenantName, TrackedTenant>>,
}

impl PluginContext {
    pub(super) fn new(client: Client, options: KubeletPluginOptions) -> Self {
        Self {
            client,
            options,
            clock: Clock::system(),
            offer: watch::Sender::new(Arc::default()),
            replicated: watch::Sender::new(BTreeMap::new()),
            relist: watch::Sender::new(()),
            is_checkpoint_lost: AtomicBool::new(false),
            tracked: Mutex::default(),
        }
    }

    /// Returns the resource of a class, as pods request it.
    pub(super) fn resource(&self, class: &str) -> String {
        format!("{}/{class}", self.options.resource_domain)
    }

    /// Returns the expiry of a tenant that is renewed now, in unix milliseconds.
    pub(super) fn expiry(&self) -> i64 {
        self.clock.unix_ms().saturating_add(millis(self.options.ttl))
    }

    /// Publishes an offer if it differs from the last one.
    pub(super) fn publish(&self, offer: NodeOffer) {
        self.offer.send_if_modified(|offered| {
            let is_other = **offered != offer;
            if is_other {
                log_changes(offered, &offer);
                *offered = Arc::new(offer);
            }
            is_other
        });
    }
}

/// Returns the path of a tenant in the API.
pub(super) fn tenant_path(name: &TenantName) -> String {
    format!("/api/v1/tenants/{name}")
}

/// Returns the path of the request that deletes a tenant in whose environment no process will be started any more.
pub(super) fn deletion(name: &TenantName) -> String {
    format!("{}?finished=true", tenant_path(name))
}

/// Waits for the manager's answer to a request, no longer than [`MANAGER_ANSWERS_WITHIN`].
pub(super) async fn answered<T>(
    request: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let late = |_| Err(ClientError::TimedOut(MANAGER_ANSWERS_WITHIN));
    timeout(MANAGER_ANSWERS_WITHIN, request).await.unwrap_or_else(late)
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn log_changes(before: &NodeOffer, now: &NodeOffer) {
    if before.in_words() != now.in_words() || before.remarks != now.remarks {
        tracing::info!("this node offers {}", now.in_words());
        for remark in &now.remarks {
            tracing::warn!("{remark}");
        }
    }
    let faults = |offer: &NodeOffer| {
        let faults = offer.classes.values().flatten().filter_map(|place| place.fault.clone());
        faults.collect::<std::collections::BTreeSet<String>>()
    };
    let (old, new) = (faults(before), faults(now));
    for fault in new.difference(&old) {
        tracing::warn!("places are unhealthy: {fault}");
    }
    for fault in old.difference(&new) {
        tracing::info!("places are no longer unhealthy for this: {fault}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_options_are_refused() {
        assert_eq!(domain("gpu.example.org").as_deref(), Ok("gpu.example.org"));
        for wrong in ["", "a..b", "-a", "A.b", "a/b", &"a.".repeat(200)] {
            assert!(domain(wrong).expect_err(wrong).to_string().contains("is not a domain"));
        }
        assert!(lifetime("24h").is_ok() && lifetime("59s").is_err());
        assert!(interval("100ms").is_ok() && interval("0").is_err());
    }
}
