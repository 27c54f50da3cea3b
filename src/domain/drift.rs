//! Drift: settings that were in force and are not any more, since another program wrote to the daemon.

use serde::{Deserialize, Serialize};

use super::daemon::{Effective, MemoryReading};
use super::memory::MIB;
use super::plan::{Desired, Difference};
use super::{MemoryLimit, ThreadPercentage};

const GIB: u64 = 1024 * MIB;

/// What to do about settings that another program changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftPolicy {
    /// They are put back, and it is said.
    #[default]
    Repair,
    /// They stay, the daemon is not ready, and it is said; the next change of its spec or its tenants writes them all.
    Report,
}

/// One setting that was read otherwise than it had been read back before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Drifted {
    /// Which setting.
    pub setting: String,
    /// What it should be.
    pub wanted: String,
    /// What was read.
    pub read: String,
}

/// Drift of a daemon since this manager took it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct DriftStatus {
    /// How many times settings were found changed.
    pub count: u64,
    /// When that was last, in unix milliseconds.
    pub last_at: Option<i64>,
    /// What was found then.
    pub last: Vec<Drifted>,
    /// The last command of another program that changes something, by control.log: a hint, since anybody may write there.
    pub command: Option<String>,
    /// Whether it is so at the moment.
    pub present: bool,
}

impl std::fmt::Display for Drifted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is {} instead of {}", self.setting, self.read, self.wanted)
    }
}

/// Of these differences those that another program must have made, with what was read.
///
/// A memory limit that is only not known exactly is none: the getter prints whole GiB, and nobody vouches for the rest.
pub fn drifted(
    desired: &Desired,
    seen: &Effective,
    differences: &[Difference],
) -> Vec<(Difference, Drifted)> {
    differences
        .iter()
        .filter_map(|difference| {
            let (wanted, read) = values(desired, seen, difference)?;
            Some((difference.clone(), Drifted { setting: difference.to_string(), wanted, read }))
        })
        .collect()
}

fn values(desired: &Desired, seen: &Effective, difference: &Difference) -> Option<(String, String)> {
    let percent = |read: Option<ThreadPercentage>| {
        (
            show(Some(desired.percentage)),
            read.map_or_else(|| "not to be read".to_owned(), |read| show(Some(read))),
        )
    };
    let server = |pid: u32| seen.servers.iter().find(|server| server.pid == pid);
    match *difference {
        Difference::DefaultPercentage => Some(percent(seen.default_active_thread_percentage)),
        Difference::DefaultPriority => Some((show(Some(desired.priority)), show(seen.default_priority))),
        Difference::ServerPercentage(pid) => Some(percent(server(pid)?.active_thread_percentage)),
        Difference::DefaultMemory(ordinal) => memory(desired, &seen.default_memory_limits, ordinal),
        Difference::ServerMemory(pid, ordinal) => memory(desired, &server(pid)?.memory_limits, ordinal),
    }
}

fn memory(desired: &Desired, readings: &[MemoryReading], ordinal: usize) -> Option<(String, String)> {
    let wanted = desired.memory_limits.get(ordinal).copied().flatten();
    let reading = readings.get(ordinal)?;
    let bytes = wanted.map(MemoryLimit::bytes);
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
    use crate::domain::plan::differences;
    use crate::domain::{DaemonName, GpuUuid, Priority};

    fn uuid() -> GpuUuid {
        GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid")
    }

    fn wanted(limit: Option<&str>) -> Desired {
        let daemon = serde_json::from_value(serde_json::json!({"gpus": [uuid()]})).expect("spec");
        let name = DaemonName::parse("gpu0").expect("name");
        let mut desired = crate::domain::plan::desired(&name, 1, &daemon, &[], &[], 0, None).expect("plan");
        desired.memory_limits = vec![limit.map(|limit| MemoryLimit::parse(limit).expect("limit"))];
        desired
    }

    fn seen(bytes: Option<u64>, exact: bool, unreadable: Option<&str>) -> Effective {
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

    fn found(desired: &Desired, seen: &Effective) -> Vec<String> {
        let differences = differences(desired, seen);
        drifted(desired, seen, &differences).iter().map(|(_, drifted)| drifted.to_string()).collect()
    }

    #[test]
    fn drifted_value_is_named_with_desired_one() {
        let desired = wanted(Some("4G"));
        let mut other = seen(Some(1 << 30), true, None);
        other.default_priority = Some(Priority::BelowNormal);
        other.default_active_thread_percentage =
            Some(serde_json::from_value(serde_json::json!(30.0)).expect("30"));
        assert_eq!(
            found(&desired, &other),
            [
                "default active thread percentage is 30.0 instead of 100.0",
                "default client priority is below_normal instead of normal",
                "default memory limit of device 0 is 1024 MiB instead of 4096 MiB",
            ]
        );
        assert_eq!(
            found(&desired, &seen(None, true, None)),
            ["default memory limit of device 0 is none instead of 4096 MiB"]
        );
        assert_eq!(
            found(&wanted(None), &seen(None, false, Some("17179869183G"))),
            ["default memory limit of device 0 is 17179869183G instead of none"]
        );
    }

    #[test]
    fn unconfirmed_limit_drifts_only_by_whole_gib() {
        let desired = wanted(Some("1536M"));
        assert_eq!(differences(&desired, &seen(Some(1 << 30), false, None)).len(), 1, "written once more");
        assert!(found(&desired, &seen(Some(1 << 30), false, None)).is_empty());
        assert_eq!(found(&desired, &seen(Some(2 << 30), false, None)).len(), 1);
    }
}
