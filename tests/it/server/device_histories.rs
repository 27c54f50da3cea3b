//! Random histories of hosts with MIG instances and MLOPart devices: servers and daemons that die, clients that come first, managers that are
//! killed, instances that vanish. No client is ever on a device that is not its tenant's, and none is handed out while it is not there.

use std::process::{Command, Stdio};

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::mig;
use crate::harness::{Client, Host, SIMULATED, eventually, heavy, setting, signal};

/// A host that is struck, and how to judge its clients.
struct Struck {
    host: Host,
    rng: Rng,
    daemons: [&'static str; 2],
    /// Clients that saw a device.
    served: u64,
    /// Clients that saw none, since it was not there.
    refused: u64,
}

const TENANTS: [&str; 2] = ["left", "right"];

impl Struck {
    fn new(profile: &str, seed: u64, daemons: [&'static str; 2]) -> Self {
        let host = Host::ready_of(profile, "");
        Self { host, rng: Rng::with_seed(seed), daemons, served: 0, refused: 0 }
    }

    /// Starts `run` for each tenant: one client comes while the host is struck, one after it.
    fn programs(&self) -> Vec<(usize, std::process::Child)> {
        let words = [SIMULATED, "sim", "client", "--json"];
        let start = |tenant: usize| {
            let mut command: Command = self.host.run_command(TENANTS[tenant], &words);
            (tenant, command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts"))
        };
        (0..TENANTS.len()).map(start).collect()
    }

    /// Waits for the programs to end, and checks what each saw.
    fn judge(&mut self, programs: Vec<(usize, std::process::Child)>, is_own: impl Fn(usize, &str) -> bool) {
        for (tenant, program) in programs {
            let output = program.wait_with_output().expect("it ends");
            let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
            let devices = seen["devices"].as_array().cloned().unwrap_or_default();
            if devices.is_empty() {
                self.refused += 1;
                continue;
            }
            assert_eq!((devices.len(), &seen["mps"]), (1, &json!(true)), "{seen}");
            let uuid = devices[0]["uuid"].as_str().expect("text");
            assert!(is_own(tenant, uuid), "{} is on {uuid}", TENANTS[tenant]);
            self.served += 1;
        }
    }

    /// Kills a server, a daemon, the manager, or nothing.
    fn kill(&mut self) {
        let daemon = self.daemons[self.rng.usize(..2)];
        match self.rng.u32(..4) {
            0 => signal(self.host.server_pid(daemon), Signal::KILL),
            1 => signal(self.host.daemon_pid(daemon), Signal::KILL),
            2 => {
                self.host.end_manager(Signal::KILL);
                self.host.serve();
            }
            _ => {}
        }
    }

    fn report(&self, histories: u64, what: &str) {
        println!(
            "{histories} histories of {what}: {} clients on their own devices, {} without one",
            self.served, self.refused
        );
        assert!(self.served >= histories, "clients were served");
    }
}

fn histories() -> (u64, u64) {
    (setting("MPS_MANAGER_DEVICES").unwrap_or(6), setting("MPS_MANAGER_SEED").unwrap_or(1))
}

/// `MPS_MANAGER_DEVICES` gives the number of histories, `MPS_MANAGER_SEED` what happens in them.
#[test]
fn mlopart_clients_stay_on_their_devices() {
    let _turn = heavy();
    let (histories, seed) = histories();
    let mut struck = Struck::new("b300x2@13.1", seed, ["gpu1", "gpu1"]);
    let host = &struck.host;
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"], "mlopart": true})).status, 200);
    host.await_ready();
    for (number, name) in TENANTS.into_iter().enumerate() {
        let spec = json!({"daemon": "gpu1", "uid": 0, "gpus": [format!("1/mlo{number}")]});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    let own = |host: &Host| -> Vec<String> {
        // The manager may not have seen yet what the history killed.
        let devices = eventually("MLOPart devices", || {
            let servers = host.daemon("gpu1")["status"]["effective"]["servers"].clone();
            servers[0]["mlopart_devices"].as_array().filter(|devices| !devices.is_empty()).cloned()
        });
        devices.iter().map(|device| device["uuid"].as_str().expect("text").to_owned()).collect()
    };
    for history in 0..histories {
        let before = own(&struck.host);
        // A client that knows the daemon's own directory comes before the manager's request.
        let first = (struck.rng.bool()).then(|| {
            signal(struck.host.server_pid("gpu1"), Signal::KILL);
            Client::start(struck.host.stranger_command("gpu1", ""))
        });
        let programs = struck.programs();
        if first.is_none() {
            struck.kill();
        }
        drop(first);
        struck.host.await_ready();
        let later = struck.programs();
        let after = own(&struck.host);
        let mine = |tenant: usize, uuid: &str| {
            [&before, &after].into_iter().any(|devices| uuid.starts_with(&devices[tenant]))
        };
        struck.judge(programs, mine);
        let served = struck.served;
        struck.judge(later, mine);
        assert_eq!(struck.served, served + 2, "history {history}: a ready daemon serves");
    }
    struck.report(histories, "MLOPart devices");
}

#[test]
fn mig_clients_stay_on_their_instances() {
    let _turn = heavy();
    let (histories, seed) = histories();
    let mut struck = Struck::new(mig::PROFILE, seed, ["gpu1-mig0", "gpu1-mig1"]);
    mig::tenants(&struck.host);
    let uuid = |host: &Host, at: usize| {
        mig::device(host, &format!("1/mig{at}"))["uuid"].as_str().unwrap().to_owned()
    };
    for history in 0..histories {
        let own = [uuid(&struck.host, 0), uuid(&struck.host, 1)];
        let at = struck.rng.usize(..2);
        let daemon = struck.daemons[at];
        if struck.rng.bool() {
            let programs = struck.programs();
            struck.kill();
            struck.host.await_ready();
            struck.judge(programs, |tenant, seen| seen == own[tenant]);
        } else {
            let mut line = String::new();
            let programs = struck.programs();
            mig::change_instances(&struck.host, |lines| {
                let (gone, left): (Vec<_>, Vec<_>) =
                    lines.into_iter().partition(|line| line.contains(&own[at]));
                line = gone.concat();
                left
            });
            struck.host.await_reason(daemon, "GpuMissing");
            struck.judge(programs, |tenant, seen| seen == own[tenant]);
            let refused = struck.host.run(TENANTS[at], &["true"]);
            assert!(!refused.status.success(), "history {history}: it was handed out while it was not there");
            let is_same = struck.rng.bool();
            let new = format!("MIG-{:08x}-1111-1111-1111-111111111111", struck.rng.u32(..));
            let made = if is_same { line.clone() } else { line.replace(&own[at], &new) };
            mig::change_instances(&struck.host, |mut lines| {
                lines.push(made);
                lines
            });
            if !is_same {
                eventually("the new one is listed", || uuid(&struck.host, at) == new);
                let replaced = json!({"with": new});
                let path = format!("/api/v1/gpus/{}/replace", own[at]);
                assert_eq!(struck.host.api().post(&path, &replaced).status, 200);
            }
            struck.host.await_ready();
        }
        let own = [uuid(&struck.host, 0), uuid(&struck.host, 1)];
        let served = struck.served;
        let later = struck.programs();
        struck.judge(later, |tenant, seen| seen == own[tenant]);
        assert_eq!(struck.served, served + 2, "history {history}: a ready daemon serves");
    }
    struck.report(histories, "MIG instances");
}
