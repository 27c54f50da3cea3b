//! Starts, deaths, polls and idleness of daemons that serve tenants.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::host::TIMEOUT;
use crate::server::Server;
use crate::{Table, median, millis};

/// The size from which a log is emptied.
const LOG_BOUND_MIB: f64 = 4.0;

/// First starts, with the database made.
pub(crate) fn starts(directory: &Path, table: &mut Table) {
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

/// One server with a daemon that dies, that many clients read, and that other programs use.
pub(crate) fn polls(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start(directory);
    server.wait_ready();
    let restarts: Vec<f64> = (0..20).map(|_| server.kill_daemon_and_wait("gpu0")).collect();
    table.row("kill -9 of the control daemon to ready, ms (simulated)", median(restarts), Some(1000.0));

    let before = server.control_sessions();
    let started = Instant::now();
    let (mut failures, mut polls) = (0, 0u64);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..16).map(|_| scope.spawn(|| reader(&server, 63))).collect();
        for reader in readers {
            let (failed, most) = reader.join().expect("a reader ends");
            failures += failed;
            polls = polls.max(most);
        }
    });
    let took = started.elapsed();
    table.row("1008 live reads by 16 callers: failures", f64::from(failures), Some(0.0));
    #[allow(clippy::cast_precision_loss, reason = "a handful")]
    table.row("control processes of one poll, at most", polls as f64, Some(2.0));
    table.row("1008 live reads by 16 callers, reads a second", 1008.0 / took.as_secs_f64(), None);
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    table.row("sessions with the daemon for those reads", (server.control_sessions() - before) as f64, None);

    let (calls, failed) = direct_callers(&server, 8, 50);
    table.row("for comparison, direct calls by 8 callers", f64::from(calls), None);
    table.row("for comparison, direct calls that failed", f64::from(failed), None);

    beside_loops(&server, table);
    commands(&server, table);
}

/// 1000 live reads by 16 callers beside 4 foreign loops, each compared with what the example tenants make of the daemon.
fn beside_loops(server: &Server, table: &mut Table) {
    const READS: usize = 1000;
    let sessions = |what: &str| {
        server.get("/api/v1/daemons/gpu0").1["status"]["sessions"][what].as_f64().expect("a count")
    };
    let loops: Vec<Loop> = (0..4).map(|_| Loop::start(server)).collect();
    let before = (sessions("retried"), sessions("failed"), sessions("polls"));
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
    table.row("the same: polls", sessions("polls") - before.2, None);
    table.row("the same: polls that failed", sessions("failed") - before.1, None);
    table.row(
        "the same: control processes turned away and tried again",
        sessions("retried") - before.0,
        None,
    );
    // A request waits 10 s for a fresh poll (fresh_timeout_s).
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

/// 100 000 commands of another program: what the logs have then.
fn commands(server: &Server, table: &mut Table) {
    let lines = "get_default_active_thread_percentage\n".repeat(10_000);
    let mut answered = 0;
    let deadline = Instant::now() + 10 * TIMEOUT;
    while answered < 100_000 {
        assert!(Instant::now() < deadline, "the daemon does not take the commands");
        let mut child = server.control_program("gpu0").spawn().expect("it starts");
        let mut input = child.stdin.take().expect("piped");
        let text = lines.clone();
        let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
        let output = child.wait_with_output().expect("it ends");
        let _ = writer.join();
        answered += output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).count();
    }
    let deadline = Instant::now() + TIMEOUT;
    while server.log_mib() > LOG_BOUND_MIB && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    table.row(
        "after 100 000 commands of another program, the longer log, MiB",
        server.log_mib(),
        Some(LOG_BOUND_MIB),
    );
}

/// A minute with 8 clients that do nothing new.
pub(crate) fn idle(directory: &Path, table: &mut Table) {
    let (server, _) = Server::start(directory);
    server.wait_ready();
    server.put(
        "/api/v1/tenants/idle",
        r#"{"daemon":"gpu0","uid":UID,"device_memory_limit":"1G","max_clients":8}"#,
    );
    server.wait_ready();
    let _clients = server.clients(["idle"; 8]);
    std::thread::sleep(Duration::from_secs(2));
    let processes = || {
        ["gpu0", "gpu1"].map(|name| {
            let (_, daemon) = server.get(&format!("/api/v1/daemons/{name}"));
            daemon["status"]["sessions"]["control_processes"].as_f64().expect("a count")
        })
    };
    let lines = server.control_log_lines();
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
    let lines = (server.control_log_lines() - lines) * 60.0 / took;
    table.row("the same: lines that control.log gained", lines, Some(60.0));
    table.row("the same: the manager's share of a core, %", 100.0 * cpu / took, Some(1.0));
    table.row("the same: resident memory, MB", server.resident_mb(), Some(40.0));
    table.row("the same: the longer log, MiB", server.log_mib(), Some(LOG_BOUND_MIB));
}

/// A shell that calls the control program again and again, as scripts do.
struct Loop(Child);

impl Loop {
    fn start(server: &Server) -> Self {
        let script = "while :; do echo get_server_list | \"$0\"; echo ps | \"$0\"; done >/dev/null 2>&1";
        let mut command = Command::new("sh");
        command.arg("-c").arg(script).arg(server.control_path());
        command
            .env("CUDA_MPS_PIPE_DIRECTORY", server.pipe_directory("gpu0"))
            .process_group(0)
            .stdin(Stdio::null());
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

/// Reads live `reads` times; failures, and the most control processes that one read took.
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

/// The same reads without the manager: calls, and calls that failed.
fn direct_callers(server: &Server, callers: u32, each: u32) -> (u32, u32) {
    let call = || {
        let mut child = server.control_program("gpu0").spawn().expect("it starts");
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
