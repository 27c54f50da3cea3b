//! `/metrics`: true, bounded, complete by its catalogue, and answered at once whatever hangs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{add, in_static_mode, write};
use super::tls::Secured;
use crate::harness::{Host, InProcess, Served, eventually, signal};

/// Samples by name and labels, as `up{a="b"}`.
pub(super) struct Metrics {
    samples: BTreeMap<String, f64>,
    types: BTreeMap<String, String>,
    help: BTreeMap<String, String>,
}

impl Metrics {
    fn parse(text: &str) -> Self {
        let mut metrics = Self { samples: BTreeMap::new(), types: BTreeMap::new(), help: BTreeMap::new() };
        for line in text.lines() {
            let rest = |prefix| line.strip_prefix(prefix).and_then(|rest: &str| rest.split_once(' '));
            if let Some((name, words)) = rest("# HELP ") {
                metrics.help.insert(name.to_owned(), words.to_owned());
            } else if let Some((name, kind)) = rest("# TYPE ") {
                metrics.types.insert(name.to_owned(), kind.to_owned());
            } else if !line.starts_with('#') {
                let (name, value) = line.rsplit_once(' ').expect("a sample");
                let value = value.parse().expect("a number");
                assert!(metrics.samples.insert(name.to_owned(), value).is_none(), "{name} twice");
            }
        }
        metrics
    }

    pub(super) fn of(host: &Served) -> Self {
        let answer = host.api().get("/metrics");
        assert_eq!(answer.status, 200, "{}", answer.text);
        Self::parse(&answer.text)
    }

    pub(super) fn get(&self, sample: &str) -> f64 {
        let sample = format!("mps_manager_{sample}");
        *self.samples.get(&sample).unwrap_or_else(|| panic!("there is no {sample}"))
    }

    fn has(&self, what: &str) -> bool {
        self.samples.keys().any(|sample| sample.contains(what))
    }
}

/// Waits until a sample has this value.
fn await_sample(host: &Served, sample: &str, value: f64) {
    eventually(&format!("{sample} is {value}"), || {
        let metrics = Metrics::of(host);
        let now = metrics.samples.get(&format!("mps_manager_{sample}")).copied();
        (now == Some(value)).then_some(())
    });
}

fn promtool(arguments: &[&str], input: &str) -> Option<Output> {
    let child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        missing("promtool");
        return None;
    };
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("read");
    Some(child.wait_with_output().expect("it ends"))
}

/// What the catalogue says of a family.
pub(super) struct Entry {
    pub(super) kind: &'static str,
    pub(super) labels: Vec<&'static str>,
    meaning: &'static str,
}

/// The catalogue, by name.
pub(super) fn catalogue() -> BTreeMap<String, Entry> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.trim_end_matches(" |").split(" | ").collect();
        let [name, kind, labels, meaning] = cells[..] else { panic!("{line}: four cells are meant") };
        let labels = labels.split(", ").map(|label| label.trim_matches([' ', '`']));
        let labels = labels.filter(|label| !label.is_empty()).collect();
        Some((name.trim_matches('`').to_owned(), Entry { kind, labels, meaning }))
    };
    include_str!("../../../docs/metrics.md").lines().filter_map(row).collect()
}

/// A program of Debian's package `prometheus` that is not here: in CI that is a failure.
pub(super) fn missing(program: &str) {
    assert!(std::env::var_os("CI").is_none(), "{program} is missing: install Debian's package prometheus");
    eprintln!("SKIPPED: {program} is not installed (Debian's package prometheus has it)");
}

