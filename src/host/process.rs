//! One process or all of them, out of `/proc`.
//!
//! Every answer may be out of date when it arrives; a signal, which must not reach another process, goes through
//! [`send`](super::signal::send), which holds the process by a pidfd while it compares.
//!
//! The files are parsed here and not by the crate `procfs`: its `Stat` and `Limits` panic on a line that ends early, its `Status` refuses a
//! name that is not UTF-8, and its `Process` opens more files than the one that is read, though every search reads all processes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::Identity;
pub use super::death::{EndProcessError, EndedBy, death, end_process, end_process_while};

/// Bound of a chain of parents, which may change while it is read; no process has as many in practice.
const ANCESTORS: usize = 32;

/// The longest name of a program that is kept, in characters: other users choose it.
const LONGEST_NAME: usize = 120;

/// The fields of `/proc/PID/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: u8,
    pub(super) parent: u32,
    pub(super) session: u32,
    pub(super) flags: u32,
    pub(super) start_time: u64,
}

fn path(pid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

/// A page, which holds most files of `/proc` whole.
const PAGE: usize = 4096;

/// Reads a file of `/proc` in one piece. The kernel states no size for it, so `fs::read` would begin with pieces of 32 bytes: eleven system
/// calls for an environment instead of four, in searches that read all processes.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let (mut bytes, mut length) = (vec![0; PAGE], 0);
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == bytes.len() {
            bytes.resize(2 * length, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Reads `/proc/PID/stat`. A command name may hold blanks and parentheses, so the fields are counted from the last `)`.
///
/// ```text
/// 588 (nvidia-cuda-mps) S 1 588 588 0 -1 …
/// ```
fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&read(&path(pid, "stat")).ok()?)
}

pub(super) fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    let text = String::from_utf8_lossy(bytes);
    let (_, rest) = text.rsplit_once(')')?;
    // The first of these is field 3.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Stat {
        state: *fields.first()?.as_bytes().first()?,
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        start_time: fields.get(19)?.parse().ok()?,
    })
}

/// Returns the stat of a process that lives: neither gone nor a zombie (`Z`, and `X` on its way out).
fn living(pid: u32) -> Option<Stat> {
    stat(pid).filter(|stat| lives(pid, stat))
}

/// Returns true if a process lives, by its stat.
///
/// The stat is that of the main thread, which is a zombie from its own end on; the process lives as long as another thread does.
fn lives(pid: u32, stat: &Stat) -> bool {
    match stat.state {
        b'X' => false,
        b'Z' => match living_threads(pid) {
            Ok(mut threads) => threads.next().is_some(),
            // As in `is_alive`: a process that cannot be read does not count as dead.
            Err(error) => !is_gone(&error),
        },
        _ => true,
    }
}

/// Returns the threads of a process that have not ended, each with its directory.
fn living_threads(pid: u32) -> io::Result<impl Iterator<Item = (PathBuf, Stat)>> {
    let threads = fs::read_dir(path(pid, "task"))?;
    Ok(threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let stat = parse_stat(&read(&thread.join("stat")).ok()?)?;
        (!matches!(stat.state, b'Z' | b'X')).then_some((thread, stat))
    }))
}

/// Returns the lasting identity of a process; `None` if it is gone or a zombie.
pub fn identify(pid: u32) -> Option<Identity> {
    living(pid).map(|stat| Identity { pid, start_time: stat.start_time })
}

/// Returns true if that very process lives; a zombie does not.
///
/// Where `/proc` cannot be read, as when this process has no file descriptor left, a process that the kernel knows by that PID counts as
/// alive: a caller that takes it for dead would start another beside it.
pub fn is_alive(id: Identity) -> bool {
    match read(&path(id.pid, "stat")) {
        Ok(bytes) => {
            parse_stat(&bytes).is_some_and(|stat| stat.start_time == id.start_time && lives(id.pid, &stat))
        }
        Err(error) => !is_gone(&error) && exists(id.pid),
    }
}

