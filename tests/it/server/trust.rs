//! Files and sockets that others own, may write, or take away: refused at the start, and noticed while the manager serves.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;

use rustix::process::Signal;
use rustix::thread::set_thread_res_uid;
use serde_json::{Value, json};

use crate::harness::{Host, InProcess, Served, eventually, is_root, signal_if_there, stderr_of};

const NOBODY: u32 = 65_534;

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_that_others_may_change_are_refused() {
    let host = Host::new("");
    let (state, run) = (host.state(""), host.runtime(""));
    fs::create_dir(&state).unwrap();
    fs::create_dir(&run).unwrap();
    let refused = |path: &Path, word: &str| {
        let message = host.refused(&[]);
        assert!(
            message.contains(path.to_str().unwrap().trim_end_matches('/')) && message.contains(word),
            "{message}"
        );
        assert!(!host.state("lock").exists() && !host.runtime("api.sock").exists(), "something was made");
    };
    for (name, bad, word) in [
        ("admin.token", 0o644, "chmod 600"),
        ("mps-manager.db", 0o666, "chmod go-w"),
        ("audit.head", 0o622, "chmod go-w"),
    ] {
        let file = host.state(name);
        fs::write(&file, "").unwrap();
        mode(&file, bad);
        refused(&file, word);
        fs::remove_file(&file).unwrap();
    }
    for directory in [&state, &run] {
        mode(directory, 0o777);
        refused(directory, "chmod go-w");
        mode(directory, 0o755);
    }
    let (victim, link) = (host.dir().join("victim"), host.runtime("daemons"));
    fs::create_dir(&victim).unwrap();
    symlink(&victim, &link).unwrap();
    refused(&link, "is a symbolic link");
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    fs::remove_file(&link).unwrap();
    let config = host.dir().join("config.toml");
    mode(&config, 0o666);
    refused(&config, "chmod go-w");
    mode(&config, 0o644);
    if is_root() {
        for path in [&state, &run, &config] {
            chown(path, Some(NOBODY), None).unwrap();
            refused(path, "chown 0");
            chown(path, Some(0), None).unwrap();
        }
        // A directory on the way is enough.
        chown(host.dir(), Some(NOBODY), None).unwrap();
        refused(host.dir(), "chown 0");
        chown(host.dir(), Some(0), None).unwrap();
    }
}

/// A server at a runtime directory's socket, run by a user, that gives every request one answer; it records what it received.
fn fake_server(host: &Served, uid: u32, answer: &Value) -> (mpsc::Receiver<String>, JoinHandle<()>) {
    let run = host.runtime("");
    fs::create_dir_all(&run).unwrap();
    mode(&run, 0o777);
    let socket = host.runtime("api.sock");
    let _ = fs::remove_file(&socket);
    let (received, all) = mpsc::channel();
    let (ready, listening) = mpsc::channel();
    let body = answer.to_string();
    let server = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(uid);
        // This thread's alone.
        set_thread_res_uid(user, user, user).unwrap();
        let listener = UnixListener::bind(&socket).unwrap();
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
        ready.send(()).unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(&stream).lines();
        let head: Vec<String> =
            lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
        received.send(head.join("\n")).unwrap();
        let length = body.len();
        let head = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\nconnection: close";
        let _ = write!(&stream, "{head}\r\ncontent-length: {length}\r\n\r\n{body}");
        // Until the caller has gone.
        let _ = lines.by_ref().map_while(Result::ok).count();
    });
    listening.recv().unwrap();
    (all, server)
}

fn lease(uid: u32, variables: &Value) -> Value {
    json!({
        "holder": format!("{}-1", std::process::id()),
        "uid": uid,
        "environment": { "variables": variables, "unset": [] },
    })
}