#[test]
fn metrics_follow_daemons_tenants_and_clients() {
    let host = InProcess::ready();
    let gpu = host.daemon("gpu0")["spec"]["gpus"][0].as_str().expect("a UUID").to_owned();
    let client = host.run_client("demo");
    host.listed(client.pid());
    await_sample(&host, "tenant_clients{daemon=\"gpu0\",tenant=\"demo\"}", 1.0);
    // What is committed is read up to some 200 ms later than clients are.
    await_sample(&host, "tenant_clients_limit{daemon=\"gpu0\",tenant=\"batch\"}", 4.0);
    let metrics = Metrics::of(&host);
    for (sample, value) in [
        ("daemon_up{daemon=\"gpu0\"}", 1.0),
        ("daemon_phase{daemon=\"gpu0\",phase=\"ready\"}", 1.0),
        ("daemon_phase{daemon=\"gpu0\",phase=\"wedged\"}", 0.0),
        ("daemon_starts_total{daemon=\"gpu0\"}", 1.0),
        ("daemon_deaths_total{daemon=\"gpu0\"}", 0.0),
        ("servers{daemon=\"gpu0\",status=\"ACTIVE\"}", 1.0),
        ("tenant_clients{daemon=\"gpu0\",tenant=\"batch\"}", 0.0),
        ("tenant_clients_limit{daemon=\"gpu0\",tenant=\"batch\"}", 4.0),
        ("clients_unattributed{daemon=\"gpu0\"}", 0.0),
        ("daemon_drift{daemon=\"gpu0\"}", 0.0),
        ("read_only", 0.0),
        ("listening_insecure", 0.0),
        ("build_info{version=\"0.1.0\"}", 1.0),
    ] {
        assert!((metrics.get(sample) - value).abs() < f64::EPSILON, "{sample} is {}", metrics.get(sample));
    }
    let of = |family: &str, tenant: &str| {
        metrics.get(&format!("{family}{{daemon=\"gpu0\",tenant=\"{tenant}\",gpu=\"{gpu}\"}}"))
    };
    let gib = f64::from(1 << 30);
    assert!((of("tenant_memory_limit_bytes", "demo") - 4.0 * gib).abs() < 1.0);
    // What it allocated, and its context.
    assert!(of("tenant_memory_used_bytes", "demo") >= 256.0 * f64::from(1 << 20));
    assert!(of("tenant_memory_used_bytes", "batch").abs() < 1.0);
    assert!((metrics.get(&format!("gpu_missing{{daemon=\"gpu0\",gpu=\"{gpu}\"}}"))).abs() < 1.0);
    let answered = "control_command_duration_seconds_count{daemon=\"gpu0\"}";
    assert!(metrics.get(answered) > 5.0);
    assert!(metrics.get("store_commit_duration_seconds_count") > 0.0);
    assert!(metrics.get("store_file_size_bytes") > 10_000.0);
    assert!(metrics.samples["process_resident_memory_bytes"] > 1e6);
    assert!(metrics.samples["process_open_fds"] > 5.0);

    drop(client);
    host.api().send(reqwest::Method::DELETE, "/api/v1/tenants/batch", &[], None);
    eventually("no series is left of a deleted tenant", || {
        (!Metrics::of(&host).has("tenant=\"batch\"")).then_some(())
    });
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1"));
    eventually("no series is left of a deleted daemon", || {
        (!Metrics::of(&host).has("daemon=\"gpu1\"")).then_some(())
    });
    assert!(Metrics::of(&host).get("operations_total{kind=\"delete_daemon\",outcome=\"succeeded\"}") >= 1.0);
    await_sample(&host, "events_total{type=\"tenant.deleted\",severity=\"info\"}", 1.0);
    await_sample(&host, "events_total{type=\"daemon.deleted\",severity=\"info\"}", 1.0);
    // Both are there before the first, so that a rate sees it.
    assert!(
        Metrics::of(&host).get("events_total{type=\"daemon.died\",severity=\"error\"}").abs() < f64::EPSILON
    );
    let failed = Metrics::of(&host).get("operations_total{kind=\"delete_daemon\",outcome=\"failed\"}");
    assert!(failed.abs() < f64::EPSILON);
}

#[test]
fn deaths_drift_partitions_and_missing_gpus_are_exported() {
    let host = InProcess::ready();
    in_static_mode(&host);
    write(&host, "prod", &[add("web", 7), add("batch", 5)]);
    let applied = host.cli(&["layout", "apply", "prod", "--daemon", "gpu1", "--gpu", "0=1"]);
    assert!(applied.status.success());
    let gpu = host.daemon("gpu1")["spec"]["gpus"][0].as_str().expect("a UUID").to_owned();
    let metrics = Metrics::of(&host);
    let on =
        |family: &str, more: &str| metrics.get(&format!("{family}{{daemon=\"gpu1\",gpu=\"{gpu}\"{more}}}"));
    let (web, free) = (on("partition_chunks", ",partition=\"web\""), on("gpu_chunks_free", ""));
    assert_eq!(format!("{web} {free}"), "7 3");
    assert!(on("partition_sms", ",partition=\"batch\"") >= 40.0);
    signal(host.daemon_pid("gpu0"), Signal::KILL);
    await_sample(&host, "daemon_deaths_total{daemon=\"gpu0\"}", 1.0);
    await_sample(&host, "daemon_phase{daemon=\"gpu0\",phase=\"ready\"}", 1.0);
    await_sample(&host, "daemon_starts_total{daemon=\"gpu0\"}", 2.0);
}

