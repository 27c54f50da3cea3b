//! One client connection: accepting it, and its end.

use std::sync::Arc;
use std::thread;

use super::super::control::multiuser;
use super::super::profile::Gpu;
use super::super::protocol::{ClientRequest, Grant, Notice};
use super::super::wire::Conn;
use super::table::{Context, Process, Server};

/// Connections of all contexts together that a device has. With 8 connections each 15 contexts were admitted, and
/// with the 2 each that are usual under MPS the ceiling on clients comes first.
const DEVICE_CONNECTIONS: u32 = 127;

/// Accepts or refuses a connection, and hangs over one whose client is dead.
pub(super) fn client(
    server: &Arc<Server>,
    conn: Conn,
    pid: i32,
    request: &ClientRequest,
    partition_sms: Option<u32>,
) {
    let number = request.context;
    let (last, of) = server.table().stale;
    server.log(&format_args!("Received new client request for {{PID: {last}, Context ID: {of}}}"));
    let here = matches!(conn.receive_message::<Notice>(), Some((Notice::Here, _)));
    if !here || conn.closed() {
        // Recorded of one that died while it waited for its server to start, or just as it was admitted.
        server.log(&"User did not send valid credentials");
        server.hang();
    }
    let conn = Arc::new(conn);
    let admitted = if number == 0 {
        process(server, &conn, pid, request)
    } else {
        context(server, &conn, pid, request, partition_sms)
    };
    match admitted {
        Ok(grant) => {
            server.table().stale = (pid, number);
            server.log(&format_args!("Client {{PID: {pid}, Context ID: {number}}} connected"));
            server
                .log(&format_args!("Creating worker thread for client {{PID: {pid}, Context ID: {number}}}"));
            if let Some(gpu) = request.device.as_deref().and_then(|uuid| gpu(server, uuid)) {
                let gpu = &server.gpus[gpu];
                server.log(&format_args!("Device {} (uuid {}) is associated", gpu.name, gpu.uuid));
                server.log(&format_args!("Status of client {{PID: {pid}, Context ID: {number}}} is ACTIVE"));
            }
            let _ = conn.send_message(&grant);
            let server = Arc::clone(server);
            thread::spawn(move || worker(&server, &conn, pid, number));
        }
        Err(error) => drop(conn.send_message(&Grant::Refused(error.to_owned()))),
    }
}

fn process(
    server: &Server,
    conn: &Arc<Conn>,
    pid: i32,
    request: &ClientRequest,
) -> Result<Grant, &'static str> {
    let mut table = server.table();
    if table.faulted() {
        let client = format!("{{PID: {pid}, Context ID: 0}}");
        server.log(&format_args!("Server teardown in progress. Refusing to accept new client {client}"));
        server.log(&format_args!("Failed to accept client {client} with status 807"));
        return Err("CUDA_ERROR_MPS_SERVER_NOT_READY");
    }
    for device in std::mem::take(&mut table.destroyed) {
        server
            .log(&format_args!("Creating server context on device {device} ({})", server.gpus[device].name));
    }
    table.processes.push(Process {
        pid,
        id: 0,
        namespace: namespace(pid),
        command: command(pid),
        partition: request.partition.clone(),
        conn: Arc::clone(conn),
    });
    Ok(Grant::Welcome { gpus: server.gpus.clone(), pid })
}