/// The flag of a task that the kernel is ending (`PF_EXITING`). It is set before the task's files are closed.
const EXITING: u32 = 0x0000_0004;

/// Returns true if that process is gone or is being ended: it still counts as alive while the kernel closes its files, which takes long for
/// those of a GPU, and a peer may already have seen its socket closed.
pub fn is_ending(id: Identity) -> bool {
    let ends = |(_, stat): (PathBuf, Stat)| stat.flags & EXITING != 0;
    !is_alive(id) || living_threads(id.pid).is_ok_and(|mut threads| threads.all(ends))
}

/// Returns true if an error of `/proc/PID/…` means that there is no such process.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOENT | Errno::SRCH))
}

fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Returns true if a process is stopped, by a signal or by a tracer.
pub fn is_stopped(pid: u32) -> bool {
    living(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// The flag of a kernel thread among the flags of a task (`PF_KTHREAD`).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// Returns true if a process is a thread of the kernel, which has no program and takes no signal.
pub fn is_kernel_thread(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.flags & KERNEL_THREAD != 0)
}

/// Returns the file that a process executes; `None` if that may not be read.
pub fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(path(pid, "exe")).ok()
}

/// Returns true if a process runs the same program as this one, from the same file.
pub fn runs_same_program(pid: u32) -> bool {
    runs_file(pid, Path::new("/proc/self/exe"))
}

fn runs_file(pid: u32, file: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    inode(&path(pid, "exe")).is_some_and(|runs| Some(runs) == inode(file))
}

/// Returns true if a process runs the simulated MPS programs that stand beside this one.
pub fn runs_simulated_programs(pid: u32) -> bool {
    std::env::current_exe().is_ok_and(|program| runs_file(pid, &program.with_file_name("simulated-mps")))
}

/// Returns true if the program that a process runs is still the file at its path, and was not replaced since; `None` if that may not be
/// read.
pub fn runs_what_is_there(pid: u32) -> Option<bool> {
    let exe = path(pid, "exe");
    let place = fs::read_link(&exe).ok()?;
    // The link in `/proc` leads to the file even if it has no name any more.
    let runs = fs::metadata(exe).ok()?;
    match fs::metadata(place) {
        Ok(is) => Some((runs.dev(), runs.ino()) == (is.dev(), is.ino())),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(false),
    }
}

/// Returns the number of files that a process has open, and its limit of them; `None` if that may not be read.
pub fn open_files(pid: u32) -> Option<(u64, u64)> {
    let open = fs::read_dir(path(pid, "fd")).ok()?.count();
    let limit = open_files_limit(&fs::read_to_string(path(pid, "limits")).ok()?)?;
    Some((u64::try_from(open).ok()?, limit))
}

/// Reads the soft limit on open files from `/proc/PID/limits`; `unlimited` becomes the largest number.
pub(super) fn open_files_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some(line.split_ascii_whitespace().next()?.parse().unwrap_or(u64::MAX))
}

/// Finds every living process whose command line satisfies `wanted`.
pub fn find_by_command(wanted: impl Fn(&[String]) -> bool) -> Vec<Identity> {
    all().filter(|pid| command(*pid).is_some_and(|words| wanted(&words))).filter_map(identify).collect()
}

/// Returns the real uid of a process.
pub fn uid(pid: u32) -> Option<u32> {
    numbers(&status(pid)?, "Uid:")?.next()
}

/// Returns the process that a thread belongs to; for the main thread it has the same number.
pub fn thread_group(tid: u32) -> Option<u32> {
    numbers(&status(tid)?, "Tgid:")?.next()
}

/// Returns the effective user of a process, and its supplementary groups.
pub fn groups(pid: u32) -> Option<(u32, Vec<u32>)> {
    let status = status(pid)?;
    Some((numbers(&status, "Uid:")?.nth(1)?, numbers(&status, "Groups:")?.collect()))
}

