//! Tenants: named consumers with limits.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::count::counted;
use super::daemon::{DaemonSpec, Mode};
use super::gpu::{Gpu, GpuRef};
use super::memory::Bytes;
use super::percentage::{is_measured, percentage_for, sms_for};
use super::verification::Verification;
use super::{
    DaemonName, GpuUuid, InvalidValue, MemoryLimit, PartitionName, Priority, TenantDirectory, TenantName,
    ThreadPercentage,
};
use crate::domain::condition::Condition;

/// What an operator wants of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec<G = GpuUuid> {
    /// The daemon that serves it.
    pub daemon: DaemonName,
    /// The user its processes run as.
    #[serde(default)]
    #[schema(maximum = 4_294_967_294_u32)]
    pub uid: u32,
    /// The GPUs of the daemon that it sees; left out or empty, all of them.
    #[serde(default = "Vec::new")]
    pub gpus: Vec<G>,
    /// Memory that each of its processes may take on each GPU, the context included; left out, the daemon's
    /// default, or else the whole GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_memory_limit: Option<MemoryLimit>,
    /// How many of its processes may be connected at once; left out, as many as MPS takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 60)]
    pub max_clients: Option<u32>,
    /// SMs that each process sees; instead of a percentage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub sms: Option<u32>,
    /// Share of the threads of the GPU; instead of SMs. Left out with `sms`, the daemon's default, or else 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_thread_percentage: Option<ThreadPercentage>,
    /// Its priority, a hint to the GPU; left out, the daemon's default, or else normal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// Words for people and programs; the manager reads none of them.
    #[serde(default)]
    #[schema(schema_with = labels)]
    pub labels: BTreeMap<String, String>,
}

/// Most clients that any known version of MPS takes on a GPU.
const MAX_CLIENTS: u32 = 60;
/// Most labels, and the longest key or value in characters.
const MAX_LABELS: usize = 32;
const MAX_LABEL_LEN: usize = 128;

fn labels() -> utoipa::openapi::schema::Object {
    use utoipa::openapi::schema::{ObjectBuilder, Type};
    let text = |fewest: &str| {
        let pattern = format!("^[^\\x00-\\x1f\\x7f-\\x9f]{{{fewest},{MAX_LABEL_LEN}}}$");
        ObjectBuilder::new().schema_type(Type::String).pattern(Some(pattern))
    };
    ObjectBuilder::new()
        .description(Some("Words for people and programs; the manager reads none of them."))
        .max_properties(Some(MAX_LABELS))
        .property_names(Some(text("1")))
        .additional_properties(Some(text("0")))
        .build()
}

impl TenantSpec<GpuRef> {
    /// The same spec with its GPUs named by UUID, in PCI order.
    pub fn resolve_gpus(self, known: &[Gpu]) -> Result<TenantSpec, InvalidValue> {
        let mut gpus = self.gpus.iter().map(|gpu| gpu.resolve(known)).collect::<Result<Vec<&Gpu>, _>>()?;
        gpus.sort_by_key(|gpu| gpu.index);
        let gpus = gpus.into_iter().map(|gpu| gpu.uuid.clone()).collect();
        let Self {
            daemon,
            uid,
            device_memory_limit,
            max_clients,
            sms,
            active_thread_percentage,
            priority,
            labels,
            ..
        } = self;
        Ok(TenantSpec {
            daemon,
            uid,
            gpus,
            device_memory_limit,
            max_clients,
            sms,
            active_thread_percentage,
            priority,
            labels,
        })
    }
}

impl TenantSpec {
    /// Whether the tenant sees this GPU of its daemon.
    pub fn sees(&self, gpu: &GpuUuid) -> bool {
        self.gpus.is_empty() || self.gpus.contains(gpu)
    }

    /// Its memory limit, its own or the daemon's default.
    pub fn memory_limit(&self, daemon: &DaemonSpec) -> Option<MemoryLimit> {
        self.device_memory_limit.or(daemon.defaults.device_memory_limit)
    }

