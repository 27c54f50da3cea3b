//! Events of daemons, servers, clients and operations, in lists and in streams.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{add, in_static_mode, target, write};
use crate::harness::{Client, EventStream, Host, InProcess, Served, TIMEOUT, eventually, setting, signal};

/// The types of events, in their order.
fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().expect("a type")).collect()
}

/// Waits until events that are asked for are these.
fn await_types(host: &Served, query: &str, expected: &[&str]) -> Vec<Value> {
    eventually(&format!("{expected:?} are reported"), || {
        let events = host.events(query);
        (types(&events) == expected).then_some(events)
    })
}

#[test]
fn host_start_deaths_and_recoveries_are_reported() {
    let host = InProcess::ready();
    let events = host.events("");
    assert_eq!(events[0]["type"], "manager.started");
    assert_eq!(events[0]["details"]["predecessor"], "none");
    let ids: Vec<i64> = events.iter().map(|event| event["id"].as_i64().expect("a number")).collect();
    assert_eq!(ids, (1..=i64::try_from(ids.len()).expect("few")).collect::<Vec<_>>());
    let reported = await_types(
        &host,
        "&type=daemon.started,daemon.ready&daemon=gpu0",
        &["daemon.started", "daemon.ready"],
    );
    let gpu = host.api().get("/api/v1/gpus/0").ok()["uuid"].clone();
    assert!(reported.iter().all(|event| event["subject"]["gpu"] == gpu), "{reported:?}");

    let (daemon, server) = (host.daemon_pid("gpu0"), host.server_pid("gpu0"));
    signal(server, Signal::KILL);
    let query = "&type=server.&daemon=gpu0";
    let reported = await_types(&host, query, &["server.started", "server.exited", "server.started"]);
    assert_eq!(reported[1]["subject"]["server"], server);
    assert_eq!(reported[1]["cause"], json!({ "by": "mps" }));
    signal(daemon, Signal::KILL);
    let query = "&type=daemon.died,daemon.started&daemon=gpu0";
    let reported = await_types(&host, query, &["daemon.started", "daemon.died", "daemon.started"]);
    assert_eq!(reported[1]["severity"], "error");
    assert_eq!(reported[2]["cause"], json!({ "by": "event", "id": reported[1]["id"] }));
}

#[test]
fn operation_events_have_steps_and_causes() {
    let host = InProcess::ready();
    let restarted =
        host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    let id = restarted["id"].as_str().expect("an ID");
    let reported = host.events(&format!("&operation={id}"));
    let kinds = types(&reported);
    assert_eq!(kinds[..2], ["operation.requested", "operation.started"]);
    assert_eq!(kinds.last(), Some(&"operation.finished"));
    assert!(kinds[2..kinds.len() - 1].iter().all(|kind| *kind == "operation.step"), "{kinds:?}");
    assert_eq!(reported[1]["cause"], json!({ "by": "event", "id": reported[0]["id"] }));
    assert_eq!(reported[2]["cause"], json!({ "by": "event", "id": reported[1]["id"] }));
    assert_eq!(reported[2]["subject"]["daemon"], "gpu1");
    assert_eq!(reported[0]["details"]["operation"], "restart_daemon");
    await_types(&host, "&daemon=gpu1&type=daemon.stopped", &["daemon.stopped"]);
}

