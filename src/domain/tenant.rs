//! Tenants: named consumers with limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::daemon::DaemonSpec;
use super::gpu::{Gpu, GpuRef};
use super::occupancy::MAX_CLIENTS;
use super::printable::is_shown;
use super::provisioning::{ProvisioningStatus, TenantWeight};
use super::verification::Verification;
use super::{
    DaemonName, DeviceMemoryLimit, GpuUuid, InvalidValue, MemoryLimit, PartitionName, Priority,
    TenantDirectory, TenantName, ThreadPercentage, rfc3339, shortened,
};
use crate::condition::Condition;

/// Desired state of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec<G = GpuUuid> {
    /// The daemon that serves it.
    pub daemon: DaemonName,
    /// The user its processes run as. It has no default: one left out would be root.
    #[schema(maximum = 4_294_967_294_u32)]
    pub uid: u32,
    /// The GPUs of the daemon that it sees; all of them if it is left out or empty.
    #[serde(default = "Vec::new")]
    pub gpus: Vec<G>,
    /// Memory that each of its processes may take, the context included: one size for every GPU, or one for each. If it is left out, and
    /// for a GPU that is not named, it is the daemon's default, or else the whole GPU.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<DeviceMemoryLimit>)]
    pub device_memory_limit: Option<DeviceMemoryLimit<G>>,
    /// Most of its processes that may be connected at once; if it is left out, no limit but that of MPS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 60)]
    pub max_clients: Option<u32>,
    /// SMs that each process sees; instead of a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub sms: Option<u32>,
    /// Share of the threads of the GPU; instead of SMs. If it and `sms` are left out, it is given by the daemon's provisioning, or is the
    /// daemon's default, or else 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_thread_percentage: Option<ThreadPercentage>,
    /// Its weight relative to the other tenants, if the daemon's provisioning is `weighted`.
    #[serde(default)]
    #[schema(value_type = u32, minimum = 1, maximum = 1000)]
    pub weight: TenantWeight,
    /// Its priority, a hint to the GPU; if it is left out, the daemon's default, or else normal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Form in which its processes get their GPUs.
    #[serde(default, skip_serializing_if = "VisibleDevices::is_uuid")]
    pub visible_devices: VisibleDevices,
    /// Words for people and programs. Those that name a pod or a job are shown as its workload; the manager reads none otherwise.
    #[serde(default)]
    #[schema(schema_with = labels)]
    pub labels: BTreeMap<String, String>,
    /// Time at which it expires: from then on it admits no process, and it is deleted once it has none. If it is left out, the tenant stays
    /// until it is deleted.
    #[serde(default, with = "crate::rfc3339::option", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<i64>,
}

/// Labels that a tenant must have: each with a given value, or with any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct LabelSelector(BTreeMap<String, Option<String>>);

impl LabelSelector {
    /// Reads it from `team=ml,tier`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let term = |part: &str| {
            let (key, value) = part.split_once('=').map_or((part, None), |(key, value)| (key, Some(value)));
            // The operators of other tools are refused, since they would be taken for a key that no tenant has.
            let is_other = key.contains(['!', '(', ')', '<', '>', ' '])
                || value.is_some_and(|value| value.starts_with('='));
            if key.is_empty() || is_other {
                return Err(InvalidValue(format!(
                    "{text:?} is no label selector: give KEY=VALUE, or KEY for any value, several with commas between; there are no !=, == \
                     and in"
                )));
            }
            Ok((key.to_owned(), value.map(str::to_owned)))
        };
        text.split(',').map(term).collect::<Result<_, _>>().map(Self)
    }

    /// Returns true if these labels match.
    pub fn fits(&self, labels: &BTreeMap<String, String>) -> bool {
        self.0.iter().all(|(key, wanted)| {
            labels.get(key).is_some_and(|value| wanted.as_ref().is_none_or(|wanted| wanted == value))
        })
    }
}

/// Form of `CUDA_VISIBLE_DEVICES` of a tenant's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VisibleDevices {
    /// UUIDs, which name the same GPU everywhere.
    #[default]
    Uuid,
    /// `0`, for programs that expect a number. Under a daemon with one GPU that is its GPU (recorded on H200s); a process that
    /// runs outside MPS by mistake gets the first GPU of the host.
    Ordinal,
}

impl VisibleDevices {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_uuid(&self) -> bool {
        *self == Self::Uuid
    }
}

fn none<T>() -> Option<T> {
    None
}

