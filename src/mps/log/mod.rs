//! control.log and server.log, read.
//!
//! Logs are hints: anyone who reaches the pipe directory can write into them through the FIFO `log` (FACTS.md,
//! "Logs"). `ps` and `/proc` are the authority; a limit's proof is a getter *and* a line of server.log.

mod event;
mod follow;
#[cfg(test)]
mod fuzz;
mod keep;
mod open;
pub mod own;
pub mod window;

use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use jiff::civil::DateTime;
use rustix::fs::OFlags;

pub use event::{LogClient, LogEvent};
pub use follow::{Follow, Gained};
pub use keep::{kept_name, set_aside};

/// Which part of MPS wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogSource {
    /// The control daemon, or a server before it has become one.
    Control,
    /// A server.
    Server,
    /// Either, before it knows what it is.
    Other,
}

/// A message with its prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// When, by the host's local clock; MPS writes no time zone.
    pub at: DateTime,
    /// The part of MPS that wrote it.
    pub source: LogSource,
    /// The writer's PID.
    pub pid: u32,
    /// The message as it stands; lines without a prefix continue the one before.
    pub text: String,
    /// Its meaning.
    pub event: LogEvent,
}

/// The most that is kept of a line, and of a message with the lines that continue it, in bytes.
///
/// MPS's own messages have a few hundred. Anybody who reaches the pipe directory can write a line that never ends.
const LONGEST: usize = 16 << 10;

/// Reads a log as it grows.
///
/// A message is complete when the next one begins, so the last is held back until [`Reader::flush`]. What passes
/// [`LONGEST`] is dropped, so that a reader never holds more than two of that.
#[derive(Debug, Default)]
pub struct Reader {
    /// A line whose newline has not come yet, up to [`LONGEST`] bytes of it.
    partial: Vec<u8>,
    held: Option<LogRecord>,
    context: event::PrecedingMessages,
}

impl Reader {
    /// Takes more bytes of the log and returns the messages that they complete.
    ///
    /// Lines before the first prefix belong to a message that was never seen, and are dropped.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<LogRecord> {
        let mut records = Vec::new();
        self.partial.extend_from_slice(bytes);
        let complete = self.partial.iter().rposition(|b| *b == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.partial.drain(..complete).collect();
        self.partial.truncate(LONGEST);
        for line in lines.split_inclusive(|b| *b == b'\n') {
            self.line(line, &mut records);
        }
        records
    }

    /// Returns what is held back: the caller believes that nothing will continue it.
    pub fn flush(&mut self) -> Vec<LogRecord> {
        let mut records = Vec::new();
        let last = std::mem::take(&mut self.partial);
        if !last.is_empty() {
            self.line(&last, &mut records);
        }
        self.complete(&mut records);
        records
    }

    fn line(&mut self, line: &[u8], records: &mut Vec<LogRecord>) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = String::from_utf8_lossy(&line[..line.len().min(LONGEST)]);
        let line = line.trim_end_matches('\r');
        if let Some(record) = prefixed(line) {
            self.complete(records);
            self.held = Some(record);
        } else if let Some(held) = self.held.as_mut().filter(|held| held.text.len() + line.len() < LONGEST) {
            held.text.push('\n');
            held.text.push_str(line);
        }
    }

    fn complete(&mut self, records: &mut Vec<LogRecord>) {
        if let Some(mut record) = self.held.take() {
            record.event = self.context.read(record.pid, &record.text);
            records.push(record);
        }
    }
}

/// Empties a log that has grown past `max_bytes`; true if it was emptied.
///
/// In place, since MPS keeps the file open and appends: a renamed log would keep growing under its new name
/// (FACTS.md, "Logs"; recording 07). Only a file of this process's user under one name is emptied, and no link is
/// followed: a user who can write in the directory could put the name of another file there. `before` runs once it is
/// certain that the log is emptied.
pub fn bound(path: &Path, max_bytes: u64, before: impl FnOnce()) -> io::Result<bool> {
    let file = open::open_to(path, OFlags::WRONLY)?;
    let metadata = file.metadata()?;
    if metadata.len() <= max_bytes {
        return Ok(false);
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("belongs to uid {}", metadata.uid())));
    }
    if metadata.nlink() > 1 {
        return Err(io::Error::other("has another name, too"));
    }
    before();
    file.set_len(0)?;
    Ok(true)
}

/// Returns the last message of a control process about itself, in one line: no banner of its start, and nothing about its callers and
/// clients, which it mentions all the time.
pub fn last_word(records: &[LogRecord], pid: u32) -> Option<String> {
    let is_about_itself = |record: &&LogRecord| {
        record.pid == pid
            && match &record.event {
                LogEvent::Other(text) => {
                    !["NEW ", "User did not", "Unknown command"].iter().any(|about| text.starts_with(about))
                }
                LogEvent::ServerExited { .. }
                | LogEvent::DaemonExited { .. }
                | LogEvent::ShuttingDown { .. } => true,
                _ => false,
            }
    };
    let last = records.iter().rfind(is_about_itself)?;
    let line: Vec<&str> = last.text.lines().map(str::trim).collect();
    Some(line.join(" ").chars().take(LAST_WORD).collect())
}

/// The most of it that is repeated, in characters.
const LAST_WORD: usize = 300;

