//! What has happened, kept for whoever has to find out why it went wrong.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// How much is told of the end of a story that went wrong.
const KEPT: usize = 80;

pub(super) struct Story {
    seed: u64,
    began: Instant,
    told: Mutex<Told>,
}

#[derive(Default)]
struct Told {
    kill: u32,
    lines: VecDeque<String>,
    counts: BTreeMap<String, u64>,
}

impl Story {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, began: Instant::now(), told: Mutex::default() }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // What a thread that failed has told is what is wanted.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another kill begins.
    pub(super) fn kill(&self, number: u32) {
        self.told().kill = number;
    }

    pub(super) fn tell(&self, line: impl AsRef<str>) {
        let at = self.began.elapsed().as_millis();
        let mut told = self.told();
        let line = format!("{at:>7} ms, kill {}: {}", told.kill, line.as_ref());
        told.lines.push_back(line);
        if told.lines.len() > KEPT {
            told.lines.pop_front();
        }
    }

    pub(super) fn count(&self, what: &str) {
        self.add(what, 1);
    }

    pub(super) fn add(&self, what: &str, number: u64) {
        *self.told().counts.entry(what.to_owned()).or_default() += number;
    }

    pub(super) fn counts(&self) -> BTreeMap<String, u64> {
        self.told().counts.clone()
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let told = self.told();
        eprintln!("--- the last steps ---");
        for line in &told.lines {
            eprintln!("{line}");
        }
        let (seed, kill) = (self.seed, told.kill);
        eprintln!(
            "--- again: MPS_MANAGER_SEED={seed} MPS_MANAGER_KILLS={kill} MPS_MANAGER_HOSTS=1 cargo test --test it chaos:: ---"
        );
    }
}