/// Most labels, and the longest key or value in characters: the name of a pod fits.
const MAX_LABELS: usize = 32;
const MAX_LABEL_LEN: usize = 253;
/// Characters that separate labels, or are operators of the selectors of other tools.
const NOT_IN_KEYS: [char; 8] = [' ', '=', ',', '!', '(', ')', '<', '>'];
/// Characters that nobody sees, as a class of a regular expression has them.
const INVISIBLE: &str = "\\x00-\\x1f\\x7f-\\x9f\\xad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\u2800\\u3164\\ufeff\\uffa0\\ufff9-\\ufffb";

fn labels() -> utoipa::openapi::schema::Object {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    let text = |pattern: String| ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern));
    let key = format!("^[^ =,!()<>{INVISIBLE}]{{1,{MAX_LABEL_LEN}}}$");
    let inner = MAX_LABEL_LEN - 2;
    let value = format!("^([^ {INVISIBLE}]([^{INVISIBLE}]{{0,{inner}}}[^ {INVISIBLE}])?)?$");
    ObjectBuilder::new()
        .description(Some("Words for people and programs. Those that name a pod or a job are shown as its workload; the manager reads none otherwise."))
        .max_properties(Some(MAX_LABELS))
        .property_names(Some(text(key)))
        .additional_properties(Some(text(value)))
        .build()
}

impl TenantSpec<GpuRef> {
    /// Resolves its GPUs to UUIDs, in PCI order; an error comes with the field that names an unknown GPU.
    pub fn resolve_gpus(self, host: &[Gpu]) -> Result<TenantSpec, (&'static str, InvalidValue)> {
        let gpus = self.gpus.iter().map(|gpu| gpu.resolve_device(host)).collect::<Result<Vec<_>, _>>();
        let mut gpus = gpus.map_err(|error| ("gpus", error))?;
        gpus.sort_by_key(|(index, _)| *index);
        let gpus: Vec<GpuUuid> = gpus.into_iter().map(|(_, uuid)| uuid).collect();
        let Self {
            daemon,
            uid,
            device_memory_limit,
            max_clients,
            sms,
            active_thread_percentage,
            weight,
            priority,
            visible_devices,
            labels,
            expires_at,
            ..
        } = self;
        let limit = device_memory_limit.map(|limit| limit.resolve_gpus(host)).transpose();
        let device_memory_limit = limit.map_err(|error| ("device_memory_limit", error))?;
        let unseen = device_memory_limit.as_ref().filter(|_| !gpus.is_empty());
        if let Some(unseen) = unseen.and_then(|limit| limit.names_beyond(&gpus)) {
            let index = host.iter().find(|gpu| gpu.uuid == *unseen && gpu.present).map(|gpu| gpu.index);
            let called = index.map_or_else(|| unseen.to_string(), |index| index.to_string());
            return Err(("device_memory_limit", unseen_limit(&called)));
        }
        Ok(TenantSpec {
            daemon,
            uid,
            gpus,
            device_memory_limit,
            max_clients,
            sms,
            active_thread_percentage,
            weight,
            priority,
            visible_devices,
            labels,
            expires_at,
        })
    }
}

impl TenantSpec {
    /// Returns true if the tenant sees this GPU of its daemon or an MLOPart device of it, or this device.
    pub fn sees(&self, gpu: &GpuUuid) -> bool {
        self.gpus.is_empty() || self.gpus.iter().any(|named| named.is_of(gpu) || gpu.is_of(named))
    }

    /// Returns its memory limit on a GPU: its own, or the daemon's default. Of a GPU of which it names MLOPart devices, all of these together.
    pub fn memory_limit(&self, daemon: &DaemonSpec, gpu: &GpuUuid) -> Option<MemoryLimit> {
        let on = |limit: &Option<DeviceMemoryLimit>, gpu| limit.as_ref().and_then(|limit| limit.on(gpu));
        let own = |gpu| {
            on(&self.device_memory_limit, gpu).or_else(|| on(&daemon.defaults.device_memory_limit, gpu))
        };
        let mut named = self.gpus.iter().filter(|named| *named != gpu && named.is_of(gpu)).peekable();
        if named.peek().is_none() {
            return own(gpu);
        }
        let bytes = named.map(|device| own(device).map(MemoryLimit::bytes));
        MemoryLimit::from_bytes(bytes.reduce(|sum, one| sum?.checked_add(one?))??).ok()
    }

    /// Returns true if it states its share of the SMs itself.
    pub fn states_share(&self) -> bool {
        self.sms.is_some() || self.active_thread_percentage.is_some()
    }

    /// Returns true if it has expired.
    pub fn has_expired(&self, now: i64) -> bool {
        self.expires_at.is_some_and(|at| at <= now)
    }