#[test]
fn hung_daemon_is_reported_at_once() {
    let host = InProcess::configured("control_deadline_s = 1");
    let daemon = host.daemon_pid("gpu0");
    signal(daemon, Signal::STOP);
    let reported = eventually("the daemon is reported as not answering", || {
        let began = Instant::now();
        let metrics = Metrics::of(&host);
        // A bound on waiting for anything, which would be a second and more; the figure is in docs/figures.md.
        assert!(began.elapsed() < Duration::from_secs(1), "it was waited for");
        let ready = metrics.get("daemon_phase{daemon=\"gpu0\",phase=\"ready\"}");
        let failed = ["unresponsive", "unknown"].map(|kind| {
            metrics.get(&format!("control_commands_failed_total{{daemon=\"gpu0\",kind=\"{kind}\"}}"))
        });
        (ready == 0.0 && failed[0] + failed[1] > 0.0).then_some(metrics)
    });
    assert!((reported.get("daemon_up{daemon=\"gpu0\"}") - 1.0).abs() < f64::EPSILON, "its process is there");
    assert!((reported.get("daemon_phase{daemon=\"gpu1\",phase=\"ready\"}") - 1.0).abs() < f64::EPSILON);
    signal(daemon, Signal::CONT);
    await_sample(&host, "daemon_phase{daemon=\"gpu0\",phase=\"ready\"}", 1.0);
}

#[test]
fn silent_daemon_is_logged_until_it_changes() {
    let host = Host::configured("control_deadline_s = 1");
    let daemon = host.daemon_pid("gpu0");
    signal(daemon, Signal::STOP);
    let failed = "control_commands_failed_total{daemon=\"gpu0\",kind=\"unresponsive\"}";
    eventually("several polls failed", || (Metrics::of(&host).get(failed) >= 3.0).then_some(()));
    let log = host.log();
    // The command that was sent, and those after it that were not.
    assert!((1..=2).contains(&log.matches("a command was not answered").count()), "{log}");
    signal(daemon, Signal::CONT);
    host.await_ready();
}

#[test]
fn requests_are_counted_by_known_route_only() {
    let host = InProcess::stopped();
    for number in 0..20 {
        host.api().get(&format!("/api/v1/tenants/none_{number}"));
        host.api().get(&format!("/nowhere/{number}"));
        host.api().send(
            reqwest::Method::from_bytes(format!("M{number}").as_bytes()).unwrap(),
            "/healthz",
            &[],
            None,
        );
    }
    let metrics = Metrics::of(&host);
    let counted = |labels: &str| metrics.get(&format!("http_requests_total{{{labels}}}"));
    let answered = [
        counted("route=\"/api/v1/tenants/{name}\",method=\"GET\",status=\"4xx\""),
        counted("route=\"none\",method=\"GET\",status=\"4xx\""),
        counted("route=\"/healthz\",method=\"other\",status=\"4xx\""),
    ];
    assert_eq!(answered.map(|count| count.to_string()), ["20", "20", "20"]);
    assert!(!metrics.has("none_1") && !metrics.has("nowhere") && !metrics.has("M1"));
    let slow = "http_request_duration_seconds_count{route=\"/api/v1/tenants/{name}\",method=\"GET\"}";
    assert!(metrics.get(slow) >= 20.0);
}

#[test]
fn metrics_need_a_token_or_the_socket() {
    let host = InProcess::stopped();
    host.api().with_token(None).get("/metrics").problem(401, "unauthorized");
    assert_eq!(host.api().over(&host.runtime("api.sock")).get("/metrics").status, 200);
}

