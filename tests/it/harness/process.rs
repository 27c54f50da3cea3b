//! Processes of a test: signalled, and read.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex};

use rustix::process::{Pid, Signal, set_child_subreaper};

use crate::host::process::{all, fields, of_directory, send};

/// Makes orphans come to this process.
pub(super) fn become_subreaper() {
    set_child_subreaper(Some(Pid::INIT)).expect("any process may be a subreaper");
}

/// Tests that keep a whole machine busy, of which few may run at once.
static HEAVY: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());
/// How many of them.
const HEAVY_AT_ONCE: usize = 1;

/// A heavy test's turn.
pub(crate) struct Turn(());

/// Waits until a heavy test may run.
pub(crate) fn heavy() -> Turn {
    let (running, ended) = &HEAVY;
    let running = running.lock().expect("unpoisoned");
    *ended.wait_while(running, |running| *running >= HEAVY_AT_ONCE).expect("unpoisoned") += 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *HEAVY.0.lock().expect("unpoisoned") -= 1;
        HEAVY.1.notify_one();
    }
}

/// Sets a flag when it goes, also in a panic: threads that run until then would keep their scope open forever.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The directories of this test's hosts: what belongs to it has one of them in its environment.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes processes with this directory in their environment ones of this test.
pub(super) fn own(directory: &Path) {
    DIRECTORIES.lock().expect("unpoisoned").push(directory.to_owned());
}

/// Sends a signal to a process of this test, which may be gone; never to another one that has its PID by now.
pub(crate) fn signal_if_there(pid: u32, signal: Signal) -> bool {
    let directories = DIRECTORIES.lock().expect("unpoisoned").clone();
    let id = directories.iter().find_map(|directory| of_directory(pid, directory));
    id.is_some_and(|id| send(id, signal))
}

/// Sends a signal to a process of this test that lives.
pub(crate) fn signal(pid: u32, signal: Signal) {
    assert!(signal_if_there(pid, signal), "process {pid} is gone, or none of this test");
}

/// Whether a process lives; a zombie does not.
pub(crate) fn is_alive(pid: u32) -> bool {
    fields(pid).is_some_and(|fields| fields[0] != "Z" && fields[0] != "X")
}

/// What runs on a host: PID, state, parent, group, session and command line of each process, one in a line.
pub(super) fn listing(directory: &Path) -> String {
    let line = |pid: u32| {
        of_directory(pid, directory)?;
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        Some(format!("{pid} {} {}\n", fields(pid)?.join(" "), command.replace('\0', " ")))
    };
    all().filter_map(line).collect()
}

/// One variable of a process's environment.
pub(crate) fn environment(pid: u32, name: &str) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let entries = String::from_utf8_lossy(&bytes);
    entries.split('\0').find_map(|entry| entry.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
}

/// Every living process that was started with this value of a variable.
pub(crate) fn processes_with(name: &str, value: &Path) -> Vec<u32> {
    let is_it = |pid: &u32| environment(*pid, name).is_some_and(|found| Path::new(&found) == value);
    all().filter(is_it).filter(|pid| is_alive(*pid)).collect()
}

/// The words of a process's command line.
pub(crate) fn command_line(pid: u32) -> Vec<String> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}
