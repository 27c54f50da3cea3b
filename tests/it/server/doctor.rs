//! `mps-manager doctor`: each check on a host that is well, and on one that is not.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::scratch::install_script;
use crate::harness::{Host, InProcess, Served, eventually, is_alive, is_root, may_mount, signal};

/// What came of an examination.
pub(super) struct Seen {
    code: Option<i32>,
    pub(super) checks: BTreeMap<String, Value>,
    order: Vec<String>,
}

impl Seen {
    fn of(output: &Output) -> Self {
        let all: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let checks = all["checks"].as_array().unwrap().clone();
        let id = |check: &Value| check["id"].as_str().unwrap().to_owned();
        Self {
            code: output.status.code(),
            order: checks.iter().map(id).collect(),
            checks: checks.iter().map(|check| (id(check), check.clone())).collect(),
        }
    }

    pub(super) fn status(&self, id: &str) -> &str {
        self.checks[id]["status"].as_str().unwrap()
    }

    /// Holds a check to its outcome and its words; what warns or fails says what to do.
    #[track_caller]
    pub(super) fn is(&self, id: &str, status: &str, words: &str) {
        let check = &self.checks[id];
        assert_eq!(check["status"], status, "{check}");
        assert!(check["seen"].as_str().unwrap().contains(words), "{check}");
        let has_remedy = check["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty());
        assert_eq!(has_remedy, ["warn", "fail"].contains(&status), "{check}");
    }

    /// Whether a check says what to do in words that begin like this.
    #[track_caller]
    fn cures(&self, id: &str, command: &str) {
        let check = &self.checks[id];
        assert!(check["remedy"].as_str().is_some_and(|remedy| remedy.starts_with(command)), "{check}");
    }
}

fn doctor(host: &Served, arguments: &[&str]) -> Command {
    let config = host.dir().join("config.toml");
    let mut all = vec!["doctor", "-o", "json", "--config", config.to_str().unwrap()];
    all.extend(arguments);
    host.command(&all)
}

pub(super) fn examine(host: &Served) -> Seen {
    Seen::of(&doctor(host, &[]).output().unwrap())
}

/// Every file below a directory, with what would reveal a change.
fn snapshot(directory: &Path) -> BTreeMap<String, (u64, SystemTime, u32)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap().flatten() {
        let Ok(metadata) = entry.metadata() else { continue };
        let path = entry.path().display().to_string();
        all.insert(path, (metadata.len(), metadata.modified().unwrap(), metadata.permissions().mode()));
        if metadata.is_dir() {
            all.extend(snapshot(&entry.path()));
        }
    }
    all
}

/// What the machine that runs the tests is like is not for a test to say.
const OF_THE_MACHINE: [&str; 8] = [
    "default_pipe_directory",
    "disk_space",
    "open_files",
    "tasks",
    "other_managers",
    "device_cgroup",
    "isolation",
    "clock",
];

fn is_well_but_for_the_machine(seen: &Seen) {
    for id in seen.order.iter().filter(|id| !OF_THE_MACHINE.contains(&id.as_str())) {
        assert!(["ok", "skipped"].contains(&seen.status(id)), "{}", seen.checks[id]);
    }
    let trouble =
        seen.checks.values().any(|check| ["warn", "fail"].contains(&check["status"].as_str().unwrap()));
    assert_eq!(seen.code, Some(i32::from(trouble)));
}

