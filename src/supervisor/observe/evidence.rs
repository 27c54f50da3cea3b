//! What is found around a daemon: the evidence by which a failed poll is diagnosed, and what runs out.

use crate::domain::wedge::WedgeSettings;
use crate::host::Identity;
use crate::mps::process::ForeignCaller;
use crate::supervisor::reconcile::remedy::Remedy;

/// What was found around a daemon that could not be read.
#[derive(Debug, Clone, Default)]
pub struct DiagnosisEvidence {
    /// Control processes of others in its pipe directory.
    pub callers: Vec<ForeignCaller>,
    /// Those of them that lived on while all the others came and went.
    pub held: Vec<Identity>,
    /// Its own stopped processes: what they are, and which.
    pub stopped: Vec<(&'static str, u32)>,
    /// Its stopped clients.
    pub stopped_clients: Vec<u32>,
    /// Its own processes that are near their limit on open files.
    pub files: Vec<FileShortage>,
    /// Its servers, as /proc shows them.
    pub servers: Vec<Identity>,
    /// Those of them that server.log shows to hang over a client that died while it connected.
    pub hung: Vec<Identity>,
    /// The processes that have a context in those, or in its servers where none is shown to hang; `None` where that is not known.
    pub connected: Option<Vec<u32>>,
    /// The processes that wait to get a context.
    pub waiting: Vec<u32>,
    /// Whether a process waited at any time since the daemon fell silent, which may be gone.
    pub waited: bool,
    /// What is done about it.
    pub remedy: Remedy,
    /// What its spec says of that.
    pub wedge: WedgeSettings,
    /// Its pipe directory.
    pub pipes: Pipes,
}

impl DiagnosisEvidence {
    /// Whether its server is what keeps the daemon from answering, and nothing that may pass by itself.
    pub(crate) fn shows_hung_server(&self) -> bool {
        let waits = (self.waited || !self.waiting.is_empty()) && !self.servers.is_empty();
        !self.is_explained() && (!self.hung.is_empty() || waits)
    }

    /// Whether something else explains a daemon that does not answer: a stopped process of its own may be continued, and one
    /// that has no files left is not healed by the end of a server.
    pub fn is_explained(&self) -> bool {
        !self.stopped.is_empty() || !self.files.is_empty()
    }
}

/// A process that is near its limit on open files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileShortage {
    /// What it is.
    pub what: &'static str,
    /// Its process ID.
    pub pid: u32,
    /// Files that it has open.
    pub open: u64,
    /// Files that it may have open.
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

/// What is left of a pipe directory whose daemon runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Pipes {
    /// All that clients need.
    #[default]
    Whole,
    /// Something that they need is gone, in words.
    Lost(String),
}

/// Whatever runs out around a daemon before it fails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceShortages {
    /// Bytes left on the file system of the logs, where that is too few.
    pub log_room: Option<u64>,
    /// Processes that are near their limit on open files.
    pub files: Vec<FileShortage>,
}

/// What the logs say, and what counts only where /proc agrees.
#[derive(Debug, Clone, Default)]
pub(crate) struct LogEvidence {
    /// Servers that hang.
    pub(crate) hung: Vec<u32>,
    /// Processes that have a context, each with its server, and those that have left.
    pub(crate) connected: Vec<(u32, u32)>,
    pub(crate) left: Vec<u32>,
    /// Living processes that wait to get a context.
    pub(crate) waiting: Vec<u32>,
    /// Whether there is such a process, or was one that ended before it got a context.
    pub(crate) waited: bool,
    /// Servers of which every client is known.
    pub(crate) followed: Vec<u32>,
}
