//! Comparing and applying the host file of a large host.

use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

use crate::server::Server;
use crate::{Table, median, millis};

const GPUS: usize = 8;
const TENANTS: usize = 200;
const ROUNDS: usize = 5;

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
        tenants[format!("tenant{tenant}")] = json!({"daemon": daemon, "device_memory_limit": "1G"});
    }
    json!({"version": "v1", "layouts": layouts, "daemons": daemons, "tenants": tenants, "bindings": bindings})
}
