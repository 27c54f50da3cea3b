//! Desired values of a daemon, derived from its spec and its tenants.

use std::collections::{BTreeMap, BTreeSet};

use super::daemon::{DaemonSpec, DesiredState, Management, Mode};
use super::drift::DriftPolicy;
use super::gpu::{ComputeMode, Gpu};
use super::layout::active::DesiredLayout;
use super::maintenance::MaintenanceState;
use super::resolution::{Resolved, resolve};
use super::shares;
use super::tenant::{Tenant, TenantSpec};
use super::wedge::WedgeSettings;
use super::{
    DaemonName, GpuUuid, InvalidValue, MemoryLimit, Priority, TenantDirectory, TenantName, ThreadPercentage,
};

/// Version of a desired value, which orders all values for the daemons of one name.
///
/// A daemon that is created again counts its generations from 1 again. Its revision continues from the last one of the daemon
/// before, and no write lowers either number while a daemon exists, so the order is that of the commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct DesiredVersion {
    /// Rises with every change of the daemon's spec.
    pub revision: i64,
    /// Rises with every change of anything that feeds the daemon.
    pub generation: i64,
}

/// The complete desired value of a daemon: its holder needs nothing else.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "independent settings, each named as in the spec")]
pub struct Desired {
    /// The daemon.
    pub name: DaemonName,
    /// The revision of its spec; the code that reads it adds it.
    pub revision: i64,
    /// Rises with every change of anything below.
    pub generation: i64,
    /// The first generation since which neither the settings that are written to the daemon nor those that it is started with have changed.
    pub settings_since: i64,
    /// Management mode: the daemon is managed, or only observed.
    pub management: Management,
    /// True if it should run; ignored for a daemon that is only observed.
    pub running: bool,
    /// True if it is started even while another control daemon serves one of its GPUs.
    pub share_gpus: bool,
    /// True if it takes new clients by its spec.
    pub schedulable: bool,
    /// The compute mode of its GPUs; `None` leaves it as it is.
    pub compute_mode: Option<ComputeMode>,
    /// State of the maintenance that it is part of, if any: then it takes no new clients, and may be kept down.
    pub maintenance: Option<MaintenanceState>,
    /// Its GPUs in PCI order: the position is the ordinal that MPS commands take.
    pub gpus: Vec<GpuUuid>,
    /// Sharing of a GPU's SMs among clients.
    pub mode: Mode,
    /// The layout of its partitions; the code that reads it adds it.
    pub layout: Option<DesiredLayout>,
    /// True if its server is to have MLOPart devices.
    pub mlopart: bool,
    /// True if clients of several users may be connected at once.
    pub multi_user: bool,
    /// The user whose server is started ahead of the first client.
    pub server_uid: u32,
    /// Memory limits of the server by ordinal, one for each of `gpus`.
    pub memory_limits: Vec<Option<MemoryLimit>>,
    /// Thread percentage of the server.
    pub percentage: ThreadPercentage,
    /// Priority of clients that do not name one.
    pub priority: Priority,
    /// Policy for settings that another program changed.
    pub drift_policy: DriftPolicy,
    /// Settings for a server that hangs.
    pub wedge: WedgeSettings,
    /// The users of its tenants, who have to reach its pipes.
    pub uids: Vec<u32>,
    /// Further users who may reach it.
    pub others: OtherUsers,
    /// The directory of each of its tenants; the code that reads them adds them.
    pub directories: BTreeMap<TenantDirectory, DirectoryTenant>,
    /// The directories of tenants that are being drained; the code that reads them adds them.
    pub draining: BTreeSet<TenantDirectory>,
}

/// Tenant and user of a tenant's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryTenant {
    /// The tenant.
    pub name: TenantName,
    /// Its user.
    pub uid: u32,
}

/// Users who may reach a daemon, beside those of its tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtherUsers {
    /// These users.
    pub users: Vec<u32>,
    /// Every user of the host.
    pub everyone: bool,
}