/// Reads `/proc/PID/status`, whose line `Name:` may hold any bytes.
fn status(pid: u32) -> Option<String> {
    Some(String::from_utf8_lossy(&read(&path(pid, "status")).ok()?).into_owned())
}

/// Returns the numbers in a line of `/proc/PID/status`.
pub(super) fn numbers<'s>(status: &'s str, line: &str) -> Option<impl Iterator<Item = u32> + use<'s>> {
    let words = status.lines().find_map(|text| text.strip_prefix(line))?.split_ascii_whitespace();
    Some(words.filter_map(|word| word.parse().ok()))
}

/// Returns the parent of a living process.
pub fn parent(pid: u32) -> Option<u32> {
    living(pid).map(|stat| stat.parent)
}

/// Returns the parents of a living process, its own first, without the one that adopts all orphans, and 32 at most.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(parent(pid), |pid| parent(*pid)).take_while(|pid| *pid > 1).take(ANCESTORS)
}

/// Returns the session of a living process, as the PID of the process that began it.
pub fn session(pid: u32) -> Option<u32> {
    living(pid).map(|stat| stat.session)
}

/// Returns true if a process lives and leads a session of its own, as a daemon does and its starter does not.
pub fn leads_session(pid: u32) -> bool {
    session(pid) == Some(pid)
}

/// Returns the living children of a process.
pub fn children(pid: u32) -> Vec<Identity> {
    all()
        .filter_map(|child| {
            let stat = living(child)?;
            (stat.parent == pid).then_some(Identity { pid: child, start_time: stat.start_time })
        })
        .collect()
}

/// Returns the command line of a process; `None` if it is gone, empty for a kernel thread or a zombie.
///
/// Bytes that are no UTF-8 are shown as U+FFFD.
pub fn command(pid: u32) -> Option<Vec<String>> {
    Some(words(&read(&path(pid, "cmdline")).ok()?))
}

/// Returns the name of the program that a process runs, as it was called, without its directory.
pub fn program(pid: u32) -> Option<String> {
    program_name(command(pid)?.first()?)
}

/// Returns the name of a program from a command line, without its directory and its arguments, which may be confidential.
pub fn program_name(called: &str) -> Option<String> {
    let name = called.rsplit('/').next().filter(|name| !name.is_empty())?;
    // Messages contain it beside commands that users copy, so it gets no special characters.
    let plain = |char: char| if char.is_alphanumeric() || "._+-@[]:".contains(char) { char } else { '?' };
    Some(name.chars().take(LONGEST_NAME).map(plain).collect())
}

/// Returns the name of the program of a command line.
pub fn program_of(command: &str) -> Option<String> {
    command.split_whitespace().next().and_then(program_name)
}

