//! What keeps a manager from starting: reported clearly, with nothing changed.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use rustix::process::Signal;

use crate::harness::{Host, is_alive, stderr_of};

/// Every file below a directory with its bytes.
fn contents(directory: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap_or_default()))
        .collect();
    files.sort();
    files
}

#[test]
fn second_manager_on_same_state_is_refused() {
    let host = Host::ready();
    let daemon = host.daemon_pid("gpu0");
    let message = host.refused(&[]);
    assert!(
        message.contains("another mps-manager is serving from") && message.contains("--state-dir"),
        "{message}"
    );
    assert_eq!(host.api().get("/readyz").status, 200);
    assert_eq!(host.daemon_pid("gpu0"), daemon);
}

#[test]
fn second_manager_on_same_socket_is_refused() {
    let host = Host::ready();
    let state = host.dir().join("other");
    let message = host.refused(&["--state-dir", state.to_str().unwrap()]);
    assert!(
        message.contains("another mps-manager answers at") && message.contains("--runtime-dir"),
        "{message}"
    );
    assert_eq!(host.api().over(&host.runtime("api.sock")).get("/api/v1/host").status, 200);
}

#[test]
fn port_in_use_is_refused() {
    let host = Host::new("");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let message = host.refused(&["--listen", &address]);
    assert!(message.contains(&address) && message.contains("--listen"), "{message}");
    assert!(!host.state("mps-manager.db").exists());
}

#[test]
fn public_address_without_tls_is_refused() {
    let host = Host::new("");
    let message = host.refused(&["--listen", "0.0.0.0:0"]);
    assert!(message.contains("0.0.0.0:0 is not a loopback address"), "{message}");
    assert!(!host.state("mps-manager.db").exists());
}

#[test]
fn unknown_profile_is_refused_with_known_ones() {
    let host = Host::new("");
    let message = host.refused(&["--sim", "b200x3"]);
    assert!(message.contains("b200x3") && message.contains("h200x2"), "{message}");
    assert!(!host.state("mps-manager.db").exists());
}

#[test]
fn overlong_runtime_directory_is_refused_uncreated() {
    let host = Host::new("");
    let long = host.dir().join("x".repeat(80));
    let message = host.refused(&["--runtime-dir", long.to_str().unwrap()]);
    assert!(
        message.contains("is too long") && message.contains("82") && message.contains("--runtime-dir"),
        "{message}"
    );
    assert!(!long.exists() && !host.state("").exists());
}

#[test]
fn host_without_gpu_suggests_simulation() {
    let host = Host::new("");
    let (state, run) = (host.dir().join("s"), host.dir().join("r"));
    let arguments = ["serve", "--state-dir", state.to_str().unwrap(), "--runtime-dir", run.to_str().unwrap()];
    // Finds no driver here, and on a machine that has one, no MPS.
    let output = host.command(&arguments).env("PATH", "/nonexistent").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("--sim h200x2") && message.contains("nvidia-cuda-mps-control"), "{message}");
    assert!(!state.exists() && !run.exists());
}

#[test]
fn missing_mps_program_is_named() {
    let host = Host::new("");
    let empty = host.dir().join("empty");
    fs::create_dir(&empty).unwrap();
    let message = host.refused(&["--mps-dir", empty.to_str().unwrap()]);
    assert!(message.contains("nvidia-cuda-mps-control: no such program"), "{message}");
    assert!(!host.state("mps-manager.db").exists());
}

#[test]
fn programs_that_say_no_version_are_refused() {
    let host = Host::new("");
    let programs = host.dir().join("old");
    fs::create_dir(&programs).unwrap();
    for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
        symlink("/bin/true", programs.join(name)).unwrap();
    }
    let message = host.refused(&["--mps-dir", programs.to_str().unwrap()]);
    assert!(message.contains("nvidia-cuda-mps-control"), "{message}");
    assert!(!host.state("mps-manager.db").exists());
}

