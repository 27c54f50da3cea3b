//! On real hardware: what only a real driver can answer.
//!
//! `cargo test --test gpu -- --ignored --nocapture` on a host with a GPU. Where there is no Rust, carry this
//! test's binary and the release binary, and name the latter in `MPS_MANAGER_BINARY`. The scenario over the
//! whole server is `tests/hardware/run.sh`. Nothing here changes a setting of a GPU.

use std::env;
use std::process::Command;
use std::time::Duration;

use mps_manager::gpu::Inventory;
use mps_manager::gpu::nvml::NvmlInventory;
use mps_manager::gpu::probe::{CensusRequest, Prober};
use mps_manager::gpu::report::Report;

fn binary() -> String {
    env::var("MPS_MANAGER_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_mps-manager").to_owned())
}

/// The probe in an environment of its own: no CUDA_* of ours, and no control daemon in its pipe directory.
fn probe_outside_mps(args: &[&str]) -> Report {
    let nowhere = tempfile::tempdir().expect("a temporary directory");
    let output = Command::new(binary())
        .arg("cuda-probe")
        .args(args)
        .env_clear()
        .env("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        .env("CUDA_MPS_PIPE_DIRECTORY", nowhere.path())
        .output()
        .expect("the probe starts");
    let report: Report = serde_json::from_slice(&output.stdout).expect("a report");
    assert_eq!(output.status.code(), Some(if report.error.is_none() { 0 } else { 3 }));
    report
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_inventory_describes_every_gpu() {
    let inventory = NvmlInventory::open().expect("a driver");
    let driver = inventory.driver().expect("the driver's version");
    println!("{driver:?}");
    assert!(!driver.simulated);
    let gpus = inventory.gpus().expect("GPUs");
    assert!(!gpus.is_empty());
    for (position, gpu) in gpus.iter().enumerate() {
        println!("{gpu:?}");
        assert_eq!(gpu.index.gpu as usize, position);
        assert!(gpu.memory_total > gpu.memory_used);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn cuda_and_nvml_agree_outside_mps() {
    let report = probe_outside_mps(&["--allocate-up-to", "1G"]);
    println!("{}", serde_json::to_string(&report).expect("JSON"));
    assert_eq!(report.error, None);
    assert_eq!(report.mps, Some(false));
    let gpus = NvmlInventory::open().expect("a driver").gpus().expect("GPUs");
    let by_nvml: Vec<_> =
        gpus.iter().map(|gpu| (&gpu.uuid, gpu.sms, gpu.compute_capability, gpu.memory_total)).collect();
    let by_cuda: Vec<_> = report
        .devices
        .iter()
        .map(|device| (&device.uuid, Some(device.sms), device.compute_capability, Some(device.memory_total)))
        .collect();
    assert_eq!(by_cuda, by_nvml);
    for device in &report.devices {
        let allocation = device.allocation.as_ref().expect("it was requested");
        assert_eq!((allocation.largest, &allocation.refused_with), (1 << 30, &None));
    }
}

#[tokio::test]
#[ignore = "needs an NVIDIA GPU"]
async fn every_gpu_has_chunks() {
    let inventory = NvmlInventory::open().expect("a driver").gpus().expect("GPUs");
    let request = CensusRequest {
        pipe_directory: None,
        uid: rustix::process::geteuid().as_raw(),
        gpus: inventory.iter().map(|gpu| gpu.uuid.clone()).collect(),
        timeout: Duration::from_secs(60),
    };
    let counted = Prober::with_program(binary().into(), &[]).census(&request).await.expect("counted");
    for gpu in &inventory {
        let chunks = counted[&gpu.uuid];
        println!("{} {chunks:?}", gpu.uuid);
        assert_eq!(gpu.sms, Some(chunks.sms));
        assert_eq!(chunks.chunks * chunks.chunk_sms + chunks.left_over_sms, chunks.sms);
        // As it was recorded of five of them (recordings 02 and 08).
        if gpu.name == "NVIDIA H200" {
            assert_eq!((chunks.chunk_sms, chunks.chunks, chunks.left_over_sms), (8, 15, 12));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn mps_clients_are_distinguished_from_other_processes() {
    let inventory = NvmlInventory::open().expect("a driver");
    let mut clients = Vec::new();
    for gpu in inventory.gpus().expect("GPUs") {
        for process in inventory.processes(&gpu.uuid).expect("processes") {
            println!("{} {process:?}", gpu.uuid);
            if process.mps_client {
                clients.push(process.pid.to_string());
            }
        }
    }
    // A caller that starts MPS clients around this test names them, separated by blanks.
    for expected in env::var("MPS_CLIENTS_EXPECTED").unwrap_or_default().split_whitespace() {
        assert!(clients.iter().any(|pid| pid == expected), "{expected} is not among {clients:?}");
    }
}
