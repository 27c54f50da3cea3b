//! The release binary on a simulated host of its own, driven as an operator would.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::millis;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_mps-manager");
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// One server on a simulated host of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) directory: PathBuf,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts it; the time is from the spawn to the line that it prints once it listens.
    pub(crate) fn start(directory: &Path) -> (Self, Duration) {
        Self::start_as(directory, "h200x2@13.0")
    }

    pub(crate) fn start_as(directory: &Path, profile: &str) -> (Self, Duration) {
        Self::start_configured(directory, profile, "")
    }

    pub(crate) fn start_configured(directory: &Path, profile: &str, config: &str) -> (Self, Duration) {
        std::fs::create_dir_all(directory).expect("a directory");
        let file = directory.join("mps-manager.toml");
        std::fs::write(&file, config).expect("a configuration");
        let began = Instant::now();
        let mut child = Command::new(BINARY)
            .args(["serve", "--sim", profile, "--listen", "127.0.0.1:0", "--config"])
            .arg(file)
            .arg("--state-dir")
            .arg(directory.join("s"))
            .arg("--runtime-dir")
            .arg(directory.join("r"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the release binary starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let line = lines.next().expect("a line").expect("text");
        let address = line.split("://").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address: {line}"));
        let took = began.elapsed();
        // The reader of a child's output keeps reading, or the child blocks.
        std::thread::spawn(move || lines.for_each(drop));
        (Self { child, directory: directory.to_owned(), address }, took)
    }

    /// What gives its bearer every right over TCP.
    pub(crate) fn token(&self) -> String {
        let text = std::fs::read_to_string(self.directory.join("s/admin.token")).expect("a token");
        text.trim().to_owned()
    }

    /// A whole answer, over a connection of its own.
    pub(crate) fn text(&self, path: &str) -> String {
        let mut socket = UnixStream::connect(self.directory.join("r/api.sock")).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        text
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let text = self.text(path);
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    pub(crate) fn wait_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.get("/readyz").0 != 200 {
            assert!(Instant::now() < deadline, "never ready");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn daemon(&self, name: &str) -> (u64, String) {
        let (_, body) = self.get(&format!("/api/v1/daemons/{name}"));
        let pid = body["status"]["pid"].as_u64().unwrap_or(0);
        (pid, body["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until a daemon's process and phase are these.
    pub(crate) fn wait_for(&self, name: &str, done: impl Fn(u64, &str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (pid, phase) = self.daemon(name);
            if done(pid, &phase) {
                return;
            }
            assert!(Instant::now() < deadline, "{name} stays {phase}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn kill_daemon_and_wait(&self, name: &str) -> f64 {
        let (before, _) = self.daemon(name);
        kill(before);
        let began = Instant::now();
        self.wait_for(name, |pid, phase| pid != before && pid != 0 && phase == "ready");
        let took = millis(began.elapsed());
        // Failures a minute apart are forgiven; within the minute the back-off is what would be measured, so the
        // daemon is restarted as an operator would, which clears them.
        let (before, _) = self.daemon(name);
        self.post(&format!("/api/v1/daemons/{name}/restart"));
        self.wait_for(name, |pid, phase| pid != before && phase == "ready");
        took
    }

    pub(crate) fn post(&self, path: &str) {
        self.send("POST", path, "");
    }

    /// Asks for an operation and waits for its success; milliseconds from the request to the response that shows it.
    pub(crate) fn operation(&self, path: &str, body: &str) -> f64 {
        let began = Instant::now();
        let accepted = self.send("POST", path, body);
        let id = accepted["id"].as_str().expect("an operation").to_owned();
        loop {
            let (_, operation) = self.get(&format!("/api/v1/operations/{id}"));
            match operation["state"].as_str() {
                Some("succeeded") => return millis(began.elapsed()),
                Some("pending" | "running") if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => panic!("{operation}"),
            }
        }
    }

    /// Puts a daemon that serves nobody into static mode; gives its GPU.
    pub(crate) fn in_static_mode(&self, name: &str) -> String {
        let (_, daemon) = self.get(&format!("/api/v1/daemons/{name}"));
        let gpu = daemon["spec"]["gpus"][0].as_str().expect("a GPU").to_owned();
        let spec = json!({"gpus": [gpu], "mode": "static"});
        self.put(&format!("/api/v1/daemons/{name}"), &spec.to_string());
        let before = daemon["status"]["pid"].as_u64().unwrap_or(0);
        self.wait_for(name, |pid, phase| pid != before && pid != 0 && phase == "ready");
        gpu
    }

    /// Sessions that the daemon's log has counted.
    pub(crate) fn control_sessions(&self) -> usize {
        let log = self.directory.join("r/daemons/gpu0/log/control.log");
        std::fs::read_to_string(log).expect("a log").matches("NEW UI").count()
    }

    pub(crate) fn put(&self, path: &str, body: &str) {
        self.send("PUT", path, &body.replace("UID", &rustix::process::geteuid().as_raw().to_string()));
    }

    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Value {
        let mut socket = UnixStream::connect(self.directory.join("r/api.sock")).expect("it listens");
        let length = body.len();
        write!(
            socket,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        )
        .expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        assert!(text.starts_with("HTTP/1.1 20"), "{text}");
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).unwrap_or(Value::Null)
    }

    pub(crate) fn control_path(&self) -> PathBuf {
        self.directory.join("r/sim/bin/nvidia-cuda-mps-control")
    }

    pub(crate) fn pipe_directory(&self) -> PathBuf {
        self.directory.join("r/daemons/gpu0/pipe")
    }

    /// The control program as another caller calls it.
    pub(crate) fn control_program(&self) -> Command {
        let mut command = Command::new(self.control_path());
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.pipe_directory());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// The longer of the first daemon's logs.
    pub(crate) fn log_mib(&self) -> f64 {
        let logs =
            ["control.log", "server.log"].map(|name| self.directory.join("r/daemons/gpu0/log").join(name));
        let longest = logs.iter().filter_map(|log| std::fs::metadata(log).ok()).map(|log| log.len()).max();
        #[allow(clippy::cast_precision_loss, reason = "some MiB")]
        let bytes = longest.unwrap_or(0) as f64;
        bytes / f64::from(1 << 20)
    }

    /// The lines of the first daemon's control.log.
    pub(crate) fn control_log_lines(&self) -> f64 {
        let log = self.directory.join("r/daemons/gpu0/log/control.log");
        let log = std::fs::read_to_string(log).unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "some thousands")]
        let lines = log.lines().count() as f64;
        lines
    }

    /// Time that the manager itself has spent on a core, without its children.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it lives");
        let (_, rest) = stat.rsplit_once(')').expect("a stat");
        // utime and stime are fields 14 and 15; the first of these is field 3.
        let ticks: f64 = rest
            .split_ascii_whitespace()
            .skip(11)
            .take(2)
            .map(|field| field.parse::<f64>().expect("ticks"))
            .sum();
        #[allow(clippy::cast_precision_loss, reason = "a hundred")]
        let hertz = procfs::ticks_per_second() as f64;
        ticks / hertz
    }

    pub(crate) fn resident_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kilobytes * 1024.0 / 1e6
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let (_, all) = self.get("/api/v1/daemons");
        let all = all["items"].as_array().cloned().unwrap_or_default();
        let daemons: Vec<u64> = all.iter().filter_map(|daemon| daemon["status"]["pid"].as_u64()).collect();
        let _ = self.child.kill();
        let _ = self.child.wait();
        daemons.into_iter().for_each(kill);
    }
}

pub(crate) fn kill(pid: u64) {
    signal(pid, rustix::process::Signal::KILL);
}

pub(crate) fn signal(pid: u64, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process ID");
    let _ = rustix::process::kill_process(pid, signal);
}