#[test]
fn operation_events_match_gpu_daemon_and_tenant() {
    let host = InProcess::ready();
    let gpus = ["0", "1"].map(|gpu| host.api().get(&format!("/api/v1/gpus/{gpu}")).ok()["uuid"].clone());
    let both = ["operation.requested", "operation.finished"];
    let whole = "&type=operation.requested,operation.finished";
    let client = host.run_client("demo");
    let came = await_types(&host, "&tenant=demo&type=client.", &["client.connected"]);
    let id = came[0]["subject"]["client"].as_str().expect("an ID");
    let ended = host.api().post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    host.api().succeeds(&ended);
    drop(client);
    let reported = await_types(&host, &format!("&tenant=demo{whole}"), &both);
    assert_eq!(reported[1]["subject"]["gpu"], gpus[0]);
    assert_eq!(reported, host.events(&format!("&gpu=0{whole}")));
    await_types(&host, "&tenant=demo&type=client.terminated", &["client.terminated"]);
    assert!(host.events(&format!("&tenant=batch{whole}")).is_empty());
    assert!(host.events(&format!("&gpu=1{whole}")).is_empty());

    // Of several daemons and GPUs.
    let begun = host.api().post("/api/v1/host/maintenance", &json!({"timeout_s": 60}));
    let operation = host.api().succeeds(&begun)["id"].as_str().expect("an ID").to_owned();
    let of_it = host.events(&format!("&operation={operation}&type=operation."));
    assert_eq!(of_it[0]["details"]["gpus"].as_array().map(Vec::len), Some(2));
    assert_eq!(of_it[0]["subject"]["gpu"], Value::Null);
    for place in ["gpu=0", "gpu=1", "daemon=gpu0", "daemon=gpu1", "daemon=gpu1&gpu=1"] {
        let found = host.events(&format!("&{place}&operation={operation}&type=operation."));
        assert_eq!(found, of_it, "{place}");
    }
    let newest = host.api().get("/api/v1/events?gpu=1&type=operation.&limit=1").ok();
    assert_eq!(newest["items"][0], of_it[of_it.len() - 1]);
    host.api().succeeds(&host.api().delete("/api/v1/host/maintenance"));

    // A daemon that is gone at the end of what deletes it.
    let deleted = host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    let id = deleted["id"].as_str().expect("an ID");
    let reported = await_types(&host, &format!("&operation={id}{whole}"), &both);
    assert!(reported.iter().all(|event| event["subject"]["gpu"] == gpus[1]), "{reported:?}");
}

#[test]
fn spec_changes_by_operations_name_the_operation() {
    let host = InProcess::ready();
    in_static_mode(&host);
    write(&host, "prod", &[add("web", 7)]);
    let number = host.events("").last().expect("events")["id"].as_i64().expect("a number");
    let changes = || {
        let mut events = host.events("&type=daemon.changed");
        events.retain(|event| event["id"].as_i64() > Some(number));
        events
    };
    let applied = host.api().succeeds(&host.api().post("/api/v1/layouts/prod/apply", &target(&json!({}))));
    let drained = host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/drain?timeout_s=0", &json!({})));
    let stopped = host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    let reported = changes();
    let fields: Vec<&Value> = reported.iter().map(|event| &event["details"]["fields"]).collect();
    assert_eq!(fields, [&json!(["layout"]), &json!(["schedulable"]), &json!(["desired_state"])]);
    for (event, (operation, daemon)) in
        reported.iter().zip([(&applied, "gpu1"), (&drained, "gpu0"), (&stopped, "gpu1")])
    {
        assert_eq!(event["subject"]["operation"], operation["id"]);
        assert_eq!(event["subject"]["daemon"], daemon);
        let id = operation["id"].as_str().expect("an ID");
        let started = host.events(&format!("&operation={id}&type=operation.started"));
        assert_eq!(event["cause"], json!({ "by": "event", "id": started[0]["id"] }));
    }
    // What has not changed is not reported again.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=1", &json!({})));
    assert_eq!(changes().len(), 3);
}

