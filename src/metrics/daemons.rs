//! Families about daemons, their servers, their GPUs and their partitions.

use std::fmt;

use prometheus_client::registry::Unit;

use super::families::{Families, Labels, length, number, seconds, truth};
use super::snapshot::{MetricsSnapshot, ObservedDaemon};
use crate::domain::PartitionId;
use crate::domain::daemon::{Effective, Phase, ServerStatus};
use crate::domain::partitions::{GpuPartitions, ListedPartition};

/// The states of a server that MPS names; any other state is `other`.
const SERVER_STATES: [ServerStatus; 3] =
    [ServerStatus::Active, ServerStatus::Initializing, ServerStatus::Fault];

/// Reads a number from an item of a list.
type Of<T> = fn(&T) -> u32;

fn of(daemon: &ObservedDaemon) -> Labels<1> {
    [("daemon", daemon.name.clone())]
}

pub(super) fn encode(snapshot: &MetricsSnapshot, families: &mut Families<'_>) -> fmt::Result {
    let each = || snapshot.seen.iter();
    families.gauges(
        "daemon_up",
        "1 while the control daemon has a process, by /proc",
        each().map(|daemon| (of(daemon), truth(daemon.status.pid.is_some()))),
    )?;
    families.gauges(
        "daemon_phase",
        "1 for the phase that the daemon is in, 0 for the others",
        each().flat_map(|daemon| {
            Phase::ALL.into_iter().map(move |phase| {
                let labels = [("daemon", daemon.name.clone()), ("phase", phase.as_str().to_owned())];
                (labels, truth(daemon.status.phase == phase))
            })
        }),
    )?;
    families.gauges(
        "daemon_generation",
        "The desired generation of the daemon's settings",
        each().map(|daemon| (of(daemon), number(daemon.generation.unsigned_abs()))),
    )?;
    families.gauges(
        "daemon_observed_generation",
        "The generation of the daemon's settings that was read back last",
        each().map(|daemon| (of(daemon), number(daemon.status.observed_generation.unsigned_abs()))),
    )?;
    families.gauges_in(
        Unit::Seconds,
        "daemon_read_timestamp",
        "When the daemon was read last, as Unix time; absent before it was",
        each()
            .filter_map(|daemon| Some((of(daemon), seconds(daemon.status.effective.as_ref()?.observed_at)))),
    )?;
    counts(snapshot, families)?;
    families.gauges(
        "daemon_drift",
        "1 while settings or partitions differ because someone else changed them",
        each().map(|daemon| {
            let layout = daemon.status.layout.as_ref().is_some_and(|layout| !layout.drift.is_empty());
            (of(daemon), truth(daemon.status.drift.present || layout))
        }),
    )?;
    families.gauges(
        "servers",
        "MPS servers of the daemon by the status that get_server_status gives (ACTIVE, INITIALIZING, FAULT, other)",
        each().flat_map(servers),
    )?;
    families.gauges(
        "clients_waiting",
        "Processes that wait until the clients of another user are gone, by control.log",
        each().map(|daemon| {
            (of(daemon), length(daemon.status.queue.iter().map(|queue| queue.waiting.len()).sum()))
        }),
    )?;
    gpus(snapshot, families)?;
    partitions(snapshot, families)
}

/// Writes the counters of each daemon since the manager started.
fn counts(snapshot: &MetricsSnapshot, families: &mut Families<'_>) -> fmt::Result {
    let each = || snapshot.seen.iter();
    let mut count = |name, help, value: fn(&ObservedDaemon) -> u64| {
        families.counters(name, help, each().map(|daemon| (of(daemon), value(daemon))))
    };
    count(
        "daemon_starts",
        "Control processes that the daemon has had since the manager started",
        |daemon| daemon.status.incarnation,
    )?;
    count(
        "daemon_deaths",
        "Times that the control process was found dead without having been stopped",
        |daemon| daemon.status.deaths,
    )?;
    count("daemon_looks", "Times that the daemon was read, or was to be", |daemon| {
        daemon.status.sessions.polls
    })?;
    count("daemon_looks_failed", "Times that the daemon could not be read", |daemon| {
        daemon.status.sessions.failed
    })?;
    count("control_processes", "Runs of nvidia-cuda-mps-control against the daemon", |daemon| {
        daemon.status.sessions.control_processes
    })?;
    count(
        "control_processes_turned_away",
        "Those of them that the daemon turned away for another caller",
        |daemon| daemon.status.sessions.retried,
    )?;
    count("daemon_drifts", "Times that settings were found changed by someone else", |daemon| {
        daemon.status.drift.count
    })?;
    families.histograms(
        "control_command_duration",
        "Time from a command to its reply, with the time until the daemon accepted it",
        each().map(|daemon| (of(daemon), daemon.commands.took())),
    )?;
    families.counters(
        "control_commands_failed",
        "Commands without a reply, by why: no_daemon, busy (other callers), unresponsive (it hangs), unknown (no reply came), refused, not_sent",
        each().flat_map(|daemon| {
            daemon.commands.failures().map(|(kind, count)| {
                ([("daemon", daemon.name.clone()), ("kind", kind.to_owned())], count)
            })
        }),
    )
}

