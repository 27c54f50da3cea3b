//! Handouts: the socket or placeholder that the processes of tenants find.

use std::path::PathBuf;

use crate::host::Identity;

/// Handout of a daemon to the processes of its tenants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::supervisor) enum Handout {
    /// Socket of the daemon.
    Open(ControlSocket),
    /// Placeholder at which they wait for the daemon.
    Wait,
    /// Placeholder that refuses them.
    Refuse,
    /// No change of the present handout.
    Unchanged,
}

/// Socket of a control process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::supervisor) struct ControlSocket {
    /// Control process.
    pub(in crate::supervisor) identity: Identity,
    /// Pipe directory of the process.
    pub(in crate::supervisor) pipe: PathBuf,
    /// True if it is in a directory of another program, as that of an adopted process.
    pub(in crate::supervisor) foreign: bool,
}
