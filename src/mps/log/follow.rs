//! A log read as it grows, through truncation, deletion and replacement.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;

use super::open::open;
use super::{LogRecord, Reader};
use crate::domain::{FilePlace, Inode};

/// The most that is read of a log that was not read before, or that grew faster than it was read, in bytes.
const MOST: u64 = 1 << 20;

/// One log and how far it was read.
#[derive(Debug)]
pub struct Follow {
    path: PathBuf,
    reader: Reader,
    inode: Option<Inode>,
    offset: u64,
    /// Up to where every message was given.
    given: u64,
}

/// Messages that a log has gained.
#[derive(Debug, Default)]
pub struct Gained {
    /// The messages, in their order.
    pub records: Vec<LogRecord>,
    /// True if messages may have been missed: there were too many, or another program emptied or replaced the log.
    pub skipped: bool,
}

impl Follow {
    /// Nothing is read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, reader: Reader::default(), inode: None, offset: 0, given: 0 }
    }

    /// Goes on from where it was read before.
    pub fn resumed(path: PathBuf, place: FilePlace) -> Self {
        let FilePlace { inode, offset } = place;
        Self { path, reader: Reader::default(), inode: Some(inode), offset, given: offset }
    }

    /// Returns the place up to which the log was read and every message given. `None` before there was a log.
    pub fn place(&self) -> Option<FilePlace> {
        Some(FilePlace { inode: self.inode?, offset: self.given })
    }

    /// Reads what was written since the last time; nothing when the log cannot be read.
    ///
    /// A log that became shorter was emptied, and one of another inode was replaced: either is read from its beginning.
    /// The last message counts as complete: what continues it comes too late to matter.
    pub fn read(&mut self) -> Gained {
        self.read_to(u64::MAX)
    }

    /// Reads like [`Self::read`], up to an offset in the log.
    pub fn read_to(&mut self, end: u64) -> Gained {
        match self.try_read(end) {
            Ok(gained) => gained,
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "a log cannot be read");
                // Whatever is there later is another log.
                self.inode = None;
                Gained::default()
            }
        }
    }

    /// Returns the number of bytes that were read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Follows the log at its present length after it was emptied by this process.
    pub fn emptied(&mut self) {
        (self.offset, self.given) = (0, 0);
    }

    fn try_read(&mut self, end: u64) -> io::Result<Gained> {
        let mut file = open(&self.path)?;
        let metadata = file.metadata()?;
        let (inode, length) = (Inode::from(&metadata), metadata.len().min(end));
        let mut skipped = false;
        if self.inode.is_none_or(|earlier| !inode.is_same(earlier)) || length < self.offset {
            skipped = self.offset > 0;
            (self.offset, self.given) = (0, 0);
            self.reader = Reader::default();
        }
        self.inode = Some(inode);
        if length - self.offset > MOST {
            skipped = true;
            self.offset = length - MOST;
            self.reader = Reader::default();
        }
        if length == self.offset {
            return Ok(Gained { records: Vec::new(), skipped });
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(length - self.offset).read_to_end(&mut bytes)?;
        self.offset += u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let mut records = self.reader.feed(&bytes);
        // A line that is still being written is waited for; one that ended is complete.
        if bytes.ends_with(b"\n") {
            records.extend(self.reader.flush());
            self.given = self.offset;
        }
        Ok(Gained { records, skipped })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;
    use std::path::Path;

    use super::*;

    fn line(text: &str) -> String {
        format!("[2026-11-21 02:53:15.169 Control  1308] {text}\n")
    }

    fn texts(follow: &mut Follow) -> Vec<String> {
        follow.read().records.into_iter().map(|record| record.text).collect()
    }

    fn append(path: &Path, text: &str) {
        let mut file = fs::File::options().create(true).append(true).open(path).expect("a log");
        file.write_all(text.as_bytes()).expect("written");
    }

    #[test]
    fn log_reading_resumes_after_the_last_message() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("server.log");
        let mut first = Follow::new(path.clone());
        assert_eq!(first.place(), None, "no log yet");
        append(&path, &line("one"));
        assert_eq!(texts(&mut first), ["one"]);
        let two = line("two");
        append(&path, &two[..20]);
        assert!(texts(&mut first).is_empty(), "half a line");
        let place = first.place().expect("a place");
        append(&path, &two[20..]);
        let mut second = Follow::resumed(path.clone(), place);
        assert_eq!(texts(&mut second), ["two"]);
        // Another file of that name is another log.
        fs::remove_file(&path).expect("removed");
        append(&path, &line("three"));
        let mut third = Follow::resumed(path.clone(), place);
        let gained = third.read();
        assert!(gained.skipped);
        assert_eq!(gained.records.len(), 1);
    }

    #[test]
    fn externally_replaced_log_may_have_lost_lines() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("server.log");
        let mut follow = Follow::new(path.clone());
        append(&path, &line("one"));
        assert!(!follow.read().skipped, "the first time nothing is missed");
        fs::write(&path, "").expect("emptied");
        assert!(follow.read().skipped);
        append(&path, &line("two"));
        assert!(!follow.read().skipped);
        fs::remove_file(&path).expect("removed");
        append(&path, &line("three and longer than the one before"));
        assert!(follow.read().skipped);
        fs::write(&path, "").expect("emptied");
        follow.emptied();
        assert!(!follow.read().skipped, "by this process");
    }

    #[test]
    fn only_new_messages_are_read() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.log");
        let mut follow = Follow::new(path.clone());
        assert!(texts(&mut follow).is_empty(), "no log yet");
        append(&path, &line("one"));
        assert_eq!(texts(&mut follow), ["one"]);
        assert!(texts(&mut follow).is_empty());
        let two = line("two");
        append(&path, &two[..20]);
        assert!(texts(&mut follow).is_empty(), "half a line");
        append(&path, &two[20..]);
        append(&path, &line("three"));
        assert_eq!(texts(&mut follow), ["two", "three"]);
    }

    #[test]
    fn truncated_deleted_and_replaced_logs_are_followed() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.log");
        append(&path, &line("one").repeat(10));
        let mut follow = Follow::new(path.clone());
        assert_eq!(texts(&mut follow).len(), 10);
        fs::File::options().write(true).truncate(true).open(&path).expect("emptied");
        append(&path, &line("two"));
        assert_eq!(texts(&mut follow), ["two"], "shorter than it was");
        fs::File::options().write(true).truncate(true).open(&path).expect("emptied");
        follow.emptied();
        append(&path, &line("as long"));
        append(&path, &line("as long"));
        assert_eq!(texts(&mut follow).len(), 2, "longer than it was, and emptied in between");
        fs::remove_file(&path).expect("removed");
        assert!(texts(&mut follow).is_empty());
        append(&path, &line("three").repeat(20));
        assert_eq!(texts(&mut follow).len(), 20);
        fs::rename(&path, dir.path().join("old")).expect("renamed");
        append(&path, &line("four").repeat(30));
        assert_eq!(texts(&mut follow).len(), 30);
    }

    #[test]
    fn overgrown_log_is_read_at_its_end() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.log");
        let mut follow = Follow::new(path.clone());
        append(&path, &line("noise").repeat(40_000));
        append(&path, &line("last"));
        let gained = follow.read();
        assert!(gained.skipped);
        assert_eq!(gained.records.last().expect("records").text, "last");
        assert!(gained.records.iter().all(|record| record.pid == 1308), "begins with a whole line");
        assert!(!follow.read().skipped);
    }
}
