//! A driver that does not answer: one GPU whose calls hang holds up nobody but who needs the driver.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, Host, Served, eventually, signal, stderr_of};

/// Longest time for an answer while the driver is silent, on a machine that has much else to do.
const IN_TIME: Duration = Duration::from_secs(20);
const WORDS: &str = "the driver has not answered a call for 5 s";

/// A GPU of which every call of the driver hangs.
struct Silence {
    file: PathBuf,
    text: String,
}

impl Silence {
    /// Where the compute mode of the second GPU is read, nobody ever writes.
    fn begin(host: &Host) -> Self {
        let uuid = host.api().get("/api/v1/gpus/1").ok()["uuid"].as_str().unwrap().to_owned();
        let file = host.runtime("sim/gpus").join(uuid).join("compute_mode");
        let text = fs::read_to_string(&file).unwrap();
        let fifo = file.with_extension("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        fs::rename(fifo, &file).unwrap();
        let silence = Self { file, text };
        eventually("the driver is found silent", || {
            (reported(host, "the driver is silent") == 1).then_some(())
        });
        silence
    }

    /// The file is back, and what hangs continues.
    fn end(self, host: &Host) {
        let hanging = fs::File::options().read(true).write(true).open(&self.file).unwrap();
        let draft = self.file.with_extension("file");
        fs::write(&draft, self.text).unwrap();
        fs::rename(draft, &self.file).unwrap();
        drop(hanging);
        eventually("the driver answers", || (reported(host, "the driver answers again") == 1).then_some(()));
        assert_eq!(reported(host, "the driver is silent"), 1);
    }
}

fn reported(host: &Host, words: &str) -> usize {
    host.log().matches(words).count()
}

/// The manager's threads that wait for the driver.
fn threads(host: &Host) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", host.manager_pid())).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("gpu ")).count()
}

fn state(host: &Served) -> Value {
    host.api().get("/api/v1/host/maintenance").ok()["state"].clone()
}

#[test]
fn reads_work_while_the_driver_hangs() {
    let host = Host::ready();
    let silence = Silence::begin(&host);
    let began = Instant::now();
    for path in [
        "/api/v1/host",
        "/api/v1/host/maintenance",
        "/api/v1/daemons",
        "/api/v1/daemons/gpu0?fresh=true",
        "/api/v1/daemons/gpu1?fresh=true",
        "/api/v1/tenants",
        "/api/v1/tenants/demo?fresh=true",
        "/api/v1/tenants/demo/environment",
        "/api/v1/clients",
        "/api/v1/foreign-daemons",
        "/readyz",
    ] {
        let answer = host.api().get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text);
    }
    let ran = host.run("demo", &["true"]);
    assert_eq!(ran.status.code(), Some(0), "{}", stderr_of(&ran));
    for path in ["/api/v1/gpus", "/api/v1/gpus/0"] {
        let problem = host.api().get(path).problem(503, "unavailable");
        assert!(problem["detail"].as_str().unwrap().starts_with(WORDS), "{problem}");
    }
    // Daemons are changed as before.
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G", "max_clients": 1});
    assert_eq!(host.api().tenant("new", &spec).status, 201);
    host.await_ready();
    assert!(began.elapsed() < IN_TIME, "{:?}", began.elapsed());
    let waiting = threads(&host);
    for _ in 0..50 {
        host.api().get("/api/v1/gpus").problem(503, "unavailable");
    }
    assert_eq!(threads(&host), waiting, "no thread more");
    assert!((1..=8).contains(&waiting), "{waiting}");
    silence.end(&host);
    assert_eq!(host.api().get("/api/v1/gpus").ok()["items"].as_array().unwrap().len(), 2);
    eventually("no thread waits", || (threads(&host) == 0).then_some(()));
}

#[test]
fn start_waits_for_a_hung_driver() {
    let host = Host::ready();
    let mode = json!({"gpus": ["0"], "compute_mode": "exclusive_process"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &mode).status, 200);
    host.await_ready();
    let other = host.daemon_pid("gpu1");
    let silence = Silence::begin(&host);
    eventually("its compute mode is not known", || {
        let daemon = host.daemon("gpu0");
        let conditions = daemon["status"]["conditions"].as_array().unwrap();
        let mode = conditions.iter().find(|condition| condition["type"] == "ComputeMode")?;
        (mode["reason"] == "ComputeModeDiffers" && mode["message"].as_str()?.contains(WORDS)).then_some(())
    });
    signal(host.daemon_pid("gpu0"), Signal::KILL);
    let blocked = host.await_phase("gpu0", "blocked");
    let condition = &blocked["status"]["conditions"][0];
    assert_eq!(condition["reason"], "NoInventory", "{condition}");
    assert!(condition["message"].as_str().unwrap().starts_with(WORDS), "{condition}");
    let accepted = host.api().post("/api/v1/daemons/gpu0/start", &json!({}));
    let place = accepted.header("location").unwrap().to_owned();
    eventually("the start says what it waits for", || {
        let operation = host.api().get(&place).ok();
        let step = operation["steps"].as_array().unwrap().last().cloned()?;
        step["outcome"].as_str()?.starts_with(&format!("waits: {WORDS}")).then_some(())
    });
    silence.end(&host);
    host.api().succeeds(&accepted);
    host.await_ready();
    assert_eq!(host.daemon_pid("gpu1"), other);
}

fn begin_maintenance(host: &Host) -> Answer {
    let accepted = host.api().post("/api/v1/host/maintenance", &json!({"timeout_s": 600}));
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    accepted
}

fn draining(host: &Host) {
    eventually("clients are waited for", || (state(host) == json!("draining")).then_some(()));
}

#[test]
fn maintenance_of_hung_driver_can_be_cancelled() {
    let host = Host::ready();
    let mut client = host.run_client("demo");
    let called_off = begin_maintenance(&host);
    draining(&host);
    let silence = Silence::begin(&host);
    let place = called_off.header("location").unwrap();
    assert_eq!(host.api().post(&format!("{place}/cancel"), &json!({})).status, 202);
    let operation = host.api().outcome(&called_off);
    assert_eq!((&operation["state"], state(&host)), (&json!("cancelled"), json!(null)), "{operation}");

    let early = host.api().outcome(&begin_maintenance(&host));
    assert_eq!((&early["state"], state(&host)), (&json!("failed"), json!(null)), "{early}");
    assert!(early["error"].as_str().unwrap().contains(WORDS) && client.is_running(), "{early}");
    silence.end(&host);
    host.await_ready();
}

#[test]
fn driver_that_falls_silent_is_not_released() {
    let host = Host::ready();
    let client = host.run_client("demo");
    let failing = begin_maintenance(&host);
    draining(&host);
    let silence = Silence::begin(&host);
    drop(client);
    eventually("the driver is to be released", || {
        let operation = host.api().get(failing.header("location").unwrap()).ok();
        (operation["steps"].as_array()?.last()?["name"] == "release the driver").then_some(())
    });
    let operation = host.api().outcome(&failing);
    assert_eq!((&operation["state"], state(&host)), (&json!("failed"), json!(null)), "{operation}");
    assert!(operation["error"].as_str().unwrap().starts_with(WORDS), "{operation}");
    silence.end(&host);
    host.await_ready();
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
}
