//! A daemon's two logs while it runs: followed, kept short, and watched so that a line can wake a poll.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use tokio::time::Instant;

use super::evidence::LogEvidence;
use super::log_state::{FailedServer, LogState, PendingClient};
use super::signs::living_signs;
use crate::domain::FilePlace;
use crate::domain::GpuUuid;
use crate::domain::attribution::Signs;
use crate::domain::client::ClientFacts;
use crate::domain::daemon::{Effective, ServedUser, Waiting, WaitingClient};
use crate::host::{self, Watch, process};
use crate::mps::log::{self, Follow, Gained, LogRecord};
use crate::supervisor::observe::server_log_events::ServerLogEvents;

/// Size at which a log is emptied: every poll adds some lines, and nothing else would ever remove them. Twice as much of the
/// removed text is kept in a file beside it.
const LOG_BOUND: u64 = 4 << 20;
/// Pause after the logs were read: with callers that write all the time, they are read ten times a second.
const QUIET: Duration = Duration::from_millis(100);
/// Largest difference between the clock of a log line and the start time of a process, in milliseconds: the clock may have
/// been corrected between the two.
const CLOCKS: i64 = 2_000;

/// Logs of one daemon.
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each named")]
pub(crate) struct Logs {
    pipe_directory: PathBuf,
    log_directory: PathBuf,
    control: Follow,
    server: Follow,
    state: LogState,
    server_log_events: ServerLogEvents,
    /// Reader, used once, of the lines that were written since an earlier manager read server.log.
    gap: Option<Follow>,
    watch: Option<Watch>,
    quiet_until: Instant,
    /// True if something happened that is worth a poll, and it was not taken yet.
    pub(crate) woken: bool,
    /// True if this manager's last session was found in control.log. A change by another program would then be found too, and
    /// there is little to poll for.
    pub(crate) live: bool,
    /// True if commands of another program may be missing from what was read of control.log.
    lost: bool,
    /// True if the logs are kept short: those of a daemon that is only observed belong to its owner.
    pub(crate) bounded: bool,
}

impl Logs {
    /// Follows the logs of a daemon. `place` is the position to which an earlier manager has read server.log: later lines make events.
    pub(crate) fn new(
        pipe_directory: &Path,
        log_directory: &Path,
        place: Option<FilePlace>,
        now: i64,
    ) -> Self {
        let watch = Watch::new()
            .inspect_err(|error| {
                tracing::warn!(%error, "logs cannot be watched, so what happens is seen at the next poll only");
            })
            .ok();
        let mut logs =
            Self { watch, pipe_directory: pipe_directory.to_owned(), ..Self::unwatched(log_directory) };
        match place {
            Some(place) => logs.gap = Some(Follow::resumed(log_directory.join("server.log"), place)),
            None => logs.server_log_events = ServerLogEvents::since(now),
        }
        logs
    }

    /// Reads the logs of a foreign daemon once; nothing is written to them.
    pub(crate) fn read_once(log_directory: &Path, gpus: &[GpuUuid]) -> Self {
        let mut logs = Self { bounded: false, ..Self::unwatched(log_directory) };
        logs.read(gpus);
        logs
    }

    fn unwatched(log_directory: &Path) -> Self {
        Self {
            pipe_directory: PathBuf::new(),
            log_directory: log_directory.to_owned(),
            control: Follow::new(log_directory.join("control.log")),
            server: Follow::new(log_directory.join("server.log")),
            state: LogState::default(),
            server_log_events: ServerLogEvents::default(),
            gap: None,
            watch: None,
            quiet_until: Instant::now(),
            woken: false,
            live: false,
            lost: false,
            bounded: true,
        }
    }

    /// Returns true if commands of another program may have been missed since the last call.
    pub(crate) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Forgets all writes of other programs so far, which are the desired values of a daemon that was adopted as it is.
    pub(crate) fn accept_overwrites(&mut self, gpus: &[GpuUuid]) {
        self.read(gpus);
        self.state.accept_overwrites();
    }

    /// Notes that this manager has sent a command, which was answered.
    pub(crate) fn wrote(&mut self, command: &str) {
        self.state.wrote(command);
    }

