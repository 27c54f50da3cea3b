//! What is done about a daemon that does not answer.

use crate::host::Identity;

/// What to do next about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing: something else is wrong, or the daemon may not be touched.
    #[default]
    None,
    /// Nothing yet: clients are at work until then, or it may answer until then.
    WaitUntil(i64),
    /// Nothing, as long as clients are at work.
    WaitForClients,
    /// Kill these servers.
    KillServers(Vec<Identity>),
    /// Kill the control daemon: the end of its server did not help.
    KillDaemon,
}
