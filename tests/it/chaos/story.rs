//! What has happened, kept for the one who has to find out why it went wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How many lines of a failed story are printed.
const KEPT: usize = 80;

pub(super) struct Story {
    seed: u64,
    began: Instant,
    record: Mutex<StoryRecord>,
}

#[derive(Default)]
struct StoryRecord {
    kill: u32,
    lines: VecDeque<String>,
    counts: BTreeMap<String, u64>,
}

impl Story {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, began: Instant::now(), record: Mutex::default() }
    }

    fn record(&self) -> MutexGuard<'_, StoryRecord> {
        // What a failed thread has recorded is what is desired.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another kill begins.
    pub(super) fn kill(&self, number: u32) {
        self.record().kill = number;
    }

    pub(super) fn log(&self, line: impl AsRef<str>) {
        let at = self.began.elapsed().as_millis();
        let mut record = self.record();
        let line = format!("{at:>7} ms, kill {}: {}", record.kill, line.as_ref());
        record.lines.push_back(line);
        if record.lines.len() > KEPT {
            record.lines.pop_front();
        }
    }

    pub(super) fn count(&self, what: &str) {
        self.add(what, 1);
    }

    pub(super) fn add(&self, what: &str, number: u64) {
        *self.record().counts.entry(what.to_owned()).or_default() += number;
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.record().counts.clone()
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let record = self.record();
        eprintln!("--- the last steps ---");
        for line in &record.lines {
            eprintln!("{line}");
        }
        let (seed, kill) = (self.seed, record.kill);
        eprintln!(
            "--- again: MPS_MANAGER_SEED={seed} MPS_MANAGER_KILLS={kill} MPS_MANAGER_HOSTS=1 cargo test --test it chaos:: ---"
        );
    }
}
