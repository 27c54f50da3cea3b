//! Making a world.

use std::path::Path;

use mps_manager::sim::world::{WorldError, create_for};

use super::host::Host;
use crate::harness::SIMULATED;
use crate::harness::scratch;

#[test]
fn a_world_is_made_once_and_opened_again() {
    let host = Host::new("h200x2");
    let before = host.uuids();
    assert_eq!(host.world.profile(), "h200x2@13.1");
    create_for(host.world.dir(), "h200x2@13.1", Path::new(SIMULATED)).unwrap();
    assert_eq!(host.uuids(), before);
    assert_eq!(before.len(), 2);
    let error = create_for(host.world.dir(), "a100x4", Path::new(SIMULATED)).unwrap_err();
    assert!(matches!(error, WorldError::Different { .. }), "{error}");
    assert!(error.to_string().contains("h200x2@13.1, not a100x4@13.1"), "{error}");
}

#[test]
fn two_worlds_of_one_profile_have_different_gpus() {
    assert_ne!(Host::new("h200x1").uuids(), Host::new("h200x1").uuids());
}

#[test]
fn unknown_profile_is_refused_with_known_ones() {
    let dir = scratch::directory("w");
    for profile in ["h200", "h300x1", "h200x0", "h200x1@12.0", "h200x1:gpcs=9.9", "h200x1:x=1"] {
        let error = create_for(&dir.path().join("w"), profile, Path::new(SIMULATED)).unwrap_err();
        assert!(error.to_string().contains("l40sx1@12.8"), "{profile}: {error}");
        assert!(!dir.path().join("w").exists(), "{profile}");
    }
}

#[test]
fn driver_state_is_in_the_files() {
    let host = Host::new("h200x1@13.0");
    host.start(&["-d"], &[]);
    let client = host.busy_client(&["--spin", "60", "--alloc", "1024"], &[]);
    let server = host.ready();
    let dir = host.world.dir().join("gpus").join(&host.uuids()[0]);
    assert_eq!(std::fs::read_to_string(dir.join("compute_mode")).unwrap(), "default\n");
    let record = |pid: rustix::process::Pid| -> serde_json::Value {
        let path = dir.join("processes").join(pid.as_raw_nonzero().to_string());
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    };
    assert_eq!(record(server)["kind"], "C");
    assert_eq!(record(server)["used_memory"], 66 << 20);
    crate::harness::eventually("the memory is taken", || {
        record(client.pid())["used_memory"].as_u64() > Some(1500 << 20)
    });
    assert_eq!(record(client.pid())["kind"], "M+C");
    assert_eq!(record(client.pid())["name"], "/tmp/client");
}

#[test]
fn the_documentation_lists_what_is_not_reproduced() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulated-host.md");
    let text = std::fs::read_to_string(path).unwrap();
    for (recording, line, reason) in super::replay::NOT_REPRODUCED {
        let (number, _) = recording.split_once('-').unwrap();
        let row = text.lines().find(|row| row.starts_with(&format!("| {number}, {line} |")));
        let row = row.unwrap_or_else(|| panic!("no row for {recording}, line {line}"));
        assert!(row.contains(reason), "{row}\n{reason}");
    }
    let rows = text.lines().filter(|row| row.starts_with("| 0")).count();
    assert_eq!(rows, super::replay::NOT_REPRODUCED.len());
}
