//! Who is admittedto a partition: its tenants, once it is proven, and while nobody else is in it.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::foreign::delete;
use super::layouts::{add, apply, host, partitions, post, remove, trapped_host, uuid, write};
use super::shares::is_admitted_while_another_is_written;
use crate::harness::{
    Client, Host, InProcess, Manager, Served, Simulated, Spring, Trap, eventually, signal, stderr_of,
};

const VARIABLE: &str = "CUDA_MPS_SM_PARTITION";
const HINT: &str = "MPS_MANAGER_TENANT";
const NOBODY: u32 = 65_534;

/// A step that makes a partition for these tenants.
pub(super) fn bound(partition: &str, chunks: u32, tenants: &[&str]) -> Value {
    let mut step = add(partition, chunks);
    step["add"]["tenants"] = json!(tenants);
    step
}

pub(super) fn tenants(host: &Served, names: &[&str]) {
    for name in names {
        let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "2G", "max_clients": 8});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
}

/// The partitions in the environment of a tenant.
fn handed_out(host: &Served, tenant: &str) -> String {
    let environment = host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
    environment["variables"][VARIABLE].as_str().expect("a partition").to_owned()
}

/// A tenant gets neither an environment nor a process, and is refused with this message.
fn refused(host: &Served, tenant: &str, words: &[&str]) {
    let environment = host.api().get(&format!("/api/v1/tenants/{tenant}/environment"));
    let environment = environment.problem(409, "conflict")["detail"].as_str().unwrap().to_owned();
    let uid = host.api().get(&format!("/api/v1/tenants/{tenant}")).ok()["spec"]["uid"].as_u64().unwrap();
    let process = Holder::of_user(u32::try_from(uid).unwrap());
    let lease = host.api().post(
        &format!("/api/v1/tenants/{tenant}/leases"),
        &json!({"kind": "recorded", "pid": process.pid()}),
    );
    let lease = lease.problem(409, "conflict")["detail"].as_str().unwrap().to_owned();
    let run = host.run(tenant, &["true"]);
    assert_eq!(run.status.code(), Some(2), "{}", stderr_of(&run));
    for message in [environment, lease, stderr_of(&run)] {
        for word in words {
            assert!(message.contains(word), "{word} in {message}");
        }
    }
}

fn sms(client: &Client) -> u64 {
    client.seen["devices"][0]["sms"].as_u64().unwrap_or_else(|| panic!("{}", client.seen))
}

/// A process, in no environment of anybody's, that is ended with this value.
struct Holder(Child);

impl Holder {
    fn new() -> Self {
        Self(Command::new("sleep").arg("600").env_clear().spawn().expect("sleep runs"))
    }

    /// One of this user.
    fn of_user(uid: u32) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear();
        Self::spawn(command, uid)
    }

    /// One that was started as a tenant's in partitions, by this user.
    fn within(partitions: &str, tenant: &str, uid: u32) -> Self {
        let mut command = Command::new("sleep");
        command.arg("600").env_clear().env(VARIABLE, partitions).env(HINT, tenant);
        Self::spawn(command, uid)
    }

    fn spawn(mut command: Command, uid: u32) -> Self {
        if uid != rustix::process::getuid().as_raw() {
            command.uid(uid).gid(uid);
        }
        Self(command.spawn().expect("sleep runs"))
    }

    fn start_time(&self) -> String {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
        stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).expect("a start time").to_owned()
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A host whose partition of seven chunks is `first`'s, and on record as such.
fn of_first<M: Manager>() -> Simulated<M> {
    let host = host();
    tenants(&host, &["first", "second"]);
    write(&host, "old", &[bound("old", 7, &["first"])]);
    apply(&host, "old", &json!({}));
    host
}