#[test]
fn healthy_host_passes_and_is_not_modified() {
    let mut host = Host::polled_hourly("");
    // The manager reads its database when it is asked whether it is well, and readers note that in what they share in memory.
    let kept = |host: &Host| {
        let mut all = snapshot(&host.state(""));
        all.retain(|path, _| !path.ends_with("-shm"));
        all
    };
    // What happened at the start is written after the daemons are ready, and where the audit ends up to a second later.
    eventually("nothing was written for a while", || {
        let head = host.api().get("/api/v1/audit/head").ok();
        let kept_head = fs::read_to_string(host.state("audit.head")).ok()?;
        let rests =
            |modified: &SystemTime| modified.elapsed().is_ok_and(|age| age > Duration::from_millis(300));
        let all_written = kept_head.contains(head["hash"].as_str().unwrap());
        (all_written && kept(&host).values().all(|(_, modified, _)| rests(modified))).then_some(())
    });
    let before = (host.daemon_pid("gpu0"), kept(&host));
    let seen = examine(&host);
    is_well_but_for_the_machine(&seen);
    seen.is("driver", "ok", "SIMULATED (h200x2");
    seen.is("gpus", "ok", "0 NVIDIA H200, 1 NVIDIA H200");
    seen.is("programs", "ok", "(CUDA 13.1)");
    seen.is("capabilities", "ok", "static partitions");
    seen.is("manager", "ok", &format!("process {}", host.manager_pid()));
    seen.is("database", "ok", "intact");
    seen.is("tenants", "ok", "2 tenants");
    seen.is("foreign_daemons", "ok", "no MPS control daemon");
    seen.is("daemons", "ok", "2 daemons, and nothing that needs attention");
    seen.is("waiting_users", "ok", "");
    seen.is("compute_capability", "ok", "on every GPU");
    seen.is("listen", "ok", "");
    assert_eq!((host.daemon_pid("gpu0"), kept(&host)), before);

    host.end_manager(Signal::TERM);
    let (state, runtime) = (snapshot(&host.state("")), snapshot(&host.runtime("")));
    let seen = examine(&host);
    is_well_but_for_the_machine(&seen);
    seen.is("manager", "ok", "none serves");
    seen.is("foreign_daemons", "ok", "no MPS control daemon");
    assert_eq!(
        (snapshot(&host.state("")), snapshot(&host.runtime(""))),
        (state, runtime),
        "nothing is written"
    );
    host.serve();
    host.await_ready();
}

#[test]
fn new_host_passes_and_is_not_modified() {
    let host = Host::new("");
    let seen = examine(&host);
    is_well_but_for_the_machine(&seen);
    for (id, words) in
        [("driver", "first start"), ("programs", "first start"), ("database", "first start makes it")]
    {
        seen.is(id, "skipped", words);
    }
    seen.is("state_directory", "ok", "can be made in");
    seen.is("runtime_directory", "ok", "can be made in");
    assert!(!host.state("").exists() && !host.runtime("").exists());
}

#[test]
fn missing_driver_is_reported() {
    let host = InProcess::new("");
    if Path::new("/dev/nvidiactl").exists() {
        eprintln!("SKIPPED: this host has a driver");
        return;
    }
    let (state, runtime) = (host.state(""), host.runtime(""));
    let arguments = [
        "doctor",
        "-o",
        "json",
        "--state-dir",
        state.to_str().unwrap(),
        "--runtime-dir",
        runtime.to_str().unwrap(),
    ];
    let seen = Seen::of(&host.command(&arguments).env("PATH", "/nowhere").output().unwrap());
    seen.is("driver", "fail", "no usable NVIDIA driver");
    seen.is("gpus", "skipped", "did not answer");
    seen.is("programs", "fail", "in no directory of PATH");
    assert_eq!(seen.code, Some(1));
}

/// Writes into the world's description of its GPUs.
fn change_world(host: &Served, change: impl FnOnce(&mut Value)) {
    let path = host.runtime("sim/world.json");
    let mut world: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut world);
    fs::write(&path, world.to_string()).unwrap();
}

#[test]
fn unusable_gpus_and_bypassing_processes_are_reported() {
    let host = InProcess::ready();
    let mut outsider = host
        .command(&["sim", "client", "--world", host.runtime("sim").to_str().unwrap(), "--spin", "600"])
        .spawn()
        .unwrap();
    let seen = eventually("the process is on each GPU", || {
        let seen = examine(&host);
        let words = seen.checks["outside_mps"]["seen"].as_str().unwrap();
        words.contains("on GPU 0").then_some(seen)
    });
    seen.is("outside_mps", "warn", &format!("{} on GPU 0", outsider.id()));
    seen.cures("outside_mps", &format!("kill {}", outsider.id()));
    outsider.kill().unwrap();
    outsider.wait().unwrap();
    change_world(&host, |world| world["gpus"][1]["mig_enabled"] = true.into());
    let seen = examine(&host);
    seen.is("mig", "warn", "GPU 1");
    seen.cures("mig", "nvidia-smi mig -i 1 -lgip");
    change_world(&host, |world| world["gpus"] = Value::Array(Vec::new()));
    examine(&host).is("gpus", "fail", "no GPU");
    fs::write(host.runtime("sim/world.json"), "not JSON").unwrap();
    let seen = examine(&host);
    seen.is("driver", "fail", "world.json");
    seen.is("compute_mode", "skipped", "did not answer");
}

