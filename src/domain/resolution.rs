//! A tenant's values with every default filled in, and its effective values under the settings that its daemon was read to hold.

use std::collections::BTreeMap;

use super::count::counted;
use super::daemon::{DaemonSpec, Mode};
use super::gpu::Gpu;
use super::memory::Bytes;
use super::mlopart::MlopartDevice;
use super::percentage::{is_measured, percentage_for, sms_for};
use super::provisioning::ShareBasis;
use super::tenant::{
    EffectiveMemory, EffectivePriority, EffectiveThreads, EnforcedBy, TenantEffective, TenantSpec,
};
use super::{GpuUuid, InvalidValue, MemoryLimit, Priority, ThreadPercentage};

/// A tenant's values with every default filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The GPUs it sees, in the daemon's order; the MLOPart devices that it sees, once those of the server are known ([`Self::on_devices`]).
    pub gpus: Vec<GpuUuid>,
    /// UUIDs of these MLOPart devices, by which processes name them.
    pub mlopart: BTreeMap<GpuUuid, String>,
    /// Its memory limit on each GPU that has one; on the others it is the whole GPU.
    pub memory: BTreeMap<GpuUuid, MemoryLimit>,
    /// Its thread percentage.
    pub percentage: ThreadPercentage,
    /// Its priority.
    pub priority: Priority,
    /// Mode of its daemon: in static mode its partition determines the SMs that it sees, and no percentage does.
    pub mode: Mode,
    /// True if its daemon gives MLOPart devices, of which no SMs are known but those that a client has seen.
    pub has_parts: bool,
}

impl Resolved {
    /// Returns the SMs that a client is predicted to see on a device of `total` SMs; `None` if a partition decides it, or if its MLOPart devices
    /// are not known.
    pub fn predicted_sms(&self, total: u32) -> Option<u32> {
        let is_known = !self.has_parts || !self.mlopart.is_empty();
        (self.mode == Mode::Shared && is_known).then(|| sms_for(self.percentage, total))
    }

    /// Replaces its GPUs by the MLOPart devices that it sees of them; `devices` are those that the daemon's server has, and `limit` returns its
    /// memory limit on one.
    pub fn on_devices(
        &mut self,
        devices: &[MlopartDevice],
        limit: impl Fn(&GpuUuid) -> Option<MemoryLimit>,
    ) -> Result<(), InvalidValue> {
        let (mut seen, mut parts) = (Vec::new(), BTreeMap::new());
        for gpu in &self.gpus {
            let of_gpu = devices.iter().filter(|device| device.name().is_of(gpu));
            let before = parts.len();
            for device in of_gpu {
                if parts.insert(device.name(), device.uuid.clone()).is_none() {
                    seen.push(device.name());
                }
            }
            if parts.len() == before {
                let there: Vec<String> = devices.iter().map(|device| device.name().to_string()).collect();
                return Err(InvalidValue(match (there.is_empty(), gpu.mlo()) {
                    (false, Some(_)) => {
                        format!(
                            "the daemon's server has no MLOPart device {gpu}: it has {}",
                            there.join(", ")
                        )
                    }
                    _ => format!(
                        "no server with MLOPart devices of {} runs now: the daemon is stopped, or starts one as soon as it can",
                        gpu.whole()
                    ),
                }));
            }
        }
        self.memory = seen.iter().filter_map(|device| Some((device.clone(), limit(device)?))).collect();
        self.gpus = seen;
        self.mlopart = parts;
        Ok(())
    }
}

/// Returns the thread percentage of a tenant; `basis` is that of its daemon's strategy, if it has one.
///
/// Fails if no percentage gives exactly `sms` on the GPUs of the tenant.
pub fn percentage_of(
    spec: &TenantSpec,
    daemon: &DaemonSpec,
    basis: Option<&ShareBasis>,
    gpus: &[Gpu],
) -> Result<ThreadPercentage, InvalidValue> {
    let given = || basis.map(|basis| basis.share(spec.weight)).or(daemon.defaults.active_thread_percentage);
    let stated = stated_percentage(spec, daemon, gpus)?;
    Ok(stated.or_else(given).unwrap_or(ThreadPercentage::FULL))
}

