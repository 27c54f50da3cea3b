//! What a scrape costs while a daemon hangs.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::server::{Server, signal};
use crate::{Table, millis};

/// What a Prometheus asks of eight GPUs with 64 tenants while one daemon hangs.
pub(crate) fn metrics(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x8@13.1");
    server.wait_ready();
    let daemons: Vec<String> = (0..8).map(|number| format!("gpu{number}")).collect();
    let shown = server.get("/api/v1/tenants").1["items"].as_array().map_or(0, Vec::len);
    for number in shown..64 {
        let daemon = &daemons[number % daemons.len()];
        let spec = format!(r#"{{"daemon":"{daemon}","uid":UID,"device_memory_limit":"1G","max_clients":2}}"#);
        server.put(&format!("/api/v1/tenants/tenant_{number}"), &spec);
    }
    server.wait_ready();
    // One client on each daemon.
    let _clients = server.clients((56..64).map(|number| format!("tenant_{number}")));
    let (pid, _) = server.daemon("gpu0");
    signal(pid, Signal::STOP);
    server.wait_for("gpu0", |_, phase| phase != "ready");
    let mut texts = Vec::new();
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            // Over longer than the deadline of a command, so that some meet each of what the manager does meanwhile.
            std::thread::sleep(Duration::from_millis(30));
            let began = Instant::now();
            let answer = server.ask("GET", "/metrics", "");
            let took = millis(began.elapsed());
            assert_eq!(answer.status, 200, "{}", answer.text);
            assert!(answer.text.contains("mps_manager_daemon_phase{daemon=\"gpu0\",phase=\"ready\"} 0"));
            texts.push(answer.text);
            took
        })
        .collect();
    signal(pid, Signal::CONT);
    times.sort_by(f64::total_cmp);
    let body = texts.pop().unwrap_or_default();
    let series = body.lines().filter(|line| !line.starts_with('#')).count();
    let tenants: BTreeSet<&str> =
        body.lines().filter(|line| line.starts_with("mps_manager_tenant_clients{")).collect();
    assert_eq!(tenants.len(), 64);
    table.row(
        "200 scrapes of 8 GPUs and 64 tenants while a daemon hangs, median, ms",
        times[100],
        Some(10.0),
    );
    table.row("the same: 99th percentile, ms", times[197], Some(10.0));
    table.row("the same: longest, ms", times[199], None);
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    let (bytes, series) = (body.len() as f64, series as f64);
    table.row("the same: size, kB", bytes / 1000.0, None);
    table.row("the same: series", series, None);
}
