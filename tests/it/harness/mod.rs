//! A manager on a simulated host of a test's own, gone with all it started when the test ends.
//!
//! The test is a subreaper: orphans come to it and are reaped.

mod api;
mod bare;
mod client;
mod database;
mod direct;
mod foreign;
mod in_process;
mod outsider;
mod process;
pub(crate) mod scratch;
mod simulated;
mod stream;
mod trap;
mod wal;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::host;
pub(crate) use crate::host::process::{reap_orphans, send};
pub(crate) use crate::host::{Answer, MANAGER, SIMULATED, TIMEOUT};
pub(crate) use api::Api;
pub(crate) use bare::BareHost;
pub(crate) use client::{Client, stderr_of};
pub(crate) use foreign::Foreign;
pub(crate) use outsider::{SmallDisk, limit_files, limit_of_one_more, open_files};
pub(crate) use process::{
    SetOnDrop, command_line, environment, heavy, is_alive, processes_with, signal, signal_if_there,
};
pub(crate) use simulated::{Host, InProcess, Manager, Simulated};
pub(crate) use stream::{EventStream, Message};
pub(crate) use trap::{Spring, Trap};

/// Pauses of a test's host: long enough to be seen, and no longer.
const TIMINGS: &str = "timings = { blocked_retry_ms = 500, driver_wait_ms = 100, hung_poll_ms = 300, backoff_first_ms = 300, backoff_longest_ms = 5000, \
                       drain_poll_ms = 300, stream_heartbeat_ms = 500, release_memory_ms = 1000 }";

/// The longest pause between two questions.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// What a test waits for: a value that may not be there yet, or a condition that may not hold yet.
pub(crate) trait Awaited {
    type Value;
    fn value(self) -> Option<Self::Value>;
}

impl<T> Awaited for Option<T> {
    type Value = T;

    fn value(self) -> Self {
        self
    }
}

impl Awaited for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

/// Asks again and again until there is an answer.
pub(crate) fn eventually<A: Awaited>(what: &str, mut ask: impl FnMut() -> A) -> A::Value {
    host::eventually_within(LONGEST_PAUSE, || ask().value(), || what.to_owned())
}

/// Asks again and again from a task, beside which others go on.
pub(crate) async fn eventually_async<A: Awaited>(what: &str, mut ask: impl AsyncFnMut() -> A) -> A::Value {
    let mut patience = host::Patience::new(LONGEST_PAUSE);
    loop {
        let began = Instant::now();
        if let Some(answer) = ask().await.value() {
            return answer;
        }
        tokio::time::sleep(patience.pause(began, || what.to_owned())).await;
    }
}

/// A number in the environment that a test is run with.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}: give a number")))
}

/// A directory of a test's own, for a simulated host with a faster clock; what runs in it ends with the test.
fn simulated_directory() -> TempDir {
    process::become_subreaper();
    let dir = scratch::directory("m");
    process::own(dir.path());
    // Tenants of other users have to reach the pipes.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    dir
}

/// Makes the clock of a simulated host ten times as fast, before it is made.
fn speed_up(runtime_dir: &Path) {
    let world = runtime_dir.join("sim");
    if fs::create_dir_all(&world).is_ok() {
        fs::write(world.join("time_scale"), "0.1").expect("written");
    }
}

/// A manager that answers, in a process of its own or in the test's.
pub(crate) struct Served {
    api: Api,
    dir: TempDir,
}

impl Served {
    /// The API with the admin token.
    pub(crate) fn api(&self) -> &Api {
        &self.api
    }

    pub(crate) fn token(&self) -> String {
        self.api.token().expect("served")
    }

    pub(crate) fn await_ready(&self) {
        host::eventually_within(
            LONGEST_PAUSE,
            || (self.api.get("/readyz").status == 200).then_some(()),
            || format!("the manager is ready: {}", self.api.get("/api/v1/daemons").text),
        );
    }

    /// A daemon as the API shows it now.
    pub(crate) fn daemon(&self, name: &str) -> Value {
        self.api.get(&format!("/api/v1/daemons/{name}")).ok()
    }

    /// Waits until a daemon is in this phase, and gives it.
    pub(crate) fn await_phase(&self, name: &str, phase: &str) -> Value {
        eventually(&format!("{name} is {phase}"), || {
            let daemon = self.daemon(name);
            (daemon["status"]["phase"] == phase).then_some(daemon)
        })
    }

    /// The control process of a daemon.
    pub(crate) fn daemon_pid(&self, name: &str) -> u32 {
        pid(&self.daemon(name)["status"]["pid"])
    }

    /// The server process of a daemon.
    pub(crate) fn server_pid(&self, name: &str) -> u32 {
        pid(&self.daemon(name)["status"]["effective"]["servers"][0]["pid"])
    }

    /// Where it is reached over TCP.
    pub(crate) fn url(&self) -> String {
        self.api.url()
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn state(&self, file: &str) -> PathBuf {
        self.dir().join("state").join(file)
    }

    pub(crate) fn runtime(&self, file: &str) -> PathBuf {
        self.dir().join("run").join(file)
    }

    /// The command to run this package's binary with nothing of the test's own environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        host::command(self.dir(), Path::new(MANAGER), arguments)
    }

    /// This package's binary at a place that every user reaches, as its own directory may not be.
    pub(crate) fn program_for_everybody(&self) -> PathBuf {
        let program = self.dir().join("program");
        if fs::hard_link(MANAGER, &program).is_err() {
            scratch::install(Path::new(MANAGER), &program);
        }
        program
    }

    fn start_manager_from(&self, program: &Path, more: &[&str]) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.dir().join("manager.log"));
        host::start(self.dir(), program, more, log.expect("a log").into())
    }

    /// What a manager in a process of its own has logged.
    fn manager_log(&self) -> String {
        fs::read_to_string(self.dir().join("manager.log")).unwrap_or_default()
    }

    /// Runs the command line to its end.
    pub(crate) fn cli(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the binary runs")
    }
}

/// Whether this test may become another user, which root alone may; says so where it may not.
pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: only root can become another user");
    }
    root
}

/// Whether this test may mount, which root alone may: in CI it fails where it may not.
pub(crate) fn may_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    assert!(root || std::env::var_os("CI").is_none(), "only root can mount: run the tests as root");
    if !root {
        eprintln!("SKIPPED: only root can mount");
    }
    root
}

pub(crate) fn pid(value: &Value) -> u32 {
    value.as_u64().and_then(|pid| u32::try_from(pid).ok()).unwrap_or_else(|| panic!("{value} is no PID"))
}

/// A time of an answer, in unix milliseconds.
#[track_caller]
pub(crate) fn unix_ms(time: &Value) -> i64 {
    let text = time.as_str().unwrap_or_else(|| panic!("{time} is no time"));
    text.parse::<jiff::Timestamp>().expect("RFC 3339").as_millisecond()
}
