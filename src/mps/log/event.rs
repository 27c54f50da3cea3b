//! Meaning of a log's messages.

/// A client as the logs name it. Context 0 is the process itself, 1 and up are its contexts on GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogClient {
    /// Process ID.
    pub pid: u32,
    /// Number of the context.
    pub context: u32,
}

/// Meaning of a message. MPS's own words stand above the function that reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are the numbers of the message")]
pub enum LogEvent {
    /// The control daemon begins.
    DaemonStarting { socket: String },
    /// The variable that clients need.
    DaemonHint { variable: String },
    /// The version of the writer.
    BinaryVersion(u32),
    /// The control daemon takes the next connection.
    Accepting,
    /// A connection was no user interface; normal at every connect and exit of a client.
    InvalidCredentials,
    /// A control process was accepted.
    UiOpened,
    /// A control process is done.
    UiClosed,
    /// A command that it sent.
    Command(String),
    /// A line of the daemon's answer.
    Reply(String),
    /// A client was handed to the running server. Under `-M` the user is 0 no matter who it is.
    ClientAccepted { pid: u32, user: u32 },
    /// A client waits: for its server to start, or for another uid's server to be free.
    PushedToPending { pid: u32, user: u32 },
    /// A server is being started.
    StartingServer { pid: u32, uid: u32 },
    /// A server takes clients.
    ServerReady { server: u32 },
    /// A quit asks a server to go.
    ShuttingDown { server: u32, forced: bool },
    /// A server has clients and stays.
    StillActive { server: u32, workers: u32 },
    /// A server is gone.
    ServerExited { server: u32, status: i32 },
    /// The control daemon ends.
    DaemonExited { status: i32 },

    /// A server begins or goes through its start; nothing is known of it yet.
    ServerStep(String),
    /// The driver.
    DriverVersion(u32),
    /// A server has its percentage.
    ThreadPercentageSet { percentage: String },
    /// A server has its priority.
    ServerPrioritySet(u32),
    /// Clients to come have this priority.
    ClientPrioritySet(u32),
    /// A server has started.
    ServerStarted,
    /// A server has a context on a device, or no longer.
    ServerContext { device: u32, created: bool },
    /// **The proof that a server took a limit.**
    MemoryLimitSet {
        /// As the command named it: an ordinal or a UUID.
        device: String,
        bytes: u64,
    },
    /// A server was asked for its devices.
    DevicesQueried { count: u32 },
    /// A client is at the door. The numbers in this message are stale, so they are not kept.
    ClientConnecting,
    /// A client is in.
    ClientConnected(LogClient),
    /// A client has a thread of its own in the server.
    ClientServed(LogClient),
    /// The last client at the door uses this device.
    DeviceAssociated { uuid: String },
    /// A client's state.
    ClientStatus { client: LogClient, status: String },
    /// A client's connection ended; status 806 is normal.
    ClientHungUp { client: LogClient, status: u32 },
    /// A context is gone; `in_reset` is said of some after a fault of theirs, and has not been seen of any that was innocent.
    ContextExited { client: LogClient, remaining: u32, in_reset: bool },
    /// A client process is gone.
    ClientDisconnected { pid: u32 },
    /// A termination was requested.
    TerminationRequested(LogClient),
    /// A termination is done.
    TerminationSucceeded,
    /// A memory fault, and the client that MPS names: one of the first to connect, whoever faulted (recordings 23, 24).
    FatalError(LogClient),
    /// The server deals with a fault.
    HandlingFault,
    /// A client will lose its work by a fault on this device.
    TornDownOnDevice { client: LogClient, device: u32 },
    /// A process will lose all its work.
    ProcessTornDown { pid: u32 },
    /// A client will lose its work with the rest of its process.
    TornDownWithProcess { client: LogClient, pid: u32 },
    /// A list of devices that will be reset begins; [`LogEvent::DeviceReset`] follows for each.
    DevicesReset,
    /// A device that will be reset.
    DeviceReset { device: u32 },
    /// A list of processes with a sticky error begins; [`LogEvent::StickyError`] follows for each.
    SetSticky,
    /// A process whose CUDA calls fail from now on.
    StickyError { pid: u32 },
    /// A client was not admitted.
    ClientRefused { reason: String },
    /// Something else.
    Other(String),
}

