//! Processes of a host: found by its directory in their environment, signalled, and reaped.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use mps_manager::host::Identity;
use mps_manager::host::process;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, waitpid};

pub(crate) fn raw(pid: u32) -> Pid {
    i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a PID")
}

/// A process, if it lives and has this directory in its environment. The identity is taken before and compared after:
/// in between, the PID could have changed hands. Most have not, which a first look at the environment shows.
pub(crate) fn of_directory(pid: u32, directory: &Path) -> Option<Identity> {
    let needle = directory.as_os_str().as_encoded_bytes();
    let is_marked = || {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(needle.len()).any(|part| part == needle)
    };
    let id = is_marked().then(|| process::identify(pid))??;
    (is_marked() && process::is_alive(id)).then_some(id)
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

/// State, parent, group and session of a process.
pub(crate) fn fields(pid: u32) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_ascii_whitespace().take(4).map(str::to_owned).collect())
}

pub(crate) fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").expect("/proc is there");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Kills and reaps every process that has this directory in its environment, until there is none.
pub(crate) fn end_all(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let others = all().filter(|pid| *pid != std::process::id());
        let mine: Vec<Identity> = others.filter_map(|pid| of_directory(pid, directory)).collect();
        for id in &mine {
            send(*id, Signal::KILL);
        }
        // To look through all processes takes longer than most need to end. Those that are no children of this process are reaped by their
        // parents, or come to us next time.
        for id in &mine {
            while process::is_alive(*id) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = waitpid(Some(raw(id.pid)), WaitOptions::NOHANG);
        }
        if mine.is_empty() || Instant::now() > deadline {
            break;
        }
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
