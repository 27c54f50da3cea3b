//! What cannot be adopted, or lies about itself: refused with the reason, and nothing killed.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Foreign, Host, InProcess, Manager, Served, Simulated, is_alive, signal};

/// A host whose second GPU is nobody's.
pub(super) fn host_with_a_free_gpu<M: Manager>() -> Simulated<M> {
    let host = Simulated::ready();
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu1?grace_s=1"));
    host
}

/// A process that is no daemon, with this in its environment.
pub(super) struct Sleeper(pub(super) Child);

impl Sleeper {
    fn start(host: &Served, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().env("MPS_SIM_WORLD", host.runtime("sim"));
        Self(command.envs(environment.iter().copied()).spawn().unwrap())
    }

    pub(super) fn id(&self) -> String {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        format!("{}-{}", self.0.id(), fields.split_ascii_whitespace().nth(19).unwrap())
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(super) fn adopt(host: &Served, name: &str, process: &str) -> crate::harness::Answer {
    let body = json!({"process": process, "management": "managed"});
    host.api().post(&format!("/api/v1/daemons/{name}/adopt"), &body)
}

/// Adoption as a managed daemon is refused with these words, and the daemon is not changed.
pub(super) fn refused(host: &Served, foreign: &Foreign, words: &str) {
    let (pid, changes) = (foreign.pid(), foreign.changes());
    let id = host.foreign_id(foreign);
    let listed = host.api().get(&format!("/api/v1/foreign-daemons/{id}")).ok();
    let verdict = &listed["adoption"]["managed"];
    assert_eq!(verdict["possible"], false, "{verdict}");
    assert!(verdict["reason"].as_str().unwrap().contains(words), "{verdict}");
    let problem = adopt(host, "theirs", &id).problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    host.api().get("/api/v1/daemons/theirs").problem(404, "not-found");
    assert!(is_alive(pid));
    assert_eq!(foreign.changes(), changes, "nothing was written to it");
}

#[test]
fn non_daemon_process_is_not_adopted() {
    let host: InProcess = host_with_a_free_gpu();
    let token = crate::harness::environment(host.daemon_pid("gpu0"), "MPS_MANAGER_INCARNATION").unwrap();
    let mut sleeper = Sleeper::start(&host, &[("MPS_MANAGER_INCARNATION", &token)]);
    let foreign = host.foreign("theirs", "1");
    let server = host.server_pid("gpu0");
    let start = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().to_owned()
    };
    let id = host.foreign_id(&foreign);
    let (pid, started) = id.split_once('-').unwrap();
    let earlier = format!("{pid}-{}", started.parse::<u64>().unwrap() - 1);
    for (process, words) in [
        (sleeper.id().as_str(), "is not an MPS control daemon: it runs \"sleep 600\""),
        (&format!("{server}-{}", start(server)), "is not an MPS control daemon"),
        ("4194304-1", "there is no process 4194304"),
        (&earlier, "the number was used again"),
        ("banana", "is not a process"),
        ("-1", "is not a process"),
    ] {
        let problem = adopt(&host, "new", process).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], "/process");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
    }
    let ours = host.daemon_pid("gpu0");
    let problem = adopt(&host, "new", &format!("{ours}-{}", start(ours))).problem(409, "conflict");
    assert!(
        problem["detail"].as_str().unwrap().contains("is daemon gpu0 of this manager already"),
        "{problem}"
    );
    let problem = adopt(&host, "gpu0", &id).problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("there is a daemon gpu0 already"), "{problem}");
    let body = json!({"process": id, "management": "borrowed"});
    let problem = host.api().post("/api/v1/daemons/new/adopt", &body).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/management");
    host.api().post("/api/v1/daemons/New/adopt", &body).problem(422, "invalid-request");
    host.api().get("/api/v1/daemons/new").problem(404, "not-found");
    assert_eq!(host.foreign_daemons().len(), 1, "a token makes no daemon of a process");
    assert!(sleeper.0.try_wait().unwrap().is_none() && is_alive(foreign.pid()) && is_alive(ours));
    host.await_ready();
}

