//! Differences between the desired and the effective settings of a daemon, and those of them that another program must have made.

use super::daemon::{Effective, MemoryReading};
use super::drift::Drifted;
use super::memory::MIB;
use super::plan::Desired;
use super::{MemoryLimit, ThreadPercentage};

/// Value of a setting that another program changed to one that its getter does not tell from the desired one.
pub const CHANGED_BY_OTHERS: &str = "changed by others";

const GIB: u64 = 1024 * MIB;

/// A setting whose effective value differs from the desired one.
#[derive(Debug, Clone, PartialEq)]
pub enum SettingDifference {
    /// The percentage for servers to come.
    DefaultPercentage,
    /// The priority for clients to come.
    DefaultPriority,
    /// The memory limit for servers to come, on the GPU with this ordinal.
    DefaultMemory(usize),
    /// The percentage of the server with this PID.
    ServerPercentage(u32),
    /// The memory limit of the server with this PID on the GPU with this ordinal.
    ServerMemory(u32, usize),
}

impl SettingDifference {
    /// Returns true if it is a default of the daemon, which can be read without a server.
    pub fn is_default(&self) -> bool {
        matches!(self, Self::DefaultPercentage | Self::DefaultPriority | Self::DefaultMemory(_))
    }
}

impl std::fmt::Display for SettingDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::DefaultPercentage => write!(f, "default active thread percentage"),
            Self::DefaultPriority => write!(f, "default client priority"),
            Self::DefaultMemory(ordinal) => write!(f, "default memory limit of device {ordinal}"),
            Self::ServerPercentage(pid) => write!(f, "active thread percentage of server {pid}"),
            Self::ServerMemory(pid, ordinal) => write!(f, "memory limit of server {pid} on device {ordinal}"),
        }
    }
}

/// Returns the settings whose effective value differs from the desired one.
pub fn differences(desired: &Desired, actual: &Effective) -> Vec<SettingDifference> {
    let mut differences = Vec::new();
    if actual.default_active_thread_percentage != Some(desired.percentage) {
        differences.push(SettingDifference::DefaultPercentage);
    }
    if actual.default_priority != Some(desired.priority) {
        differences.push(SettingDifference::DefaultPriority);
    }
    let differs = |readings: &[MemoryReading], ordinal: usize, limit: &Option<MemoryLimit>| {
        readings
            .get(ordinal)
            .is_none_or(|reading| !reading.exact || reading.bytes != limit.map(MemoryLimit::bytes))
    };
    for (ordinal, limit) in desired.memory_limits.iter().enumerate() {
        if differs(&actual.default_memory_limits, ordinal, limit) {
            differences.push(SettingDifference::DefaultMemory(ordinal));
        }
    }
    for server in &actual.servers {
        if server.active_thread_percentage != Some(desired.percentage) {
            differences.push(SettingDifference::ServerPercentage(server.pid));
        }
        for (ordinal, limit) in desired.memory_limits.iter().enumerate() {
            if differs(&server.memory_limits, ordinal, limit) {
                differences.push(SettingDifference::ServerMemory(server.pid, ordinal));
            }
        }
    }
    differences
}

/// Returns those differences that another program must have made, with the values that were read.
///
/// A memory limit that is merely not known exactly is not among them: the getter prints whole GiB, and the rest is unknown.
pub fn drifted(
    desired: &Desired,
    actual: &Effective,
    differences: &[SettingDifference],
) -> Vec<(SettingDifference, Drifted)> {
    differences
        .iter()
        .filter_map(|difference| {
            let (desired, read) = values(desired, actual, difference)?;
            Some((difference.clone(), Drifted { setting: difference.to_string(), desired, read }))
        })
        .collect()
}

fn values(desired: &Desired, actual: &Effective, difference: &SettingDifference) -> Option<(String, String)> {
    let percent = |read: Option<ThreadPercentage>| {
        (
            show(Some(desired.percentage)),
            read.map_or_else(|| CHANGED_BY_OTHERS.to_owned(), |read| show(Some(read))),
        )
    };
    let server = |pid: u32| actual.servers.iter().find(|server| server.pid == pid);
    match *difference {
        SettingDifference::DefaultPercentage => Some(percent(actual.default_active_thread_percentage)),
        SettingDifference::DefaultPriority => {
            Some((show(Some(desired.priority)), show(actual.default_priority)))
        }
        SettingDifference::ServerPercentage(pid) => Some(percent(server(pid)?.active_thread_percentage)),
        SettingDifference::DefaultMemory(ordinal) => memory(desired, &actual.default_memory_limits, ordinal),
        SettingDifference::ServerMemory(pid, ordinal) => {
            memory(desired, &server(pid)?.memory_limits, ordinal)
        }
    }
}

