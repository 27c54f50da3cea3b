//! One process or all of them, out of `/proc`.
//!
//! Every answer may be out of date when it arrives; what must not hit a stranger goes through
//! [`send`](super::signal::send), which holds the process by a pidfd while it compares.
//!
//! The files are parsed here and not by the crate `procfs`, whose `Stat` and `Limits` panic on a line that ends early, whose
//! `Status` refuses a name that is no UTF-8, and whose `Process` opens more files than the one that is read: all processes are
//! read whenever one is looked for.

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

/// More parents than any process has in practice: a bound for what is read of a chain that changes meanwhile.
const ANCESTORS: usize = 32;

/// The longest name of a program that is kept, in characters: it is other people's to choose.
const LONGEST_NAME: usize = 120;

/// The fields of `/proc/PID/stat` that are of use here.
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

/// A file of `/proc` in one piece. The kernel states no size for it, so `fs::read` takes pieces that begin with 32 bytes: eleven system
/// calls for an environment instead of four, and all processes are read whenever one is looked for.
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

/// Reads `/proc/PID/stat`. A command name may hold blanks and parentheses, so the fields are counted from the
/// last `)`.
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

/// The stat of a process that lives: neither gone nor a zombie (`Z`, and `X` on its way out).
fn living(pid: u32) -> Option<Stat> {
    stat(pid).filter(|stat| lives(pid, stat))
}

/// Whether a process lives, by its stat.
///
/// That is of its main thread, which is a zombie from its own end on, and the process lives as long as another thread does.
fn lives(pid: u32, stat: &Stat) -> bool {
    match stat.state {
        b'X' => false,
        b'Z' => match living_threads(pid) {
            Ok(mut threads) => threads.next().is_some(),
            // As for `is_alive`: what cannot be read is not taken for dead.
            Err(error) => !is_gone(&error),
        },
        _ => true,
    }
}

/// The directories of a process's threads that have not ended.
fn living_threads(pid: u32) -> io::Result<impl Iterator<Item = PathBuf>> {
    let threads = fs::read_dir(path(pid, "task"))?;
    Ok(threads.filter_map(|thread| {
        let thread = thread.ok()?.path();
        let stat = parse_stat(&read(&thread.join("stat")).ok()?)?;
        (!matches!(stat.state, b'Z' | b'X')).then_some(thread)
    }))
}

/// Names a process for good; `None` when it is gone or a zombie.
pub fn identify(pid: u32) -> Option<Identity> {
    living(pid).map(|stat| Identity { pid, start_time: stat.start_time })
}

/// Whether that very process lives; a zombie does not.
///
/// Where `/proc` cannot be read, as when this process has no file descriptor left, a process that the kernel knows
/// by that PID counts as alive: who takes it for dead starts another beside it.
pub fn is_alive(id: Identity) -> bool {
    match read(&path(id.pid, "stat")) {
        Ok(bytes) => {
            parse_stat(&bytes).is_some_and(|stat| stat.start_time == id.start_time && lives(id.pid, &stat))
        }
        Err(error) => !is_gone(&error) && exists(id.pid),
    }
}

/// Whether an error of `/proc/PID/…` says that there is no such process.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::NOENT | Errno::SRCH))
}

fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Whether a process is stopped, by a signal or by a tracer.
pub fn is_stopped(pid: u32) -> bool {
    living(pid).is_some_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// The flag of a kernel thread among the flags of a task (`PF_KTHREAD`).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// Whether a process is a thread of the kernel, which has no program and takes no signal.
pub fn is_kernel_thread(pid: u32) -> bool {
    stat(pid).is_some_and(|stat| stat.flags & KERNEL_THREAD != 0)
}

/// The file that a process executes; `None` when that may not be read.
pub fn executable(pid: u32) -> Option<PathBuf> {
    fs::read_link(path(pid, "exe")).ok()
}

/// Whether a process runs the same program as this one, from the same file.
pub fn runs_same_program(pid: u32) -> bool {
    runs_file(pid, Path::new("/proc/self/exe"))
}

fn runs_file(pid: u32, file: &Path) -> bool {
    let inode = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
    inode(&path(pid, "exe")).is_some_and(|runs| Some(runs) == inode(file))
}

/// Whether a process runs the simulated MPS programs that stand beside this one.
pub fn runs_simulated_programs(pid: u32) -> bool {
    std::env::current_exe().is_ok_and(|program| runs_file(pid, &program.with_file_name("simulated-mps")))
}

/// Whether the program that a process runs is still the one at its place, and was not replaced since; `None` when that may
/// not be read.
pub fn runs_what_is_there(pid: u32) -> Option<bool> {
    let exe = path(pid, "exe");
    let place = fs::read_link(&exe).ok()?;
    // By way of `/proc` a file is found that has no name any more.
    let runs = fs::metadata(exe).ok()?;
    match fs::metadata(place) {
        Ok(is) => Some((runs.dev(), runs.ino()) == (is.dev(), is.ino())),
        Err(error) => (error.kind() == io::ErrorKind::NotFound).then_some(false),
    }
}

/// How many files a process has open, and how many it may have; `None` when that may not be read.
pub fn open_files(pid: u32) -> Option<(u64, u64)> {
    let open = fs::read_dir(path(pid, "fd")).ok()?.count();
    let limit = open_files_limit(&fs::read_to_string(path(pid, "limits")).ok()?)?;
    Some((u64::try_from(open).ok()?, limit))
}

/// The soft limit on open files in `/proc/PID/limits`; a word, `unlimited`, is the largest number.
pub(super) fn open_files_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    Some(line.split_ascii_whitespace().next()?.parse().unwrap_or(u64::MAX))
}

/// Every living process whose command line satisfies `wanted`.
pub fn find_by_command(wanted: impl Fn(&[String]) -> bool) -> Vec<Identity> {
    all().filter(|pid| command(*pid).is_some_and(|words| wanted(&words))).filter_map(identify).collect()
}

/// The real uid of a process.
pub fn uid(pid: u32) -> Option<u32> {
    numbers(&status(pid)?, "Uid:")?.next()
}

/// The process that a thread belongs to, which for the main thread has its number.
pub fn thread_group(tid: u32) -> Option<u32> {
    numbers(&status(tid)?, "Tgid:")?.next()
}

/// The effective user of a process, and its supplementary groups.
pub fn groups(pid: u32) -> Option<(u32, Vec<u32>)> {
    let status = status(pid)?;
    Some((numbers(&status, "Uid:")?.nth(1)?, numbers(&status, "Groups:")?.collect()))
}

/// `/proc/PID/status`, whose line `Name:` may hold any bytes.
fn status(pid: u32) -> Option<String> {
    Some(String::from_utf8_lossy(&read(&path(pid, "status")).ok()?).into_owned())
}

/// The numbers in a line of `/proc/PID/status`.
pub(super) fn numbers<'s>(status: &'s str, line: &str) -> Option<impl Iterator<Item = u32> + use<'s>> {
    let words = status.lines().find_map(|found| found.strip_prefix(line))?.split_ascii_whitespace();
    Some(words.filter_map(|word| word.parse().ok()))
}

/// The parent of a living process.
pub fn parent(pid: u32) -> Option<u32> {
    living(pid).map(|stat| stat.parent)
}

/// The parents of a living process, its own first; not the one that adopts all orphans, and 32 at most.
pub fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(parent(pid), |pid| parent(*pid)).take_while(|pid| *pid > 1).take(ANCESTORS)
}

/// The session of a living process, named by the process that began it.
pub fn session(pid: u32) -> Option<u32> {
    living(pid).map(|stat| stat.session)
}

/// Whether a process lives and leads a session of its own, as a daemon does and its starter does not.
pub fn leads_session(pid: u32) -> bool {
    session(pid) == Some(pid)
}

/// The living children of a process.
pub fn children(pid: u32) -> Vec<Identity> {
    all()
        .filter_map(|child| {
            let stat = living(child)?;
            (stat.parent == pid).then_some(Identity { pid: child, start_time: stat.start_time })
        })
        .collect()
}

/// The command line of a process; `None` when it is gone, empty for a kernel thread or a zombie.
///
/// Bytes that are no UTF-8 are shown as U+FFFD.
pub fn command(pid: u32) -> Option<Vec<String>> {
    Some(words(&read(&path(pid, "cmdline")).ok()?))
}