    /// Refuses a spec that is wrong in itself; `(field, reason)`.
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
        let mut seen = std::collections::BTreeSet::new();
        if let Some(twice) = self.gpus.iter().find(|uuid| !seen.insert(*uuid)) {
            return Err(("gpus", InvalidValue(format!("{twice} is named twice: name each GPU once"))));
        }
        let too_long = |text: &str| {
            text.is_empty() || text.chars().count() > MAX_LABEL_LEN || text.chars().any(char::is_control)
        };
        if self.labels.len() > MAX_LABELS
            || self.labels.iter().any(|(key, value)| too_long(key) || (!value.is_empty() && too_long(value)))
        {
            return Err((
                "labels",
                InvalidValue(format!(
                    "give at most {MAX_LABELS} labels, each key and value at most {MAX_LABEL_LEN} characters without control characters"
                )),
            ));
        }
        Ok(())
    }
}

/// A tenant as it is remembered.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// Its name.
    pub name: TenantName,
    /// What is wanted of it.
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
}

/// A tenant's values once every default is filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The GPUs it sees, in the daemon's order.
    pub gpus: Vec<GpuUuid>,
    /// Its memory limit; `None` is the whole GPU.
    pub memory: Option<MemoryLimit>,
    /// Its thread percentage.
    pub percentage: ThreadPercentage,
    /// Its priority.
    pub priority: Priority,
    /// How its daemon shares out SMs: in static mode by partitions, and no percentage determines how many it sees.
    pub mode: Mode,
}

impl Resolved {
    /// SMs that a client is predicted to see on a GPU of so many; `None` where a partition decides it.
    pub fn predicted_sms(&self, total: u32) -> Option<u32> {
        (self.mode == Mode::Shared).then(|| sms_for(self.percentage, total))
    }
}

/// The GPUs that a tenant sees, in the daemon's order.
pub fn gpus_of(spec: &TenantSpec, daemon: &DaemonSpec) -> Vec<GpuUuid> {
    daemon.gpus.iter().filter(|uuid| spec.sees(uuid)).cloned().collect()
}

/// Fills in what the tenant leaves to its daemon; `sms` becomes the smallest percentage that gives it.
///
/// Fails where no percentage gives exactly `sms` on the GPUs of the tenant.
pub fn resolve(spec: &TenantSpec, daemon: &DaemonSpec, gpus: &[Gpu]) -> Result<Resolved, InvalidValue> {
    let seen = gpus_of(spec, daemon);
    let percentage = match (spec.sms, spec.active_thread_percentage) {
        (Some(sms), _) => {
            let mut totals: Vec<u32> =
                gpus.iter().filter(|gpu| seen.contains(&gpu.uuid)).filter_map(|gpu| gpu.sms).collect();
            totals.dedup();
            match totals.as_slice() {
                [] => {
                    return Err(InvalidValue(
                        "the SMs of the GPU are not known: give active_thread_percentage instead".into(),
                    ));
                }
                [total] => percentage_for(sms, *total).ok_or_else(|| no_percentage(sms, *total))?,
                several => {
                    return Err(InvalidValue(format!(
                        "the tenant's GPUs have {several:?} SMs, so one number of SMs is not one percentage: give active_thread_percentage"
                    )));
                }
            }
        }
        (None, Some(percentage)) => percentage,
        (None, None) => daemon.defaults.active_thread_percentage.unwrap_or(ThreadPercentage::FULL),
    };
    Ok(Resolved {
        gpus: seen,
        memory: spec.memory_limit(daemon),
        percentage,
        priority: spec.priority.or(daemon.defaults.priority).unwrap_or_default(),
        mode: daemon.mode,
    })
}

fn no_percentage(sms: u32, total: u32) -> InvalidValue {
    let below = (8..=total).step_by(2).take_while(|count| *count <= sms).last().unwrap_or(8);
    let above = (8..=total).step_by(2).find(|count| *count >= sms).unwrap_or(total);
    let nearest = if below == above {
        format!("the nearest is {below}")
    } else {
        format!("the nearest are {below} and {above}")
    };
    InvalidValue(format!(
        "{} cannot be had on a GPU of {total}: MPS gives even numbers from 8 to {total}; {nearest}",
        counted(sms, "SM")
    ))
}

/// What makes a value hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnforcedBy {
    /// The server holds the client to it, whatever the client's environment says.
    Server,
    /// Only the environment that the client was given; a process that changes it escapes.
    Environment,
    /// Nothing: there is no limit.
    None,
}

/// A tenant's value, what holds it, and the number it comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectiveMemory {
    /// The limit in bytes; `null` is the whole GPU.
    pub bytes: Option<u64>,
    /// What holds it.
    pub enforced_by: EnforcedBy,
}

