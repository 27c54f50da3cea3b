//! Checks of the driver, its GPUs and who is on them, and of NVIDIA's two programs.

use std::collections::BTreeSet;

use super::facts::{HostFacts, NoDriver, NoPrograms};
use crate::domain::checkup::{CheckFinding, CheckVerdict, Judgement, each, fail, ok, skipped, warn};
use crate::domain::count::{counted, joined};
use crate::domain::gpu::{ComputeMode, Gpu};
use crate::gpu::GpuDriver;

pub(super) fn driver(host: &HostFacts) -> Judgement {
    if let Err(NoDriver::Failed(error)) = &host.driver {
        let remedy = "install the driver, or start it: nvidia-smi has to list the GPUs; to try mps-manager without any, \
                      give --sim h200x2";
        return fail(error, remedy);
    }
    let GpuDriver { driver_version, cuda_version, profile, .. } = &host.answers()?.driver;
    let cuda = cuda_version.as_deref().map(|version| format!(", CUDA {version}")).unwrap_or_default();
    let simulated = profile.as_deref().map(|profile| format!(", SIMULATED ({profile})")).unwrap_or_default();
    ok(format!("version {driver_version}{cuda}{simulated}"))
}

pub(super) fn gpus(host: &HostFacts) -> Judgement {
    let gpus = &host.answers()?.gpus;
    if gpus.is_empty() {
        let problem = "the driver lists no GPU, or can describe none";
        return fail(problem, "see nvidia-smi and dmesg for a GPU that fell off the bus");
    }
    ok(joined(gpus.iter().map(|gpu| format!("{} {}", gpu.index, gpu.name)), ", "))
}

