//! How a server ended, as far as its clients are concerned.

use std::collections::BTreeSet;

use crate::domain::event::EventType;

/// Why a server may have lost its clients.
#[derive(Debug, Clone)]
pub(super) enum ServerEnd {
    Died,
    /// A fatal GPU error of these processes; of all of them where server.log does not report.
    Fault(BTreeSet<u32>),
}

impl ServerEnd {
    /// Why a client is gone, if this is why.
    pub(super) fn cause_for(&self, pid: u32) -> Option<EventType> {
        match self {
            Self::Died => Some(EventType::ServerDied),
            Self::Fault(affected) => {
                (affected.is_empty() || affected.contains(&pid)).then_some(EventType::ServerFault)
            }
        }
    }
}
