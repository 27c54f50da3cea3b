//! The simulated world as the inventory sees it, from files that the tests write themselves.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mps_manager::domain::GpuUuid;
use mps_manager::domain::gpu::{ComputeCapability, ComputeMode, GpuProcess};
use mps_manager::gpu::sim::SimInventory;
use mps_manager::gpu::{Inventory, InventoryError};
use rustix::fs::FlockOperation;
use tempfile::TempDir;

use crate::harness::eventually;

const FIRST: &str = "GPU-11111111-0000-4000-8000-000000000001";
const SECOND: &str = "GPU-22222222-0000-4000-8000-000000000002";
const TOTAL: u64 = 150_109_880_320;
const OVERHEAD: u64 = 8 << 20;

/// A world of two GPUs, named in `world.json` in the opposite of PCI order.
fn world() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let gpu = |index: u32, uuid: &str, bus: &str| {
        serde_json::json!({
            "index": index, "minor": index, "uuid": uuid, "pci_bus_id": bus, "name": "NVIDIA H200", "sms": 132,
            "memory_total": TOTAL, "compute_capability": [9, 0], "gpcs": [4, 9, 9, 9, 9, 9, 9, 8],
            "mig_enabled": index == 1,
        })
    };
    let text = serde_json::json!({
        "schema": 1, "simulated": true, "profile": "h200x2@13.1", "binary_version": 13010,
        "driver_version": "590.44.01", "cuda_driver_version": 13010,
        "gpus": [gpu(1, SECOND, "00000000:A6:00.0"), gpu(0, FIRST, "00000000:06:00.0")],
    });
    fs::write(dir.path().join("world.json"), text.to_string()).expect("the world is written");
    for (uuid, mode) in [(FIRST, "default\n"), (SECOND, "exclusive_process")] {
        let gpu = dir.path().join("gpus").join(uuid);
        fs::create_dir_all(gpu.join("processes")).expect("a GPU's directory");
        fs::write(gpu.join("compute_mode"), mode).expect("a compute mode");
    }
    dir
}

fn uuid(text: &str) -> GpuUuid {
    GpuUuid::parse(text).expect("a UUID")
}

/// Writes a process's file without a lock: what a dead process leaves.
fn write_process(world: &Path, gpu: &str, pid: u32, text: &str) -> File {
    let path = world.join("gpus").join(gpu).join("processes").join(pid.to_string());
    let mut file = File::create(path).expect("a process's file");
    file.write_all(text.as_bytes()).expect("its text");
    file
}

/// A process that lives for as long as the returned file.
fn live_process(world: &Path, gpu: &str, pid: u32, kind: &str, used: u64) -> File {
    let text = serde_json::json!({"pid": pid, "kind": kind, "used_memory": used, "name": "/bin/x"});
    let file = write_process(world, gpu, pid, &text.to_string());
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("the lock");
    file
}

#[test]
fn gpus_are_listed_in_pci_order() {
    let world = world();
    let inventory = SimInventory::open(world.path()).expect("a world");
    let driver = inventory.driver().expect("a driver");
    assert!(driver.simulated);
    assert_eq!(driver.driver_version, "590.44.01");
    assert_eq!(driver.cuda_version.as_deref(), Some("13.1"));
    assert_eq!(driver.profile.as_deref(), Some("h200x2@13.1"));

    let gpus = inventory.gpus().expect("GPUs");
    assert_eq!(gpus.len(), 2);
    assert_eq!((gpus[0].index.gpu, gpus[0].uuid.as_str()), (0, FIRST));
    assert_eq!((gpus[1].index.gpu, gpus[1].uuid.as_str()), (1, SECOND));
    assert_eq!(gpus[0].sms, Some(132));
    assert_eq!(gpus[0].compute_capability, Some(ComputeCapability { major: 9, minor: 0 }));
    assert_eq!(gpus[0].memory_total, Some(TOTAL));
    assert_eq!(gpus[0].memory_used, Some(OVERHEAD));
    assert_eq!(gpus[0].compute_mode, Some(ComputeMode::Default));
    assert_eq!(gpus[1].compute_mode, Some(ComputeMode::ExclusiveProcess));
    assert_eq!((gpus[0].mig_enabled, gpus[1].mig_enabled), (false, true));
}

