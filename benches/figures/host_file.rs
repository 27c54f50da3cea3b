//! Comparing and applying the host file of a large host.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::server::{Server, own_uid};
use crate::{Table, median, millis};

const GPUS: usize = 8;
const TENANTS: usize = 200;
const ROUNDS: usize = 5;
/// How often a file is applied beside other writes, and how many of those there are.
const APPLIES: u32 = 100;
const WRITES_PER_S: u32 = 50;

/// Eight daemons, two hundred tenants and eight layouts.
pub(crate) fn host_files(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x8");
    server.wait_ready();
    let file = file().to_string();
    let compare = || {
        let began = Instant::now();
        let changes = server.send("PUT", "/api/v1/host/spec?dry_run=true&prune=true", &file);
        (millis(began.elapsed()), changes["changes"].as_array().map_or(0, Vec::len))
    };
    let before: Vec<f64> = (0..ROUNDS).map(|_| compare().0).collect();
    let began = Instant::now();
    server.send("PUT", "/api/v1/host/spec?prune=true", &file);
    server.eventually("the file is applied", || {
        let (_, operations) = server.get("/api/v1/operations?state=pending,running");
        operations["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    let applied = millis(began.elapsed());
    let after: Vec<(f64, usize)> = (0..ROUNDS).map(|_| compare()).collect();
    let left = after.iter().map(|(_, changes)| *changes).max().unwrap_or(0);
    table.row(
        "diff of a host file with 8 daemons, 200 tenants and 8 layouts, median of 5, ms",
        median(before),
        Some(1000.0),
    );
    table.row("the same file applied, to its end, ms", applied, None);
    table.row(
        "compared again, median of 5, ms",
        median(after.into_iter().map(|(took, _)| took).collect()),
        Some(1000.0),
    );
    table.row("changes that are left then", f64::from(u32::try_from(left).unwrap_or(u32::MAX)), Some(0.0));
}

/// A file of two hundred tenants, applied again and again while those of other jobs come and go.
pub(crate) fn busy_host(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x8");
    server.wait_ready();
    let stop = AtomicBool::new(false);
    let (written, applied) = std::thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let mut written = 0_u32;
            let began = Instant::now();
            while !stop.load(Ordering::SeqCst) {
                let spec = json!({"daemon": "gpu0", "uid": own_uid(), "max_clients": 1 + written % 3});
                server.put(&format!("/api/v1/tenants/churn{}", written % 5), &spec.to_string());
                written += 1;
                let due = Duration::from_secs(1) * written / WRITES_PER_S;
                std::thread::sleep(due.saturating_sub(began.elapsed()));
            }
            f64::from(written) / began.elapsed().as_secs_f64()
        });
        let applied = (1..=APPLIES).filter(|round| {
            let tenants: Map<String, Value> = (0..TENANTS)
                .map(|tenant| {
                    let spec = json!({"daemon": format!("gpu{}", 1 + tenant % (GPUS - 1)), "uid": own_uid(), "max_clients": 1 + round % 60});
                    (format!("tenant{tenant}"), spec)
                })
                .collect();
            let path = directory.join("host.yaml");
            std::fs::write(&path, json!({"version": "v1", "tenants": tenants}).to_string()).expect("written");
            server.cli(&["apply", "-f", path.to_str().expect("text"), "--yes"])
        });
        let applied = applied.count();
        stop.store(true, Ordering::SeqCst);
        (writes.join().expect("it wrote"), applied)
    });
    let failed = APPLIES - u32::try_from(applied).expect("no more");
    table.row(
        "a host file of 200 tenants applied 100 times beside writes: of those, a second",
        written,
        None,
    );
    table.row("the same: applies that failed", f64::from(failed), Some(0.0));
}

fn file() -> Value {
    let (mut layouts, mut daemons, mut tenants, mut bindings) = (json!({}), json!({}), json!({}), json!({}));
    for gpu in 0..GPUS {
        let (daemon, layout) = (format!("gpu{gpu}"), format!("layout{gpu}"));
        layouts[&layout] = json!({"steps": [{"add": {"gpu": 0, "partition": "main", "chunks": 4 + gpu}}]});
        daemons[&daemon] = json!({"gpus": [gpu.to_string()], "mode": "static"});
        bindings[&daemon] = json!({"layout": layout, "gpu_map": {"0": gpu.to_string()}});
    }
    for tenant in 0..TENANTS {
        let daemon = format!("gpu{}", tenant % GPUS);
        tenants[format!("tenant{tenant}")] =
            json!({"daemon": daemon, "uid": own_uid(), "device_memory_limit": "1G"});
    }
    json!({"version": "v1", "layouts": layouts, "daemons": daemons, "tenants": tenants, "bindings": bindings})
}
