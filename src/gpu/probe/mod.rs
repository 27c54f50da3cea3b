//! `mps-manager cuda-probe`: reports what a real CUDA process sees in the environment in which it is started.
//!
//! The command starts itself once more as a child, and only the child touches CUDA. So whatever CUDA does (a
//! crash in the driver's library, a panic for want of a symbol, waiting forever in MPS's queue of clients)
//! becomes an answer, and no other process of this program is ever an MPS client. The child inherits the
//! environment as it is, since that is the very thing to be probed.
//!
//! **A child that does not answer is never killed.** On a real daemon (13.0), a client that is killed while it
//! waits to be connected, for its user's turn or for the server to start, hangs the server that comes up for it,
//! and with it the daemon and all its commands; SIGTERM does the same as SIGKILL
//! (tests/fixtures/hardware/10-h200-x1-probe.txt). So the child is left to wait, in a process group of its own
//! so that an interrupt from the terminal passes it by, and ends by itself as soon as `cuInit` returns.
//!
//! In the server a [`Prober`] does this, in the environment and as the user of a tenant.
//!
//! One JSON object goes to stdout, a [`Report`]. Exit code 0 says that CUDA worked, 3 that it did not (`error`
//! says why), 2 that the arguments are wrong.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::domain::MemoryLimit;

use super::cuda;
use super::report::{Failure, ProbeFailure, Report};
use crate::host::user::become_user;

mod chunk_count;
mod prober;

pub use chunk_count::{CensusError, CensusRequest};
pub use prober::{ProbeRequest, Prober};

/// Exit code when CUDA refuses, or is not there.
const REFUSED: u8 = 3;
/// Exit code if the report cannot be written.
const NOT_WRITTEN: u8 = 2;

/// Most bytes of a crashed child's stderr in the answer.
const STDERR_SHOWN: usize = 2000;

/// Longest time for a child that has closed its output to end.
const ENDING_GRACE: Duration = Duration::from_secs(2);

/// Arguments of `mps-manager cuda-probe`.
#[derive(Debug, Clone, clap::Args)]
pub struct ProbeArgs {
    /// Also find the largest single allocation up to this size (as 4G or 512M) on each device. It is freed at
    /// once, but for a moment other processes cannot have that memory.
    #[arg(long, value_name = "SIZE", value_parser = MemoryLimit::parse)]
    pub allocate_up_to: Option<MemoryLimit>,
    /// Give no later answer than after this many seconds. A client that MPS makes wait (for another user's
    /// clients to leave, say) may wait forever; its process is left waiting, and its PID is in the answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=600))]
    pub timeout: u64,
    /// Probe as this user; only root may probe as another.
    #[arg(long, value_name = "UID")]
    pub uid: Option<u32>,
    /// Be the process that uses CUDA.
    #[arg(long, hide = true)]
    pub child: bool,
    /// Print the PID of the process that uses CUDA first; it begins when stdin ends.
    #[arg(long, hide = true)]
    pub announce: bool,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> ExitCode {
    if args.child {
        return run_child(args);
    }
    let report = match args.uid.map(become_user) {
        Some(Err(error)) => Report::failed(Failure::own(ProbeFailure::NotStarted, error)),
        Some(Ok(_)) | None => {
            supervise(child_command(args), Duration::from_secs(args.timeout), args.announce)
        }
    };
    answered(&report)
}

/// Runs the child: uses CUDA and prints its report.
fn run_child(args: &ProbeArgs) -> ExitCode {
    let parent = rustix::process::getppid();
    if args.announce {
        // The end of the input is the signal to begin, and so is an error.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    let still_wanted = || rustix::process::getppid() == parent;
    let Some(report) = cuda::probe(args.allocate_up_to.map(MemoryLimit::bytes), still_wanted) else {
        return ExitCode::from(REFUSED);
    };
    answered(&report)
}

/// Makes the command that starts this program once more, as the child.
fn child_command(args: &ProbeArgs) -> Command {
    // Not the path: the file there may have been replaced since this process started.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("mps-manager").args(["cuda-probe", "--child"]).process_group(0);
    if args.announce {
        command.arg("--announce");
    }
    if let Some(limit) = args.allocate_up_to {
        command.args(["--allocate-up-to", &limit.as_mps()]);
    }
    command
}

/// Runs the child to its end or its deadline and turns whatever happened into a report.
fn supervise(mut command: Command, timeout: Duration, announce: bool) -> Report {
    command.stdin(if announce { Stdio::inherit() } else { Stdio::null() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return Report::failed(Failure::own(
                ProbeFailure::NotStarted,
                format!("the probe's child did not start: {error}"),
            ));
        }
    };
    if announce {
        // A reader that is gone would not see an error either.
        let _ = print_line(&child.id().to_string());
    }
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let Ok(stdout) = stdout.recv_timeout(timeout) else {
        return Report { pid: Some(child.id()), ..Report::failed(no_answer(child.id(), timeout)) };
    };
    // Its stdout is closed, so it has ended or is about to.
    let ending = wait(&mut child).map_or_else(|| "it closed its output and stayed".to_owned(), ending);
    answer(&stdout).unwrap_or_else(|| {
        let message = stderr.recv_timeout(ENDING_GRACE).unwrap_or_default();
        Report::failed(crash(&ending, &message))
    })
}

/// Reads a pipe to its end on a thread of its own, so that neither a full pipe nor a silent one blocks us.
fn collect(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Output before a failure is still worth showing.
            let _ = pipe.read_to_end(&mut bytes);
        }
        // Nobody listens now once the deadline has passed.
        let _ = sender.send(bytes);
    });
    receiver
}

