//! The write-ahead log of the manager's database: its transactions, and a manager that dies as it writes one of them.

use std::fs;

use rustix::process::{Resource, Rlimit, prlimit};

use super::Host;
use crate::host::process::raw;

/// Bytes before the first frame, and before the page in each.
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

impl Host {
    /// Where each transaction in the log ends, in bytes from its beginning.
    pub(crate) fn transactions(&self) -> Vec<u64> {
        let log = fs::read(self.state("mps-manager.db-wal")).unwrap_or_default();
        let Some(header) = log.get(..HEADER) else { return Vec::new() };
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four bytes"));
        let page = usize::try_from(number(&header[8..12])).expect("a page size");
        let mut ends = Vec::new();
        for (count, frame) in log[HEADER..].chunks_exact(FRAME_HEADER + page).enumerate() {
            // What an earlier use of the log left has another salt.
            if frame[8..16] != header[16..24] {
                break;
            }
            // The size of the database after the transaction, in its last frame alone.
            if number(&frame[4..8]) != 0 {
                ends.push((HEADER + (count + 1) * (FRAME_HEADER + page)) as u64);
            }
        }
        ends
    }

    /// Has the system end the manager as it writes past this size of a file; `None` lets it live.
    pub(crate) fn die_past(&self, bytes: Option<u64>) {
        let pid = Some(raw(self.manager_pid()));
        let mine = "a process of the test's own user";
        let _ = prlimit(pid, Resource::Core, Rlimit { current: Some(0), maximum: Some(0) }).expect(mine);
        let _ = prlimit(pid, Resource::Fsize, Rlimit { current: bytes, maximum: None }).expect(mine);
    }

    /// Forgets what managers have logged, so that the log is smaller than any file that counts.
    pub(crate) fn empty_log(&self) {
        let _ = fs::File::options().write(true).truncate(true).open(self.dir().join("manager.log"));
    }
}
