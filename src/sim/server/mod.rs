//! The server process: owns the clients and their faults, obeys the control process, and dies with it, unless it hangs.
//!
//! The main thread takes orders one by one; each client connection has a thread of its own that waits for the
//! client to leave. All of them share one [`table::Table`].

mod faults;
mod serve;
mod table;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::thread::{Uid, set_thread_groups, set_thread_res_uid};

use super::control::{echoes, log_directory, multiuser, pipe_directory, user};
use super::envvar;
use super::kernel::{Kind, MIB, Presence};
use super::log::{KernelLog, Log, Voice};
use super::profile::Gpu;
use super::protocol::{Answer, Hello, Order, Orders, Report};
use super::wire::Conn;
use super::world::{WORLD_VARIABLE, World, open};
use table::Server;

/// Time before the first context, for one GPU and for each further one (recorded: 0.18 s and 1.05 s for 1 and 4).
const INITIALIZING: Duration = Duration::from_millis(180);
const PER_FURTHER_GPU: Duration = Duration::from_millis(280);
/// Time that a server context takes (recorded: 63 to 87 ms).
const PER_CONTEXT: Duration = Duration::from_millis(70);

pub(crate) fn run() -> ExitCode {
    let Some(world) = std::env::var_os(WORLD_VARIABLE).and_then(|dir| open(dir.as_ref()).ok()) else {
        return ExitCode::FAILURE;
    };
    match start(&world) {
        Some(()) => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
}

/// Serves until the control process tells it to stop or is gone.
fn start(world: &World) -> Option<()> {
    let pid = std::process::id();
    let logs = log_directory();
    let socket = pipe_directory().join("control");
    let log = Log::open(&logs.join("server.log"), echoes()).ok()?;
    let uid = user();
    // The real server writes this line between its fork and its exec, so the line has the server's PID.
    Log::open(&logs.join("control.log"), echoes())
        .ok()?
        .line(Voice::Control, &format!("Starting new server {pid} for user {uid}"));
    // Without the driver's library it ends without a message, recorded (22).
    if world.dir().join("no_cuda").exists() {
        return None;
    }
    log.line(Voice::Other, "Startup");
    log.line(Voice::Other, &format!("Connecting to control daemon on socket: {}", socket.display()));
    // The server runs as its clients' user, who has to reach the socket; if not, the server ends without a message, recorded (19).
    if !reaches(&socket, uid) {
        return Some(());
    }
    let control = Conn::connect(&socket).ok()?;
    control.recv().ok()??;
    control.send_message(&Hello::Server).ok()?;
    let life = die_with(&control)?;
    let (orders, _) = control.receive_message::<Orders>()?;
    log.line(Voice::Other, "Initializing server process");

    let gpus: Vec<Gpu> = orders.gpus.clone();
    let further = u32::try_from(gpus.len().saturating_sub(1)).unwrap_or(0);
    thread::sleep(world.scaled(INITIALIZING + PER_FURTHER_GPU * further));
    let used = if gpus.len() > 1 { 68 * MIB } else { 66 * MIB };
    let name = std::env::args().next().unwrap_or_default();
    let mut presences = Vec::new();
    for (ordinal, gpu) in gpus.iter().enumerate() {
        log.line(Voice::Server, &format!("Creating server context on device {ordinal} ({})", gpu.name));
        let mut presence = Presence::enter(world, gpu, Kind::Compute, pid, &name).ok()?;
        presence.take(used).ok()?;
        presences.push(presence);
        thread::sleep(world.scaled(PER_CONTEXT));
    }
    log.line(Voice::Server, &format!("Created anonymous shared memory region mps.shm.{uid}.{pid}"));
    let version = world.host().binary_version;
    log.line(Voice::Server, &format!("CUDA MPS Server for Linux/Unix. Binary version: {version}"));
    let driver = world.host().driver_version.split('.').next().unwrap_or_default();
    log.line(Voice::Server, &format!("Display Driver version: {driver}"));
    log.line(Voice::Server, &format!("Active Threads Percentage set to {:.1}", orders.percentage));
    log.line(Voice::Server, &format!("Server Priority set to {}", orders.priority));
    let server =
        Arc::new(Server::new((log, KernelLog(world.kernel_log())), version, gpus, &orders, control, life));
    for (device, bytes) in &orders.limits {
        server.set_limit(device, *bytes);
    }
    server.log(&"Server has started");
    server.report(&Report::Ready)?;
    obey(&server)
}

/// Returns true if a user reaches the socket: the kernel decides, by modes and by ACLs (recording 28).
fn reaches(socket: &Path, uid: u32) -> bool {
    if uid == 0 || multiuser() || uid == rustix::process::geteuid().as_raw() {
        return true;
    }
    // A thread can run as another user than its process.
    let look = || {
        let user = Uid::from_raw(uid);
        set_thread_groups(&[]).and_then(|()| set_thread_res_uid(user, user, user)).is_ok()
            && fs::metadata(socket).is_ok()
    };
    std::thread::scope(|scope| scope.spawn(look).join().unwrap_or(false))
}

fn obey(server: &Arc<Server>) -> Option<()> {
    loop {
        let (order, fd) = server.control.receive_message::<Order>()?;
        let answer = match order {
            Order::Serve { pid, request, partition_sms } => {
                if let Some(conn) = fd.map(Conn::from_fd) {
                    serve::client(server, conn, pid, &request, partition_sms);
                }
                Answer::Done
            }
            Order::Status => Answer::Status { fault: server.table().faulted() },
            Order::Clients => Answer::Clients(server.table().rows()),
            Order::DeviceQuery => {
                server.log(&format_args!(
                    "Received device query command. There are {} devices",
                    server.gpus.len()
                ));
                Answer::Done
            }
            Order::SetPercentage(value) => {
                server.table().percentage = value;
                Answer::Done
            }
            Order::Percentage => Answer::Percentage(server.table().percentage),
            Order::SetLimit { device, bytes } => {
                server.set_limit(&device, bytes);
                Answer::Done
            }
            Order::Limit { device } => {
                let ordinal = server.ordinal(&device);
                Answer::Limit(ordinal.and_then(|ordinal| server.table().limits.get(&ordinal).copied()))
            }
            Order::Priority(value) => {
                server.log(&format_args!("Client Priority set to {value}"));
                Answer::Done
            }
            Order::Terminate(pid) => Answer::Terminated(serve::terminate(server, pid)),
            Order::Stop { force } => {
                let threads = server.table().threads();
                if threads == 0 || force {
                    server.log(&"Server has been notified to shutdown");
                    server.log(&"Waiting for current clients to finish");
                    server.log(&"Exiting");
                    server.report(&Report::Answer(Answer::Done))?;
                    // The end of their connections tells the clients.
                    return Some(());
                }
                server.log(&format_args!("Server was unable to shutdown due to {threads} active clients"));
                Answer::Busy(threads)
            }
        };
        server.report(&Report::Answer(answer))?;
    }
}

impl Server {
    /// Sets a limit for a device written as ordinal or UUID; other devices are ignored in silence, as recorded.
    fn set_limit(&self, device: &str, bytes: u64) {
        let Some(ordinal) = self.ordinal(device) else { return };
        if bytes > 0 {
            self.log(&format_args!("Device pinned memory limit for device {device} set to {bytes:#x} bytes"));
            self.table().limits.insert(ordinal, bytes);
        } else {
            self.table().limits.remove(&ordinal);
        }
    }

    fn ordinal(&self, device: &str) -> Option<usize> {
        envvar::limited(&self.gpus.iter().collect::<Vec<_>>(), device)
    }

    /// Hangs for good, and does not even die with the control process: all that remains of it is its memory.
    fn hang(&self) -> ! {
        let _held = self.life.lock();
        loop {
            thread::park();
        }
    }

    fn report(&self, report: &Report) -> Option<()> {
        self.control.send_message(report).ok()
    }
}

/// Ends this process when the control process is gone and nobody holds the lock, whatever this process is doing at that moment.
fn die_with(control: &Conn) -> Option<Arc<Mutex<()>>> {
    let control = control.try_clone().ok()?;
    let life = Arc::new(Mutex::new(()));
    let held = Arc::clone(&life);
    thread::spawn(move || {
        let mut fds = [PollFd::new(&control, PollFlags::RDHUP)];
        while poll(&mut fds, None).is_err() {}
        let _held = held.lock();
        std::process::exit(0);
    });
    Some(life)
}
