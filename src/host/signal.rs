//! The one place that sends signals.
//!
//! Invariants:
//!
//! - Nothing else in this program sends a signal; a test searches the sources for it.
//! - A process is held by a pidfd before its start time is compared, so a signal never reaches a later process of
//!   that PID.
//! - Every call states its [`SignalReason`]. A process that was started outside this manager is signalled only as a client, and as a
//!   client never this process, a control daemon, an MPS server, PID 1 or a kernel thread, whatever a caller, a
//!   database or a daemon's list says. MPS programs are recognized by their file, since anybody chooses the name that
//!   a program is called by.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, geteuid, getpgid, kill_process_group, pidfd_open, pidfd_send_signal,
};
use tokio::process::Child;

use super::Identity;
use super::process::{command, is_alive, is_kernel_thread};

/// Name of the control program, which is client and daemon in one.
pub const CONTROL: &str = "nvidia-cuda-mps-control";
/// Name of the server program, which a control daemon starts by itself.
pub const SERVER: &str = "nvidia-cuda-mps-server";
/// The variable that names the simulated host of a process.
pub const WORLD_ENV: &str = "MPS_SIM_WORLD";

/// Reason for which a process may be signalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SignalReason {
    /// MPS lists it as a client of the daemon that is to be emptied.
    ListedClient,
    /// `mps-manager run` became it under a lease of the tenant.
    RanUnderLease,
    /// It is a control daemon that this manager owns.
    ControlDaemon,
    /// It is an MPS server of a daemon that this manager owns.
    Server,
    /// A start of a control daemon left it behind: it carries the token of that start, which nothing had before.
    FailedStart,
    /// This process started it and has not reaped it.
    OwnChild,
    /// It plays a program of a simulated host that is being ended.
    SimulatedProgram,
    /// It is the manager of a simulated host that is being ended.
    SimulatedManager,
}

impl SignalReason {
    /// Returns true if the process is another program's, so that it must be checked before it is signalled.
    pub const fn is_client(self) -> bool {
        matches!(self, Self::ListedClient | Self::RanUnderLease)
    }
}

/// Kind of process that is not signalled on the stated grounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protected {
    /// This process.
    Manager,
    /// The first process of this PID namespace.
    Init,
    /// A thread of the kernel.
    KernelThread,
    /// It runs the control program: a control daemon, or a caller of one.
    ControlProgram,
    /// It runs the server program.
    Server,
    /// It runs another program than the grounds say.
    AnotherProgram,
    /// This process did not start it.
    NoChild,
}

impl fmt::Display for Protected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Manager => "the manager itself",
            Self::Init => "PID 1",
            Self::KernelThread => "a kernel thread",
            Self::ControlProgram => "an MPS control daemon",
            Self::Server => "an MPS server",
            Self::AnotherProgram => "another program than was expected",
            Self::NoChild => "no child of the manager",
        })
    }
}

/// Result of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signalled {
    /// It was delivered to that very process.
    Sent,
    /// That process is gone; nothing was sent to anybody.
    Gone,
}

/// Why no signal was sent.
#[derive(Debug, thiserror::Error)]
pub enum SignalError {
    /// The process is one that must live.
    #[error("process {pid} was not signalled: it is {what}")]
    Protected {
        /// The process.
        pid: u32,
        /// The kind of process.
        what: Protected,
    },
    /// The system refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Target of a signal.
#[derive(Debug)]
pub enum SignalTarget<'a> {
    /// One process.
    Process(Identity),
    /// A child of this process that was not reaped, with the process group that it leads: a program may be a wrapper that runs another.
    GroupOf(&'a Child),
}

impl From<Identity> for SignalTarget<'_> {
    fn from(id: Identity) -> Self {
        Self::Process(id)
    }
}

/// Sends a signal, if the grounds allow it for the process.
///
/// Where `pidfd_open` is refused, nothing is sent and the error says so.
pub fn send<'a>(
    target: impl Into<SignalTarget<'a>>,
    signal: Signal,
    grounds: SignalReason,
) -> Result<Signalled, SignalError> {
    match target.into() {
        SignalTarget::Process(id) => to_process(id, signal, grounds),
        SignalTarget::GroupOf(child) => to_group(child, signal),
    }
}

