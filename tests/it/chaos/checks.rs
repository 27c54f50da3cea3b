//! What must hold after every kill, each by another route than the manager's own where there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _, SqliteConnection};

use super::foreign::defaults;
use super::plan::{ADOPTED, BORROWED, DAEMONS, EXCLUSIVE, Strike, VOLATILE};
use super::programs::{How, Program};
use super::strike::{Aim, Outcome, Release};
use super::{GIVEN, Scene, Standing};
use crate::harness::{Host, command_line, environment, is_alive, pid, processes_with, reap_orphans};

/// Counts the programs of `run` that were found listed.
pub(super) const CONNECTED_RUN: &str = "programs of `run` found listed";
/// Counts the limits that were found in server.log.
pub(super) const LOGGED: &str = "limits compared with server.log";
const MIB: u64 = 1 << 20;
/// Longest time to readiness: a daemon that dies again and again is given growing pauses.
const READY: Duration = Duration::from_secs(90);
/// Longest life of a process that nobody answers for.
const ORPHAN: Duration = Duration::from_secs(5);

/// Asks until it holds.
fn within(timeout: Duration, mut holds: impl FnMut() -> Result<(), String>) {
    let deadline = Instant::now() + timeout;
    while let Err(why) = holds() {
        assert!(Instant::now() < deadline, "not within {timeout:?}: {why}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Scene {
    /// Waits until everything is ready again and checks all of it. Nothing writes meanwhile.
    pub(super) fn check(
        &mut self,
        strike: Option<&Strike>,
        outcome: &Outcome,
        before: &[Standing],
        struck: Instant,
    ) -> Vec<Standing> {
        if let Some(Release(answer)) = outcome.released {
            self.give_back(answer);
        }
        self.await_ready();
        if let Some((place, aim)) = &outcome.operation {
            self.check_operation(place, *aim);
        }
        if let Some(strike) = strike {
            self.await_replaced(strike, before);
        }
        self.check_mode("exclusive_process");
        let tenants = self.tenants();
        self.desk.ledger.lock().expect("unpoisoned").check(&tenants);
        let standing = self.standing(&tenants);
        if let Some(strike) = strike {
            unchanged(strike, before, &standing);
        }
        let dead: Vec<&str> =
            strike.iter().flat_map(|strike| strike.daemons()).map(|daemon| DAEMONS[daemon]).collect();
        let doomed: Vec<u32> = outcome.doomed.iter().copied().chain(self.lost_with_hung_servers()).collect();
        self.programs.wait_until_connected(&dead, &doomed, outcome.manager_died, &self.desk.story);
        self.check_clients();
        for (name, standing) in DAEMONS.into_iter().zip(&standing) {
            self.check_limits(name, standing.server, &tenants);
        }
        self.check_probe(&tenants);
        self.check_orphans(struck);
        self.check_leases(&tenants);
        self.foreign.check();
        reap_orphans();
        self.learn(&tenants);
        standing
    }

    fn await_ready(&self) {
        self.within(READY, || {
            let answer = self.host.api().get("/readyz");
            if answer.status == 200 { Ok(()) } else { Err(self.host.api().get("/api/v1/daemons").text) }
        });
    }

    /// Repeats a check until it passes, and reports the state of everything where it never does.
    fn within(&self, timeout: Duration, mut holds: impl FnMut() -> Result<(), String>) {
        let mut dumped = false;
        let until = Instant::now() + timeout.mul_f32(0.9);
        within(timeout, || {
            let held = holds();
            if held.is_err() && !dumped && Instant::now() > until {
                dumped = true;
                super::dump::dump(&self.host);
            }
            held
        });
    }

    /// The compute mode of the daemon that sets it, as the simulated kernel has it, now that the daemon is ready or
    /// stopped.
    fn check_mode(&self, wanted: &str) {
        let gpu = self.host.api().get(&format!("/api/v1/gpus/{EXCLUSIVE}")).ok();
        let uuid = gpu["uuid"].as_str().expect("a UUID");
        let file = self.host.runtime("sim/gpus").join(uuid).join("compute_mode");
        let mode = std::fs::read_to_string(file).expect("a mode");
        assert_eq!(mode.trim(), wanted, "the compute mode of {}", DAEMONS[EXCLUSIVE]);
    }

    /// A daemon that is stopped restores the mode that was before the first manager came.
    pub(super) fn check_mode_restored(&self) {
        let api = self.host.api();
        let path = format!("/api/v1/daemons/{}/stop?grace_s=0", DAEMONS[EXCLUSIVE]);
        api.succeeds(&api.post(&path, &json!({})));
        self.check_mode("default");
    }

    /// Whether the foreign daemon is adopted: it is, or it is foreign, and never both nor neither.
    pub(super) fn is_borrowed(&self) -> bool {
        let answer = self.host.api().get(&format!("/api/v1/daemons/{BORROWED}"));
        assert!(matches!(answer.status, 200 | 404), "{} {}", answer.status, answer.text);
        let foreign = self.host.foreign_daemons();
        let listed = foreign.iter().any(|daemon| daemon["pid"] == self.foreign.pid());
        assert_ne!(answer.status == 200, listed, "{}, and foreign are {foreign:?}", answer.text);
        answer.status == 200
    }

    /// After a release that the manager's death may have cut short, and that was answered so or not at all.
    fn give_back(&self, answer: Option<u16>) {
        let borrowed = self.is_borrowed();
        assert!(answer.is_none_or(|status| status == 204 && !borrowed), "{answer:?}, adopted: {borrowed}");
        if borrowed {
            self.desk.story.count("releases that a death undid");
            let path = format!("/api/v1/daemons/{BORROWED}/release");
            let released = self.host.api().post(&path, &json!({}));
            assert_eq!(released.status, 204, "{}", released.text);
            assert!(!self.is_borrowed());
        } else if answer.is_none() {
            self.desk.story.count("releases that were done without an answer");
        }
    }

    /// In maintenance, no process of MPS and no manager has the GPU open.
    pub(super) fn check_released(&self, gpu: usize) {
        for pid in self.host.holders(gpu) {
            let words = command_line(pid);
            let program = words.first().is_some_and(|word| word.contains("nvidia-cuda-mps-"));
            assert!(
                !program && words.get(1).is_none_or(|word| word != "serve"),
                "{pid} {words:?} has GPU {gpu} open"
            );
        }
        self.desk.story.count("GPUs found released in maintenance");
    }

    /// Clients that were at work on servers which hung and were killed for that, by what the manager says of them.
    fn lost_with_hung_servers(&self) -> Vec<u32> {
        let query = "/api/v1/events?type=server.replaced,daemon.replaced&order=newest&limit=20";
        let events = self.host.api().get(query).ok();
        let events = events["items"].as_array().expect("items").iter();
        let clients = events.flat_map(|event| event["details"]["clients"].as_array().into_iter().flatten());
        clients.map(|client| crate::harness::pid(&client["pid"])).collect()
    }

    /// Waits until what died was noticed and replaced: readiness says what was known a moment ago.
    fn await_replaced(&self, strike: &Strike, before: &[Standing]) {
        self.within(READY, || {
            for at in strike.servers() {
                let status = &self.host.daemon(DAEMONS[at])["status"];
                let server = &status["effective"]["servers"][0]["pid"];
                let replaced = *server != before[at].server
                    && (!strike.controls().contains(&at) || status["pid"] != before[at].control);
                if !replaced {
                    return Err(format!("{} is not replaced: {status}", DAEMONS[at]));
                }
            }
            Ok(())
        });
        self.await_ready();
    }

    pub(super) fn check_operation(&self, place: &str, aim: Aim) {
        let mut ended = Value::Null;
        within(READY, || {
            ended = self.host.api().get(place).ok();
            let open = ended["state"] == "pending" || ended["state"] == "running";
            if open { Err(ended.to_string()) } else { Ok(()) }
        });
        self.desk.story.log(format!("operation {ended}"));
        let succeeded = ended["state"] == "succeeded";
        if let Aim::Drained(_) = aim {
            self.desk.story.count(&format!("drain {}", ended["state"]));
        }
        match aim {
            Aim::Success => assert!(succeeded, "{ended}"),
            Aim::Restarted(daemon, control) => {
                assert!(succeeded, "{ended}");
                let again = self.restart(daemon, control);
                assert_eq!((again.status, &again.json()["id"]), (202, &ended["id"]), "{}", again.text);
            }
            Aim::End(program) => {
                assert!(succeeded || ended["state"] == "failed", "{ended}");
                assert!(
                    !succeeded || !is_alive(program),
                    "program {program} lives and was terminated: {ended}"
                );
            }
            Aim::Drained(daemon) => {
                assert!(succeeded || ended["state"] == "failed", "{ended}");
                let schedulable = &self.host.daemon(daemon)["spec"]["schedulable"];
                assert_eq!(*schedulable, !succeeded, "{ended}");
                self.host.api().post(&format!("/api/v1/daemons/{daemon}/uncordon"), &json!({})).ok();
            }
        }
    }

    fn tenants(&self) -> BTreeMap<String, Value> {
        let list = self.host.api().get("/api/v1/tenants?limit=1000").ok();
        let items = list["items"].as_array().expect("items");
        let by_name: BTreeMap<String, Value> = items
            .iter()
            .map(|item| (item["name"].as_str().expect("a name").to_owned(), item.clone()))
            .collect();
        assert_eq!(by_name.len(), items.len(), "a tenant is doubled: {list}");
        by_name
    }

    /// The daemons, each ready with what its tenants want and with the processes that are really there.
    fn standing(&self, tenants: &BTreeMap<String, Value>) -> Vec<Standing> {
        let list = self.host.api().get("/api/v1/daemons").ok();
        let items = list["items"].as_array().expect("items");
        assert_eq!(items.len(), DAEMONS.len() + 1, "{list}");
        let standing = DAEMONS.into_iter().map(|name| {
            let daemon = items.iter().find(|daemon| daemon["name"] == name);
            let daemon = daemon.unwrap_or_else(|| panic!("daemon {name} is lost: {list}"));
            assert_eq!(daemon["status"]["phase"], "ready", "{daemon}");
            self.desk.ledger.lock().expect("unpoisoned").check_daemon(name, &daemon["spec"]);
            let generation = daemon["generation"].as_i64().expect("a generation");
            assert_eq!(daemon["status"]["observed_generation"], generation, "{daemon}");
            let mut ledger = self.desk.ledger.lock().expect("unpoisoned");
            ledger.never_back(&format!("daemon {name}"), generation);
            let servers = daemon["status"]["effective"]["servers"].as_array().expect("servers");
            assert_eq!(servers.len(), 1, "{daemon}");
            Standing { control: pid(&daemon["status"]["pid"]), server: pid(&servers[0]["pid"]) }
        });
        let standing: Vec<Standing> = standing.collect();
        let volatile = items.iter().find(|daemon| daemon["name"] == VOLATILE);
        let volatile = volatile.unwrap_or_else(|| panic!("daemon {VOLATILE} is lost: {list}"));
        self.desk.ledger.lock().expect("unpoisoned").check_daemon(VOLATILE, &volatile["spec"]);
        for tenant in tenants.values() {
            let applied = &tenant["status"]["observed_generation"];
            assert_eq!(*applied, tenant["generation"], "not in force: {tenant}");
        }
        standing
    }

    /// Each program is listed once, as its tenant's.
    fn check_clients(&mut self) {
        let clients = self.host.clients();
        self.programs.locate(&clients);
        let pids: BTreeSet<u64> = clients.iter().filter_map(|client| client["pid"].as_u64()).collect();
        assert_eq!(pids.len(), clients.len(), "a client is doubled: {clients:?}");
        for program in self.programs.connected() {
            let client = clients.iter().find(|client| client["pid"] == program.pid());
            let client = client.unwrap_or_else(|| panic!("{program:?} is not listed: {clients:?}"));
            if program.how == How::Run {
                self.desk.story.count(CONNECTED_RUN);
            }
            let mine = client["tenant"] == program.tenant.as_str();
            match program.how {
                How::Run => assert!(mine && client["attributed_by"] == "lease", "{program:?} is {client}"),
                // Its tenant may be gone or elsewhere: nothing holds it for a process that was not admitted.
                How::Plain => assert!(mine || client["tenant"].is_null(), "{program:?} is {client}"),
            }
        }
        assert!(
            clients
                .iter()
                .all(|client| self.programs.connected().any(|program| client["pid"] == program.pid())),
            "a client is listed that is none: {clients:?}"
        );
    }

    /// The daemon and its server hold what its tenants require, read with the control program.
    fn check_limits(&self, name: &str, server: u32, tenants: &BTreeMap<String, Value>) {
        let specs = tenants.values().map(|tenant| &tenant["spec"]).filter(|spec| spec["daemon"] == name);
        let mine: Vec<Value> = specs.map(in_full).collect();
        assert!(!mine.is_empty(), "each daemon has a tenant that stays");
        let limit = mine.iter().map(|spec| spec["device_memory_limit"].as_u64().expect("a limit")).max();
        let limit = limit.expect("a tenant");
        let tenths = mine.iter().map(tenths).max().expect("a tenant");
        let priority = u8::from(mine.iter().all(|spec| spec["priority"] == "below_normal"));
        let getters = [
            "get_server_list".to_owned(),
            "get_default_device_pinned_mem_limit 0".to_owned(),
            "get_default_active_thread_percentage".to_owned(),
            "get_default_client_priority".to_owned(),
            format!("get_device_pinned_mem_limit {server} 0"),
            format!("get_active_thread_percentage {server}"),
        ];
        let printed =
            if limit < 1024 * MIB { format!("{}M", limit / MIB) } else { format!("{}G", limit >> 30) };
        let percentage = format!("{}.{}", tenths / 10, tenths % 10);
        let wanted = [
            server.to_string(),
            printed.clone(),
            percentage.clone(),
            priority.to_string(),
            printed,
            percentage,
        ];
        assert_eq!(self.host.control(name, &getters.join("\n")), wanted.join("\n"), "{name}, {getters:?}");
        if let Some(exact) = self.logged_limit(name, server) {
            self.desk.story.count(LOGGED);
            assert_eq!(exact, limit, "{name}: what server {server} wrote to its log");
        }
    }

    /// The exact limit that a server took last, by its own word.
    fn logged_limit(&self, daemon: &str, server: u32) -> Option<u64> {
        let log = self.host.home(daemon).join("log/server.log");
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let mine = format!(" {server}] ");
        let line =
            text.lines().rfind(|line| line.contains(&mine) && line.contains("memory limit for device"))?;
        let hex = line.split("set to 0x").nth(1)?.split(' ').next()?;
        u64::from_str_radix(hex, 16).ok()
    }

    /// A program with the environment of some tenant sees exactly its share.
    fn check_probe(&mut self, tenants: &BTreeMap<String, Value>) {
        let at = self.rng.usize(..tenants.len());
        let (name, tenant) = tenants.iter().nth(at).expect("a tenant");
        let spec = in_full(&tenant["spec"]);
        let output = self.host.client_command(name, &[]).output().expect("it runs");
        let seen: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        assert_eq!((&seen["mps"], &seen["error"]), (&json!(true), &Value::Null), "{name}: {seen}");
        let devices = seen["devices"].as_array().expect("devices");
        assert_eq!(devices.len(), 1, "{seen}");
        let sms = sms(tenths(&spec));
        assert_eq!(devices[0]["sms"], sms, "{name} {spec}: {seen}");
        let limit = spec["device_memory_limit"].as_u64().expect("a limit");
        let context = (275 + 37 * sms) * MIB / 10;
        assert_eq!(devices[0]["memory_free"], limit - context, "{name} {spec}: {seen}");
    }

    /// Whatever carries a token of ours is named by a row, and there is one daemon and one server of each.
    fn check_orphans(&self, struck: Instant) {
        // However long it took to be ready: who is there then is an orphan.
        within(ORPHAN.saturating_sub(struck.elapsed()), || {
            let tokens: BTreeSet<String> =
                self.rows("SELECT token FROM incarnations").iter().map(|row| row.get(0)).collect();
            for pid in processes_with("MPS_SIM_WORLD", &self.host.runtime("sim")) {
                if let Some(token) = environment(pid, "MPS_MANAGER_INCARNATION")
                    && !tokens.contains(&token)
                    && is_alive(pid)
                {
                    return Err(format!(
                        "process {pid} {:?} has a token that no row names",
                        command_line(pid)
                    ));
                }
            }
            for name in DAEMONS.into_iter().chain([VOLATILE]) {
                for (program, most) in [("nvidia-cuda-mps-control", 1), ("nvidia-cuda-mps-server", 1)] {
                    let found = processes(&self.host, name, program);
                    if found.len() != most {
                        return Err(format!("{program} of {name}: {found:?}"));
                    }
                }
            }
            Ok(())
        });
    }

    /// No tenant whose `max_clients` stay has more living leases than that.
    fn check_leases(&self, tenants: &BTreeMap<String, Value>) {
        let mut living: BTreeMap<String, u64> = BTreeMap::new();
        for row in self.rows("SELECT tenant, pid FROM leases") {
            let holder: i64 = row.get(1);
            if u32::try_from(holder).is_ok_and(is_alive) {
                *living.entry(row.get(0)).or_default() += 1;
            }
        }
        for name in GIVEN {
            let most = tenants[name]["spec"]["max_clients"].as_u64().expect("a number");
            let held = living.get(name).copied().unwrap_or(0);
            assert!(held <= most, "{name} has {held} leases, and {most} clients at most");
            let running = self.programs.connected().filter(|program| is_run_of(program, name)).count() as u64;
            assert!(running <= most, "{name} has {running} programs running, and {most} clients at most");
        }
    }

    fn rows(&self, query: &'static str) -> Vec<sqlx::sqlite::SqliteRow> {
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(self.host.state("mps-manager.db"))
            .busy_timeout(Duration::from_secs(5))
            .read_only(true);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let mut database = SqliteConnection::connect_with(&options).await.expect("the database opens");
            let rows = sqlx::query(query).fetch_all(&mut database).await.expect("the database answers");
            database.close().await.expect("closed");
            rows
        })
    }

    fn learn(&mut self, tenants: &BTreeMap<String, Value>) {
        self.programs.forget_environments();
        for name in tenants.keys() {
            let environment = self.host.api().get(&format!("/api/v1/tenants/{name}/environment")).ok();
            self.programs.learn(name, &environment);
        }
    }
}

