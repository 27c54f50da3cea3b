//! A simulated host with a pipe and a log directory, used as a shell and CUDA programs use it, without any reader of ours.

use std::fs;
use std::io::{Read as _, Write as _};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{BareHost, SIMULATED, TIMEOUT, eventually};

/// The user `nobody` of the recordings.
pub(super) const NOBODY: u32 = 65534;

pub(super) struct Host {
    bare: BareHost,
    /// The pipe directory that new daemons and callers use, by name.
    place: Mutex<String>,
}

/// What a finished process left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Done {
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// The exit code, or 128 and the signal.
    pub(super) rc: i32,
}

impl Deref for Host {
    type Target = BareHost;

    fn deref(&self) -> &BareHost {
        &self.bare
    }
}

impl Host {
    pub(super) fn new(profile: &str) -> Self {
        Self { bare: BareHost::new(profile), place: Mutex::new("a".to_owned()) }
    }

    /// Uses another pair of pipe and log directories from now on.
    pub(super) fn move_to(&self, place: &str) {
        place.clone_into(&mut self.place.lock().unwrap());
    }

    pub(super) fn pipe(&self) -> PathBuf {
        self.path(&self.place.lock().unwrap()).join("pipe")
    }

    pub(super) fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path(&self.place.lock().unwrap()).join("log").join(name)).unwrap_or_default()
    }

    /// A program of this host, with its environment and its pair of directories.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let place = self.path(&self.place.lock().unwrap());
        let mut command = self.bare.command(program);
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", place.join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", place.join("log"));
        command
    }

    pub(super) fn control_program(&self) -> Command {
        let mut command = self.command(self.world.bin().join("nvidia-cuda-mps-control"));
        command.arg0("nvidia-cuda-mps-control");
        command
    }

    /// Starts a daemon; panics unless the start is reported as successful.
    pub(super) fn start(&self, args: &[&str], env: &[(&str, &str)]) {
        let done = finish(self.control_program().args(args).envs(env.iter().copied()), b"", TIMEOUT);
        assert_eq!(done.rc, 0, "{done:?}");
    }

    pub(super) fn daemon(&self) -> Pid {
        let text = fs::read_to_string(self.pipe().join("nvidia-cuda-mps-control.pid")).unwrap();
        Pid::from_raw(text.parse().unwrap()).unwrap()
    }

    /// Sends lines to one control process.
    pub(super) fn control(&self, lines: &str) -> Done {
        finish(&mut self.control_program(), format!("{lines}\n").as_bytes(), TIMEOUT)
    }

    /// The reply to commands that must be accepted.
    pub(super) fn ask(&self, lines: &str) -> String {
        let done = self.control(lines);
        assert_eq!((done.rc, done.stderr.as_str()), (0, ""), "{lines}");
        done.stdout
    }

    /// Starts the server and waits until it is ready.
    pub(super) fn server(&self) -> Pid {
        self.ask(&format!("start_server -uid {}", uid()));
        self.ready()
    }

    pub(super) fn ready(&self) -> Pid {
        let pid = eventually("the server is ready", || {
            let list = self.ask("get_server_list");
            let pid = list.trim();
            let is_ready = !pid.is_empty() && self.ask(&format!("get_server_status {pid}")) == "ACTIVE\n";
            is_ready.then(|| pid.parse().unwrap())
        });
        Pid::from_raw(pid).unwrap()
    }

    pub(super) fn client_command(&self, args: &[&str], env: &[(&str, &str)]) -> Command {
        let mut command = self.command(SIMULATED);
        command.args(["sim", "client"]).args(args).envs(env.iter().copied());
        command
    }

    /// Runs a client to its end.
    pub(super) fn client(&self, args: &[&str], env: &[(&str, &str)]) -> Done {
        finish(&mut self.client_command(args, env), b"", TIMEOUT)
    }

    /// What a client sees, as its JSON.
    pub(super) fn see(&self, env: &[(&str, &str)]) -> serde_json::Value {
        serde_json::from_str(&self.client(&["--json"], env).stdout).unwrap()
    }

    /// A client in the background, from when it has all its contexts.
    pub(super) fn busy_client(&self, args: &[&str], env: &[(&str, &str)]) -> Busy {
        let mut command = self.client_command(args, env);
        command.arg("--json").arg0("/tmp/client");
        let mut busy = Busy::spawn(&mut command);
        eventually("the client has its contexts", || busy.output().0.contains("\"pid\""));
        busy
    }
}