#[test]
fn missing_old_or_unknown_programs_are_reported() {
    let host = InProcess::stopped();
    let programs = host.dir().join("programs");
    fs::create_dir(&programs).unwrap();
    let with =
        |host: &Served| Seen::of(&doctor(host, &["--mps-dir", programs.to_str().unwrap()]).output().unwrap());
    with(&host).is("programs", "fail", "nvidia-cuda-mps-control: no such program");
    for (message, status, words) in [
        ("echo hello", "fail", "no control program of NVIDIA"),
        ("echo 'Binary version: 11040'", "fail", "is of CUDA 11.4"),
        (
            "echo 'Binary version: 13000'; printf 'COMMAND:\\n  get_server_list\\n'",
            "fail",
            "does not know ps",
        ),
        (
            "echo 'Binary version: 13000'; echo COMMAND:; for word in get_server_list ps terminate_client \\
             get_default_device_pinned_mem_limit set_default_device_pinned_mem_limit get_default_client_priority \\
             set_default_client_priority; do echo \"  $word\"; done",
            "ok",
            "CUDA 13.0",
        ),
    ] {
        for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
            install_script(&programs.join(name), &format!("#!/bin/sh\n{message}\n"));
        }
        with(&host).is("programs", status, words);
    }
    with(&host).is("capabilities", "skipped", "13.1");
}

#[test]
fn exposed_or_unusable_directories_are_reported() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    let mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&host.state("admin.token"), 0o644);
    examine(&host).is("state_directory", "fail", "admin.token can be used by others (mode 644)");
    mode(&host.state("admin.token"), 0o600);
    mode(&host.runtime(""), 0o777);
    examine(&host).is("runtime_directory", "fail", "can be written by others (mode 777)");
    mode(&host.runtime(""), 0o755);

    let file = host.dir().join("file");
    fs::write(&file, "").unwrap();
    let at = |option: &str, path: &str| Seen::of(&doctor(&host, &[option, path]).output().unwrap());
    at("--state-dir", file.to_str().unwrap()).is("state_directory", "fail", "is not a directory");
    at("--state-dir", file.join("state").to_str().unwrap()).is("state_directory", "fail", "Not a directory");
    at("--runtime-dir", file.to_str().unwrap()).is("runtime_directory", "fail", "is not a directory");
    let long = format!("/tmp/{}", "x".repeat(80));
    at("--runtime-dir", &long).is("pipe_directories", "fail", "is too long");
    at("--runtime-dir", "/tmp/nvidia-mps/run").is("pipe_directories", "fail", "is never used");
    if is_root() {
        // A tenant of another user, who may not pass.
        host.execute_sql("UPDATE tenants SET spec = json_set(spec, '$.uid', 65534) WHERE name = 'demo'");
        let tenants = host.runtime("tenants");
        assert!(Command::new("chmod").arg("-R").arg("711").arg(tenants).status().unwrap().success());
        examine(&host).is("tenants", "ok", "2 tenants");
        mode(host.dir(), 0o700);
        examine(&host).is("tenants", "fail", "demo: uid 65534 cannot pass through");
        mode(host.dir(), 0o755);
    }
}

#[test]
fn unusable_database_is_reported() {
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    let database = host.state("mps-manager.db");
    let good = fs::read(&database).unwrap();
    host.execute_sql("UPDATE host SET machine_id = '0123456789abcdef0123456789abcdef'");
    examine(&host).is("machine", "warn", "belongs to machine 0123456789abcdef");
    fs::write(&database, &good).unwrap();
    host.execute_sql("UPDATE daemons SET updated_at = 33333333333333 WHERE name = 'gpu0'");
    examine(&host).is("clock", "warn", "earlier than");
    host.execute_sql("UPDATE _sqlx_migrations SET version = 9999 WHERE version = 1");
    examine(&host).is("database", "fail", "schema version 9999");
    host.execute_sql("UPDATE _sqlx_migrations SET version = 1, checksum = x'00' WHERE version = 9999");
    examine(&host).is("database", "fail", "made by a pre-release");
    let mut torn = good.clone();
    torn[4096..8192].fill(0x5a);
    fs::write(&database, &torn).unwrap();
    assert_eq!(examine(&host).status("database"), "fail");
    fs::write(&database, "words").unwrap();
    assert_eq!(examine(&host).status("database"), "fail");
    fs::write(&database, "").unwrap();
    examine(&host).is("database", "fail", "is not a database of mps-manager");
}

