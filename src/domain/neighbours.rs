//! Effects of a daemon's tenants on each other's memory limits.
//!
//! A server holds all its clients to one limit, so a tenant without a limit leaves the server without one. The limits of its neighbours
//! then depend on their environments, which a process can change. A default limit on the daemon prevents that.

use super::daemon::Daemon;
use super::resolution::gpus_of;
use super::tenant::Tenant;
use super::{GpuUuid, TenantName};

/// Returns the tenants whose limit on a GPU of `tenant` is enforced by their environment only, because `tenant` has none there.
pub fn weakened_by(tenant: &Tenant, daemon: &Daemon, tenants: &[Tenant]) -> Vec<TenantName> {
    opposite(tenant, daemon, tenants, false)
}

/// Returns the tenants without a limit on a GPU of `tenant`, because of which its limit there is enforced by its environment only.
pub fn weakening(tenant: &Tenant, daemon: &Daemon, tenants: &[Tenant]) -> Vec<TenantName> {
    opposite(tenant, daemon, tenants, true)
}

/// Returns the GPUs on which the limit of `tenant` is enforced by its environment only, because other tenants have none there.
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

/// Returns the tenants without a limit on a GPU where `tenant` has one if `limited` is true, else those with a limit where it has none.
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
    use crate::DaemonName;
    use crate::daemon::DaemonSpec;
    use crate::testing::{self, h200};

    fn daemon(extra: &str) -> Daemon {
        let json = format!("{{\"gpus\":[\"{}\",\"{}\"]{extra}}}", h200(0).uuid, h200(1).uuid);
        let spec: DaemonSpec = serde_json::from_str(&json).expect("a daemon");
        let name = DaemonName::parse("gpu0").expect("a name");
        Daemon { name, spec, revision: 1, generation: 1, created_at: 0, updated_at: 0 }
    }

    fn tenant(name: &str, extra: &str) -> Tenant {
        testing::tenant(name, &format!("{{\"daemon\":\"gpu0\",\"uid\":0{extra}}}"))
    }

    #[test]
    fn tenant_without_limit_weakens_limited_neighbours() {
        let first = format!(",\"device_memory_limit\":\"4G\",\"gpus\":[\"{}\"]", h200(0).uuid);
        let second = format!(",\"device_memory_limit\":\"4G\",\"gpus\":[\"{}\"]", h200(1).uuid);
        let only_first = format!(",\"gpus\":[\"{}\"]", h200(0).uuid);
        let all = [tenant("a", &first), tenant("b", &second), tenant("plain", &only_first)];
        let names = |tenants: Vec<TenantName>| tenants.into_iter().map(String::from).collect::<Vec<_>>();
        assert_eq!(names(weakened_by(&all[2], &daemon(""), &all)), ["a"]);
        assert_eq!(names(weakening(&all[0], &daemon(""), &all)), ["plain"]);
        assert!(weakening(&all[1], &daemon(""), &all).is_empty(), "it is on another GPU");
        assert!(weakening(&all[2], &daemon(""), &all).is_empty(), "it has no limit to lose");
    }

    #[test]
    fn limits_weaken_on_their_own_gpu_only() {
        let on = |gpu: u32| format!(",\"device_memory_limit\":{{\"{}\":\"4G\"}}", h200(gpu).uuid);
        let all = [tenant("a", &on(0)), tenant("b", &on(0)), tenant("c", &on(1))];
        let names = |tenants: Vec<TenantName>| tenants.into_iter().map(String::from).collect::<Vec<_>>();
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
