//! The probe as the server uses it: in a tenant's place, with deadlines and a limit on how many there are.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use mps_manager::domain::gpu::ChunkCensus;
use mps_manager::domain::{GpuUuid, MemoryLimit};
use mps_manager::gpu::probe::{CensusError, CensusRequest, ProbeRequest, Prober};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::scratch::install_script;
use crate::harness::{Host, MANAGER, eventually, is_alive, is_root, signal};

const LONG: Duration = Duration::from_secs(30);
const NOBODY: u32 = 65534;

/// Waits for an answer; the tests ask the API with a runtime of its own, so they are not on one.
fn wait<T>(answer: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(answer)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn prober() -> Prober {
    Prober::with_program(MANAGER.into(), &[])
}

/// One that knows the host's world as the server's own does.
fn prober_of(host: &Host) -> Prober {
    Prober::with_program(MANAGER.into(), &[("MPS_SIM_WORLD".into(), host.runtime("sim").into())])
}

/// In the place of a tenant, with the environment that the API gives.
fn request(host: &Host, tenant: &str) -> ProbeRequest {
    let environment = host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
    let variables = serde_json::from_value(environment["variables"].clone()).expect("variables");
    ProbeRequest { variables, uid: own_uid(), allocate_up_to: None, timeout: LONG }
}

fn census(host: &Host, daemon: Option<&str>, gpus: &[GpuUuid]) -> CensusRequest {
    let pipe_directory = daemon.map(|name| host.runtime("daemons").join(name).join("pipe"));
    CensusRequest { pipe_directory, uid: own_uid(), gpus: gpus.to_vec(), timeout: LONG }
}

fn gpus(host: &Host) -> Vec<GpuUuid> {
    let list = host.api().get("/api/v1/gpus").ok();
    let uuid = |gpu: &Value| GpuUuid::parse(gpu["uuid"].as_str().expect("text")).expect("a UUID");
    list["items"].as_array().expect("items").iter().map(uuid).collect()
}

#[test]
fn a_tenants_share_is_seen_from_its_place() {
    let host = Host::ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "sms": 56, "device_memory_limit": "3G", "max_clients": 2});
    assert_eq!(host.api().tenant("probed", &spec).status, 201);
    host.await_ready();
    let mut request = request(&host, "probed");
    request.allocate_up_to = Some(MemoryLimit::parse("8G").expect("8G"));
    let report = wait(prober().see(&request));
    assert_eq!((report.mps, report.error.as_ref()), (Some(true), None));
    let [device] = &report.devices[..] else { panic!("one GPU: {:?}", report.devices) };
    assert_eq!(device.sms, 56);
    let limit = 3 << 30;
    assert!(device.memory_free < limit && device.memory_free > limit - (256 << 20), "{}", device.memory_free);
    let allocation = device.allocation.as_ref().expect("requested");
    assert_eq!(allocation.largest, device.memory_free >> 20 << 20);
    assert!(!is_alive(report.pid.expect("a process")), "it has ended");
}

#[test]
fn waiting_probe_is_kept_and_not_duplicated() {
    let host = Host::ready();
    let (prober, mut request) = (prober(), request(&host, "demo"));
    request.timeout = Duration::from_secs(1);
    let daemon = host.daemon_pid("gpu0");
    signal(daemon, Signal::STOP);
    let first = wait(prober.see(&request));
    let waiting = first.pid.expect("it waits");
    assert_eq!(first.error.expect("no answer").name, "timeout");
    assert!(is_alive(waiting), "it was not killed");
    let second = wait(prober.see(&request));
    let error = second.error.expect("no answer");
    assert_eq!((second.pid, error.name.as_str()), (Some(waiting), "timeout"));
    assert!(
        error.message.contains(&format!("process {waiting}, which an earlier probe")),
        "{}",
        error.message
    );
    // Another user's processes may well be admitted where this one's are not, and are asked about.
    let other = ProbeRequest {
        variables: BTreeMap::from([("CUDA_MPS_PIPE_DIRECTORY".into(), "/nonexistent".into())]),
        ..request.clone()
    };
    assert_ne!(wait(prober.see(&other)).pid, Some(waiting));
    signal(daemon, Signal::CONT);
    request.timeout = LONG;
    // Until it is admitted and has ended, threads and all, no other one is sent.
    eventually("it harmed nothing", || wait(prober.see(&request)).error.is_none().then_some(()));
    assert!(!is_alive(waiting));
}

#[test]
fn probe_runs_as_the_requested_user() {
    let host = Host::ready();
    let mut request = request(&host, "demo");
    request.uid = NOBODY;
    if !is_root() {
        let error = wait(prober().see(&request)).error.expect("refused");
        assert_eq!(error.name, "not_started");
        assert!(error.message.contains("only root"), "{}", error.message);
        return;
    }
    // Only the user that may enter the directory of the sockets finds MPS there.
    let closed = host.dir().join("closed");
    let pipe = host.runtime("daemons/gpu0/pipe");
    fs::create_dir(&closed).expect("a directory");
    std::os::unix::fs::symlink(&pipe, closed.join("pipe")).expect("a link");
    rustix::fs::chmod(&closed, 0o700.into()).expect("mode");
    let path = closed.join("pipe").to_string_lossy().into_owned();
    request.variables.insert("CUDA_MPS_PIPE_DIRECTORY".into(), path);
    let nobody = wait(prober().see(&request));
    assert_eq!((nobody.mps, nobody.error), (Some(false), None));
    let me = wait(prober().see(&ProbeRequest { uid: own_uid(), ..request }));
    assert_eq!((me.mps, me.error), (Some(true), None));
}

