//! Output of a CUDA probe's process, at volume.

use super::*;
use crate::fuzz::Inputs;

const OUTSIDE: &str = include_str!("../../../tests/fixtures/hardware/10-h200-x1-probe.txt");

#[test]
fn answers() {
    // The reports in the recording, each on a line of its own.
    let mut samples: Vec<&str> = OUTSIDE.lines().filter(|line| line.starts_with('{')).collect();
    let empty = serde_json::to_string(&Report::empty()).expect("JSON");
    samples.push(&empty);
    let words = [
        "\"uuid\":",
        "\"GPU-514466a0-8e68-f857-9f73-e438010e48cb\"",
        "null",
        "[",
        "]",
        "{",
        "}",
        ",",
        "\n",
        "true",
        "\"error\":",
    ];
    Inputs::new(samples, &words).check(|stdout| {
        let Some(report) = answer(stdout) else {
            let failure = crash("exit code 101", stdout);
            assert!(failure.message.len() <= 3 * STDERR_SHOWN + 200, "{} bytes", failure.message.len());
            return false;
        };
        let printed = serde_json::to_vec(&report).expect("JSON");
        assert_eq!(answer(&printed), Some(report));
        true
    });
}
