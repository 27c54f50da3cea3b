//! Replies that are one value, or a list of servers.

use crate::domain::daemon::ServerStatus;
use crate::domain::{MemoryLimit, Priority, ThreadPercentage};

use super::{ParseError, missing_server, not_understood, pids, shown, text};

/// A memory limit as the daemon prints it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitReading {
    /// Whole MiB, as this crate sets them.
    Whole(MemoryLimit),
    /// A value that another program set and MPS misread, such as `17179869183G` (recording 03).
    Nonsense(String),
}

/// Reads `get_server_list`: a PID a line; nothing when there is no server.
///
/// ```text
/// 511
/// ```
pub fn server_list(reply: &[u8]) -> Result<Vec<u32>, ParseError> {
    pids(text(reply)?).ok_or_else(|| not_understood("a PID a line", reply))
}

/// Reads `get_server_status`:
///
/// ```text
/// ACTIVE
/// ```
/// ```text
/// Server 1 not found
/// ```
/// ```text
/// A server PID is required
/// ```
///
/// `None` where there is no such server.
pub fn server_status(reply: &[u8]) -> Result<Option<ServerStatus>, ParseError> {
    let text = text(reply)?;
    if missing_server(text).is_some() {
        return Ok(None);
    }
    match text.trim_end() {
        "A server PID is required" => Err(ParseError::Refused { text: shown(text.trim_end()) }),
        word if !word.is_empty()
            && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_' || b == b' ') =>
        {
            Ok(Some(shown(word).into()))
        }
        _ => Err(not_understood("the status of a server", reply)),
    }
}

/// Reads what the getters and setters of a percentage print, which is the value in force:
///
/// ```text
/// 33.3
/// ```
///
/// A setter prints the *old* value for anything that it does not like.
pub fn percentage(reply: &[u8]) -> Result<ThreadPercentage, ParseError> {
    let text = value_of_a_server(reply)?;
    ThreadPercentage::parse(text).map_err(|_| not_understood("a percentage with one decimal", reply))
}

/// Reads the percentage of a server; `None` for one that dies, which has none any more (seen on 13.0, some 100 ms after SIGKILL):
///
/// ```text
/// 0.0
/// ```
pub fn server_percentage(reply: &[u8]) -> Result<Option<ThreadPercentage>, ParseError> {
    if value_of_a_server(reply)? == "0.0" {
        return Ok(None);
    }
    percentage(reply).map(Some)
}

/// Reads a getter of a memory limit: nothing when unset, else a number of `M` or `G`.
///
/// ```text
/// 4G
/// ```
pub fn memory_limit(reply: &[u8]) -> Result<Option<LimitReading>, ParseError> {
    let text = value_of_a_server(reply)?;
    if text.is_empty() {
        return Ok(None);
    }
    let (number, unit) = text.split_at(text.len() - text.chars().next_back().map_or(0, char::len_utf8));
    let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.' || b == b'-');
    if !digits || !matches!(unit, "M" | "G" | "K" | "T") {
        return Err(not_understood("a memory limit such as 4G, or nothing", reply));
    }
    Ok(Some(
        MemoryLimit::parse(text).map_or_else(|_| LimitReading::Nonsense(shown(text)), LimitReading::Whole),
    ))
}

/// Reads `get_default_client_priority`:
///
/// ```text
/// 0
/// ```
pub fn priority(reply: &[u8]) -> Result<Priority, ParseError> {
    let text = text(reply)?.trim_end();
    text.parse().ok().and_then(Priority::from_mps).ok_or_else(|| not_understood("0 or 1", reply))
}

/// Reads a command that prints nothing: the setters of limits and priority, `start_server`, `shutdown_server`.
///
/// Nothing is no proof: a limit for a device that does not exist is answered with silence too. Whatever it prints
/// is a refusal:
///
/// ```text
/// Invalid priority value - must be 0 or 1!
/// ```
/// ```text
/// A user id (UID) is required to start a new server
/// ```
pub fn silent(reply: &[u8]) -> Result<(), ParseError> {
    let text = value_of_a_server(reply)?;
    if text.is_empty() {
        return Ok(());
    }
    Err(ParseError::Refused { text: shown(text) })
}

