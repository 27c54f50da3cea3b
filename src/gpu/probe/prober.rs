//! The probe as a part of the server: what a fresh CUDA process sees in an environment that is handed out.
//!
//! Each probe is one process of this program (`cuda-probe`), which starts and watches the one that uses CUDA. It becomes the user by
//! itself, with all of the user's groups. Invariants:
//! - It has the variables of the request, those that every process of this host needs, and no other of ours.
//! - An answer comes in time. A process that MPS lets wait is left waiting (the module above says why), and meanwhile no second process is
//!   sent to wait beside it: later requests get the same `timeout` at once.
//! - No more than [`AT_ONCE`] probes run at a time on this host: each takes GPU memory for its context for a moment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{answer, crash, ending};
use crate::domain::MemoryLimit;
use crate::gpu::report::{Failure, ProbeFailure, Report};
use crate::host::{Identity, process};

/// Verifications that run at a time.
const AT_ONCE: usize = 4;

/// The longest deadline of a probe.
const LONGEST: Duration = Duration::from_secs(600);

/// Time beyond its deadline in which the watching process has to report the timeout.
const GRACE: Duration = Duration::from_secs(10);

/// Time for which a process is known as a probe: it may be admitted late, but another process may get its number later.
const OWN_FOR: Duration = Duration::from_secs(660);

/// Names the directory of a daemon's sockets to its clients.
pub(super) const PIPE_ENV: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// A request for a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeRequest {
    /// The environment, as a tenant's processes are given it.
    pub variables: BTreeMap<String, String>,
    /// User of the probe; only root may choose another than itself.
    pub uid: u32,
    /// Also find the largest single allocation up to this size on each device.
    pub allocate_up_to: Option<MemoryLimit>,
    /// Time after which the wait for CUDA is given up, rounded up to whole seconds, 10 minutes at most.
    pub timeout: Duration,
}

/// Starts probe processes.
#[derive(Debug)]
pub struct Prober {
    program: PathBuf,
    base: Vec<(OsString, OsString)>,
    places: Semaphore,
    left: Mutex<Vec<WaitingProbe>>,
    own: Mutex<BTreeMap<u32, Instant>>,
}

/// A process that was left waiting at a daemon.
#[derive(Debug)]
struct WaitingProbe {
    id: Identity,
    pipe_directory: Option<String>,
    uid: u32,
}

impl Prober {
    /// Makes a prober that runs this program; `extra_env` is the environment of a simulated host's processes.
    pub fn new(extra_env: &[(OsString, OsString)]) -> Self {
        // Not the path: the file there may have been replaced since this process started.
        Self::with_program("/proc/self/exe".into(), extra_env)
    }

    /// Makes a prober that runs another binary of this program.
    pub fn with_program(program: PathBuf, extra_env: &[(OsString, OsString)]) -> Self {
        // The driver's libraries are at a place of the host's; this variable sets no limit.
        let libraries = std::env::var_os("LD_LIBRARY_PATH").map(|path| ("LD_LIBRARY_PATH".into(), path));
        let base = libraries.into_iter().chain(extra_env.iter().cloned()).collect();
        Self { program, base, places: Semaphore::new(AT_ONCE), left: Mutex::default(), own: Mutex::default() }
    }

    /// Runs one verification; returns what the client saw, or the error.
    ///
    /// A caller that stops waiting cancels nothing: the probe runs to its end.
    pub async fn see(&self, request: &ProbeRequest) -> Report {
        if let Some(waiting) = self.still_waiting(request) {
            return Report { pid: Some(waiting), ..Report::failed(not_again(waiting)) };
        }
        let timeout = request.timeout.min(LONGEST);
        let Ok(Ok(_place)) = tokio::time::timeout(timeout, self.places.acquire()).await else {
            return Report::failed(Failure::own(
                ProbeFailure::NotStarted,
                format!(
                    "{AT_ONCE} other probes of this host took all of {} s: try again",
                    timeout.as_secs_f32()
                ),
            ));
        };
        let report = self.run(self.command(request, timeout), timeout + GRACE).await;
        if let Some(failure) = &report.error
            && failure.is_timeout()
        {
            self.remember(request, report.pid);
        }
        report
    }

