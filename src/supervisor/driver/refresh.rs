//! Readings between two sessions with a daemon, without opening one: the GPUs' processes and the state of the daemon's own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Driver;
use crate::domain::GpuUuid;
use crate::domain::bypass::Bypass;
use crate::domain::gpu::GpuProcess;
use crate::domain::plan::Desired;
use crate::domain::timings::Timings;
use crate::host::{self, Identity};
use crate::mps::process::{PIPE_ENV, check_reachable, is_server};
use crate::supervisor::handout::CHECKED;
use crate::supervisor::observe::signs::living_signs;
use crate::supervisor::reconcile::daemon::PollInterval;

/// Number of check intervals between two sessions with an observed daemon.
const OBSERVED_PAUSES: i64 = 8;

impl Driver {
    /// Returns the pause until the next session if nothing happens, which is long where the logs report every change. Each
    /// session adds about 1.5 KB to control.log, which only the owner of an observed daemon may truncate.
    pub(super) fn check_interval(&self, desired: &Desired) -> PollInterval {
        let ms = |pause: std::time::Duration| i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        let (quick, slow) = (ms(self.context.check_interval), ms(self.context.poll));
        PollInterval(pause(quick, slow, self.logs.live, desired.is_observed()))
    }

    /// Returns the time at which processes and GPUs are read again.
    pub(super) fn refresh_due(&self) -> i64 {
        if self.follows_bypasses_only() && self.bypasses.is_empty() {
            return i64::MAX;
        }
        let pause = self.context.check_interval.min(Timings::duration(self.context.timings.processes_ms));
        let pause = i64::try_from(pause.as_millis()).unwrap_or(i64::MAX);
        self.refreshed_at.saturating_add(pause)
    }

    /// Returns the time of the next check of the tenants' directories, if the last one left some.
    pub(super) fn handout_due(&self, desired: &Desired) -> i64 {
        let pause = i64::try_from(CHECKED.as_millis()).unwrap_or(i64::MAX);
        let is_left = self.context.handouts.has_unchecked(&desired.name);
        if is_left { self.now().saturating_add(pause) } else { i64::MAX }
    }

    fn check_interval_ms(&self) -> i64 {
        i64::try_from(self.context.check_interval.as_millis()).unwrap_or(i64::MAX)
    }

    /// Returns true if the daemon does not run or was not read, so that a process on its GPUs cannot be distinguished from a client.
    fn follows_bypasses_only(&self) -> bool {
        self.state.process.is_none() || self.state.seen.is_none()
    }

    /// Reads the memory use of clients, the processes outside MPS, and whether the daemon's own processes are stopped.
    pub(super) async fn refresh(&mut self, desired: &Desired) {
        let now = self.now();
        self.refreshed_at = now;
        let inventory = Arc::clone(&self.context.inventory);
        let gpus = desired.gpus.clone();
        let ours: Vec<u32> = self.clients.iter().map(|client| client.id.pid).collect();
        let daemons = self.context.foreign_daemons.control_processes();
        let read = tokio::task::spawn_blocking(move || {
            let listed: Option<Vec<(GpuUuid, Vec<GpuProcess>)>> = gpus
                .into_iter()
                .map(|gpu| inventory.processes(&gpu).ok().map(|processes| (gpu, processes)))
                .collect();
            listed.map(|listed| {
                let bypasses = outside_mps(&listed, &ours, &daemons);
                (listed, bypasses)
            })
        })
        .await;
        // Values that the driver does not report now stay as they were.
        if let Ok(Some((listed, bypasses))) = read {
            for client in &mut self.clients {
                for (gpu, processes) in &listed {
                    let memory = processes.iter().find(|process| process.pid == client.id.pid);
                    if let (Some(process), Some((_, used))) =
                        (memory, client.memory.iter_mut().find(|(listed, _)| listed == gpu))
                    {
                        *used = process.used_memory;
                    }
                }
            }

            let events = if self.follows_bypasses_only() {
                self.bypasses.follow(&desired.name, bypasses, now)
            } else {
                self.bypasses.observe(&desired.name, bypasses, now)
            };
            for event in events {
                self.event_detector.emit(event);
            }
        }
        if self.state.process.is_none() || now < self.looked_at.saturating_add(self.check_interval_ms()) {
            return;
        }
        self.looked_at = now;
        let control = self.state.process.iter().map(|process| process.identity);
        if control.chain(self.servers()).any(|process| host::process::is_stopped(process.pid)) {
            // A stopped process answers no session, which a poll shows.
            self.state.request_poll();
        }
        self.read_shortages();
    }
}

/// Returns the pause until the next session, in milliseconds.
fn pause(quick: i64, slow: i64, live: bool, observed: bool) -> i64 {
    match (observed, live) {
        (true, _) => slow.max(quick.saturating_mul(OBSERVED_PAUSES)),
        (false, true) => slow,
        (false, false) => quick,
    }
}

