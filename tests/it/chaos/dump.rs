//! How all processes of a host stand, for the one who has to find out why something never happened.

use std::fs;
use std::path::Path;

use crate::harness::{Host, command_line, processes_with};

/// How much of the end of a log is shown.
const TAIL: usize = 3000;

/// Writes the state of each process of the host, and the ends of the daemons' logs and of the manager's.
pub(super) fn dump(host: &Host) {
    let mut pids = processes_with("MPS_SIM_WORLD", &host.runtime("sim"));
    pids.extend(processes_with("MPS_TEST_DIRECTORY", host.dir()));
    pids.sort_unstable();
    pids.dedup();
    eprintln!("--- the processes ---");
    for pid in pids {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let stat = read("stat");
        let state: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace().take(2).collect();
        let files = fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let wchan = read("wchan");
        eprintln!("{pid} {state:?} in {wchan}, {files} files open: {:?}", command_line(pid));
    }
    let homes = [host.runtime("daemons"), host.dir().join("f")];
    for daemon in homes.iter().flat_map(|homes| fs::read_dir(homes).into_iter().flatten().flatten()) {
        for log in ["control.log", "server.log"] {
            show(&daemon.path().join("log").join(log));
        }
    }
    show(&host.dir().join("manager.log"));
}

fn show(log: &Path) {
    let text = fs::read_to_string(log).unwrap_or_default();
    let from = text.floor_char_boundary(text.len().saturating_sub(TAIL));
    eprintln!("--- the end of {} ---\n{}", log.display(), &text[from..]);
}
