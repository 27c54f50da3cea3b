//! The end or fault of a server, as it affects the server's clients.

use std::collections::BTreeSet;

use crate::domain::event::EventType;

/// Reason why a server may have lost its clients.
#[derive(Debug, Clone)]
pub(super) enum ServerEnd {
    Died,
    /// A fatal GPU error of these processes, or of all its clients if server.log does not report them.
    Fault(BTreeSet<u32>),
}

impl ServerEnd {
    /// Returns the cause of a client's end, if this is the cause.
    pub(super) fn cause_for(&self, pid: u32) -> Option<EventType> {
        match self {
            Self::Died => Some(EventType::ServerDied),
            Self::Fault(affected) => {
                (affected.is_empty() || affected.contains(&pid)).then_some(EventType::ServerFault)
            }
        }
    }
}
