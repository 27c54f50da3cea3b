//! The figures that the project promises, as medians on the simulated host: `cargo bench --bench figures`.
//!
//! It drives the release binary as an operator would. A figure is a median of several runs and stands beside its
//! bound; the exit code is 1 when a bound is passed. `docs/figures.md` keeps what was measured.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const BINARY: &str = env!("CARGO_BIN_EXE_mps-manager");
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    // `cargo bench` passes flags of the standard harness, which this is not.
    let mut table = Table::default();
    let home = tempfile::Builder::new().prefix("mf").tempdir_in("/tmp").expect("a directory");

    let starts: Vec<f64> = (0..10)
        .map(|run| {
            let directory = home.path().join(format!("s{run}"));
            let (server, took) = Server::start(&directory);
            server.wait_ready();
            drop(server);
            millis(took)
        })
        .collect();
    table.row("start to listening, ms (first start, database made)", median(starts), Some(100.0));

    let (server, _) = Server::start(&home.path().join("a"));
    server.wait_ready();
    let restarts: Vec<f64> = (0..20).map(|_| server.kill_daemon_and_wait()).collect();
    table.row("kill -9 of the control daemon to ready, ms (simulated)", median(restarts), Some(1000.0));

    let before = server.control_sessions();
    let started = Instant::now();
    let (mut failures, mut looks) = (0, 0u64);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..16).map(|_| scope.spawn(|| reader(&server, 63))).collect();
        for reader in readers {
            let (failed, most) = reader.join().expect("a reader ends");
            failures += failed;
            looks = looks.max(most);
        }
    });
    let took = started.elapsed();
    table.row("1008 live reads by 16 callers: failures", f64::from(failures), Some(0.0));
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    table.row("control processes of one look, at most", looks as f64, Some(2.0));
    table.row("1008 live reads by 16 callers, reads a second", 1008.0 / took.as_secs_f64(), None);
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    table.row("sessions with the daemon for those reads", (server.control_sessions() - before) as f64, None);

    let (calls, failed) = direct_callers(&server, 8, 50);
    table.row("for comparison, direct calls by 8 callers", f64::from(calls), None);
    table.row("for comparison, direct calls that failed", f64::from(failed), None);

    std::thread::sleep(Duration::from_secs(2));
    table.row("resident memory, MB", server.resident_mb(), Some(40.0));
    table.print()
}

/// One server on a simulated host of its own.
struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    /// Starts it; the time is from the spawn to the line that it prints once it listens.
    fn start(directory: &Path) -> (Self, Duration) {
        std::fs::create_dir_all(directory).expect("a directory");
        let began = Instant::now();
        let mut child = Command::new(BINARY)
            .args(["serve", "--sim", "h200x2@13.0", "--listen", "127.0.0.1:0"])
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
        assert!(line.contains("serves"), "{line}");
        let took = began.elapsed();
        // Whoever reads a child's output keeps reading, or the child blocks.
        std::thread::spawn(move || lines.for_each(drop));
        (Self { child, directory: directory.to_owned() }, took)
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let mut socket = UnixStream::connect(self.directory.join("r/api.sock")).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn wait_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.get("/readyz").0 != 200 {
            assert!(Instant::now() < deadline, "never ready");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn daemon(&self) -> (u64, String) {
        let (_, body) = self.get("/api/v1/daemons/gpu0");
        let pid = body["status"]["pid"].as_u64().unwrap_or(0);
        (pid, body["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    fn kill_daemon_and_wait(&self) -> f64 {
        // Failures a minute apart are forgiven; within the minute the back-off is what would be measured, so the
        // daemon is restarted as an operator would, which clears them.
        let (before, _) = self.daemon();
        kill(before);
        let began = Instant::now();
        let deadline = began + PATIENCE;
        loop {
            let (pid, phase) = self.daemon();
            if pid != before && pid != 0 && phase == "ready" {
                break;
            }
            assert!(Instant::now() < deadline, "never ready again: {phase}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = millis(began.elapsed());
        self.restart();
        took
    }

    fn restart(&self) {
        let (before, _) = self.daemon();
        let mut socket = UnixStream::connect(self.directory.join("r/api.sock")).expect("it listens");
        let request = "POST /api/v1/daemons/gpu0/restart HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        socket.write_all(request.as_bytes()).expect("sent");
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (pid, phase) = self.daemon();
            if pid != before && phase == "ready" {
                return;
            }
            assert!(Instant::now() < deadline, "never restarted");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sessions that the daemon's log has counted.
    fn control_sessions(&self) -> usize {
        let log = self.directory.join("r/daemons/gpu0/log/control.log");
        std::fs::read_to_string(log).expect("a log").matches("NEW UI").count()
    }

    fn resident_mb(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        kilobytes * 1024.0 / 1e6
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let daemons: Vec<u64> = ["gpu0", "gpu1"]
            .iter()
            .filter_map(|name| self.get(&format!("/api/v1/daemons/{name}")).1["status"]["pid"].as_u64())
            .collect();
        let _ = self.child.kill();
        let _ = self.child.wait();
        daemons.into_iter().for_each(kill);
    }
}

/// Reads live `reads` times; failures, and the most control processes that one look took.
fn reader(server: &Server, reads: u32) -> (u32, u64) {
    let (mut failures, mut most) = (0, 0);
    for _ in 0..reads {
        let (status, body) = server.get("/api/v1/daemons/gpu0?fresh=true");
        let servers = body["status"]["effective"]["servers"].as_array().map_or(0, Vec::len);
        if status != 200 || servers != 1 {
            failures += 1;
        }
        most = most.max(body["status"]["effective"]["control_processes"].as_u64().unwrap_or(u64::MAX));
    }
    (failures, most)
}

/// What the same reads come to without the manager: calls, and calls that failed.
fn direct_callers(server: &Server, callers: u32, each: u32) -> (u32, u32) {
    let control = server.directory.join("r/sim/bin/nvidia-cuda-mps-control");
    let pipe = server.directory.join("r/daemons/gpu0/pipe");
    let call = || {
        let mut child = Command::new(&control)
            .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let _ = child.stdin.take().expect("piped").write_all(b"get_server_list\n");
        let output = child.wait_with_output().expect("it ends");
        output.status.success() && !output.stdout.is_empty()
    };
    let failed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..callers)
            .map(|_| scope.spawn(|| (0..each).map(|_| u32::from(!call())).sum::<u32>()))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("it ends")).sum()
    });
    (callers * each, failed)
}

fn kill(pid: u64) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process ID");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[derive(Default)]
struct Table {
    rows: Vec<(&'static str, f64, Option<f64>)>,
}

impl Table {
    fn row(&mut self, what: &'static str, value: f64, bound: Option<f64>) {
        self.rows.push((what, value, bound));
    }

    fn print(&self) -> ExitCode {
        println!("| figure | measured | at most |\n| --- | ---: | ---: |");
        let mut passed = true;
        for (what, value, bound) in &self.rows {
            let shown = bound.map_or_else(String::new, |bound| format!("{bound}"));
            println!("| {what} | {value:.1} | {shown} |");
            passed &= bound.is_none_or(|bound| *value <= bound);
        }
        if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
