//! Random histories of faults, deaths and drifts: each incident's affected clients are those that the history says, none missing and none
//! twice.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::incidents::affected;
use crate::harness::{Client, Host, LONGEST_PAUSE, eventually, heavy, setting, signal};
use crate::host::eventually_within;

const LOSSES: [&str; 5] = ["gpu_fault", "server_died", "daemon_died", "daemon_wedged", "crash_loop"];

/// What happens in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strike {
    Fault,
    KillServer,
    KillDaemon,
    KillClient,
    Drift,
}

const STRIKES: [Strike; 5] =
    [Strike::Fault, Strike::KillServer, Strike::KillDaemon, Strike::KillClient, Strike::Drift];

/// The tenants with their GPUs: those who share a GPU with an affected process are affected.
const TENANTS: [(&str, &[usize]); 3] = [("left", &[0]), ("both", &[0, 1]), ("right", &[1])];

/// The tenants that a fault of a client of this one affects.
fn reach(tenant: usize, present: &BTreeSet<usize>) -> BTreeSet<usize> {
    let mut hit = BTreeSet::from([tenant]);
    loop {
        let gpus: BTreeSet<usize> = hit.iter().flat_map(|one| TENANTS[*one].1).copied().collect();
        let more = present.iter().filter(|one| TENANTS[**one].1.iter().any(|gpu| gpus.contains(gpu)));
        let next: BTreeSet<usize> = hit.iter().chain(more).copied().collect();
        if next == hit {
            return hit;
        }
        hit = next;
    }
}

fn all_affected(losses: &[Value]) -> Vec<BTreeSet<u64>> {
    losses.iter().map(|one| affected(one).into_iter().collect()).collect()
}

/// A host with one daemon on both GPUs.
struct Struck {
    host: Host,
    rng: Rng,
    /// The affected processes of each incident that was caused, in order.
    expected: Vec<BTreeSet<u64>>,
    drifts: u64,
}

impl Struck {
    fn new(seed: u64) -> Self {
        let host = Host::ready();
        for tenant in ["demo", "batch"] {
            assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
        }
        for daemon in ["gpu0", "gpu1"] {
            host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{daemon}?grace_s=1")));
        }
        let put = host.api().put("/api/v1/daemons/pair", &json!({"gpus": ["0", "1"]}));
        assert_eq!(put.status, 201, "{}", put.text);
        for (name, gpus) in TENANTS {
            let gpus: Vec<String> = gpus.iter().map(ToString::to_string).collect();
            let spec = json!({"daemon": "pair", "uid": 0, "gpus": gpus, "device_memory_limit": "1G", "max_clients": 8});
            let written = host.api().tenant(name, &spec);
            assert_eq!(written.status, 201, "{}", written.text);
        }
        host.await_ready();
        Self { host, rng: Rng::with_seed(seed), expected: Vec::new(), drifts: 0 }
    }

    fn losses(&self) -> Vec<Value> {
        let list = self.host.api().get("/api/v1/incidents?limit=1000").ok()["items"].clone();
        let mut losses: Vec<Value> = list.as_array().expect("items").clone();
        losses.retain(|one| LOSSES.contains(&one["kind"].as_str().expect("a kind")));
        losses.reverse();
        losses
    }

    /// The index of the crash loop among these losses that one more death belongs to; `None` if it has an incident of its own.
    fn continued_loop(&self, before: &[Value]) -> Option<usize> {
        let place = before.iter().rposition(|one| one["kind"] == "crash_loop")?;
        let times = |losses: &[Value]| losses[place]["occurrences"].as_u64();
        eventually("the death is in an incident", || {
            let losses = self.losses();
            let is_other = losses.len() > before.len();
            (is_other || times(&losses) > times(before)).then_some((!is_other).then_some(place))
        })
    }