#[test]
fn newer_and_pre_release_databases_are_refused_unchanged() {
    let mut host = Host::ready();
    let daemon = host.daemon_pid("gpu0");
    assert_eq!(host.end_manager(Signal::TERM), Some(0));
    // As the last pre-release left it, of which each migration had another content.
    let of_pre_release = "UPDATE _sqlx_migrations SET checksum = x'00';
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (22, 'lease recorded', TRUE, x'00', 0)";
    for (statements, words) in [
        (
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
          VALUES (99999999, 'from the future', TRUE, x'00', 0)",
            ["schema version 99999999", "restore a copy"],
        ),
        (of_pre_release, ["made by a pre-release", "move the state directory away"]),
    ] {
        host.execute_sql(statements);
        let before = contents(&host.state(""));
        let message = host.refused(&[]);
        assert!(
            words.iter().all(|words| message.contains(words)) && message.contains("nothing was changed"),
            "{message}"
        );
        if statements == of_pre_release {
            let state = host.state("");
            let verified = host.cli(&["audit", "verify", "--state-dir", state.to_str().expect("text")]);
            assert!(stderr_of(&verified).contains(words[0]), "no row was changed: {}", stderr_of(&verified));
        }
        let after = contents(&host.state(""));
        let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
            files.iter().map(|(name, _)| name.clone()).collect()
        };
        assert_eq!(names(&after), names(&before));
        assert!(after == before, "the content of a file has changed");
        assert!(is_alive(daemon));
    }
}

#[test]
fn unknown_configuration_key_is_refused() {
    let host = Host::new("lisen = \"127.0.0.1:1\"");
    let message = host.refused(&[]);
    assert!(message.contains("lisen"), "{message}");
    let config = host.dir().join("config.toml");
    let checked = host.cli(&["config", "check", "--config", config.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&checked.stderr).contains("lisen"));
    let good = Host::new("");
    let config = good.dir().join("config.toml");
    let checked = good.cli(&["config", "check", "--config", config.to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("sim = \"h200x2\""));
}

#[test]
fn commands_say_when_no_manager_answers() {
    let host = Host::new("");
    for arguments in
        [&["status"][..], &["clients"], &["env", "demo"], &["run", "--tenant", "demo", "--", "true"]]
    {
        let output = host.cli(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(message.contains("is `mps-manager serve` running?"), "{message}");
    }
}

#[test]
fn unusable_state_directory_is_refused() {
    let host = Host::new("");
    fs::write(host.dir().join("state"), "a file").unwrap();
    let message = host.refused(&[]);
    assert!(message.contains("cannot be used") && message.contains("--state-dir"), "{message}");
}

#[test]
fn corrupt_database_or_token_is_refused() {
    let host = Host::new("");
    fs::create_dir(host.state("")).unwrap();
    fs::write(host.state("admin.token"), "short\n").unwrap();
    fs::set_permissions(host.state("admin.token"), fs::Permissions::from_mode(0o600)).unwrap();
    let message = host.refused(&[]);
    assert!(message.contains("admin.token holds no token"), "{message}");
    fs::remove_file(host.state("admin.token")).unwrap();
    fs::write(host.state("mps-manager.db"), "this is no database".repeat(100)).unwrap();
    let message = host.refused(&[]);
    assert!(message.contains("mps-manager.db") && message.contains("not a database"), "{message}");
    assert_eq!(fs::read(host.state("mps-manager.db")).unwrap(), "this is no database".repeat(100).as_bytes());
}

#[test]
fn host_file_of_others_is_refused() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::new("");
    let file = host.dir().join("host.yaml");
    fs::write(&file, "version: v1\ndaemons:\n  gpu0: {gpus: [0]}\n").unwrap();
    let loosen: [fn(&std::path::Path); 2] = [
        |file| fs::set_permissions(file, fs::Permissions::from_mode(0o666)).unwrap(),
        |file| std::os::unix::fs::chown(file, Some(65_534), None).unwrap(),
    ];
    for (loosen, words) in loosen.into_iter().zip(["can be written by others", "belongs to uid 65534"]) {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        loosen(&file);
        let said = host.refused(&["--apply", file.to_str().unwrap()]);
        assert!(said.contains(words), "{said}");
    }
    assert!(!host.state("mps-manager.db").exists(), "nothing was made");
}