/// A tenant's thread percentage, what holds it, and the SMs it comes to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectiveThreads {
    /// The percentage.
    pub active_thread_percentage: ThreadPercentage,
    /// SMs that a client is predicted to see; `null` where the SMs of the GPU are not known, and in static mode, where
    /// its partition decides.
    pub predicted_sms: Option<u32>,
    /// Whether the prediction was measured on this kind of GPU (132-SM H200) or only follows from it.
    pub measured_on_this_gpu: bool,
    /// What holds it.
    pub enforced_by: EnforcedBy,
    /// In static mode, its partition of each GPU, which decides in place of the percentage; left out in shared mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub partitions: Vec<EffectivePartition>,
}

impl EffectiveThreads {
    /// SMs that a client sees of a GPU, where it is the same number on each.
    pub fn sms(&self) -> Option<u32> {
        let Some(first) = self.partitions.first() else { return self.predicted_sms };
        self.partitions.iter().all(|one| one.sms == first.sms).then_some(first.sms)
    }
}

/// A partition that a tenant is handed out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectivePartition {
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its name.
    pub partition: PartitionName,
    /// Its SMs, as the daemon lists them.
    pub sms: u32,
}

/// A tenant's priority and what holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct EffectivePriority {
    /// The priority.
    pub priority: Priority,
    /// What holds it.
    pub enforced_by: EnforcedBy,
}

/// What a tenant's values come to, as read back from its daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantEffective {
    /// When its daemon was read.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub observed_at: i64,
    /// Its memory limit.
    pub device_memory_limit: EffectiveMemory,
    /// Its share of the SMs.
    pub threads: EffectiveThreads,
    /// Its priority.
    pub priority: EffectivePriority,
}

/// What the manager saw of a tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TenantStatus {
    /// The tenant's generation that its daemon was last seen to hold, 0 for none.
    pub observed_generation: i64,
    /// Statements about it.
    pub conditions: Vec<Condition>,
    /// The GPUs its clients see.
    pub gpus: Vec<GpuUuid>,
    /// What was read back; `null` before that.
    pub effective: Option<TenantEffective>,
    /// Its processes that are connected now.
    pub clients: u32,
    /// Its processes that came while its daemon may not be used, and wait to be admitted.
    #[serde(default)]
    pub waiting: Vec<WaitingProcess>,
    /// Tenants whose memory limit only their environment holds, because this tenant has none: the server of all of them has no limit
    /// then. Left out where there are none, and for users who see one tenant only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weakens: Vec<TenantName>,
    /// What a CUDA client in its environment saw; left out before the first verification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification: Option<Verification>,
}

/// A CUDA process that waits for its daemon to be back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct WaitingProcess {
    /// Its process ID.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Since when it waits.
    #[serde(with = "crate::domain::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub since: i64,
}

/// Memory that a client's context takes from its limit, about: 27.5 MiB and 3.7 MiB for each SM it sees (FACTS.md,
/// "Limits"; measured on an H200).
pub fn context_bytes(sms: u32) -> u64 {
    (275 + 37 * u64::from(sms)) * super::memory::MIB / 10
}

/// Why no client can start with this limit, where its context takes all of it.
pub fn below_context(limit: MemoryLimit, context: u64) -> Option<String> {
    (limit.bytes() <= context).then(|| {
        format!(
            "each client pays about {} of the limit of {limit} for its context, so none can start: raise the limit, or lower \
             the share of SMs",
            Bytes(context)
        )
    })
}