/// Gives the SMs of the first tenant's partition to the second, under the same ID.
fn give_to_second(host: &Served) {
    let before = handed_out(host, "first");
    write(host, "new", &[bound("new", 7, &["second"])]);
    apply(host, "new", &json!({}));
    let there = partitions(host);
    assert_eq!(there.len(), 1);
    assert_eq!(
        (&there[0].0, before.ends_with(&format!("/{}", there[0].1))),
        (&"new".to_owned(), true),
        "{there:?}"
    );
}

#[test]
fn tenant_connects_while_another_is_written() {
    let host: InProcess = of_first();
    is_admitted_while_another_is_written(&host, "gpu1", "first");
}

#[test]
fn tenant_gets_its_partitions_sms() {
    let host: InProcess = host();
    tenants(&host, &["web", "side", "jobs"]);
    write(
        &host,
        "prod",
        &[bound("wide", 7, &["web", "side"]), add("gap", 1), bound("narrow", 5, &["jobs"]), remove("gap")],
    );
    apply(&host, "prod", &json!({}));
    let made = partitions(&host);
    assert_eq!(handed_out(&host, "web"), format!("{}/{}", uuid(&host, 1), made[0].1));
    assert_eq!(handed_out(&host, "side"), handed_out(&host, "web"), "several may share one");
    let clients = [("web", 56), ("side", 56), ("jobs", 40)].map(|(tenant, expected)| {
        let (by_environment, by_run) = (host.client(tenant), host.run_client(tenant));
        assert_eq!((sms(&by_environment), sms(&by_run)), (expected, expected), "{tenant}");
        (by_environment, by_run)
    });
    host.clients();
    let of = |name: &str| {
        let seen = host.api().get(&format!("/api/v1/daemons/gpu1/partitions/{name}?fresh=true")).ok();
        seen["clients"].as_array().unwrap().len()
    };
    eventually("all are listed where they are", || ((of("wide"), of("narrow")) == (4, 2)).then_some(()));
    let web = host.api().get("/api/v1/tenants/web").ok();
    assert_eq!(web["status"]["conditions"][0]["status"], true, "{web}");
    drop(clients);
    // In shared mode nothing of it is shown.
    let demo = host.api().get("/api/v1/tenants/demo/environment").ok();
    assert!(
        demo["variables"].get(VARIABLE).is_none()
            && demo["unset"].as_array().unwrap().contains(&json!(VARIABLE))
    );
}