#[test]
fn a_strangers_socket_is_sent_nothing() {
    if !is_root() {
        return;
    }
    let host = Host::new("");
    let answer = lease(0, &json!({"LD_PRELOAD": "/tmp/evil.so"}));
    for arguments in [
        &["run", "--tenant", "batch", "--", "/usr/bin/env"][..],
        &["status"],
        &["env", "batch"],
        &["token", "list"],
    ] {
        let (received, server) = fake_server(&host, NOBODY, &answer);
        let output = host.cli(arguments);
        let message = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains("is served by uid 65534") && message.contains("client.toml"), "{message}");
        assert!(output.stdout.is_empty());
        assert_eq!(received.recv().unwrap(), "", "something was sent");
        server.join().unwrap();
    }
}

#[test]
fn run_takes_only_a_tenants_variables() {
    let host = InProcess::new("");
    let own = rustix::process::geteuid().as_raw();
    let run = |answer: &Value| {
        let (received, server) = fake_server(&host, own, answer);
        let output = host.cli(&["run", "--tenant", "batch", "--", "/usr/bin/env"]);
        assert!(received.recv().unwrap().starts_with("POST /api/v1/tenants/batch/leases"));
        server.join().unwrap();
        output
    };
    let good = run(&lease(own, &json!({"CUDA_VISIBLE_DEVICES": "0", "MPS_MANAGER_TENANT": "batch"})));
    let environment = String::from_utf8(good.stdout.clone()).unwrap();
    assert!(
        good.status.success() && environment.contains("MPS_MANAGER_TENANT=batch"),
        "{}",
        stderr_of(&good)
    );
    for name in ["LD_PRELOAD", "PATH", "CUDA_INJECTION64_PATH"] {
        let bad = run(&lease(own, &json!({ name: "/tmp/evil.so" })));
        assert_eq!(bad.status.code(), Some(2));
        assert!(
            stderr_of(&bad).contains(&format!("sets {name}")) && bad.stdout.is_empty(),
            "{}",
            stderr_of(&bad)
        );
    }
    // `env` is evaluated by a shell.
    for name in ["LD_PRELOAD", "X=1; touch /tmp/evil; Y"] {
        let environment = json!({"variables": {name: "/tmp/evil.so"}, "unset": []});
        let (received, server) = fake_server(&host, own, &environment);
        let bad = host.cli(&["env", "batch"]);
        assert!(received.recv().unwrap().starts_with("GET /api/v1/tenants/batch/environment"));
        server.join().unwrap();
        assert_eq!(bad.status.code(), Some(2));
        assert!(
            stderr_of(&bad).contains(&format!("sets {name}")) && bad.stdout.is_empty(),
            "{}",
            stderr_of(&bad)
        );
    }
}

#[test]
fn a_lost_database_is_refused_at_the_start() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    let database = host.state("mps-manager.db");
    fs::remove_file(&database).unwrap();
    let message = host.refused(&[]);
    assert!(message.contains("is missing") && message.contains("restore a backup"), "{message}");
    assert!(!database.exists());
    fs::write(&database, "").unwrap();
    assert!(host.refused(&[]).contains("is empty"));
    let config = host.dir().join("config.toml");
    let arguments = ["doctor", "-o", "json", "--config", config.to_str().unwrap()];
    let seen = String::from_utf8(host.cli(&arguments).stdout).unwrap();
    assert!(seen.contains("is not a database of mps-manager"), "{seen}");
    let mut serving =
        host.command(&["serve", "--new-database", "--config", config.to_str().unwrap()]).spawn().unwrap();
    eventually("a new database is there", || fs::metadata(&database).ok().filter(|file| file.len() > 0));
    serving.kill().unwrap();
    serving.wait().unwrap();
}

fn conditions(host: &Served) -> Vec<Value> {
    host.api().get("/api/v1/host").ok()["conditions"].as_array().unwrap().clone()
}

