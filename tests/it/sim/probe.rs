//! `mps-manager cuda-probe` on the simulated host: the object that it gives on a real one, with what MPS leaves.

use std::collections::BTreeSet;
use std::process::Command;

use mps_manager::gpu::report::Report;
use serde_json::Value;

use super::host::{Done, Host, finish};
use crate::harness::{MANAGER, TIMEOUT};

const RECORDING: &str =
    include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/hardware/10-h200-x1-probe.txt"));
const MIB: u64 = 1 << 20;
/// How near free memory is to what was recorded.
const NEAR: u64 = 64 * MIB;

fn probe(host: &Host, args: &[&str], env: &[(&str, &str)]) -> (Done, Report) {
    let mut command: Command = host.command(MANAGER);
    command.arg("cuda-probe").args(args).envs(env.iter().copied());
    let done = finish(&mut command, b"", TIMEOUT);
    let report: Report = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(done.rc, if report.error.is_some() { 3 } else { 0 }, "{done:?}");
    assert_eq!((done.stderr.as_str(), done.stdout.lines().count()), ("", 1), "{done:?}");
    (done, report)
}

/// The answers of the probe in the recording that were not shortened.
fn recorded() -> Vec<Value> {
    let lines = RECORDING.lines().filter_map(|line| Some(&line[line.find("{\"schema\"")?..]));
    lines.filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The names of all fields, with where they are.
fn fields(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                let at = format!("{at}.{name}");
                fields(value, &at, found);
                found.insert(at);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| fields(item, at, found)),
        _ => {}
    }
}

fn free_and_recorded(seen: u64, recorded: u64) {
    assert!(seen.abs_diff(recorded) <= NEAR, "{seen} against {recorded}");
}

#[test]
fn simulated_probe_has_the_real_fields() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let (done, _) = probe(&host, &["--allocate-up-to", "200G"], &[]);
    let (mut simulated, mut real) = (BTreeSet::new(), BTreeSet::new());
    fields(&serde_json::from_str(&done.stdout).unwrap(), "", &mut simulated);
    for answer in recorded() {
        fields(&answer, "", &mut real);
    }
    // Later versions report the capability, and what failed as a whole had no error of its own here.
    assert!(simulated.remove(".devices.compute_capability"));
    assert!(real.len() > 25, "the recording is read: {real:?}");
    let failures: Vec<_> = real.difference(&simulated).collect();
    assert_eq!(failures, [".error.code", ".error.message", ".error.name"], "{simulated:?}");
    assert_eq!(simulated.difference(&real).count(), 0, "{simulated:?}");
}

#[test]
fn h200_probe_matches_recording_under_limits() {
    let host = Host::new("h200x1@13.0");
    let (_, outside) = probe(&host, &["--allocate-up-to", "1G"], &[]);
    assert_eq!((outside.mps, outside.devices[0].mps), (Some(false), Some(false)));
    free_and_recorded(outside.devices[0].memory_free, 149_557_477_376);
    let granted = outside.devices[0].allocation.as_ref().unwrap();
    assert_eq!((granted.largest, &granted.refused_with), (1 << 30, &None));
    assert_eq!(outside.cuda_version.as_deref(), Some("13.0"));
    assert_eq!(outside.driver_version.as_deref(), Some("580.159.04"));

    host.start(&["-d"], &[]);
    let (_, inside) = probe(&host, &[], &[]);
    let device = &inside.devices[0];
    assert_eq!((inside.mps, device.sms, device.memory_total), (Some(true), 132, 150_109_880_320));
    assert_eq!(device.compute_capability.unwrap().to_string(), "9.0");
    free_and_recorded(device.memory_free, 149_490_368_512);
    let splits: Vec<_> = device.splitter.iter().map(|s| (s.groups, s.sms_per_group, s.remaining)).collect();
    assert_eq!(splits, [(15, 8, 12), (8, 16, 4), (4, 32, 4)]);

    let limits = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"), ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=4G")];
    let (_, limited) = probe(&host, &["--allocate-up-to", "8G"], &limits);
    let device = &limited.devices[0];
    assert_eq!(device.sms, 32);
    free_and_recorded(device.memory_free, 4_143_266_800);
    let splits: Vec<_> = device.splitter.iter().map(|s| (s.min_sms, s.groups, s.remaining)).collect();
    assert_eq!(splits, [(8, 0, 32), (16, 0, 32), (32, 0, 32)], "no groups and no error");
    let allocation = device.allocation.as_ref().unwrap();
    free_and_recorded(allocation.largest, 4_142_923_776);
    let refused = allocation.refused_with.as_ref().unwrap();
    assert_eq!((refused.code, refused.name.as_str()), (Some(2), "CUDA_ERROR_OUT_OF_MEMORY"));
    let next = allocation.largest / MIB + 1;
    assert_eq!(refused.message, format!("cuMemAlloc of {next} MiB: out of memory"));
    assert_eq!(host.see(&[])["devices"][0]["memory_free"], inside.devices[0].memory_free, "nothing stays");
}

#[test]
fn cuda_refusal_is_reported_with_its_code() {
    let host = Host::new("h200x1@13.0");
    let (_, nothing) = probe(&host, &[], &[("CUDA_VISIBLE_DEVICES", "7")]);
    let error = nothing.error.unwrap();
    assert_eq!((error.code, error.name.as_str()), (Some(100), "CUDA_ERROR_NO_DEVICE"));
    assert!(error.message.starts_with("cuInit: no CUDA-capable device is detected"), "{}", error.message);
    assert_eq!((nothing.mps, nothing.devices), (None, vec![]));
    let (_, nowhere) = probe(&host, &[], &[("MPS_SIM_WORLD", "/nonexistent")]);
    assert_eq!(nowhere.error.unwrap().name, "no_driver");
}

#[test]
fn a_partition_is_seen_and_none_is_refused() {
    let host = Host::new("h200x1@13.1");
    host.start(&["-d", "-S"], &[]);
    let name = host.ask(&format!("sm_partition add {} 7", host.uuids()[0])).trim().to_owned();
    let (_, inside) = probe(&host, &[], &[("CUDA_MPS_SM_PARTITION", &name)]);
    assert_eq!((inside.devices[0].sms, inside.error), (56, None));
    let (_, outside) = probe(&host, &[], &[]);
    let error = outside.error.unwrap();
    assert_eq!((error.code, error.name.as_str()), (Some(915), "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"));
}
