//! Those who write tenants through the API, several at once, whatever dies meanwhile.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use fastrand::Rng;
use reqwest::Method;

use super::ledger::{Ledger, SHARED, Spec, TransactionEnd};
use super::plan::DAEMONS;
use super::story::Story;
use crate::harness::Api;

const WRITERS: usize = 3;
/// Tenants of one writer alone.
const NAMES: usize = 4;
/// Pause after a request that found nobody, in microseconds.
const UNREACHED: u64 = 30_000;

/// Counts the writes that a manager which nobody struck refused for no reason of theirs.
pub(super) const UNAVAILABLE: &str = "writes refused with 503 by a manager that nobody struck";

/// What writers and the one who strikes share.
pub(super) struct Desk {
    pub(super) ledger: Mutex<Ledger>,
    pub(super) story: Story,
    /// Held for reading during a write, for writing by those who want quiet.
    pub(super) gate: RwLock<()>,
    /// Requests that were sent and have no answer.
    pub(super) in_flight: AtomicUsize,
    /// Odd while the manager is struck and no other is there yet; never the same again.
    manager: AtomicUsize,
    over: AtomicBool,
}

impl Desk {
    pub(super) fn new(story: Story) -> Self {
        Self {
            ledger: Mutex::default(),
            story,
            gate: RwLock::default(),
            in_flight: AtomicUsize::new(0),
            manager: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// From here on a write may find nobody, and may stay without an answer.
    pub(super) fn manager_goes(&self) {
        self.manager.fetch_or(1, Ordering::SeqCst);
    }

    /// From here on each write has to be answered.
    pub(super) fn manager_is_back(&self) {
        if !self.manager.load(Ordering::SeqCst).is_multiple_of(2) {
            self.manager.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Writer threads; ended with this value.
pub(super) struct Writers {
    desk: Arc<Desk>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    pub(super) fn start(desk: &Arc<Desk>, api: &Api, seed: u64) -> Self {
        let threads = (0..WRITERS).map(|number| {
            let (desk, api) = (Arc::clone(desk), api.clone());
            let rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(number as u64 + 1));
            std::thread::spawn(move || Writer { desk, api, rng, number, marks: 0 }.run())
        });
        Self { desk: Arc::clone(desk), threads: threads.collect() }
    }

    /// Fails if one of them has.
    pub(super) fn check(&mut self) {
        if let Some(at) = self.threads.iter().position(JoinHandle::is_finished) {
            let failed = self.threads.swap_remove(at).join();
            std::panic::resume_unwind(failed.expect_err("a writer runs until the end"));
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.desk.over.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("a writer runs until the end");
            }
        }
    }
}

struct Writer {
    desk: Arc<Desk>,
    api: Api,
    rng: Rng,
    number: usize,
    marks: u64,
}

impl Writer {
    fn run(mut self) {
        while !self.desk.over.load(Ordering::SeqCst) {
            let desk = Arc::clone(&self.desk);
            let done = {
                let _open = desk.gate.read().unwrap_or_else(PoisonError::into_inner);
                self.write()
            };
            let pause =
                if done == TransactionEnd::Unreached { UNREACHED } else { self.rng.u64(1_000..20_000) };
            std::thread::sleep(Duration::from_micros(pause));
        }
    }

    fn write(&mut self) -> TransactionEnd {
        let own = format!("w{}_{}", self.number, self.rng.usize(..NAMES));
        match self.rng.u32(..10) {
            0..6 => {
                let spec = self.spec();
                self.put(&own, spec)
            }
            6..8 => self.delete(&own),
            _ => {
                let spec = Spec { uid: 0, limit_mib: 2048, max_clients: 1, ..self.spec() };
                self.put(SHARED, spec)
            }
        }
    }

    fn spec(&mut self) -> Spec {
        self.marks += 1;
        Spec {
            daemon: DAEMONS[self.rng.usize(..DAEMONS.len())],
            // The last does not fit on the GPU.
            limit_mib: [768, 1024, 1536, 2048, 3072, 5121, 200 << 10][self.rng.usize(..7)],
            tenths: [100, 250, 333, 500, 750, 1000][self.rng.usize(..6)],
            max_clients: self.rng.u64(1..4),
            below_normal: self.rng.bool(),
            // Another user's tenant is refused beside root's.
            uid: if self.rng.u32(..20) == 0 { 65_534 } else { 0 },
            mark: self.marks * 10 + self.number as u64,
        }
    }

    fn put(&mut self, name: &str, spec: Spec) -> TransactionEnd {
        let fate = self.send(Method::PUT, name, Some(spec.json().to_string()));
        self.noted(name, Some(spec), fate)
    }

    fn delete(&mut self, name: &str) -> TransactionEnd {
        let fate = self.send(Method::DELETE, name, None);
        self.noted(name, None, fate)
    }

    fn noted(&self, name: &str, spec: Option<Spec>, fate: TransactionEnd) -> TransactionEnd {
        let what = match fate {
            TransactionEnd::Done(_) => "writes acknowledged",
            TransactionEnd::Refused => "writes refused",
            TransactionEnd::Unreached => "writes that found nobody there",
            TransactionEnd::Unknown => "writes without an answer",
        };
        self.desk.story.count(what);
        self.desk.story.log(format!("{name}: {spec:?} {fate:?}"));
        self.desk.ledger.lock().expect("unpoisoned").note(name, spec, fate);
        fate
    }

    fn send(&self, method: Method, name: &str, body: Option<String>) -> TransactionEnd {
        let deletes = method == Method::DELETE;
        let before = self.desk.manager.load(Ordering::SeqCst);
        self.desk.in_flight.fetch_add(1, Ordering::SeqCst);
        let sent = self.api.try_send(method, &format!("/api/v1/tenants/{name}"), &[], body);
        self.desk.in_flight.fetch_sub(1, Ordering::SeqCst);
        let lived = before.is_multiple_of(2) && self.desk.manager.load(Ordering::SeqCst) == before;
        match sent {
            Ok(answer) if (200..300).contains(&answer.status) => TransactionEnd::Done(
                (!deletes).then(|| answer.json()["generation"].as_i64().expect("a generation")),
            ),
            // 401: another manager has the port of one that died.
            Ok(answer) if (400..500).contains(&answer.status) || answer.status == 503 => {
                self.desk.story.count(&format!("writes refused with {}", answer.status));
                if lived && answer.status == 503 {
                    self.desk.story.count(UNAVAILABLE);
                }
                TransactionEnd::Refused
            }
            Ok(answer) => panic!("{} {}", answer.status, answer.text),
            Err(error) if lived => panic!("{name}: no answer, and nobody struck the manager: {error:?}"),
            Err(error) if error.is_connect() => TransactionEnd::Unreached,
            Err(_) => TransactionEnd::Unknown,
        }
    }
}