#[test]
fn tenant_has_a_partition_on_each_gpu() {
    let host = InProcess::ready();
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    delete(&host, "gpu0");
    delete(&host, "gpu1");
    let spec = json!({"gpus": ["0", "1"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/both", &spec).status, 201);
    for tenant in ["wide", "half"] {
        let spec = json!({"daemon": "both", "uid": 0, "device_memory_limit": "8G", "max_clients": 4});
        assert_eq!(host.api().tenant(tenant, &spec).status, 201);
    }
    host.await_ready();
    let mut second = bound("small", 2, &["wide"]);
    second["add"]["gpu"] = json!(1);
    write(&host, "prod", &[second, bound("large", 4, &["wide", "half"])]);
    let target = json!({"daemon": "both", "gpu_map": {"0": "0", "1": "1"}});
    host.api().succeeds(&host.api().post("/api/v1/layouts/prod/apply", &target));
    let named = handed_out(&host, "wide");
    let gpus: Vec<&str> = named.split(',').map(|one| one.split_once('/').unwrap().0).collect();
    assert_eq!(gpus, [uuid(&host, 0), uuid(&host, 1)]);
    let client = host.run_client("wide");
    assert_eq!(
        (&client.seen["devices"][0]["sms"], &client.seen["devices"][1]["sms"]),
        (&json!(32), &json!(16))
    );

    refused(&host, "half", &["no partition of GPU-", &uuid(&host, 1)]);
    let half = json!({"daemon": "both", "uid": 0, "device_memory_limit": "8G", "gpus": ["0"]});
    assert_eq!(host.api().tenant("half", &half).status, 200);
    host.await_ready();
    assert_eq!(sms(&host.run_client("half")), 32);
}

#[test]
fn tenant_is_refused_without_proven_partition() {
    let trap = Trap::new();
    let mut host: Host = trapped_host(&trap, "fresh_timeout_s = 1");
    tenants(&host, &["web", "jobs"]);
    refused(&host, "web", &["it has no layout"]);
    let ready = host.api().get("/api/v1/tenants/web").ok()["status"]["conditions"][0].clone();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!(false), &json!("PartitionNotProven")),
        "{ready}"
    );

    write(&host, "prod", &[bound("web", 7, &["web"]), add("other", 2)]);
    trap.set(Spring::Held, 2);
    let applying =
        host.api().post("/api/v1/layouts/prod/apply", &json!({"daemon": "gpu1", "gpu_map": {"0": "1"}}));
    trap.sprung();
    refused(&host, "web", &["still being applied"]);
    trap.release();
    host.api().succeeds(&applying);
    host.await_phase("gpu1", "ready");
    let named = handed_out(&host, "web");
    refused(&host, "jobs", &["has no partition of GPU-"]);

    // The control process dies: its successor has to give the same IDs first, under this manager or the next.
    for next_manager in [false, true] {
        trap.set(Spring::Held, 1);
        if next_manager {
            host.end_manager(Signal::KILL);
        }
        signal(control(&host), Signal::KILL);
        if next_manager {
            host.serve();
        }
        trap.sprung();
        refused(&host, "web", &["still being applied"]);
        trap.release();
        host.await_ready();
        assert_eq!(handed_out(&host, "web"), named);
    }

    let made = partitions(&host);
    host.control("gpu1", &format!("sm_partition rm {}/{}", uuid(&host, 1), made[1].1));
    assert_eq!(handed_out(&host, "web"), named, "its own is where it was");
    host.control("gpu1", &format!("sm_partition rm {named}"));
    refused(&host, "web", &["partition web", "not there as the layout made it"]);
    host.await_phase("gpu1", "ready");
    host.api().succeeds(
        &host.api().post("/api/v1/layouts/prod/apply", &json!({"daemon": "gpu1", "gpu_map": {"0": "1"}})),
    );
    assert_eq!(sms(&host.run_client("web")), 56);
}

/// The control process of the second daemon, asked of the system: there may be no manager.
fn control(host: &Served) -> u32 {
    let pipe = host.runtime("daemons/gpu1/pipe");
    let text = std::fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).expect("it runs");
    text.trim().parse().expect("a PID")
}

#[test]
fn reused_id_is_refused_while_still_held() {
    let mut host: Host = of_first();
    // It is no client of MPS yet, and may become one at any moment.
    let mut run = host.run_command("first", &["sleep", "600"]).spawn().unwrap();
    let pid = run.id();
    eventually("it has been admitted", || {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        command.starts_with("sleep").then_some(())
    });
    give_to_second(&host);
    let name = format!("process {pid}-");
    refused(&host, "first", &["has no partition of GPU-"]);
    refused(&host, "second", &[&name, "of tenant first"]);
    host.end_manager(Signal::KILL);
    host.serve();
    host.await_ready();
    refused(&host, "second", &[&name, "of tenant first"]);
    run.kill().unwrap();
    run.wait().unwrap();
    assert_eq!(sms(&host.client("second")), 56);
    assert_eq!(sms(&host.run_client("second")), 56);
}