/// Returns the processes that are neither clients of MPS, nor servers, nor this manager's own. `daemons` are its control processes.
fn outside_mps(
    listed: &[(GpuUuid, Vec<GpuProcess>)],
    clients: &[u32],
    daemons: &[Identity],
) -> BTreeMap<Identity, Bypass> {
    let manager = std::process::id();
    let mut bypasses = BTreeMap::new();
    for (gpu, processes) in listed {
        for process in processes {
            let is_known = process.mps_client
                || clients.contains(&process.pid)
                || belongs_to(process.pid, daemons)
                || is_server(process.pid);
            if is_known || host::process::ancestors(process.pid).any(|pid| pid == manager) {
                continue;
            }
            // A process that is gone or cannot be seen from here could not be distinguished from a later one with its PID.
            let Some(identity) = host::process::identify(process.pid) else { continue };
            bypasses.entry(identity).or_insert_with(|| Bypass {
                pid: process.pid,
                gpu: gpu.clone(),
                uid: host::process::uid(process.pid),
                program: host::process::program(process.pid),
                // Added by the holder of the leases.
                tenant: None,
                missing_pipe: missing_pipe(process.pid),
                signs: living_signs(process.pid),
            });
        }
    }
    bypasses
}

/// Returns the pipe directory in a process's environment if it does not exist in the process's mount namespace, or its user
/// may not pass through it. CUDA then runs without MPS and says nothing.
fn missing_pipe(pid: u32) -> Option<String> {
    let path = PathBuf::from(host::process::variable(pid, PIPE_ENV)?);
    let inside = Path::new("/proc").join(pid.to_string()).join("root").join(path.strip_prefix("/").ok()?);
    let is_missing = matches!(inside.try_exists(), Ok(false));
    let is_closed = || host::process::uid(pid).is_some_and(|uid| check_reachable(&path, uid).is_err());
    (is_missing || is_closed()).then(|| path.display().to_string().chars().take(120).collect())
}

/// Returns true if a process is one of these living control processes or a child of one: a server has no other parent.
fn belongs_to(pid: u32, daemons: &[Identity]) -> bool {
    let parent = host::process::parent(pid);
    let is_it = |daemon: &&Identity| daemon.pid == pid || Some(daemon.pid) == parent;
    daemons.iter().filter(is_it).any(|daemon| host::process::is_alive(*daemon))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt as _;

    use super::*;

    #[test]
    fn bypass_named_like_a_server_is_detected() {
        // Not a child of this process, which counts as the manager here.
        let script = "(exec -a nvidia-cuda-mps-server sleep 600) >/dev/null & echo $!";
        let started = std::process::Command::new("bash")
            .args(["-c", script])
            .process_group(0)
            .stderr(std::process::Stdio::null())
            .output()
            .expect("bash");
        let pid = String::from_utf8_lossy(&started.stdout).trim().parse().expect("a process ID");
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let is_called_so = || {
            let words = host::process::command(pid).unwrap_or_default();
            words.first().is_some_and(|word| word == "nvidia-cuda-mps-server")
        };
        while !is_called_so() || host::process::ancestors(pid).any(|above| above == std::process::id()) {
            assert!(std::time::Instant::now() < deadline, "it never ran by itself");
            std::thread::yield_now();
        }
        let identity = host::process::identify(pid).expect("alive");
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let listed = [(gpu, vec![GpuProcess { pid, used_memory: None, mps_client: false }])];
        let outside =
            |daemons: &[Identity]| outside_mps(&listed, &[], daemons).into_keys().collect::<Vec<_>>();
        let found = outside(&[]);
        let parent = host::process::parent(pid).and_then(host::process::identify);
        let of_daemon = parent.map(|parent| outside(&[parent]));
        let later = parent.map(|parent| outside(&[Identity { start_time: parent.start_time + 1, ..parent }]));
        host::signal::send(identity, host::Signal::KILL, host::signal::SignalReason::ListedClient)
            .expect("allowed");
        assert_eq!(found, [identity]);
        assert_eq!(of_daemon, parent.map(|_| Vec::new()), "the child of a control process is its server");
        assert_eq!(later, parent.map(|_| vec![identity]), "another process had that number");
    }

    #[test]
    fn polls_are_rare_where_logs_report_changes() {
        assert_eq!(pause(8_000, 60_000, true, false), 60_000);
        assert_eq!(pause(8_000, 60_000, false, false), 8_000);
        assert_eq!(pause(8_000, 60_000, true, true), 64_000);
        assert_eq!(pause(1_000, 1_000, true, false), 1_000);
        assert_eq!(pause(8_000, 3_600_000, true, true), 3_600_000);
    }
}