    fn history(&mut self, number: u64) {
        let strike = STRIKES[self.rng.usize(..5)];
        let mut clients: Vec<(usize, Client)> = Vec::new();
        for _ in 0..self.rng.usize(..4) {
            let tenant = self.rng.usize(..3);
            let command = self.host.client_command(TENANTS[tenant].0, &["--spin", "600"]);
            clients.push((tenant, Client::start(command)));
        }
        self.await_listed(&clients);
        let everyone =
            |clients: &[(usize, Client)]| clients.iter().map(|(_, one)| one.pid().into()).collect();
        match strike {
            Strike::Fault => {
                let tenant = self.rng.usize(..3);
                let arguments = ["--spin", "600", "--fault-after", "0.5"];
                let command = self.host.client_command(TENANTS[tenant].0, &arguments);
                clients.push((tenant, Client::start(command)));
                let hit = reach(tenant, &clients.iter().map(|(tenant, _)| *tenant).collect());
                let (hit, _): (Vec<_>, Vec<_>) = clients.iter().partition(|(tenant, _)| hit.contains(tenant));
                self.expected.push(hit.iter().map(|(_, one)| one.pid().into()).collect());
            }
            Strike::KillServer => {
                signal(self.host.server_pid("pair"), Signal::KILL);
                if !clients.is_empty() {
                    self.expected.push(everyone(&clients));
                }
            }
            Strike::KillDaemon => {
                // One more death of a crash loop belongs to it.
                let before = self.losses();
                signal(self.host.daemon_pid("pair"), Signal::KILL);
                let killed: BTreeSet<u64> = everyone(&clients);
                match self.continued_loop(&before) {
                    Some(place) => self.expected[place].extend(&killed),
                    None => self.expected.push(killed),
                }
            }
            Strike::KillClient => {}
            Strike::Drift => {
                let percentage = self.rng.u64(10..50);
                self.host.control("pair", &format!("set_default_active_thread_percentage {percentage}"));
                self.drifts += 1;
            }
        }
        let found = Cell::new(Vec::new());
        let has_its_incident = || {
            let losses = self.losses();
            let is_over = losses.iter().all(|one| one["state"] == "recovered");
            let is_it = is_over && all_affected(&losses) == self.expected;
            found.set(losses);
            is_it.then_some(())
        };
        eventually_within(LONGEST_PAUSE, has_its_incident, || {
            let summaries =
                found.take().into_iter().map(|one| (one["state"].clone(), one["summary"].clone()));
            let summaries: Vec<_> = summaries.collect();
            format!(
                "history {number} ({strike:?}) has incidents of {:?} and not {summaries:#?}",
                self.expected
            )
        });
        drop(clients);
        self.await_listed(&[]);
        self.host.await_ready();
    }

    /// Compares all that the host lists with what was done to it; gives how many incidents had affected clients.
    fn check(&self, seed: u64) -> usize {
        let losses = self.losses();
        let found = all_affected(&losses);
        assert_eq!(found, self.expected, "seed {seed}");
        // By process, which a number alone is not.
        let mut times: BTreeMap<String, usize> = BTreeMap::new();
        for client in losses.iter().flat_map(|one| one["affected"].as_array().expect("clients")) {
            if let Some(id) = client["client"].as_str() {
                *times.entry(id.to_owned()).or_default() += 1;
            }
        }
        assert!(times.values().all(|count| *count == 1), "seed {seed}: {times:?}");
        // The last strike may have been a drift, which nothing else waits for.
        eventually(&format!("seed {seed} has {} drifts", self.drifts), || {
            let drifts = self.host.api().get("/api/v1/incidents?kind=drift&limit=1000").ok();
            let drifts = drifts["items"].as_array().expect("items").iter();
            let drifts: u64 = drifts.filter_map(|one| one["occurrences"].as_u64()).sum();
            (drifts == self.drifts).then_some(())
        });
        found.len()
    }

    fn await_listed(&self, clients: &[(usize, Client)]) {
        let wanted: BTreeSet<u64> = clients.iter().map(|(_, one)| one.pid().into()).collect();
        eventually("exactly these clients are listed", || {
            let listed = self.host.clients();
            let pids: BTreeSet<u64> = listed.iter().filter_map(|one| one["pid"].as_u64()).collect();
            (pids == wanted).then_some(())
        });
    }
}

/// Plays histories on one host after another; gives how many incidents had affected clients.
fn play(seed: u64, histories: u64) -> usize {
    let mut rng = Rng::with_seed(seed);
    let mut checked = 0;
    // A host for so many: its list of incidents is read as one page.
    for part in (0..histories).step_by(200) {
        let mut struck = Struck::new(rng.u64(..));
        for history in part..histories.min(part + 200) {
            struck.history(history);
        }
        checked += struck.check(seed);
    }
    checked
}

/// `MPS_MANAGER_INCIDENTS` gives the number of histories, `MPS_MANAGER_HOSTS` that of hosts that share them, `MPS_MANAGER_SEED` what
/// happens in them.
#[test]
fn affected_clients_match_random_histories() {
    let _turn = heavy();
    let histories = setting("MPS_MANAGER_INCIDENTS").unwrap_or(8);
    let hosts = setting("MPS_MANAGER_HOSTS").unwrap_or(1).max(1);
    let seed = setting("MPS_MANAGER_SEED").unwrap_or(1);
    let playing: Vec<_> = (0..hosts)
        .map(|host| {
            let own = histories / hosts + u64::from(host < histories % hosts);
            std::thread::spawn(move || play(seed + host, own))
        })
        .collect();
    let ended: Vec<_> = playing.into_iter().map(std::thread::JoinHandle::join).collect();
    let checked: usize =
        ended.into_iter().map(|one| one.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum();
    println!(
        "{histories} histories on {hosts} hosts, {checked} incidents with affected clients, seed {seed}: each as it was caused"
    );
}
