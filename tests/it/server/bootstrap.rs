//! `mps-manager bootstrap`: what it writes is what a manager applies.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::harness::{InProcess, stderr_of};

const UNIT: &str = "etc/systemd/system/mps-manager.service";

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Puts a program into an image, where `bootstrap` only looks whether it is there.
fn install(root: &Path, program: &str) {
    let program = root.join(program);
    fs::create_dir_all(program.parent().expect("a directory")).expect("made");
    fs::write(program, "").expect("written");
}

#[test]
fn image_gets_unit_and_host_file_that_applies() {
    let host = InProcess::stopped();
    let root = host.dir().join("image");
    install(&root, "usr/local/bin/mps-manager");
    let name = root.display().to_string();
    let bootstrap = |more: &[&str]| {
        let mut words = vec!["bootstrap", "--concurrency", "4", "--gpus", "0,1", "--root", &name];
        words.extend(more);
        host.cli(&words)
    };
    let made = bootstrap(&["--pinned-memory-limit", "0=2G,1=4G"]);
    assert!(made.status.success(), "{}", stderr_of(&made));
    let printed = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(printed.contains("each process gets 25 % of the threads"), "{printed}");
    assert!(printed.contains("mps-manager run --tenant gpu1 -- COMMAND"), "{printed}");
    let drop_in = text(&root.join("etc/systemd/system/mps-manager.service.d/50-host-file.conf"));
    assert!(
        drop_in.ends_with(
            "\nExecStart=\nExecStart=/usr/local/bin/mps-manager serve --apply /etc/mps-manager/host.yaml\n"
        ),
        "{drop_in}"
    );
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/mps-manager.service");
    assert_eq!(fs::read_link(wanted).expect("enabled"), Path::new("/etc/systemd/system/mps-manager.service"));
    assert!(text(&root.join(UNIT)).contains("\nExecStart=/usr/local/bin/mps-manager serve\n"));
    let file = root.join("etc/mps-manager/host.yaml");
    let applied = host.cli(&["diff", "-f", &file.display().to_string(), "-o", "name"]);
    assert_eq!(applied.status.code(), Some(1), "{}", stderr_of(&applied));
    let names = String::from_utf8_lossy(&applied.stdout).into_owned();
    assert!(names.contains("tenant/gpu0") && names.contains("tenant/gpu1"), "{names}");

    let before = text(&file);
    let again = bootstrap(&["--pinned-memory-limit", "0=2G,1=4G"]);
    assert!(again.status.success() && text(&file) == before, "{}", stderr_of(&again));
    let other = bootstrap(&[]);
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr_of(&other).contains("says otherwise, so nothing was written"), "{}", stderr_of(&other));
    assert_eq!(text(&file), before);
    let forced = bootstrap(&["--force"]);
    assert!(forced.status.success() && text(&file) != before, "{}", stderr_of(&forced));
}

#[test]
fn unit_of_image_starts_program_of_image() {
    let host = InProcess::stopped();
    let root = host.dir().join("image");
    let name = root.display().to_string();
    let words = ["bootstrap", "--concurrency", "4", "--gpus", "0", "--root", &name];
    let refused = host.cli(&words);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr_of(&refused).contains("install the program there first"), "{}", stderr_of(&refused));
    assert!(!root.exists(), "something was written");
    install(&root, "usr/bin/mps-manager");
    let made = host.cli(&words);
    assert!(made.status.success(), "{}", stderr_of(&made));
    assert!(text(&root.join(UNIT)).contains("\nExecStart=/usr/bin/mps-manager serve\n"));
}

#[test]
fn unreadable_or_unnamed_host_file_is_refused() {
    let host = InProcess::stopped();
    let root = host.dir().join("image");
    install(&root, "usr/local/bin/mps-manager");
    let name = root.display().to_string();
    let bootstrap = |more: &[&str]| {
        let mut words = vec!["bootstrap", "--concurrency", "4", "--gpus", "0", "--root", &name];
        words.extend(more);
        host.cli(&words)
    };
    let unnamed = bootstrap(&["--host-file", "/etc/mps manager/100%.yaml"]);
    assert_eq!(unnamed.status.code(), Some(2));
    assert!(
        stderr_of(&unnamed).contains("/etc/mps manager/100%.yaml cannot stand in a unit"),
        "{}",
        stderr_of(&unnamed)
    );
    assert!(!root.join("etc").exists(), "something was written");

    let file = root.join("etc/mps-manager/host.yaml");
    let latin = b"version: v1 # f\xfcr";
    fs::create_dir_all(file.parent().expect("a directory")).expect("made");
    fs::write(&file, latin).expect("written");
    let unread = bootstrap(&[]);
    assert_eq!(unread.status.code(), Some(2));
    assert!(stderr_of(&unread).contains("cannot be read"), "{}", stderr_of(&unread));
    assert_eq!(fs::read(&file).expect("there"), latin);
    assert!(!root.join("etc/systemd").exists(), "something was written");
    let forced = bootstrap(&["--force"]);
    assert!(forced.status.success() && text(&file).contains("gpu0"), "{}", stderr_of(&forced));
}

