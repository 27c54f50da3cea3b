//! The figures that the project promises, as medians on the simulated host: `cargo bench --bench figures`,
//! or some of them: `cargo bench --bench figures -- partitions`.
//!
//! It drives the release binary as an operator would. A figure is a median of several runs and stands beside its
//! bound; the exit code is 1 when a bound is passed. `docs/figures.md` keeps what was measured.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const BINARY: &str = env!("CARGO_BIN_EXE_mps-manager");
const PATIENCE: Duration = Duration::from_secs(30);
/// The size from which a log is emptied.
const LOG_BOUND_MIB: f64 = 4.0;

/// Measures on hosts in a directory of its own.
type Measure = fn(&Path, &mut Table);

fn main() -> ExitCode {
    // `cargo bench` passes flags of the standard harness, which this is not. Names are of what alone is to be measured.
    let asked: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let home = tempfile::Builder::new().prefix("mf").tempdir_in("/tmp").expect("a directory");
    let mut table = Table::default();
    let all: [(&str, Measure); 5] = [
        ("start", starts),
        ("looks", looks),
        ("idle", idle),
        ("partitions", partitions),
        ("metrics", metrics),
    ];
    if let Some(unknown) = asked.iter().find(|asked| all.iter().all(|(name, _)| name != asked)) {
        eprintln!(
            "{unknown} is not measured here: name some of {}, or none for all",
            all.map(|(name, _)| name).join(", ")
        );
        return ExitCode::FAILURE;
    }
    for (name, measure) in all {
        if asked.is_empty() || asked.iter().any(|asked| asked == name) {
            measure(&home.path().join(&name[..1]), &mut table);
        }
    }
    table.print()
}

/// First starts, with the database made.
fn starts(directory: &Path, table: &mut Table) {
    let starts: Vec<f64> = (0..10)
        .map(|run| {
            let (server, took) = Server::start(&directory.join(format!("{run}")));
            server.wait_ready();
            drop(server);
            millis(took)
        })
        .collect();
    table.row("start to listening, ms (first start, database made)", median(starts), Some(100.0));
}

/// One server with a daemon that dies, that many look at, and that others use.
fn looks(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start(directory);
    server.wait_ready();
    let restarts: Vec<f64> = (0..20).map(|_| server.kill_daemon_and_wait("gpu0")).collect();
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

    beside_loops(&server, table);
    commands(&server, table);
}

/// Fifteen partitions: over the API against a shell loop, and after the death of their daemon.
fn partitions(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x3@13.1");
    server.wait_ready();
    let [gpu, of_the_loop] = ["gpu1", "gpu2"].map(|name| server.in_static_mode(name));
    let steps: Vec<Value> = (0..15)
        .map(|number| json!({"add": {"gpu": 0, "partition": format!("p{number}"), "chunks": 1}}))
        .collect();
    server.put("/api/v1/layouts/full", &json!({"layout": {"steps": steps}}).to_string());
    server.put("/api/v1/layouts/nothing", &json!({"layout": {"steps": []}}).to_string());
    let full = json!({"daemon": "gpu1", "gpu_map": {"0": gpu}}).to_string();
    let nothing = json!({"daemon": "gpu1"}).to_string();

    let (mut applied, mut commands, mut looped, mut careful) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut broken = 0;
    let deadline = Instant::now() + 4 * PATIENCE;
    // Side by side: whatever else the machine does, it does to both.
    while looped.len() < 20 || careful.len() < 20 {
        assert!(Instant::now() < deadline, "no loop makes its partitions");
        applied.push(server.operation("/api/v1/layouts/full/apply", &full));
        let (_, daemon) = server.get("/api/v1/daemons/gpu1");
        assert_eq!(daemon["status"]["layout"]["partitions"].as_array().map(Vec::len), Some(15));
        commands.push(daemon["status"]["layout"]["duration_us"].as_f64().expect("a time") / 1000.0);
        server.operation("/api/v1/layouts/nothing/apply", &nothing);
        for (lists, times) in [(false, &mut looped), (true, &mut careful)] {
            match server.shell_loop("gpu2", &of_the_loop, lists) {
                Some(took) => times.push(took),
                None => broken += 1,
            }
        }
    }
    let [applied, commands, looped, careful] = [applied, commands, looped, careful].map(median);
    table.row("a layout of 15 partitions applied over REST, from the request to its end, ms", applied, None);
    table.row("for comparison, a shell loop of a control process a command, ms", looped, None);
    table.row("REST as a part of that, %", 100.0 * applied / looped, Some(20.0));
    table.row("of the REST request, the session that makes and lists each partition, ms", commands, None);
    table.row("for comparison, a shell loop that lists each too, ms", careful, None);
    table.row("the session as a part of that, %", 100.0 * commands / careful, None);
    table.row("loops of which a command was turned away and nothing said so", f64::from(broken), None);

    server.operation("/api/v1/layouts/full/apply", &full);
    let ids = || {
        let (_, body) = server.get("/api/v1/daemons/gpu1");
        let partitions = body["status"]["layout"]["partitions"].as_array().expect("partitions").clone();
        partitions.iter().map(|one| one["id"].as_str().expect("an ID").to_owned()).collect::<Vec<_>>()
    };
    let before = ids();
    assert_eq!(before.len(), 15);
    let mut differ = 0;
    let deaths: Vec<f64> = (0..20)
        .map(|_| {
            let took = server.kill_daemon_and_wait("gpu1");
            differ += i32::from(ids() != before);
            took
        })
        .collect();
    let longest = deaths.iter().copied().fold(0.0, f64::max);
    table.row(
        "kill -9 of a static daemon with 15 partitions to ready, ms (simulated)",
        median(deaths),
        Some(1000.0),
    );
    table.row("the same: the longest of 20, ms", longest, Some(1000.0));
    table.row("the same: deaths after which an ID was another", f64::from(differ), Some(0.0));
}