/// The name of the program that a process runs, as it was called, without its directory.
pub fn program(pid: u32) -> Option<String> {
    program_name(command(pid)?.first()?)
}

/// The name of a program, by how it was called: without its directory and its arguments, which may be confidential.
pub fn program_name(called: &str) -> Option<String> {
    let name = called.rsplit('/').next().filter(|name| !name.is_empty())?;
    // It stands in sentences, beside commands that are copied.
    let plain = |char: char| if char.is_alphanumeric() || "._+-@[]:".contains(char) { char } else { '?' };
    Some(name.chars().take(LONGEST_NAME).map(plain).collect())
}

/// The name of the program of a command line.
pub fn program_of(command: &str) -> Option<String> {
    command.split_whitespace().next().and_then(program_name)
}

/// The words of `/proc/PID/cmdline`, each ended by a NUL.
pub(super) fn words(bytes: &[u8]) -> Vec<String> {
    let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The environment that a process was started with; `None` when it is gone or may not be read.
///
/// What the process sets later with `setenv` is not in it (FACTS.md, "Limits: what holds and what leaks").
pub fn environ(pid: u32) -> Option<Vec<(OsString, OsString)>> {
    Some(entries(&environ_bytes(pid)?))
}

/// The entries of `/proc/PID/environ`, each ended by a NUL; one without `=` is no variable.
pub(super) fn entries(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let entries = bytes.split(|b| *b == 0).filter_map(|entry| {
        let equals = entry.iter().position(|b| *b == b'=')?;
        let (key, value) = (&entry[..equals], &entry[equals + 1..]);
        Some((OsString::from_vec(key.to_vec()), OsString::from_vec(value.to_vec())))
    });
    entries.collect()
}

/// The same as it stands in `/proc`, which shows none for a main thread that has ended: it is the other threads' too.
fn environ_bytes(pid: u32) -> Option<Vec<u8>> {
    let own = read(&path(pid, "environ")).ok();
    if own.as_ref().is_some_and(|bytes| !bytes.is_empty()) || stat(pid).is_none_or(|stat| stat.state != b'Z')
    {
        return own;
    }
    living_threads(pid).ok()?.find_map(|thread| read(&thread.join("environ")).ok()).or(own)
}

/// One variable of the environment that a process was started with.
pub fn variable(pid: u32, key: &str) -> Option<OsString> {
    environ(pid)?.into_iter().find_map(|(name, value)| (name == key).then_some(value))
}

/// When a process started, in milliseconds of Unix time, given when the boot began ([`super::boot_time`]).
pub fn started_at(id: Identity, boot_time: i64) -> i64 {
    let hertz = procfs::ticks_per_second().max(1);
    let since_boot = id.start_time.saturating_mul(1000) / hertz;
    boot_time.saturating_add(i64::try_from(since_boot).unwrap_or(i64::MAX))
}

/// Every process that lives and was started with `key=value` in its environment.
///
/// Children inherit an environment, so the caller still has to check the command line.
pub fn find_by_env(key: &str, value: &str) -> Vec<Identity> {
    let wanted = format!("{key}={value}");
    let is_marked = |pid: &u32| {
        let environ = environ_bytes(*pid).unwrap_or_default();
        environ.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes())
    };
    let identified = |pid| {
        // The identity comes first and last: in between, the PID could have changed hands. Most are not marked, and need no identity.
        let id = identify(pid)?;
        (is_marked(&pid) && is_alive(id)).then_some(id)
    };
    all().filter(is_marked).filter_map(identified).collect()
}

/// Every process that lives and was started with a value of `key` in its environment, with that value.
pub fn having(key: &str) -> Vec<(Identity, OsString)> {
    let with_value = |pid| {
        // As above, first and last.
        let id = identify(pid)?;
        let value = variable(pid, key)?;
        is_alive(id).then_some((id, value))
    };
    all().filter_map(with_value).collect()
}

/// The PIDs that `/proc` lists.
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

    /// Between fork and exec a child still shows its parent's command line, and `setsid` its own before it runs `sleep`.
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
        // Not checked of this process: who began its session can be outside this PID namespace, and is 0 then.
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
