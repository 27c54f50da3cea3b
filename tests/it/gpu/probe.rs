//! `mps-manager cuda-probe` on a machine without a GPU: an answer, never a panic.

use std::process::{Command, Output};

use mps_manager::gpu::report::{Report, SCHEMA};

fn probe(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mps-manager"))
        .arg("cuda-probe")
        .args(args)
        .env_clear()
        .output()
        .expect("the probe starts")
}

#[test]
fn no_driver_is_a_clear_answer() {
    let output = probe(&["--allocate-up-to", "64M"]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert_eq!(text.lines().count(), 1, "one object: {text}");
    let report: Report = serde_json::from_str(&text).expect("a report");
    assert_eq!(report.schema, SCHEMA);
    let Some(error) = report.error else {
        return; // A machine with a GPU has nothing to refuse; tests/gpu.rs is for that one.
    };
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(report.devices, []);
    assert_eq!(report.mps, None);
    assert!(!error.message.is_empty());
    if error.name == "no_driver" {
        assert!(error.message.contains("Install the NVIDIA driver"), "{}", error.message);
    }
}

#[test]
fn nonsensical_arguments_are_a_usage_error() {
    for bad in [&["--allocate-up-to", "512K"][..], &["--timeout", "0"], &["--unknown"]] {
        let output = probe(bad);
        assert_eq!(output.status.code(), Some(2), "{bad:?}");
        assert!(output.stdout.is_empty(), "{bad:?}");
    }
}