#[test]
fn lost_audit_rows_are_reported_until_confirmed() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    host.serve();
    host.await_ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("lost", &spec).status, 201);
    let head = host.api().get("/api/v1/audit/head").ok();
    let known = format!("{} {}\n", head["id"], head["hash"].as_str().unwrap());
    eventually("the head is remembered", || {
        (fs::read_to_string(host.state("audit.head")).unwrap_or_default() == known).then_some(())
    });
    host.end_manager(Signal::KILL);
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(host.state(&format!("mps-manager.db{suffix}")));
    }
    for _ in 0..2 {
        host.serve();
        let found = conditions(&host);
        assert_eq!(
            (&found[0]["type"], &found[0]["reason"]),
            (&json!("AuditTruncated"), &json!("RowsMissing"))
        );
        assert!(host.log().contains("the database lost what was written last"));
        host.api().get("/api/v1/tenants/lost").problem(404, "not-found");
        let events = host.api().get("/api/v1/events?type=database.rows_lost").ok();
        assert_eq!(events["items"][0]["severity"], "critical", "{events}");
        assert!(stderr_of(&host.cli(&["status"])).is_empty());
        if known == fs::read_to_string(host.state("audit.head")).unwrap() {
            host.end_manager(Signal::TERM);
        }
    }
    host.serve();
    let machine = host.api().get("/api/v1/host").ok()["machine_id"].clone();
    let host_now = host.api().post("/api/v1/host/confirm", &json!({ "machine_id": machine })).ok();
    assert_eq!(host_now["conditions"], json!([]));
    host.end_manager(Signal::TERM);
    host.serve();
    assert_eq!(conditions(&host), Vec::<Value>::new());
}

#[test]
fn a_database_that_vanishes_takes_no_writes() {
    let host = InProcess::ready();
    let (database, aside) = (host.state("mps-manager.db"), host.state("aside.db"));
    fs::rename(&database, &aside).unwrap();
    eventually("it is noticed without a write", || {
        let answer = host.api().get("/readyz");
        (answer.status == 503).then(|| assert_eq!(answer.json()["conditions"], json!(["DatabaseLost"])))
    });
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    let problem = host.api().tenant("late", &spec).problem(503, "database-lost");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("mps-manager.db was removed") && detail.contains("restore"), "{detail}");
    assert_eq!(conditions(&host)[0]["reason"], "FileRemoved");
    assert!(!database.exists(), "nothing is made in its place");
    fs::rename(&aside, &database).unwrap();
    host.await_ready();
    assert_eq!(host.api().tenant("late", &spec).status, 201);
    assert_eq!(conditions(&host), Vec::<Value>::new());
}

