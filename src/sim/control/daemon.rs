//! The daemon: one thread that waits for connections, its session, and its server, and does one thing at a time.
//!
//! It waits for commands without blocking, so CUDA clients get on beside an open session; it executes a command
//! to its end, so a command that hangs (`terminate_client` on a stopped process) hangs everybody else.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::UCred;

use super::super::envvar;
use super::super::log::Voice;
use super::super::partition::Partitions;
use super::super::profile::Gpu;
use super::super::protocol::{ClientRequest, Hello, Report, door, ui};
use super::super::wire::{Conn, Packet};
use super::super::world::World;
use super::attempts::{Quit, ServerReplacement};
use super::instance::Instance;
use super::options::Mode;
use super::server_process::Server;

/// Longest time for a connection to send its first message.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Number of times that the daemon opens the device file of each of its GPUs, recorded (13).
const DEVICE_FILES: usize = 4;

pub(super) struct Daemon {
    pub(super) world: World,
    pub(super) mode: Mode,
    pub(super) instance: Instance,
    /// The daemon's devices, as they were when it started.
    pub(super) gpus: Vec<Gpu>,
    pub(super) defaults: Defaults,
    pub(super) server: Option<Server>,
    pub(super) pending: Vec<Pending>,
    pub(super) partitions: Partitions,
    pub(super) quit: Option<Quit>,
    pub(super) change: Option<ServerReplacement>,
    session: Option<Rc<Session>>,
    refusals: usize,
    /// Servers in a row that ended before they were ready.
    pub(super) failed_starts: u32,
    /// The device files of its GPUs, open for life: four times each and without a server, recorded (13).
    _devices: Vec<File>,
}

/// Settings with which upcoming servers start.
pub(super) struct Defaults {
    pub(super) percentage: f64,
    pub(super) priority: u8,
    /// By the device as it was written: an ordinal and a UUID of one GPU are two entries.
    pub(super) limits: Vec<(String, u64)>,
}

/// A client whose server is not ready yet. Nobody checks if the client is still alive, recorded.
pub(super) struct Pending {
    pub(super) conn: Conn,
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) request: ClientRequest,
}

/// The one session of commands.
pub(super) struct Session {
    pub(super) conn: Conn,
    pub(super) privileged: bool,
    pub(super) uid: u32,
}

impl Daemon {
    pub(super) fn new(world: World, mode: Mode, instance: Instance) -> Self {
        let all = world.devices();
        let all: Vec<&Gpu> = all.iter().collect();
        let gpus = envvar::visible(&all, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref());
        let gpus: Vec<Gpu> = gpus.into_iter().map(|position| all[position].clone()).collect();
        // Of the three variables of limits, the daemon itself obeys these two, recorded.
        let percentage = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
            .ok()
            .and_then(|text| envvar::percentage(&text))
            .unwrap_or(100.0);
        let priority =
            u8::from(std::env::var("CUDA_MPS_CLIENT_PRIORITY").is_ok_and(|text| text.trim() == "1"));
        // A GPU whose file cannot be opened is gone.
        let files = gpus.iter().map(|gpu| world.device_file(gpu));
        let devices = files
            .flat_map(|file| std::iter::repeat_n(file, DEVICE_FILES))
            .filter_map(|file| File::open(file).ok());
        let devices = devices.collect();
        let partitions = Partitions::new(gpus.iter());
        Self {
            world,
            mode,
            instance,
            gpus,
            defaults: Defaults { percentage, priority, limits: Vec::new() },
            server: None,
            pending: Vec::new(),
            partitions,
            quit: None,
            change: None,
            session: None,
            refusals: 0,
            failed_starts: 0,
            _devices: devices,
        }
    }

    /// Serves until `quit`.
    pub(super) fn run(mut self) -> ExitCode {
        loop {
            self.turn(true);
            if self.try_quit() {
                self.say_log("Exit with status 0");
                self.instance.leave();
                return ExitCode::SUCCESS;
            }
        }
    }

    pub(super) fn say_log(&self, text: &str) {
        self.instance.log.line(Voice::Control, text);
    }

