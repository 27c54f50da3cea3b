//! The exact value of a memory limit, of which its getter shows only part.
//!
//! From 1 GiB on the getter prints whole GiB, rounded down: `1536M` reads back as `1G`, and so does `1025M` (recording 12). A
//! server writes the exact bytes to server.log when it takes a limit; for a default limit the getter is the only source. A
//! value is therefore exact if server.log, this manager's last write or a later command of another program in control.log
//! vouches for it and the getter does not contradict it. Any other value counts as unknown and is written once, after which
//! it is known. A percentage is printed with one decimal: a percentage of another program that has more decimals counts as
//! unknown too.

use std::collections::BTreeMap;

use super::external_writes::{ExternalLimit, ExternalWrites};
use crate::domain::MemoryLimit;
use crate::domain::daemon::{Effective, MemoryReading};
use crate::domain::difference::SettingDifference;
use crate::domain::memory::MIB;
use crate::domain::plan::Desired;

const GIB: u64 = 1024 * MIB;

/// Key of a limit: of future servers (`None`) or of the server with this PID, on the GPU with this ordinal.
type Key = (Option<u32>, usize);

/// Limit that this driver wrote.
#[derive(Debug, Clone, Copy)]
enum LimitWrite {
    /// No poll has seen the daemon since the write began.
    Begun,
    /// A poll has seen the daemon since; `None` if the write removed the limit.
    Done(Option<MemoryLimit>),
}

/// Limits that this driver wrote to the present control process, each confirmed by a poll.
#[derive(Debug, Default)]
pub(crate) struct WrittenLimits {
    limits: BTreeMap<Key, LimitWrite>,
    /// Limits that an earlier manager had read back from this process; they apply where `limits` has no entry.
    adopted: Vec<Option<MemoryLimit>>,
}

/// Exact bytes that servers wrote to server.log, the latest for each server and GPU.
pub(crate) type LoggedLimits = BTreeMap<(u32, usize), u64>;

impl WrittenLimits {
    /// Forgets everything, for another control process.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Takes over the limits that an earlier manager had read back from the control process that was found.
    pub(crate) fn adopt(&mut self, limits: Vec<Option<MemoryLimit>>) {
        *self = Self { limits: BTreeMap::new(), adopted: limits };
    }

    fn get(&self, key: Key) -> Option<MemoryLimit> {
        match self.limits.get(&key) {
            Some(LimitWrite::Done(limit)) => *limit,
            Some(LimitWrite::Begun) => None,
            None => self.adopted.get(key.1).copied().flatten(),
        }
    }

    /// Notes that these settings are about to be written: nothing is known of them until a poll has seen them.
    pub(crate) fn begin(&mut self, wrong: &[SettingDifference]) {
        for key in wrong.iter().filter_map(key) {
            self.limits.insert(key, LimitWrite::Begun);
        }
    }

    /// Notes that the poll after the write saw the daemon.
    pub(crate) fn done(&mut self, wrong: &[SettingDifference], desired: &Desired) {
        for key in wrong.iter().filter_map(key) {
            let limit = desired.memory_limits.get(key.1).copied().flatten();
            self.limits.insert(key, LimitWrite::Done(limit));
        }
    }

    /// Replaces the printed values by the exact ones, where these are known.
    pub(crate) fn resolve(&self, seen: &mut Effective, logged: &LoggedLimits, others: &ExternalWrites) {
        if others.hides_decimals(&SettingDifference::DefaultPercentage) {
            seen.default_active_thread_percentage = None;
        }
        for (ordinal, reading) in seen.default_memory_limits.iter_mut().enumerate() {
            let theirs = others.memory(&SettingDifference::DefaultMemory(ordinal));
            self.resolve_one(reading, (None, ordinal), None, theirs);
        }
        for server in &mut seen.servers {
            if others.hides_decimals(&SettingDifference::ServerPercentage(server.pid)) {
                server.active_thread_percentage = None;
            }
            for (ordinal, reading) in server.memory_limits.iter_mut().enumerate() {
                let logged_bytes = logged.get(&(server.pid, ordinal)).copied();
                let theirs = others.memory(&SettingDifference::ServerMemory(server.pid, ordinal));
                self.resolve_one(reading, (Some(server.pid), ordinal), logged_bytes, theirs);
                reading.in_server_log = reading.bytes.map(|bytes| logged_bytes == Some(bytes));
            }
        }
    }