#[test]
fn a_removed_socket_comes_back() {
    let host = Host::ready();
    let socket = host.runtime("api.sock");
    fs::remove_file(&socket).unwrap();
    eventually("commands reach the manager again", || host.cli(&["status"]).status.success().then_some(()));
    assert!(host.log().contains("was created again"));
    eventually("something else has its name", || {
        let _ = fs::remove_file(&socket);
        fs::create_dir(&socket).ok()
    });
    eventually("it is reported", || {
        let answer = host.api().get("/readyz");
        (answer.status == 503).then(|| assert_eq!(answer.json()["conditions"], json!(["SocketLost"])))
    });
    fs::remove_dir(&socket).unwrap();
    host.await_ready();
    let output = host.run("demo", &["true"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
}

/// A document of many layouts, each with steps that add a partition of one chunk.
fn layouts(prefix: &str, count: usize, steps: usize) -> Value {
    let add = |step: usize| json!({"add": {"gpu": 0, "partition": format!("p{step}"), "chunks": 1}});
    let steps: Vec<Value> = (0..steps).map(add).collect();
    let entries: serde_json::Map<String, Value> =
        (0..count).map(|number| (format!("{prefix}{number}"), json!({"steps": steps}))).collect();
    json!({"version": "v1", "layouts": entries})
}

#[test]
fn import_does_not_block_other_writes() {
    let host = InProcess::stopped();
    let layouts = |count: usize| layouts("l", count, 1);
    let many = host.api().post("/api/v1/layouts/import", &layouts(501)).problem(422, "invalid-request");
    assert_eq!(many["errors"][0]["pointer"], "/layouts");
    assert_eq!(host.api().get("/api/v1/layouts").ok()["items"], json!([]), "nothing of it was kept");
    let (api, document) = (host.api().clone(), layouts(500));
    let import = std::thread::spawn(move || api.post("/api/v1/layouts/import", &document).ok());
    let mut between = 0;
    while !import.is_finished() {
        let limit = format!("{}M", 1024 + between % 8);
        let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": limit});
        assert!([200, 201].contains(&host.api().tenant("between", &spec).status));
        between += 1;
    }
    assert_eq!(import.join().unwrap()["items"].as_array().unwrap().len(), 500);
    assert!(between > 0);
    // Generous: what is measured is an unoptimised build on a busy machine.
    let metrics = host.api().get("/metrics").text;
    let count = |end: &str| -> u64 {
        let name = format!("mps_manager_store_writer_hold_seconds_{end} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
    };
    assert!(count("count") >= 25, "500 layouts are many changes");
    assert_eq!(
        count("bucket{le=\"1.0\"}"),
        count("count"),
        "one change held the writer for more than a second"
    );
}

#[test]
fn daemon_is_restarted_during_an_import() {
    let host = InProcess::ready();
    // Imports may end before a busy machine has started a control daemon: then it is tried again, with more of them.
    let healed = (0..5).any(|round| {
        let import = |number: u32| {
            let (api, document) = (host.api().clone(), layouts(&format!("r{round}_{number}_"), 500, 15));
            std::thread::spawn(move || api.post("/api/v1/layouts/import", &document).ok())
        };
        let imports: Vec<_> = (0..1 << round).map(import).collect();
        let control = host.daemon_pid("gpu0");
        signal_if_there(control, Signal::KILL);
        let mut healed = false;
        eventually("the daemon is ready again", || {
            let status = &host.daemon("gpu0")["status"];
            (status["phase"] == "ready" && status["pid"] != control).then(|| {
                healed = imports.iter().any(|import| !import.is_finished());
            })
        });
        for import in imports {
            import.join().unwrap();
        }
        healed
    });
    assert!(healed, "a daemon waited for the imports to end");
}

#[test]
fn doctor_examines_the_manager_that_serves() {
    let host = Host::ready();
    let checks = |arguments: &[&str]| {
        let output = host.cli(&[&["doctor", "-o", "json"][..], arguments].concat());
        let seen: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr_of(&output)));
        let all = seen["checks"].as_array().unwrap().clone();
        move |id: &str| all.iter().find(|check| check["id"] == id).unwrap().clone()
    };
    // By MPS_MANAGER_RUNTIME_DIR alone.
    let seen = checks(&[]);
    let state = host.dir().join("state");
    for (id, word) in [
        ("configuration", state.to_str().unwrap()),
        ("driver", "SIMULATED"),
        ("manager", "serves at"),
        ("database", "intact"),
        ("foreign_daemons", "no MPS control daemon"),
        ("listen", ""),
    ] {
        let check = seen(id);
        assert_eq!(check["status"], "ok", "{check}");
        assert!(check["seen"].as_str().unwrap().contains(word), "{check}");
    }
    // A port of another program is not the manager's.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let other = host.dir().join("other.toml");
    let text = fs::read_to_string(host.dir().join("config.toml")).unwrap();
    let with = |address: &str| {
        fs::write(&other, text.replace("127.0.0.1:0", address)).unwrap();
        checks(&["--config", other.to_str().unwrap()])("listen")
    };
    let check = with(&address);
    assert_eq!(check["status"], "fail", "{check}");
    assert!(check["seen"].as_str().unwrap().contains("in use by another program"), "{check}");
    let own = host.url().replace("http://", "");
    assert_eq!(with(&own)["status"], "ok");
}

#[test]
fn usage_names_no_option_that_a_variable_set() {
    let host = InProcess::new("");
    let output = host.cli(&["run", "--", "id"]);
    let text = stderr_of(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--tenant <TENANT>") && !text.contains("RUNTIME_DIR"), "{text}");
    let help = String::from_utf8(host.cli(&["run", "--help"]).stdout).unwrap();
    assert!(help.contains("[env: `MPS_MANAGER_RUNTIME_DIR`]"), "{help}");
}