/// The reply without its newline, unless the server that it is about is not there.
fn value_of_a_server(reply: &[u8]) -> Result<&str, ParseError> {
    let text = text(reply)?;
    match missing_server(text) {
        Some(server) => Err(ParseError::ServerNotFound { server }),
        None => Ok(text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_listed_or_there_are_none() {
        assert_eq!(server_list(b""), Ok(vec![]));
        assert_eq!(server_list(b"511\n"), Ok(vec![511]));
        for bad in ["0\n", "-1\n", "511 512\n", "\n", "x\n", "4294967296\n"] {
            assert!(server_list(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn server_status_or_missing_server_is_parsed() {
        assert_eq!(server_status(b"ACTIVE\n"), Ok(Some(ServerStatus::Active)));
        assert_eq!(server_status(b"FAULT\n"), Ok(Some(ServerStatus::Fault)));
        assert_eq!(server_status(b"INITIALIZING\n"), Ok(Some(ServerStatus::Initializing)));
        assert_eq!(server_status(b"Server 1 not found\n"), Ok(None));
        assert_eq!(server_status(b"DRAINING\n"), Ok(Some(ServerStatus::Other("DRAINING".into()))));
        assert!(matches!(server_status(b"A server PID is required\n"), Err(ParseError::Refused { .. })));
        assert!(server_status(b"").is_err());
    }

    #[test]
    fn misread_limits_are_kept_verbatim() {
        let whole = |text: &str| Ok(Some(LimitReading::Whole(MemoryLimit::parse(text).expect("limit"))));
        let nonsense = |text: &str| Ok(Some(LimitReading::Nonsense(text.into())));
        assert_eq!(memory_limit(b""), Ok(None));
        assert_eq!(memory_limit(b"4G\n"), whole("4G"));
        assert_eq!(memory_limit(b"512M\n"), whole("512M"));
        assert_eq!(memory_limit(b"17179869183G\n"), nonsense("17179869183G"));
        assert_eq!(memory_limit(b"4194304G\n"), nonsense("4194304G"));
        assert_eq!(memory_limit(b"-1G\n"), nonsense("-1G"));
        assert_eq!(
            memory_limit(b"Server 99999 not found\n"),
            Err(ParseError::ServerNotFound { server: 99_999 })
        );
        for bad in ["G\n", "four\n", "4\n", "4 G\n", "é\n"] {
            assert!(memory_limit(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn percentages_and_priorities_are_values_of_the_domain() {
        assert_eq!(percentage(b"33.3\n").map(ThreadPercentage::tenths), Ok(333));
        assert_eq!(percentage(b"100.0\n"), Ok(ThreadPercentage::FULL));
        assert!(percentage(b"").is_err() && percentage(b"nan\n").is_err());
        assert!(percentage(b"0.0\n").is_err(), "no default is 0");
        assert_eq!(server_percentage(b"0.0\n"), Ok(None), "it dies");
        assert_eq!(server_percentage(b"100.0\r\n"), Ok(Some(ThreadPercentage::FULL)));
        assert!(server_percentage(b"0\n").is_err() && server_percentage(b"").is_err());
        assert_eq!(server_percentage(b"Server 7 not found\n"), Err(ParseError::ServerNotFound { server: 7 }));
        assert_eq!(priority(b"1\n"), Ok(Priority::BelowNormal));
        assert!(priority(b"7\n").is_err() && priority(b"").is_err());
    }

    #[test]
    fn output_of_silent_command_is_a_refusal() {
        assert_eq!(silent(b""), Ok(()));
        assert_eq!(
            silent(b"Invalid priority value - must be 0 or 1!\n"),
            Err(ParseError::Refused { text: "Invalid priority value - must be 0 or 1!".into() })
        );
        assert_eq!(silent(b"Server 657 not found\n"), Err(ParseError::ServerNotFound { server: 657 }));
    }
}
