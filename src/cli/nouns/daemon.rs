use super::{DAEMONS, Noun};
use crate::cli::output::{ListField, TableCell, age, word};
use crate::domain::count::counted;
use crate::domain::daemon::DaemonStatus;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::provisioning::ProvisioningStatus;
use crate::domain::{Priority, rfc3339};
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;
use crate::words::{daemon as words, gpu};

type Field = ListField<DaemonView>;

/// Control daemons.
pub(in crate::cli) static DAEMON: Noun<DaemonView> = Noun {
    candidate: |daemon| {
        let phase = daemon.status.as_ref().map_or_else(String::new, |status| word(status.phase));
        Some((daemon.name.to_string(), phase))
    },
    sort: |daemons| daemons.sort_by_cached_key(|daemon| daemon.name.natural_key()),
    conditions: |daemon| daemon.status.as_ref().map_or(&[], |status| &status.conditions),
    incidents: Some(|daemon| {
        // Not those of an earlier daemon of that name.
        let since = rfc3339::format(daemon.created_at);
        vec![("daemon", Some(daemon.name.to_string())), ("since", Some(since))]
    }),
    ..Noun::new(
        ["daemon", "daemons", DAEMONS],
        |daemon| daemon.name.to_string(),
        &[
            Field::both("DAEMON", "Daemon", |daemon| daemon.name.as_str().into()),
            Field::both("STATE", "State", |daemon| {
                TableCell::state(
                    &daemon.status.as_ref().map_or_else(|| "-".into(), |status| word(status.phase)),
                )
            }),
            Field::detail("Desired state", |daemon| word(daemon.spec.desired_state).into()),
            Field::column("PID", |daemon| of_status(daemon, |status| status.pid)).rank(4),
            Field::both("MODE", "Mode", |daemon| word(daemon.spec.mode).into()).rank(5),
            Field::column("GPUS", |daemon| daemon.spec.gpus.len().to_string().into()).rank(2),
            Field::named("GPUs", |daemon, names| {
                TableCell::joined(daemon.spec.gpus.iter().map(|gpu| names.name(gpu)))
            }),
            Field::detail("PID", |daemon| of_status(daemon, |status| status.pid)),
            Field::both("SERVER", "Server", |daemon| TableCell::joined(words::servers(daemon))).rank(3),
            Field::detail("MLOPart devices", mlopart).if_known(),
            Field::detail("Cordoned", |daemon| TableCell::state(yes_or_no(!daemon.spec.schedulable))),
            Field::detail("Admission", |daemon| words::admission(daemon).into()),
            Field::named("Memory limits", |daemon, names| {
                let sum = |gpu: &GpuView| match daemon.spec.gpus.len() {
                    1 => gpu::limits(gpu),
                    _ => format!("{}: {}", names.name(&gpu.uuid), gpu::limits(gpu)),
                };
                TableCell::listed(daemon.spec.gpus.iter().filter_map(|uuid| names.find(uuid)).map(sum))
            }),
            Field::detail("Several users", |daemon| yes_or_no(daemon.spec.multi_user).into()),
            Field::named("Default memory limit", |daemon, names| {
                let limit = daemon.spec.defaults.device_memory_limit.as_ref();
                TableCell::optional(limit.map(|limit| words::memory_limit(limit, |gpu| names.name(gpu))))
            }),
            Field::detail("Default percentage", |daemon| {
                TableCell::optional(daemon.spec.defaults.active_thread_percentage)
            }),
            Field::detail("Default priority", |daemon| {
                TableCell::optional(daemon.spec.defaults.priority.map(Priority::as_str))
            }),
            Field::detail("Provisioning", |daemon| words::provisioning(daemon).into()),
            Field::rows(shares),
            Field::detail("Settings drift", |daemon| word(daemon.spec.drift_policy).into()),
            Field::column("LAYOUT", |daemon| layout(daemon, " v")).rank(1),
            Field::detail("Layout", |daemon| layout(daemon, " version ")).if_known(),
            Field::rows(|daemon| {
                let layout = daemon.status.as_ref().and_then(|status| status.layout.as_ref());
                let partitions = layout.into_iter().flat_map(|layout| &layout.partitions);
                let row = |partition: &PartitionStatus| {
                    let sms = partition.sms.map_or_else(String::new, |sms| format!(", {sms} SMs"));
                    ("Partition", format!("{}{sms}", partition.partition))
                };
                partitions.map(row).collect()
            }),
            Field::detail("Pipe directory", pipe_directory).if_known(),
            Field::detail("Log directory", |daemon| {
                of_status(daemon, |status| Some(status.log_directory.clone()))
            })
            .if_known(),
            Field::both("AGE", "Age", |daemon| age(daemon.created_at).into()).rank(6),
            Field::wide("GENERATION", |daemon| {
                let observed = daemon.status.as_ref().map_or(0, |status| status.observed_generation);
                format!("{observed}/{}", daemon.generation).into()
            }),
            Field::wide("SCHEDULABLE", |daemon| {
                TableCell::state(if daemon.spec.schedulable { "yes" } else { "cordoned" })
            }),
            Field::wide("MLOPART", mlopart),
            Field::wide("UUIDS", |daemon| TableCell::joined(&daemon.spec.gpus)),
            Field::wide("PIPE DIRECTORY", pipe_directory),
        ],
    )
};

fn of_status<V: std::fmt::Display>(
    daemon: &DaemonView,
    value: impl Fn(&DaemonStatus) -> Option<V>,
) -> TableCell {
    TableCell::optional(daemon.status.as_ref().and_then(value))
}

fn pipe_directory(daemon: &DaemonView) -> TableCell {
    of_status(daemon, |status| Some(status.pipe_directory.clone()))
}

fn mlopart(daemon: &DaemonView) -> TableCell {
    TableCell::optional(daemon.spec.mlopart.then_some("yes"))
}

fn yes_or_no(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn layout(daemon: &DaemonView, version: &str) -> TableCell {
    let layout = daemon.spec.layout.as_ref();
    TableCell::optional(layout.map(|layout| format!("{}{version}{}", layout.name, layout.version)))
}

/// Returns the number of clients that provisioning divides by, and the share of each tenant.
fn shares(daemon: &DaemonView) -> Vec<(&'static str, String)> {
    let status = daemon.status.as_ref().and_then(|status| status.provisioning.as_ref());
    let expected = daemon.spec.provisioning.expected_clients.map(u64::from);
    let capacity = status.and_then(|status| status.capacity).or(expected);
    let shares = status.map(ProvisioningStatus::shares_in_words).unwrap_or_default();
    let capacity = capacity.map(|capacity| ("Capacity", counted(capacity, "client")));
    capacity.into_iter().chain(shares.into_iter().map(|share| ("Share", share))).collect()
}
