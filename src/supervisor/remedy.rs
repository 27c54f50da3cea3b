//! Remedies for a daemon that does not answer.

use crate::host::Identity;

/// Next step against the silence of a daemon.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing: the cause is another one, or the daemon may not be touched.
    #[default]
    None,
    /// Nothing before this time: clients are at work until then, or the daemon may answer until then.
    WaitUntil(i64),
    /// Nothing while clients are at work.
    WaitForClients,
    /// Kill these servers.
    KillServers(Vec<Identity>),
    /// Kill the control daemon: the end of its server did not help.
    KillDaemon,
}
