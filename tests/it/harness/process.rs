//! Processes of a test: found by its directory in their environment, signalled, and reaped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use mps_manager::host::Identity;
use mps_manager::host::process;
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, set_child_subreaper, waitpid,
};

/// Makes orphans come to this process.
pub(super) fn become_subreaper() {
    set_child_subreaper(Some(Pid::INIT)).expect("any process may be a subreaper");
}

pub(super) fn raw(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a PID")
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

/// The directories of this test's hosts: what belongs to it has one of them in its environment.
static DIRECTORIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Makes processes with this directory in their environment ones of this test.
pub(super) fn own(directory: &Path) {
    DIRECTORIES.lock().expect("unpoisoned").push(directory.to_owned());
}

/// A process, if it lives and has this directory in its environment. The identity is taken before and compared after:
/// in between, the PID could have changed hands.
fn of_directory(pid: u32, directory: &Path) -> Option<Identity> {
    let id = process::identify(pid)?;
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let needle = directory.as_os_str().as_encoded_bytes();
    let marked = environment.windows(needle.len()).any(|part| part == needle);
    (marked && process::is_alive(id)).then_some(id)
}

/// Sends a signal to that very process; false when it is gone. The program's own function would refuse most of these.
pub(crate) fn send(id: Identity, signal: Signal) -> bool {
    let pidfd = match pidfd_open(raw(id.pid), PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return false,
        Err(error) => panic!("process {id} cannot be opened: {error}"),
    };
    if !process::is_alive(id) {
        return false;
    }
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) => true,
        Err(Errno::SRCH) => false,
        Err(error) => panic!("process {id} cannot be signalled: {error}"),
    }
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

/// State, parent, group and session of a process.
fn fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().take(4).map(str::to_owned).collect())
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

fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is there");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Kills and reaps every process that has this directory in its environment, until there is none.
pub(super) fn end_all(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let others = all().filter(|pid| *pid != std::process::id());
        let mine: Vec<Identity> = others.filter_map(|pid| of_directory(pid, directory)).collect();
        for id in &mine {
            send(*id, Signal::KILL);
        }
        for id in &mine {
            // Those that are no children of this process are reaped by their parents, or come to us next time.
            let _ = waitpid(Some(raw(id.pid)), WaitOptions::NOHANG);
        }
        if mine.is_empty() || Instant::now() > deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    reap_orphans();
}

/// Reaps daemons, servers and control programs that died during the test.
///
/// Orphans come to the first thread of this process. What a test or a manager in this process has started itself is a child of
/// the thread that started it, and is left to be waited for there.
pub(crate) fn reap_orphans() {
    let me = std::process::id();
    let orphans = fs::read_to_string(format!("/proc/{me}/task/{me}/children")).unwrap_or_default();
    for pid in orphans.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()) {
        let group = fields(me).map(|fields| fields[2].clone());
        let is_dead =
            fields(pid).is_some_and(|fields| fields[0] == "Z" && Some(&fields[2]) != group.as_ref());
        if is_dead {
            let _ = waitpid(Some(raw(pid)), WaitOptions::NOHANG);
        }
    }
}
