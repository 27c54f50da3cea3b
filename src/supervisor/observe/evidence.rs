//! Evidence about a daemon's surroundings, by which a failed poll is diagnosed, and shortages of resources.

use crate::domain::wedge::WedgeSettings;
use crate::host::Identity;
use crate::mps::process::ForeignCaller;
use crate::supervisor::remedy::Remedy;

/// Evidence about a daemon that could not be read.
#[derive(Debug, Clone, Default)]
pub struct DiagnosisEvidence {
    /// Control programs of others that are connected in its pipe directory.
    pub callers: Vec<ForeignCaller>,
    /// Callers that lived on while all the others came and went.
    pub held: Vec<Identity>,
    /// Its own stopped processes, each with its kind and PID.
    pub stopped: Vec<(&'static str, u32)>,
    /// PIDs of its stopped clients.
    pub stopped_clients: Vec<u32>,
    /// Its own processes that are near their limit on open files.
    pub files: Vec<FileShortage>,
    /// Its servers, according to /proc.
    pub servers: Vec<Identity>,
    /// Servers that hang, according to server.log, because a client died while it connected.
    pub hung: Vec<Identity>,
    /// PIDs of the processes with a context in the hung servers, or in all its servers if none is known to hang; `None` if unknown.
    pub connected: Option<Vec<u32>>,
    /// PIDs of the processes that wait for a context.
    pub waiting: Vec<u32>,
    /// True if a process waited at any time since the daemon fell silent; it may be gone.
    pub waited: bool,
    /// Remedy to apply.
    pub remedy: Remedy,
    /// Settings of its spec for servers that hang.
    pub wedge: WedgeSettings,
    /// State of its pipe directory.
    pub pipes: Pipes,
}

impl DiagnosisEvidence {
    /// Returns true if its server keeps the daemon from answering, and nothing that may pass by itself does.
    pub(crate) fn shows_hung_server(&self) -> bool {
        let waits = (self.waited || !self.waiting.is_empty()) && !self.servers.is_empty();
        !self.is_explained() && (!self.hung.is_empty() || waits)
    }

    /// Returns true if something else explains why the daemon does not answer. A stopped process of its own may be continued,
    /// and a process that has no files left is not cured by the end of a server.
    pub fn is_explained(&self) -> bool {
        !self.stopped.is_empty() || !self.files.is_empty()
    }
}

/// Process that is near its limit on open files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileShortage {
    /// Kind of the process.
    pub what: &'static str,
    /// PID of the process.
    pub pid: u32,
    /// Number of files that it has open.
    pub open: u64,
    /// Number of files that it may have open.
    pub limit: u64,
}

impl std::fmt::Display for FileShortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, pid, open, limit } = self;
        write!(
            f,
            "{what} {pid} has {open} files open and may have {limit}; a daemon that has none left answers nobody, and a server \
             takes no client: end clients, and start the manager with a higher limit (LimitNOFILE; NVIDIA asks for 16384) before \
             the daemon is restarted"
        )
    }
}

/// State of the pipe directory of a running daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Pipes {
    /// Everything that clients need is there.
    #[default]
    Whole,
    /// Something that clients need is gone, in words.
    Lost(String),
}

/// Resources around a daemon that are running out, seen before it fails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceShortages {
    /// Bytes left on the file system of the logs, if that is too few.
    pub log_room: Option<u64>,
    /// Processes that are near their limit on open files.
    pub files: Vec<FileShortage>,
}

/// Evidence from the logs, which counts only where /proc agrees.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogEvidence {
    /// PIDs of servers that hang.
    pub(crate) hung: Vec<u32>,
    /// Processes that have a context, each with its server. `left` are the processes that have left.
    pub(crate) connected: Vec<(u32, u32)>,
    pub(crate) left: Vec<u32>,
    /// Living processes that wait for a context.
    pub(crate) waiting: Vec<u32>,
    /// True if such a process exists, or one ended before it got a context.
    pub(crate) waited: bool,
    /// Servers whose clients are all known.
    pub(crate) followed: Vec<u32>,
}
