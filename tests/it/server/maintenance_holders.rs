//! Maintenance: who has the GPUs and the driver's files open, and what of it is the manager's own.

use std::fs;
use std::process::{Child, Command, Stdio};

use serde_json::json;

use super::maintenance::{TAKEN_DOWN, begin, end, now, steps};
use crate::harness::{Client, Host, InProcess, MANAGER, Served, pid, stderr_of};

#[test]
fn outside_gpu_holders_are_listed_not_blocking() {
    let host = Host::ready();
    let mut command = Command::new(MANAGER);
    command.args(["sim", "client", "--json", "--spin", "600", "--gpus", "0"]).env_clear();
    command.env("MPS_SIM_WORLD", host.runtime("sim")).env("CUDA_MPS_PIPE_DIRECTORY", host.runtime("nowhere"));
    let mut outsider = Client::start(command);
    assert_eq!(outsider.seen["mps"], false);
    let begun = host.command(&["maintenance", "begin", "--timeout", "5s", "-o", "json"]).output().unwrap();
    let words = stderr_of(&begun);
    assert!(words.starts_with(&format!("no drain ends {} (", outsider.pid())), "{words}");
    assert!(!words.contains("nvidia-cuda-mps"), "daemons and servers are quit: {words}");
    let operation: serde_json::Value = serde_json::from_slice(&begun.stdout).expect("an operation");
    let proof = operation["steps"][6]["outcome"].as_str().unwrap();
    assert!(proof.contains(&format!("others that have: {} (", outsider.pid())), "{proof}");
    let active = now(&host);
    let holder = &active["holders"][0];
    assert_eq!((pid(&holder["pid"]), &holder["ours"]), (outsider.pid(), &json!(false)));
    assert!(holder["command"].as_str().unwrap().contains("sim client --json --spin"), "{holder}");
    assert_eq!(holder["gpus"], json!([host.api().get("/api/v1/gpus/0").ok()["uuid"]]));
    assert!(outsider.is_running());
    drop(outsider);
    assert_eq!(now(&host)["holders"], json!([]), "as of now, not as of then");
    end(&host);
}

/// A process that looks like a server of ours which does not release its GPU.
pub struct Clinging(pub Child);

impl Clinging {
    pub fn start(host: &Served) -> Self {
        let device = fs::File::open(host.runtime("sim/dev/nvidia0")).unwrap();
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().stdin(Stdio::from(device));
        command.env("MPS_MANAGER_INCARNATION", "some token");
        command.env("CUDA_MPS_PIPE_DIRECTORY", host.runtime("daemons/gpu0/pipe"));
        Self(command.spawn().unwrap())
    }
}

impl Drop for Clinging {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn own_process_holding_gpu_fails_maintenance() {
    let host = InProcess::ready();
    let clinging = Clinging::start(&host);
    let operation = host.api().outcome(&begin(&host, &json!({"timeout_s": 5})));
    assert_eq!(operation["state"], "failed");
    let error = operation["error"].as_str().unwrap();
    assert!(
        error.contains("processes of ours") && error.contains(&format!("{} (sleep 600)", clinging.0.id()))
    );
    assert_eq!(steps(&operation), [TAKEN_DOWN[0], "undo"], "before anybody lost work");
    // All is as before.
    host.await_ready();
    assert_eq!((&now(&host)["state"], &now(&host)["live"]), (&json!(null), &json!(true)));
    assert_eq!(host.run("demo", &["true"]).status.code(), Some(0));
    drop(clinging);
    host.api().succeeds(&begin(&host, &json!({"timeout_s": 5})));
    end(&host);
}

#[test]
fn own_daemon_elsewhere_stops_maintenance_before_clients_end() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    // As where CUDA opens the files of all GPUs: a server of gpu1 has GPU 0's.
    let device = fs::File::open(host.runtime("sim/dev/nvidia0")).unwrap();
    let mut command = Command::new("sleep");
    command.arg("600").env_clear().stdin(Stdio::from(device));
    command.env("MPS_MANAGER_INCARNATION", token_of(&host, "gpu1"));
    let server = Clinging(command.spawn().unwrap());
    drop(command);
    let body = json!({"gpus": ["0"], "timeout_s": 0, "on_timeout": "terminate"});
    let operation = host.api().outcome(&begin(&host, &body));
    let error = operation["error"].as_str().unwrap();
    assert!(error.contains(&server.0.id().to_string()) && error.contains("they are of gpu1"), "{error}");
    assert!(client.is_running());
    let all = json!({"timeout_s": 0, "on_timeout": "terminate"});
    let accepted = begin(&host, &all);
    client.ended();
    drop(server);
    host.api().succeeds(&accepted);
    end(&host);
}

/// The token in the environment of a daemon's control process.
fn token_of(host: &Served, daemon: &str) -> String {
    let environment = fs::read(format!("/proc/{}/environ", host.daemon_pid(daemon))).unwrap();
    let environment = String::from_utf8(environment).unwrap();
    let token = environment.split('\0').find_map(|one| one.strip_prefix("MPS_MANAGER_INCARNATION="));
    token.expect("a token").to_owned()
}

#[test]
fn all_files_of_the_driver_are_searched() {
    let host = Host::ready();
    let held = ["nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1"].map(|name| {
        let path = host.runtime("sim/dev").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file =
            fs::File::options().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
        (Clinging(Command::new("sleep").arg("600").stdin(Stdio::from(file)).spawn().unwrap()), path)
    });
    let pids: Vec<u32> = held.iter().map(|(process, _)| process.0.id()).collect();
    host.api().succeeds(&begin(&host, &json!({"gpus": ["0"], "timeout_s": 5})));
    assert_eq!(now(&host)["holders"], json!([]), "the other GPU's users have them open, too");
    end(&host);
    host.await_ready();
    let operation = host.api().succeeds(&begin(&host, &json!({"timeout_s": 5})));
    let foreseen = operation["steps"][0]["outcome"].as_str().unwrap();
    let active = now(&host);
    for (process, path) in &held {
        assert!(foreseen.contains(&process.0.id().to_string()), "{foreseen}");
        let holders = active["holders"].as_array().unwrap();
        let holder = holders.iter().find(|holder| holder["pid"] == process.0.id()).expect("a holder");
        assert_eq!((&holder["ours"], &holder["gpus"]), (&json!(false), &json!([])), "{holder}");
        assert_eq!(holder["files"], json!([path]), "{holder}");
    }
    assert_eq!(active["holders"].as_array().unwrap().len(), pids.len(), "{active}");
    end(&host);
}

#[test]
fn unlisted_gpu_is_proven_by_device_file() {
    let host = InProcess::ready();
    let gpu = host.api().get("/api/v1/gpus/0").ok()["uuid"].as_str().unwrap().to_owned();
    let clinging = Clinging::start(&host);
    fs::write(host.runtime("sim/gpus").join(&gpu).join("lost"), "").unwrap();
    host.await_phase("gpu0", "blocked");
    let body = json!({"gpus": [gpu], "timeout_s": 5});
    let failed = host.api().outcome(&begin(&host, &body));
    let error = failed["error"].as_str().unwrap_or_else(|| panic!("nothing clings: {failed}"));
    assert!(error.contains(&format!("{} (sleep 600)", clinging.0.id())), "{error}");
    drop(clinging);

    // Without its device file it cannot be determined who has it open.
    fs::remove_file(host.runtime("sim/dev/nvidia0")).unwrap();
    let operation = host.api().succeeds(&begin(&host, &body));
    let proof = operation["steps"][6]["outcome"].as_str().unwrap();
    assert!(proof.contains(&format!("not proven for {gpu}")), "{proof}");
}