#[test]
fn unrepresentable_settings_are_refused_but_observable() {
    let host: InProcess = host_with_a_free_gpu();
    let foreign = host.foreign("theirs", "1");
    foreign.control("set_default_device_pinned_mem_limit 0 -1");
    refused(&host, &foreign, "17179869183G");
    foreign.control("set_default_device_pinned_mem_limit 0 900M");
    let uuid = host.api().get("/api/v1/gpus/1").ok()["uuid"].as_str().unwrap().to_owned();
    foreign.control(&format!("set_default_device_pinned_mem_limit {uuid} 2G"));
    refused(&host, &foreign, "under that UUID");
    foreign.control(&format!("set_default_device_pinned_mem_limit {uuid} 0"));
    let client = foreign.client();
    foreign.control("set_default_active_thread_percentage 30");
    refused(&host, &foreign, "another active thread percentage (100.0) than servers to come (30.0)");
    drop(client);

    let changes = foreign.changes();
    assert_eq!(host.adopt("theirs", &foreign, "observed").status, 201);
    let daemon = host.await_phase("theirs", "observed");
    assert_eq!(daemon["spec"]["defaults"], json!({}), "none that it does not have");
    assert_eq!(foreign.changes(), changes);
}

#[test]
fn unrepresentable_gpu_order_is_refused() {
    let host: InProcess = host_with_a_free_gpu();
    host.api().delete("/api/v1/tenants/demo");
    host.api().delete("/api/v1/tenants/batch");
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu0?grace_s=1"));
    refused(&host, &host.foreign("turned", "1,0"), "another order than that of PCI");
    refused(&host, &host.foreign("none", "7"), "no GPU of this host");
    let both = host.foreign_with("both", &[], &[]);
    both.control("set_default_device_pinned_mem_limit 0 512M\nset_default_device_pinned_mem_limit 1 768M");
    let adopted = host.adopt("both", &both, "managed");
    assert_eq!(adopted.status, 201, "{}", adopted.text);
    let spec = adopted.json()["spec"].clone();
    let limits: Vec<_> = spec["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| spec["defaults"]["device_memory_limit"][gpu.as_str().unwrap()].clone())
        .collect();
    assert_eq!(limits, [512 << 20, 768 << 20], "{spec}");
    host.await_ready();
    assert_eq!(both.logged("Cmd:set_"), 2, "its owner's");
}

#[test]
fn other_users_daemon_is_only_observed() {
    if !crate::harness::is_root() {
        return;
    }
    let host: Host = host_with_a_free_gpu();
    let home = host.dir().join("nobody");
    fs::create_dir(&home).unwrap();
    std::os::unix::fs::chown(&home, Some(65_534), Some(65_534)).unwrap();
    // Root's links in the simulated programs' directory lead where another user cannot go.
    let program = host.program_for_everybody();
    let mut command = Command::new(&program);
    command
        .arg0("nvidia-cuda-mps-control")
        .arg("-f")
        .env_clear()
        .env("MPS_SIM_WORLD", host.runtime("sim"))
        .env("CUDA_VISIBLE_DEVICES", "1")
        .env("CUDA_MPS_PIPE_DIRECTORY", home.join("pipe"))
        .env("CUDA_MPS_LOG_DIRECTORY", home.join("log"))
        .stdout(std::process::Stdio::null())
        .uid(65_534)
        .gid(65_534);
    let mut child = Sleeper(command.spawn().unwrap());
    let daemon = crate::harness::eventually("it is listed and answers", || {
        let daemons = host.foreign_daemons();
        let daemon = daemons.into_iter().find(|daemon| daemon["pid"] == child.0.id())?;
        daemon["effective"].is_object().then_some(daemon)
    });
    assert_eq!(daemon["uid"], 65_534);
    let problem = adopt(&host, "theirs", daemon["id"].as_str().unwrap()).problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("runs as uid 65534"), "{problem}");
    let body = json!({"process": daemon["id"], "management": "observed"});
    assert_eq!(host.api().post("/api/v1/daemons/theirs/adopt", &body).status, 201);
    host.await_phase("theirs", "observed");
    let mut spec = host.daemon("theirs")["spec"].clone();
    spec["management"] = json!("managed");
    let problem = host.api().put("/api/v1/daemons/theirs", &spec).problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("runs as uid 65534"), "{problem}");
    assert!(child.0.try_wait().unwrap().is_none());
}

