//! A part of a log for a reader: never more than a window of the file, whatever its size and whatever is in it.

use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use super::own::own_lines;

/// Bytes of a log that are checked at once.
pub const WINDOW: u64 = 256 * 1024;
/// Lines that are given at once.
pub const LINES: usize = 400;
/// Characters of a line that are given.
const LONGEST_LINE: usize = 2_000;

/// Which part of a log is wanted, by offsets that an earlier part gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Its end.
    Last,
    /// The lines before this offset, in bytes.
    Before(u64),
    /// The lines from this offset on, in bytes.
    From(u64),
}

/// A line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Where it begins, in bytes.
    pub at: u64,
    /// Its text, with a sign in place of whatever is none.
    pub text: String,
}

/// Lines of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excerpt {
    /// The lines, the first written first.
    pub lines: Vec<Line>,
    /// Where what was checked begins, in bytes.
    pub from: u64,
    /// Where it ends, in bytes: what comes later begins there.
    pub to: u64,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Number of lines of the manager's own sessions that are left out.
    pub hidden: usize,
}

/// Treatment of lines of the manager's own sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OwnSessions {
    /// They are left out and counted.
    #[default]
    Hidden,
    /// They are given like all others.
    Shown,
}

/// Reads a part of a log; those of its lines that have `wanted` in them, in whatever case.
pub fn excerpt(path: &Path, part: Part, wanted: &str, own: OwnSessions) -> io::Result<Excerpt> {
    let mut file = super::open::open(path)?;
    let size = file.metadata()?.len();
    let (from, to) = match part {
        Part::Last => (size.saturating_sub(WINDOW), size),
        Part::Before(end) => (end.min(size).saturating_sub(WINDOW), end.min(size)),
        Part::From(begin) => (begin.min(size), begin.saturating_add(WINDOW).min(size)),
    };
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(to - from).read_to_end(&mut bytes)?;
    // From the end of another part on, the first line is whole; elsewhere it may have begun before.
    let is_cut = from > 0 && !matches!(part, Part::From(_));
    let excerpt = cut(&bytes, from, is_cut, part, wanted, size);
    let hidden = if own == OwnSessions::Hidden { own_offsets(&bytes, from) } else { Vec::new() };
    Ok(bounded(without(excerpt, &hidden), part, &hidden))
}

/// Where the lines of our own sessions begin, in order.
fn own_offsets(bytes: &[u8], from: u64) -> Vec<u64> {
    let lines = || bytes.split_inclusive(|byte| *byte == b'\n');
    let begins = lines().scan(from, |offset, line| {
        let begin = *offset;
        *offset += u64::try_from(line.len()).unwrap_or(0);
        Some(begin)
    });
    begins.zip(own_lines(lines())).filter_map(|(offset, own)| own.then_some(offset)).collect()
}

fn without(mut excerpt: Excerpt, hidden: &[u64]) -> Excerpt {
    excerpt.lines.retain(|line| hidden.binary_search(&line.at).is_err());
    excerpt
}

/// Not more lines than are given at once.
fn bounded(mut excerpt: Excerpt, part: Part, hidden: &[u64]) -> Excerpt {
    let lines = &mut excerpt.lines;
    if lines.len() > LINES {
        if matches!(part, Part::From(_)) {
            excerpt.to = lines[LINES].at;
            lines.truncate(LINES);
        } else {
            lines.drain(..lines.len() - LINES);
            excerpt.from = lines[0].at;
        }
    }
    excerpt.hidden = hidden.iter().filter(|offset| (excerpt.from..excerpt.to).contains(*offset)).count();
    excerpt
}

fn cut(bytes: &[u8], from: u64, is_cut: bool, part: Part, wanted: &str, size: u64) -> Excerpt {
    let offset = |index: usize| from + u64::try_from(index).unwrap_or(u64::MAX - from);
    let mut begin = 0;
    if is_cut
        && let Some(end) = bytes.iter().position(|byte| *byte == b'\n').filter(|end| end + 1 < bytes.len())
    {
        begin = end + 1;
    }
    let mut end = bytes.len();
    // A line that continues behind the window is the next part's, unless it fills this one.
    if offset(end) < size
        && matches!(part, Part::From(_))
        && let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n')
    {
        end = last + 1;
    }
    let wanted = wanted.to_lowercase();
    let mut lines = Vec::new();
    let mut index = begin;
    for line in bytes.get(begin..end).unwrap_or_default().split_inclusive(|byte| *byte == b'\n') {
        let text = shown(line);
        if wanted.is_empty() || text.to_lowercase().contains(&wanted) {
            lines.push(Line { at: offset(index), text });
        }
        index += line.len();
    }
    Excerpt { lines, from: offset(begin), to: offset(end), size, hidden: 0 }
}