#[test]
fn served_metrics_match_documented_catalogue() {
    let host = Secured::served("h200x2").host;
    let answer = host.api().get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let metrics = Metrics::parse(&answer.text);
    let documented = catalogue();
    let served: BTreeMap<&str, (&str, &str)> = metrics
        .types
        .iter()
        .map(|(name, kind)| (name.as_str(), (kind.as_str(), metrics.help[name].trim_end_matches('.'))))
        .collect();
    let meant = documented.iter().map(|(name, entry)| (name.as_str(), (entry.kind, entry.meaning)));
    assert_eq!(served, meant.collect());
    for sample in metrics.samples.keys() {
        let (name, labels) = sample.trim_end_matches('}').split_once('{').unwrap_or((sample, ""));
        let ends = ["_bucket", "_sum", "_count"];
        let family =
            ends.iter().find_map(|end| name.strip_suffix(end).filter(|name| served.contains_key(name)));
        let entry = &documented[family.unwrap_or(name)];
        let labels: Vec<(&str, &str)> =
            labels.split_terminator("\",").map(|label| label.split_once("=\"").expect("a label")).collect();
        let names: Vec<&str> = labels.iter().map(|(name, _)| *name).filter(|name| *name != "le").collect();
        assert_eq!(names, entry.labels, "{sample}");
        assert!(labels.iter().all(|(_, value)| !value.trim_matches('"').is_empty()), "{sample}");
        assert_eq!(name.ends_with("_total"), entry.kind == "counter", "{sample}");
    }
    let open = host.api().send(
        reqwest::Method::GET,
        "/metrics",
        &[("accept", "application/openmetrics-text; version=1.0.0")],
        None,
    );
    assert!(open.header("content-type").is_some_and(|kind| kind.starts_with("application/openmetrics-text")));
    assert!(open.text.ends_with("# EOF\n"));
    if let Some(checked) = promtool(&["check", "metrics"], &answer.text) {
        let message = String::from_utf8_lossy(&checked.stderr);
        assert!(checked.status.success() && message.trim().is_empty(), "{message}");
    }
}

#[test]
fn the_alert_rules_do_what_they_say() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy");
    let check = |arguments: &[&str]| {
        let output = Command::new("promtool").args(arguments).current_dir(directory).output();
        match output {
            Ok(output) => {
                let printed = [output.stdout, output.stderr].concat();
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&printed));
            }
            Err(_) => missing("promtool"),
        }
    };
    check(&["check", "rules", "prometheus-rules.yml"]);
    check(&["test", "rules", "prometheus-rules-test.yml"]);
}

/// A Prometheus, gone with this value.
struct Prometheus(Child);

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_prometheus_scrapes_a_manager() {
    let host = InProcess::stopped();
    let directory = host.dir().join("prometheus");
    std::fs::create_dir(&directory).expect("a directory");
    let target = host.url().trim_start_matches("http://").to_owned();
    // A port that is free now; a program that takes it before Prometheus does makes it fail, and another is chosen.
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: mps-manager\n  authorization: {{credentials_file: {}}}\n  static_configs: [{{targets: [\"{target}\"]}}]\n",
        host.state("admin.token").display()
    );
    std::fs::write(directory.join("prometheus.yml"), config).expect("written");
    let start = || {
        let port =
            std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let log = std::fs::File::create(directory.join("log")).expect("a log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", directory.join("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", directory.join("data").display()))
            .arg(format!("--web.listen-address={port}"))
            .env("MPS_TEST_DIRECTORY", host.dir())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        child.ok().map(|child| (Prometheus(child), port))
    };
    let Some((mut prometheus, mut port)) = start() else { return missing("prometheus") };
    let query = |port: &std::net::SocketAddr, what: &str| -> Option<Value> {
        let api = host.api().at(&format!("http://{port}"));
        let answer =
            api.try_send(reqwest::Method::GET, &format!("/api/v1/query?query={what}"), &[], None).ok()?;
        if answer.status != 200 {
            return None; // it still reads what it stored
        }
        let result = answer.json()["data"]["result"].clone();
        result.as_array().is_some_and(|result| !result.is_empty()).then_some(result)
    };
    let up = eventually("it has scraped", || {
        if prometheus.0.try_wait().expect("waited for").is_some() {
            (prometheus, port) = start()?;
        }
        query(&port, "up").filter(|up| up[0]["value"][1] == "1")
    });
    assert_eq!(up[0]["metric"]["job"], "mps-manager");
    let daemons = eventually("it has the gauge", || query(&port, "mps_manager_daemon_up"));
    let names: BTreeSet<&str> = daemons
        .as_array()
        .expect("samples")
        .iter()
        .filter_map(|sample| sample["metric"]["daemon"].as_str())
        .collect();
    assert_eq!(names, BTreeSet::from(["gpu0", "gpu1"]));
    let tenants = query(&port, "sum(mps_manager_tenant_clients_limit)").expect("a sum");
    assert_eq!(tenants[0]["value"][1], json!("5"));
}
