//! Checks of other software of this host that uses or shares GPUs: the kernel's log, cgroups, CDI specifications, other managers of MPS,
//! Slurm.

use std::collections::BTreeMap;

use super::facts::{HostFacts, SlurmFacts};
use crate::domain::checkup::{CheckFinding, CheckVerdict, Judgement, each, ok, skipped, warn};
use crate::domain::count::{counted, joined};
use crate::domain::environment::cdi::{GPU_KIND, missing};
use crate::host::cdi::GENERATE;
use crate::host::kernel_log::LoggedXid;

/// Command that lists the daemon sets of a cluster.
pub(super) const DAEMON_SETS: &str = "kubectl get daemonsets --all-namespaces";
/// The one of the other managers that is a service of systemd.
pub(super) const MIG_MANAGER: &str = "nvidia-mig-manager";

/// Checks for services that start a control daemon at boot.
pub(super) fn mps_services(host: &HostFacts) -> Judgement {
    if host.config.sim.is_some() {
        return skipped("a simulated host has no services");
    }
    let finding = |unit: &String| CheckFinding {
        seen: format!("{unit} starts an MPS control daemon at boot, which serves GPUs beside the manager's"),
        remedy: format!("systemctl disable --now {unit}"),
    };
    each(CheckVerdict::Warn, host.services.iter().map(finding))?;
    ok("no enabled service of systemd names the control program in its ExecStart=")
}

/// Checks for other programs that manage MPS: two managers of one GPU undo each other's settings.
pub(super) fn other_managers(host: &HostFacts) -> Judgement {
    let finding = |(name, pid): &(&str, u32)| CheckFinding {
        seen: format!(
            "{name} (process {pid}) may start MPS daemons or change modes on the same GPUs: leave each GPU to one of the two"
        ),
        remedy: if *name == MIG_MANAGER {
            format!("systemctl disable --now {MIG_MANAGER}")
        } else {
            // The others run as daemon sets of Kubernetes, whose names depend on the cluster.
            DAEMON_SETS.to_owned()
        },
    };
    each(CheckVerdict::Warn, host.other_managers.iter().map(finding))?;
    ok("no other program that shares GPUs runs here")
}

/// Checks for Slurm's own MPS plugin, whose jobs would share GPUs without this manager.
pub(super) fn slurm_mps(host: &HostFacts) -> Judgement {
    let SlurmFacts { files, enabling, unreadable } = &host.slurm;
    if !enabling.is_empty() {
        return warn(
            format!(
                "Slurm's MPS plugin is enabled ({}): its jobs cannot share GPUs with this manager, whose Prolog refuses them",
                enabling.join(", ")
            ),
            "take mps out of GresTypes and Gres in slurm.conf and Name=mps out of gres.conf, then restart slurmctld and slurmd",
        );
    }
    if !unreadable.is_empty() {
        return skipped(format!("Slurm's configuration cannot be read: {}", unreadable.join(", ")));
    }
    if *files == 0 {
        skipped("no configuration of Slurm is here")
    } else {
        ok("Slurm's MPS plugin is not enabled")
    }
}

/// Checks the kernel's log for errors of the driver since the boot.
pub(super) fn kernel_log(host: &HostFacts) -> Judgement {
    let xids = xids(host.xids.as_ref().or_else(skipped)?);
    if xids.is_empty() {
        return ok("no error of the driver (Xid) in what is kept of this boot");
    }
    warn(
        format!("errors of the driver in this boot: {}", xids.join(", ")),
        "journalctl -k -g Xid (31 and 13 are faults of programs; 48, 63, 74, 79, 94 and 95 are the hardware's)",
    )
}

/// Lists the errors of NVIDIA's driver, each number once, with the number of its occurrences.
fn xids(logged: &[LoggedXid]) -> Vec<String> {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for xid in logged.iter().filter_map(|xid| xid.report.split(',').next()?.trim().parse().ok()) {
        *counts.entry(xid).or_default() += 1;
    }
    counts.into_iter().map(|(xid, count)| format!("Xid {xid} ({})", counted(count, "time"))).collect()
}

/// Checks for limits on device memory by cgroup, which MPS knows nothing of, if the kernel can set any.
pub(super) fn device_cgroup(host: &HostFacts) -> Judgement {
    let limited = &host.cgroup.limited;
    if let Some(first) = limited.first() {
        return warn(
            format!(
                "limits on device memory beside those of MPS, perhaps left by something that is gone: {}",
                limited.join(", ")
            ),
            format!("cat {first}/dmem.max; write `REGION max` into it if nobody needs the limit"),
        );
    }
    ok(match host.cgroup.has_dmem {
        Some(true) => "the controller dmem sets no limit on device memory",
        Some(false) => "this kernel has no controller dmem: device memory is limited by MPS alone",
        None => "no cgroup v2 at /sys/fs/cgroup: device memory is limited by MPS alone",
    })
}

/// Checks for CDI specifications that mount directories of deleted tenants, that the manager can write its own, and that an engine finds
/// the GPUs that tenants' containers ask for by UUID.
pub(super) fn cdi(host: &HostFacts) -> Judgement {
    let facts = &host.cdi;
    if let Some((first, _)) = facts.stale.first() {
        let mounts =
            facts.stale.iter().map(|(file, gone)| format!("{} mounts {}", file.display(), gone.display()));
        return warn(
            format!(
                "a container that asks for it runs outside MPS or does not start: {}",
                joined(mounts, "; ")
            ),
            format!("rm {}", first.display()),
        );
    }
    if let Some((why, remedy)) = &facts.unusable {
        return warn(format!("container engines are given no tenant: {why}"), remedy);
    }
    if let Some(listed) = &facts.gpus
        && let Some(missing) = missing(listed, host.known_gpus().iter().map(|gpu| &gpu.uuid))
    {
        let named = if listed.is_empty() { "none".to_owned() } else { joined(listed, ", ") };
        return warn(
            format!(
                "an engine does not find the GPUs that tenants' containers ask for: no CDI specification has {missing} (of {GPU_KIND} there are: {named})"
            ),
            GENERATE,
        );
    }
    if facts.count == 0 {
        return skipped("there is no CDI specification");
    }
    ok(format!("{}, and none of a tenant that is gone", counted(facts.count, "CDI specification")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::kernel_log;

    #[test]
    fn xids_are_counted_by_number() {
        let log = "6,1,1,-;nvidia: loading\n\
                   4,2,2,-;NVRM: Xid (PCI:0000:06:00): 31, pid=5337, name=train, Ch 00000008. MMU Fault\n\
                   4,3,3,-;NVRM: Xid (PCI:0000:06:00): 13, pid='<unknown>', Graphics SM Warp Exception\n\
                   4,4,4,-;NVRM: Xid (PCI:0000:07:00): 31, pid=5400, name=train, Ch 00000008. MMU Fault\n\
                   4,5,5,-;NVRM: Xid (PCI:0000:07:00): banana\n";
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("kernel.log");
        for (log, shown) in [(log, vec!["Xid 13 (1 time)", "Xid 31 (2 times)"]), ("", vec![])] {
            fs::write(&file, log).expect("written");
            assert_eq!(xids(&kernel_log::xids(&file).expect("read")), shown);
        }
    }
}
