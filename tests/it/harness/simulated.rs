//! Simulated hosts: a manager in a process of its own or in the test's, on directories of the test's own.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::Child;

use super::in_process::ThisProcess;
use super::process::listing;
use super::{Api, MANAGER, Served, TIMINGS, eventually, signal, simulated_directory, speed_up};
use crate::host;

/// How a host runs its manager.
pub(crate) trait Manager {
    /// For requests to a manager that does not run yet.
    fn new() -> (Self, Api)
    where
        Self: Sized;

    /// Starts it on the host's directories, and has the host's API reach it.
    fn start(&mut self, host: &Served);

    /// Ends it with the test.
    fn end(&mut self);
}

/// A simulated host with its manager, gone with all that runs on it when the test ends.
pub(crate) struct Simulated<M: Manager> {
    manager: M,
    served: Served,
}

/// One whose manager is a process, `mps-manager serve`.
pub(crate) type Host = Simulated<Process>;

/// One whose manager is in the test's own process.
pub(crate) type InProcess = Simulated<ThisProcess>;

impl<M: Manager> Deref for Simulated<M> {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl<M: Manager> Simulated<M> {
    /// Two GPUs, one daemon each, two example tenants; served and ready.
    pub(crate) fn ready() -> Self {
        Self::configured("")
    }

    /// The same with further lines in the configuration file.
    pub(crate) fn configured(lines: &str) -> Self {
        Self::ready_of("h200x2", lines)
    }

    /// The same on a simulated host of another kind.
    pub(crate) fn ready_of(profile: &str, lines: &str) -> Self {
        let mut host = Self::of(profile, lines);
        host.serve();
        host.await_ready();
        host
    }

    /// Directories and a configuration, with nothing running.
    pub(crate) fn new(lines: &str) -> Self {
        Self::of("h200x2", lines)
    }

    /// The same on a simulated host of another kind.
    pub(crate) fn of(profile: &str, lines: &str) -> Self {
        let dir = simulated_directory();
        host::write_config(dir.path(), profile, &format!("{TIMINGS}\npoll_interval_s = 2\n{lines}"));
        let (manager, api) = M::new();
        Self { manager, served: Served { api, dir } }
    }

    /// Starts the manager and waits until it listens.
    pub(crate) fn serve(&mut self) {
        speed_up(&self.runtime(""));
        self.manager.start(&self.served);
    }

    /// A host whose idle daemons are polled once an hour, and which pauses as long as a real one.
    pub(crate) fn polled_hourly(lines: &str) -> Self {
        let mut host = Self::new(lines);
        host.poll_every(3600);
        host.take_out_timings();
        host.serve();
        host.await_ready();
        host
    }

    /// Polls daemons every so many seconds instead of every two seconds.
    pub(crate) fn poll_every(&self, seconds: u32) {
        self.change_config("poll_interval_s = 2\n", &format!("poll_interval_s = {seconds}\n"));
    }

    /// Has the host pause as long as a real one.
    fn take_out_timings(&self) {
        self.change_config(TIMINGS, "");
    }

    /// What its manager runs in.
    pub(super) fn manager(&mut self) -> &mut M {
        &mut self.manager
    }

    fn change_config(&self, from: &str, to: &str) {
        let path = self.dir().join("config.toml");
        let text = fs::read_to_string(&path).expect("a configuration");
        assert!(text.contains(from), "{text}");
        fs::write(path, text.replace(from, to)).expect("written");
    }
}

impl<M: Manager> Drop for Simulated<M> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.manager_log();
            let from = log.len().saturating_sub(6000);
            eprintln!("--- the manager's log ---\n{}", log.get(from..).unwrap_or(&log));
            eprintln!("--- what runs on the host ---\n{}", listing(self.dir()));
        }
        self.manager.end();
        host::process::end_all(self.dir());
    }
}

/// A manager in a process of its own.
pub(crate) struct Process(Option<Child>);

impl Manager for Process {
    fn new() -> (Self, Api) {
        (Self(None), Api::new())
    }

    fn start(&mut self, host: &Served) {
        self.start_from(Path::new(MANAGER), &[], host);
    }

    fn end(&mut self) {
        if let Some(mut manager) = self.0.take() {
            let _ = manager.kill();
            let _ = manager.wait();
        }
    }
}

impl Process {
    fn start_from(&mut self, program: &Path, more: &[&str], host: &Served) {
        let mut process = host.start_manager_from(program, more);
        let Some(url) = host::url(&mut process) else {
            panic!("the manager does not serve: {}", host.manager_log());
        };
        self.0 = Some(process);
        host.api.aim(&url, &host::admin_token(host.dir()), None);
    }
}

impl Host {
    /// `serve` with these arguments after the configuration file, which must refuse; gives what it said.
    pub(crate) fn refused(&self, arguments: &[&str]) -> String {
        let config = self.dir().join("config.toml");
        let mut all = vec!["serve", "--config", config.to_str().expect("text")];
        all.extend(arguments);
        let output = self.cli(&all);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(output.stdout.is_empty(), "it reported that it serves");
        message
    }

    /// Starts the manager from a binary at another place and waits until it listens.
    pub(crate) fn serve_from(&mut self, program: &Path) {
        speed_up(&self.runtime(""));
        self.manager.start_from(program, &[], &self.served);
    }

    /// Starts the manager with further arguments and waits until it listens.
    pub(crate) fn serve_with(&mut self, more: &[&str]) {
        speed_up(&self.runtime(""));
        self.manager.start_from(Path::new(MANAGER), more, &self.served);
    }

    /// Starts the manager and waits for nothing.
    pub(crate) fn start_manager(&self) -> Child {
        speed_up(&self.runtime(""));
        self.start_manager_from(Path::new(MANAGER), &[])
    }

    /// What its managers have logged.
    pub(crate) fn log(&self) -> String {
        self.manager_log()
    }

    pub(crate) fn manager_pid(&self) -> u32 {
        self.manager.0.as_ref().expect("served").id()
    }

    /// Sends the manager a signal and waits for its end; gives its exit code, if it has one.
    pub(crate) fn end_manager(&mut self, with: rustix::process::Signal) -> Option<i32> {
        let mut manager = self.manager.0.take().expect("served");
        signal(manager.id(), with);
        eventually("the manager ends", || manager.try_wait().expect("waited for")).code()
    }

    /// Whether the manager has ended by itself or by another's hand.
    pub(crate) fn manager_has_ended(&mut self) -> bool {
        let Some(manager) = &mut self.manager.0 else { return true };
        let ended = manager.try_wait().expect("waited for").is_some();
        if ended {
            self.manager.0 = None;
        }
        ended
    }
}