#[test]
fn failed_or_silent_probe_is_reported() {
    let request =
        ProbeRequest { variables: BTreeMap::new(), uid: own_uid(), allocate_up_to: None, timeout: LONG };
    let missing = wait(Prober::with_program("/nowhere/at/all".into(), &[]).see(&request));
    assert_eq!(missing.error.expect("an error").name, "not_started");
    let silent = wait(Prober::with_program("/bin/true".into(), &[]).see(&request));
    assert_eq!(silent.error.expect("an error").name, "crashed");
}

/// A program that says how many of it there are, and ends when it is asked to.
fn counting(directory: &Path) -> Prober {
    let program = directory.join("counting");
    let script = "#!/bin/sh\ncd \"$HERE\" && touch here/$$ && ls here | wc -l >> counts\nread line < gate; rm here/$$\n";
    fs::create_dir(directory.join("here")).expect("a directory");
    install_script(&program, script);
    Prober::with_program(
        program,
        &[("HERE".into(), directory.into()), ("PATH".into(), "/usr/bin:/bin".into())],
    )
}

#[tokio::test]
async fn concurrent_probes_are_limited() {
    let directory = tempfile::tempdir().expect("a directory");
    let gate = directory.path().join("gate");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &gate,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a FIFO");
    let prober = std::sync::Arc::new(counting(directory.path()));
    let request =
        ProbeRequest { variables: BTreeMap::new(), uid: own_uid(), allocate_up_to: None, timeout: LONG };
    let verifications: Vec<_> = (0..6)
        .map(|_| {
            let (prober, request) = (prober.clone(), request.clone());
            tokio::spawn(async move { prober.see(&request).await })
        })
        .collect();
    let here = directory.path().join("here");
    let present = || fs::read_dir(&here).expect("readable").count();
    while present() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Each that ends lets one in; a line is read by one of them.
    let opener = tokio::task::spawn_blocking(move || {
        let mut gate = fs::File::options().read(true).write(true).open(gate).expect("the gate");
        for _ in 0..6 {
            std::io::Write::write_all(&mut gate, b"\n").expect("reported");
        }
        gate
    });
    let _gate = opener.await.expect("opened");
    for verification in verifications {
        assert_eq!(verification.await.expect("ended").error.expect("it says nothing").name, "crashed");
    }
    let counts = fs::read_to_string(directory.path().join("counts")).expect("counts");
    let counts: Vec<u32> = counts.lines().map(|line| line.trim().parse().expect("a number")).collect();
    // That there are four at once was seen above; each counts a little later, when one may be gone.
    assert_eq!(counts.len(), 6, "{counts:?}");
    assert!(counts.iter().all(|count| *count <= 4), "{counts:?}");
}

#[test]
fn chunks_are_counted_inside_and_outside_mps() {
    let host = Host::ready();
    let (prober, gpus) = (prober_of(&host), gpus(&host));
    let h200 = ChunkCensus { sms: 132, chunk_sms: 8, chunks: 15, left_over_sms: 12 };
    let inside = wait(prober.census(&census(&host, Some("gpu1"), &gpus[1..]))).expect("counted");
    assert_eq!(inside, BTreeMap::from([(gpus[1].clone(), h200)]));
    // The daemon's tenants have at most half of its SMs, and so has every client of its server.
    let limited = wait(prober.census(&census(&host, Some("gpu0"), &gpus[..1]))).expect("counted");
    assert_eq!(limited, BTreeMap::from([(gpus[0].clone(), h200)]));
    let both = wait(prober.census(&census(&host, None, &gpus))).expect("counted");
    assert_eq!(both, gpus.iter().map(|gpu| (gpu.clone(), h200)).collect());
    let unknown = GpuUuid::parse("GPU-00000000-0000-4000-8000-000000000000").expect("a UUID");
    let error = wait(prober.census(&census(&host, None, &[unknown]))).expect_err("not there");
    assert!(matches!(&error, CensusError::Failed(text) if text.contains("CUDA_ERROR_NO_DEVICE")), "{error}");
}

#[test]
fn chunks_before_hopper_are_of_four() {
    let mut host = Host::of("a100x1@13.1", "");
    host.serve();
    host.await_ready();
    let gpus = gpus(&host);
    let counted = wait(prober_of(&host).census(&census(&host, Some("gpu0"), &gpus))).expect("counted");
    // 5 GPCs of 4 chunks and 2 of 3.
    assert_eq!(counted[&gpus[0]], ChunkCensus { sms: 108, chunk_sms: 4, chunks: 26, left_over_sms: 4 });
}
