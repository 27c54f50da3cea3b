//! Layouts of one host on others, as the command line and docs/layouts.md have it.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use mps_manager::domain::layout;
use serde_json::json;

use super::layouts::{add, apply, partitions, remove, static_host, uuid, write};
use super::log_pages::page;
use super::partition_tenants::{bound, tenants};
use super::shares::sees;
use crate::harness::{InProcess, MANAGER, Served, stderr_of};

fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The columns of each row of a table, with the words of the last one.
fn rows(output: &Output) -> Vec<Vec<String>> {
    let text = printed(output);
    text.lines().skip(1).map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
}

fn runtime(host: &Served) -> String {
    host.runtime("").display().to_string().trim_end_matches('/').to_owned()
}

#[test]
fn one_command_replays_layout_on_every_host() {
    let first: InProcess = static_host("h200x2");
    let same: InProcess = static_host("h200x2");
    let other_die: InProcess = static_host("h200x2@13.1:gpcs=9.9.8.9.9.4.9.9");
    let other_sku: InProcess = static_host("a100x4@13.1");
    write(&first, "prod", &[add("web", 7), add("gap", 2), add("batch", 5), remove("gap")]);
    let applied = first.cli(&["layout", "apply", "prod", "--daemon", "gpu1", "--gpu", "0=1"]);
    assert!(applied.status.success(), "{}", stderr_of(&applied));

    let replay = |to: &[String]| {
        let to = to.join(",");
        let from = runtime(&first);
        first.cli(&["layout", "replay", "prod", "--from", &from, "--to", &to, "--gpu", "0=1"])
    };
    let hosts = [&same, &other_die, &other_sku].map(|host| runtime(host));
    let reported = replay(&hosts);
    assert_eq!(reported.status.code(), Some(1), "{}", stderr_of(&reported));
    let table = rows(&reported);
    let results: Vec<[&str; 3]> =
        table.iter().take(3).map(|row| [row[0].as_str(), row[1].as_str(), row[2].as_str()]).collect();
    assert_eq!(
        results,
        [[&hosts[0], "same", "4/4"], [&hosts[1], "differs", "1/4"], [&hosts[2], "refused", "-"]],
        "{}",
        printed(&reported)
    );
    let text = printed(&reported);
    let got = partitions(&first);
    assert!(text.contains("step 2 gave partition gap the ID "), "{text}");
    assert!(text.contains(&format!("{}: sku is NVIDIA A100", hosts[2])), "{text}");
    assert_eq!((partitions(&same), partitions(&other_die), partitions(&other_sku)), (got, vec![], vec![]));

    // All is well, also where the IDs are already there, and a host that is not there outweighs both.
    let another: InProcess = static_host("h200x2");
    let done = replay(&[runtime(&another)]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr_of(&done));
    assert!(printed(&done).contains("4 of 4 IDs identical ✓"), "{}", printed(&done));
    let replays = || another.api().get("/api/v1/replays").ok()["items"].as_array().expect("a list").len();
    let before = replays();
    let again = replay(&[runtime(&another)]);
    assert_eq!(again.status.code(), Some(0), "{}", stderr_of(&again));
    assert!(printed(&again).contains("already applied: 4 of 4 IDs identical ✓"), "{}", printed(&again));
    assert_eq!(replays(), before, "nothing was replayed");
    let missing = replay(&[runtime(&another), "127.0.0.1:1".to_owned()]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(printed(&missing).contains("cannot be reached"), "{}", printed(&missing));
}

#[test]
fn replay_works_over_network_and_from_file() {
    let first: InProcess = static_host("h200x2");
    let second: InProcess = static_host("h200x2");
    write(&first, "prod", &[add("web", 3)]);
    first.cli(&["layout", "apply", "prod", "--daemon", "gpu1", "--gpu", "0=1"]);
    let file = first.dir().join("prod.yaml");
    let exported = first.cli(&["layout", "export", "prod"]);
    std::fs::write(&file, &exported.stdout).unwrap();
    let file = file.display().to_string();

    let url = second.url();
    let host = url.strip_prefix("http://").unwrap();
    let tokens = second.state("token-of-second");
    std::fs::write(&tokens, format!("{}\n", second.token())).unwrap();
    let words = |token: &str| {
        let token = format!("{host}={token}");
        first.cli(&[
            "layout",
            "replay",
            "prod",
            "-f",
            &file,
            "--to",
            host,
            "--gpu",
            "0=1",
            "--token-file",
            &token,
        ])
    };
    let nothing = words("/dev/null");
    assert_eq!(nothing.status.code(), Some(2), "no token says nothing of the layout: {}", printed(&nothing));
    let stray = first.cli(&["layout", "replay", "prod", "-f", &file, "--token-file", "host-x=/dev/null"]);
    assert_eq!(stray.status.code(), Some(2));
    assert!(stderr_of(&stray).contains("host-x, which is none of the hosts"), "{}", stderr_of(&stray));
    assert_eq!(partitions(&second), vec![]);
    let done = words(tokens.to_str().unwrap());
    assert_eq!(done.status.code(), Some(0), "{}", printed(&done));
    assert_eq!(partitions(&second), partitions(&first));

    let edited = std::fs::read_to_string(&file).unwrap().replace("chunks: 3", "chunks: 2");
    std::fs::write(&file, edited).unwrap();
    let refused = words(tokens.to_str().unwrap());
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("checksum"), "{}", stderr_of(&refused));
}