    /// Refuses an expiry that has passed already, with the field and the reason.
    pub fn check_expiry(&self, now: i64) -> Result<(), (&'static str, InvalidValue)> {
        match self.expires_at.filter(|_| self.has_expired(now)) {
            None => Ok(()),
            Some(expiry) => {
                let (expiry, now) = (rfc3339::format(expiry), rfc3339::format(now));
                let text = format!(
                    "{expiry} has passed, since it is {now}: give a later time, or leave expires_at out for a tenant that stays"
                );
                Err(("expires_at", InvalidValue(text)))
            }
        }
    }

    /// Refuses a spec that is invalid on any host, with the field and the reason.
    pub fn check(&self) -> Result<(), (&'static str, InvalidValue)> {
        if self.sms.is_some() && self.active_thread_percentage.is_some() {
            let text = "sms and active_thread_percentage exclude each other: give one of them";
            return Err(("sms", InvalidValue(text.into())));
        }
        if self.max_clients == Some(0) {
            return Err((
                "max_clients",
                InvalidValue("max_clients is 0: give at least 1, or leave it out".into()),
            ));
        }
        if let Some(max) = self.max_clients.filter(|max| *max > MAX_CLIENTS) {
            let text = format!(
                "max_clients is {max}, and no version of MPS takes more than {MAX_CLIENTS} on a GPU: give at most that"
            );
            return Err(("max_clients", InvalidValue(text)));
        }
        if self.uid == u32::MAX {
            return Err(("uid", InvalidValue("uid 4294967295 means \"no user\": give a real one".into())));
        }
        let mut named = std::collections::BTreeSet::new();
        if let Some(twice) = self.gpus.iter().find(|uuid| !named.insert(*uuid)) {
            return Err(("gpus", InvalidValue(format!("{twice} is named twice: name each GPU once"))));
        }
        if let Some(part) =
            self.gpus.iter().find(|uuid| uuid.mlo().is_some() && named.contains(&uuid.whole()))
        {
            let text =
                format!("{part} is a device of {}, which is named too: name one of the two", part.whole());
            return Err(("gpus", InvalidValue(text)));
        }
        let unseen = self.device_memory_limit.as_ref().filter(|_| !self.gpus.is_empty());
        if let Some(unseen) = unseen.and_then(|limit| limit.names_beyond(&self.gpus)) {
            return Err(("device_memory_limit", unseen_limit(unseen.as_str())));
        }
        if self.labels.len() > MAX_LABELS {
            let text = format!("there are {} labels: give at most {MAX_LABELS}", self.labels.len());
            return Err(("labels", InvalidValue(text)));
        }
        self.labels.iter().try_for_each(|(key, value)| check_label(key, value)).map_err(|why| ("labels", why))
    }
}

/// Refuses a label that no selector could find, or that a form could not keep as it is.
fn check_label(key: &str, value: &str) -> Result<(), InvalidValue> {
    let is_text = |text: &str| is_shown(text, MAX_LABEL_LEN) && text.trim_matches(' ') == text;
    let rule = match (key, value) {
        ("", _) => "its key is empty",
        (key, _) if key.contains(NOT_IN_KEYS) => "its key has one of = , ! ( ) < > or a blank",
        (key, value) if is_text(key) && is_text(value) => return Ok(()),
        _ => "key and value have at most 253 characters, none of them invisible, with no blank at either end",
    };
    Err(InvalidValue(format!("label {:?} is refused: {rule}", shortened(format!("{key}={value}")))))
}

fn unseen_limit(gpu: &str) -> InvalidValue {
    InvalidValue(format!(
        "GPU {gpu} has a limit, and the tenant does not see it: add it to gpus, or take its limit out"
    ))
}

/// A tenant as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name.
    pub name: TenantName,
    /// Its desired settings.
    pub spec: TenantSpec,
    /// Counts the changes of `spec`; the entity tag.
    pub generation: i64,
    /// The generation of its daemon that first had the present spec in it.
    pub daemon_generation: i64,
    /// When it was first written, in unix milliseconds.
    pub created_at: i64,
    /// When its spec was last written, in unix milliseconds.
    pub updated_at: i64,
    /// Its directory in the runtime directory, which is never reused.
    pub directory: TenantDirectory,
    /// True while it is being drained; a change of its expiry ends the drain.
    pub draining: bool,
    /// True if its drain declared that no process will be started with its environment any more.
    pub finished: bool,
    /// True while an operation waits for its processes to leave a partition that a layout removes: it admits no process meanwhile.
    pub held: bool,
}

/// A tenant beside others: its name and spec.
pub type Sharer<'t> = (&'t TenantName, &'t TenantSpec);

