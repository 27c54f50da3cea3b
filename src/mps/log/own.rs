//! Which lines of control.log this program's own sessions left there.
//!
//! Each session of ours begins with a delimiter, an unknown word with a random number, which distinguishes it from everybody
//! else's:
//!
//! ```text
//! [2026-11-21 02:54:14.673 Control   896] Accepting connection...
//! [2026-11-21 02:54:14.673 Control   896] NEW UI
//! [2026-11-21 02:54:14.673 Control   896] Cmd:zz-00c0ffee00c0ffee-1
//! [2026-11-21 02:54:14.673 Control   896] Unknown command "zz-00c0ffee00c0ffee-1"
//! [2026-11-21 02:54:14.673 Control   896] Cmd:get_server_list
//! [2026-11-21 02:54:14.673 Control   896] 902
//! [2026-11-21 02:54:14.673 Control   896] UI closed
//! ```
//!
//! Messages of MPS about servers and clients are never ours, whatever session is open meanwhile. A caller that forges a delimiter
//! hides a session here, and nothing that it changes: getters show it.

use super::{LogEvent, event, prefixed};

/// Returns true if a line is one of the manager's delimiters: `zz-`, 16 hexadecimal digits, a dash and a number.
pub fn is_own_delimiter(line: &str) -> bool {
    let Some((nonce, number)) = line.strip_prefix("zz-").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    nonce.len() == 16
        && nonce.bytes().all(hex)
        && !number.is_empty()
        && number.bytes().all(|b| b.is_ascii_digit())
}

/// Whose session is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    /// The first lines may be in the middle of one.
    Start,
    /// None.
    None,
    /// One whose first command has not come.
    Unknown,
    Own,
    Others,
}

/// Says of each line whether it is of a session of ours.
///
/// Lines that begin in the middle of a session belong to the sender of its next command.
pub fn own_lines<'l>(lines: impl Iterator<Item = &'l [u8]>) -> Vec<bool> {
    let mut own: Vec<bool> = Vec::new();
    // Lines of a session whose owner is not known yet.
    let mut undecided: Vec<usize> = Vec::new();
    let mut open = Open::Start;
    // What continues a message is whose the message is.
    let mut before = LineOwner::Mps;
    for (index, line) in lines.enumerate() {
        own.push(false);
        let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
        if let Some(record) = prefixed(text.trim_end_matches('\r')) {
            before = verdict(&record.text, &mut open, &mut undecided, &mut own);
        }
        match before {
            LineOwner::Own => own[index] = true,
            LineOwner::Undecided => undecided.push(index),
            LineOwner::Mps => {}
        }
    }
    own
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineOwner {
    Own,
    Undecided,
    /// Of MPS itself, or of another program's session.
    Mps,
}

fn verdict(text: &str, open: &mut Open, undecided: &mut Vec<usize>, own: &mut [bool]) -> LineOwner {
    match event::control(text) {
        Some(LogEvent::Accepting) if *open == Open::Own => LineOwner::Own,
        Some(LogEvent::Accepting) => {
            undecided.clear();
            if *open != Open::Others {
                *open = Open::None;
            }
            LineOwner::Undecided
        }
        Some(LogEvent::UiOpened) => {
            if std::mem::replace(open, Open::Unknown) == Open::Start {
                undecided.clear();
            }
            LineOwner::Undecided
        }
        Some(LogEvent::Command(line)) => {
            if matches!(open, Open::Start | Open::None | Open::Unknown) {
                let is_own = is_own_delimiter(&line);
                *open = if is_own { Open::Own } else { Open::Others };
                for index in undecided.drain(..).filter(|_| is_own) {
                    own[index] = true;
                }
            }
            if *open == Open::Own { LineOwner::Own } else { LineOwner::Mps }
        }
        Some(LogEvent::UiClosed) => {
            undecided.clear();
            let is_own = std::mem::replace(open, Open::None) == Open::Own;
            if is_own { LineOwner::Own } else { LineOwner::Mps }
        }
        Some(_) => LineOwner::Mps,
        // A line of a reply.
        None => match open {
            Open::Own => LineOwner::Own,
            Open::Start => LineOwner::Undecided,
            Open::Unknown | Open::None | Open::Others => LineOwner::Mps,
        },
    }
}

/// Returns a piece of control.log without the lines of our sessions.
pub(super) fn without_own(bytes: &[u8]) -> Vec<u8> {
    let lines = || bytes.split_inclusive(|b| *b == b'\n');
    let own = own_lines(lines());
    lines().zip(own).filter(|(_, own)| !own).flat_map(|(line, _)| line.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELIMITER: &str = "Cmd:zz-00c0ffee00c0ffee-1";

    fn log(texts: &[&str]) -> String {
        texts.iter().flat_map(|text| ["[2026-11-21 02:53:15.169 Control  1308] ", text, "\n"]).collect()
    }

    fn kept(texts: &[&str]) -> Vec<String> {
        let kept = String::from_utf8(without_own(log(texts).as_bytes())).expect("text");
        kept.lines().map(|line| line.split_once("] ").map_or(line, |(_, text)| text).to_owned()).collect()
    }

    #[test]
    fn own_sessions_are_distinguished_from_others() {
        let own_session = [
            "Accepting connection...",
            "NEW UI",
            DELIMITER,
            "Unknown command \"zz-00c0ffee00c0ffee-1\"",
            "Cmd:ps",
            "PID  ID  SERVER",
            "continued\nby this",
            "UI closed",
        ];
        assert_eq!(kept(&own_session), [""; 0]);
        let other_session = ["Accepting connection...", "NEW UI", "Cmd:ps", DELIMITER, "511", "UI closed"];
        assert_eq!(kept(&other_session), other_session);
        let both: Vec<&str> = own_session.iter().chain(&other_session).chain(&own_session).copied().collect();
        assert_eq!(kept(&both), other_session);
    }

    #[test]
    fn mps_messages_during_own_session_are_kept() {
        let texts = [
            "Accepting connection...",
            "NEW UI",
            DELIMITER,
            "Cmd:start_server -uid 0",
            "Starting new server 902 for user 0",
            "Accepting connection...",
            "UI closed",
            "NEW SERVER 902: Ready",
            "NEW CLIENT 647 from user 0: Server already exists",
            "Server 902 exited with status 0",
        ];
        let expected = [
            "Starting new server 902 for user 0",
            "NEW SERVER 902: Ready",
            "NEW CLIENT 647 from user 0: Server already exists",
            "Server 902 exited with status 0",
        ];
        assert_eq!(kept(&texts), expected);
    }

    #[test]
    fn session_begun_before_the_window_is_recognised() {
        let second = "Cmd:zz-00c0ffee00c0ffee-7";
        assert_eq!(kept(&["100.0", second, "UI closed", "NEW SERVER 1: Ready"]), ["NEW SERVER 1: Ready"]);
        assert_eq!(kept(&["100.0", "Cmd:ps", "UI closed"]), ["100.0", "Cmd:ps", "UI closed"]);
        assert_eq!(kept(&["Server has started", "UI closed"]), ["Server has started", "UI closed"]);
    }

    #[test]
    fn only_whole_delimiters_are_ours() {
        assert!(is_own_delimiter("zz-00c0ffee00c0ffee-12"));
        for not in ["zz-1", "zz-00c0ffee00c0ffee-", "zz-00c0ffee00c0ffeg-1", "zz-00c0ffee00c0ffee-x"] {
            assert!(!is_own_delimiter(not), "{not}");
        }
    }
}
