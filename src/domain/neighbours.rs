//! Effects of a daemon's tenants on each other's memory limits.
//!
//! A server holds all its clients to one limit, so a tenant without a limit leaves the server without one. The limits of its neighbours
//! then depend on their environments, which a process can change. A default limit on the daemon prevents that.

use std::collections::{BTreeMap, BTreeSet};

use super::daemon::Daemon;
use super::tenant::Tenant;
use super::{DaemonName, GpuUuid, TenantName};

/// The tenants of some daemons by GPU: first those without a limit there, then those with one.
#[derive(Debug, Default)]
pub struct LimitsByGpu<'t>(BTreeMap<&'t DaemonName, Vec<[Vec<&'t TenantName>; 2]>>);

impl<'t> LimitsByGpu<'t> {
    /// Sorts tenants, of which those of other daemons are left out.
    pub fn of(daemons: impl IntoIterator<Item = &'t Daemon>, tenants: &'t [Tenant]) -> Self {
        let sorted = |daemon: &'t Daemon| {
            let mut by_gpu = vec![<[Vec<&TenantName>; 2]>::default(); daemon.spec.gpus.len()];
            for tenant in tenants.iter().filter(|tenant| tenant.spec.daemon == daemon.name) {
                for (gpu, both) in daemon.spec.gpus.iter().zip(&mut by_gpu) {
                    // With MLOPart devices the server has no limit whatever its tenants have.
                    if tenant.spec.sees(gpu) && !daemon.spec.mlopart {
                        both[usize::from(is_limited(tenant, daemon, gpu))].push(&tenant.name);
                    }
                }
            }
            (&daemon.name, by_gpu)
        };
        Self(daemons.into_iter().map(sorted).collect())
    }

    /// Returns the tenants whose limit on a GPU of `tenant` is enforced by their environment only, because `tenant` has none there.
    pub fn weakened_by(&self, tenant: &Tenant, daemon: &Daemon) -> Vec<TenantName> {
        self.opposite(tenant, daemon, false)
    }

    /// Returns the tenants without a limit on a GPU of `tenant`, because of which its limit there is enforced by its environment only.
    pub fn weakening(&self, tenant: &Tenant, daemon: &Daemon) -> Vec<TenantName> {
        self.opposite(tenant, daemon, true)
    }

    /// Returns the GPUs on which the limit of `tenant` is enforced by its environment only, because other tenants have none there.
    pub fn weakened_gpus<'d>(&self, tenant: &Tenant, daemon: &'d Daemon) -> Vec<&'d GpuUuid> {
        let gpus = gpus_with(tenant, daemon, true);
        gpus.filter(|gpu| !self.with(daemon, gpu, false).is_empty()).collect()
    }

    /// Returns the tenants without a limit on a GPU where `tenant` has one if `limited` is true, else those with a limit where it has none.
    fn opposite(&self, tenant: &Tenant, daemon: &Daemon, limited: bool) -> Vec<TenantName> {
        let gpus = gpus_with(tenant, daemon, limited);
        let others: BTreeSet<&TenantName> =
            gpus.flat_map(|gpu| self.with(daemon, gpu, !limited)).copied().collect();
        others.into_iter().cloned().collect()
    }

    fn with<'s>(&'s self, daemon: &'s Daemon, gpu: &'s GpuUuid, limited: bool) -> &'s [&'t TenantName] {
        let at = daemon.spec.gpus.iter().position(|of_daemon| of_daemon == gpu);
        let both = at.and_then(|at| self.0.get(&daemon.name)?.get(at));
        both.map_or(&[], |both| &both[usize::from(limited)])
    }
}

/// Returns the GPUs that a tenant sees with a limit, or without one.
fn gpus_with<'d>(tenant: &Tenant, daemon: &'d Daemon, limited: bool) -> impl Iterator<Item = &'d GpuUuid> {
    let gpus = daemon.spec.gpus.iter().filter(|gpu| tenant.spec.sees(gpu));
    gpus.filter(move |gpu| is_limited(tenant, daemon, gpu) == limited)
}

fn is_limited(tenant: &Tenant, daemon: &Daemon, gpu: &GpuUuid) -> bool {
    tenant.spec.memory_limit(&daemon.spec, gpu).is_some()
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
        let daemon = daemon("");
        let limits = LimitsByGpu::of([&daemon], &all);
        assert_eq!(names(limits.weakened_by(&all[2], &daemon)), ["a"]);
        assert_eq!(names(limits.weakening(&all[0], &daemon)), ["plain"]);
        assert!(limits.weakening(&all[1], &daemon).is_empty(), "it is on another GPU");
        assert!(limits.weakening(&all[2], &daemon).is_empty(), "it has no limit to lose");
        assert!(LimitsByGpu::of([], &all).weakening(&all[0], &daemon).is_empty(), "another daemon's");
    }

    #[test]
    fn limits_weaken_on_their_own_gpu_only() {
        let on = |gpu: u32| format!(",\"device_memory_limit\":{{\"{}\":\"4G\"}}", h200(gpu).uuid);
        let all = [tenant("a", &on(0)), tenant("b", &on(0)), tenant("c", &on(1))];
        let names = |tenants: Vec<TenantName>| tenants.into_iter().map(String::from).collect::<Vec<_>>();
        let daemon = daemon("");
        let limits = LimitsByGpu::of([&daemon], &all);
        assert_eq!(names(limits.weakening(&all[0], &daemon)), ["c"], "on the first GPU");
        assert_eq!(names(limits.weakened_by(&all[0], &daemon)), ["c"], "on the second");
        assert!(LimitsByGpu::of([&daemon], &all[..2]).weakening(&all[0], &daemon).is_empty());
        assert_eq!(limits.weakened_gpus(&all[0], &daemon), [&h200(0).uuid]);
        assert_eq!(limits.weakened_gpus(&all[2], &daemon), [&h200(1).uuid]);
    }

    #[test]
    fn default_limit_keeps_a_floor() {
        let all = [tenant("a", ",\"device_memory_limit\":\"4G\""), tenant("plain", "")];
        let daemon = daemon(",\"defaults\":{\"device_memory_limit\":\"8G\"}");
        let limits = LimitsByGpu::of([&daemon], &all);
        assert!(
            limits.weakened_by(&all[1], &daemon).is_empty() && limits.weakening(&all[0], &daemon).is_empty()
        );
    }
}