fn memory(desired: &Desired, readings: &[MemoryReading], ordinal: usize) -> Option<(String, String)> {
    let limit = desired.memory_limits.get(ordinal).copied().flatten();
    let reading = readings.get(ordinal)?;
    let bytes = limit.map(MemoryLimit::bytes);
    let could_be = !reading.exact
        && reading.unreadable.is_none()
        && reading.bytes.is_some_and(|read| bytes.is_some_and(|bytes| bytes / GIB == read / GIB));
    if could_be {
        return None;
    }
    let read = match (&reading.unreadable, reading.bytes) {
        (Some(text), _) => text.clone(),
        (None, Some(bytes)) => mib(bytes),
        (None, None) => "none".to_owned(),
    };
    Some((bytes.map_or_else(|| "none".to_owned(), mib), read))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

fn show<T: serde::Serialize>(value: Option<T>) -> String {
    match value.map(|value| serde_json::to_value(value)) {
        Some(Ok(serde_json::Value::String(text))) => text,
        Some(Ok(value)) => value.to_string(),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DaemonName, GpuUuid, Priority};

    fn uuid() -> GpuUuid {
        GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
    }

    fn desired_with(limit: Option<&str>) -> Desired {
        let daemon = serde_json::from_value(serde_json::json!({"gpus": [uuid()]})).expect("spec");
        let name = DaemonName::parse("gpu0").expect("name");
        let mut desired = crate::plan::desired(&name, 1, &daemon, &[], &[], 0, None).expect("plan");
        desired.memory_limits = vec![limit.map(|limit| MemoryLimit::parse(limit).expect("limit"))];
        desired
    }

    fn actual(bytes: Option<u64>, exact: bool, unreadable: Option<&str>) -> Effective {
        Effective {
            observed_at: 0,
            control_processes: 1,
            default_active_thread_percentage: Some(ThreadPercentage::FULL),
            default_priority: Some(Priority::Normal),
            default_memory_limits: vec![MemoryReading {
                gpu: uuid(),
                bytes,
                exact,
                unreadable: unreadable.map(str::to_owned),
                in_server_log: None,
            }],
            servers: Vec::new(),
            partitions: None,
        }
    }

    fn drifted_words(desired: &Desired, actual: &Effective) -> Vec<String> {
        let differences = differences(desired, actual);
        drifted(desired, actual, &differences).iter().map(|(_, drifted)| drifted.to_string()).collect()
    }

    #[test]
    fn drifted_value_is_named_with_desired_one() {
        let desired = desired_with(Some("4G"));
        let mut changed = actual(Some(1 << 30), true, None);
        changed.default_priority = Some(Priority::BelowNormal);
        changed.default_active_thread_percentage =
            Some(serde_json::from_value(serde_json::json!(30.0)).expect("30"));
        assert_eq!(
            drifted_words(&desired, &changed),
            [
                "default active thread percentage is 30 % instead of 100 %",
                "default client priority is below_normal instead of normal",
                "default memory limit of device 0 is 1024 MiB instead of 4096 MiB",
            ]
        );
        assert_eq!(
            drifted_words(&desired, &actual(None, true, None)),
            ["default memory limit of device 0 is none instead of 4096 MiB"]
        );
        assert_eq!(
            drifted_words(&desired_with(None), &actual(None, false, Some("17179869183G"))),
            ["default memory limit of device 0 is 17179869183G instead of none"]
        );
    }

    #[test]
    fn unconfirmed_limit_drifts_only_by_whole_gib() {
        let desired = desired_with(Some("1536M"));
        assert_eq!(differences(&desired, &actual(Some(1 << 30), false, None)).len(), 1, "written once more");
        assert!(drifted_words(&desired, &actual(Some(1 << 30), false, None)).is_empty());
        assert_eq!(drifted_words(&desired, &actual(Some(2 << 30), false, None)).len(), 1);
    }
}