#[test]
fn lease_belongs_to_one_process_and_boot() {
    let mut host: Host = of_first();
    for forget in [
        "UPDATE partition_leases SET start_time = start_time + 1",
        "UPDATE partition_leases SET boot_id = 'another'",
    ] {
        let holder = Holder::new();
        let lease = |tenant: &str| {
            host.api().post(
                &format!("/api/v1/tenants/{tenant}/leases"),
                &json!({"kind": "recorded", "pid": holder.pid()}),
            )
        };
        assert_eq!(lease("first").status, 201);
        give_to_second(&host);
        refused(&host, "second", &[&format!("process {}-", holder.pid()), "of tenant first"]);
        // Nor may it become another's itself: it knows the answer for the first.
        let again = lease("second").problem(409, "conflict");
        let again = again["detail"].as_str().unwrap();
        assert!(
            again.contains("admitted for tenant first") && again.contains("start a separate process"),
            "{again}"
        );
        assert_eq!(host.query_sql("SELECT tenant FROM partition_leases"), ["first"]);
        drop(holder);
        let holder = Holder::new();
        let lease = json!({"kind": "recorded", "pid": holder.pid()});
        assert_eq!(host.api().post("/api/v1/tenants/second/leases", &lease).status, 201);
        assert_eq!(host.run("second", &["true"]).status.code(), Some(0));
        apply(&host, "old", &json!({}));
        refused(&host, "first", &["of tenant second"]);
        host.end_manager(Signal::KILL);
        host.execute_sql(forget);
        host.serve();
        host.await_ready();
        assert_eq!(host.run("first", &["true"]).status.code(), Some(0), "{forget}");
        let kept = host.query_sql("SELECT tenant FROM partition_leases");
        assert_eq!(kept, ["first"], "what is over is forgotten: {forget}");
    }
}

#[test]
fn forgotten_tenants_process_still_holds_its_partition() {
    let mut host: Host = of_first();
    let file = host.dir().join("backup.db");
    host.kept("backup", &file);
    // As if it had been deleted and made again since.
    host.end_manager(Signal::TERM);
    host.execute_sql("UPDATE tenants SET directory = 'ffffffffff' WHERE name = 'first'");
    host.serve();
    host.await_ready();
    let holder = Holder::new();
    let lease = json!({"kind": "recorded", "pid": holder.pid()});
    assert_eq!(host.api().post("/api/v1/tenants/first/leases", &lease).status, 201);
    host.end_manager(Signal::TERM);
    host.kept("restore", &file);
    host.serve();
    host.await_ready();
    let again = host.api().post("/api/v1/tenants/first/leases", &lease).problem(409, "conflict");
    assert!(again["detail"].as_str().unwrap().contains("admitted for a deleted tenant"), "{again}");
    refused(&host, "first", &[&format!("process {}-", holder.pid()), "of no known tenant"]);
    drop(holder);
    assert_eq!(host.run("first", &["true"]).status.code(), Some(0));
}

#[test]
fn any_process_naming_partition_holds_it() {
    let host: InProcess = of_first();
    let named = handed_out(&host, "first");
    // The process that was admitted has ended, and its child has not.
    let left = host.run("first", &["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $! >&2"]);
    let child: u32 = stderr_of(&left).trim().parse().expect("a PID");
    let client = host.client("first");
    write(&host, "old", &[bound("old", 7, &["second"])]);
    apply(&host, "old", &json!({}));
    assert_eq!(handed_out_or_none(&host, "second"), None);
    refused(&host, "second", &["of tenant first"]);
    drop(client);
    refused(&host, "second", &[&format!("process {child}-"), "of tenant first"]);
    signal(child, Signal::KILL);
    eventually("it is free", || handed_out_or_none(&host, "second"));

    let stranger = host.stranger("gpu1", &named);
    refused(&host, "second", &[&format!("process {}-", stranger.pid()), "of no known tenant"]);
    drop(stranger);
    eventually("it is free", || handed_out_or_none(&host, "second"));
    // A tenant that puts another's partition into its own environment is seen in it, and holds it as a stranger does.
    write(&host, "old", &[bound("old", 7, &["second"]), bound("more", 2, &["first"])]);
    apply(&host, "old", &json!({}));
    let mut command = host.client_command("first", &["--spin", "600", "--alloc", "64"]);
    command.env(VARIABLE, &named);
    let trespasser = Client::start(command);
    assert_eq!(sms(&trespasser), 56, "MPS lets it");
    let listed = host.listed(trespasser.pid());
    assert_eq!(listed["tenant"], "first");
    let partition = host.api().get("/api/v1/daemons/gpu1/partitions/old?fresh=true").ok();
    assert_eq!((&partition["clients"], &partition["tenants"]), (&json!([listed["id"]]), &json!(["second"])));
    refused(&host, "second", &[&format!("process {}-", trespasser.pid()), "of tenant first"]);
}

