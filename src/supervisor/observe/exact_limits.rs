//! The exact value of a memory limit, of which its getter shows only part.
//!
//! From 1 GiB on the getter prints whole GiB, rounded down: `1536M` reads back as `1G`, and so does `1025M` (recording 12). A
//! server writes the exact bytes to server.log when it takes a limit; for a default limit the getter is the only source. A
//! value is therefore exact if server.log or this manager's last write vouches for it and the getter does not contradict it.
//! Any other value counts as unknown and is written once, after which it is known. So does a limit or a percentage, which is
//! printed with one decimal, that another program has set since, by control.log, and whose getter shows the desired value.

use std::collections::BTreeMap;

use crate::domain::daemon::{Effective, MemoryReading};
use crate::domain::difference::{CHANGED_BY_OTHERS, SettingDifference};
use crate::domain::memory::MIB;
use crate::domain::plan::Desired;
use crate::domain::{MemoryLimit, ThreadPercentage};

const GIB: u64 = 1024 * MIB;

/// Limits that this manager, or an earlier one, wrote to the present control process and to its servers, by the GPU's ordinal,
/// each confirmed by a poll.
#[derive(Debug, Default)]
pub(crate) struct WrittenLimits(BTreeMap<usize, MemoryLimit>);

/// Exact bytes that servers wrote to server.log, the latest for each server and GPU.
pub(crate) type LoggedLimits = BTreeMap<(u32, usize), u64>;

impl WrittenLimits {
    /// Forgets everything, for another control process.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes over the limits that an earlier manager had read back from the control process that was found.
    pub(crate) fn adopt(&mut self, limits: &[Option<MemoryLimit>]) {
        let exact = limits.iter().enumerate().filter_map(|(ordinal, limit)| Some((ordinal, (*limit)?)));
        self.0 = exact.collect();
    }

    /// Notes that these settings are about to be written: nothing is known of them until a poll has seen them.
    pub(crate) fn begin(&mut self, wrong: &[SettingDifference]) {
        for ordinal in wrong.iter().filter_map(ordinal) {
            self.0.remove(&ordinal);
        }
    }

    /// Notes that the poll after the write saw the daemon.
    pub(crate) fn done(&mut self, wrong: &[SettingDifference], desired: &Desired) {
        for ordinal in wrong.iter().filter_map(ordinal) {
            let limit = desired.memory_limits.get(ordinal).copied().flatten();
            self.0.extend(limit.map(|limit| (ordinal, limit)));
        }
    }

    /// Replaces the printed limits by the exact ones, where these are known. A setting that another program has set since, as
    /// `changed` says, is unknown while its getter shows this manager's value: the desired `percentage`, or a limit it wrote.
    pub(crate) fn resolve(
        &self,
        effective: &mut Effective,
        logged: &LoggedLimits,
        percentage: ThreadPercentage,
        changed: impl Fn(SettingDifference) -> bool,
    ) {
        let doubt = |read: &mut Option<ThreadPercentage>, setting: SettingDifference| {
            read.take_if(|read| *read == percentage && changed(setting));
        };
        doubt(&mut effective.default_active_thread_percentage, SettingDifference::DefaultPercentage);
        for (ordinal, reading) in effective.default_memory_limits.iter_mut().enumerate() {
            self.resolve_one(reading, ordinal, None, changed(SettingDifference::DefaultMemory(ordinal)));
        }
        for server in &mut effective.servers {
            doubt(&mut server.active_thread_percentage, SettingDifference::ServerPercentage(server.pid));
            for (ordinal, reading) in server.memory_limits.iter_mut().enumerate() {
                let logged_bytes = logged.get(&(server.pid, ordinal)).copied();
                let theirs = changed(SettingDifference::ServerMemory(server.pid, ordinal));
                self.resolve_one(reading, ordinal, logged_bytes, theirs);
                reading.in_server_log = reading.bytes.map(|bytes| logged_bytes == Some(bytes));
            }
        }
    }