/// 1000 live reads by 16 callers beside 4 foreign loops, each compared with what the example tenants make of the daemon.
fn beside_loops(server: &Server, table: &mut Table) {
    const READS: usize = 1000;
    let sessions = |what: &str| {
        server.get("/api/v1/daemons/gpu0").1["status"]["sessions"][what].as_f64().expect("a count")
    };
    let loops: Vec<Loop> = (0..4).map(|_| Loop::start(server)).collect();
    let before = (sessions("retried"), sessions("failed"), sessions("looks"));
    let left = AtomicUsize::new(READS);
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
    let caller = || {
        let (mut wrong, mut failed, mut longest) = (0, 0, 0.0_f64);
        while take() {
            let began = Instant::now();
            let (status, body) = server.get("/api/v1/daemons/gpu0?fresh=true");
            longest = longest.max(millis(began.elapsed()));
            match status {
                200 => wrong += i32::from(!is_the_truth(&body["status"])),
                _ => failed += 1,
            }
        }
        (wrong, failed, longest)
    };
    let results: Vec<(i32, i32, f64)> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..16).map(|_| scope.spawn(caller)).collect();
        callers.into_iter().map(|caller| caller.join().expect("a caller ends")).collect()
    });
    drop(loops);
    let sum = |part: fn(&(i32, i32, f64)) -> i32| f64::from(results.iter().map(part).sum::<i32>());
    let longest = results.iter().map(|result| result.2).fold(0.0, f64::max);
    table.row(
        "beside 4 foreign loops, 1000 live reads by 16 callers: wrong answers",
        sum(|result| result.0),
        Some(0.0),
    );
    table.row("the same: reads that were refused in time", sum(|result| result.1), None);
    table.row("the same: looks", sessions("looks") - before.2, None);
    table.row("the same: looks that failed", sessions("failed") - before.1, None);
    table.row(
        "the same: control processes turned away and tried again",
        sessions("retried") - before.0,
        None,
    );
    // A request waits 10 s for a fresh look (fresh_patience_s).
    table.row("the same: longest answer, ms", longest, Some(10_000.0));
}

/// What the example tenants make of the first daemon.
fn is_the_truth(status: &Value) -> bool {
    let seen = &status["effective"];
    let servers = seen["servers"].as_array().map_or(&[][..], Vec::as_slice);
    let limit = |limits: &Value| limits[0]["bytes"] == 8_u64 << 30;
    status["phase"] == "ready"
        && seen["default_active_thread_percentage"] == 50.0
        && limit(&seen["default_memory_limits"])
        && servers.len() == 1
        && servers[0]["status"] == "ACTIVE"
        && servers[0]["active_thread_percentage"] == 50.0
        && limit(&servers[0]["memory_limits"])
}