fn handed_out_or_none(host: &Served, tenant: &str) -> Option<String> {
    let answer = host.api().get(&format!("/api/v1/tenants/{tenant}/environment"));
    (answer.status == 200)
        .then(|| answer.json()["variables"][VARIABLE].as_str().expect("a partition").to_owned())
}

/// Two tenants with a partition each, and a layout that leaves the second's out.
fn of_both<M: Manager>() -> Simulated<M> {
    let host = host();
    tenants(&host, &["first", "second"]);
    let both = [bound("wide", 7, &["first"]), bound("narrow", 5, &["second"])];
    write(&host, "both", &both);
    write(&host, "less", &both[..1]);
    apply(&host, "both", &json!({}));
    host
}

#[test]
fn unconnected_process_keeps_its_partition() {
    let host: InProcess = of_both();
    let made = partitions(&host);
    let words = ["sh", "-c", "read _; exec \"$0\" sim client --json", env!("CARGO_BIN_EXE_mps-manager")];
    let mut command = host.run_command("second", &words);
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let pid = run.id();
    eventually("it has been admitted", || {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?.starts_with("sh").then_some(())
    });
    let plan = post(&host, "less", "plan", &json!({})).ok();
    assert_eq!((&plan["blocked"][0]["kind"], &plan["steps"][1]["clients"]), (&json!("in_use"), &json!([])));
    for recreate in [false, true] {
        let blocked = post(&host, "less", "apply", &json!({"recreate": recreate}));
        let blocked = blocked.problem(409, "layout-blocked");
        let detail = blocked["errors"][0]["detail"].as_str().unwrap();
        assert!(detail.contains("narrow") && detail.contains(&format!("{pid}-")), "{detail}");
    }
    assert_eq!(partitions(&host), made);
    // What keeps its partition is no matter of its.
    apply(&host, "both", &json!({}));
    run.stdin.take().unwrap().write_all(b"\n").unwrap();
    let seen = run.wait_with_output().unwrap();
    let seen: Value = serde_json::from_slice(&seen.stdout).expect("what it saw");
    assert_eq!(seen["devices"][0]["sms"], 40, "{seen}");
    // MPS lists the partition as in use for a moment after its client.
    eventually("the partition is free", || {
        let plan = post(&host, "less", "plan", &json!({})).ok();
        (plan["blocked"] == json!([])).then_some(())
    });
    apply(&host, "less", &json!({}));
    assert_eq!(partitions(&host), made[..1]);
}

#[test]
fn lease_granted_during_change_is_noticed() {
    let mut host: Host = of_both();
    let made = partitions(&host);
    assert_eq!(host.run("second", &["true"]).status.code(), Some(0));
    for step in ["plan", "write the layout"] {
        let holder = Holder::new();
        host.end_manager(Signal::KILL);
        // The lease of the process that is gone becomes one of a living process as the step begins.
        host.execute_sql(&format!(
            "DROP TRIGGER IF EXISTS admission;
             CREATE TRIGGER admission AFTER INSERT ON operation_steps WHEN NEW.name = '{step}' BEGIN
               UPDATE partition_leases SET pid = {}, start_time = {} WHERE tenant = 'second';
             END;",
            holder.pid(),
            holder.start_time(),
        ));
        host.serve();
        host.await_ready();
        let spec = host.daemon("gpu1")["spec"].clone();
        let commands = host.logged("gpu1", "sm_partition");
        let operation = host.api().outcome(&post(&host, "less", "apply", &json!({})));
        assert_eq!(operation["state"], "failed", "{operation}");
        let last = operation["steps"].as_array().unwrap().last().unwrap();
        assert_eq!(last["name"], step, "{operation}");
        let error = operation["error"].as_str().unwrap();
        assert!(error.contains("narrow") && error.contains(&format!("{}-", holder.pid())), "{error}");
        assert_eq!((partitions(&host), &host.daemon("gpu1")["spec"]), (made.clone(), &spec));
        assert_eq!(host.logged("gpu1", "sm_partition"), commands);
    }
}