/// Splits `/proc/PID/cmdline` into words, each ended by a NUL.
pub(super) fn words(bytes: &[u8]) -> Vec<String> {
    let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// Returns the environment that a process was started with; `None` if it is gone or may not be read.
///
/// Variables that the process sets later with `setenv` are not in it (FACTS.md, "Limits: what holds and what leaks").
pub fn environ(pid: u32) -> Option<Vec<(OsString, OsString)>> {
    Some(entries(&environ_bytes(pid)?))
}

/// Splits `/proc/PID/environ` into entries, each ended by a NUL; an entry without `=` is no variable.
pub(super) fn entries(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let entries = bytes.split(|b| *b == 0).filter_map(|entry| {
        let equals = entry.iter().position(|b| *b == b'=')?;
        let (key, value) = (&entry[..equals], &entry[equals + 1..]);
        Some((OsString::from_vec(key.to_vec()), OsString::from_vec(value.to_vec())))
    });
    entries.collect()
}

/// Reads the bytes of an environment from `/proc`, which shows none for a main thread that has ended: the other threads have the same.
fn environ_bytes(pid: u32) -> Option<Vec<u8>> {
    let own = read(&path(pid, "environ")).ok();
    if own.as_ref().is_some_and(|bytes| !bytes.is_empty()) || stat(pid).is_none_or(|stat| stat.state != b'Z')
    {
        return own;
    }
    living_threads(pid).ok()?.find_map(|(thread, _)| read(&thread.join("environ")).ok()).or(own)
}

/// Returns one variable of the environment that a process was started with.
pub fn variable(pid: u32, key: &str) -> Option<OsString> {
    environ(pid)?.into_iter().find_map(|(name, value)| (name == key).then_some(value))
}

/// Returns the time at which a process started, in milliseconds of Unix time; `boot_time` is the beginning of the boot
/// ([`super::boot_time`]).
pub fn started_at(id: Identity, boot_time: i64) -> i64 {
    let hertz = procfs::ticks_per_second().max(1);
    let since_boot = id.start_time.saturating_mul(1000) / hertz;
    boot_time.saturating_add(i64::try_from(since_boot).unwrap_or(i64::MAX))
}

/// Finds every living process that was started with `key=value` in its environment.
///
/// Children inherit an environment, so the caller still has to check the command line.
pub fn find_by_env(key: &str, value: &str) -> Vec<Identity> {
    let wanted = format!("{key}={value}");
    let is_marked = |pid: &u32| {
        let environ = environ_bytes(*pid).unwrap_or_default();
        environ.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes())
    };
    let identified = |pid| {
        // The identity is read first and last: in between, the PID may be reused. Most processes do not have the variable, and need no
        // identity.
        let id = identify(pid)?;
        (is_marked(&pid) && is_alive(id)).then_some(id)
    };
    all().filter(is_marked).filter_map(identified).collect()
}

/// Finds every living process that was started with `key` in its environment, with the value.
pub fn having(key: &str) -> Vec<(Identity, OsString)> {
    let with_value = |pid| {
        // As above, first and last.
        let id = identify(pid)?;
        let value = variable(pid, key)?;
        is_alive(id).then_some((id, value))
    };
    all().filter_map(with_value).collect()
}

