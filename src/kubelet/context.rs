//! What the parts of the plugin share.

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

/// How long the manager may take to answer.
const MANAGER_ANSWERS_WITHIN: Duration = Duration::from_secs(5);

/// How the plugin serves the kubelet.
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
    /// How long a tenant lives after the plugin has last renewed it
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = lifetime)]
    pub ttl: Duration,
    /// How long an allocation may take
    #[arg(long, value_name = "DURATION", default_value = "20s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// How often the kubelet is asked which devices are in use
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = interval)]
    pub interval: Duration,
    /// How long an allocation is kept at least, since the kubelet lists it some time after it was made
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub min_age: Duration,
    /// How long the manager may be away until all places are unhealthy
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

/// A time that is renewed at half of it, again and again.
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

/// What is remembered of a tenant that holds places.
#[derive(Debug)]
pub(super) struct TrackedTenant {
    /// Since when it is known, or was last allocated.
    pub(super) since: Instant,
    /// Until when it may be being made: the kubelet cannot list its places yet, and may have stopped waiting.
    pub(super) made_until: Option<Instant>,
    /// How many times in a row the kubelet did not list its places.
    pub(super) unlisted: u32,
}

impl TrackedTenant {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), made_until: None, unlisted: 0 }
    }

    /// Whether it is too young for its places to be missed.
    pub(super) fn is_young(&self, min_age: Duration) -> bool {
        self.since.elapsed() < min_age || self.made_until.is_some_and(|until| Instant::now() < until)
    }
}

/// The manager, the options, and what is known of both sides.
pub(super) struct PluginContext {
    pub(super) client: Client,
    pub(super) options: KubeletPluginOptions,
    pub(super) clock: Clock,
    pub(super) offer: watch::Sender<Arc<NodeOffer>>,
    /// The GPUs of which another device plugin offers replicas, each with the resource.
    pub(super) replicated: watch::Sender<BTreeMap<GpuUuid, String>>,
    /// Has every class listed to the kubelet again, although nothing of it has changed.
    pub(super) relist: watch::Sender<()>,
    /// Set where the kubelet had no checkpoint when a class was registered with it; it writes one then.
    pub(super) is_checkpoint_lost: AtomicBool,
    /// Held while a tenant is deleted, so that none is deleted that is just allocated again.
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

    /// The resource of a class, as pods request it.
    pub(super) fn resource(&self, class: &str) -> String {
        format!("{}/{class}", self.options.resource_domain)
    }

    /// When a tenant expires that is renewed now, in unix milliseconds.
    pub(super) fn expiry(&self) -> i64 {
        self.clock.unix_ms().saturating_add(millis(self.options.ttl))
    }

    /// Offers this, if it is something else than before.
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

/// The path of a tenant in the API.
pub(super) fn tenant_path(name: &TenantName) -> String {
    format!("/api/v1/tenants/{name}")
}

/// The request that deletes a tenant with whose environment no process will be started any more.
pub(super) fn deletion(name: &TenantName) -> String {
    format!("{}?finished=true", tenant_path(name))
}

/// The manager's answer to a request, within a time.
pub(super) async fn answered<T>(
    request: impl Future<Output = Result<T, ClientError>>,
) -> Result<T, ClientError> {
    let seconds = MANAGER_ANSWERS_WITHIN.as_secs();
    let late = || ClientError::Address(format!("the manager did not answer within {seconds} s"));
    timeout(MANAGER_ANSWERS_WITHIN, request).await.unwrap_or_else(|_| Err(late()))
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
