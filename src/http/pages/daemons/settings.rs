//! Settings: desired values beside those read back.

use crate::domain::GpuUuid;
use crate::domain::daemon::{Effective, MemoryReading};
use crate::domain::plan::Desired;
use crate::domain::{MemoryLimit, ThreadPercentage};
use crate::http::pages::format::{Amount, Badge, Tone, or};
use crate::http::pages::gpus::GpuDisplayNames;
use crate::words::priority;

/// One setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DaemonSettingRow {
    /// Its name.
    pub(super) name: String,
    pub(super) desired: String,
    pub(super) read: String,
    agrees: Option<bool>,
}

impl DaemonSettingRow {
    /// Returns true if the value read back differs from the desired one.
    pub(super) fn differs(&self) -> bool {
        self.agrees == Some(false)
    }

    /// Its state; `None` if that is unknown.
    pub(super) fn badge(&self) -> Badge {
        match self.agrees {
            Some(true) => Badge::new("as desired", Tone::Good),
            Some(false) => Badge::new("differs", Tone::Warn),
            None => Badge::of("unknown"),
        }
    }
}

/// All settings of a daemon: defaults for new servers, and those of each running server.
pub(super) fn of(
    desired: Option<&Desired>,
    effective: Option<&Effective>,
    gpus: &GpuDisplayNames,
) -> Vec<DaemonSettingRow> {
    let Some(desired) = desired else { return Vec::new() };
    let percentage = format!("{} %", desired.percentage);
    let setting = |name: String, desired: &str, observed: Option<String>| DaemonSettingRow {
        name,
        desired: desired.to_owned(),
        agrees: observed.as_ref().map(|observed| observed == desired),
        read: or("not read yet", observed),
    };
    let percent = |value: Option<ThreadPercentage>| value.map(|value| format!("{value} %"));
    let default_percentage = effective.and_then(|effective| effective.default_active_thread_percentage);
    let default_priority = effective.and_then(|effective| effective.default_priority);
    let mut settings = vec![
        setting("Active thread percentage, default".into(), &percentage, percent(default_percentage)),
        setting(
            "Client priority, default".into(),
            priority(desired.priority),
            default_priority.map(|seen| priority(seen).to_owned()),
        ),
    ];
    let limits = |of: &str, readings: Option<&[MemoryReading]>| -> Vec<DaemonSettingRow> {
        let limit = |(ordinal, gpu): (usize, &GpuUuid)| {
            let limit = desired.memory_limits.get(ordinal).copied().flatten();
            let reading = readings.and_then(|readings| readings.get(ordinal));
            memory(format!("Device memory limit on {}, {of}", gpus.name(gpu)), limit, reading)
        };
        desired.gpus.iter().enumerate().map(limit).collect()
    };
    settings.extend(limits("default", effective.map(|effective| effective.default_memory_limits.as_slice())));
    for server in effective.iter().flat_map(|effective| &effective.servers) {
        let of = format!("server {}", server.pid);
        settings.push(setting(
            format!("Active thread percentage, {of}"),
            &percentage,
            percent(server.active_thread_percentage),
        ));
        settings.extend(limits(&of, Some(&server.memory_limits)));
    }
    settings
}

fn memory(name: String, limit: Option<MemoryLimit>, reading: Option<&MemoryReading>) -> DaemonSettingRow {
    const GIB: u64 = 1 << 30;
    let bytes = limit.map(MemoryLimit::bytes);
    let amount = |bytes: Option<u64>| or("none", bytes.map(Amount));
    let desired = amount(bytes);
    let Some(reading) = reading else {
        return DaemonSettingRow { name, desired, read: "not read yet".to_owned(), agrees: None };
    };
    if let Some(text) = &reading.unreadable {
        return DaemonSettingRow { name, desired, read: text.clone(), agrees: Some(false) };
    }
    // Without another source there is only the daemon's reply, in whole GiB rounded down.
    let (read, agrees) = match reading.bytes {
        Some(observed) if !reading.exact => (
            format!("{} or a part of a GiB more", Amount(observed)),
            bytes.map(|bytes| bytes / GIB) == Some(observed / GIB),
        ),
        observed => (amount(observed), observed == bytes),
    };
    DaemonSettingRow { name, desired, read, agrees: Some(agrees) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(bytes: Option<u64>, exact: bool, unreadable: Option<&str>) -> MemoryReading {
        MemoryReading {
            gpu: GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("a GPU"),
            bytes,
            exact,
            unreadable: unreadable.map(str::to_owned),
            in_server_log: None,
        }
    }

    #[test]
    fn rounded_limit_agrees_within_its_gib() {
        let limit = Some(MemoryLimit::parse("1536M").expect("a limit"));
        let setting = |of: MemoryReading| memory("x".into(), limit, Some(&of));
        let rounded = setting(reading(Some(1 << 30), false, None));
        assert!(!rounded.differs());
        assert_eq!(
            (rounded.desired.as_str(), rounded.read.as_str()),
            ("1.5 GiB", "1 GiB or a part of a GiB more")
        );
        assert!(setting(reading(Some(2 << 30), false, None)).differs());
        assert!(!setting(reading(Some(1536 << 20), true, None)).differs());
        assert!(setting(reading(Some(1 << 30), true, None)).differs());
        assert!(setting(reading(None, true, None)).differs());
        assert!(setting(reading(None, false, Some("0G"))).differs());
        let unread = memory("x".into(), None, None);
        assert_eq!((unread.desired.as_str(), unread.badge().word), ("none", "unknown"));
    }
}