#[test]
fn foreign_daemons_and_used_port_are_reported() {
    let host = InProcess::ready();
    let foreign = host.foreign("theirs", "1");
    let seen = examine(&host);
    seen.is("foreign_daemons", "warn", &format!("control daemon {}", foreign.pid()));
    seen.is("foreign_daemons", "warn", "serves GPU 1");
    seen.cures("foreign_daemons", &format!("mps-manager foreign get {}-", foreign.pid()));
    seen.is("environment", "ok", "no variable");
    assert!(is_alive(foreign.pid()));
    let seen = Seen::of(
        &doctor(&host, &[]).env("CUDA_VISIBLE_DEVICES", "0").env("CUDA_MPS_X", "1").output().unwrap(),
    );
    seen.is("environment", "warn", "CUDA_MPS_X, CUDA_VISIBLE_DEVICES");
    seen.cures("environment", "unset CUDA_MPS_X CUDA_VISIBLE_DEVICES");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = InProcess::new("");
    let config = other.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("127.0.0.1:0", &taken.local_addr().unwrap().to_string())).unwrap();
    examine(&other).is("listen", "fail", "in use");
}

#[test]
fn public_address_and_certificate_are_examined() {
    let host = InProcess::new("");
    let config = host.dir().join("config.toml");
    let text = fs::read_to_string(&config).unwrap();
    let (certificate, key) = (host.dir().join("c.pem"), host.dir().join("k.pem"));
    let with = |change: &dyn Fn(&str) -> String| {
        fs::write(&config, change(&text)).unwrap();
        examine(&host)
    };
    let beyond = |text: &str| text.replace("127.0.0.1:0", "0.0.0.0:0");
    let seen = with(&beyond);
    seen.is("listen", "fail", "0.0.0.0:0");
    seen.is("certificate", "skipped", "without TLS");
    with(&|text| format!("{}insecure_listen = true\n", beyond(text))).is("listen", "warn", "without TLS");

    let table =
        |text: &str| format!("{}\n[tls]\ncertificate = {certificate:?}\nkey = {key:?}\n", beyond(text));
    with(&table).is("certificate", "fail", "c.pem cannot be read");
    let pair = |year: i32| {
        let secret = rcgen::KeyPair::generate().unwrap();
        let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.not_after = rcgen::date_time_ymd(year, 1, 1);
        fs::write(&certificate, parameters.self_signed(&secret).unwrap().pem()).unwrap();
        fs::write(&key, secret.serialize_pem()).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    };
    pair(2020);
    with(&table).is("certificate", "fail", "it expired");
    pair(4000);
    let seen = with(&table);
    seen.is("certificate", "ok", "matches its key");
    seen.is("listen", "ok", "is free");
}

#[test]
fn unreachable_manager_and_invalid_config_are_reported() {
    let host = InProcess::stopped();
    // The manager makes its socket again, unless something else has its name.
    eventually("the name is taken", || {
        let _ = fs::remove_file(host.runtime("api.sock"));
        fs::create_dir(host.runtime("api.sock")).ok()
    });
    examine(&host).is("manager", "warn", "does not answer");
    let broken = InProcess::new("colour = \"red\"");
    let seen = examine(&broken);
    seen.is("configuration", "fail", "colour");
    assert_eq!((seen.code, seen.order.len()), (Some(1), 36), "the rest is checked all the same");
}

#[test]
fn host_in_maintenance_skips_driver_check() {
    let host = InProcess::ready();
    let accepted = host.api().post("/api/v1/host/maintenance", &serde_json::json!({}));
    host.api().succeeds(&accepted);
    examine(&host).is("driver", "skipped", "in maintenance");
}