fn servers(daemon: &ObservedDaemon) -> impl Iterator<Item = (Labels<2>, f64)> + '_ {
    let servers = daemon.status.effective.as_ref().map_or(&[][..], |effective| &effective.servers);
    let count = |wanted: &dyn Fn(&ServerStatus) -> bool| {
        length(servers.iter().filter(|server| wanted(&server.status)).count())
    };
    let mut all: Vec<(String, f64)> =
        SERVER_STATES.iter().map(|state| (state.to_string(), count(&|status| status == state))).collect();
    all.push(("other".to_owned(), count(&|status| !SERVER_STATES.contains(status))));
    all.into_iter().map(|(status, count)| ([("daemon", daemon.name.clone()), ("status", status)], count))
}

/// Parts of GPUs that are devices of their own, with their GPUs.
fn parts(snapshot: &MetricsSnapshot) -> Vec<(Labels<2>, f64)> {
    let of = |part: String, parent: String| ([("gpu", part), ("parent", parent)], 1.0);
    let instances = snapshot.committed.gpus.iter().filter_map(|gpu| {
        let instance = gpu.mig.as_ref()?;
        Some(of(gpu.uuid.to_string(), instance.parent.to_string()))
    });
    let servers = snapshot.seen.iter().filter_map(|daemon| daemon.status.effective.as_ref());
    let devices = servers.flat_map(Effective::mlopart_devices);
    let devices = devices.map(|device| of(device.name().to_string(), device.gpu.to_string()));
    instances.chain(devices).collect()
}

fn gpus(snapshot: &MetricsSnapshot, families: &mut Families<'_>) -> fmt::Result {
    families.gauges(
        "gpu_info",
        "Always 1, with the product name of a GPU that a daemon holds, as it was seen last",
        snapshot
            .committed
            .gpus
            .iter()
            .map(|gpu| ([("gpu", gpu.uuid.to_string()), ("name", gpu.name.clone())], 1.0)),
    )?;
    families.gauges(
        "gpu_part_info",
        "Always 1, with the GPU of a MIG instance or an MLOPart device that a daemon has; gpu_info of an instance has its profile",
        parts(snapshot),
    )?;
    families.gauges_in(
        Unit::Bytes,
        "gpu_memory_total",
        "Memory of the whole GPU, as last reported by the driver; absent where it does not report it",
        snapshot
            .committed
            .gpus
            .iter()
            .filter_map(|gpu| Some(([("gpu", gpu.uuid.to_string())], number(gpu.memory_total?)))),
    )?;
    families.gauges(
        "gpu_missing",
        "1 while the driver does not list a GPU that the daemon holds; absent before its first list",
        snapshot.present.iter().flat_map(|present| {
            snapshot.committed.daemons.iter().flat_map(move |daemon| {
                daemon.spec.gpus.iter().map(move |gpu| {
                    let labels = [("daemon", daemon.name.to_string()), ("gpu", gpu.to_string())];
                    (labels, truth(!present.contains(gpu)))
                })
            })
        }),
    )
}

/// Returns each GPU of which a daemon lists partitions, with that daemon.
fn listed(snapshot: &MetricsSnapshot) -> impl Iterator<Item = (&ObservedDaemon, &GpuPartitions)> {
    snapshot.seen.iter().flat_map(|daemon| {
        let effective = daemon.status.effective.as_ref();
        let partitions = effective.and_then(|effective| effective.partitions.as_ref());
        partitions.into_iter().flatten().map(move |gpu| (daemon, gpu))
    })
}

fn partitions(snapshot: &MetricsSnapshot, families: &mut Families<'_>) -> fmt::Result {
    let on = |daemon: &ObservedDaemon, gpu: &GpuPartitions| {
        [("daemon", daemon.name.clone()), ("gpu", gpu.gpu.to_string())]
    };
    let all: [(&str, &str, Of<GpuPartitions>); 4] = [
        ("gpu_chunks_free", "Chunks of the GPU that a new partition could have, by lspart", |gpu| {
            gpu.free_chunks
        }),
        ("gpu_chunks_used", "Chunks of the GPU in partitions, by lspart", |gpu| gpu.used_chunks),
        (
            "gpu_sms_free",
            "SMs outside partitions by lspart, those that make no whole chunk included",
            |gpu| gpu.free_sms,
        ),
        ("gpu_sms_used", "SMs in partitions, by lspart", |gpu| gpu.used_sms),
    ];
    for (name, help, value) in all {
        let samples = listed(snapshot).map(|(daemon, gpu)| (on(daemon, gpu), f64::from(value(gpu))));
        families.gauges(name, help, samples)?;
    }
    // A partition that no layout names has its ID as its name.
    let named = |daemon: &ObservedDaemon, id: &PartitionId| {
        let layout = daemon.status.layout.as_ref();
        let in_layout = layout
            .and_then(|layout| layout.partitions.iter().find(|partition| partition.id.as_ref() == Some(id)));
        in_layout.map_or_else(|| id.to_string(), |partition| partition.partition.to_string())
    };
    let each = |value: Of<ListedPartition>| {
        listed(snapshot).flat_map(move |(daemon, gpu)| {
            gpu.partitions.iter().map(move |partition| {
                let [name, uuid] = on(daemon, gpu);
                ([name, uuid, ("partition", named(daemon, &partition.id))], f64::from(value(partition)))
            })
        })
    };
    families.gauges(
        "partition_chunks",
        "Chunks of a partition, by lspart",
        each(|partition| partition.chunks),
    )?;
    families.gauges("partition_sms", "SMs of a partition, by lspart", each(|partition| partition.sms))?;
    let clients = each(|partition| u32::try_from(partition.clients.len()).unwrap_or(u32::MAX));
    families.gauges(
        "partition_clients",
        "Connected clients that named the partition in the environment they were started with, by /proc",
        clients,
    )
}