/// Lists the indices of the GPUs that satisfy `which`, in words.
fn those(gpus: &[Gpu], which: impl Fn(&Gpu) -> bool) -> Option<String> {
    let names: Vec<String> =
        gpus.iter().filter(|gpu| which(gpu)).map(|gpu| format!("GPU {}", gpu.index)).collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// Checks the capabilities that the generation of the GPUs lacks.
pub(super) fn compute_capability(host: &HostFacts) -> Judgement {
    let gpus = &host.gpus()?.gpus;
    if let Some(old) = those(gpus, Gpu::is_before_volta) {
        return warn(
            format!(
                "before Volta: {old}; MPS has no limits there, one user at a time, and containers need the host's /dev/shm"
            ),
            "nvidia-smi --query-gpu=index,compute_cap --format=csv (leave GPUs below 7.0 out of the daemons)",
        );
    }
    if let Some(unknown) = those(gpus, |gpu| gpu.compute_capability.is_none()) {
        return skipped(format!(
            "the driver does not report the compute capability of {unknown}: whether limits work there shows when a tenant is verified"
        ));
    }
    let without_partitions = [
        those(gpus, Gpu::is_before_ampere)
            .map(|old| format!("; before Ampere, so without static partitions: {old}")),
        those(gpus, |gpu| gpu.mig_enabled)
            .map(|names| format!("; in MIG mode, so without static partitions: {names}")),
    ];
    let without_partitions: String = without_partitions.into_iter().flatten().collect();
    ok(if without_partitions.is_empty() {
        "limits work on every GPU, and static partitions where MPS has them".to_owned()
    } else {
        format!("limits work on every GPU{without_partitions}")
    })
}

pub(super) fn mig(host: &HostFacts) -> Judgement {
    let gpus = &host.gpus()?.gpus;
    let instances = |gpu: &Gpu| {
        gpus.iter().filter(|other| other.mig.as_ref().is_some_and(|mig| mig.parent == gpu.uuid)).count()
    };
    let finding = |gpu: &Gpu| CheckFinding {
        seen: format!("GPU {} is in MIG mode and has no instances, so no process can use it", gpu.index),
        remedy: format!(
            "nvidia-smi mig -i {} -lgip (lists the profiles that mig-parted or nvidia-smi mig -cgi can make)",
            gpu.index
        ),
    };
    let in_mig_mode = || gpus.iter().filter(|gpu| gpu.mig_enabled);
    each(CheckVerdict::Warn, in_mig_mode().filter(|gpu| instances(gpu) == 0).map(finding))?;
    let names: Vec<String> = in_mig_mode()
        .map(|gpu| format!("GPU {} in MIG mode, {}", gpu.index, counted(instances(gpu), "instance")))
        .collect();
    ok(if names.is_empty() { "no GPU is in MIG mode".to_owned() } else { names.join("; ") })
}

pub(super) fn compute_mode(host: &HostFacts) -> Judgement {
    let gpus = &host.gpus()?.gpus;
    let finding = |gpu: &Gpu| CheckFinding {
        seen: format!("prohibited: GPU {}, where no process may use CUDA, nor an MPS server", gpu.index),
        remedy: format!("nvidia-smi -i {} -c DEFAULT", gpu.index),
    };
    let prohibited = gpus.iter().filter(|gpu| gpu.compute_mode == Some(ComputeMode::Prohibited));
    each(CheckVerdict::Fail, prohibited.map(finding))?;
    // A MIG instance has no compute mode, and its GPU none that matters.
    let with = |mode| those(gpus, |gpu| gpu.compute_mode == mode && gpu.mig.is_none() && !gpu.mig_enabled);
    if let Some(unknown) = with(None) {
        return skipped(format!(
            "the driver does not report the compute mode of {unknown}, which cannot be set there"
        ));
    }
    let in_mig_mode = those(gpus, |gpu| gpu.mig_enabled).map(|names| {
        format!(
            "in MIG mode, where the compute mode is default and cannot be changed: {names}; a process outside MPS is reported as a bypass \
             there and not kept out"
        )
    });
    let default = with(Some(ComputeMode::Default)).map(|names| {
        format!(
            "default: {names}; processes that miss the pipe directory run outside MPS there. A daemon's compute_mode can say \
             otherwise while it runs"
        )
    });
    let exclusive = with(Some(ComputeMode::ExclusiveProcess))
        .map(|names| format!("exclusive_process: {names}; a process outside MPS is refused there"));
    match (&default, &exclusive, &in_mig_mode) {
        (None, None, Some(why)) => skipped(why),
        _ => ok(joined([default, exclusive, in_mig_mode].into_iter().flatten(), ". ")),
    }
}

pub(super) fn outside_mps(host: &HostFacts) -> Judgement {
    let facts = host.gpus()?;
    let outside = || facts.processes.iter().filter(|process| !process.is_of_mps);
    if outside().next().is_none() {
        return match &facts.unread {
            Some(why) => skipped(why),
            None if facts.processes.is_empty() => skipped("the driver lists no process on a GPU"),
            None => ok("every process on a GPU is an MPS client or server"),
        };
    }
    let exclusive = those(&facts.gpus, |gpu| gpu.compute_mode == Some(ComputeMode::ExclusiveProcess));
    let effect = exclusive.map_or_else(
        || "no limits apply to them".to_owned(),
        |names| {
            format!(
                "no limits apply to them, and one on {names} keeps MPS and everybody else off it (error 46)"
            )
        },
    );
    // Any process that is named like the server of MPS may be one.
    let killable: BTreeSet<u32> =
        outside().filter(|process| !process.is_like_server).map(|process| process.pid).collect();
    let remedy = if killable.is_empty() {
        let servers: BTreeSet<u32> = outside().map(|process| process.pid).collect();
        format!("see whose these servers are: ps -o pid,ppid,user,args -p {}", joined(servers, ","))
    } else {
        format!("kill {}", joined(killable, " "))
    };
    let outside = joined(outside().map(|process| format!("{} on GPU {}", process.pid, process.gpu)), ", ");
    warn(
        format!(
            "not under MPS: {outside}; {effect}. Start them with `mps-manager run --tenant NAME` instead"
        ),
        remedy,
    )
}

/// Checks for processes that the driver lists without an entry in /proc: this is another PID namespace than the host's.
pub(super) fn pid_namespace(host: &HostFacts) -> Judgement {
    let facts = host.gpus()?;
    let processes = &facts.processes;
    if processes.is_empty() {
        return skipped(facts.unread.as_deref().unwrap_or("the driver lists no process of a GPU"));
    }
    if processes.iter().all(|process| process.is_visible) {
        return ok("every process that the driver lists is visible here");
    }
    let unseen = processes.iter().filter(|process| !process.is_visible).map(|process| process.pid);
    warn(
        format!(
            "the driver lists processes that are not visible here: {}; their users, commands and ends stay unknown",
            joined(unseen, ", ")
        ),
        "run the manager in the host's PID namespace: docker run --pid=host, or hostPID: true in a pod",
    )
}

pub(super) fn programs(host: &HostFacts) -> Judgement {
    let facts = match &host.programs {
        Ok(facts) => facts,
        Err(NoPrograms::NotMade) => {
            return skipped("the simulated host is made by the first start of its manager");
        }
        Err(NoPrograms::NotFound(error)) => {
            return fail(error, "install the driver's MPS programs, or name their directory with --mps-dir");
        }
        Err(NoPrograms::Silent(error)) => {
            return fail(error, "reinstall the MPS programs of the running driver");
        }
    };
    if let Some(why) = &facts.other_driver {
        return fail(why, "install the MPS programs of the running driver");
    }
    let capability = &facts.capability;
    ok(format!(
        "{}, version {} (CUDA {}), {} clients on one GPU at most",
        capability.program.display(),
        capability.binary_version,
        capability.cuda_version(),
        capability.client_ceiling()
    ))
}

/// Checks the capabilities that the version of the programs lacks. Only a lack that strangers can exploit calls for action.
pub(super) fn capabilities(host: &HostFacts) -> Judgement {
    let capability = match &host.programs {
        Ok(facts) => &facts.capability,
        Err(NoPrograms::NotMade) => {
            return skipped("the simulated host is made by the first start of its manager");
        }
        Err(NoPrograms::NotFound(_)) => return skipped("the programs were not found"),
        Err(NoPrograms::Silent(_)) => return skipped("the control program did not say"),
    };
    let missing = capability.list().into_iter();
    let missing =
        missing.filter_map(|feature| feature.reason.map(|why| format!("{}: {why}", feature.name.title())));
    let reasons = joined(missing, "; ");
    if reasons.is_empty() {
        ok("static partitions and everything else that depends on the version")
    } else if capability.guarded_defaults() {
        skipped(format!("{reasons}; daemons in shared mode, and layouts by percentage, work"))
    } else {
        let remedy =
            "install a driver from 550 on, or give accounts on this host to none but the tenants' users";
        warn(reasons, remedy)
    }
}