/// 100 000 commands of somebody else: what the logs have then.
fn commands(server: &Server, table: &mut Table) {
    let lines = "get_default_active_thread_percentage\n".repeat(10_000);
    let mut answered = 0;
    let deadline = Instant::now() + 10 * PATIENCE;
    while answered < 100_000 {
        assert!(Instant::now() < deadline, "the daemon does not take the commands");
        let mut child = server.control_program().spawn().expect("it starts");
        let mut input = child.stdin.take().expect("piped");
        let text = lines.clone();
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output().expect("it ends");
        let _ = writer.join();
        answered += output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    }
    let deadline = Instant::now() + PATIENCE;
    while server.log_mib() > LOG_BOUND_MIB && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    table.row(
        "after 100 000 commands of somebody else, the longer log, MiB",
        server.log_mib(),
        Some(LOG_BOUND_MIB),
    );
}

/// A minute with 8 clients that do nothing new.
fn idle(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start(directory);
    server.wait_ready();
    server.put(
        "/api/v1/tenants/idle",
        r#"{"daemon":"gpu0","uid":UID,"device_memory_limit":"1G","max_clients":8}"#,
    );
    server.wait_ready();
    let clients: Vec<Client> = (0..8).map(|_| Client::start(&server, "idle")).collect();
    let deadline = Instant::now() + PATIENCE;
    while server.get("/api/v1/clients").1["items"].as_array().map_or(0, Vec::len) < clients.len() {
        assert!(Instant::now() < deadline, "the clients are never listed");
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_secs(2));
    let processes = || {
        ["gpu0", "gpu1"].map(|name| {
            let (_, daemon) = server.get(&format!("/api/v1/daemons/{name}"));
            daemon["status"]["sessions"]["control_processes"].as_f64().expect("a count")
        })
    };
    let (before, worked, began) = (processes(), server.cpu_seconds(), Instant::now());
    std::thread::sleep(Duration::from_secs(60));
    let took = began.elapsed().as_secs_f64();
    let cpu = server.cpu_seconds() - worked;
    let after = processes();
    let most = (0..2).map(|daemon| after[daemon] - before[daemon]).fold(0.0, f64::max);
    table.row(
        "idle with 8 clients for a minute: control processes of a daemon",
        most * 60.0 / took,
        Some(15.0),
    );
    table.row("the same: the manager's share of a core, %", 100.0 * cpu / took, Some(1.0));
    table.row("the same: resident memory, MB", server.resident_mb(), Some(40.0));
    table.row("the same: the longer log, MiB", server.log_mib(), Some(LOG_BOUND_MIB));
}

