//! Statements of a use case, counted in the manager's own log: nothing is read twice.

use serde_json::json;

use crate::harness::{Host, eventually};

/// A host whose manager logs each statement.
fn traced() -> Host {
    let mut host = Host::new("log_filter = \"sqlx=trace,info\"");
    host.serve();
    host.await_ready();
    host
}

/// The statements logged from a place in the log until the first transaction with `of` is committed, without those that begin and end
/// transactions; `None` while it is not committed.
fn until_commit(host: &Host, from: usize, of: &str) -> Option<Vec<String>> {
    let log = host.log();
    let lines = log.get(from..)?.lines().filter_map(|line| line.split_once("summary=\"")?.1.split_once('"'));
    let lines: Vec<&str> = lines.map(|(summary, _)| summary).collect();
    let begun = lines.iter().position(|line| line.contains(of))?;
    let committed = begun + lines[begun..].iter().position(|line| line.starts_with("COMMIT"))?;
    let control = ["BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK"];
    let statements =
        lines[..committed].iter().filter(|line| !control.iter().any(|word| line.starts_with(word)));
    Some(statements.map(ToString::to_string).collect())
}

/// Repeats a request until it takes no more statements than this: others of the manager's own may come between those of one.
fn await_statements(host: &Host, most: usize, of: &str, mut request: impl FnMut(u64)) -> Vec<String> {
    let mut round = 0;
    let mut last = Vec::new();
    eventually("a request takes few statements", || {
        round += 1;
        let from = host.log().len();
        request(round);
        last = eventually("its transaction is logged", || until_commit(host, from, of));
        (last.len() <= most).then(|| last.clone())
    })
}

#[test]
fn tenant_is_written_in_twelve_statements() {
    let host = traced();
    let statements = await_statements(&host, 12, "INSERT INTO tenants", |round| {
        let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": (1 + round % 8) << 30});
        host.api().put("/api/v1/tenants/web", &spec).ok();
    });
    for table in ["FROM tenants", "FROM daemons"] {
        let reads = statements.iter().filter(|statement| statement.contains(table)).count();
        assert!(reads <= 1, "{table} {reads} times: {statements:#?}");
    }
}

#[test]
fn host_file_is_written_in_few_statements() {
    let host = traced();
    let file = |count: u64, round: u64| {
        let spec = |number: u64| json!({"daemon": "gpu0", "uid": 0, "max_clients": 1, "device_memory_limit": (round + number) << 20});
        let tenants: serde_json::Map<_, _> =
            (0..count).map(|number| (format!("t{number}"), spec(number))).collect();
        json!({"version": "v1", "tenants": tenants})
    };
    // Each tenant would add ten.
    await_statements(&host, 40, "INSERT INTO tenants", |round| {
        let answer = host.api().put("/api/v1/host/spec", &file(40, round));
        let place = answer.header("location").expect("an operation").to_owned();
        eventually("the file is applied", || {
            host.api().get(&place).ok()["finished_at"].is_string().then_some(())
        });
    });
}