    /// Returns the device of the server with this ordinal.
    pub(super) fn device(&self, ordinal: usize) -> Option<&Gpu> {
        self.server.as_ref()?.gpus.get(ordinal)
    }

    /// Waits for something to happen and deals with it. Within a command, the session itself is left alone.
    pub(super) fn turn(&mut self, with_session: bool) {
        let timeout = self.due().map(|due| timespec(due.saturating_duration_since(Instant::now())));
        let session = self.session.as_ref().filter(|_| with_session);
        let server = self.server.as_ref().filter(|server| server.reported_at.is_none());
        let talking = server.and_then(|server| server.conn.as_ref());
        let mut fds = vec![
            PollFd::new(&self.instance.privileged, PollFlags::IN),
            PollFd::new(&self.instance.open, PollFlags::IN),
        ];
        fds.extend(session.map(|session| PollFd::new(&session.conn, PollFlags::IN)));
        fds.extend(server.map(|server| PollFd::new(&server.pidfd, PollFlags::IN)));
        fds.extend(talking.map(|conn| PollFd::new(conn, PollFlags::IN)));
        let (has_session, has_server, has_talking) = (session.is_some(), server.is_some(), talking.is_some());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return;
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let mut next = |there: bool| there && ready.next().unwrap_or(false);
        let (privileged, open) = (next(true), next(true));
        let (session, died, talking) = (next(has_session), next(has_server), next(has_talking));
        drop(fds);

        // The end of a session comes before the next connection: a caller alone is never refused because its
        // predecessor has not been noticed to be gone.
        if talking {
            self.hear_server();
        }
        if died {
            self.server_died();
        }
        if self.reported_at().is_some_and(|at| at <= Instant::now()) {
            self.bury_server();
        }
        if session {
            self.serve_session();
        }
        if open {
            self.accept(false);
        }
        if privileged {
            self.accept(true);
        }
        self.advance_pending();
    }

    /// Returns the time at which something is due without a message.
    fn due(&self) -> Option<Instant> {
        let quit = self.quit.as_ref();
        let serves = self.server.as_ref().is_some_and(Server::serves);
        let change = self.change.as_ref().filter(|_| serves && quit.is_none());
        let due = [
            self.reported_at(),
            quit.and_then(|quit| quit.force_at),
            quit.map(|quit| quit.attempts.next),
            change.map(|change| change.attempts.next),
        ];
        due.into_iter().flatten().min()
    }

    fn reported_at(&self) -> Option<Instant> {
        self.server.as_ref().and_then(|server| server.reported_at)
    }

    fn serve_session(&mut self) {
        let Some(session) = self.session.clone() else { return };
        match session.conn.recv() {
            Ok(Some(packet)) if packet.bytes[0] == ui::COMMAND => self.execute(&session, &packet.bytes[1..]),
            _ => {
                self.session = None;
                self.say_log("UI closed");
            }
        }
    }

    fn accept(&mut self, privileged: bool) {
        let listener = if privileged { &self.instance.privileged } else { &self.instance.open };
        let Ok(conn) = listener.accept() else { return };
        self.say_log("Accepting connection...");
        // A client that has left already is handled below.
        let _ = conn.send(door::GREETING);
        let first = next(&conn);
        let Some(first) = first else { return self.say_log("User did not send valid credentials") };
        if first.bytes == door::CREDENTIALS {
            return match (first.credentials, next(&conn)) {
                (Some(client), Some(wanted)) if wanted.bytes == door::CLIENT => self.admit(&conn, client),
                _ => self.say_log("User did not send valid credentials"),
            };
        }
        match (serde_json::from_slice(&first.bytes), conn.peer()) {
            (Ok(Hello::Ui), Ok(peer)) => self.open_session(conn, privileged, peer),
            (Ok(Hello::Server), Ok(peer)) => self.adopt_server(conn, pid(peer)),
            _ => self.say_log("User did not send valid credentials"),
        }
    }