impl Desired {
    /// Returns true if it is only observed.
    pub fn is_observed(&self) -> bool {
        self.management == Management::Observed
    }

    /// Returns its version, which orders it among the values for the same name.
    pub fn version(&self) -> DesiredVersion {
        DesiredVersion { revision: self.revision, generation: self.generation }
    }

    /// Returns true if a daemon that held the generation `applied` holds all desired settings now.
    pub fn holds_since(&self, applied: i64) -> bool {
        (self.settings_since..=self.generation).contains(&applied)
    }

    /// Returns true if all settings that are written to the daemon, or that it is started with, are the same as in `earlier`.
    pub fn has_settings_of(&self, earlier: &Self) -> bool {
        let same = Self {
            revision: self.revision,
            generation: self.generation,
            settings_since: self.settings_since,
            schedulable: self.schedulable,
            maintenance: self.maintenance,
            drift_policy: self.drift_policy,
            share_gpus: self.share_gpus,
            draining: self.draining.clone(),
            others: self.others.clone(),
            ..earlier.clone()
        };
        same == *self
    }
}

/// Derives the desired value of a daemon.
///
/// All clients of a server share its values, so each is the largest among the tenants; a tenant's smaller
/// value is in its environment. A daemon without tenants holds its own defaults.
pub fn desired(
    name: &DaemonName,
    generation: i64,
    daemon: &DaemonSpec,
    tenants: &[&TenantSpec],
    gpus: &[Gpu],
    manager_uid: u32,
    maintenance: Option<MaintenanceState>,
) -> Result<Desired, InvalidValue> {
    let basis = shares::basis(daemon, tenants.iter().copied(), gpus)?;
    let resolved: Vec<Resolved> = tenants
        .iter()
        .map(|tenant| resolve(tenant, daemon, basis.as_ref(), gpus))
        .collect::<Result<_, _>>()?;
    let memory_limits = (daemon.gpus.iter().enumerate())
        .map(|(ordinal, uuid)| {
            // Which of its devices the server would take an ordinal for is not documented: the limit stands in the environment alone.
            if daemon.mlopart {
                return None;
            }
            // MPS applies them by the client's own ordinals (recordings 05 and 07): to the first GPU that a tenant sees, whichever it is,
            // that of the daemon's first.
            let own = |tenant: &Resolved| Some(tenant.memory.get(tenant.gpus.get(ordinal)?).copied());
            let mut limits = resolved.iter().filter_map(own);
            let Some(first) = limits.next() else {
                return daemon.defaults.device_memory_limit.as_ref().and_then(|limit| limit.on(uuid));
            };
            limits.fold(first, |largest, limit| largest.zip(limit).map(|(a, b)| a.max(b)))
        })
        .collect();
    let percentage = resolved
        .iter()
        .map(|tenant| tenant.percentage)
        .max()
        .or(daemon.defaults.active_thread_percentage)
        .unwrap_or(ThreadPercentage::FULL);
    let priority = if resolved.is_empty() {
        daemon.defaults.priority.unwrap_or_default()
    } else if resolved.iter().all(|tenant| tenant.priority == Priority::BelowNormal) {
        Priority::BelowNormal
    } else {
        Priority::Normal
    };
    let server_uid = match tenants.first() {
        Some(tenant) if !daemon.multi_user => tenant.uid,
        _ => manager_uid,
    };
    let mut uids: Vec<u32> = tenants.iter().map(|tenant| tenant.uid).collect();
    uids.sort_unstable();
    uids.dedup();
    Ok(Desired {
        name: name.clone(),
        revision: 0,
        generation,
        settings_since: generation,
        management: daemon.management,
        share_gpus: daemon.share_gpus,
        running: daemon.desired_state == DesiredState::Running
            && !maintenance.is_some_and(MaintenanceState::holds_down),
        schedulable: daemon.schedulable,
        compute_mode: daemon.compute_mode,
        maintenance,
        gpus: daemon.gpus.clone(),
        mode: daemon.mode,
        layout: None,
        mlopart: daemon.mlopart,
        multi_user: daemon.multi_user,
        server_uid,
        memory_limits,
        percentage,
        priority,
        drift_policy: daemon.drift_policy,
        wedge: daemon.wedge(),
        uids,
        others: OtherUsers { users: daemon.users.clone(), everyone: daemon.any_user },
        directories: BTreeMap::new(),
        draining: BTreeSet::new(),
    })
}