    /// Notes whether this manager's last session is in control.log, which had `before` of its sessions until then.
    pub(crate) fn note_session(&mut self, before: u64) {
        self.live = self.watch.is_some() && self.state.own_sessions() > before;
    }

    /// Returns the state as the logs have reported it so far.
    pub(crate) fn state(&self) -> &LogState {
        &self.state
    }

    /// Reads the new lines, and empties a log that has grown past its bound.
    pub(crate) fn read(&mut self, gpus: &[GpuUuid]) {
        let control = self.control.read();
        let server = self.server.read();
        // The lines that were skipped may have been anything.
        self.woken |= control.skipped || server.skipped;
        if server.skipped {
            self.state.missed();
        }
        if control.skipped {
            self.lost = true;
        }
        let gap = self.gap.take().map(|mut gap| gap.read_to(self.server.offset()));
        let unread = gap.as_ref().unwrap_or(&server);
        if unread.skipped {
            self.server_log_events.missed();
        }
        for record in &unread.records {
            note_server_record(&mut self.server_log_events, record);
        }
        for record in &control.records {
            self.woken |= self.state.control(record);
        }
        for record in &server.records {
            self.woken |= self.state.server(record, gpus);
        }
        if self.bounded {
            self.bound(gpus);
        }
        self.quiet_until = Instant::now() + QUIET;
    }

