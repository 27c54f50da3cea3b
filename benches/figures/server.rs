//! The release binary on a simulated host of its own, driven as an operator would.

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use procfs::process::Process;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::host::{self, Answer, MANAGER, TIMEOUT};
use crate::millis;

/// As short as a figure may be wrong.
const PAUSE: Duration = Duration::from_millis(1);

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
        host::write_config(directory, profile, config);
        let began = Instant::now();
        let mut child = host::start(directory, Path::new(MANAGER), &[], Stdio::null());
        let url = host::url(&mut child).expect("it serves");
        let took = began.elapsed();
        let address = url.trim_start_matches("http://").parse().expect("an address");
        (Self { child, directory: directory.to_owned(), address }, took)
    }

    /// What gives its bearer every right over TCP.
    pub(crate) fn token(&self) -> String {
        host::admin_token(&self.directory)
    }

    /// A file or directory of its daemons and sockets.
    pub(crate) fn runtime(&self, file: &str) -> PathBuf {
        self.directory.join("run").join(file)
    }

    /// A whole answer, over a connection of its own.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let socket = UnixStream::connect(self.runtime("api.sock")).expect("it listens");
        socket.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        Answer::to_bytes_over(socket, request.as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        let answer = self.ask("GET", path, "");
        (answer.status, serde_json::from_str(&answer.text).unwrap_or(Value::Null))
    }

    /// Waits for something, and asks for it as often as a figure needs.
    pub(crate) fn eventually<T>(&self, what: &str, ask: impl FnMut() -> Option<T>) -> T {
        host::eventually_within(PAUSE, ask, || {
            format!("{what}: {}", self.ask("GET", "/api/v1/daemons", "").text)
        })
    }

    pub(crate) fn wait_ready(&self) {
        self.eventually("it is ready", || (self.get("/readyz").0 == 200).then_some(()));
    }

    pub(crate) fn daemon(&self, name: &str) -> (u64, String) {
        let (_, body) = self.get(&format!("/api/v1/daemons/{name}"));
        let pid = body["status"]["pid"].as_u64().unwrap_or(0);
        (pid, body["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until a daemon's process and phase are these.
    pub(crate) fn wait_for(&self, name: &str, done: impl Fn(u64, &str) -> bool) {
        self.eventually(name, || {
            let (pid, phase) = self.daemon(name);
            done(pid, &phase).then_some(())
        });
    }

    /// CUDA programs of these tenants, all of them listed.
    pub(crate) fn clients<T: AsRef<str>>(&self, tenants: impl IntoIterator<Item = T>) -> Vec<Client> {
        let clients: Vec<Client> =
            tenants.into_iter().map(|tenant| Client::start(self, tenant.as_ref())).collect();
        self.eventually("the clients are listed", || {
            let listed = self.get("/api/v1/clients").1["items"].as_array().map_or(0, Vec::len);
            (listed >= clients.len()).then_some(())
        });
        clients
    }

    pub(crate) fn kill_daemon_and_wait(&self, name: &str) -> f64 {
        let (before, _) = self.daemon(name);
        signal(before, Signal::KILL);
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
        self.eventually("the operation succeeds", || {
            let (_, operation) = self.get(&format!("/api/v1/operations/{id}"));
            match operation["state"].as_str() {
                Some("succeeded") => Some(millis(began.elapsed())),
                Some("pending" | "running") => None,
                _ => panic!("{operation}"),
            }
        })
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

    /// Whether a command of this host's administrator succeeds.
    pub(crate) fn cli(&self, words: &[&str]) -> bool {
        let mut command = Command::new(MANAGER);
        command.args(words).env("MPS_MANAGER_RUNTIME_DIR", self.runtime("")).stdout(Stdio::null());
        command.status().expect("it runs").success()
    }

    /// Sessions that the daemon's log has counted.
    pub(crate) fn control_sessions(&self) -> usize {
        let log = self.runtime("daemons/gpu0/log/control.log");
        std::fs::read_to_string(log).expect("a log").matches("NEW UI").count()
    }

    pub(crate) fn put(&self, path: &str, body: &str) {
        self.send("PUT", path, &body.replace("UID", &own_uid().to_string()));
    }

    /// The body of an answer that must be a success.
    pub(crate) fn send(&self, method: &str, path: &str, body: &str) -> Value {
        self.ask(method, path, body).ok()
    }

    pub(crate) fn control_path(&self) -> PathBuf {
        self.runtime("sim/bin/nvidia-cuda-mps-control")
    }

    pub(crate) fn pipe_directory(&self, daemon: &str) -> PathBuf {
        self.runtime("daemons").join(daemon).join("pipe")
    }

    /// The control program as another caller calls it.
    pub(crate) fn control_program(&self, daemon: &str) -> Command {
        let mut command = Command::new(self.control_path());
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.pipe_directory(daemon));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// The longer of the first daemon's logs.
    pub(crate) fn log_mib(&self) -> f64 {
        let logs = ["control.log", "server.log"].map(|name| self.runtime("daemons/gpu0/log").join(name));
        let longest = logs.iter().filter_map(|log| std::fs::metadata(log).ok()).map(|log| log.len()).max();
        #[allow(clippy::cast_precision_loss, reason = "some MiB")]
        let bytes = longest.unwrap_or(0) as f64;
        bytes / f64::from(1 << 20)
    }

    /// The lines of the first daemon's control.log.
    pub(crate) fn control_log_lines(&self) -> f64 {
        let log = self.runtime("daemons/gpu0/log/control.log");
        let log = std::fs::read_to_string(log).unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "some thousands")]
        let lines = log.lines().count() as f64;
        lines
    }

    /// Time that the manager itself has spent on a core, without its children.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        let stat = self.process().stat().expect("it lives");
        #[allow(clippy::cast_precision_loss, reason = "some thousands, and a hundred")]
        let [ticks, hertz] = [stat.utime + stat.stime, procfs::ticks_per_second()].map(|count| count as f64);
        ticks / hertz
    }

    pub(crate) fn resident_mb(&self) -> f64 {
        let kilobytes = self.process().status().expect("it lives").vmrss.expect("VmRSS");
        #[allow(clippy::cast_precision_loss, reason = "some ten thousand")]
        let kilobytes = kilobytes as f64;
        kilobytes * 1024.0 / 1e6
    }

    fn process(&self) -> Process {
        Process::new(self.child.id().cast_signed()).expect("it lives")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        host::process::end_all(&self.directory);
    }
}

/// A CUDA program of a tenant that stays.
pub(crate) struct Client(Child);

impl Client {
    fn start(server: &Server, tenant: &str) -> Self {
        let (_, environment) = server.get(&format!("/api/v1/tenants/{tenant}/environment"));
        let mut command = host::client_command(&environment, &["--spin", "600"]);
        Self(command.stdout(Stdio::null()).spawn().expect("a client"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The user of the tenants: a manager that is not root serves its own alone.
pub(crate) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

pub(crate) fn signal(pid: u64, signal: Signal) {
    let pid = u32::try_from(pid).map(host::process::raw).expect("a process ID");
    let _ = rustix::process::kill_process(pid, signal);
}
