//! The largest import of layouts, and what others wait for it.

use std::path::Path;
use std::time::Instant;

use serde_json::{Map, Value, json};

use crate::server::{Server, own_uid};
use crate::{Table, median, millis};

/// Layouts of one import, as many as it may have.
const LAYOUTS: usize = 500;
/// Steps of each: the document stays below the bound on bodies.
const STEPS: usize = 15;
const ROUNDS: usize = 5;

/// Imports during which a tenant is written all the while and a control daemon dies.
pub(crate) fn imports(directory: &Path, table: &mut Table) {
    let (mut took, mut writes, mut healed) = (Vec::new(), Vec::new(), Vec::new());
    let (mut changes, mut long) = (0.0, 0.0);
    for round in 0..ROUNDS {
        let (server, _) = Server::start(&directory.join(format!("{round}")));
        server.wait_ready();
        let document = document().to_string();
        std::thread::scope(|scope| {
            let import = scope.spawn(|| {
                let began = Instant::now();
                server.send("POST", "/api/v1/layouts/import", &document);
                millis(began.elapsed())
            });
            let death = scope.spawn(|| server.kill_daemon_and_wait("gpu1"));
            let mut longest = 0.0_f64;
            while !import.is_finished() {
                let began = Instant::now();
                let size = format!("{}M", 1024 + writes.len());
                let limit = json!({"daemon": "gpu0", "uid": own_uid(), "device_memory_limit": size});
                server.put("/api/v1/tenants/beside", &limit.to_string());
                longest = longest.max(millis(began.elapsed()));
            }
            writes.push(longest);
            took.push(import.join().expect("the import ends"));
            healed.push(death.join().expect("the daemon comes back"));
        });
        let (all, short) = held(&server);
        changes += all;
        long += all - short;
    }
    table.row("an import of 500 layouts with 15 steps each, median of 5, ms", median(took), None);
    table.row("changes of the database in those 5 rounds", changes, None);
    table.row("those that held the writer for more than 50 ms", long, Some(0.0));
    table.row("beside the import, the longest write of a tenant, median, ms", median(writes), None);
    table.row(
        "beside the import, kill -9 of a control daemon to ready, median, ms",
        median(healed),
        Some(1000.0),
    );
}

fn document() -> Value {
    let steps: Vec<Value> = (0..STEPS)
        .map(|step| json!({"add": {"gpu": 0, "partition": format!("part{step}"), "chunks": 1}}))
        .collect();
    let layouts: Map<String, Value> =
        (0..LAYOUTS).map(|layout| (format!("layout{layout}"), json!({"steps": steps}))).collect();
    json!({"version": "v1", "layouts": layouts})
}

/// How many changes held the writer, and how many of them for 50 ms at most.
fn held(server: &Server) -> (f64, f64) {
    let text = server.ask("GET", "/metrics", "").text;
    let value = |end: &str| -> f64 {
        let name = format!("mps_manager_store_writer_hold_seconds_{end} ");
        let value = text.lines().find_map(|line| line.strip_prefix(&name)).expect("the metric");
        value.parse().expect("a number")
    };
    (value("count"), value("bucket{le=\"0.05\"}"))
}