#[test]
fn daemon_dying_during_adoption_leaves_nothing() {
    let host: InProcess = host_with_a_free_gpu();
    let foreign = host.foreign("theirs", "1");
    let (id, pid) = (host.foreign_id(&foreign), foreign.pid());
    for (management, words) in
        [("managed", "could not be read"), ("observed", "ended while it was being adopted")]
    {
        if !is_alive(pid) {
            foreign.start();
        }
        let (id, pid) =
            if is_alive(pid) { (id.clone(), pid) } else { (host.foreign_id(&foreign), foreign.pid()) };
        // A daemon that stands still keeps the adoption waiting for its answer.
        signal(pid, Signal::STOP);
        let sessions = foreign.sessions();
        let answer = std::thread::scope(|scope| {
            let adopting = scope.spawn(|| {
                host.api()
                    .post("/api/v1/daemons/theirs/adopt", &json!({"process": id, "management": management}))
            });
            crate::harness::eventually("the adoption waits for the daemon", || {
                (foreign.sessions() > sessions).then_some(())
            });
            signal(pid, Signal::KILL);
            adopting.join().unwrap()
        });
        let problem = answer.problem(409, "conflict");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{problem}");
        host.api().get("/api/v1/daemons/theirs").problem(404, "not-found");
    }
    host.await_ready();
    assert!(!foreign.pipe().join("log").exists() || !is_alive(foreign.pid()), "nobody started it again");
}

#[test]
fn forged_pid_file_and_log_are_ignored() {
    let host: Host = host_with_a_free_gpu();
    let foreign = host.foreign("theirs", "1");
    foreign.control("set_default_device_pinned_mem_limit 0 900M");
    let _client = foreign.client();
    let (pid, gpu) = (foreign.pid(), host.api().get("/api/v1/gpus/1").ok()["uuid"].clone());
    let mut sleeper = Sleeper::start(&host, &[]);
    fs::write(foreign.pipe().join("nvidia-cuda-mps-control.pid"), sleeper.0.id().to_string()).unwrap();
    let server = host.foreign_daemons()[0]["effective"]["servers"][0]["pid"].clone();
    let lie = format!(
        "[2026-01-01 00:00:00.000 Server {server:>5}] Device pinned memory limit for device 0 set to 0x100000000 bytes\n"
    );
    for log in ["server.log", "control.log"] {
        let path = foreign.log().join(log);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(path, text + &lie).unwrap();
    }
    let daemons = host.foreign_daemons();
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    assert_eq!((&daemons[0]["pid"], &daemons[0]["gpus"]), (&json!(pid), &json!([gpu])));
    assert_eq!(daemons[0]["effective"]["servers"][0]["memory_limits"][0]["bytes"], 900 << 20);
    let body = json!({"process": daemons[0]["id"], "management": "managed"});
    let adopted = host.api().post("/api/v1/daemons/theirs/adopt", &body);
    assert_eq!(adopted.ok()["spec"]["defaults"]["device_memory_limit"], 900 << 20);
    host.await_ready();
    assert_eq!(host.daemon_pid("theirs"), pid);
    assert!(sleeper.0.try_wait().unwrap().is_none());
    assert_eq!(foreign.logged("Cmd:set_"), 1, "its owner's");
}