/// What a Prometheus asks of eight GPUs with 64 tenants while one daemon hangs.
fn metrics(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start_as(directory, "h200x8@13.1");
    server.wait_ready();
    let daemons: Vec<String> = (0..8).map(|number| format!("gpu{number}")).collect();
    let shown = server.get("/api/v1/tenants").1["items"].as_array().map_or(0, Vec::len);
    for number in shown..64 {
        let daemon = &daemons[number % daemons.len()];
        let spec = format!(r#"{{"daemon":"{daemon}","uid":UID,"device_memory_limit":"1G","max_clients":2}}"#);
        server.put(&format!("/api/v1/tenants/tenant_{number}"), &spec);
    }
    server.wait_ready();
    // One client on each daemon.
    let clients: Vec<Client> =
        (56..64).map(|number| Client::start(&server, &format!("tenant_{number}"))).collect();
    let deadline = Instant::now() + PATIENCE;
    while server.get("/api/v1/clients").1["items"].as_array().map_or(0, Vec::len) < clients.len() {
        assert!(Instant::now() < deadline, "the clients are never listed");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (pid, _) = server.daemon("gpu0");
    signal(pid, rustix::process::Signal::STOP);
    server.wait_for("gpu0", |_, phase| phase != "ready");
    let mut texts = Vec::new();
    let mut times: Vec<f64> = (0..200)
        .map(|_| {
            // Over longer than the deadline of a command, so that some meet each of what the manager does meanwhile.
            std::thread::sleep(Duration::from_millis(30));
            let began = Instant::now();
            let text = server.text("/metrics");
            let took = millis(began.elapsed());
            assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
            assert!(text.contains("mps_manager_daemon_phase{daemon=\"gpu0\",phase=\"ready\"} 0"));
            texts.push(text);
            took
        })
        .collect();
    signal(pid, rustix::process::Signal::CONT);
    times.sort_by(f64::total_cmp);
    let last = texts.pop().unwrap_or_default();
    let body = last.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let series = body.lines().filter(|line| !line.starts_with('#')).count();
    let tenants: std::collections::BTreeSet<&str> =
        body.lines().filter(|line| line.starts_with("mps_manager_tenant_clients{")).collect();
    assert_eq!(tenants.len(), 64);
    table.row(
        "200 scrapes of 8 GPUs and 64 tenants while a daemon hangs, median, ms",
        times[100],
        Some(10.0),
    );
    table.row("the same: 99th percentile, ms", times[197], Some(10.0));
    table.row("the same: longest, ms", times[199], None);
    #[allow(clippy::cast_precision_loss, reason = "some thousands")]
    let (bytes, series) = (body.len() as f64, series as f64);
    table.row("the same: size, kB", bytes / 1000.0, None);
    table.row("the same: series", series, None);
}

/// A shell that calls the control program again and again, as scripts do.
struct Loop(Child);

impl Loop {
    fn start(server: &Server) -> Self {
        let script = "while :; do echo get_server_list | \"$0\"; echo ps | \"$0\"; done >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(server.control_path());
        command.env("CUDA_MPS_PIPE_DIRECTORY", server.pipe_directory()).process_group(0).stdin(Stdio::null());
        Self(command.spawn().expect("a shell"))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // With the caller that it has at the moment.
        let group =
            i32::try_from(self.0.id()).ok().and_then(rustix::process::Pid::from_raw).expect("a process ID");
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A CUDA program of a tenant that stays.
struct Client(Child);

impl Client {
    fn start(server: &Server, tenant: &str) -> Self {
        let (_, environment) = server.get(&format!("/api/v1/tenants/{tenant}/environment"));
        let mut command = Command::new(BINARY);
        command.args(["sim", "client", "--spin", "600"]).env_clear().stdout(Stdio::null());
        for (name, value) in environment["variables"].as_object().expect("variables") {
            command.env(name, value.as_str().expect("text"));
        }
        Self(command.spawn().expect("a client"))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One server on a simulated host of its own.
struct Server {
    child: Child,
    directory: PathBuf,
}

impl Server {
    /// Starts it; the time is from the spawn to the line that it prints once it listens.
    fn start(directory: &Path) -> (Self, Duration) {
        Self::start_as(directory, "h200x2@13.0")
    }

    fn start_as(directory: &Path, profile: &str) -> (Self, Duration) {
        std::fs::create_dir_all(directory).expect("a directory");
        let began = Instant::now();
        let mut child = Command::new(BINARY)
            .args(["serve", "--sim", profile, "--listen", "127.0.0.1:0"])
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

    /// A whole answer, over a connection of its own.
    fn text(&self, path: &str) -> String {
        let mut socket = UnixStream::connect(self.directory.join("r/api.sock")).expect("it listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        write!(socket, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        text
    }

    fn get(&self, path: &str) -> (u16, Value) {
        let text = self.text(path);
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

    fn daemon(&self, name: &str) -> (u64, String) {
        let (_, body) = self.get(&format!("/api/v1/daemons/{name}"));
        let pid = body["status"]["pid"].as_u64().unwrap_or(0);
        (pid, body["status"]["phase"].as_str().unwrap_or_default().to_owned())
    }

    /// Waits until a daemon's process and phase are these.
    fn wait_for(&self, name: &str, done: impl Fn(u64, &str) -> bool) {
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

    fn kill_daemon_and_wait(&self, name: &str) -> f64 {
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

    fn post(&self, path: &str) {
        self.send("POST", path, "");
    }

    /// Asks for an operation and waits for its success; milliseconds from the request to the answer that tells of it.
    fn operation(&self, path: &str, body: &str) -> f64 {
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
    fn in_static_mode(&self, name: &str) -> String {
        let (_, daemon) = self.get(&format!("/api/v1/daemons/{name}"));
        let gpu = daemon["spec"]["gpus"][0].as_str().expect("a GPU").to_owned();
        let spec = json!({"gpus": [gpu], "mode": "static"});
        self.put(&format!("/api/v1/daemons/{name}"), &spec.to_string());
        let before = daemon["status"]["pid"].as_u64().unwrap_or(0);
        self.wait_for(name, |pid, phase| pid != before && pid != 0 && phase == "ready");
        gpu
    }

    /// Makes fifteen partitions of one chunk as a script does, and takes them away again; milliseconds that the making took, or
    /// nothing where not all of them were made.
    fn shell_loop(&self, daemon: &str, gpu: &str, lists: bool) -> Option<f64> {
        const PARTITIONS: usize = 15;
        let pipe = self.directory.join("r/daemons").join(daemon).join("pipe");
        let list = if lists { "echo lspart | \"$0\" >/dev/null;" } else { "" };
        let script =
            format!("for i in $(seq {PARTITIONS}); do echo sm_partition add $1 1 | \"$0\"; {list} done");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).arg(self.control_path()).arg(gpu);
        shell.env("CUDA_MPS_PIPE_DIRECTORY", &pipe).stderr(Stdio::null());
        let began = Instant::now();
        let output = shell.output().expect("a shell");
        let took = millis(began.elapsed());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let made: Vec<&str> = text.lines().filter(|line| line.starts_with("GPU-")).collect();
        let removals: Vec<String> = made.iter().map(|name| format!("sm_partition rm {name}")).collect();
        let removed = || {
            let mut command = Command::new(self.control_path());
            command.env("CUDA_MPS_PIPE_DIRECTORY", &pipe).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = command.stderr(Stdio::null()).spawn().expect("it starts");
            let _ = child
                .stdin
                .take()
                .expect("piped")
                .write_all(format!("{}\nlspart\n", removals.join("\n")).as_bytes());
            let listed = child.wait_with_output().expect("it ends").stdout;
            let listed = String::from_utf8_lossy(&listed).into_owned();
            listed.contains("GPU-") && made.iter().all(|name| !listed.contains(&name[name.len() - 36..]))
        };
        let deadline = Instant::now() + PATIENCE;
        while !removed() {
            assert!(Instant::now() < deadline, "the partitions of the loop stay");
        }
        (made.len() == PARTITIONS).then_some(took)
    }

    /// Sessions that the daemon's log has counted.
    fn control_sessions(&self) -> usize {
        let log = self.directory.join("r/daemons/gpu0/log/control.log");
        std::fs::read_to_string(log).expect("a log").matches("NEW UI").count()
    }

    fn put(&self, path: &str, body: &str) {
        self.send("PUT", path, &body.replace("UID", &rustix::process::geteuid().as_raw().to_string()));
    }

    fn send(&self, method: &str, path: &str, body: &str) -> Value {
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

    fn control_path(&self) -> PathBuf {
        self.directory.join("r/sim/bin/nvidia-cuda-mps-control")
    }

    fn pipe_directory(&self) -> PathBuf {
        self.directory.join("r/daemons/gpu0/pipe")
    }

    /// The control program as somebody else calls it.
    fn control_program(&self) -> Command {
        let mut command = Command::new(self.control_path());
        command.env("CUDA_MPS_PIPE_DIRECTORY", self.pipe_directory());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// The longer of the first daemon's logs.
    fn log_mib(&self) -> f64 {
        let logs =
            ["control.log", "server.log"].map(|name| self.directory.join("r/daemons/gpu0/log").join(name));
        let longest = logs.iter().filter_map(|log| std::fs::metadata(log).ok()).map(|log| log.len()).max();
        #[allow(clippy::cast_precision_loss, reason = "some MiB")]
        let bytes = longest.unwrap_or(0) as f64;
        bytes / f64::from(1 << 20)
    }

    /// Time that the manager itself has spent on a core, without its children.
    fn cpu_seconds(&self) -> f64 {
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

    fn resident_mb(&self) -> f64 {
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
    let call = || {
        let mut child = server.control_program().spawn().expect("it starts");
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
    signal(pid, rustix::process::Signal::KILL);
}

fn signal(pid: u64, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw).expect("a process ID");
    let _ = rustix::process::kill_process(pid, signal);
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