#[test]
fn limits_that_are_too_low_are_named() {
    let host = Host::new("");
    let config = host.dir().join("config.toml");
    let script = format!("ulimit -n 1024 && exec \"$0\" doctor -o json --config {}", config.display());
    let output = Command::new("sh").args(["-c", &script, crate::harness::MANAGER]).output().unwrap();
    Seen::of(&output).is("open_files", "warn", "1024 open files here");
}

#[test]
fn table_and_documentation_have_every_check() {
    let host = InProcess::new("");
    let config = host.dir().join("config.toml");
    // Some checks look at the whole machine, where other tests come and go.
    let seen = eventually("the table has what the JSON has", || {
        let seen = examine(&host);
        let output = host.cli(&["doctor", "--config", config.to_str().unwrap()]);
        let text = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<&str> =
            text.lines().take_while(|line| !line.is_empty()).filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(rows.len(), seen.order.len());
        let column = rows[0].find("configuration").unwrap();
        let mut shown = rows.iter().zip(&seen.order);
        let is_same = shown.all(|(row, id)| {
            assert!(row[column..].starts_with(id), "{row}");
            row.starts_with(seen.status(id))
        });
        (is_same && output.status.code() == seen.code).then_some(seen)
    });
    let (documentation, threads) =
        include_str!("../../../docs/doctor.md").split_once("## What users of MPS").expect("both tables");
    let rows = threads.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| ---"));
    let causes: Vec<&str> = rows.filter_map(|row| row.split('|').nth(2)).map(str::trim).skip(1).collect();
    assert_eq!(causes.len(), 20);
    for cause in causes.iter().filter(|cause| !cause.starts_with("advice: ")) {
        for id in cause.split(", ") {
            assert!(seen.order.iter().any(|known| format!("`{known}`") == id), "{id}");
        }
    }
    let documented: Vec<&str> =
        documentation.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(documented, seen.order);
}

#[test]
fn hung_manager_is_reported() {
    let host = Host::ready();
    crate::harness::signal(host.manager_pid(), Signal::STOP);
    let seen = examine(&host);
    crate::harness::signal(host.manager_pid(), Signal::CONT);
    seen.is("manager", "warn", "does not answer within 3 s");
    examine(&host).is("manager", "ok", "serves at");
}

#[test]
fn runtime_directory_of_other_user_is_reported() {
    if !is_root() {
        eprintln!("SKIPPED: only root gives a directory away");
        return;
    }
    let mut host = Host::ready();
    host.end_manager(Signal::TERM);
    std::os::unix::fs::chown(host.runtime(""), Some(65534), None).unwrap();
    examine(&host).is("runtime_directory", "fail", "uid 65534");
    std::os::unix::fs::chown(host.runtime(""), Some(0), None).unwrap();
    examine(&host).is("runtime_directory", "ok", "of uid 0");
}

#[test]
fn unknown_simulated_profile_is_refused() {
    let host = InProcess::new("");
    let refused = doctor(&host, &["--sim", "nope"]).output().unwrap();
    assert_eq!((refused.status.code(), refused.stdout.as_slice()), (Some(2), b"".as_slice()));
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(message.contains("cannot simulate \"nope\""), "{message}");
}