fn is_run_of(program: &Program, tenant: &str) -> bool {
    program.how == How::Run && program.tenant == tenant
}

/// What was not struck was not restarted.
fn unchanged(strike: &Strike, before: &[Standing], after: &[Standing]) {
    for (at, (before, after)) in before.iter().zip(after).enumerate() {
        if strike.perhaps() == Some(at) {
            continue;
        }
        let name = DAEMONS[at];
        if !strike.controls().contains(&at) {
            assert_eq!(
                before.control, after.control,
                "the control daemon {name} was replaced after {strike:?}"
            );
        }
        if !strike.servers().contains(&at) {
            assert_eq!(before.server, after.server, "the server of {name} was replaced after {strike:?}");
        }
    }
}

/// Living processes of a program in a daemon's pipe directory, those that only ask or only start something left out.
pub(super) fn processes(host: &Host, daemon: &str, program: &str) -> Vec<u32> {
    let pipe = host.home(daemon).join("pipe");
    let mut found = processes_with("CUDA_MPS_PIPE_DIRECTORY", &pipe);
    found.retain(|pid| {
        let words = command_line(*pid);
        let is_it = words.first().is_some_and(|word| word.rsplit('/').next() == Some(program));
        is_it && (!program.ends_with("control") || words.iter().any(|word| word == "-d"))
    });
    found
}

/// A tenant's spec with what it leaves to its daemon, which only the one that was adopted says.
fn in_full(spec: &Value) -> Value {
    let mut full = spec.clone();
    if spec["daemon"] == ADOPTED && spec["sms"].is_null() {
        for (field, value) in defaults().as_object().expect("an object") {
            if spec[field].is_null() {
                full[field] = value.clone();
            }
        }
    }
    full
}

/// A tenant's share in tenths of a percent.
fn tenths(spec: &Value) -> u64 {
    if let Some(wanted) = spec["sms"].as_u64() {
        return (1..=1000).find(|tenths| sms(*tenths) == wanted).expect("SMs that can be had");
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 to 1000")]
    let tenths = (spec["active_thread_percentage"].as_f64().expect("a share") * 10.0).round() as u64;
    tenths
}

/// SMs that a client sees under a share of an H200.
fn sms(tenths: u64) -> u64 {
    ((tenths * 132 / 1000) & !1).max(8)
}