fn to_process(id: Identity, signal: Signal, grounds: SignalReason) -> Result<Signalled, SignalError> {
    let Some(pid) = raw(id.pid) else { return Ok(Signalled::Gone) };
    let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(Errno::SRCH) => return Ok(Signalled::Gone),
        Err(error) => return Err(SignalError::System(error.into())),
    };
    // From here on the pidfd holds the process that is compared.
    if !is_alive(id) {
        return Ok(Signalled::Gone);
    }
    if let Some(protection) = protected(id.pid, grounds) {
        return Err(SignalError::Protected { pid: id.pid, what: protection });
    }
    match pidfd_send_signal(pidfd, signal) {
        Ok(()) => Ok(Signalled::Sent),
        Err(Errno::SRCH) => Ok(Signalled::Gone),
        Err(error) => Err(SignalError::System(error.into())),
    }
}

/// Sends a signal to the group of a child. A child that was not reaped keeps its PID, and so does the group that it leads.
fn to_group(child: &Child, signal: Signal) -> Result<Signalled, SignalError> {
    let Some(leader) = child.id().and_then(raw) else { return Ok(Signalled::Gone) };
    // A child that was spawned without a group of its own would be in that of this process.
    if getpgid(Some(leader)) != Ok(leader) {
        let Some(id) = super::process::identify(leader.as_raw_pid().unsigned_abs()) else {
            return Ok(Signalled::Gone);
        };
        return to_process(id, signal, SignalReason::OwnChild);
    }
    match kill_process_group(leader, signal) {
        Ok(()) => Ok(Signalled::Sent),
        Err(Errno::SRCH) => Ok(Signalled::Gone),
        Err(error) => Err(SignalError::System(error.into())),
    }
}

/// Returns the kind of process that forbids a signal on these grounds; `None` if nothing forbids it.
fn protected(pid: u32, grounds: SignalReason) -> Option<Protected> {
    let never = untouchable(pid);
    if never.is_some() || grounds.is_client() {
        return never.or_else(|| mps_program(pid));
    }
    let expected = match grounds {
        SignalReason::ControlDaemon => CONTROL,
        SignalReason::Server => SERVER,
        SignalReason::SimulatedProgram => {
            let differs = !is_of_simulated_host(pid) && command(pid).is_some_and(|words| !words.is_empty());
            return differs.then_some(Protected::AnotherProgram);
        }
        SignalReason::SimulatedManager => {
            let words = command(pid).unwrap_or_default();
            let serves = words.get(1).is_none_or(|word| word == "serve");
            return (!serves).then_some(Protected::AnotherProgram);
        }
        SignalReason::OwnChild => {
            let is_child = super::process::parent(pid) == Some(std::process::id());
            return (!is_child).then_some(Protected::NoChild);
        }
        _ => return None,
    };
    // A process whose main thread has ended shows no command line.
    let differs = !runs(pid, expected) && command(pid).is_some_and(|words| !words.is_empty());
    differs.then_some(Protected::AnotherProgram)
}

/// Returns the kind of a process that can be nobody's client; `None` for every other process, which may be one.
pub fn never_a_client(pid: u32) -> Option<Protected> {
    untouchable(pid).or_else(|| mps_program(pid))
}

fn untouchable(pid: u32) -> Option<Protected> {
    if pid == std::process::id() {
        Some(Protected::Manager)
    } else if pid == 1 {
        Some(Protected::Init)
    } else if is_kernel_thread(pid) {
        Some(Protected::KernelThread)
    } else {
        None
    }
}

fn mps_program(pid: u32) -> Option<Protected> {
    if executes(pid, CONTROL) {
        Some(Protected::ControlProgram)
    } else if executes(pid, SERVER) {
        Some(Protected::Server)
    } else {
        None
    }
}

/// Returns true if a process executes the file of one of MPS's programs, however it is called. The file has that name, belongs to root or
/// to this user, and nobody else can write it; or, on a simulated host, it is this very program or the simulated programs beside it under
/// that name.
///
/// If the file of a process may not be read, its name is believed if the process is root's.
pub fn executes(pid: u32, program: &str) -> bool {
    let (Some(path), Ok(file)) = (super::process::executable(pid), fs::metadata(format!("/proc/{pid}/exe")))
    else {
        return super::process::uid(pid) == Some(0) && runs(pid, program);
    };
    // An update of the driver replaces the file under the processes that run it.
    let path = path.to_string_lossy();
    let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(&path));
    let is_trusted = file.mode() & 0o022 == 0 && [0, geteuid().as_raw()].contains(&file.uid());
    if path.file_name() == Some(OsStr::new(program)) {
        return is_trusted;
    }
    let called = command(pid).and_then(|words| words.into_iter().next()).unwrap_or_default();
    Path::new(&called).file_name() == Some(OsStr::new(program))
        && (super::process::runs_same_program(pid)
            || is_trusted && super::process::runs_simulated_programs(pid))
}