#[test]
fn traces_around_the_daemons_are_found() {
    let host = InProcess::ready();
    let seen = examine(&host);
    seen.is("kernel_log", "ok", "no error of the driver");
    fs::remove_file(host.runtime("sim/kernel.log")).unwrap();
    examine(&host).is("kernel_log", "skipped", "may not be read");
    fs::write(
        host.runtime("sim/kernel.log"),
        "4,2,2,-;NVRM: Xid (PCI:0000:06:00): 31, pid=5337, name=train, Ch 00000008. MMU Fault\n",
    )
    .unwrap();
    let cdi = host.runtime("sim/cdi");
    eventually("the manager's own is there", || cdi.join("mps-manager.json").exists().then_some(()));
    examine(&host).is("cdi", "ok", "1 CDI specification,");
    let tenant =
        host.api().get("/api/v1/tenants/demo/environment").ok()["variables"]["CUDA_MPS_PIPE_DIRECTORY"]
            .clone();
    let gone = host.runtime("tenants/0000000000");
    let spec = |mounted: &Value| {
        serde_json::json!({"cdiVersion": "0.6.0", "kind": "mps-manager.dev/tenant",
            "devices": [{"name": "a", "containerEdits": {"mounts": [{"hostPath": mounted, "containerPath": mounted}]}}]})
    };
    fs::write(cdi.join("there.json"), spec(&tenant).to_string()).unwrap();
    let seen = examine(&host);
    seen.is("kernel_log", "warn", "Xid 31 (1 time)");
    seen.is("cdi", "ok", "2 CDI specifications,");
    fs::write(cdi.join("gone.json"), spec(&gone.display().to_string().into()).to_string()).unwrap();
    let slurm = host.runtime("sim/slurm");
    fs::create_dir(&slurm).unwrap();
    fs::write(slurm.join("slurm.conf"), "Include slurm.conf\ninclude gpus.conf\n").unwrap();
    fs::create_dir(slurm.join("gres.conf")).unwrap();
    let seen = examine(&host);
    seen.is("cdi", "warn", "gone.json mounts");
    seen.is("slurm_mps", "skipped", "slurm/gres.conf");
    fs::write(slurm.join("gpus.conf"), "GresTypes=gpu,\\\nmps,shard\n").unwrap();
    fs::remove_file(cdi.join("gone.json")).unwrap();
    let whole = "cdiVersion: 0.6.0\nkind: nvidia.com/gpu\ndevices:\n- {name: all, containerEdits: {}}\n";
    fs::write(cdi.join("nvidia.yaml"), whole).unwrap();
    let seen = examine(&host);
    seen.is("slurm_mps", "warn", "slurm/gpus.conf");
    seen.is("cdi", "warn", "(of nvidia.com/gpu there are: all)");

    let plugin = host.dir().join("nvidia-device-plugin");
    install_script(&plugin, "#!/bin/sh\nread forever\n");
    let mut plugin = Command::new(plugin).stdin(std::process::Stdio::piped()).spawn().unwrap();
    let seen = eventually("it runs", || {
        let seen = examine(&host);
        seen.checks["other_managers"].to_string().contains("nvidia-device-plugin").then_some(seen)
    });
    seen.is("other_managers", "warn", &format!("nvidia-device-plugin (process {})", plugin.id()));
    plugin.kill().unwrap();
    plugin.wait().unwrap();
}

#[test]
fn what_the_manager_reports_is_shown() {
    let host = Host::ready();
    let daemon = host.daemon("gpu1");
    let spec = serde_json::json!({"gpus": daemon["spec"]["gpus"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    let seen = eventually("a restart is required", || {
        let seen = examine(&host);
        (seen.status("daemons") == "warn").then_some(seen)
    });
    seen.is("daemons", "warn", "gpu1: ");
    let findings = seen.checks["daemons"]["findings"].as_array().unwrap();
    let is_command = |one: &Value| one["remedy"].as_str().unwrap().starts_with("mps-manager ");
    assert!(!findings.is_empty() && findings.iter().all(is_command), "{findings:?}");
    signal(host.manager_pid(), Signal::STOP);
    let seen = examine(&host);
    signal(host.manager_pid(), Signal::CONT);
    seen.is("daemons", "skipped", "no answer within 3 s");
}

#[test]
fn containers_of_another_kind_are_reported() {
    if !may_mount() {
        return;
    }
    let host = InProcess::ready();
    let pipe = host.runtime("daemons/gpu0/pipe");
    examine(&host).is("privileged_socket", "ok", "");
    let mounted = host.dir().join("mounted");
    fs::create_dir(&mounted).unwrap();
    let script = format!("mount --bind {} {} && exec sleep 600", pipe.display(), mounted.display());
    let mut container = Command::new("unshare").args(["--mount", "sh", "-c", &script]).spawn().unwrap();
    let seen = eventually("it is mounted", || {
        let seen = examine(&host);
        (seen.status("privileged_socket") == "warn").then_some(seen)
    });
    seen.is("privileged_socket", "warn", &format!("{} of process {}", mounted.display(), container.id()));
    container.kill().unwrap();
    container.wait().unwrap();

    // This program itself in a container: the processes on the GPUs are not visible there.
    let config = host.dir().join("config.toml");
    let output = Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", crate::harness::MANAGER])
        .args(["doctor", "-o", "json", "--config"])
        .arg(config)
        .env_clear()
        .output()
        .unwrap();
    Seen::of(&output).is("pid_namespace", "warn", "not visible here");
}