#[test]
fn process_with_conflicting_attribution_is_unattributed() {
    let host: InProcess = host();
    tenants(&host, &["first", "second"]);
    write(&host, "old", &[bound("wide", 7, &["first"]), bound("narrow", 5, &["second"])]);
    apply(&host, "old", &json!({}));
    let uid = rustix::process::getuid().as_raw();
    let holder = Holder::within(&handed_out(&host, "first"), "first", uid);
    let lease = json!({"kind": "recorded", "pid": holder.pid()});
    assert_eq!(host.api().post("/api/v1/tenants/second/leases", &lease).status, 201);
    write(&host, "old", &[bound("wide", 7, &["second"]), bound("narrow", 5, &["first"])]);
    apply(&host, "old", &json!({}));
    let name = format!("process {}-", holder.pid());
    refused(
        &host,
        "second",
        &[&name, "of tenant second by its lease and of tenant first by its environment"],
    );
    drop(holder);
    assert_eq!(sms(&host.run_client("second")), 56);
}

#[test]
fn deleted_tenants_process_is_not_reattributed() {
    if !crate::harness::is_root() {
        return;
    }
    let host: Host = host();
    let spec = json!({"gpus": ["1"], "mode": "static", "multi_user": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    for (name, uid) in [("first", NOBODY), ("second", NOBODY), ("roots", 0)] {
        let spec = json!({"daemon": "gpu1", "uid": uid, "device_memory_limit": "2G", "max_clients": 8});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host.await_ready();
    write(&host, "old", &[bound("old", 7, &["first"])]);
    apply(&host, "old", &json!({}));
    let holder = Holder::within(&handed_out(&host, "first"), "first", NOBODY);
    give_to_second(&host);
    refused(&host, "second", &[&format!("process {}-", holder.pid()), "of tenant first"]);
    assert_eq!(host.api().delete("/api/v1/tenants/first").status, 204);
    host.await_ready();
    refused(
        &host,
        "second",
        &[
            &format!("process {}-", holder.pid()),
            "of tenant second by its user and of tenant first by its environment",
        ],
    );
    drop(holder);
    assert_eq!(host.run("second", &["true"]).status.code(), Some(0));
}

/// A program whose main thread ends while another thread continues.
const HEADLESS: &str = "#include <pthread.h>
#include <unistd.h>
static void *go_on(void *nothing) { for (;;) sleep(600); return nothing; }
int main(void) { pthread_t thread; pthread_create(&thread, 0, go_on, 0); pthread_exit(0); }
";

#[test]
fn process_without_main_thread_holds_its_partition() {
    let host: InProcess = of_first();
    let (source, program) = (host.dir().join("headless.c"), host.dir().join("headless"));
    std::fs::write(&source, HEADLESS).unwrap();
    let built = Command::new("cc").arg("-pthread").arg("-o").args([&program, &source]).output().unwrap();
    assert!(built.status.success(), "{}", stderr_of(&built));
    let named = handed_out(&host, "first");
    let program = program.to_str().unwrap();
    let by_run = host.run_command("first", &[program]).spawn().unwrap();
    let by_environment = Command::new(program).env_clear().env(VARIABLE, &named).env(HINT, "first").spawn();
    let holders = [Holder(by_run), Holder(by_environment.unwrap())];
    for holder in &holders {
        eventually("its main thread has ended", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", holder.pid())).unwrap();
            stat.contains(") Z ").then_some(())
        });
    }
    give_to_second(&host);
    for holder in holders {
        refused(&host, "second", &[&format!("process {}-", holder.pid()), "of tenant first"]);
        drop(holder);
    }
    assert_eq!(host.run("second", &["true"]).status.code(), Some(0));
}