/// Returns true if a process is called like one of MPS's programs, also by a wrapper's interpreter, or executes a file of that name.
/// Anybody can arrange for both, so the caller has to know more about the process.
pub fn runs(pid: u32, program: &str) -> bool {
    let is = |path: &Path| path.file_name() == Some(OsStr::new(program));
    let words = command(pid).unwrap_or_default();
    words.iter().take(2).any(|word| is(Path::new(word)))
        || super::process::executable(pid).is_some_and(|path| is(&path))
}

/// Returns true if a process is of a simulated host: it plays one of its programs, or is one of MPS's own programs that was started in one.
/// The caller has to check which simulated host it is.
pub fn is_of_simulated_host(pid: u32) -> bool {
    let started_in_one = || super::process::variable(pid, WORLD_ENV).is_some();
    plays_simulated_program(pid) || (mps_program(pid).is_some() && started_in_one())
}

/// Returns true if a process plays one of a simulated host's programs: it is called as one of MPS's programs and executes a file of another
/// name, or is a simulated client.
fn plays_simulated_program(pid: u32) -> bool {
    let words = command(pid).unwrap_or_default();
    let name = words.first().and_then(|word| Path::new(word).file_name()).unwrap_or_default();
    let is_mps = |name: &OsStr| name == CONTROL || name == SERVER;
    let is_client =
        words.get(1).is_some_and(|word| word == "sim") && words.get(2).is_some_and(|word| word == "client");
    let executes_mps = super::process::executable(pid).is_none_or(|path| {
        let path = path.to_string_lossy();
        let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(&path));
        path.file_name().is_some_and(is_mps)
    });
    (is_client || is_mps(name)) && !executes_mps
}

