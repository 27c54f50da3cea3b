//! What a user of the host who is no tenant's and has no role can read, and connect to.

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::foreign_refused::host_with_a_free_gpu;
use crate::harness::{Client, Foreign, Host, eventually, is_root, stderr_of};

/// Users of the host; the first two are tenants'.
const OF_TENANT: u32 = 65_534;
const OF_OTHER: u32 = 1_234;
const STRANGER: u32 = 33;

/// All paths of a directory but those below `except`.
fn walk(directory: &Path, except: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        if path == except {
            continue;
        }
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, except, found);
        }
        found.push(path);
    }
}

/// Those of these paths that a user may read, list or connect to, as the kernel says; with how many were tried.
fn open_to(uid: u32, host: &Host) -> (Vec<String>, usize) {
    let mut paths = Vec::new();
    // The simulated host stands for kernel and driver, which everybody reaches.
    for directory in ["run", "state"] {
        walk(&host.dir().join(directory), &host.runtime("sim"), &mut paths);
    }
    let look = r#"while IFS= read -r path; do
        if [ -L "$path" ]; then continue; fi
        if [ -S "$path" ]; then if [ -w "$path" ]; then echo "$path"; fi
        elif [ -r "$path" ]; then echo "$path"; fi
    done"#;
    let mut shell = Command::new("sh");
    shell.args(["-c", look]).uid(uid).gid(uid).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut shell = shell.spawn().expect("a shell");
    let lines: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let lines = lines.join("\n") + "\n";
    let mut input = shell.stdin.take().expect("piped");
    let writing = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = shell.wait_with_output().expect("it ends");
    writing.join().expect("no panic").expect("all were tried");
    let found = String::from_utf8(output.stdout).expect("UTF-8");
    let home = format!("{}/", host.dir().display());
    (found.lines().map(|path| path.replacen(&home, "", 1)).collect(), paths.len())
}