/// Returns the GPUs that a tenant sees, in the daemon's order; of a GPU of which it names MLOPart devices, these.
pub fn gpus_of(spec: &TenantSpec, daemon: &DaemonSpec) -> Vec<GpuUuid> {
    let named = |gpu: &GpuUuid| -> Vec<GpuUuid> {
        spec.gpus.iter().filter(|named| named.is_of(gpu)).cloned().collect()
    };
    let of = |gpu: &GpuUuid| if spec.gpus.is_empty() { vec![gpu.clone()] } else { named(gpu) };
    daemon.gpus.iter().flat_map(of).collect()
}

/// Returns the percentage that a tenant states itself; `sms` becomes the smallest percentage that gives it.
///
/// Fails if no percentage gives exactly `sms` on the GPUs of the tenant.
pub fn stated_percentage(
    spec: &TenantSpec,
    daemon: &DaemonSpec,
    gpus: &[Gpu],
) -> Result<Option<ThreadPercentage>, InvalidValue> {
    let percentage = match (spec.sms, spec.active_thread_percentage) {
        (Some(_), _) if daemon.mlopart => {
            let text = "nothing tells beforehand how many SMs an MLOPart device has: give active_thread_percentage instead";
            return Err(InvalidValue(text.into()));
        }
        (Some(sms), _) => {
            let visible = gpus_of(spec, daemon);
            let mut totals: Vec<u32> =
                gpus.iter().filter(|gpu| visible.contains(&gpu.uuid)).filter_map(|gpu| gpu.sms).collect();
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
        (None, stated) => return Ok(stated),
    };
    Ok(Some(percentage))
}

/// Fills in the values that the tenant leaves to its daemon; `basis` is that of the daemon's strategy, if it has one.
///
/// Fails if no percentage gives exactly `sms` on the GPUs of the tenant.
pub fn resolve(
    spec: &TenantSpec,
    daemon: &DaemonSpec,
    basis: Option<&ShareBasis>,
    gpus: &[Gpu],
) -> Result<Resolved, InvalidValue> {
    let percentage = percentage_of(spec, daemon, basis, gpus)?;
    let visible = gpus_of(spec, daemon);
    let limits = visible.iter().filter_map(|gpu| Some((gpu.clone(), spec.memory_limit(daemon, gpu)?)));
    Ok(Resolved {
        memory: limits.collect(),
        gpus: visible,
        mlopart: BTreeMap::new(),
        has_parts: daemon.mlopart,
        percentage,
        priority: spec.priority.or(daemon.defaults.priority).unwrap_or_default(),
        mode: daemon.mode,
    })
}

fn no_percentage(sms: u32, total: u32) -> InvalidValue {
    let below = (8..=total).step_by(2).take_while(|count| *count <= sms).last().unwrap_or(8);
    let above = (8..=total).step_by(2).find(|count| *count >= sms).unwrap_or(total);
    let nearest = if below == above { below.to_string() } else { format!("{below} and {above}") };
    InvalidValue(format!(
        "{} is not possible on a GPU of {total}: use an even number from 8 to {total} (nearest: {nearest})",
        counted(sms, "SM")
    ))
}

/// Returns the approximate memory that a client's context takes from its limit: 27.5 MiB and 3.7 MiB for each SM it sees
/// (FACTS.md, "Limits"; measured on an H200).
pub fn context_bytes(sms: u32) -> u64 {
    (275 + 37 * u64::from(sms)) * super::memory::MIB / 10
}

/// Returns the reason why no client can start with this limit, if its context takes all of it.
pub fn below_context(limit: MemoryLimit, context: u64) -> Option<String> {
    (limit.bytes() <= context).then(|| {
        format!(
            "each client pays about {} of the limit of {limit} for its context, so none can start: raise the limit, or lower \
             the share of SMs",
            Bytes(context)
        )
    })
}

/// Returns a tenant's effective values under the settings that its daemon was read to hold.
///
/// The server's values are the largest among the daemon's tenants, so for a tenant with a smaller value only its
/// environment enforces it. On a daemon with several GPUs a client escapes the server's memory limit by
/// renumbering its GPUs (recordings 05 and 07), so only the environment counts there.
pub fn effective(
    resolved: &Resolved,
    gpus: &[Gpu],
    state: &super::daemon::Effective,
) -> Option<TenantEffective> {
    let server = state.servers.first()?;
    let mine: Vec<&Gpu> = gpus.iter().filter(|gpu| resolved.gpus.contains(&gpu.uuid)).collect();
    let one_gpu = server.memory_limits.len() == 1;
    let memory = |gpu: &GpuUuid| {
        let bytes = resolved.memory.get(gpu).map(|limit| limit.bytes());
        let reading = server.memory_limits.iter().find(|reading| reading.gpu == *gpu);
        let enforced_by = match bytes {
            None => EnforcedBy::None,
            Some(_) if one_gpu && reading.is_some_and(|reading| reading.bytes == bytes) => EnforcedBy::Server,
            Some(_) => EnforcedBy::Environment,
        };
        EffectiveMemory { gpu: gpu.clone(), bytes, enforced_by }
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
        observed_at: state.observed_at,
        device_memory_limits: resolved.gpus.iter().map(memory).collect(),
        threads: EffectiveThreads {
            active_thread_percentage: resolved.percentage,
            predicted_sms: sms.and_then(|total| resolved.predicted_sms(total)),
            measured_on_this_gpu: resolved.mode == Mode::Shared
                && !resolved.has_parts
                && mine.iter().all(|gpu| is_measured(gpu)),
            enforced_by: threads,
            partitions: Vec::new(),
        },
        priority: EffectivePriority {
            priority: resolved.priority,
            enforced_by: match resolved.priority {
                Priority::Normal => EnforcedBy::None,
                Priority::BelowNormal if state.default_priority == Some(Priority::BelowNormal) => {
                    EnforcedBy::Server
                }
                Priority::BelowNormal => EnforcedBy::Environment,
            },
        },
        // The caller fills it in: clients are not known here.
        clients_with_other_limits: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{h200, spec};

    #[test]
    fn one_nearest_number_is_named_once() {
        assert!(no_percentage(132, 132).0.ends_with("(nearest: 132)"));
        assert!(no_percentage(15, 132).0.ends_with("(nearest: 14 and 16)"));
    }

    fn daemon() -> DaemonSpec {
        serde_json::from_str(&format!("{{\"gpus\":[\"{}\"]}}", h200(0).uuid)).expect("daemon")
    }

    #[test]
    fn sms_become_a_percentage_that_gives_them() {
        let resolved = resolve(&spec(r#"{"daemon":"gpu0", "uid": 0,"sms":32}"#), &daemon(), None, &[h200(0)])
            .expect("possible");
        assert_eq!(sms_for(resolved.percentage, 132), 32);
        let error = resolve(&spec(r#"{"daemon":"gpu0", "uid": 0,"sms":33}"#), &daemon(), None, &[h200(0)])
            .expect_err("odd");
        assert!(error.to_string().contains("32 and 34"), "{error}");
    }

    #[test]
    fn omitted_settings_come_from_daemon_then_gpu() {
        let mut daemon = daemon();
        let bare = spec(r#"{"daemon":"gpu0","uid":0}"#);
        let whole = resolve(&bare, &daemon, None, &[h200(0)]).expect("possible");
        assert_eq!((whole.memory.len(), whole.percentage), (0, ThreadPercentage::FULL));
        daemon.defaults.device_memory_limit = Some(MemoryLimit::parse("2G").expect("2G").into());
        let limited = resolve(&bare, &daemon, None, &[h200(0)]).expect("possible");
        assert_eq!(limited.memory.get(&h200(0).uuid).map(|limit| limit.mib()), Some(2048));
    }

    #[test]
    fn limits_of_gpus_are_separate() {
        let (zero, one) = (h200(0).uuid, h200(1).uuid);
        let json = format!(r#"{{"gpus":["{zero}","{one}"],"defaults":{{"device_memory_limit":"8G"}}}}"#);
        let daemon: DaemonSpec = serde_json::from_str(&json).expect("daemon");
        let own = spec(&format!(r#"{{"daemon":"gpu0", "uid": 0,"device_memory_limit":{{"{one}":"2G"}}}}"#));
        let resolved = resolve(&own, &daemon, None, &[h200(0), h200(1)]).expect("possible");
        let mib: Vec<u64> = resolved.gpus.iter().map(|gpu| resolved.memory[gpu].mib()).collect();
        assert_eq!(mib, [8192, 2048], "the default where it names no limit");
    }
}
