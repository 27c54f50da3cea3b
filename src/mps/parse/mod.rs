//! Replies of the control daemon, read.
//!
//! One function a command: bytes in, typed out. None panics, whatever the bytes; what is not understood stays in
//! the error as text. Two refusals can answer any command and are recognised everywhere, since they come with a
//! return code of 0 like everything else.

mod clients;
mod devices;
mod partitions;
mod values;

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod recordings;

pub use clients::{
    ClientRow, Clients, DeviceClients, DeviceContext, Terminated, client_list, clients, device_client_list,
    terminate,
};
pub use devices::{DeviceRow, DeviceSection, Devices, UuidPrefix, device_query};
pub use partitions::{Partition, PartitionDevice, Partitions, lspart, sm_partition_add, sm_partition_remove};
pub use values::{
    LimitReading, memory_limit, percentage, priority, server_list, server_percentage, server_status, silent,
};

/// The most of a reply that an error repeats, in characters.
const SHOWN: usize = 400;

/// Why a reply has no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// The daemon obeys its own uid and root only, by the privileged socket.
    #[error("the daemon refused: {text}")]
    InsufficientPrivileges {
        /// The daemon's message.
        text: String,
    },
    /// The daemon does not know the command: it is of an older version.
    #[error("the daemon does not know the command {word:?}")]
    UnknownCommand {
        /// The word that it repeated.
        word: String,
    },
    /// The server that the command named is not there.
    #[error("the daemon has no server {server}")]
    ServerNotFound {
        /// Its PID.
        server: u32,
    },
    /// The daemon refused for a reason of this command.
    #[error("the daemon refused: {text}")]
    Refused {
        /// The daemon's message.
        text: String,
    },
    /// The reply is not of a shape that was ever seen.
    #[error("the reply is not {expected}: {reply:?}")]
    NotUnderstood {
        /// Description of the reply that was expected.
        expected: &'static str,
        /// The reply, bytes that are no UTF-8 as U+FFFD, cut after 400 characters.
        reply: String,
    },
}

fn not_understood(expected: &'static str, reply: &[u8]) -> ParseError {
    ParseError::NotUnderstood { expected, reply: shown(&String::from_utf8_lossy(reply)) }
}

fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(SHOWN).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

/// A reply as text, once the refusals that can answer any command are out of the way:
///
/// ```text
/// Unknown command "lspart"
/// Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or by the root user.
/// Not enough privilege to execute quit command
/// ```
fn text(reply: &[u8]) -> Result<&str, ParseError> {
    let text = std::str::from_utf8(reply).map_err(|_| not_understood("text", reply))?;
    // Only at the beginning: a client may call itself anything, and `ps` shows it.
    let first = text.lines().next().unwrap_or_default();
    if first.starts_with("Insufficient privileges for UID ") || first.starts_with("Not enough privilege ") {
        return Err(ParseError::InsufficientPrivileges { text: shown(first) });
    }
    if let Some(rest) = text.strip_prefix("Unknown command \"") {
        let word = rest.lines().next().unwrap_or_default();
        return Err(ParseError::UnknownCommand { word: shown(word.strip_suffix('"').unwrap_or(word)) });
    }
    Ok(text)
}

/// The PID of `Server 99999 not found`, where that is what the reply begins with.
fn missing_server(text: &str) -> Option<u32> {
    text.lines().next()?.trim_end().strip_prefix("Server ")?.strip_suffix(" not found")?.parse().ok()
}

/// One PID a line, and nothing else.
fn pids(text: &str) -> Option<Vec<u32>> {
    text.lines().map(|line| line.trim_end().parse::<u32>().ok().filter(|pid| *pid != 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_refusals_are_recognised_in_every_reply() {
        type Parser = fn(&[u8]) -> Option<ParseError>;
        let privileges = b"Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or by the root user.\n";
        let unknown = b"Unknown command \"lspart\"\n";
        let every: [Parser; 14] = [
            |reply| server_list(reply).err(),
            |reply| server_status(reply).err(),
            |reply| percentage(reply).err(),
            |reply| memory_limit(reply).err(),
            |reply| priority(reply).err(),
            |reply| silent(reply).err(),
            |reply| clients(reply).err(),
            |reply| client_list(reply).err(),
            |reply| device_client_list(reply).err(),
            |reply| device_query(reply).err(),
            |reply| terminate(reply).err(),
            |reply| lspart(reply).err(),
            |reply| sm_partition_add(reply).err(),
            |reply| sm_partition_remove(reply).err(),
        ];
        for parser in every {
            assert!(matches!(parser(privileges), Some(ParseError::InsufficientPrivileges { .. })));
            assert_eq!(parser(unknown), Some(ParseError::UnknownCommand { word: "lspart".into() }));
            assert!(matches!(parser(b"\xff\xfe"), Some(ParseError::NotUnderstood { .. })));
        }
    }
}