fn raw(pid: u32) -> Option<Pid> {
    Pid::from_raw(i32::try_from(pid).ok()?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::super::process::identify;
    use super::*;

    const CLIENTS: [SignalReason; 2] = [SignalReason::ListedClient, SignalReason::RanUnderLease];

    fn until(condition: &str, holds: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !holds() {
            assert!(Instant::now() < deadline, "never: {condition}");
            std::thread::yield_now();
        }
    }

    /// A process that sleeps and is called by this name.
    fn called(name: &str) -> std::process::Child {
        let child = Command::new("sleep").arg0(name).arg("600").spawn().expect("sleep");
        until("it runs", || command(child.id()).is_some_and(|words| words == [name, "600"]));
        child
    }

    /// A process that executes a file of this name, with these permissions, and is called by another name.
    fn executing(directory: &Path, name: &str, mode: &str) -> std::process::Child {
        let file = directory.join(name);
        // Another process writes the file: one that this process has open for writing could not be executed.
        for (tool, words) in [("cp", ["/bin/sleep"]), ("chmod", [mode])] {
            let done = Command::new(tool).args(words).arg(&file).status().expect("it runs");
            assert!(done.success(), "{tool}");
        }
        let child = Command::new(file).arg0("worker").arg("600").spawn().expect("sleep");
        until("it runs", || command(child.id()).is_some_and(|words| words == ["worker", "600"]));
        child
    }

    fn refusal(id: Identity, grounds: SignalReason) -> Option<Protected> {
        match send(id, Signal::CONT, grounds) {
            Err(SignalError::Protected { what, .. }) => Some(what),
            Ok(Signalled::Sent) => None,
            result => panic!("{result:?}"),
        }
    }

    #[test]
    fn protected_processes_are_never_signalled_as_clients() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut daemon = executing(directory.path(), CONTROL, "755");
        let mut server = executing(directory.path(), SERVER, "555");
        let mut script = called("train.py");
        let cases = [
            (std::process::id(), Some(Protected::Manager)),
            (1, Some(Protected::Init)),
            (daemon.id(), Some(Protected::ControlProgram)),
            (server.id(), Some(Protected::Server)),
            (script.id(), None),
        ];
        for (pid, expected) in cases {
            let id = identify(pid).expect("alive");
            for grounds in CLIENTS {
                assert_eq!(refusal(id, grounds), expected, "{pid} as {grounds:?}");
            }
            assert_eq!(never_a_client(pid), expected, "{pid}");
        }
        for child in [&mut daemon, &mut server, &mut script] {
            child.kill().expect("alive until here");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn client_cannot_name_itself_an_mps_program() {
        let directory = tempfile::tempdir().expect("a directory");
        let renamed = ["/usr/bin/nvidia-cuda-mps-control", "nvidia-cuda-mps-server"].map(called);
        let writable = executing(directory.path(), SERVER, "777");
        for mut child in renamed.into_iter().chain([writable]) {
            let id = identify(child.id()).expect("alive");
            assert_eq!(never_a_client(id.pid), None);
            for grounds in CLIENTS {
                assert_eq!(refusal(id, grounds), None, "{grounds:?}");
            }
            child.kill().expect("alive until here");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn own_processes_are_compared_with_their_program() {
        let mut daemon = called("nvidia-cuda-mps-control");
        let mut server = called("nvidia-cuda-mps-server");
        let id = |child: &std::process::Child| identify(child.id()).expect("alive");
        assert_eq!(refusal(id(&daemon), SignalReason::Server), Some(Protected::AnotherProgram));
        assert_eq!(refusal(id(&server), SignalReason::ControlDaemon), Some(Protected::AnotherProgram));
        assert_eq!(refusal(id(&daemon), SignalReason::ControlDaemon), None);
        assert_eq!(refusal(id(&server), SignalReason::Server), None);
        let me = identify(std::process::id()).expect("alive");
        assert_eq!(refusal(me, SignalReason::FailedStart), Some(Protected::Manager));
        assert_eq!(refusal(id(&server), SignalReason::OwnChild), None);
        let parent = rustix::process::getppid().map(|pid| pid.as_raw_pid().unsigned_abs());
        if let Some(parent) = parent.filter(|pid| *pid > 1).and_then(identify) {
            assert_eq!(refusal(parent, SignalReason::OwnChild), Some(Protected::NoChild));
        }
        assert_eq!(refusal(id(&daemon), SignalReason::SimulatedProgram), None, "it executes `sleep`");
        assert_eq!(refusal(id(&daemon), SignalReason::SimulatedManager), Some(Protected::AnotherProgram));
        for child in [&mut daemon, &mut server] {
            child.kill().expect("alive until here");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn real_mps_programs_are_not_simulated_ones() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut real = executing(directory.path(), CONTROL, "755");
        let mut script = called("train.py");
        for child in [&mut real, &mut script] {
            let id = identify(child.id()).expect("alive");
            assert_eq!(refusal(id, SignalReason::SimulatedProgram), Some(Protected::AnotherProgram));
            child.kill().expect("alive until here");
            child.wait().expect("reaped");
        }
    }

    #[test]
    fn reused_pid_receives_no_signal() {
        let mut child = called("train.py");
        let id = identify(child.id()).expect("alive");
        let earlier = Identity { start_time: id.start_time - 1, ..id };
        let sent = send(earlier, Signal::KILL, SignalReason::ListedClient).expect("checked");
        assert_eq!((sent, is_alive(id)), (Signalled::Gone, true));
        let sent = send(id, Signal::KILL, SignalReason::ListedClient).expect("allowed");
        assert_eq!(sent, Signalled::Sent);
        until("it is dead", || !is_alive(id));
        child.wait().expect("reaped");
        let sent = send(id, Signal::KILL, SignalReason::ListedClient).expect("checked");
        assert_eq!(sent, Signalled::Gone);
    }

    #[test]
    fn thread_id_receives_no_signal() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let tid = rustix::thread::gettid().as_raw_pid().unsigned_abs();
            sender.send(tid).expect("the test waits");
            let _ = stopped.recv();
        });
        let tid = receiver.recv().expect("a thread");
        let id = identify(tid).expect("it has a stat of its own");
        let sent = send(id, Signal::CONT, SignalReason::ListedClient);
        assert!(matches!(sent, Err(SignalError::System(_)) | Ok(Signalled::Gone)), "{sent:?}");
        drop(stop);
        thread.join().expect("ended");
    }
}