    fn command(&self, request: &ProbeRequest, timeout: Duration) -> Command {
        // Whole seconds, as the command line takes them.
        let seconds = timeout.as_millis().div_ceil(1000).max(1);
        let mut command = Command::new(&self.program);
        command.arg0("mps-manager").args(["cuda-probe", "--announce", "--timeout", &seconds.to_string()]);
        command.args(["--uid", &request.uid.to_string()]);
        if let Some(limit) = request.allocate_up_to {
            command.args(["--allocate-up-to", &limit.as_mps()]);
        }
        command.env_clear().envs(self.base.iter().map(|(name, value)| (name, value)));
        command.envs(&request.variables).current_dir("/").process_group(0);
        command
    }

    /// Returns true if a process is a probe of this host, or was one a short time ago.
    pub fn is_own(&self, pid: u32) -> bool {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.get(&pid).is_some_and(|since| since.elapsed() < OWN_FOR)
    }

    fn note_own(&self, pid: Option<u32>) {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.retain(|_, since| since.elapsed() < OWN_FOR);
        own.extend(pid.map(|pid| (pid, Instant::now())));
    }

    /// Returns the process that an earlier probe of the same user left waiting at the same daemon, if it still waits.
    fn still_waiting(&self, request: &ProbeRequest) -> Option<u32> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|left| process::is_alive(left.id));
        let same = |left: &&WaitingProbe| {
            left.uid == request.uid && left.pipe_directory.as_ref() == request.variables.get(PIPE_ENV)
        };
        left.iter().find(same).map(|left| left.id.pid)
    }

    fn remember(&self, request: &ProbeRequest, pid: Option<u32>) {
        // It may have been admitted meanwhile, and be gone.
        let Some(id) = pid.and_then(process::identify) else { return };
        let pipe_directory = request.variables.get(PIPE_ENV).cloned();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.push(WaitingProbe { id, pipe_directory, uid: request.uid });
    }

    /// Runs the watching process to its end, or leaves it running if it does not end in time.
    async fn run(&self, mut command: Command, timeout: Duration) -> Report {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(false);
        let until = Instant::now() + timeout;
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                return Report::failed(Failure::own(
                    ProbeFailure::NotStarted,
                    format!("the probe did not start: {error}"),
                ));
            }
        };
        self.note_own(child.id());
        let (input, mut output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        let answered = async {
            let mut printed = Vec::new();
            output.read_until(b'\n', &mut printed).await?;
            let client = String::from_utf8_lossy(&printed).trim().parse().ok();
            // Noted before it can reach a daemon, whose log shows it as a client like any other.
            self.note_own(client);
            drop(input);
            let (ended, _) = tokio::try_join!(child.wait_with_output(), output.read_to_end(&mut printed))?;
            Ok::<_, io::Error>((printed, ended))
        };
        match tokio::time::timeout_at(until, answered).await {
            Ok(Ok((printed, ended))) => answer(&printed)
                .unwrap_or_else(|| Report::failed(crash(&ending(ended.status), &ended.stderr))),
            Ok(Err(error)) => Report::failed(Failure::own(
                ProbeFailure::Crashed,
                format!("the probe's answer cannot be read: {error}"),
            )),
            Err(_) => {
                let seconds = timeout.as_secs();
                let message = format!("the process that watches the probe sent nothing for {seconds} s");
                Report::failed(Failure::own(ProbeFailure::Timeout, message))
            }
        }
    }
}

fn not_again(pid: u32) -> Failure {
    Failure::own(
        ProbeFailure::Timeout,
        format!(
            "process {pid}, which an earlier probe of this daemon and user left waiting, is still not admitted: no \
             second one was sent. It ends by itself; do not kill it: killing a waiting client hangs the MPS daemon"
        ),
    )
}