/// Reads a whole log, or a piece of one.
pub fn read(bytes: &[u8]) -> Vec<LogRecord> {
    let mut reader = Reader::default();
    let mut records = reader.feed(bytes);
    records.extend(reader.flush());
    records
}

/// Reads the prefix of a line; the PID is aligned to the right in five columns:
///
/// ```text
/// [2026-11-21 02:36:30.887 Other   511] Startup
/// [2026-11-21 02:53:15.169 Control  1308] NEW SERVER 1326: Ready
/// ```
fn prefixed(line: &str) -> Option<LogRecord> {
    let (prefix, text) = line.strip_prefix('[')?.split_once(']')?;
    let mut words = prefix.split_ascii_whitespace();
    let (day, time, source, pid) = (words.next()?, words.next()?, words.next()?, words.next()?);
    let source = match source {
        "Control" => LogSource::Control,
        "Server" => LogSource::Server,
        "Other" => LogSource::Other,
        _ => return None,
    };
    if words.next().is_some() {
        return None;
    }
    let at = DateTime::strptime("%Y-%m-%d %H:%M:%S%.f", format!("{day} {time}")).ok()?;
    let text = text.strip_prefix(' ').unwrap_or(text).to_owned();
    Some(LogRecord { at, source, pid: pid.parse().ok()?, event: LogEvent::Other(String::new()), text })
}

/// The end of a log, from a line's beginning; empty when it cannot be read.
///
/// Follows no link and waits for no FIFO: the directory may not be ours alone.
pub fn tail(path: &Path, max_bytes: usize) -> String {
    match read_tail(path, max_bytes) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => {
            tracing::debug!(path = %path.display(), %error, "a log cannot be read");
            String::new()
        }
    }
}

fn read_tail(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut file = open::open(path)?;
    let metadata = file.metadata()?;
    let max_bytes = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    let skipped = metadata.len().saturating_sub(max_bytes);
    // One byte more shows whether the cut falls between two lines.
    file.seek(SeekFrom::Start(skipped.saturating_sub(1)))?;
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(u64::from(skipped > 0))).read_to_end(&mut bytes)?;
    if skipped > 0 {
        let first = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..first);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::Mode;

    use super::*;

    #[test]
    fn log_line_has_time_source_and_pid() {
        let records = read(b"[2026-11-21 02:53:15.169 Control  1308] NEW SERVER 1326: Ready\n");
        assert_eq!(records.len(), 1);
        assert_eq!(records[0].at.to_string(), "2026-11-21T02:53:15.169");
        assert_eq!((records[0].source, records[0].pid), (LogSource::Control, 1308));
        assert_eq!(records[0].event, LogEvent::ServerReady { server: 1326 });
    }

    #[test]
    fn message_continues_over_lines_and_reads() {
        let log = b"of an earlier message\n[2026-11-21 02:36:31.100 Control   449] \nServer 511\nmore\n[2026-11-21 02:36:31.100 Control   449] UI closed\n";
        let whole = read(log);
        assert_eq!(whole.len(), 2);
        assert_eq!(whole[0].text, "\nServer 511\nmore");
        assert_eq!(whole[1].event, LogEvent::UiClosed);
        for cut in 0..log.len() {
            let mut reader = Reader::default();
            let mut records = reader.feed(&log[..cut]);
            records.extend(reader.feed(&log[cut..]));
            records.extend(reader.flush());
            assert_eq!(records, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_tail_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.log");
        fs::write(&path, "first\nsecond\nthird\n").expect("written");
        assert_eq!(tail(&path, 1000), "first\nsecond\nthird\n");
        assert_eq!(tail(&path, 19), "first\nsecond\nthird\n");
        assert_eq!(tail(&path, 13), "second\nthird\n");
        assert_eq!(tail(&path, 12), "third\n");
        assert_eq!(tail(&path, 3), "");
        assert_eq!(tail(&dir.path().join("nothing"), 10), "");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("link");
        assert_eq!(tail(&link, 1000), "");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .expect("fifo");
        assert_eq!(tail(&fifo, 1000), "");
    }

    #[test]
    fn only_a_log_itself_is_emptied() {
        let dir = tempfile::tempdir().expect("directory");
        let [log, other, link, name] =
            ["control.log", "other", "link", "name"].map(|name| dir.path().join(name));
        for path in [&log, &other] {
            fs::write(path, "0123456789").expect("written");
        }
        assert!(!bound(&log, 10, || ()).expect("short enough"));
        assert!(bound(&log, 9, || ()).expect("emptied"));
        assert_eq!(fs::read(&log).expect("there").len(), 0);

        std::os::unix::fs::symlink(&other, &link).expect("link");
        fs::hard_link(&other, &name).expect("another name");
        for refused in [&link, &name, &dir.path().to_owned(), &dir.path().join("nothing")] {
            bound(refused, 9, || ()).expect_err("no log");
        }
        assert_eq!(fs::read(&other).expect("there").len(), 10);
        if rustix::process::geteuid().is_root() {
            fs::remove_file(&name).expect("removed");
            std::os::unix::fs::chown(&other, Some(65_534), None).expect("given away");
            let error = bound(&other, 9, || ()).expect_err("another user's").to_string();
            assert!(error.contains("belongs to uid 65534"), "{error}");
        }
    }
}
