//! The manager killed at random moments of an apply of a host file: the next one leaves the old host or the new one, whole.
//!
//! `MPS_MANAGER_SPEC_KILLS` says how many kills, and `MPS_MANAGER_SEED` at which moments.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::Value;

use super::host_file::{YAML, changes, put};
use crate::harness::{Host, eventually, heavy, setting};

/// One state of the host, and another one: every kind of change is between them.
const STATES: [&str; 2] = [
    "
version: v1
layouts:
  one: {steps: [{add: {gpu: 0, partition: web, chunks: 7, tenants: [web]}}]}
daemons:
  gpu0: {gpus: [0]}
  gpu1: {gpus: [1], mode: static}
tenants:
  web: {daemon: gpu1, uid: 0, device_memory_limit: 4G}
  old: {daemon: gpu0, uid: 0, device_memory_limit: 1G}
bindings:
  gpu1: {layout: one, gpu_map: {0: 1}}
",
    "
version: v1
layouts:
  one: {steps: [{add: {gpu: 0, partition: web, chunks: 7, tenants: [web]}}]}
  two:
    steps:
      - add: {gpu: 0, partition: web, chunks: 7, tenants: [web]}
      - add: {gpu: 0, partition: more, chunks: 3}
daemons:
  other: {gpus: [0], defaults: {active_thread_percentage: 50}}
  gpu1: {gpus: [1], mode: static}
tenants:
  web: {daemon: gpu1, uid: 0, device_memory_limit: 8G}
  new: {daemon: other, uid: 0, device_memory_limit: 2G}
bindings:
  gpu1: {layout: two, gpu_map: {0: 1}}
",
];

fn unfinished(host: &Host) -> usize {
    let listed = host.api().get("/api/v1/operations?state=pending,running").ok();
    listed["items"].as_array().expect("a list").len()
}

/// Brings the host to a state.
fn bring(host: &Host, state: usize) -> Duration {
    let began = Instant::now();
    let answer = put(host, STATES[state], "?prune=true");
    if answer.status == 202 {
        host.api().succeeds(&answer);
    } else {
        assert_eq!(answer.status, 200, "{}", answer.text);
    }
    began.elapsed()
}

/// The state of the host, which must be one of them in every part.
fn state(host: &Host) -> usize {
    let differences = [0, 1].map(|state| changes(host, STATES[state], "&prune=true"));
    let state = differences.iter().position(Vec::is_empty);
    state.unwrap_or_else(|| panic!("neither the old host nor the new one: {differences:#?}"))
}

/// The last host file that was applied.
fn last_apply(host: &Host) -> Value {
    let listed = host.api().get("/api/v1/operations?limit=50").ok();
    let items = listed["items"].as_array().expect("a list");
    items.iter().find(|one| one["request"]["kind"] == "apply_spec").cloned().unwrap_or_default()
}

#[test]
fn killed_apply_leaves_old_or_new_host() {
    let _turn = heavy();
    let kills = setting("MPS_MANAGER_SPEC_KILLS").unwrap_or(4);
    let seed = setting("MPS_MANAGER_SEED").unwrap_or_else(|| fastrand::u64(..));
    eprintln!("MPS_MANAGER_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let mut host = Host::ready();
    bring(&host, 0);
    let longest = (0..2).map(|round| bring(&host, 1 - round)).max().expect("two rounds");
    let (mut now, mut came) = (0, BTreeMap::<&str, u32>::new());
    for round in 0..kills {
        let (api, wanted) = (host.api().clone(), 1 - now);
        let before = last_apply(&host)["id"].clone();
        let asking = thread::spawn(move || {
            let headers = [("content-type", YAML)];
            let path = "/api/v1/host/spec?prune=true";
            // The manager may die before it answers.
            let _ = api.try_send(reqwest::Method::PUT, path, &headers, Some(STATES[wanted].to_owned()));
        });
        // A kill may come at any moment, and a little after the end.
        thread::sleep(longest.mul_f64(rng.f64() * 1.1));
        host.end_manager(Signal::KILL);
        asking.join().expect("the request ends");
        host.serve();
        eventually("nothing is left to do", || (unfinished(&host) == 0).then_some(()));
        let found = state(&host);
        let apply = last_apply(&host);
        let is_new = apply["id"] != before;
        assert_eq!(found == wanted, is_new, "round {round}: {apply}");
        if is_new {
            assert_eq!(apply["state"], "succeeded", "round {round}: {apply}");
            host.await_ready();
            let partitions = super::layouts::partitions(&host).len();
            assert_eq!(partitions, wanted + 1, "round {round}: {apply}");
        }
        *came.entry(if is_new { "new" } else { "old" }).or_default() += 1;
        bring(&host, wanted);
        now = wanted;
    }
    eprintln!("{kills} kills of the manager within {longest:?} of an apply: {came:?}");
}