#[test]
fn cloud_init_example_bootstraps() {
    let host = InProcess::stopped();
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cloud-init.yaml");
    let example: serde_json::Value = serde_saphyr::from_str(&text(&example)).expect("YAML");
    let commands = example["runcmd"].as_array().expect("commands");
    let words = |command: &serde_json::Value| -> Vec<String> {
        command
            .as_array()
            .expect("words")
            .iter()
            .map(|word| word.as_str().expect("text").to_owned())
            .collect()
    };
    let ours = commands.iter().map(words).find(|words| words[0] == "mps-manager").expect("a command of ours");
    let root = host.dir().join("image");
    install(&root, "usr/bin/mps-manager");
    let image = root.display().to_string();
    let mut words: Vec<&str> = ours.iter().skip(1).map(String::as_str).collect();
    words.extend(["--gpus", "0", "--root", &image]);
    let made = host.cli(&words);
    assert!(made.status.success(), "{}", stderr_of(&made));
}

#[test]
fn links_out_of_an_image_are_refused() {
    let host = InProcess::stopped();
    let outside = host.dir().join("outside");
    let absolute = outside.display().to_string();
    for (number, (link, target)) in [
        ("etc/systemd", absolute.as_str()),
        ("etc/mps-manager", &absolute),
        ("etc/systemd/system/mps-manager.service.d", &absolute),
        ("etc/systemd/system/multi-user.target.wants", &absolute),
        ("etc/mps-manager", "../../outside"),
        ("etc/systemd", "/nowhere/at/all"),
        ("etc", &absolute),
    ]
    .into_iter()
    .enumerate()
    {
        let root = host.dir().join(format!("image{number}"));
        fs::create_dir_all(&outside).expect("made");
        install(&root, "usr/bin/mps-manager");
        let place = root.join(link);
        fs::create_dir_all(place.parent().expect("a directory")).expect("made");
        symlink(target, &place).expect("a link");
        let image = root.display().to_string();
        let refused = host.cli(&["bootstrap", "--concurrency", "2", "--gpus", "0", "--root", &image]);
        assert_eq!(refused.status.code(), Some(2), "{link}: {}", stderr_of(&refused));
        assert!(
            stderr_of(&refused).contains(&format!("{} leads out of {image}", place.display())),
            "{}",
            stderr_of(&refused)
        );
        assert_eq!(fs::read_dir(&outside).expect("there").count(), 0, "{link} -> {target}");
        assert!(!root.join("etc/mps-manager/host.yaml").exists(), "something was written");
    }
}

#[test]
fn links_inside_an_image_are_followed() {
    let host = InProcess::stopped();
    let (root, outside) = (host.dir().join("image"), host.dir().join("outside"));
    install(&root, "usr/bin/mps-manager");
    fs::create_dir_all(root.join("srv/mps")).expect("made");
    fs::create_dir_all(root.join("etc")).expect("made");
    symlink("../srv/mps", root.join("etc/mps-manager")).expect("a link");
    // What an earlier attempt left is no way out either.
    symlink(&outside, root.join("srv/mps/host.new")).expect("a link");
    // The image may be named by a link of the host.
    let name = host.dir().join("name");
    symlink(&root, &name).expect("a link");
    let image = name.display().to_string();
    let made = host.cli(&["bootstrap", "--concurrency", "2", "--gpus", "0", "--root", &image]);
    assert!(made.status.success(), "{}", stderr_of(&made));
    assert!(text(&root.join("srv/mps/host.yaml")).contains("gpu0"));
    let wanted = root.join("etc/systemd/system/multi-user.target.wants/mps-manager.service");
    assert_eq!(fs::read_link(wanted).expect("enabled"), Path::new("/etc/systemd/system/mps-manager.service"));
    assert!(!outside.exists(), "a link was followed out of the image");
}