#[test]
fn event_lists_are_filtered_and_paged() {
    let host = InProcess::ready();
    let newest = host.api().get("/api/v1/events?limit=3").ok();
    let ids: Vec<i64> =
        newest["items"].as_array().unwrap().iter().map(|event| event["id"].as_i64().unwrap()).collect();
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1] + 1), "{ids:?}");
    let cursor = newest["next_cursor"].as_str().expect("more");
    let next = host.api().get(&format!("/api/v1/events?limit=3&cursor={cursor}")).ok();
    assert_eq!(next["items"][0]["id"], ids[2] - 1);
    let one = host.api().get(&format!("/api/v1/events/{}", ids[0])).ok();
    assert_eq!(one, newest["items"][0]);
    host.api().get("/api/v1/events/999999999").problem(404, "not-found");
    let gpu = host.api().get("/api/v1/gpus/1").ok()["uuid"].as_str().unwrap().to_owned();
    let by_index = host.events("&gpu=1");
    assert!(!by_index.is_empty());
    assert_eq!(by_index, host.events(&format!("&gpu={gpu}")));
    assert!(host.events("&severity=critical").is_empty());
    assert!(host.events("&until=1970-01-01T00:00:00Z").is_empty());
    for bad in [
        "?type=client",
        "?type=",
        "?severity=loud",
        "?gpu=17",
        "?cursor=bm90aGluZw",
        "?limit=0",
        "?colour=red",
        &format!("?order=oldest&cursor={cursor}"),
    ] {
        host.api().get(&format!("/api/v1/events{bad}")).problem(422, "invalid-request");
    }
    host.api().get("/api/v1/events/newest").problem(422, "invalid-request");
}

#[test]
fn client_connect_and_disconnect_name_its_tenant() {
    let host = InProcess::polled_hourly("");
    let client = host.run_client("demo");
    let pid = client.pid();
    let come = await_types(&host, "&type=client.", &["client.connected"]);
    assert_eq!(come[0]["subject"]["tenant"], "demo");
    assert_eq!(come[0]["details"]["attributed_by"], "lease");
    assert_eq!(come[0]["details"]["known_from"], "poll");
    assert!(come[0]["subject"]["client"].as_str().unwrap().starts_with(&format!("{pid}-")));
    assert!(!come[0].to_string().contains("--spin"), "arguments are nobody else's business: {}", come[0]);
    drop(client);
    let left = await_types(&host, "&type=client.", &["client.connected", "client.left"]);
    assert_eq!(left[1]["subject"], come[0]["subject"]);
    assert_eq!(host.events("&tenant=demo&type=client.").len(), 2);
    assert!(host.events("&tenant=batch&type=client.").is_empty());
}

#[test]
fn log_line_alone_creates_no_client() {
    let host = InProcess::polled_hourly("");
    let server = host.server_pid("gpu0");
    let log = host.runtime("daemons/gpu0/log/server.log");
    let write = |texts: &[String]| {
        let now = jiff::Zoned::now().strftime("%Y-%m-%d %H:%M:%S%.3f").to_string();
        let lines: Vec<String> =
            texts.iter().map(|text| format!("[{now} Server {server:>5}] {text}\n")).collect();
        let lines = lines.concat();
        fs::File::options().append(true).open(&log).unwrap().write_all(lines.as_bytes()).unwrap();
    };
    let me = std::process::id();
    write(&[format!("Client {{PID: {me}, Context ID: 0}} connected")]);
    let polls = || host.daemon("gpu0")["status"]["sessions"]["polls"].as_u64().unwrap();
    let before = polls();
    eventually("it was polled", || (polls() > before).then_some(()));
    write(&[
        "Client {PID: 4194000, Context ID: 0} connected".to_owned(),
        "Client process 4194000 disconnected".to_owned(),
    ]);
    let reported = await_types(&host, "&type=client.", &["client.connected", "client.left"]);
    for event in &reported {
        assert_eq!(event["details"]["pid"], 4_194_000);
        assert_eq!(event["details"]["known_from"], "server_log");
        assert!(event["subject"]["client"].is_null(), "{event}");
    }
}