    fn resolve_one(&self, reading: &mut MemoryReading, ordinal: usize, logged: Option<u64>, changed: bool) {
        let Some(printed) = reading.bytes else { return };
        let vouched = |bytes: &u64| printed_for(*bytes) == printed;
        let ours = self.0.get(&ordinal).copied().map(MemoryLimit::bytes).filter(vouched);
        if let Some(bytes) = logged.filter(vouched).or(ours.filter(|_| !changed)) {
            reading.bytes = Some(bytes);
        } else if printed >= GIB {
            reading.exact = false;
            reading.unreadable = ours.map(|_| CHANGED_BY_OTHERS.to_owned());
        }
    }
}

/// Returns the bytes that the getter prints for a limit.
fn printed_for(bytes: u64) -> u64 {
    if bytes < GIB { bytes } else { bytes / GIB * GIB }
}

fn ordinal(difference: &SettingDifference) -> Option<usize> {
    match difference {
        SettingDifference::DefaultMemory(ordinal) | SettingDifference::ServerMemory(_, ordinal) => {
            Some(*ordinal)
        }
        SettingDifference::DefaultPercentage
        | SettingDifference::DefaultPriority
        | SettingDifference::ServerPercentage(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    fn reading(mib: u64) -> MemoryReading {
        MemoryReading {
            gpu: h200(0).uuid,
            bytes: Some(mib * MIB),
            exact: true,
            unreadable: None,
            in_server_log: None,
        }
    }

    fn limit(mib: u64) -> MemoryLimit {
        MemoryLimit::from_mib(mib).expect("a limit")
    }

    fn resolve(written: Option<u64>, mib: u64, logged: Option<u64>, changed: bool) -> MemoryReading {
        let mut limits = WrittenLimits::default();
        limits.adopt(&[written.map(limit)]);
        let mut reading = reading(mib);
        limits.resolve_one(&mut reading, 0, logged.map(|mib| mib * MIB), changed);
        MemoryReading { bytes: reading.bytes.map(|bytes| bytes / MIB), ..reading }
    }

    fn resolved(written: Option<u64>, mib: u64, logged: Option<u64>) -> (Option<u64>, bool) {
        let reading = resolve(written, mib, logged, false);
        (reading.bytes, reading.exact)
    }

    fn doubted(written: u64, mib: u64, logged: Option<u64>) -> (Option<u64>, bool, bool) {
        let reading = resolve(Some(written), mib, logged, true);
        (reading.bytes, reading.exact, reading.unreadable.is_some())
    }

    #[test]
    fn limit_from_server_log_is_exact() {
        assert_eq!(resolved(None, 1024, Some(1536)), (Some(1536), true));
        assert_eq!(resolved(Some(1200), 1024, Some(1536)), (Some(1536), true), "later than our write");
    }

    #[test]
    fn own_write_is_exact_until_getter_differs() {
        assert_eq!(resolved(Some(1536), 1024, None), (Some(1536), true));
        assert_eq!(resolved(Some(1536), 2048, None), (Some(2048), false));
    }

    #[test]
    fn limit_is_unknown_while_it_is_written() {
        let mut written = WrittenLimits::default();
        written.adopt(&[Some(limit(1536)), Some(limit(1025))]);
        written.begin(&[SettingDifference::DefaultMemory(0)]);
        assert_eq!(written.0, BTreeMap::from([(1, limit(1025))]));
    }

    #[test]
    fn unconfirmed_whole_gib_limit_is_not_exact() {
        assert_eq!(resolved(None, 4096, None), (Some(4096), false));
        assert_eq!(resolved(None, 1023, None), (Some(1023), true), "below 1 GiB the getter prints all of it");
        assert_eq!(resolved(None, 4096, Some(8192)), (Some(4096), false), "an older word");
    }

    #[test]
    fn foreign_value_is_unknown_where_getter_rounds() {
        assert_eq!(doubted(1025, 1024, None), (Some(1024), false, true));
        assert_eq!(doubted(1025, 1024, Some(1025)), (Some(1025), true, false), "server.log has it");
        assert_eq!(doubted(1025, 2048, None), (Some(2048), false, false), "the getter shows another");
        assert_eq!(doubted(512, 512, None), (Some(512), true, false), "the getter shows all of it");
    }
}
