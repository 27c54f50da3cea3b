//! The daemon's server: at most one at a time, a child process.
//!
//! Orders are answered one by one and the daemon waits for each answer. A server that dies meanwhile has failed the
//! order, but for the daemon it is there until the kernel reports its end as that of a child, which it does when
//! the driver has cleared it off its GPUs ([`RELEASE`]). Until then it is listed, and nobody starts another.

use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::kernel::RELEASE;
use super::super::profile::{Gpu, SPEAKING_SINCE};
use super::super::protocol::{Answer, Grant, Order, Orders, Report};
use super::super::wire::Conn;
use super::daemon::{Daemon, Pending};
use super::server_process::{Server, spawn_server};

/// Servers that end one after the other before their clients are refused.
const FAILED_STARTS: u32 = 3;

impl Daemon {
    pub(super) fn start_server(&mut self, uid: u32, mlopart: bool) {
        let gpus =
            if mlopart { self.gpus.iter().flat_map(Gpu::mlo_devices).collect() } else { self.gpus.clone() };
        let started = spawn_server(&self.world, self.mode, uid).and_then(|child| {
            let pid = Pid::from_child(&child);
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            let (conn, reported_at) = (None, None);
            Ok(Server { child, pidfd, uid, mlopart, gpus, conn, ready: false, taking: false, reported_at })
        });
        match started {
            Ok(server) => self.server = Some(server),
            Err(error) => self.say_log(&format!("Failed to start server: {error}")),
        }
    }

    /// A process says that it is the server: it is, if it is the child that was started.
    pub(super) fn adopt_server(&mut self, conn: Conn, pid: i32) {
        let orders = Orders {
            gpus: self.server.as_ref().map(|server| server.gpus.clone()).unwrap_or_default(),
            percentage: self.defaults.percentage,
            priority: self.defaults.priority,
            limits: self.defaults.limits.clone(),
            partitioned: self.mode.partitioned,
        };
        if let Some(server) = &mut self.server
            && i64::from(server.pid()) == i64::from(pid)
            && conn.send_message(&orders).is_ok()
        {
            server.conn = Some(conn);
        }
    }

    /// Hands a client's connection to the server, one at a time: over one that hung the server nobody waits, and who
    /// comes next hangs the daemon, recorded. A client that a dead server cannot take waits for the next one.
    pub(super) fn hand_over(&mut self, pending: Pending) {
        let (named, device) = (pending.request.partition.as_deref(), pending.request.device.as_deref());
        let partition_sms = named.zip(device).and_then(|(named, device)| self.partitions.sms(named, device));
        let order = Order::Serve { pid: pending.pid, request: pending.request.clone(), partition_sms };
        if self.finish_taking().is_none() {
            let _ = pending.conn.send_message(&Grant::Refused("CUDA_ERROR_MPS_CONNECTION_FAILED".to_owned()));
            return;
        }
        let server = self.server.as_mut();
        let sent = server.and_then(|server| {
            server.conn.as_ref()?.send_message_with(&order, Some(pending.conn.as_fd())).ok()?;
            server.taking = true;
            Some(())
        });
        if sent.is_none() {
            self.server_died();
            self.pending.push(pending);
        }
    }

    /// Waits until the server has the client that it was given last; `None` when it dies before.
    fn finish_taking(&mut self) -> Option<()> {
        while self.server.as_ref().is_some_and(|server| server.taking) {
            self.answer()?;
        }
        Some(())
    }

    pub(super) fn note(&mut self, report: &Report) {
        match report {
            Report::Ready => {
                if let Some(server) = &mut self.server {
                    server.ready = true;
                    self.failed_starts = 0;
                    let pid = server.pid();
                    self.say_log(&format!("NEW SERVER {pid}: Ready"));
                }
            }
            Report::Answer(_) => self.taken(),
        }
    }

    fn taken(&mut self) {
        if let Some(server) = &mut self.server {
            server.taking = false;
        }
    }

    /// The PID of the server, if there is one and it is this.
    pub(super) fn is_server(&self, pid: i64) -> bool {
        self.server.as_ref().is_some_and(|server| i64::from(server.pid()) == pid)
    }

    pub(super) fn ready_server(&self) -> Option<u32> {
        self.server.as_ref().filter(|server| server.ready).map(Server::pid)
    }

    /// Gives an order and waits for its answer; before that, for a starting server to be ready.
    pub(super) fn order(&mut self, order: &Order) -> Option<Answer> {
        while !self.server.as_ref()?.ready {
            self.turn(false);
        }
        self.finish_taking()?;
        if self.server.as_ref()?.conn.as_ref()?.send_message(order).is_err() {
            self.server_died();
            return None;
        }
        self.answer()
    }

    /// The server's next answer; `None` when it dies before.
    fn answer(&mut self) -> Option<Answer> {
        loop {
            let report = self.server.as_ref()?.conn.as_ref()?.receive_message::<Report>();
            match report {
                Some((Report::Answer(answer), _)) => {
                    self.taken();
                    return Some(answer);
                }
                Some((report, _)) => self.note(&report),
                None => {
                    self.server_died();
                    return None;
                }
            }
        }
    }

    /// Ends the server, unless clients keep it busy and there is no force; true when it is gone.
    pub(super) fn stop_server(&mut self, force: bool) -> bool {
        let Some(pid) = self.server.as_ref().map(Server::pid) else { return true };
        if let Some(Answer::Busy(threads)) = self.order(&Order::Stop { force }) {
            self.say_log(&format!(
                "Server {pid} has {threads} active worker threads. Server will not shutdown."
            ));
            return false;
        }
        self.bury_server();
        true
    }

    /// The server is dead, which the kernel has yet to report.
    pub(super) fn server_died(&mut self) {
        if let Some(server) = &mut self.server {
            // One that never connected has nothing on a GPU to be cleared off.
            let release = if server.conn.is_some() { self.world.scaled(RELEASE) } else { Duration::ZERO };
            server.conn = None;
            server.reported_at.get_or_insert_with(|| Instant::now() + release);
        }
    }

    /// Takes leave of a server that is dead or about to be, as soon as the kernel reports its end.
    pub(super) fn bury_server(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        server.conn = None;
        if let Some(at) = server.reported_at {
            thread::sleep(at.saturating_duration_since(Instant::now()));
        }
        if let Ok(status) = server.child.wait() {
            // A signal is no status: 0 is recorded for SIGKILL.
            let status = status.code().unwrap_or(0);
            self.say_log(&format!("Server {} exited with status {status}", server.pid()));
            if self.world.host().binary_version < SPEAKING_SINCE {
                self.say_log("Removed Shm file at ");
            }
        }
        if !server.ready {
            self.start_failed(server.uid);
        }
    }

    /// A server ended before it was ready: after a few in a row its clients are refused, recorded (19) with 3 and 6.
    fn start_failed(&mut self, uid: u32) {
        self.failed_starts += 1;
        if self.failed_starts < FAILED_STARTS {
            return;
        }
        self.failed_starts = 0;
        self.pending.retain(|pending| {
            if pending.uid == uid {
                let refused = Grant::Refused("CUDA_ERROR_MPS_CONNECTION_FAILED".to_owned());
                let _ = pending.conn.send_message(&refused);
            }
            pending.uid != uid
        });
    }
}