fn context(
    server: &Server,
    conn: &Arc<Conn>,
    pid: i32,
    request: &ClientRequest,
    partition_sms: Option<u32>,
) -> Result<Grant, &'static str> {
    let device =
        request.device.as_deref().and_then(|uuid| gpu(server, uuid)).ok_or("CUDA_ERROR_INVALID_DEVICE")?;
    if server.partitioned && partition_sms.is_none() {
        return Err("CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION");
    }
    let gpu: &Gpu = &server.gpus[device];
    if multiuser() && gpu.compute_capability[0] < 7 {
        // Before Volta a server serves one user at a time, documented; the error is as reported.
        return Err("CUDA_ERROR_NOT_PERMITTED");
    }
    let mut table = server.table();
    let ceiling = gpu.client_ceiling(server.version);
    if table.on_device(device).count() >= ceiling {
        server.log(&format_args!(
            "Failed to accept new client. Maximum number of clients ({ceiling}) reached."
        ));
        return Err("CUDA_ERROR_DEVICE_UNAVAILABLE");
    }
    let taken: u32 = table.on_device(device).map(|context| context.connections).sum();
    if taken + request.connections > DEVICE_CONNECTIONS {
        server.log(&"Failed to accept new client. Reached maximum number of device connections.");
        return Err("CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED");
    }
    table.add_context(Context {
        pid,
        number: request.context,
        device,
        connections: request.connections,
        conn: Arc::clone(conn),
    });
    Ok(Grant::Context {
        percentage: if server.partitioned { 100.0 } else { table.percentage },
        limits: table.limits.iter().map(|(&ordinal, &bytes)| (ordinal, bytes)).collect(),
        partition_sms,
    })
}

fn gpu(server: &Server, uuid: &str) -> Option<usize> {
    server.gpus.iter().position(|gpu| gpu.uuid == uuid)
}

/// Waits for the client's end of the connection to close.
fn worker(server: &Server, conn: &Conn, pid: i32, number: u32) {
    while let Some((notice, _)) = conn.receive_message::<Notice>() {
        if let Notice::Fault { context, error } = notice {
            server.fault(pid, context, error);
        }
    }
    if number == 0 { process_left(server, pid) } else { server.context_left(pid, number) }
}

fn gone(server: &Server, pid: i32, number: u32) {
    server.log(&format_args!(
        "Server failed to recevie command with status 806, assuming client {{PID: {pid}, Context ID: {number}}} exit"
    ));
}

impl Server {
    pub(super) fn context_left(&self, pid: i32, number: u32) {
        let mut table = self.table();
        let Some(at) =
            table.contexts.iter().position(|context| context.pid == pid && context.number == number)
        else {
            return;
        };
        gone(self, pid, number);
        let device = table.contexts.remove(at).device;
        let left = table.on_device(device).count();
        // Recorded (23, 24) of the culprit of some errors, and of nobody else.
        let mark = if table.in_reset.remove(&pid) { " Worker is in reset." } else { "" };
        self.log(&format_args!(
            "Client {{PID: {pid}, Context ID: {number}}} exiting.{mark} Number of active client contexts is {left}."
        ));
        self.recover(&mut table, device);
        self.left.notify_all();
    }
}

/// A process is gone when its contexts are: they are reported in the log, so they go first.
fn process_left(server: &Server, pid: i32) {
    let mut table = server.table();
    while table.of_process(pid).next().is_some() {
        table = server.left.wait(table).expect("no thread of the server panics while it holds the table");
    }
    gone(server, pid, 0);
    server.log(&format_args!("Client process {pid} disconnected"));
    table.processes.retain(|process| process.pid != pid);
    server.left.notify_all();
}

/// Asks a client to leave and waits until it has; false when there is no such client.
///
/// A stopped client leaves when it goes on, and until then nobody else is served.
pub(super) fn terminate(server: &Server, pid: i32) -> bool {
    let mut table = server.table();
    if table.of_process(pid).next().is_none() {
        return false;
    }
    for context in table.of_process(pid) {
        server.log(&format_args!(
            "MPS server requesting client {{PID: {pid}, Context ID: {}}} to exit",
            context.number
        ));
        let _ = context.conn.send_message(&Grant::Terminate);
    }
    while table.of_process(pid).next().is_some() {
        table = server.left.wait(table).expect("no thread of the server panics while it holds the table");
    }
    server.log(&"Client termination succeeded.");
    true
}

/// The program, as its first argument says.
fn command(pid: i32) -> String {
    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let first = words.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}

/// The PID namespace, by its inode.
fn namespace(pid: i32) -> u64 {
    std::fs::read_link(format!("/proc/{pid}/ns/pid"))
        .ok()
        .and_then(|link| link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok())
        .unwrap_or(0)
}
