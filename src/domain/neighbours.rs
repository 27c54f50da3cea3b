//! What tenants of one daemon do to each other's memory limits.
//!
//! A server holds all its clients to one limit, so a tenant without a limit leaves the server without one, and the limits of its
//! neighbours to their environments, which a process can change. A default limit on the daemon keeps a floor.

use super::daemon::Daemon;
use super::resolution::gpus_of;
use super::tenant::Tenant;
use super::{GpuUuid, TenantName};

/// The tenants whose limit on a GPU of `tenant` only their environment holds, because `tenant` has none there.
pub fn weakened_by(tenant: &Tenant, daemon: &Daemon, tenants: &[Tenant]) -> Vec<TenantName> {
    opposite(tenant, daemon, tenants, false)
}

/// The tenants without a limit on a GPU of `tenant` that leave its limit there to its environment.
pub fn weakening(tenant: &Tenant, daemon: &Daemon, tenants: &[Tenant]) -> Vec<TenantName> {
    opposite(tenant, daemon, tenants, true)
}

/// The GPUs on which the limit of `tenant` is left to its environment by tenants that have none there.
pub fn weakened_gpus(tenant: &Tenant, daemon: &Daemon, tenants: &[Tenant]) -> Vec<GpuUuid> {
    let mut gpus = gpus_of(&tenant.spec, &daemon.spec);
    gpus.retain(|gpu| {
        let without = |other: &Tenant| {
            other.spec.daemon == daemon.name && other.spec.sees(gpu) && !is_limited(other, daemon, gpu)
        };
        is_limited(tenant, daemon, gpu) && tenants.iter().any(without)
    });
    gpus
}

fn is_limited(tenant: &Tenant, daemon: &Daemon, gpu: &GpuUuid) -> bool {
    tenant.spec.memory_limit(&daemon.spec, gpu).is_some()
}

/// The tenants that have no limit on a GPU where `tenant` has one, if it is the limited one; else those that have one where it has none.
fn opposite(tenant: &Tenant, daemon: &Daemon, tenants: &[Tenant], limited: bool) -> Vec<TenantName> {
    let mut gpus = gpus_of(&tenant.spec, &daemon.spec);
    gpus.retain(|gpu| is_limited(tenant, daemon, gpu) == limited);
    let others = tenants.iter().filter(|other| {
        other.spec.daemon == daemon.name
            && gpus.iter().any(|gpu| other.spec.sees(gpu) && is_limited(other, daemon, gpu) != limited)
    });
    others.map(|other| other.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::DaemonSpec;
    use crate::testing::{h200, spec};
    use crate::{DaemonName, TenantDirectory};

    fn daemon(extra: &str) -> Daemon {
        let json = format!("{{\"gpus\":[\"{}\",\"{}\"]{extra}}}", h200(0).uuid, h200(1).uuid);
        let spec: DaemonSpec = serde_json::from_str(&json).expect("a daemon");
        let name = DaemonName::parse("gpu0").expect("a name");
        Daemon { name, spec, revision: 1, generation: 1, created_at: 0, updated_at: 0 }
    }

    fn tenant(name: &str, extra: &str) -> Tenant {
        Tenant {
            name: TenantName::parse(name).expect("a name"),
            spec: spec(&format!("{{\"daemon\":\"gpu0\",\"uid\":0{extra}}}")),
            generation: 1,
            daemon_generation: 1,
            created_at: 0,
            updated_at: 0,
            directory: TenantDirectory::parse("0123456789").expect("a directory"),
            draining: false,
        }
    }

    #[test]
    fn tenant_without_limit_weakens_limited_neighbours() {
        let first = format!(",\"device_memory_limit\":\"4G\",\"gpus\":[\"{}\"]", h200(0).uuid);
        let second = format!(",\"device_memory_limit\":\"4G\",\"gpus\":[\"{}\"]", h200(1).uuid);
        let only_first = format!(",\"gpus\":[\"{}\"]", h200(0).uuid);
        let all = [tenant("a", &first), tenant("b", &second), tenant("plain", &only_first)];
        let names = |found: Vec<TenantName>| found.into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(names(weakened_by(&all[2], &daemon(""), &all)), ["a"]);
        assert_eq!(names(weakening(&all[0], &daemon(""), &all)), ["plain"]);
        assert!(weakening(&all[1], &daemon(""), &all).is_empty(), "it is on another GPU");
        assert!(weakening(&all[2], &daemon(""), &all).is_empty(), "it has no limit to lose");
    }

    #[test]
    fn limits_weaken_on_their_own_gpu_only() {
        let on = |gpu: u32| format!(",\"device_memory_limit\":{{\"{}\":\"4G\"}}", h200(gpu).uuid);
        let all = [tenant("a", &on(0)), tenant("b", &on(0)), tenant("c", &on(1))];
        let names = |found: Vec<TenantName>| found.into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(names(weakening(&all[0], &daemon(""), &all)), ["c"], "on the first GPU");
        assert_eq!(names(weakened_by(&all[0], &daemon(""), &all)), ["c"], "on the second");
        assert!(weakening(&all[0], &daemon(""), &all[..2]).is_empty());
        assert_eq!(weakened_gpus(&all[0], &daemon(""), &all), [h200(0).uuid]);
        assert_eq!(weakened_gpus(&all[2], &daemon(""), &all), [h200(1).uuid]);
    }

    #[test]
    fn default_limit_keeps_a_floor() {
        let all = [tenant("a", ",\"device_memory_limit\":\"4G\""), tenant("plain", "")];
        let daemon = daemon(",\"defaults\":{\"device_memory_limit\":\"8G\"}");
        assert!(
            weakened_by(&all[1], &daemon, &all).is_empty() && weakening(&all[0], &daemon, &all).is_empty()
        );
    }
}
