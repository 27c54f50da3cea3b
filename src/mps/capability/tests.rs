//! Tests of the capabilities that are read from a program, and of the programs that are refused.

use std::fs;

use super::super::binaries::{Binaries, CONTROL, SERVER};
use super::help::{read_help, read_version};
use super::*;

fn recording(name: &str) -> String {
    let path = format!("{}/tests/fixtures/recordings/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    String::from_utf8_lossy(&fs::read(path).expect("a recording")).into_owned()
}

#[test]
fn version_13_0_capabilities_are_read() {
    let text = recording("01-h200-x1-commands-clients-fault");
    let help = text.split("## command with no daemon").next().expect("its first part");
    assert_eq!(read_version(help), Some(13_000));
    let (options, commands) = read_help(help);
    let expected: BTreeSet<String> =
        ["-h", "--help", "-d", "--daemon", "-f", "--forground", "-M", "--multiuser-server", "-q"]
            .into_iter()
            .chain(["--ready-devices"])
            .map(str::to_owned)
            .collect();
    assert_eq!(options, expected);
    assert_eq!(commands.len(), 19, "{commands:?}");
    let capability = Capability {
        binary_version: 13_000,
        commands,
        options,
        version_from: VersionSource::Program,
        program: PathBuf::new(),
    };
    let lacking = capability.lacks_static().expect("13.0 has none");
    assert!(lacking.contains("13010 (CUDA 13.1)") && lacking.contains("is 13000 (CUDA 13.0):"), "{lacking}");
    assert_eq!((capability.client_ceiling(), capability.cuda_version().as_str()), (48, "13.0"));
    let missing: Vec<_> = capability
        .list()
        .into_iter()
        .filter(|capability| !capability.available)
        .map(|capability| capability.name)
        .collect();
    assert_eq!(missing, [CapabilityName::StaticPartitions, CapabilityName::Mlopart]);
    let newer = Capability { binary_version: 13_020, ..capability };
    assert_eq!(newer.lacks_mlopart(), None);
    let newer = Capability { binary_version: 13_010, ..newer };
    // On ARM a version later (NVIDIA's documentation).
    assert_eq!(newer.lacks_mlopart().is_some(), cfg!(target_arch = "aarch64"));
    assert_eq!((newer.client_ceiling(), newer.cuda_version().as_str()), (60, "13.1"));
}

#[test]
fn missing_capabilities_name_the_version_they_need() {
    let commands = REQUIRED.into_iter().map(str::to_owned).collect();
    let old = Capability {
        binary_version: 12_020,
        commands,
        options: BTreeSet::new(),
        version_from: VersionSource::Program,
        program: PathBuf::new(),
    };
    let guessed = Capability { version_from: VersionSource::Commands, ..old.clone() };
    assert_eq!((guessed.cuda_version().as_str(), guessed.is_least()), ("12.2 or later", true));
    let listed = old.list();
    assert!(listed.iter().all(|capability| !capability.available), "{listed:?}");
    for (capability, version) in listed.iter().zip(["13.1", "13.1", "12.5", "12.4", "13.0", "12.4"]) {
        let reason = capability.reason.as_deref().expect("a reason");
        assert!(reason.contains(&format!("CUDA {version}")) && reason.contains("CUDA 12.2"), "{reason}");
    }
}

#[test]
fn program_of_another_driver_is_recognised() {
    let driver = RunningDriver { version: "580.159.04".into(), cuda: Some("13.0".into()) };
    let judge = |named, than| other_driver(Path::new("/usr/bin/control"), named, &driver, than);
    assert_eq!(judge(Some("580.159.04"), None), None);
    assert_eq!(judge(None, None), None, "a file that names none is no evidence");
    let named = judge(Some("535.261.03"), Some("580")).expect("another driver's");
    assert!(
        named.contains("of driver 535.261.03")
            && named.contains("install the MPS programs of driver 580.159.04"),
        "{named}"
    );
    assert!(judge(None, Some("580")).expect("too quiet for 580").contains("older than driver 580"));
}

#[test]
fn versions_are_counted_as_cuda_does() {
    assert_eq!(["12.2", "13.10", "13"].map(version_number), [Some(12_020), Some(13_100), None]);
}

/// A control program made of one shell script.
fn program(script: &str) -> (tempfile::TempDir, InstalledProgram) {
    let dir = tempfile::tempdir().expect("directory");
    for name in [CONTROL, SERVER] {
        let source = dir.path().join("source");
        fs::write(&source, format!("#!/bin/sh\n{script}\n")).expect("written");
        // Another process makes the copy: a file that this one, or a fork of it, still has open for writing
        // cannot be run.
        let mut install = std::process::Command::new("install");
        install.arg("-m755").arg(&source).arg(dir.path().join(name));
        assert!(install.status().expect("install").success());
    }
    let program = Binaries::locate(Some(dir.path())).expect("both").installed(Vec::new());
    (dir, program)
}

async fn refusal(script: &str, cuda: Option<&str>) -> String {
    let (dir, program) = program(script);
    let driver = RunningDriver { version: "470.256.02".into(), cuda: cuda.map(str::to_owned) };
    probe(&program, Some(&driver), &dir.path().join("asked")).await.expect_err("refused").to_string()
}

#[tokio::test]
async fn unsupported_control_program_is_refused() {
    let old = refusal("echo 'CUDA MPS Control. Binary version: 11040'", None).await;
    assert!(old.contains("is of CUDA 11.4, which has no memory limits"), "{old}");
    let quiet = "[ $1 = --help ] && echo 'CUDA MPS Control for Linux/Unix.' || echo 'Cannot find MPS control daemon process'";
    let older = refusal(quiet, Some("11.4")).await;
    assert!(older.contains("is of CUDA 11.4, which has no memory limits"), "{older}");
    let dead = refusal(quiet, Some("12.2")).await;
    assert!(dead.contains("did not answer: the control program ended"), "{dead}");
    let stranger = refusal("echo hello", None).await;
    assert!(stranger.contains("answered --help with \"hello\\n\""), "{stranger}");
    let half = refusal("[ $1 = -v ] && echo 'Binary version: 13000'", None).await;
    assert!(half.contains("answered --help with \"\""), "{half}");
}
