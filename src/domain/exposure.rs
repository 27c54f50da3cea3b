//! Processes that have a daemon's own directory mounted, with the socket by which its settings are changed.

use super::client::ClientId;
use super::count::first_few;

/// The first digits of a container's ID, by which engines name it.
const SHOWN: usize = 12;

/// A process in another mount namespace in which a daemon's own directory is mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketExposure {
    /// The oldest process of its namespace that can administer the daemon through the socket.
    pub process: ClientId,
    /// Its user.
    pub uid: Option<u32>,
    /// Its program, without arguments.
    pub program: Option<String>,
    /// The ID of the container that it is in.
    pub container: Option<String>,
    /// Mount point of the directory there.
    pub point: String,
}

/// Describes processes, the first few by name.
pub fn describe_exposures(exposures: &[SocketExposure]) -> String {
    let words = |SocketExposure { process, uid, program, container, point }: &SocketExposure| {
        let uid = uid.map(|uid| format!(" of uid {uid}")).unwrap_or_default();
        let program = program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
        let short = container.as_ref().map(|id| id.chars().take(SHOWN).collect::<String>());
        let container = short.map(|id| format!(" in container {id}")).unwrap_or_default();
        format!("process {}{uid}{program}{container} has it at {point}", process.pid)
    };
    first_few(exposures.iter().map(words), 0, ", ")
}