/// Lists the PIDs in `/proc`.
pub fn all() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::super::signal::{SignalReason, send};
    use super::*;
    use rustix::process::Signal;

    fn sleeper() -> Child {
        Command::new("sleep")
            .arg("600")
            .env_clear()
            .env("MPS_MANAGER_TEST_MARK", "a b=c")
            .stdout(Stdio::null())
            .spawn()
            .expect("sleep")
    }

    #[test]
    fn process_with_unprintable_name_has_user_and_groups() {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfename"));
        std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
        let mut child = Command::new(&program).arg("600").spawn().expect("sleep");
        executed(child.id());
        let name = fs::read(path(child.id(), "comm")).expect("a name");
        assert!(std::str::from_utf8(&name).is_err(), "{name:?}");
        assert_eq!(uid(child.id()), Some(rustix::process::geteuid().as_raw()));
        assert_eq!(groups(child.id()), groups(std::process::id()));
        assert!(groups(child.id()).is_some());
        child.kill().expect("kill");
        child.wait().expect("reaped");
    }

    #[test]
    fn process_ends_before_its_socket_is_closed() {
        use std::io::Read as _;
        for _ in 0..20 {
            let (mut own_end, childs_end) = std::os::unix::net::UnixStream::pair().expect("sockets");
            let childs_end: std::os::fd::OwnedFd = childs_end.into();
            let mut child = Command::new("sleep").arg("600").stdin(childs_end).spawn().expect("sleep");
            executed(child.id());
            let id = identify(child.id()).expect("alive");
            assert!(!is_ending(id));
            child.kill().expect("kill");
            assert_eq!(own_end.read(&mut [0]).expect("the end"), 0);
            assert!(is_ending(id));
            child.wait().expect("reaped");
            assert!(is_ending(id));
        }
    }

    #[test]
    fn stopped_process_is_recognised_and_found_by_command() {
        let mut child = sleeper();
        executed(child.id());
        let id = identify(child.id()).expect("alive");
        assert!(!is_stopped(id.pid));
        send(id, Signal::STOP, SignalReason::OwnChild).expect("allowed");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !is_stopped(id.pid) {
            assert!(Instant::now() < deadline, "SIGSTOP did nothing");
            std::thread::yield_now();
        }
        let (open, limit) = open_files(id.pid).expect("our own child");
        assert!((1..100).contains(&open) && limit > open, "{open} of {limit}");
        assert!(find_by_command(|words| words == ["sleep", "600"]).contains(&id));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!(!is_alive(id) && !is_stopped(id.pid));
        assert!(exists(std::process::id()) && !exists(id.pid));
    }

    /// Waits until a child executes `sleep`: between fork and exec it still shows its parent's command line, and `setsid` its own.
    fn executed(pid: u32) {
        let sleeps = |words: &Vec<String>| matches!(words.as_slice(), [_, seconds] if seconds == "600");
        let deadline = Instant::now() + Duration::from_secs(30);
        while !command(pid).as_ref().is_some_and(sleeps) {
            assert!(Instant::now() < deadline, "sleep never ran");
            std::thread::yield_now();
        }
    }

    #[test]
    fn this_process_is_described() {
        let me = std::process::id();
        let id = identify(me).expect("alive");
        assert!(is_alive(id));
        assert!(!is_alive(Identity { start_time: id.start_time + 1, ..id }));
        assert_eq!(uid(me), Some(rustix::process::getuid().as_raw()));
        assert_eq!(parent(me), rustix::process::getppid().map(|pid| pid.as_raw_pid().unsigned_abs()));
        let started = started_at(id, super::super::boot_time());
        let now = jiff::Timestamp::now().as_millisecond();
        assert!(started <= now + 100 && started > now - 86_400_000, "{started} against {now}");
    }

    #[test]
    fn start_is_known_to_a_few_ticks() {
        let before = jiff::Timestamp::now().as_millisecond();
        let mut child = sleeper();
        let id = identify(child.id()).expect("alive");
        let after = jiff::Timestamp::now().as_millisecond();
        let started = started_at(id, super::super::boot_time());
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert!((before - 30..=after + 30).contains(&started), "{started} is not in {before}..={after}");
    }

    #[test]
    fn session_leader_is_recognised() {
        // Not checked of this process: the process that began its session can be outside this PID namespace, and is 0 then.
        let mut child = Command::new("setsid").args(["sleep", "600"]).spawn().expect("setsid");
        executed(child.id());
        assert_eq!(session(child.id()), Some(child.id()));
        assert!(leads_session(child.id()));
        child.kill().expect("killed");
        child.wait().expect("reaped");
        assert_eq!(session(child.id()), None);
    }

    #[test]
    fn child_is_found_by_environment_while_alive() {
        let mut child = sleeper();
        executed(child.id());
        let id = identify(child.id()).expect("alive");
        assert_eq!(
            environ(child.id()).expect("environ"),
            [("MPS_MANAGER_TEST_MARK".into(), "a b=c".into())] as [(OsString, OsString); 1]
        );
        assert!(find_by_env("MPS_MANAGER_TEST_MARK", "a b=c").contains(&id));
        assert!(find_by_env("MPS_MANAGER_TEST_MARK", "a b").is_empty());
        assert!(children(std::process::id()).contains(&id));

        child.kill().expect("killed");
        let deadline = Instant::now() + Duration::from_secs(30);
        while is_alive(id) {
            assert!(Instant::now() < deadline, "sleep outlived SIGKILL");
            std::thread::yield_now();
        }
        // Not reaped yet: a zombie, which is dead.
        assert!(stat(child.id()).is_some_and(|stat| stat.state == b'Z'));
        assert!(!is_alive(id));
        child.wait().expect("reaped");
        assert_eq!(identify(id.pid), None);
    }
}