#[test]
fn replay_without_recording_is_refused() {
    let host: InProcess = static_host("h200x2");
    let file = host.dir().join("by_hand.yaml");
    let text =
        "version: v1\nlayouts:\n  prod:\n    steps:\n      - add: {gpu: 0, partition: web, chunks: 3}\n";
    std::fs::write(&file, text).unwrap();
    let file = file.display().to_string();
    let refused = host.cli(&["layout", "replay", "prod", "-f", &file, "--daemon", "gpu1", "--gpu", "0=1"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr_of(&refused));
    for words in ["no recorded IDs", "layout export prod", "layout apply prod"] {
        assert!(stderr_of(&refused).contains(words), "{}", stderr_of(&refused));
    }
    assert_eq!(partitions(&host), vec![]);
    assert_eq!(host.api().get("/api/v1/replays").ok()["items"], serde_json::json!([]));
}

#[test]
fn plan_exit_code_predicts_apply() {
    let host: InProcess = static_host("h200x2");
    let file = host.dir().join("main.yaml");
    let on = |verb: &str, chunks: u32| {
        let text = format!(
            "version: v1\nlayouts:\n  main:\n    note: by hand\n    steps:\n    - add: {{gpu: 1, partition: web, chunks: {chunks}}}\n"
        );
        std::fs::write(&file, text).unwrap();
        host.cli(&["layout", verb, "-f", file.to_str().unwrap(), "main", "--daemon", "gpu1"])
    };
    assert_eq!(on("plan", 7).status.code(), Some(0));
    let applied = on("apply", 7);
    assert_eq!(applied.status.code(), Some(0), "{}", stderr_of(&applied));
    for verb in ["plan", "apply"] {
        let refused = on(verb, 17);
        assert_eq!(refused.status.code(), Some(1), "{}", stderr_of(&refused));
        assert!(format!("{}{}", printed(&refused), stderr_of(&refused)).contains("give at most 15"));
    }
    let known = host.api().get("/api/v1/layouts/main").ok()["newest"].clone();
    assert_eq!((&known["version"], &known["note"]), (&serde_json::json!(1), &serde_json::json!("by hand")));
    let matching = on("assert", 7);
    assert_eq!(matching.status.code(), Some(0));
    assert_eq!(printed(&matching), "gpu1 matches layout main: 1 partition as recorded ✓\n");
    assert!(printed(&on("apply", 7)).contains("layout main is already applied to gpu1"));
    assert_eq!(on("assert", 6).status.code(), Some(1));
    let repaired = host.cli(&["layout", "apply", "main", "--daemon", "gpu1", "--drift-policy", "repair"]);
    assert_eq!(repaired.status.code(), Some(0), "{}", stderr_of(&repaired));
    assert_eq!(host.daemon("gpu1")["spec"]["layout"]["drift_policy"], "repair");
}

#[test]
fn documented_layouts_are_readable() {
    let docs = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/layouts.md")).unwrap();
    let mut found = 0;
    for block in docs.split("```yaml\n").skip(1) {
        let text = block.split_once("\n```").expect("an end").0;
        let document = layout::text::read(text, layout::text::LayoutFormat::Yaml);
        assert!(document.is_ok(), "{document:?}: {text}");
        found += 1;
    }
    assert!(found > 0);
}

/// The block of docs/layouts.md that follows a mark.
fn block(mark: &str) -> String {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/layouts.md")).unwrap();
    let after = page.split_once(&format!("<!-- {mark} -->\n```sh\n")).expect("the mark").1;
    after.split_once("\n```").expect("an end").0.to_owned()
}

#[test]
fn two_hosts_walkthrough_works() {
    // It serves nothing itself, and ends what a walkthrough that fails has started.
    let host = InProcess::new("");
    let here = host.dir().display().to_string();
    let script = block("two hosts").replace("/tmp/mps", &here);
    let programs = Path::new(MANAGER).parent().expect("a directory").display();
    // To a file: a pipe would not end before what it starts in the background.
    let printed = host.dir().join("printed");
    let file = File::create(&printed).expect("a file");
    let status = Command::new("bash")
        .args(["-e", "-c", &script])
        .env("PATH", format!("{programs}:{}", std::env::var("PATH").expect("a path")))
        .env("MPS_TEST_DIRECTORY", &here)
        .current_dir(&here)
        .stdin(Stdio::null())
        .stderr(file.try_clone().expect("the same file"))
        .stdout(file)
        .status()
        .expect("bash");
    let text = std::fs::read_to_string(&printed).expect("text");
    assert!(status.success(), "{text}");
    let seen = "sms 56 56 holds";
    for words in ["+ web: 7 chunks, 56 SMs", "checksum: sha256:", "/b/run same 5/5 ", seen] {
        let found =
            text.lines().any(|line| line.split_whitespace().collect::<Vec<_>>().join(" ").contains(words));
        assert!(found, "{words} in {text}");
    }
    assert!(!host.dir().join("a").exists() && !host.dir().join("b").exists(), "{text}");
}

/// IDs that begin with slashes, as seven L20s gave them (recording 27): through everything that carries an ID.
#[test]
fn ids_of_slashes_get_through_everything() {
    let host: InProcess = static_host("l20x2");
    tenants(&host, &["big", "little"]);
    write(&host, "prod", &[bound("large", 20, &["big"]), bound("small", 3, &["little"])]);
    apply(&host, "prod", &json!({}));
    host.await_ready();
    let (slashes, plain) = ("////vm0fAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "AAAAQZIgAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
    let named = |name: &str, id: &str| (name.to_owned(), id.to_owned());
    assert_eq!(partitions(&host), [named("large", slashes), named("small", plain)]);

    let whole = format!("{}/{slashes}", uuid(&host, 1));
    for path in ["large".to_owned(), slashes.replace('/', "%2F"), whole.replace('/', "%2F")] {
        let found = host.api().get(&format!("/api/v1/daemons/gpu1/partitions/{path}")).ok();
        assert_eq!((&found["id"], &found["partition"]), (&json!(slashes), &json!("large")), "{path}");
    }
    for format in ["sh", "json", "docker", "compose", "systemd", "taskprolog", "nomad", "dotenv", "apptainer"]
    {
        let printed = host.cli(&["env", "big", "--format", format]);
        let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
        assert!(printed.contains(&whole), "{format}: {printed}");
    }
    let device = fs::read_to_string(host.runtime("sim/cdi/mps-manager.json")).unwrap();
    assert!(device.contains(&format!("CUDA_MPS_SM_PARTITION={whole}")), "{device}");
    for path in ["/daemons/gpu1", "/tenants/big"] {
        assert!(page(&host, path).contains(slashes), "{path}");
    }
    assert_eq!((sees(&host, "big"), sees(&host, "little")), (80, 12));

    // Recorded, exported, and the same again in the next daemon.
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=1", &json!({})));
    host.await_ready();
    assert_eq!(partitions(&host), [named("large", slashes), named("small", plain)]);
    for format in ["yaml", "json"] {
        let exported = host.cli(&["layout", "export", "prod", "--daemon", "gpu1", "-o", format]);
        assert!(String::from_utf8_lossy(&exported.stdout).contains(slashes), "{}", stderr_of(&exported));
    }
    let asserted = host.cli(&["layout", "assert", "prod", "--daemon", "gpu1"]);
    assert!(asserted.status.success(), "{}", stderr_of(&asserted));
}

/// Makes a recording with these arguments, the last of which names a simulated host; this program understands it, and it replays there.
pub(super) fn recorded(arguments: &[&str]) -> serde_json::Value {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("recording.json");
    let record = |arguments: &[&str]| {
        let mut command = Command::new(MANAGER);
        command.arg("record").arg(&file).args(arguments).env("TMPDIR", scratch.path());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let made = record(arguments);
    assert!(made.status.success(), "{}", stderr_of(&made));
    let checked = record(&["--check"]);
    assert_eq!(checked.status.code(), Some(0), "{}", printed(&checked));
    let replayed = record(&["--check", "--sim", arguments[arguments.len() - 1]]);
    assert_eq!(replayed.status.code(), Some(0), "{}{}", printed(&replayed), stderr_of(&replayed));
    assert!(printed(&replayed).ends_with(" compared, 0 differ\n"), "{}", printed(&replayed));
    serde_json::from_slice(&fs::read(&file).unwrap()).unwrap()
}

#[test]
fn recording_fits_its_own_gpu_and_no_other() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("l40s.json");
    let record = |arguments: &[&str]| {
        let mut command = Command::new(MANAGER);
        command.arg("record").arg(&file).args(arguments).env("TMPDIR", scratch.path());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let made = record(&["--sim", "l40sx1@13.3"]);
    assert!(made.status.success(), "{}", stderr_of(&made));
    assert!(stderr_of(&made).contains("a control daemon of its own"), "what it does is said first");
    let text = fs::read_to_string(&file).unwrap();
    let recorded: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&recorded["gpu"]["name"], &recorded["gpu"]["sms"]), (&json!("NVIDIA L40S"), &json!(142)));
    let id = "AwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
    let created = format!("Partition GPU-00000000-0000-0000-0000-000000000000/{id} created");
    let commands = recorded["commands"].as_array().unwrap();
    assert!(commands.iter().any(|one| one["reply"].as_str().unwrap().trim() == created), "{text}");
    assert!(
        !recorded["log"].as_array().unwrap().is_empty() && !text.contains(scratch.path().to_str().unwrap())
    );
    let left: Vec<_> =
        fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["l40s.json"], "neither a daemon's directory nor a simulated host");
    assert_eq!(record(&["--sim", "l40sx1@13.3"]).status.code(), Some(2), "no file is overwritten");

    let checked = record(&["--check", "--sim", "l40sx1@13.3"]);
    assert_eq!(checked.status.code(), Some(0), "{}", printed(&checked));
    assert!(printed(&checked).ends_with(&format!("{} replies compared, 0 differ\n", commands.len())));
    let checked = record(&["--check", "--sim", "l20x1@13.3"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(printed(&checked).contains("  recorded:  ") && printed(&checked).contains("  simulated: "));

    fs::write(&file, text.replace(&created, "a partition came about")).unwrap();
    let checked = record(&["--check"]);
    assert_eq!(checked.status.code(), Some(1));
    assert!(printed(&checked).contains("a partition came about"), "{}", printed(&checked));
    fs::write(&file, text.replace("recording 1", "recording 9")).unwrap();
    assert!(stderr_of(&record(&["--check"])).contains("recording 9"));
    fs::remove_file(&file).unwrap();
    let old = record(&["--sim", "h200x1@13.0"]);
    assert!(old.status.code() == Some(2) && stderr_of(&old).contains("CUDA 13.1"), "{}", stderr_of(&old));
    assert!(!file.exists());
}