/// Finds a tenant among some that are sorted by name.
pub fn named<'t>(tenants: &'t [Tenant], name: &TenantName) -> Option<&'t Tenant> {
    let at = tenants.binary_search_by_key(&name, |tenant| &tenant.name).ok()?;
    tenants.get(at)
}

impl Tenant {
    /// Writes another spec. A change of the expiry ends a drain, and on another daemon nothing holds it.
    pub fn change(&mut self, spec: TenantSpec, now: i64) {
        self.held &= self.spec.daemon == spec.daemon;
        if self.spec.expires_at != spec.expires_at {
            (self.draining, self.finished) = (false, false);
        }
        (self.spec, self.updated_at) = (spec, now);
        self.generation += 1;
    }

    /// Returns true if it admits no process at `now`, in unix milliseconds, and is deleted once it has none. A drain does not depend on the
    /// clock, which may be set back.
    pub fn has_expired(&self, now: i64) -> bool {
        self.draining || self.spec.has_expired(now)
    }

    /// Returns true if it admits no process at `now`, in unix milliseconds.
    pub fn is_closed(&self, now: i64) -> bool {
        self.held || self.has_expired(now)
    }
}

/// Mechanism that enforces a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnforcedBy {
    /// The server enforces it, whatever the client's environment contains.
    Server,
    /// Only the environment that the client was given enforces it; a process that changes its environment escapes it.
    Environment,
    /// Nothing: there is no limit.
    None,
}

/// A tenant's memory limit on a GPU, and its enforcement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectiveMemory {
    /// The GPU.
    pub gpu: GpuUuid,
    /// The limit in bytes; `null` is the whole GPU.
    pub bytes: Option<u64>,
    /// Mechanism that enforces it.
    pub enforced_by: EnforcedBy,
}

/// A tenant's thread percentage, its enforcement, and the SMs that it gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectiveThreads {
    /// The percentage.
    pub active_thread_percentage: ThreadPercentage,
    /// SMs that a client is predicted to see; `null` if the SMs of the GPU are not known, and in static mode, where
    /// its partition decides.
    pub predicted_sms: Option<u32>,
    /// True if the prediction was measured on this kind of GPU (132-SM H200); else it follows from those measurements.
    pub measured_on_this_gpu: bool,
    /// Mechanism that enforces it.
    pub enforced_by: EnforcedBy,
    /// In static mode, its partition of each GPU, which counts instead of the percentage; left out in shared mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<EffectivePartition>,
}

impl EffectiveThreads {
    /// Returns the SMs of a GPU that a client sees, if it is the same number on each.
    pub fn sms(&self) -> Option<u32> {
        let Some(first) = self.partitions.first() else { return self.predicted_sms };
        self.partitions.iter().all(|partition| partition.sms == first.sms).then_some(first.sms)
    }
}

/// A partition that is handed out to a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectivePartition {
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its name.
    pub partition: PartitionName,
    /// Its SMs, as the daemon lists them.
    pub sms: u32,
}

/// A tenant's priority, and its enforcement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectivePriority {
    /// The priority.
    pub priority: Priority,
    /// Mechanism that enforces it.
    pub enforced_by: EnforcedBy,
}

/// Effective values of a tenant, as read back from its daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantEffective {
    /// When its daemon was read.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub observed_at: i64,
    /// Its memory limit on each GPU that it sees, in the daemon's order.
    pub device_memory_limits: Vec<EffectiveMemory>,
    /// Its share of the SMs.
    pub threads: EffectiveThreads,
    /// Its priority.
    pub priority: EffectivePriority,
    /// Its connected clients that were started with another memory limit or share of the SMs, which they keep until they end.
    #[serde(default)]
    pub clients_with_other_limits: u64,
}

impl TenantEffective {
    /// Describes the clients that have other limits.
    pub fn other_limits(&self) -> Option<String> {
        match self.clients_with_other_limits {
            0 => None,
            1 => Some("1 client was started with other limits, which it keeps until it ends".to_owned()),
            several => Some(format!(
                "{several} clients were started with other limits, which they keep until they end"
            )),
        }
    }
}