    /// Gives a client a socket to the server, which gets the other end once it exists; the client's request arrives on it. The credentials
    /// are the client's claim; only root may claim another user's.
    fn admit(&mut self, conn: &Conn, client: UCred) {
        // Its connection ends without an answer while `quit` waits for others, recorded (22).
        if self.quit.is_some() {
            return;
        }
        let Ok((theirs, ours)) = Conn::pair() else { return };
        if conn.send_with(door::DESCRIPTOR, Some(theirs.as_fd())).is_err() {
            return;
        }
        drop(theirs);
        match readable(&ours, TIMEOUT).then(|| ours.receive_message::<Hello>()).flatten() {
            Some((Hello::Client(request), _)) => self.new_client(ours, client, request),
            _ => self.say_log("User did not send valid credentials"),
        }
    }

    /// Opens the only session. A second caller is dropped. If that happens before its command arrived, it cannot send the command; if
    /// later, it waits for an answer that never comes. In the real daemon that is a race; here the two take turns.
    fn open_session(&mut self, conn: Conn, privileged: bool, peer: UCred) {
        if self.session.is_some() {
            self.refusals += 1;
            if self.refusals.is_multiple_of(2)
                && conn.send(&[ui::GRANTED]).is_ok()
                && readable(&conn, TIMEOUT)
            {
                let _ = conn.recv();
            }
            return;
        }
        if conn.send(&[ui::GRANTED]).is_err() {
            return;
        }
        self.say_log("NEW UI");
        self.session = Some(Rc::new(Session { conn, privileged, uid: peer.uid.as_raw() }));
    }

    fn new_client(&mut self, conn: Conn, peer: UCred, request: ClientRequest) {
        // Under -M the log says user 0 for every user.
        let uid = if self.mode.multiuser { 0 } else { peer.uid.as_raw() };
        let pending = Pending { conn, pid: pid(peer), uid, request };
        let client = format!("NEW CLIENT {} from user {uid}", pending.pid);
        if self.server.as_ref().is_some_and(|server| server.ready && server.uid == uid) {
            self.say_log(&format!("{client}: Server already exists"));
            self.hand_over(pending);
        } else {
            self.say_log(&format!("{client}: Server is not ready, push client to pending list"));
            self.pending.push(pending);
        }
    }

    fn hear_server(&mut self) {
        let report = self
            .server
            .as_ref()
            .and_then(|server| server.conn.as_ref())
            .and_then(Conn::receive_message::<Report>);
        match report {
            Some((report, _)) => self.note(&report),
            None => self.server_died(),
        }
    }

    /// Advances pending clients after a change, if they can move on.
    fn advance_pending(&mut self) {
        match &self.server {
            None if self.quit.is_some() => {}
            None => {
                let pending = self.pending.first().map(|pending| pending.uid);
                let pending = pending.map(|uid| (uid, false));
                if let Some((uid, mlopart)) =
                    self.change.take().map(|change| (change.uid(), change.mlopart)).or(pending)
                {
                    self.start_server(uid, mlopart);
                }
            }
            Some(server) if server.serves() => {
                let uid = server.uid;
                let (mine, others) = self.pending.drain(..).partition(|pending| pending.uid == uid);
                self.pending = others;
                let mine: Vec<Pending> = mine;
                for pending in mine {
                    self.hand_over(pending);
                }
                if self.quit.is_some() {
                    return;
                }
                // Another user's server makes way as soon as nobody uses it.
                match self.pending.iter().find(|pending| pending.uid != uid).map(|pending| pending.uid) {
                    Some(next) if self.change.is_none() => self.change_to(next, false),
                    _ => self.try_change(),
                }
            }
            Some(_) => {}
        }
    }
}

impl Session {
    /// Sends text to the caller. The caller may be dead: a command is executed all the same.
    pub(super) fn send(&self, tag: u8, text: &[u8]) {
        let mut packet = vec![tag];
        packet.extend_from_slice(text);
        let _ = self.conn.send(&packet);
    }

    pub(super) fn end(&self) {
        self.send(ui::END, b"");
    }
}

fn pid(peer: UCred) -> i32 {
    peer.pid.as_raw_nonzero().get()
}

/// Receives the next message, if it comes in time.
fn next(conn: &Conn) -> Option<Packet> {
    if readable(conn, TIMEOUT) { conn.recv().ok().flatten() } else { None }
}

fn readable(conn: &Conn, timeout: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(conn.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&timespec(timeout))).is_ok_and(|ready| ready > 0)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 })
}