/// Reads the report from the child's output: its last line, in case a library wrote to stdout before it.
fn answer(stdout: &[u8]) -> Option<Report> {
    stdout.split(|byte| *byte == b'\n').rev().find_map(|line| serde_json::from_slice(line).ok())
}

/// Waits for a child that is about to end.
fn wait(child: &mut Child) -> Option<ExitStatus> {
    const PAUSE: Duration = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if waited < ENDING_GRACE => {
                std::thread::sleep(PAUSE);
                waited += PAUSE;
            }
            Ok(None) | Err(_) => return None,
        }
    }
}

fn no_answer(pid: u32, timeout: Duration) -> Failure {
    Failure::own(
        ProbeFailure::Timeout,
        format!(
            "CUDA gave no answer within {} s. Under MPS a client waits while another user's clients are connected, \
             or when the control daemon hangs. Process {pid} is left waiting and ends by itself; do not kill it: \
             killing a waiting client hangs the MPS daemon",
            timeout.as_secs_f32()
        ),
    )
}

fn ending(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("killed by signal {signal}"),
        None => format!("exit code {}", status.code().unwrap_or(-1)),
    }
}

fn crash(how: &str, stderr: &[u8]) -> Failure {
    let message = String::from_utf8_lossy(&stderr[stderr.len().saturating_sub(STDERR_SHOWN)..]);
    let message = message.trim();
    let message = if message.is_empty() { "nothing" } else { message };
    Failure::own(
        ProbeFailure::Crashed,
        format!("the process ended without an answer: {how}; on stderr: {message}"),
    )
}

/// Prints the report.
fn answered(report: &Report) -> ExitCode {
    let text = serde_json::to_string(report).expect("a report holds no map and no odd number");
    match print_line(&text) {
        Err(_) => ExitCode::from(NOT_WRITTEN),
        Ok(()) if report.error.is_some() => ExitCode::from(REFUSED),
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn print_line(text: &str) -> std::io::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn shell(script: &str, timeout: Duration) -> Report {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        supervise(command, timeout, false)
    }

    fn failure(report: Report) -> Failure {
        report.error.expect("a failure")
    }

    #[test]
    fn probe_report_is_read_despite_other_output() {
        let mut written = Report::empty();
        written.pid = Some(7);
        let text = serde_json::to_string(&written).expect("JSON");
        assert_eq!(shell(&format!("echo 'a library speaks'; echo '{text}'"), LONG), written);
        assert_eq!(shell(&format!("echo '{text}'; exit 3"), LONG), written);
        assert_eq!(
            shell(&format!("echo '{text}'; kill -SEGV $$"), LONG),
            written,
            "a crash in an exit handler"
        );
    }

    #[test]
    fn a_crash_is_an_answer() {
        let failed = failure(shell("echo oh no >&2; kill -SEGV $$", LONG));
        assert_eq!(failed.name, "crashed");
        assert!(
            failed.message.contains("signal 11") && failed.message.contains("oh no"),
            "{}",
            failed.message
        );
        let failed = failure(shell("exit 101", LONG));
        assert!(
            failed.message.contains("exit code 101") && failed.message.contains("nothing"),
            "{}",
            failed.message
        );
    }

    #[test]
    fn hung_probe_is_reported_and_not_killed() {
        let report = shell("exec sleep 600", Duration::from_millis(50));
        let pid = report.pid.expect("the waiting child's PID");
        let child = rustix::process::Pid::from_raw(pid.cast_signed()).expect("a PID");
        assert!(rustix::process::test_kill_process(child).is_ok(), "it is alive");
        rustix::process::kill_process(child, rustix::process::Signal::KILL)
            .expect("this one waits for no MPS");
        let failed = failure(report);
        assert_eq!(failed.name, "timeout");
        assert!(failed.message.contains(&format!("Process {pid} is left waiting")), "{}", failed.message);
    }

    #[test]
    fn a_child_that_cannot_start_is_an_answer() {
        let failed = failure(supervise(Command::new("/nowhere/at/all"), LONG, false));
        assert_eq!(failed.name, "not_started");
    }

    #[test]
    fn much_output_does_not_block_the_child() {
        let failed = failure(shell("head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero", LONG));
        assert_eq!(failed.name, "crashed");
        assert!(failed.message.len() < 3 * STDERR_SHOWN);
    }
}