/// Returns the largest percentage among the shares of a layout and the tenants without a partition: what the server has to hold. A
/// daemon with a layout has no strategy.
pub fn server_percentage(
    layout: &DesiredLayout,
    daemon: &DaemonSpec,
    tenants: &[&Tenant],
    gpus: &[Gpu],
) -> Result<ThreadPercentage, InvalidValue> {
    let bound = |tenant: &Tenant| layout.tenants.values().any(|names| names.contains(&tenant.name));
    let unbound = tenants.iter().filter(|tenant| !bound(tenant));
    let resolved: Vec<Resolved> =
        unbound.map(|tenant| resolve(&tenant.spec, daemon, None, gpus)).collect::<Result<_, _>>()?;
    let shares = layout.shares.iter().map(|share| share.percentage);
    let most = resolved.iter().map(|tenant| tenant.percentage).chain(shares).max();
    Ok(most.unwrap_or(ThreadPercentage::FULL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{h200, spec};

    fn plan(tenants: &[&str]) -> Desired {
        let daemon = serde_json::from_str(&format!("{{\"gpus\":[\"{}\"]}}", h200(0).uuid)).expect("daemon");
        let tenants: Vec<TenantSpec> = tenants.iter().map(|json| spec(json)).collect();
        desired(
            &DaemonName::parse("gpu0").expect("name"),
            1,
            &daemon,
            &tenants.iter().collect::<Vec<_>>(),
            &[h200(0)],
            0,
            None,
        )
        .expect("plan")
    }

    #[test]
    fn the_server_gets_the_largest_of_its_tenants() {
        let plan = plan(&[
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G","active_thread_percentage":25,"priority":"below_normal"}"#,
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"8G","active_thread_percentage":50}"#,
        ]);
        assert_eq!(plan.memory_limits, vec![Some(MemoryLimit::parse("8G").expect("8G"))]);
        assert_eq!(plan.percentage.tenths(), 500);
        assert_eq!(plan.priority, Priority::Normal);
    }

    #[test]
    fn daemon_priority_is_the_tenants_default() {
        let daemon: DaemonSpec = serde_json::from_str(&format!(
            "{{\"gpus\":[\"{}\"],\"defaults\":{{\"priority\":\"below_normal\"}}}}",
            h200(0).uuid
        ))
        .expect("daemon");
        let name = DaemonName::parse("gpu0").expect("name");
        let plan = |tenants: &[TenantSpec]| {
            desired(&name, 1, &daemon, &tenants.iter().collect::<Vec<_>>(), &[h200(0)], 0, None)
                .expect("plan")
                .priority
        };
        assert_eq!(plan(&[]), Priority::BelowNormal);
        assert_eq!(plan(&[spec(r#"{"daemon":"gpu0","uid":0}"#)]), Priority::BelowNormal);
        assert_eq!(plan(&[spec(r#"{"daemon":"gpu0", "uid": 0,"priority":"normal"}"#)]), Priority::Normal);
    }

    #[test]
    fn each_gpu_has_its_largest_limit() {
        let (zero, one) = (h200(0).uuid, h200(1).uuid);
        let json =
            format!(r#"{{"gpus":["{zero}","{one}"],"defaults":{{"device_memory_limit":{{"{one}":"3G"}}}}}}"#);
        let daemon: DaemonSpec = serde_json::from_str(&json).expect("daemon");
        let name = DaemonName::parse("gpu0").expect("name");
        let limits = |tenants: &[TenantSpec]| {
            let plan =
                desired(&name, 1, &daemon, &tenants.iter().collect::<Vec<_>>(), &[h200(0), h200(1)], 0, None)
                    .expect("plan");
            plan.memory_limits.iter().map(|limit| limit.map(MemoryLimit::mib)).collect::<Vec<_>>()
        };
        let of =
            |limit: &str| spec(&format!(r#"{{"daemon":"gpu0", "uid": 0,"device_memory_limit":{limit}}}"#));
        let (first, second) = (of(&format!(r#"{{"{zero}":"1G","{one}":"4G"}}"#)), of(r#""2G""#));
        assert_eq!(limits(&[]), [None, Some(3072)]);
        assert_eq!(limits(&[first.clone(), second]), [Some(2048), Some(4096)]);
        let on_one =
            spec(&format!(r#"{{"daemon":"gpu0", "uid": 0,"gpus":["{one}"],"device_memory_limit":"8G"}}"#));
        let renumbered = [first.clone(), on_one];
        assert_eq!(limits(&renumbered), [Some(8192), Some(4096)], "the second GPU is that tenant's first");
        let third = of(&format!(r#"{{"{one}":"1G"}}"#));
        assert_eq!(limits(&[first, third]), [None, Some(4096)], "the third has no limit on the first GPU");
    }

    #[test]
    fn strategy_gives_the_servers_percentage() {
        let json = format!(r#"{{"gpus":["{}"],"provisioning":{{"strategy":"uniform"}}}}"#, h200(0).uuid);
        let daemon: DaemonSpec = serde_json::from_str(&json).expect("daemon");
        let name = DaemonName::parse("gpu0").expect("name");
        let percentage = |tenants: &[TenantSpec]| {
            desired(&name, 1, &daemon, &tenants.iter().collect::<Vec<_>>(), &[h200(0)], 0, None)
                .expect("plan")
                .percentage
                .tenths()
        };
        let plain = spec(r#"{"daemon":"gpu0","uid":0}"#);
        assert_eq!(percentage(&vec![plain.clone(); 4]), 250);
        assert_eq!(percentage(&vec![plain.clone(); 5]), 200);
        let own = spec(r#"{"daemon":"gpu0", "uid": 0,"active_thread_percentage":60}"#);
        assert_eq!(percentage(&[plain, own]), 600, "the largest of all");
        assert_eq!(percentage(&[]), 1000);
    }

    #[test]
    fn only_what_feeds_a_command_changes_settings() {
        let before = plan(&[r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G"}"#]);
        let cordoned = Desired { generation: 2, settings_since: 2, schedulable: false, ..before.clone() };
        assert!(cordoned.has_settings_of(&before));
        let draining = Desired {
            maintenance: Some(MaintenanceState::Draining),
            drift_policy: DriftPolicy::Report,
            ..before.clone()
        };
        assert!(draining.has_settings_of(&before));
        let lower = Desired { percentage: ThreadPercentage::parse("50").expect("50"), ..before.clone() };
        assert!(!lower.has_settings_of(&before));
        assert!(!Desired { running: false, ..before.clone() }.has_settings_of(&before));
        let now = Desired { settings_since: 1, ..cordoned };
        assert!(now.holds_since(1) && now.holds_since(2) && !now.holds_since(0) && !now.holds_since(3));
    }

    #[test]
    fn one_tenant_without_a_limit_lifts_the_servers() {
        let plan = plan(&[
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G"}"#,
            r#"{"daemon":"gpu0","uid":0}"#,
        ]);
        assert_eq!(plan.memory_limits, vec![None]);
        assert_eq!(plan.percentage, ThreadPercentage::FULL);
    }

    #[test]
    fn server_user_is_tenants_unless_multi_user() {
        assert_eq!(plan(&[r#"{"daemon":"gpu0","uid":1000}"#]).server_uid, 1000);
        assert_eq!(plan(&[]).server_uid, 0);
    }
}