#[test]
fn manager_restart_repeats_no_client_events() {
    let mut host = Host::polled_hourly("");
    let stays = host.client("demo");
    let leaves = host.client("demo");
    await_types(&host, "&type=client.", &["client.connected", "client.connected"]);
    let environment = host.client_command("demo", &["--alloc", "64"]);
    host.end_manager(Signal::KILL);
    let gone = leaves.pid();
    drop(leaves);
    let mut passes = environment;
    let visitor = Client::start({
        passes.args(["--spin", "0"]);
        passes
    });
    let visitor_pid = visitor.pid();
    let mut visitor = visitor;
    visitor.ended();
    host.serve();
    host.await_ready();
    let reported = await_types(
        &host,
        "&type=client.,manager.",
        &[
            "manager.started",
            "client.connected",
            "client.connected",
            "manager.started",
            "client.connected",
            "client.left",
            "client.left",
        ],
    );
    assert_eq!(reported[3]["details"]["predecessor"], "died");
    let meanwhile: Vec<(u64, &str)> = reported[4..]
        .iter()
        .map(|event| {
            (event["details"]["pid"].as_u64().unwrap(), event["details"]["known_from"].as_str().unwrap())
        })
        .collect();
    let visitor_pid = u64::from(visitor_pid);
    assert_eq!(
        meanwhile,
        [(visitor_pid, "server_log"), (visitor_pid, "server_log"), (u64::from(gone), "poll")]
    );
    // After an orderly stop it says so, and nothing is reported twice.
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    host.serve();
    host.await_ready();
    let reported = await_types(
        &host,
        "&type=manager.",
        &["manager.started", "manager.started", "manager.stopped", "manager.started"],
    );
    assert_eq!(reported[3]["details"]["predecessor"], "stopped");
    assert_eq!(host.events("&type=client.").len(), 5);
    drop(stays);
    eventually("the last one leaves", || (host.events("&type=client.").len() == 6).then_some(()));
}

#[test]
fn stream_starts_from_now_or_an_id() {
    let mut host = Host::ready();
    let all = host.events("");
    let mut from_the_start = host.stream("", Some(0));
    for event in &all {
        assert_eq!(&from_the_start.next(), event);
    }
    let mut filtered = host.stream("?type=client.", None);
    let client = host.run_client("demo");
    let come = filtered.next();
    assert_eq!(come["type"], "client.connected");
    assert_eq!(come["details"]["pid"], client.pid());
    let newest = host.api().get("/api/v1/events?limit=1").ok()["items"][0]["id"].as_i64().unwrap();
    let refused = |query: &str, last: Option<i64>| {
        let opened = EventStream::open(&host.url(), &host.token(), query, last).expect("an answer");
        opened.err().expect("refused")
    };
    let (status, message) = refused("", Some(newest + 100_000));
    assert_eq!(status, 422, "{message}");
    assert!(message.contains("another database"), "{message}");
    assert_eq!(refused("", Some(-1)).0, 422);
    assert_eq!(refused("?type=nothing", None).0, 422);
    let url = host.url();
    assert_eq!(EventStream::open(&url, "wrong", "", None).unwrap().err().expect("refused").0, 401);
    // A stream that is read holds up no stop.
    let began = Instant::now();
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "the stop waited for its streams");
    let ended = loop {
        match filtered.read(4096) {
            Ok(_) => {}
            Err(error) => break error.kind(),
        }
    };
    assert_eq!(ended, std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn streams_are_bounded_and_report_pruned_events() {
    let mut host = Host::configured("[events]\nkeep_count = 1000\nstreams = 2");
    // More than are kept, as a manager that kept more has left them.
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    host.execute_sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
         INSERT INTO events (at, type, severity, subject, cause, message)
         SELECT unixepoch() * 1000, 'daemon.ready', 1, '{}', '{\"by\":\"manager\"}', 'ready' FROM n",
    );
    host.serve();
    host.await_ready();
    let first = host.stream("", None);
    // Of so few each reader has one, and the next reader the last.
    let other = super::tokens::create(&host, "other", "viewer");
    let _second = EventStream::open(&host.url(), &other, "", None).expect("sent").expect("a stream");
    let again = EventStream::open(&host.url(), &other, "", None).expect("an answer");
    assert_eq!(again.err().expect("refused").0, 429);
    let another = super::tokens::create(&host, "another", "viewer");
    let third = || EventStream::open(&host.url(), &another, "", None).expect("an answer");
    assert_eq!(third().err().expect("refused").0, 503);
    drop(first);
    eventually("a place is free", || {
        // A reader that hangs up is noticed at the next write.
        host.api().post("/api/v1/daemons/gpu1/cordon", &json!({}));
        host.api().post("/api/v1/daemons/gpu1/uncordon", &json!({}));
        third().ok().map(drop)
    });
    eventually("events are pruned", || (host.events("").len() <= 1250).then_some(()));
    let lost = eventually("a place is free again", || {
        let opened =
            EventStream::open(&host.url(), &host.token(), "?type=manager.", Some(0)).expect("an answer");
        Some(opened.ok()?.next())
    });
    assert_eq!(lost["type"], "events.lost");
    let whole_from = lost["details"]["whole_from"].as_i64().expect("a number");
    assert!(whole_from > 1);
    assert_eq!(lost["id"], whole_from - 1);
    assert_eq!(host.api().get(&format!("/api/v1/events/{}", whole_from - 2)).status, 404);
    // Who comes again from there misses nothing more.
    let next = eventually("a place is free once more", || {
        let after = lost["id"].as_i64();
        let opened = EventStream::open(&host.url(), &host.token(), "", after).expect("an answer");
        Some(opened.ok()?.next())
    });
    assert_eq!(next["id"], whole_from);
}