    fn bound(&mut self, gpus: &[GpuUuid]) {
        for name in ["control.log", "server.log"] {
            let path = self.log_directory.join(name);
            let follow = if name == "control.log" { &mut self.control } else { &mut self.server };
            let mut last = Gained::default();
            let emptied = log::bound(&path, LOG_BOUND, || {
                if let Err(error) = log::set_aside(&path, LOG_BOUND) {
                    tracing::warn!(path = %path.display(), %error, "a log is emptied, and its lines could not be kept");
                }
                last = follow.read();
            });
            match emptied {
                Ok(true) => {
                    follow.emptied();
                    for record in &last.records {
                        self.woken |= if name == "control.log" {
                            self.state.control(record)
                        } else {
                            note_server_record(&mut self.server_log_events, record);
                            self.state.server(record, gpus)
                        };
                    }
                    // Lines that came between the last reading and the emptying are lost.
                    self.state.missed();
                    if name == "server.log" {
                        self.server_log_events.missed();
                    } else {
                        self.lost = true;
                    }
                    tracing::info!(path = %path.display(), "emptied a log that had grown past {LOG_BOUND} bytes");
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(path = %path.display(), %error, "a log could not be bounded"),
            }
        }
    }

    /// Returns the events of server.log that are not published yet.
    pub(crate) fn server_log_events(&mut self) -> &mut ServerLogEvents {
        &mut self.server_log_events
    }

    /// Returns the position to which server.log was read, once all its events are published.
    pub(crate) fn read_to(&self) -> Option<FilePlace> {
        self.server.place().filter(|_| self.server_log_events.is_complete())
    }

    /// Takes the last server that ended before it was ready.
    pub(crate) fn take_failed_server(&mut self) -> Option<FailedServer> {
        self.state.take_failed()
    }

    /// Returns true if something worth a poll happened since the last call.
    pub(crate) fn take_woken(&mut self) -> bool {
        std::mem::take(&mut self.woken)
    }

    /// Notes that a poll has listed all clients of these servers.
    pub(crate) fn polled(&mut self, servers: impl Iterator<Item = u32>) {
        self.state.polled(servers);
    }

    /// Notes that a poll found these servers to take clients.
    pub(crate) fn recovered(&mut self, servers: impl Iterator<Item = u32>) {
        self.state.recovered(servers);
    }

    /// Forgets a `quit` that was sent to the control process: an earlier manager may have sent it.
    pub(crate) fn forget_quit(&mut self, gpus: &[GpuUuid]) {
        self.read(gpus);
        self.state.forget_quit();
    }

    /// Returns true if a living server hangs according to server.log.
    pub(crate) fn shows_hang(&self) -> bool {
        self.state.hung().any(|server| process::identify(server).is_some())
    }

    /// Returns the evidence of the logs about servers, clients and waiting processes, as far as /proc agrees.
    pub(crate) fn evidence(&self) -> LogEvidence {
        let boot_time = host::boot_time();
        let is_it = |(pid, since): &(u32, DateTime)| {
            let since = since.to_zoned(TimeZone::system()).ok().map(|at| at.timestamp().as_millisecond());
            let identity = process::identify(*pid);
            identity
                .zip(since)
                .is_some_and(|(id, since)| process::started_at(id, boot_time) <= since + CLOCKS)
        };
        let mut waiting: Vec<u32> = self.state.waiting().filter(is_it).map(|(pid, _)| pid).collect();
        // Dead processes are forgotten at each answered poll, so these have died since, unless their server has logged it.
        let gone =
            |pid: &u32| process::identify(*pid).is_none() && self.state.left().all(|left| left != *pid);
        let waited = !waiting.is_empty() || self.state.waiting().any(|(pid, _)| gone(&pid));
        waiting.sort_unstable();
        waiting.dedup();
        LogEvidence {
            hung: self.state.hung().collect(),
            connected: self.state.connected().collect(),
            left: self.state.left().collect(),
            waiting,
            waited,
            followed: self.state.followed().collect(),
        }
    }

    /// Forgets processes that are dead.
    pub(crate) fn prune(&mut self) {
        self.state.prune(|pid| process::identify(pid).is_some());
    }

    /// Completes when a log or the pipe directory has changed, but not before the logs may be read again.
    ///
    /// Never completes where directories cannot be watched: polls come at their interval anyway.
    pub(crate) async fn changed(&mut self) {
        let Some(watch) = &mut self.watch else { return std::future::pending().await };
        for directory in [&self.log_directory, &self.pipe_directory] {
            if let Err(error) = watch.cover(directory) {
                tracing::debug!(directory = %directory.display(), %error, "a directory cannot be watched");
            }
        }
        tokio::time::sleep_until(self.quiet_until).await;
        watch.changed().await;
    }

    /// Returns the processes that wait for the clients of another user to be gone.
    ///
    /// The log names them, and anybody may write to it: /proc has to agree that the process lives, belongs to that user and
    /// existed when the line was written. A first client that waits for its own server is no queue.
    pub(crate) fn queue(&self, effective: &Effective, clients: &[ClientFacts]) -> Vec<Waiting> {
        let serving = effective.servers.iter().find_map(|server| Some((server.pid, server.uid?)));
        let Some((server, present)) = serving else { return Vec::new() };
        let boot_time = host::boot_time();
        let waits = self.state.pending().filter_map(|(pid, PendingClient { uid, since })| {
            let identity = process::identify(pid)?;
            let since = since.to_zoned(TimeZone::system()).ok()?.timestamp().as_millisecond();
            let connected = clients.iter().any(|client| client.id.pid == pid);
            let agrees = uid != present
                && !connected
                && process::uid(pid) == Some(uid)
                && process::started_at(identity, boot_time) <= since + CLOCKS;
            agrees.then_some((uid, WaitingClient { pid, since }))
        });
        let behind = ServedUser {
            uid: present,
            server,
            clients: clients
                .iter()
                .filter(|client| client.server == server)
                .map(|client| client.id.pid)
                .collect(),
        };
        by_user(waits.collect(), &behind)
    }
}

/// Reads a message of server.log, and the signs of a process that it reports as refused: at once, since the process may end any moment.
fn note_server_record(events: &mut ServerLogEvents, record: &LogRecord) {
    let Some(refusal) = events.read_record(record) else { return };
    let boot_time = host::boot_time();
    // The PID may belong to another process by now.
    let was_there = |signs: &Signs| {
        refusal.at.is_none_or(|at| process::started_at(signs.id.into(), boot_time) <= at + CLOCKS)
    };
    refusal.process = refusal.pid.and_then(living_signs).filter(was_there);
}

/// Groups waiting clients by user, in order of arrival.
fn by_user(mut waits: Vec<(u32, WaitingClient)>, behind: &ServedUser) -> Vec<Waiting> {
    waits.sort_by_key(|(_, client)| (client.since, client.pid));
    let mut queue: Vec<Waiting> = Vec::new();
    for (uid, client) in waits {
        match queue.iter_mut().find(|waiting| waiting.uid == uid) {
            Some(waiting) => waiting.waiting.push(client),
            None => queue.push(Waiting { uid, waiting: vec![client], behind: behind.clone() }),
        }
    }
    queue
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn refused_process_is_read_when_its_line_is() {
        let this = std::process::id();
        let started = process::identify(this).expect("alive");
        let started = process::started_at(started, host::boot_time());
        let refused = |pid: u32, at: i64| {
            let mut events = ServerLogEvents::default();
            let at = jiff::Timestamp::from_millisecond(at).expect("a time").to_zoned(TimeZone::system());
            let at = at.strftime("%Y-%m-%d %H:%M:%S%.3f");
            let message = format!("Failed to accept client {{PID: {pid}, Context ID: 0}} with status 807");
            let line = format!("[{at} Server  1115] {message}\n");
            for record in &log::read(line.as_bytes()) {
                note_server_record(&mut events, record);
            }
            let refused = events.take_refused();
            assert_eq!(refused.len(), 1, "{line}");
            refused[0].process.as_ref().map(|signs| signs.id.pid)
        };
        assert_eq!(refused(this, started), Some(this));
        assert_eq!(refused(1 << 23, started), None, "no process has this number");
        assert_eq!(refused(this, started - 60_000), None, "its number was another's");
    }

    #[test]
    fn client_that_died_waiting_is_a_hint() {
        // Above the largest PIDs that Linux assigns.
        let (waited, left) = (1 << 23, (1 << 23) + 1);
        let handed = |pid| format!("NEW CLIENT {pid} from user 0: Server already exists");
        let mut logs = Logs::unwatched(Path::new("/nonexistent"));
        let mut read_record = |who: &str, text: &str| {
            for record in log::read(format!("[2026-11-21 02:53:15.169 {who}] {text}\n").as_bytes()) {
                if who.starts_with("Server") {
                    logs.state.server(&record, &[]);
                } else {
                    logs.state.control(&record);
                }
            }
            (logs.evidence().waiting, logs.evidence().waited)
        };
        assert_eq!(
            read_record("Server  1115", &format!("Client process {left} disconnected")),
            (vec![], false)
        );
        assert_eq!(read_record("Control  1308", &handed(left)), (vec![], false), "its line came late");
        assert_eq!(read_record("Control  1308", &handed(waited)), (vec![], true));
        logs.prune();
        assert!(!logs.evidence().waited, "a poll was answered since");
    }

    #[test]
    fn waiting_users_are_listed_in_arrival_order() {
        let client = |pid, since| WaitingClient { pid, since };
        let behind = ServedUser { uid: 0, server: 5, clients: vec![6] };
        let queue = by_user(vec![(7, client(1, 30)), (8, client(2, 10)), (7, client(3, 20))], &behind);
        let order: Vec<(u32, Vec<u32>)> = queue
            .iter()
            .map(|waiting| (waiting.uid, waiting.waiting.iter().map(|client| client.pid).collect()))
            .collect();
        assert_eq!(order, [(8, vec![2]), (7, vec![3, 1])]);
    }

    #[test]
    fn emptied_control_log_may_have_lost_commands() {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, lost) in [("server.log", false), ("control.log", true)] {
            let line = "[2026-11-21 02:53:15.169 Other 1] nothing\n";
            let path = directory.path().join(name);
            let mut file = std::fs::File::create(&path).expect("made");
            let mut logs = Logs::unwatched(directory.path());
            logs.bounded = true;
            // In parts that are read whole: skipped lines count as lost, too.
            let part = line.repeat(1000);
            while file.metadata().expect("there").len() + part.len() as u64 <= LOG_BOUND {
                file.write_all(part.as_bytes()).expect("written");
                logs.read(&[]);
            }
            assert!(
                !logs.take_lost() && path.metadata().expect("there").len() > 0,
                "{name}: nothing was emptied"
            );
            file.write_all(part.as_bytes()).expect("written");
            logs.read(&[]);
            assert_eq!(path.metadata().expect("there").len(), 0, "{name} was emptied");
            assert_eq!(logs.take_lost(), lost, "{name}");
            logs.read(&[]);
            assert!(!logs.take_lost(), "{name}: once");
        }
    }
}