/// Context from earlier messages that the next one needs.
#[derive(Debug, Default)]
pub(super) struct PrecedingMessages {
    list: Option<(u32, FaultList)>,
    /// PID of the daemon that is answering a command.
    answering: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
enum FaultList {
    Devices,
    Processes,
}

impl PrecedingMessages {
    /// Reads a message of the writer `pid`.
    ///
    /// Two kinds of message mean something by what stands above them: the bare numbers under a fault's headings, and
    /// whatever a daemon writes between `Cmd:` and `UI closed`, which is its reply.
    pub(super) fn read(&mut self, pid: u32, text: &str) -> LogEvent {
        if let Some((writer, list)) = self.list.filter(|(writer, _)| *writer == pid) {
            if let Ok(number) = text.parse() {
                return match list {
                    FaultList::Devices => LogEvent::DeviceReset { device: number },
                    FaultList::Processes => LogEvent::StickyError { pid: number },
                };
            }
            debug_assert_eq!(writer, pid);
            self.list = None;
        }
        let event = control(text).or_else(|| server(text)).or_else(|| fault(text));
        match &event {
            Some(LogEvent::DevicesReset) => self.list = Some((pid, FaultList::Devices)),
            Some(LogEvent::SetSticky) => self.list = Some((pid, FaultList::Processes)),
            Some(LogEvent::Command(_)) => self.answering = Some(pid),
            Some(LogEvent::UiClosed | LogEvent::UiOpened) => self.answering = None,
            _ => {}
        }
        event.unwrap_or_else(|| {
            if self.answering == Some(pid) {
                LogEvent::Reply(text.to_owned())
            } else {
                LogEvent::Other(text.to_owned())
            }
        })
    }
}

/// The control daemon's messages:
///
/// ```text
/// Starting control daemon using socket /tmp/mps/pipe/control
/// To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=/tmp/mps/pipe
/// CUDA MPS Control binary version: 13000
/// Accepting connection...
/// NEW UI
/// Cmd:get_server_status 511
/// UI closed
/// User did not send valid credentials
/// NEW CLIENT 1323 from user 0: Server is not ready, push client to pending list
/// NEW CLIENT 647 from user 0: Server already exists
/// Starting new server 511 for user 0
/// NEW SERVER 511: Ready
/// Try shutting down server 506, backoff is enabled
/// Server 506 has 2 active worker threads. Server will not shutdown.
/// Force shutting down server 506
/// Server 506 exited with status 0
/// Exit with status 0
/// ```
pub(super) fn control(text: &str) -> Option<LogEvent> {
    let after = |prefix: &str| text.strip_prefix(prefix);
    match text {
        "Accepting connection..." => return Some(LogEvent::Accepting),
        "User did not send valid credentials" => return Some(LogEvent::InvalidCredentials),
        "NEW UI" => return Some(LogEvent::UiOpened),
        "UI closed" => return Some(LogEvent::UiClosed),
        _ => {}
    }
    if let Some(command) = after("Cmd:") {
        return Some(LogEvent::Command(command.to_owned()));
    }
    if let Some(socket) = after("Starting control daemon using socket ") {
        return Some(LogEvent::DaemonStarting { socket: socket.to_owned() });
    }
    if let Some(variable) = after("To connect CUDA applications to this daemon, set env ") {
        return Some(LogEvent::DaemonHint { variable: variable.to_owned() });
    }
    if let Some(version) = after("CUDA MPS Control binary version: ") {
        return Some(LogEvent::BinaryVersion(version.parse().ok()?));
    }
    if let Some(rest) = after("NEW CLIENT ") {
        let (pid, rest) = rest.split_once(" from user ")?;
        let (user, state) = rest.split_once(": ")?;
        let (pid, user) = (pid.parse().ok()?, user.parse().ok()?);
        return match state {
            "Server already exists" => Some(LogEvent::ClientAccepted { pid, user }),
            state if state.ends_with("push client to pending list") => {
                Some(LogEvent::PushedToPending { pid, user })
            }
            _ => None,
        };
    }
    if let Some(rest) = after("Starting new server ") {
        let (pid, uid) = rest.split_once(" for user ")?;
        return Some(LogEvent::StartingServer { pid: pid.parse().ok()?, uid: uid.parse().ok()? });
    }
    if let Some(rest) = after("NEW SERVER ") {
        return Some(LogEvent::ServerReady { server: rest.strip_suffix(": Ready")?.parse().ok()? });
    }
    if let Some(rest) = after("Try shutting down server ") {
        let server = rest.split(',').next()?.parse().ok()?;
        return Some(LogEvent::ShuttingDown { server, forced: false });
    }
    if let Some(server) = after("Force shutting down server ") {
        return Some(LogEvent::ShuttingDown { server: server.parse().ok()?, forced: true });
    }
    if let Some(status) = after("Exit with status ") {
        return Some(LogEvent::DaemonExited { status: status.parse().ok()? });
    }
    let (server, rest) = after("Server ")?.split_once(' ')?;
    let server = server.parse().ok()?;
    if let Some(status) = rest.strip_prefix("exited with status ") {
        return Some(LogEvent::ServerExited { server, status: status.parse().ok()? });
    }
    let workers =
        rest.strip_prefix("has ")?.strip_suffix(" active worker threads. Server will not shutdown.")?;
    Some(LogEvent::StillActive { server, workers: workers.parse().ok()? })
}

/// A server's messages, misspelt as they are:
///
/// ```text
/// Using log directory: /tmp/mps/log
/// Startup
/// Connecting to control daemon on socket: /tmp/mps/pipe/control
/// Initializing server process
/// Creating server context on device 0 (NVIDIA H200)
/// Created anonymous shared memory region mps.shm.0.511
/// CUDA MPS Server for Linux/Unix. Binary version: 13000
/// Display Driver version: 580
/// Active Threads Percentage set to 100.0
/// Server Priority set to 0
/// Server has started
/// Received device query command. There are 1 devices
/// Device pinned memory limit for device 0 set to 0x100000000 bytes
/// Client Priority set to 1
/// Received new client request for {PID: 0, Context ID: 0}
/// Client {PID: 647, Context ID: 0} connected
/// Creating worker thread for client {PID: 647, Context ID: 0}
/// Device NVIDIA H200 (uuid GPU-514466a0-8e68-f857-9f73-e438010e48cb) is associated
/// Status of client {PID: 647, Context ID: 1} is ACTIVE
/// Server failed to recevie command with status 806, assuming client {PID: 647, Context ID: 1} exit
/// Client {PID: 647, Context ID: 1} exiting. Number of active client contexts is 0.
/// Client {PID: 1618, Context ID: 1} exiting. Worker is in reset. Number of active client contexts is 0.
/// Client process 647 disconnected
/// MPS server requesting client {PID: 669, Context ID: 1} to exit
/// Client termination succeeded.
/// Destroy server context on device 0 (NVIDIA H200)
/// ```
fn server(text: &str) -> Option<LogEvent> {
    let after = |prefix: &str| text.strip_prefix(prefix);
    match text {
        "Startup" | "Initializing server process" => return Some(LogEvent::ServerStep(text.to_owned())),
        "Server has started" => return Some(LogEvent::ServerStarted),
        "Client termination succeeded." => return Some(LogEvent::TerminationSucceeded),
        _ => {}
    }
    let step = [
        "Using log directory: ",
        "Connecting to control daemon on socket: ",
        "Created anonymous shared memory region ",
    ];
    if step.iter().any(|prefix| text.starts_with(prefix)) {
        return Some(LogEvent::ServerStep(text.to_owned()));
    }
    if let Some(version) = after("CUDA MPS Server for Linux/Unix. Binary version: ") {
        return Some(LogEvent::BinaryVersion(version.parse().ok()?));
    }
    if let Some(version) = after("Display Driver version: ") {
        return Some(LogEvent::DriverVersion(version.parse().ok()?));
    }
    if let Some(percentage) = after("Active Threads Percentage set to ") {
        return Some(LogEvent::ThreadPercentageSet { percentage: percentage.to_owned() });
    }
    if let Some(priority) = after("Server Priority set to ") {
        return Some(LogEvent::ServerPrioritySet(priority.parse().ok()?));
    }
    if let Some(priority) = after("Client Priority set to ") {
        return Some(LogEvent::ClientPrioritySet(priority.parse().ok()?));
    }
    if let Some(rest) = after("Device pinned memory limit for device ") {
        let (device, rest) = rest.split_once(" set to 0x")?;
        let bytes = u64::from_str_radix(rest.strip_suffix(" bytes")?, 16).ok()?;
        return Some(LogEvent::MemoryLimitSet { device: device.to_owned(), bytes });
    }
    if let Some(rest) = after("Received device query command. There are ") {
        return Some(LogEvent::DevicesQueried { count: rest.strip_suffix(" devices")?.parse().ok()? });
    }
    if text.starts_with("Received new client request for {") {
        return Some(LogEvent::ClientConnecting);
    }
    for (prefix, created) in
        [("Creating server context on device ", true), ("Destroy server context on device ", false)]
    {
        if let Some(rest) = after(prefix) {
            let device = rest.split(' ').next()?.parse().ok()?;
            return Some(LogEvent::ServerContext { device, created });
        }
    }
    if let Some(rest) = after("Creating worker thread for client ") {
        return Some(LogEvent::ClientServed(client(rest)?.0));
    }
    if let Some(rest) = after("Device ") {
        let (_, uuid) = rest.strip_suffix(") is associated")?.rsplit_once("(uuid ")?;
        return Some(LogEvent::DeviceAssociated { uuid: uuid.to_owned() });
    }
    if let Some(rest) = after("Status of client ") {
        let (client, rest) = client(rest)?;
        return Some(LogEvent::ClientStatus { client, status: rest.strip_prefix(" is ")?.to_owned() });
    }
    if let Some(rest) = after("Server failed to recevie command with status ") {
        let (status, rest) = rest.split_once(", assuming client ")?;
        return Some(LogEvent::ClientHungUp { client: client(rest)?.0, status: status.parse().ok()? });
    }
    if let Some(rest) = after("MPS server requesting client ") {
        return Some(LogEvent::TerminationRequested(client(rest)?.0));
    }
    if let Some(rest) = after("Client process ") {
        return Some(LogEvent::ClientDisconnected { pid: rest.strip_suffix(" disconnected")?.parse().ok()? });
    }
    let (client, rest) = client(after("Client ")?)?;
    if rest == " connected" {
        return Some(LogEvent::ClientConnected(client));
    }
    let rest = rest.strip_prefix(" exiting.")?;
    let (in_reset, rest) = match rest.strip_prefix(" Worker is in reset.") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let remaining = rest.strip_prefix(" Number of active client contexts is ")?.strip_suffix('.')?;
    Some(LogEvent::ContextExited { client, remaining: remaining.parse().ok()?, in_reset })
}

/// A server's messages about faults and refusals (recordings 01, 02, 04 and 08):
///
/// ```text
/// Client {PID: 959, Context: 1} encountered a fatal GPU error.
/// Server is handling a fatal GPU error.
/// Client {PID: 668, Context ID: 1} on device 0 to be torn down
/// All clients belonging to error trigging process 668 will be torn down
/// Client {PID: 668, Context ID: 1} on the error-trigging process 668 to be torn down
/// The following devices will be reset:
/// The following client process have a sticky error set:
/// Server teardown in progress. Refusing to accept new client {PID: 1015, Context ID: 0}
/// Failed to accept client {PID: 1015, Context ID: 0} with status 807
/// Failed to accept new client. Maximum number of clients (48) reached.
/// Failed to accept new client. Reached maximum number of device connections.
/// ```
fn fault(text: &str) -> Option<LogEvent> {
    match text {
        "Server is handling a fatal GPU error." => return Some(LogEvent::HandlingFault),
        "The following devices will be reset:" => return Some(LogEvent::DevicesReset),
        "The following client process have a sticky error set:" => return Some(LogEvent::SetSticky),
        _ => {}
    }
    if text.starts_with("Failed to accept ") || text.contains("Refusing to accept new client") {
        return Some(LogEvent::ClientRefused { reason: text.to_owned() });
    }
    if let Some(rest) = text.strip_prefix("All clients belonging to error trigging process ") {
        return Some(LogEvent::ProcessTornDown {
            pid: rest.strip_suffix(" will be torn down")?.parse().ok()?,
        });
    }
    let (client, rest) = client(text.strip_prefix("Client ")?)?;
    if rest == " encountered a fatal GPU error." {
        return Some(LogEvent::FatalError(client));
    }
    let cause = rest.strip_prefix(" on ")?.strip_suffix(" to be torn down")?;
    if let Some(device) = cause.strip_prefix("device ") {
        return Some(LogEvent::TornDownOnDevice { client, device: device.parse().ok()? });
    }
    let pid = cause.strip_prefix("the error-trigging process ")?.parse().ok()?;
    Some(LogEvent::TornDownWithProcess { client, pid })
}

/// Reads `{PID: 715, Context ID: 1}` or `{PID: 715, Context: 1}`, and returns what follows.
fn client(text: &str) -> Option<(LogClient, &str)> {
    let (inside, rest) = text.strip_prefix("{PID: ")?.split_once('}')?;
    let (pid, context) = inside.split_once(", Context")?;
    let context = context.strip_prefix(" ID").unwrap_or(context).strip_prefix(": ")?;
    Some((LogClient { pid: pid.parse().ok()?, context: context.parse().ok()? }, rest))
}