/// A child whose output is collected while it runs.
pub(super) struct Busy {
    child: Child,
    output: std::sync::mpsc::Receiver<(bool, Vec<u8>)>,
    stdout: String,
    stderr: String,
}

impl Busy {
    pub(super) fn spawn(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, output) = std::sync::mpsc::channel();
        let mut stdout = child.stdout.take().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let errors = send.clone();
        std::thread::spawn(move || {
            pump(|buffer| stdout.read(buffer), |bytes| send.send((true, bytes)).is_ok());
        });
        std::thread::spawn(move || {
            pump(|buffer| stderr.read(buffer), |bytes| errors.send((false, bytes)).is_ok());
        });
        Self { child, output, stdout: String::new(), stderr: String::new() }
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// What it has written so far, to stdout and to stderr.
    pub(super) fn output(&mut self) -> (&str, &str) {
        while let Ok((out, bytes)) = self.output.try_recv() {
            let text = String::from_utf8_lossy(&bytes);
            if out { self.stdout.push_str(&text) } else { self.stderr.push_str(&text) }
        }
        (&self.stdout, &self.stderr)
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
        if signal == Signal::STOP {
            // Each of its threads stops when it next runs, and one of them answers MPS.
            eventually("it has stopped", || self.has_stopped());
        }
    }

    fn has_stopped(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let stat = |task: fs::DirEntry| fs::read_to_string(task.path().join("stat"));
        let is_stopped = |stat: &str| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        // A thread that has ended meanwhile answers nothing.
        tasks.flatten().filter_map(|task| stat(task).ok()).all(|stat| is_stopped(&stat))
    }

    pub(super) fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end; after `timeout` kills it and says 124, as timeout(1) does.
    pub(super) fn finish(mut self, timeout: Duration) -> Done {
        let start = Instant::now();
        let rc = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                use std::os::unix::process::ExitStatusExt as _;
                break status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            }
            if start.elapsed() > timeout {
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                break 124;
            }
            sleep(Duration::from_millis(1));
        };
        // The pumps end with the pipes.
        while let Ok((out, bytes)) = self.output.recv_timeout(Duration::from_secs(1)) {
            let text = String::from_utf8_lossy(&bytes);
            if out { self.stdout.push_str(&text) } else { self.stderr.push_str(&text) }
        }
        Done { stdout: std::mem::take(&mut self.stdout), stderr: std::mem::take(&mut self.stderr), rc }
    }
}

fn pump(mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>, mut send: impl FnMut(Vec<u8>) -> bool) {
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = read(&mut buffer) {
        if !send(buffer[..count].to_vec()) {
            return;
        }
    }
}

/// Runs a command with some input to its end.
pub(super) fn finish(command: &mut Command, input: &[u8], timeout: Duration) -> Done {
    command.stdin(Stdio::piped());
    let mut busy = Busy::spawn(command);
    let mut stdin = busy.child.stdin.take().unwrap();
    // A program that does not read has its reasons.
    let _ = stdin.write_all(input);
    drop(stdin);
    busy.finish(timeout)
}

pub(super) fn uid() -> u32 {
    rustix::process::getuid().as_raw()
}

/// Whether a test can act as another user: it needs root, and a binary that everybody can reach.
pub(super) fn can_become_nobody() -> bool {
    let reachable = Path::new(SIMULATED)
        .ancestors()
        .skip(1)
        .all(|dir| fs::metadata(dir).is_ok_and(|meta| meta.permissions().mode() & 0o001 != 0));
    uid() == 0 && reachable
}