#[test]
fn the_command_line_shows_events_and_follows_them() {
    let host = InProcess::ready();
    let output = host.cli(&["events", "--type", "manager.", "-o", "json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let event: Value = serde_json::from_slice(&output.stdout).expect("one line of JSON");
    assert_eq!(event["type"], "manager.started");
    let table = host.cli(&["events", "-n", "1000"]);
    assert!(String::from_utf8_lossy(&table.stdout).contains("manager.started"));
    let refused = host.cli(&["events", "--type", "nonsense"]);
    assert_eq!(refused.status.code(), Some(2));
    let mut follows = host.command(&["events", "--follow", "-n", "0", "--type", "client.", "-o", "json"]);
    let mut follows = follows.stdout(std::process::Stdio::piped()).spawn().expect("it runs");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(follows.stdout.take().expect("piped")));
    // It may not have begun yet: one that connects later is reported, too.
    let (sender, lines_read) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || sender.send(lines.next()));
    let event = eventually("a client is reported", || {
        let _client = host.run_client("demo");
        lines_read.recv_timeout(Duration::from_secs(1)).ok()
    });
    let event: Value = serde_json::from_str(&event.expect("a line").expect("text")).expect("JSON");
    assert_eq!(event["type"], "client.connected");
    follows.kill().expect("ended");
    follows.wait().expect("reaped");
    drop(reading.join());
}

/// How long it takes until a client that came, or left, is in the list and in a stream.
#[test]
fn client_changes_reach_list_and_stream_soon() {
    let rounds = setting("MPS_MANAGER_LATENCY_ROUNDS");
    let host = InProcess::polled_hourly("");
    let mut stream = host.stream("?type=client.", None);
    let (mut listed, mut reported) = (Vec::new(), Vec::new());
    let known = || host.api().get("/api/v1/clients").ok()["items"].as_array().unwrap().len();
    for _ in 0..rounds.unwrap_or(3) {
        let client = Client::start(host.client_command("demo", &["--spin", "600", "--alloc", "64"]));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        // Its first line comes once it is admitted.
        let mut began = Instant::now();
        for (count, kind) in [(1, "client.connected"), (0, "client.left")] {
            if count == 0 {
                signal(client.pid(), Signal::KILL);
                began = Instant::now();
            }
            assert_eq!(stream.next()["type"], kind);
            reported.push(began.elapsed());
            while known() != count {
                std::thread::sleep(Duration::from_millis(1));
                assert!(began.elapsed() < TIMEOUT);
            }
            listed.push(began.elapsed());
        }
        drop(client);
    }
    let figures = |name: &str, times: &mut Vec<Duration>| {
        times.sort();
        let at = |percent: usize| times[(times.len() * percent).div_ceil(100).saturating_sub(1)];
        println!("{name}: {} times, p50 {:?}, p99 {:?}", times.len(), at(50), at(99));
        at(99)
    };
    let slowest = figures("listed", &mut listed).max(figures("reported", &mut reported));
    if rounds.is_some() {
        assert!(slowest < Duration::from_millis(250), "{slowest:?}");
    }
}