/// What a tenant's values come to under what its daemon was read to hold.
///
/// The server's values are the largest among the daemon's tenants, so a tenant whose own value is smaller is
/// held by its environment alone. On a daemon of several GPUs a client escapes the server's memory limit by
/// renumbering its GPUs (recordings 05 and 07), so there only the environment counts.
pub fn effective(
    resolved: &Resolved,
    gpus: &[Gpu],
    seen: &super::daemon::Effective,
) -> Option<TenantEffective> {
    let server = seen.servers.first()?;
    let mine: Vec<&Gpu> = gpus.iter().filter(|gpu| resolved.gpus.contains(&gpu.uuid)).collect();
    let limit = resolved.memory.map(MemoryLimit::bytes);
    let one_gpu = server.memory_limits.len() == 1;
    let server_limits = server.memory_limits.iter().filter(|reading| resolved.gpus.contains(&reading.gpu));
    let memory = match limit {
        None => EnforcedBy::None,
        Some(bytes) if one_gpu && server_limits.clone().all(|reading| reading.bytes == Some(bytes)) => {
            EnforcedBy::Server
        }
        Some(_) => EnforcedBy::Environment,
    };
    let threads = if resolved.percentage == ThreadPercentage::FULL {
        EnforcedBy::None
    } else if server.active_thread_percentage == Some(resolved.percentage) {
        EnforcedBy::Server
    } else {
        EnforcedBy::Environment
    };
    let sms = mine.first().and_then(|gpu| gpu.sms);
    Some(TenantEffective {
        observed_at: seen.observed_at,
        device_memory_limit: EffectiveMemory { bytes: limit, enforced_by: memory },
        threads: EffectiveThreads {
            active_thread_percentage: resolved.percentage,
            predicted_sms: sms.and_then(|total| resolved.predicted_sms(total)),
            measured_on_this_gpu: resolved.mode == Mode::Shared && mine.iter().all(|gpu| is_measured(gpu)),
            enforced_by: threads,
            partitions: Vec::new(),
        },
        priority: EffectivePriority {
            priority: resolved.priority,
            enforced_by: match resolved.priority {
                Priority::Normal => EnforcedBy::None,
                Priority::BelowNormal if seen.default_priority == Some(Priority::BelowNormal) => {
                    EnforcedBy::Server
                }
                Priority::BelowNormal => EnforcedBy::Environment,
            },
        },
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::domain::gpu::{ComputeCapability, ComputeMode};

    #[test]
    fn one_nearest_number_is_named_once() {
        assert!(no_percentage(132, 132).0.ends_with("the nearest is 132"));
        assert!(no_percentage(15, 132).0.ends_with("the nearest are 14 and 16"));
    }

    pub(crate) fn h200(index: u32) -> Gpu {
        Gpu {
            uuid: GpuUuid::parse(&format!("GPU-514466a0-8e68-f857-9f73-00000000000{index}")).expect("uuid"),
            index,
            pci_bus_id: format!("00000000:0{}:00.0", 6 + index),
            name: "NVIDIA H200".into(),
            sms: Some(132),
            compute_capability: Some(ComputeCapability { major: 9, minor: 0 }),
            memory_total: 150_109_880_320,
            memory_used: 0,
            compute_mode: ComputeMode::Default,
            mig_enabled: false,
            present: true,
            device_file: None,
        }
    }

    pub(crate) fn spec(json: &str) -> TenantSpec {
        serde_json::from_str(json).expect("spec")
    }

    fn daemon() -> DaemonSpec {
        serde_json::from_str(&format!("{{\"gpus\":[\"{}\"]}}", h200(0).uuid)).expect("daemon")
    }

    #[test]
    fn sms_become_a_percentage_that_gives_them() {
        let resolved =
            resolve(&spec(r#"{"daemon":"gpu0","sms":32}"#), &daemon(), &[h200(0)]).expect("possible");
        assert_eq!(sms_for(resolved.percentage, 132), 32);
        let error = resolve(&spec(r#"{"daemon":"gpu0","sms":33}"#), &daemon(), &[h200(0)]).expect_err("odd");
        assert!(error.to_string().contains("32 and 34"), "{error}");
    }

    #[test]
    fn omitted_settings_come_from_daemon_then_gpu() {
        let mut daemon = daemon();
        let bare = spec(r#"{"daemon":"gpu0"}"#);
        let whole = resolve(&bare, &daemon, &[h200(0)]).expect("possible");
        assert_eq!((whole.memory, whole.percentage), (None, ThreadPercentage::FULL));
        daemon.defaults.device_memory_limit = Some(MemoryLimit::parse("2G").expect("2G"));
        let limited = resolve(&bare, &daemon, &[h200(0)]).expect("possible");
        assert_eq!(limited.memory.map(MemoryLimit::mib), Some(2048));
    }

    #[test]
    fn a_spec_that_contradicts_itself_names_the_field() {
        for (json, field) in [
            (r#"{"daemon":"gpu0","sms":32,"active_thread_percentage":25}"#, "sms"),
            (r#"{"daemon":"gpu0","max_clients":0}"#, "max_clients"),
            (r#"{"daemon":"gpu0","uid":4294967295}"#, "uid"),
            (r#"{"daemon":"gpu0","labels":{"":"x"}}"#, "labels"),
        ] {
            assert_eq!(spec(json).check().expect_err(json).0, field);
        }
    }
}