#[test]
fn live_processes_are_listed_and_pay_their_memory() {
    let world = world();
    let inventory = SimInventory::open(world.path()).expect("a world");
    let _server = live_process(world.path(), FIRST, 300, "C", 66 << 20);
    let client = live_process(world.path(), FIRST, 200, "M+C", 4 << 30);
    write_process(world.path(), FIRST, 100, r#"{"pid":100,"kind":"C","used_memory":1,"name":"dead"}"#);

    assert_eq!(
        inventory.processes(&uuid(FIRST)).expect("processes"),
        [
            GpuProcess { pid: 200, used_memory: Some(4 << 30), mps_client: true },
            GpuProcess { pid: 300, used_memory: Some(66 << 20), mps_client: false },
        ]
    );
    assert_eq!(inventory.processes(&uuid(SECOND)).expect("processes"), []);
    assert_eq!(inventory.gpus().expect("GPUs")[0].memory_used, Some(OVERHEAD + (66 << 20) + (4 << 30)));

    // A command that another test is starting may hold a copy of the descriptor until its exec, so that closing
    // the file does not end the lock; unlocking does.
    rustix::fs::flock(&client, FlockOperation::Unlock).expect("the lock is given up");
    assert_eq!(inventory.processes(&uuid(FIRST)).expect("processes").len(), 1);
    assert_eq!(inventory.gpus().expect("GPUs")[0].memory_used, Some(OVERHEAD + (66 << 20)));
}

#[test]
fn a_killed_process_is_gone() {
    let world = world();
    let inventory = SimInventory::open(world.path()).expect("a world");
    write_process(world.path(), FIRST, 7, r#"{"pid":7,"kind":"C","used_memory":5,"name":"x"}"#);
    let path = world.path().join("gpus").join(FIRST).join("processes/7");
    let mut holder = Command::new("flock")
        .args(["--no-fork", "--exclusive"])
        .arg(&path)
        .args(["sleep", "60"])
        .stdin(Stdio::null())
        .spawn()
        .expect("flock(1) starts");
    eventually("the lock is taken", || !inventory.processes(&uuid(FIRST)).expect("processes").is_empty());
    holder.kill().expect("a signal");
    assert_eq!(holder.wait().expect("a status").signal(), Some(9));
    assert_eq!(inventory.processes(&uuid(FIRST)).expect("processes"), []);
}

#[test]
fn shortened_file_is_read_by_first_object() {
    let world = world();
    let inventory = SimInventory::open(world.path()).expect("a world");
    let text = r#"{"pid":9,"kind":"M+C","used_memory":12,"name":"x"}4,"name":"x"}"#;
    let file = write_process(world.path(), FIRST, 9, text);
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("the lock");
    let seen = inventory.processes(&uuid(FIRST)).expect("processes");
    assert_eq!(seen, [GpuProcess { pid: 9, used_memory: Some(12), mps_client: true }]);
}

#[test]
fn empty_process_file_is_skipped_nonsense_refused() {
    let world = world();
    let inventory = SimInventory::open(world.path()).expect("a world");
    let empty = write_process(world.path(), FIRST, 9, "");
    rustix::fs::flock(&empty, FlockOperation::LockExclusive).expect("the lock");
    assert_eq!(inventory.processes(&uuid(FIRST)).expect("processes"), []);

    let nonsense = write_process(world.path(), SECOND, 9, "nonsense");
    rustix::fs::flock(&nonsense, FlockOperation::LockExclusive).expect("the lock");
    let error = inventory.processes(&uuid(SECOND)).expect_err("an error");
    assert!(matches!(&error, InventoryError::World { path, .. } if path.ends_with("processes/9")), "{error}");
}

#[test]
fn missing_world_or_gpu_is_reported() {
    let world = world();
    let inventory = SimInventory::open(world.path()).expect("a world");
    let stranger = uuid("GPU-33333333-0000-4000-8000-000000000003");
    assert!(
        matches!(inventory.processes(&stranger), Err(InventoryError::UnknownGpu(gpu)) if gpu == stranger)
    );

    let empty = tempfile::tempdir().expect("a temporary directory");
    let error = SimInventory::open(empty.path()).expect_err("no world");
    assert!(error.to_string().contains("world.json"), "{error}");

    fs::write(
        world.path().join("world.json"),
        r#"{"schema":2,"profile":"x","driver_version":"1","cuda_driver_version":1,"gpus":[]}"#,
    )
    .expect("a newer world");
    assert!(SimInventory::open(world.path()).expect_err("a newer world").to_string().contains("schema 2"));
}