    /// Determines one exact limit. `theirs` is the value that another program has written since this manager's last write.
    fn resolve_one(
        &self,
        reading: &mut MemoryReading,
        key: Key,
        logged: Option<u64>,
        theirs: Option<ExternalLimit>,
    ) {
        let Some(printed) = reading.bytes else { return };
        let ours = match theirs {
            Some(ExternalLimit(bytes)) => bytes,
            None => self.get(key).map(MemoryLimit::bytes),
        };
        let known = logged.filter(|bytes| printed_for(*bytes) == printed);
        let known = known.or_else(|| ours.filter(|bytes| printed_for(*bytes) == printed));
        match known {
            Some(bytes) => reading.bytes = Some(bytes),
            None => reading.exact = printed < GIB,
        }
    }
}

/// Returns the bytes that the getter prints for a limit.
fn printed_for(bytes: u64) -> u64 {
    if bytes < GIB { bytes } else { bytes / GIB * GIB }
}

fn key(difference: &SettingDifference) -> Option<Key> {
    match difference {
        SettingDifference::DefaultMemory(ordinal) => Some((None, *ordinal)),
        SettingDifference::ServerMemory(server, ordinal) => Some((Some(*server), *ordinal)),
        SettingDifference::DefaultPercentage
        | SettingDifference::DefaultPriority
        | SettingDifference::ServerPercentage(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::GpuUuid;

    fn reading(mib: u64) -> MemoryReading {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        MemoryReading { gpu, bytes: Some(mib * MIB), exact: true, unreadable: None, in_server_log: None }
    }

    fn resolved(written: &[(Key, u64)], mib: u64, key: Key, logged: Option<u64>) -> (Option<u64>, bool) {
        let limits = written
            .iter()
            .map(|(key, mib)| (*key, LimitWrite::Done(Some(MemoryLimit::from_mib(*mib).expect("a limit")))))
            .collect();
        let mut reading = reading(mib);
        WrittenLimits { limits, adopted: Vec::new() }.resolve_one(
            &mut reading,
            key,
            logged.map(|mib| mib * MIB),
            None,
        );
        (reading.bytes.map(|bytes| bytes / MIB), reading.exact)
    }

    const SERVER: Key = (Some(7), 0);
    const DEFAULT: Key = (None, 0);

    #[test]
    fn limit_from_server_log_is_exact() {
        assert_eq!(resolved(&[], 1024, SERVER, Some(1536)), (Some(1536), true));
        assert_eq!(
            resolved(&[(SERVER, 1200)], 1024, SERVER, Some(1536)),
            (Some(1536), true),
            "later than our write"
        );
    }

    #[test]
    fn own_write_is_exact_until_getter_differs() {
        assert_eq!(resolved(&[(DEFAULT, 1536)], 1024, DEFAULT, None), (Some(1536), true));
        assert_eq!(resolved(&[(DEFAULT, 1536)], 2048, DEFAULT, None), (Some(2048), false));
    }

    #[test]
    fn external_write_overrides_own_written_limit() {
        let written = WrittenLimits {
            limits: BTreeMap::new(),
            adopted: vec![Some(MemoryLimit::from_mib(1025).expect("a limit"))],
        };
        let resolved = |theirs: Option<ExternalLimit>| {
            let mut reading = reading(1024);
            written.resolve_one(&mut reading, DEFAULT, None, theirs);
            (reading.bytes.map(|bytes| bytes / MIB), reading.exact)
        };
        assert_eq!(resolved(None), (Some(1025), true));
        assert_eq!(resolved(Some(ExternalLimit(Some(1999 * MIB)))), (Some(1999), true));
        assert_eq!(
            resolved(Some(ExternalLimit(Some(4096 * MIB)))),
            (Some(1024), false),
            "the getter contradicts it"
        );
        assert_eq!(resolved(Some(ExternalLimit(None))), (Some(1024), false));
    }

    #[test]
    fn adopted_limit_is_exact_until_rewritten() {
        let limit = MemoryLimit::from_mib(1536).expect("a limit");
        let mut written = WrittenLimits::default();
        written.adopt(vec![Some(limit)]);
        assert_eq!(written.get(DEFAULT), Some(limit));
        written.begin(&[SettingDifference::DefaultMemory(0)]);
        assert_eq!(written.get(DEFAULT), None, "written, and not seen yet");
        assert_eq!(written.get(SERVER), Some(limit));
    }

    #[test]
    fn unconfirmed_whole_gib_limit_is_not_exact() {
        assert_eq!(resolved(&[], 4096, SERVER, None), (Some(4096), false));
        assert_eq!(
            resolved(&[], 1023, SERVER, None),
            (Some(1023), true),
            "below 1 GiB the getter prints all of it"
        );
        assert_eq!(resolved(&[], 4096, SERVER, Some(8192)), (Some(4096), false), "an older word");
    }
}
