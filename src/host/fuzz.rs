//! Files of /proc at volume: a process chooses its name, its command line and its environment.
#![allow(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "what a program prints reads best as one format"
)]

use super::container::container_in;
use super::machine_id_in;
use super::mounts::Mount;
use super::process::{entries, numbers, open_files_limit, parse_stat, words};
use super::systemd::version_in;
use crate::fuzz::{Inputs, values};
use proptest::prelude::*;

fn of_this_process(file: &str) -> Vec<u8> {
    std::fs::read(format!("/proc/self/{file}")).expect("readable")
}

#[test]
fn stats() {
    let own = of_this_process("stat");
    let samples =
        [&own[..], b"588 (nvidia-cuda-mps) S 1 588 588 0 -1 4 1 0 0 0 0 0 0 0 20 0 3 0 4711 1 99 1\n"];
    Inputs::new(samples, &["(", ")", " ", "S", "Z", "588", "-1"]).check(|text| parse_stat(text).is_some());
}

#[test]
fn a_name_changes_nothing_of_a_stat() {
    let bare =
        parse_stat(b"588 (x) S 1 588 589 0 -1 4 1 0 0 0 0 0 0 0 20 0 3 0 4711 1 99 1\n").expect("a stat");
    values(proptest::collection::vec(any::<u8>(), 0..=16), |name| {
        let tail = b") S 1 588 589 0 -1 4 1 0 0 0 0 0 0 0 20 0 3 0 4711 1 99 1\n";
        let text = [b"588 (", &name[..], tail].concat();
        assert_eq!(parse_stat(&text).as_ref(), Some(&bare));
    });
}

#[test]
fn limits_and_users() {
    let samples = [of_this_process("limits"), of_this_process("status")];
    Inputs::new(samples, &["Max open files", "unlimited", "Uid:", "\t", "\n"]).check_text(|text| {
        let limit = open_files_limit(text);
        numbers(text, "Uid:").is_some_and(|mut uids| uids.next().is_some()) || limit.is_some()
    });
}

#[test]
fn cgroups_of_containers() {
    let id = "0123456789abcdef".repeat(4);
    let samples = [format!("4:memory:/libpod_parent/libpod-{id}\n"), format!("0::/docker-{id}.scope\n")];
    Inputs::new(samples, &[":", "/", "-", ".scope", "\n", "0"])
        .check_text(|text| container_in(text).is_some());
}

#[test]
fn mounts_of_containers() {
    let samples = [
        &b"1234 1200 0:25 /mps-manager/tenants/0123456789 /run/a\\040b ro,relatime - tmpfs tmpfs rw"[..],
        b"22 27 0:21 / /proc rw,relatime - proc proc rw",
    ];
    Inputs::new(samples, &[" ", "/", "\\", "\\040", "\\777", "0:25", "-"])
        .check(|line| Mount::parse(line).is_some());
}

#[test]
fn command_lines_and_environments() {
    let samples =
        [&of_this_process("cmdline")[..], b"A=1\0B=two words\0C=\0=\0\0D", b"nvidia-cuda-mps-control\0-d\0"];
    Inputs::new(samples, &["\0", "=", "A", "CUDA_MPS_PIPE_DIRECTORY="]).check(|text| {
        let arguments = words(text);
        let listed = entries(text);
        assert!(arguments.iter().map(String::len).sum::<usize>() <= 3 * text.len());
        assert!(
            listed.iter().map(|(key, value)| key.len() + value.len() + 1).sum::<usize>() <= text.len() + 1
        );
        !listed.is_empty()
    });
}

#[test]
fn process_arguments_and_environment_are_read_back() {
    let word = "[^\0=]{0,20}x";
    values(proptest::collection::vec((word, word), 0..6), |pairs| {
        let environ: String = pairs.iter().map(|(key, value)| format!("{key}={value}\0")).collect();
        let read = entries(environ.as_bytes());
        assert!(
            read.iter()
                .map(|(key, value)| (key.to_str(), value.to_str()))
                .eq(pairs.iter().map(|(key, value)| (Some(key.as_str()), Some(value.as_str()))))
        );
        let line: String = pairs.iter().map(|(word, _)| format!("{word}\0")).collect();
        assert!(words(line.as_bytes()).iter().eq(pairs.iter().map(|(word, _)| word)));
    });
}

#[test]
fn host_ids_and_versions() {
    let samples =
        ["0123456789abcdef0123456789abcdef\n", "uninitialized\n", "systemd 252 (252.38-1~deb12u1)\n+PAM\n"];
    Inputs::new(samples, &["\n", "systemd ", "257~rc1"]).check_text(|text| {
        let id = machine_id_in(text);
        assert!(id.as_ref().is_none_or(|id| id.len() == 32));
        id.is_some() || version_in(text).is_some()
    });
}
