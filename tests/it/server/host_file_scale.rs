//! A host file of eight daemons, two hundred tenants and eight layouts.

use std::time::Instant;

use serde_json::Value;

use super::host_file::{changes, exported, put};
use crate::harness::{InProcess, Served, eventually, heavy};

/// Eight static daemons, each with a layout of its own and 25 tenants, of which two have a partition.
fn large() -> String {
    let (mut layouts, mut daemons, mut tenants, mut bindings) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for gpu in 0..8 {
        layouts.push(format!("  layout{gpu}:\n    steps:"));
        for part in 0..2 {
            let chunks = 7 - gpu % 3;
            layouts.push(format!(
                "      - add: {{gpu: 0, partition: p{part}, chunks: {chunks}, tenants: [t{gpu}-{part}]}}"
            ));
        }
        daemons.push(format!("  gpu{gpu}: {{gpus: [{gpu}], mode: static}}"));
        bindings.push(format!("  gpu{gpu}: {{layout: layout{gpu}, gpu_map: {{0: {gpu}}}}}"));
        for tenant in 0..25 {
            let size = 1 + tenant % 4;
            tenants.push(format!(
                "  t{gpu}-{tenant}: {{daemon: gpu{gpu}, uid: 0, device_memory_limit: {size}G}}"
            ));
        }
    }
    let [layouts, daemons, tenants, bindings] =
        [layouts, daemons, tenants, bindings].map(|lines| lines.join("\n"));
    format!(
        "version: v1\nlayouts:\n{layouts}\ndaemons:\n{daemons}\ntenants:\n{tenants}\nbindings:\n{bindings}\n"
    )
}

/// What grows with every write: generations of daemons, operations, and rows of the audit log.
fn written(host: &Served) -> (Vec<Value>, usize, Value) {
    let list = |path: &str| host.api().get(path).ok()["items"].as_array().expect("a list").clone();
    let generations = list("/api/v1/daemons").iter().map(|daemon| daemon["generation"].clone()).collect();
    (generations, list("/api/v1/operations").len(), list("/api/v1/audit?limit=1")[0]["id"].clone())
}

/// How many commands that change something all daemons were sent.
fn sent(host: &Served) -> usize {
    (0..8).map(|gpu| host.changes(&format!("gpu{gpu}"))).sum()
}

/// The operation at its end; as long as steps are added, more is waited for.
fn ended(host: &Served, place: &str) -> Value {
    let mut steps = 0;
    loop {
        let operation = eventually("the operation goes on", || {
            let operation = host.api().get(place).ok();
            let count = operation["steps"].as_array().expect("steps").len();
            let is_new = count > std::mem::replace(&mut steps, count);
            (is_new || operation["finished_at"].is_string()).then_some(operation)
        });
        if operation["finished_at"].is_string() {
            return operation;
        }
    }
}

#[test]
fn large_file_is_applied_once() {
    let _turn = heavy();
    let host = InProcess::ready_of("h200x8", "");
    let file = large();
    let timed = |what: &str, begun: Instant| eprintln!("{what}: {} ms", begun.elapsed().as_millis());
    let begun = Instant::now();
    let first = changes(&host, &file, "&prune=true");
    timed("diff of 8 daemons, 200 tenants and 8 layouts", begun);
    assert_eq!(first.len(), 8 + 8 + 200 + 8 + 2);
    let begun = Instant::now();
    let place = put(&host, &file, "?prune=true").header("location").expect("an operation").to_owned();
    let ended = ended(&host, &place);
    assert_eq!(ended["state"], "succeeded", "{ended}");
    timed("the same applied", begun);
    for gpu in 0..8 {
        let listed = host.api().get(&format!("/api/v1/daemons/gpu{gpu}/partitions")).ok();
        assert_eq!(listed["items"].as_array().expect("a list").len(), 2, "gpu{gpu}");
    }
    let before = written(&host);
    let begun = Instant::now();
    assert_eq!(changes(&host, &file, "&prune=true"), Vec::<String>::new());
    timed("the same compared again", begun);
    let commands = sent(&host);
    assert_eq!(put(&host, &file, "?prune=true").status, 200);
    assert_eq!(changes(&host, &exported(&host), "&prune=true"), Vec::<String>::new());
    assert_eq!(written(&host), before);
    // A poll of every daemon later, nothing was sent that changes one.
    host.api().get("/api/v1/clients?fresh=true").ok();
    assert!(commands > 8 * 2, "{commands} were sent for the first");
    assert_eq!(sent(&host), commands);
}