/// A host with a daemon for one user and one for several, and a tenant of each of two users.
fn two_users() -> Host {
    let host = Host::ready();
    assert_eq!(
        host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"], "multi_user": true})).status,
        200
    );
    // The examples are root's.
    for example in host.api().get("/api/v1/tenants").ok()["items"].as_array().expect("a list") {
        let name = example["name"].as_str().expect("a name");
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{name}")).status, 204);
    }
    for (name, daemon, uid) in [("one", "gpu0", OF_TENANT), ("two", "gpu1", OF_OTHER)] {
        let spec = json!({"daemon": daemon, "uid": uid, "device_memory_limit": "2G"});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    host
}

fn directory_of(host: &Host, tenant: &str) -> String {
    let environment = host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
    let path = environment["variables"]["CUDA_MPS_PIPE_DIRECTORY"].as_str().expect("a path").to_owned();
    path.replacen(&format!("{}/", host.dir().display()), "", 1)
}

#[test]
fn strangers_reach_the_socket_of_the_api_alone() {
    if !is_root() {
        return;
    }
    let host = two_users();
    let (mut seen, mut tried) = (Vec::new(), 0);
    // The files for engines follow the tenants.
    eventually("the files are written", || host.runtime("env/two.env").exists().then_some(()));
    for _ in 0..2 {
        (seen, tried) = open_to(STRANGER, &host);
    }
    assert_eq!(seen, ["run/api.sock"], "of {tried} paths");
    assert!(tried > 30, "{tried} paths");
    for (uid, tenant, daemon) in [(OF_TENANT, "one", Some("gpu0")), (OF_OTHER, "two", None)] {
        let (seen, _) = open_to(uid, &host);
        let own = directory_of(&host, tenant);
        let mut theirs =
            vec!["run/api.sock".to_owned(), format!("run/env/{tenant}.env"), format!("{own}/control")];
        // Its server runs as the tenant's user, and connects to the daemon.
        theirs.extend(daemon.map(|daemon| format!("run/daemons/{daemon}/pipe/control")));
        let others: Vec<&String> = seen.iter().filter(|path| !theirs.contains(path)).collect();
        let is_of_server = |path: &&&String| {
            daemon.is_some_and(|daemon| path.starts_with(&format!("run/daemons/{daemon}/pipe/")))
        };
        assert!(others.iter().all(|path| is_of_server(&path)), "{uid} reaches {others:?}");
        assert!(
            theirs.iter().all(|path| seen.contains(path)),
            "{uid} reaches {seen:?}, and not all of {theirs:?}"
        );
    }
}

#[test]
fn administrator_lets_further_users_in() {
    if !is_root() {
        return;
    }
    let host = two_users();
    let control = format!("{}/control", directory_of(&host, "two"));
    let reaches = |uid: u32| open_to(uid, &host).0.contains(&control);
    for (more, who) in [
        (json!({"users": [STRANGER]}), vec![STRANGER]),
        (json!({"any_user": true}), vec![STRANGER, OF_TENANT]),
        (json!({}), vec![]),
    ] {
        let mut spec = json!({"gpus": ["1"], "multi_user": true});
        spec.as_object_mut().expect("a spec").extend(more.as_object().expect("fields").clone());
        assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
        eventually(&format!("{more} holds"), || {
            let let_in: Vec<u32> = [STRANGER, OF_TENANT].into_iter().filter(|uid| reaches(*uid)).collect();
            (let_in == who && reaches(OF_OTHER)).then_some(())
        });
    }
    let said = host.cli(&["daemon", "set", "gpu1", "--user", "33,1001", "--any-user=false"]);
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    assert_eq!(host.daemon("gpu1")["spec"]["users"], json!([33, 1001]));
}

/// A client of a user through a daemon's own directory, which everybody may pass.
fn client_of(host: &Host, uid: u32, foreign: &Foreign) -> Command {
    let mut command = Command::new(host.program_for_everybody());
    command
        .args(["sim", "client", "--json", "--spin", "600"])
        .env_clear()
        .env("MPS_SIM_WORLD", host.runtime("sim"))
        .env("CUDA_MPS_PIPE_DIRECTORY", foreign.pipe());
    command.uid(uid).gid(uid);
    command
}

fn incidents(host: &Host) -> Vec<serde_json::Value> {
    let list = host.api().get("/api/v1/incidents?kind=foreign_user").ok();
    list["items"].as_array().expect("a list").clone()
}

/// A host with a daemon that was adopted, so that its directories are open, and a tenant of it.
fn with_open_directories() -> (Host, Foreign) {
    let host: Host = host_with_a_free_gpu();
    let foreign = host.foreign("theirs", "1");
    assert_eq!(host.adopt("theirs", &foreign, "managed").status, 201);
    host.await_phase("theirs", "ready");
    let spec = json!({"daemon": "theirs", "uid": OF_TENANT, "device_memory_limit": "2G"});
    assert_eq!(host.api().tenant("mine", &spec).status, 201);
    host.await_ready();
    (host, foreign)
}

#[test]
fn stranger_who_locks_tenants_out_is_ended() {
    if !is_root() {
        return;
    }
    let (host, foreign) = with_open_directories();
    let conditions = host.daemon("theirs")["status"]["conditions"].clone();
    assert!(conditions.to_string().contains("AnyUserMayConnect"), "{conditions}");
    let mut stranger = Client::start(client_of(&host, STRANGER, &foreign));
    stranger.ended();
    let incident = eventually("it is an incident that is over", || {
        incidents(&host).into_iter().find(|incident| incident["state"] == "recovered")
    });
    assert_eq!(incident["suspected"][0]["pid"], stranger.pid(), "{incident}");
    assert!(incident["detail"].as_str().is_some_and(|text| text.contains("of uid 33")), "{incident}");
    let program = host.program_for_everybody();
    let words = [program.to_str().expect("UTF-8"), "sim", "client", "--json"];
    let run = host.run("mine", &words);
    assert_eq!(run.status.code(), Some(0), "{}", stderr_of(&run));
    // One who waits behind a tenant's process is named before it has its turn.
    let working =
        Client::start(host.run_command("mine", &[words[0], "sim", "client", "--json", "--spin", "600"]));
    let mut waiting = client_of(&host, STRANGER, &foreign).stdout(Stdio::null()).spawn().expect("it starts");
    eventually("it is named", || {
        let mut open = incidents(&host).into_iter().filter(|incident| incident["state"] == "open");
        open.find(|one| one["detail"].to_string().contains("waits for its turn"))
    });
    drop(working);
    eventually("it has its turn, and is ended", || waiting.try_wait().expect("waited for"));
}

#[test]
fn stranger_is_only_reported_where_that_is_wanted() {
    if !is_root() {
        return;
    }
    let (host, foreign) = with_open_directories();
    let said = host.cli(&["daemon", "set", "theirs", "--foreign-user-policy", "report"]);
    assert!(said.status.success(), "{}", stderr_of(&said));
    let mut stranger = Client::start(client_of(&host, STRANGER, &foreign));
    let incident = eventually("it is an incident", || {
        incidents(&host).into_iter().find(|incident| incident["state"] == "open")
    });
    let ready = eventually("the daemon says who it is", || {
        let ready = host.daemon("theirs")["status"]["conditions"][0].clone();
        ready["message"]
            .to_string()
            .contains(&format!("process {} of uid 33", stranger.pid()))
            .then_some(ready)
    });
    assert_eq!(ready["reason"], "OtherUser", "{ready}");
    assert!(stranger.is_running());
    // What it says ends it.
    let detail = incident["detail"].as_str().expect("a detail");
    let command = detail.split_once("mps-manager ").expect("a command").1;
    let words: Vec<&str> = command.split([' ', ';']).collect();
    assert_eq!(words[0], "terminate", "{detail}");
    let said = host.cli(&words);
    assert!(said.status.success(), "{}", stderr_of(&said));
    stranger.ended();
    eventually("it is over", || incidents(&host).iter().all(|one| one["state"] == "recovered").then_some(()));
    host.await_ready();
}

#[test]
fn strangers_keep_nobody_from_the_socket() {
    if !is_root() {
        return;
    }
    let host =
        Host::configured("[access]\nusers = { \"65534\" = \"viewer\" }\n[limits]\nsocket_connections = 16");
    let socket = host.runtime("api.sock");
    let connections = |uid: u32| {
        std::thread::scope(|scope| {
            let connect = || {
                let user = rustix::thread::Uid::from_raw(uid);
                rustix::thread::set_thread_res_uid(user, user, user).expect("root may");
                (0..20).map(|_| UnixStream::connect(&socket).expect("it is open to all")).collect::<Vec<_>>()
            };
            scope.spawn(connect).join().expect("no panic")
        })
    };
    let held = [33, 34, 35, 36, 37].map(connections);
    let program = host.program_for_everybody();
    let as_user = |uid: u32| {
        let mut command = Command::new(&program);
        command.args(["status", "--runtime-dir"]).arg(host.runtime("")).uid(uid).gid(uid).env_clear();
        let output = command.output().expect("it runs");
        (output.status.success(), stderr_of(&output))
    };
    for _ in 0..3 {
        assert!(as_user(OF_TENANT).0, "{:?}", as_user(OF_TENANT));
    }
    // One that writes as it is turned away may not read why.
    eventually("it is said why", || {
        let (is_served, said) = as_user(33);
        assert!(!is_served, "{said}");
        said.contains("of users without a grant").then_some(())
    });
    drop(held);
    let said = eventually("there is room again", || {
        let (_, said) = as_user(33);
        (!said.contains("of users without a grant")).then_some(said)
    });
    assert!(said.contains("uid 33"), "{said}");
}
