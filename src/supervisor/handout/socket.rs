//! What the processes of tenants meet at the socket of their daemon.

use std::path::PathBuf;

use crate::host::Identity;

/// What the processes of a daemon's tenants meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::supervisor) enum Handout {
    /// The daemon's socket.
    Open(ControlSocket),
    /// A placeholder at which they wait for the daemon.
    Wait,
    /// A placeholder that refuses them.
    Refuse,
    /// Whatever it was.
    Unchanged,
}

/// The socket of a control process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::supervisor) struct ControlSocket {
    /// The process.
    pub(in crate::supervisor) identity: Identity,
    /// Its pipe directory.
    pub(in crate::supervisor) pipe: PathBuf,
    /// Whether it is in a directory of another program, as an adopted one is.
    pub(in crate::supervisor) foreign: bool,
}
