//! `mps-manager kubelet-plugin` on a simulated host, with a stand-in for the kubelet.

mod stand_in;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use self::stand_in::StandInKubelet;
use crate::harness::scratch::install_script;
use crate::harness::{Host, eventually, heavy, send, setting, stderr_of};

/// The class of a quarter of an H200.
const QUARTER: &str = "mps-manager.dev/sm32";
/// Options with which a release needs no patience.
const QUICK: [&str; 4] = ["--interval", "100ms", "--min-age", "0s"];

/// A plugin that ends with the test.
struct Plugin {
    process: Child,
    log: PathBuf,
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the plugin's log ---\n{}", self.log());
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Plugin {
    fn start(host: &Host, kubelet: &StandInKubelet, more: &[&str]) -> Self {
        let log = host.dir().join(format!("plugin{}.log", fastrand::u32(..)));
        let file = fs::File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = Self::command(host, kubelet);
        command.args(more).stderr(file).stdout(Stdio::null());
        Self { process: command.spawn().expect("the plugin starts"), log }
    }

    fn command(host: &Host, kubelet: &StandInKubelet) -> Command {
        let mut command = host.command(&["kubelet-plugin", "--plugin-dir"]);
        command.arg(kubelet.directory()).arg("--pod-resources").arg(kubelet.pod_resources_socket());
        command.arg("--uid").arg(rustix::process::geteuid().as_raw().to_string());
        command
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ends it by a signal, and gives its exit code.
    fn end(&mut self, with: Signal) -> Option<i32> {
        let id = mps_manager::host::process::identify(self.process.id()).expect("it runs");
        assert!(send(id, with));
        eventually("the plugin ends", || self.process.try_wait().expect("waited for")).code()
    }
}

/// Divides the GPU of each daemon among so many clients, and among them alone.
fn divide(host: &Host, clients: u32) {
    for tenant in host.api().get("/api/v1/tenants").ok()["items"].as_array().expect("tenants") {
        let name = tenant["name"].as_str().expect("a name");
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{name}")).status, 204);
    }
    for daemon in host.api().get("/api/v1/daemons").ok()["items"].as_array().expect("daemons") {
        let name = daemon["name"].as_str().expect("a name");
        let spec = json!({"gpus": daemon["spec"]["gpus"],
            "provisioning": {"strategy": "uniform", "expected_clients": clients}});
        assert_eq!(host.api().put(&format!("/api/v1/daemons/{name}"), &spec).status, 200);
    }
    host.await_ready();
}

fn kubelet(host: &Host) -> StandInKubelet {
    StandInKubelet::start(&host.dir().join("kubelet"))
}

/// The GPU of a daemon.
fn gpu(host: &Host, daemon: &str) -> String {
    host.daemon(daemon)["spec"]["gpus"][0].as_str().expect("a GPU").to_owned()
}

/// The tenants that a plugin made, by name.
fn tenants(host: &Host) -> BTreeMap<String, Value> {
    let all = host.api().get("/api/v1/tenants?limit=1000").ok();
    let tenants = all["items"].as_array().expect("tenants").iter();
    let named = tenants.map(|tenant| (tenant["name"].as_str().expect("a name").to_owned(), tenant.clone()));
    named.filter(|(name, _)| name.starts_with("kube-")).collect()
}

fn await_no_tenant(host: &Host) {
    eventually("no tenant is left", || tenants(host).is_empty().then_some(()));
}

#[test]
fn classes_are_registered_after_every_restart() {
    let host = Host::ready();
    divide(&host, 4);
    let mut kubelet = kubelet(&host);
    // An earlier plugin was killed.
    let stale = kubelet.directory().join("mps-manager-sm8.sock");
    drop(UnixListener::bind(&stale).expect("a socket"));
    let features = host.dir().join("features");
    let mut plugin = Plugin::start(&host, &kubelet, &["--features-file", features.to_str().expect("text")]);
    let listed = kubelet.await_healthy(QUARTER, 8);
    let ids: Vec<&String> = listed.devices.iter().map(|device| &device.id).collect();
    let (zero, one) = (gpu(&host, "gpu0"), gpu(&host, "gpu1"));
    let expected: Vec<String> =
        [&zero, &one].iter().flat_map(|gpu| (0..4).map(move |number| format!("{gpu}-{number}"))).collect();
    assert_eq!(ids, expected.iter().collect::<Vec<_>>());
    assert_eq!(kubelet.registrations(QUARTER), 1);
    assert!(!stale.exists());
    let facts = eventually("facts are written", || fs::read_to_string(&features).ok());
    assert_eq!(facts, "mps-manager.dev/strategy=uniform\nmps-manager.dev/clients-per-gpu=4\n");

    kubelet.restart();
    kubelet.await_healthy(QUARTER, 8);

    plugin.end(Signal::KILL);
    eventually("its stream ends", || kubelet.listed(QUARTER).is_none().then_some(()));
    let registrations = kubelet.registrations(QUARTER);
    assert!(registrations > 1);
    let mut plugin = Plugin::start(&host, &kubelet, &[]);
    kubelet.await_healthy(QUARTER, 8);
    assert_eq!(kubelet.registrations(QUARTER), registrations + 1);

    // A class that is divided otherwise has no devices any longer, and another one has.
    divide(&host, 2);
    kubelet.await_healthy("mps-manager.dev/sm66", 4);
    eventually("the class has no place", || kubelet.listed(QUARTER)?.devices.is_empty().then_some(()));

    assert_eq!(plugin.end(Signal::TERM), Some(0));
    let left: Vec<_> = fs::read_dir(kubelet.directory()).expect("a directory").flatten().collect();
    assert_eq!(left.len(), 2, "the kubelet's own socket and checkpoint: {left:?}");
}

#[test]
fn places_are_unhealthy_without_daemon_or_manager() {
    let mut host = Host::ready();
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let _plugin = Plugin::start(&host, &kubelet, &["--grace", "500ms"]);
    kubelet.await_healthy(QUARTER, 8);
    let other = gpu(&host, "gpu1");
    let is_other_alone = |healthy: &BTreeSet<String>| healthy.iter().all(|id| id.starts_with(&other));
    for (bad, good) in [("stop?grace_s=0", "start"), ("cordon", "uncordon")] {
        host.api().post(&format!("/api/v1/daemons/gpu0/{bad}"), &json!({}));
        let listed = kubelet.await_healthy(QUARTER, 4);
        assert!(is_other_alone(&listed.healthy()), "{bad}: {:?}", listed.devices);
        assert_eq!(listed.devices.len(), 8, "none disappears");
        host.api().post(&format!("/api/v1/daemons/gpu0/{good}"), &json!({}));
        kubelet.await_healthy(QUARTER, 8);
    }
    host.end_manager(Signal::KILL);
    assert_eq!(kubelet.await_healthy(QUARTER, 0).devices.len(), 8);
    host.serve();
    kubelet.await_healthy(QUARTER, 8);
    assert_eq!(kubelet.registrations(QUARTER), 1, "the kubelet is not bothered");
}

#[test]
fn allocation_makes_tenant_until_pod_is_gone() {
    let host = Host::ready();
    divide(&host, 4);
    let mut kubelet = kubelet(&host);
    let mut plugin = Plugin::start(&host, &kubelet, &QUICK);
    kubelet.await_healthy(QUARTER, 8);
    let zero = gpu(&host, "gpu0");
    let ids = [format!("{zero}-1"), format!("{zero}-2")];
    kubelet.add_pod("a", QUARTER, &ids);
    let answer = kubelet.allocate(QUARTER, &ids).0.expect("allocated");
    let (name, tenant) = tenants(&host).pop_first().expect("a tenant");
    let devices: Vec<&str> = answer.cdi_devices.iter().map(|device| device.name.as_str()).collect();
    assert_eq!(devices, [format!("mps-manager.dev/tenant={name}"), format!("nvidia.com/gpu={zero}")]);
    assert!(answer.envs.is_empty() && answer.mounts.is_empty());
    let spec = &tenant["spec"];
    assert_eq!((&spec["daemon"], &spec["max_clients"]), (&json!("gpu0"), &json!(2)));
    assert_eq!(spec["gpus"], json!([zero]));
    let places = format!("kubernetes-places-{zero}");
    let labels = json!({
        "kubernetes-resource": QUARTER, places: "1-2",
        "kubernetes-namespace": "default", "kubernetes-pod": "a", "kubernetes-container": "main",
    });
    eventually("it is named by its pod", || {
        (tenants(&host).get(&name)?["spec"]["labels"] == labels).then_some(())
    });
    assert_eq!(tenants(&host)[&name]["workload"], "pod default/a/main");
    assert!(spec["expires_at"].is_string(), "{spec}");
    // The kubelet may ask again, as for an init container.
    let again = kubelet.allocate(QUARTER, &[ids[1].clone(), ids[0].clone()]).0.expect("allocated");
    assert_eq!(again.cdi_devices, answer.cdi_devices);
    let mut client = host.client(&name);

    // A plugin that is started later has taken it over.
    plugin.end(Signal::KILL);
    let mut plugin = Plugin::start(&host, &kubelet, &QUICK);
    eventually("the new plugin asked", || plugin.log().contains("PodResources API").then_some(()));
    assert!(tenants(&host).contains_key(&name));
    kubelet.remove_pod("a");
    // No process is ended.
    eventually("its process is seen", || plugin.log().contains("which has 1 client: it stays").then_some(()));
    assert!(tenants(&host).contains_key(&name) && client.is_running());
    drop(client);
    await_no_tenant(&host);

    // Without an answer nothing is deleted, and the checkpoint is the next best.
    let only = [ids[0].clone()];
    kubelet.add_pod("b", QUARTER, &only);
    kubelet.allocate(QUARTER, &only).0.expect("allocated");
    kubelet.remove_checkpoint();
    kubelet.end_pod_resources();
    eventually("nobody says", || plugin.log().contains("nothing is deleted").then_some(()));
    kubelet.write_checkpoint(&[(QUARTER, &only)]);
    eventually("the checkpoint is read", || plugin.log().contains("kubelet's checkpoint").then_some(()));
    assert_eq!(tenants(&host).len(), 1);
    kubelet.write_checkpoint(&[]);
    await_no_tenant(&host);

    // Kubelets before 1.31 take no CDI devices.
    plugin.end(Signal::TERM);
    eventually("its stream ends", || kubelet.listed(QUARTER).is_none().then_some(()));
    let _plugin = Plugin::start(&host, &kubelet, &["--legacy-env"]);
    kubelet.await_healthy(QUARTER, 8);
    let answer = kubelet.allocate(QUARTER, &only).0.expect("allocated");
    assert!(answer.cdi_devices.is_empty());
    let directory = &answer.envs["CUDA_MPS_PIPE_DIRECTORY"];
    assert_eq!((&answer.mounts[0].host_path, answer.mounts[0].read_only), (directory, true));
    assert_eq!((&answer.envs["NVIDIA_VISIBLE_DEVICES"], answer.mounts.len()), (&zero, 1));
}

#[test]
fn tenants_outlast_a_kubelet_that_lists_no_pod() {
    let host = Host::ready();
    divide(&host, 4);
    let mut kubelet = kubelet(&host);
    let _plugin = Plugin::start(&host, &kubelet, &QUICK);
    kubelet.await_healthy(QUARTER, 8);
    let ids = [format!("{}-0", gpu(&host, "gpu0"))];
    kubelet.add_pod("a", QUARTER, &ids);
    kubelet.allocate(QUARTER, &ids).0.expect("allocated");
    kubelet.write_checkpoint(&[(QUARTER, &ids)]);
    kubelet.restart_alone();
    let listed = kubelet.await_healthy(QUARTER, 8).at;
    kubelet.await_asked(5);
    assert_eq!(tenants(&host).len(), 1, "the checkpoint has its places");
    // A kubelet writes its checkpoint when devices are listed to it.
    eventually("devices are listed again", || (kubelet.listed(QUARTER)?.at > listed).then_some(()));
    kubelet.write_checkpoint(&[]);
    await_no_tenant(&host);
}

#[test]
fn tenants_outlast_a_kubelet_without_checkpoint() {
    let host = Host::ready();
    divide(&host, 4);
    let mut kubelet = kubelet(&host);
    let mut plugin = Plugin::start(&host, &kubelet, &QUICK);
    kubelet.await_healthy(QUARTER, 8);
    let of_gpu0 = |number: u32| [format!("{}-{number}", gpu(&host, "gpu0"))];
    let (known, only_listed) = (of_gpu0(0), of_gpu0(1));
    for (pod, ids) in [("a", &known), ("b", &only_listed)] {
        kubelet.add_pod(pod, QUARTER, ids);
        kubelet.allocate(QUARTER, ids).0.expect("allocated");
    }
    kubelet.write_checkpoint(&[(QUARTER, &known)]);
    kubelet.await_asked(2);
    // It writes an empty one as soon as devices are listed to it.
    kubelet.restart_without_checkpoint();
    kubelet.await_healthy(QUARTER, 8);
    kubelet.await_asked(5);
    assert_eq!(tenants(&host).len(), 2, "nothing says that its pods are gone");
    // Another plugin has not seen what was in the checkpoint. The first one would have its devices listed again once it is gone, and the
    // kubelet write an empty one.
    plugin.end(Signal::KILL);
    kubelet.remove_checkpoint();
    let _plugin = Plugin::start(&host, &kubelet, &QUICK);
    kubelet.await_healthy(QUARTER, 8);
    kubelet.await_asked(5);
    assert_eq!(tenants(&host).len(), 2, "nothing says that its pods are gone");
    // What the kubelet has allocated again is known to be gone later.
    kubelet.write_checkpoint(&[(QUARTER, &known), (QUARTER, &only_listed)]);
    kubelet.await_asked(2);
    kubelet.write_checkpoint(&[]);
    await_no_tenant(&host);
}

#[test]
fn every_place_has_the_share_of_its_class() {
    let host = Host::ready();
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let _plugin = Plugin::start(&host, &kubelet, &[]);
    kubelet.await_healthy(QUARTER, 8);
    let zero = gpu(&host, "gpu0");
    for number in 0..4 {
        kubelet.allocate(QUARTER, &[format!("{zero}-{number}")]).0.expect("allocated");
    }
    let tenants = tenants(&host);
    assert_eq!(tenants.len(), 4);
    for tenant in tenants.values() {
        assert_eq!(tenant["spec"]["active_thread_percentage"], json!(25.0), "{tenant}");
    }
}

#[test]
fn allocation_without_a_cdi_specification_is_refused() {
    let host = Host::ready_of("h200x2", "cdi_dir = \"off\"");
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let _plugin = Plugin::start(&host, &kubelet, &["--timeout", "2s"]);
    kubelet.await_healthy(QUARTER, 8);
    let status =
        kubelet.allocate(QUARTER, &[format!("{}-0", gpu(&host, "gpu0"))]).0.expect_err("it has no device");
    assert_eq!(status.code(), tonic::Code::FailedPrecondition);
    let message = status.message();
    assert!(message.contains("has no CDI device after 2 s") && message.contains("--legacy-env"), "{message}");
    assert_eq!(tenants(&host).len(), 0, "it was deleted");
}

#[test]
fn impossible_allocations_are_refused_with_the_reason() {
    let host = Host::ready();
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let mut options = QUICK.to_vec();
    options.extend(["--timeout", "1s", "--placement", "spread"]);
    let _plugin = Plugin::start(&host, &kubelet, &options);
    let all = kubelet.await_healthy(QUARTER, 8).healthy();
    let (zero, one) = (gpu(&host, "gpu0"), gpu(&host, "gpu1"));
    let refused = |ids: &[String]| {
        let status = kubelet.allocate(QUARTER, ids).0.expect_err("refused");
        status.message().to_owned()
    };
    assert!(refused(&[format!("{zero}-0"), format!("{one}-0")]).contains("of daemons gpu0 and gpu1"));
    assert!(refused(&[format!("{zero}-4")]).contains("has no device"));
    assert!(refused(&["banana".to_owned()]).contains("has no device banana"));
    assert!(refused(&[format!("{zero}-0"), format!("{zero}-0")]).contains("twice"));
    assert!(refused(&[]).contains("request at least 1"));
    assert_eq!(tenants(&host).len(), 0);

    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu0/stop?grace_s=0", &json!({})));
    let message = refused(&[format!("{zero}-0")]);
    assert!(message.contains("is not ready after 1 s: daemon gpu0"), "{message}");
    assert_eq!(tenants(&host).len(), 0, "it was deleted");
    // What is preferred is of one GPU, and the kubelet leaves unhealthy places out.
    let healthy = kubelet.await_healthy(QUARTER, 4).healthy();
    assert!(kubelet.preferred(QUARTER, &healthy, 2).iter().all(|id| id.starts_with(&one)));
    let three = kubelet.preferred(QUARTER, &all, 3);
    assert!(three.len() == 3 && three.iter().all(|id| id[..40] == three[0][..40]), "{three:?}");
}

#[test]
fn nvidia_plugin_that_shares_by_mps_is_refused() {
    let host = Host::ready();
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let socket = UnixListener::bind(kubelet.directory().join("nvidia-gpu.sock")).expect("a socket");
    let program = host.dir().join("mps-control-daemon");
    install_script(&program, "#!/bin/sh\nread forever\n");
    let mut sharing = Command::new(program).stdin(Stdio::piped()).spawn().expect("it runs");
    eventually("it runs", || {
        let words = crate::harness::command_line(sharing.id());
        words.iter().any(|word| word.ends_with("/mps-control-daemon")).then_some(())
    });
    let refused = Plugin::command(&host, &kubelet).output().expect("it runs");
    let message = stderr_of(&refused);
    assert_eq!(refused.status.code(), Some(2), "{message}");
    assert!(message.contains("nvidia-gpu.sock and shares the GPUs of this node by MPS"), "{message}");
    assert!(message.contains("kubectl get daemonsets"), "{message}");
    sharing.kill().expect("killed");
    sharing.wait().expect("reaped");
    drop(socket);
    // A socket that nobody serves is a left-over.
    let _plugin = Plugin::start(&host, &kubelet, &[]);
    kubelet.await_healthy(QUARTER, 8);
}

#[test]
fn gpus_that_another_plugin_shares_take_no_pod() {
    let host = Host::ready();
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let plugin = Plugin::start(&host, &kubelet, &QUICK);
    kubelet.await_healthy(QUARTER, 8);
    let (zero, one) = (gpu(&host, "gpu0"), gpu(&host, "gpu1"));
    // Whole GPUs may be others than ours.
    kubelet.set_others(&[("nvidia.com/gpu", vec![one.clone()])]);
    kubelet.await_asked(2);
    kubelet.await_healthy(QUARTER, 8);
    let replicas = (0..4).map(|number| format!("{zero}::{number}")).collect();
    kubelet.set_others(&[("nvidia.com/gpu.shared", replicas)]);
    let listed = kubelet.await_healthy(QUARTER, 4);
    assert_eq!(listed.devices.len(), 8, "none disappears");
    assert!(listed.healthy().iter().all(|id| id.starts_with(&one)), "{:?}", listed.devices);
    eventually("the log says why", || {
        plugin.log().contains(&format!("shares {zero} too, as nvidia.com/gpu.shared")).then_some(())
    });
    kubelet.set_others(&[]);
    kubelet.await_healthy(QUARTER, 8);
}

/// The value that this share of all is below.
fn percentile(mut all: Vec<Duration>, percent: usize) -> Duration {
    all.sort_unstable();
    all[(all.len() * percent / 100).min(all.len() - 1)]
}

#[test]
fn pods_come_and_go_at_random() {
    let pods = setting("MPS_MANAGER_PODS").unwrap_or(20);
    let host = Host::ready();
    divide(&host, 4);
    let kubelet = kubelet(&host);
    let _plugin = Plugin::start(&host, &kubelet, &QUICK);
    let all = kubelet.await_healthy(QUARTER, 8).healthy();
    let seed = setting("MPS_MANAGER_SEED").unwrap_or_else(|| fastrand::u64(..));
    eprintln!("MPS_MANAGER_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directories = || fs::read_dir(host.runtime("tenants")).expect("a directory").count();
    let before = directories();
    let (mut running, mut free) = (Vec::<String>::new(), all.clone());
    let (mut times, mut placed) = (Vec::new(), 0);
    while placed < pods {
        let size = random.usize(1..=2);
        let ids = kubelet.preferred(QUARTER, &free, size);
        let one_gpu = ids.len() == size && ids.iter().all(|id| id[..40] == ids[0][..40]);
        if !one_gpu || (running.len() > 2 && random.bool()) {
            let pod = running.swap_remove(random.usize(..running.len()));
            free.extend(kubelet.remove_pod(&pod).expect("a pod"));
            continue;
        }
        let pod = format!("pod{placed}");
        kubelet.add_pod(&pod, QUARTER, &ids);
        let (answer, took) = kubelet.allocate(QUARTER, &ids);
        let answer = answer.expect("allocated");
        let tenant = answer.cdi_devices[0].name.split_once('=').expect("a tenant").1.to_owned();
        let spec = host.api().get(&format!("/api/v1/tenants/{tenant}")).ok()["spec"].clone();
        assert_eq!(spec["max_clients"], ids.len(), "{spec}");
        times.push(took);
        free.retain(|id| !ids.contains(id));
        running.push(pod);
        placed += 1;
    }
    let p99 = percentile(times, 99);
    eprintln!("Allocate of {placed} pods: p99 {} ms", p99.as_millis());
    assert!(p99 < Duration::from_secs(5), "{p99:?}");
    for pod in &running {
        kubelet.remove_pod(pod);
    }
    await_no_tenant(&host);
    eventually("their directories are gone", || (directories() == before).then_some(()));
    assert_eq!(kubelet.await_healthy(QUARTER, 8).healthy(), all);
}

#[test]
fn health_of_many_places_changes_soon() {
    let _turn = heavy();
    let host = Host::ready_of("h200x16", "");
    divide(&host, 60);
    let kubelet = kubelet(&host);
    let _plugin = Plugin::start(&host, &kubelet, &[]);
    // A client has 8 SMs at least.
    let class = "mps-manager.dev/sm8";
    let first = kubelet.await_healthy(class, 960);
    assert_eq!(first.devices.len(), 960);
    let mut times = Vec::new();
    for (action, healthy) in [("cordon", 900), ("uncordon", 960)].repeat(5) {
        assert!(host.api().post(&format!("/api/v1/daemons/gpu3/{action}"), &json!({})).status < 300);
        let known = Instant::now();
        let listed = kubelet.await_healthy(class, healthy);
        times.push(listed.at.saturating_duration_since(known));
    }
    let slowest = percentile(times, 100);
    eprintln!("a health change with 960 places: at most {} ms", slowest.as_millis());
    assert!(slowest < Duration::from_secs(4), "later than the next regular look: {slowest:?}");
}
