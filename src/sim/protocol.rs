//! Messages between the simulated programs.
//!
//! The first words between a client and a control process ([`door`]) are recorded (22, 23); everything after them, and the messages of the
//! other programs, are made up.
//!
//! A client is given a socket to the server, whose other end the control process hands to the server with the client's
//! first message. So a client needs nothing but the one socket in the pipe directory (as recorded with a hard link to
//! it), and the server's death is end of file for each of its clients.

use serde::{Deserialize, Serialize};

use super::profile::Gpu;

/// The first words on a connection to the control process, as recorded: the control process speaks first, to everybody.
pub(crate) mod door {
    /// The control process, before anything else.
    pub(crate) const GREETING: &[u8] = b"OUTBHELL\0";
    /// A client, with its credentials.
    pub(crate) const CREDENTIALS: &[u8] = b"OUTBCRED\0";
    /// The control process, with a socket to the server.
    pub(crate) const DESCRIPTOR: &[u8] = b"OUTBCUFD\0";
    /// The request of a CUDA client.
    pub(crate) const CLIENT: [u8; 4] = [2, 0, 0, 0];
    /// A client's last words, once it has the socket.
    pub(crate) const DONE: [u8; 4] = [0, 0, 0, 0];
}

/// The first message of the other programs on a connection to the control process, and of a client to the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Hello {
    /// A control program with commands.
    Ui,
    /// The server that the control process started.
    Server,
    /// A CUDA process.
    Client(ClientRequest),
}

/// The request of a CUDA process to the server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientRequest {
    /// 0 is the process's own connection, from 1 on contexts on devices.
    pub(crate) context: u32,
    /// UUID of the context's device.
    pub(crate) device: Option<String>,
    /// The process's `CUDA_MPS_SM_PARTITION`.
    pub(crate) partition: Option<String>,
    /// The process's `CUDA_DEVICE_MAX_CONNECTIONS`.
    pub(crate) connections: u32,
}

/// Tags of the packets in a session of commands, their first byte.
pub(crate) mod ui {
    /// To the caller: the session is yours.
    pub(crate) const GRANTED: u8 = b'G';
    /// To the daemon: one line.
    pub(crate) const COMMAND: u8 = b'C';
    /// To the caller: some output.
    pub(crate) const TEXT: u8 = b'T';
    /// To the caller: the command is done.
    pub(crate) const END: u8 = b'E';
    /// To the caller: the daemon is going to exit.
    pub(crate) const QUITTING: u8 = b'Q';
}

/// Settings with which a server starts: the control process's answer to [`Hello::Server`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Orders {
    /// The server's devices, in the daemon's order.
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) percentage: f64,
    pub(crate) priority: u8,
    /// Device as it was written, and bytes.
    pub(crate) limits: Vec<(String, u64)>,
    /// Static partitioning: a context without a partition is refused.
    pub(crate) partitioned: bool,
}

/// From the control process to its server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// A client's connection comes with this message.
    Serve {
        pid: i32,
        request: ClientRequest,
        /// SMs of the partition that the request names, if there is one.
        partition_sms: Option<u32>,
    },
    Status,
    Clients,
    DeviceQuery,
    SetPercentage(f64),
    Percentage,
    SetLimit {
        device: String,
        bytes: u64,
    },
    Limit {
        device: String,
    },
    Priority(u8),
    Terminate(i32),
    Stop {
        force: bool,
    },
}

/// From the server to the control process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The server takes clients from now on.
    Ready,
    /// The answer to the order before.
    Answer(Answer),
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Done,
    Status {
        fault: bool,
    },
    Clients(Vec<ClientRow>),
    Percentage(f64),
    Limit(Option<u64>),
    Terminated(bool),
    /// Too busy to stop: so many worker threads.
    Busy(usize),
}

/// A client process, in the order of the first contexts.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ClientRow {
    pub(crate) pid: i32,
    pub(crate) id: u32,
    pub(crate) namespace: u64,
    pub(crate) command: String,
    /// Number and device ordinal of each context.
    pub(crate) contexts: Vec<(u32, usize)>,
    pub(crate) partition: Option<String>,
}

/// From the server to a client.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Grant {
    /// To context 0: the server's devices, and the PID of the process on the host: the driver lists processes by it,
    /// and a process in a PID namespace of its own does not know it.
    Welcome { gpus: Vec<Gpu>, pid: i32 },
    /// To a context.
    Context {
        percentage: f64,
        /// Device ordinal (the client's own: that is how limits leak) and bytes.
        limits: Vec<(usize, u64)>,
        partition_sms: Option<u32>,
    },
    /// A `CUresult` by name.
    Refused(String),
    /// A sticky error: a `cudaError_t` by name.
    Sticky(String),
    /// Leave, and say that you have left by closing the connection.
    Terminate,
}

/// From a client to the server.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Notice {
    /// The second message on a connection: the client is still there. The message of the real client at this point is not known, only that
    /// the server waits for it, and hangs if the client is dead by then.
    Here,
    /// A kernel of this process ended in an error that the GPU reports to all who share it.
    Fault { context: u32, error: FaultKind },
}

/// Fault of a kernel, with its effects as the recordings (23, 24) show them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum FaultKind {
    /// It touched memory that is nobody's: MPS and the kernel name the client that connected first, whoever did it.
    #[default]
    Address,
    /// A misaligned access: nobody is named.
    Misaligned,
    /// `trap`: nobody is named, and the worker of the culprit is in reset as it exits.
    Trap,
    /// Its stack overflowed: nobody is named.
    Stack,
    /// A device-side `assert`, which is the program's own: neither MPS nor a neighbour hears of it.
    Assert,
}

impl FaultKind {
    /// Returns the CUDA runtime's error for it, in each process that shares the GPU.
    pub(crate) fn runtime_error(self) -> &'static str {
        match self {
            Self::Address | Self::Stack => "cudaErrorIllegalAddress",
            Self::Misaligned => "cudaErrorMisalignedAddress",
            Self::Trap => "cudaErrorLaunchFailure",
            Self::Assert => "cudaErrorAssert",
        }
    }
}