/// A line as it can be shown: what is no text has a sign in its place.
fn shown(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    // A character takes at most four bytes: more of the line is not read.
    let is_long = line.len() > LONGEST_LINE * 4;
    let text = String::from_utf8_lossy(if is_long { &line[..LONGEST_LINE * 4] } else { line });
    let plain = |c: char| if c.is_control() && c != '\t' { '\u{fffd}' } else { c };
    let mut shown: String = text.chars().take(LONGEST_LINE).map(plain).collect();
    if is_long || text.chars().nth(LONGEST_LINE).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    fn texts(excerpt: &Excerpt) -> Vec<&str> {
        excerpt.lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[test]
    fn huge_log_is_paged_without_repeats() {
        let folder = folder();
        let path = folder.path().join("control.log");
        let all: Vec<String> =
            (0..20_000).map(|number| format!("line {number} of the log, as long as it is")).collect();
        fs::write(&path, all.join("\n") + "\n").expect("written");
        let mut part = excerpt(&path, Part::Last, "", OwnSessions::Shown).expect("read");
        assert_eq!(part.to, part.size);
        assert!(part.to - part.from <= WINDOW && part.lines.len() == LINES);
        let mut read: Vec<String> = Vec::new();
        loop {
            read.splice(0..0, part.lines.iter().map(|line| line.text.clone()));
            if part.from == 0 {
                break;
            }
            part = excerpt(&path, Part::Before(part.from), "", OwnSessions::Shown).expect("read");
        }
        assert_eq!(read, all);
        let (mut read, mut position) = (Vec::new(), 0);
        while read.len() < all.len() {
            let part = excerpt(&path, Part::From(position), "", OwnSessions::Shown).expect("read");
            assert!(part.to > position, "it goes on");
            read.extend(part.lines.into_iter().map(|line| line.text));
            position = part.to;
        }
        assert_eq!(read, all);
        let matching = excerpt(&path, Part::Last, "LINE 19999 ", OwnSessions::Shown).expect("read");
        assert_eq!(texts(&matching), ["line 19999 of the log, as long as it is"]);
    }

    #[test]
    fn binary_and_endless_lines_are_shown() {
        let folder = folder();
        let path = folder.path().join("server.log");
        fs::write(&path, b"first\r\n\x1b[31mred\xff\xfe\0\ttab\n\nno end").expect("written");
        let part = excerpt(&path, Part::Last, "", OwnSessions::Shown).expect("read");
        assert_eq!(texts(&part), ["first", "\u{fffd}[31mred\u{fffd}\u{fffd}\u{fffd}\ttab", "", "no end"]);
        fs::write(&path, vec![b'x'; 3 * 256 * 1024]).expect("written");
        let mut position = None;
        for _ in 0..3 {
            let part = excerpt(&path, position.map_or(Part::Last, Part::Before), "", OwnSessions::Shown)
                .expect("read");
            assert_eq!((part.lines.len(), part.to - part.from), (1, WINDOW));
            assert_eq!(part.lines[0].text.chars().count(), LONGEST_LINE + 1);
            position = Some(part.from);
        }
        assert_eq!(position, Some(0));
        // One that was emptied meanwhile.
        fs::write(&path, "new\n").expect("written");
        assert_eq!(
            texts(&excerpt(&path, Part::From(500_000), "", OwnSessions::Shown).expect("read")),
            [""; 0]
        );
        assert_eq!(
            texts(&excerpt(&path, Part::Before(500_000), "", OwnSessions::Shown).expect("read")),
            ["new"]
        );
    }

    #[test]
    fn own_sessions_are_left_out_and_counted() {
        let folder = folder();
        let path = folder.path().join("control.log");
        let line = |text: &str| format!("[2026-11-21 02:53:15.169 Control  1308] {text}\n");
        let session = ["Accepting connection...", "NEW UI", "Cmd:zz-00c0ffee00c0ffee-1", "UI closed"]
            .map(line)
            .concat();
        let message = line("NEW SERVER 902: Ready");
        fs::write(&path, format!("{session}{message}{session}{session}")).expect("written");
        let read = |own| excerpt(&path, Part::Last, "", own).expect("read");
        let part = read(OwnSessions::Hidden);
        assert_eq!((texts(&part), part.hidden), (vec![message.trim_end()], 12));
        let part = read(OwnSessions::Shown);
        assert_eq!((part.lines.len(), part.hidden), (13, 0));
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = folder();
        let (secret, path) = (folder.path().join("secret"), folder.path().join("control.log"));
        fs::write(&secret, "a secret\n").expect("written");
        symlink(&secret, &path).expect("a link");
        assert!(excerpt(&path, Part::Last, "", OwnSessions::Shown).is_err());
        fs::remove_file(&path).expect("removed");
        assert_eq!(
            excerpt(&path, Part::Last, "", OwnSessions::Shown).map_err(|error| error.kind()),
            Err(io::ErrorKind::NotFound)
        );
        fs::create_dir(&path).expect("a directory");
        assert!(excerpt(&path, Part::Last, "", OwnSessions::Shown).is_err());
        fs::remove_dir(&path).expect("removed");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o600)).expect("a FIFO");
        assert!(excerpt(&path, Part::Last, "", OwnSessions::Shown).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_content_is_cut_into_lines(
            bytes in proptest::collection::vec(0u8.., 0..300), from in 0u64..1000, is_cut: bool, forward: bool
        ) {
            let part = if forward { Part::From(from) } else { Part::Last };
            let size = from + bytes.len() as u64;
            let cut = cut(&bytes, from, is_cut, part, "", size);
            proptest::prop_assert!(from <= cut.from && cut.from <= cut.to && cut.to <= size);
            proptest::prop_assert!(cut.lines.iter().all(|line| (cut.from..cut.to).contains(&line.at)));
        }
    }
}