/// Observed state of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantStatus {
    /// The tenant's generation that its daemon was last seen to hold, 0 for none.
    pub observed_generation: i64,
    /// Statements about it.
    pub conditions: Vec<Condition>,
    /// The GPUs its clients see.
    pub gpus: Vec<GpuUuid>,
    /// Effective values; `null` until they were read back.
    pub effective: Option<TenantEffective>,
    /// Number of its processes that are connected now.
    pub clients: u32,
    /// Its processes that came while its daemon could not be used, and wait to be admitted.
    #[serde(default)]
    pub waiting: Vec<WaitingProcess>,
    /// Number of its processes that wait for a slot, as `mps-manager run --wait` does.
    #[serde(default)]
    pub queued: u64,
    /// True while it is being drained: it admits no process, and is deleted once it has none. A change of its expiry ends the drain. Left
    /// out if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub draining: bool,
    /// Tenants whose memory limit is enforced by their environment only, because this tenant has none, so their common server has no limit.
    /// Left out if there are none, and for users who see one tenant only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weakens: Vec<TenantName>,
    /// Shares that the daemon's strategy gives, and the number of clients that it divides by; left out without a strategy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioning: Option<ProvisioningStatus>,
    /// Verification by a CUDA client in its environment; left out before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
}

/// A CUDA process that waits until its daemon can be used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WaitingProcess {
    /// Its process ID.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Time since which it waits.
    #[serde(with = "crate::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub since: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{spec, tenant};

    #[test]
    fn a_spec_that_contradicts_itself_names_the_field() {
        for (json, field) in [
            (r#"{"daemon":"gpu0", "uid": 0,"sms":32,"active_thread_percentage":25}"#, "sms"),
            (r#"{"daemon":"gpu0", "uid": 0,"max_clients":0}"#, "max_clients"),
            (r#"{"daemon":"gpu0","uid":4294967295}"#, "uid"),
            (r#"{"daemon":"gpu0", "uid": 0,"labels":{"":"x"}}"#, "labels"),
            (r#"{"daemon":"gpu0", "uid": 0,"labels":{"a=b":"x"}}"#, "labels"),
            (r#"{"daemon":"gpu0", "uid": 0,"labels":{"a b":"x"}}"#, "labels"),
            (r#"{"daemon":"gpu0", "uid": 0,"labels":{"a,b":"x"}}"#, "labels"),
            (r#"{"daemon":"gpu0", "uid": 0,"labels":{"a":"x "}}"#, "labels"),
            (
                r#"{"daemon":"gpu0", "uid": 0,"gpus":["GPU-514466a0-8e68-f857-9f73-000000000000"],
                    "device_memory_limit":{"GPU-514466a0-8e68-f857-9f73-000000000001":"1G"}}"#,
                "device_memory_limit",
            ),
        ] {
            assert_eq!(spec(json).check().expect_err(json).0, field);
        }
    }

    #[test]
    fn past_expiry_is_refused_with_its_time() {
        let stays = spec(r#"{"daemon":"gpu0","uid":0}"#);
        assert!(stays.check_expiry(i64::MAX).is_ok() && !stays.has_expired(i64::MAX));
        assert!(!serde_json::to_string(&stays).expect("JSON").contains("expires_at"), "it says nothing");
        let text = r#"{"daemon":"gpu0", "uid": 0,"expires_at":"2025-11-25T06:03:49.120+01:00"}"#;
        let (expires, expiry) = (spec(text), 1_764_047_029_120);
        assert_eq!(expires.expires_at, Some(expiry));
        // A clock that is set back makes it live on.
        for (now, has_expired) in
            [(expiry - 1, false), (expiry, true), (expiry + 1, true), (expiry - 86_400_000, false)]
        {
            assert_eq!(
                (expires.has_expired(now), expires.check_expiry(now).is_err()),
                (has_expired, has_expired)
            );
        }
        let (field, reason) = expires.check_expiry(expiry).expect_err("it has passed");
        assert_eq!(field, "expires_at");
        assert!(reason.to_string().starts_with("2025-11-25T05:03:49.120Z has passed"), "{reason}");
        let written = serde_json::to_value(&expires).expect("JSON");
        assert_eq!(written["expires_at"], "2025-11-25T05:03:49.120Z");
        for wrong in [r#""tomorrow""#, "1764047029120", r#""2025-11-25""#] {
            let text = format!(r#"{{"daemon":"gpu0", "uid": 0,"expires_at":{wrong}}}"#);
            assert!(serde_json::from_str::<TenantSpec>(&text).is_err(), "{wrong}");
        }
    }

    #[test]
    fn tenant_that_moves_is_held_no_more() {
        let mut tenant = Tenant { held: true, ..tenant("web", r#"{"daemon":"gpu1","uid":0}"#) };
        tenant.change(spec(r#"{"daemon":"gpu1","uid":0,"sms":32}"#), 1);
        assert!(tenant.is_closed(1) && !tenant.has_expired(1), "it stays, and is deleted by nobody");
        tenant.change(spec(r#"{"daemon":"gpu0","uid":0}"#), 2);
        assert!(!tenant.is_closed(2));
    }
}
