//! `mps-manager status`: what is in force, and each reason once.

use serde_json::{Value, json};

use crate::harness::{InProcess, Served, eventually};

fn printed(host: &Served, arguments: &[&str]) -> String {
    String::from_utf8(host.cli(arguments).stdout).expect("text")
}

/// The cell of a row in a column of the tables of `status`.
fn cell(table: &str, row: &str, column: &str) -> String {
    let lines: Vec<&str> = table.lines().collect();
    let at = lines.iter().position(|line| line.contains(column)).expect("a heading");
    let line = lines[at..].iter().find(|line| line.split_whitespace().next() == Some(row)).expect("a row");
    let from = lines[at].find(column).expect("a column");
    // Cells are apart by two spaces, and hold single ones.
    line.get(from..).and_then(|rest| rest.split("  ").next()).unwrap_or_default().to_owned()
}

/// What asks for attention.
fn attention(table: &str) -> Vec<&str> {
    let listed = table.split_once("Attention:\n").map_or("", |(_, listed)| listed).lines();
    listed.take_while(|line| line.starts_with("  ")).map(str::trim).collect()
}

#[test]
fn status_reports_effective_settings() {
    let host = InProcess::ready();
    let table = printed(&host, &["status"]);
    assert_eq!(cell(&table, "demo", "PRIORITY"), "normal", "{table}");
    assert_eq!(cell(&table, "batch", "PRIORITY"), "below_normal*", "{table}");
    let spec = json!({"gpus": ["0"], "defaults": {"priority": "below_normal"}});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &spec).status, 200);
    host.await_ready();
    let table = printed(&host, &["status"]);
    assert_eq!(host.api().get("/api/v1/tenants/demo").ok()["spec"].get("priority"), None);
    for tenant in ["demo", "batch"] {
        assert_eq!(cell(&table, tenant, "PRIORITY"), "below_normal", "the daemon's default: {table}");
    }

    // Cordoned, the daemon takes no clients, which is reported for it and not for each tenant.
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    let table = printed(&host, &["status"]);
    let cordoned = host.condition("gpu0", "Schedulable").expect("a condition");
    let line = format!("gpu0: {}", cordoned["message"].as_str().unwrap());
    assert_eq!(attention(&table), [line], "{table}");

    // Stopped, nothing is in force, whatever the specs say; the reason is shown once, for the daemon.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=1", &json!({})));
    let output = host.cli(&["status"]);
    let table = String::from_utf8(output.stdout).expect("text");
    for tenant in ["demo", "batch"] {
        for column in ["MEMORY", "SMS", "PRIORITY"] {
            assert_eq!(cell(&table, tenant, column), "-", "{tenant} {column}: {table}");
        }
        assert_eq!(cell(&table, tenant, "READY"), "no", "{table}");
        assert!(!attention(&table).iter().any(|line| line.starts_with(&format!("{tenant}: "))), "{table}");
    }
    let ready = host.condition("gpu0", "Ready").expect("a condition");
    let (reason, message) = (ready["reason"].as_str().unwrap(), ready["message"].as_str().unwrap());
    assert!(attention(&table).contains(&format!("gpu0: not ready: {message}").as_str()), "{table}");
    let wide = printed(&host, &["status", "-o", "wide"]);
    assert!(wide.contains(&format!("gpu0: not ready: {message} (Ready: {reason})")), "{wide}");
    assert_eq!(table.matches(message).count(), 1, "{table}");

    // The same for programs.
    let json = host.cli(&["status", "-o", "json"]);
    assert_eq!(json.status.code(), output.status.code());
    let status: Value = serde_json::from_slice(&json.stdout).expect("JSON");
    let names = |of: &str| -> Vec<Value> {
        status[of].as_array().expect("a list").iter().map(|one| one["name"].clone()).collect()
    };
    assert_eq!(names("daemons"), ["gpu0", "gpu1"]);
    assert_eq!(names("tenants"), ["batch", "demo"]);
    assert_eq!((&status["host"]["gpus"], &status["foreign_daemons"]), (&json!(2), &json!([])));
    assert_eq!(status["tenants"][0]["status"]["effective"], json!(null));
}

#[test]
fn reason_common_to_tenants_is_shown_once() {
    let host = InProcess::ready();
    assert_eq!(host.api().tenant("plain", &json!({"daemon": "gpu0", "uid": 0})).status, 201);
    host.await_ready();
    let table = printed(&host, &["status"]);
    let weakened: Vec<&str> =
        attention(&table).into_iter().filter(|line| line.contains("has no memory limit")).collect();
    let [line] = weakened[..] else { panic!("one line: {table}") };
    assert!(line.starts_with("batch, demo: tenant plain has no memory limit"), "{line}");
    let output = host.cli(&["status"]);
    assert_eq!(output.status.code(), Some(0), "they are ready: {table}");
}

#[test]
fn tenants_without_a_partition_are_not_ready() {
    let host = InProcess::ready();
    assert_eq!(host.cli(&["status"]).status.code(), Some(0));
    let spec = json!({"gpus": ["1"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    for tenant in ["one", "two"] {
        assert_eq!(host.api().tenant(tenant, &json!({"daemon": "gpu1", "uid": 0})).status, 201);
    }
    host.await_ready();
    // One line for both, as their reasons differ only in the name.
    let output = eventually("both are reported", || {
        let output = host.cli(&["status"]);
        String::from_utf8_lossy(&output.stdout)
            .contains("  one, two: not ready: daemon gpu1")
            .then_some(output)
    });
    let table = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(1), "the daemon is ready, its tenants are not: {table}");
    assert_eq!(cell(&table, "one", "SMS"), "no partition", "{table}");
    // What an operator wanted is no reason.
    for tenant in ["one", "two"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    host.api().post("/api/v1/daemons/gpu0/cordon", &json!({})).ok();
    // The daemon applies what it is without them first.
    eventually("all is well", || (host.cli(&["status"]).status.code() == Some(0)).then_some(()));
}
