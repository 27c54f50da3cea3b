//! Content of a log before it was emptied, kept beside it without the lines of our own sessions.
//!
//! There are two files at most, each with a bound: `control.log.kept`, and `control.log.kept.1` with the older content.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use super::open;
use super::own::without_own;

/// The most that is read of a log before it is emptied, in bytes: its end, should it have grown further.
const MOST: u64 = 16 << 20;

/// The name of the file that keeps what was emptied from the log of this name.
pub fn kept_name(name: &str) -> String {
    format!("{name}.kept")
}

/// Appends what is worth keeping of a log to the file beside it; gives how many bytes that was.
///
/// Neither of the two files grows past `bound` bytes. As with [`super::bound`], only a file of this process's user
/// under one name is written to, and no link is followed.
pub fn set_aside(path: &Path, bound: u64) -> io::Result<u64> {
    let mut log = open::open(path)?;
    let skipped = log.metadata()?.len().saturating_sub(MOST);
    io::Seek::seek(&mut log, io::SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    log.take(MOST).read_to_end(&mut bytes)?;
    let mut kept = without_own(&bytes);
    let most = usize::try_from(bound).unwrap_or(usize::MAX);
    if let Some(more) = kept.len().checked_sub(most).filter(|more| *more > 0) {
        // From a whole line on.
        let begin = kept[more..].iter().position(|b| *b == b'\n').map_or(kept.len(), |end| more + end + 1);
        kept.drain(..begin);
    }
    let length = u64::try_from(kept.len()).unwrap_or(u64::MAX);
    if length == 0 {
        return Ok(0);
    }
    let beside = beside(path, "kept");
    let mut file = open_kept(&beside)?;
    if file.metadata()?.len().saturating_add(length) > bound {
        drop(file);
        fs::rename(&beside, self::beside(path, "kept.1"))?;
        file = open_kept(&beside)?;
    }
    file.write_all(&kept)?;
    Ok(length)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{suffix}"));
    name.into()
}

fn open_kept(path: &Path) -> io::Result<File> {
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::CLOEXEC
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    let metadata = file.metadata()?;
    if !metadata.is_file() || metadata.nlink() != 1 {
        return Err(io::Error::other("is not one file under one name"));
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other(format!("belongs to uid {}", metadata.uid())));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> String {
        format!("[2026-11-21 02:53:15.169 Control  1308] {text}\n")
    }

    fn ours() -> String {
        ["Accepting connection...", "NEW UI", "Cmd:zz-00c0ffee00c0ffee-1", "Cmd:ps", "UI closed"]
            .map(line)
            .concat()
    }

    #[test]
    fn own_sessions_are_dropped_from_kept_log() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.log");
        for server in 1..=2 {
            let message = line(&format!("NEW SERVER {server}: Ready"));
            fs::write(&path, format!("{}{message}{}", ours(), ours())).expect("written");
            assert_eq!(set_aside(&path, 1 << 20).expect("kept"), message.len() as u64);
        }
        let kept = fs::read_to_string(dir.path().join(kept_name("control.log"))).expect("there");
        assert_eq!(kept, line("NEW SERVER 1: Ready") + &line("NEW SERVER 2: Ready"));
        fs::write(&path, ours()).expect("written");
        assert_eq!(set_aside(&path, 1 << 20).expect("nothing to keep"), 0);
    }

    #[test]
    fn kept_files_never_pass_their_bound() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("control.log");
        let message: String = (0..100).map(|server| line(&format!("NEW SERVER {server}: Ready"))).collect();
        for _ in 0..5 {
            fs::write(&path, &message).expect("written");
            set_aside(&path, 4_000).expect("kept");
        }
        for name in ["control.log.kept", "control.log.kept.1"] {
            let kept = fs::read_to_string(dir.path().join(name)).expect("there");
            assert!(kept.len() <= 4_000 && kept.starts_with('[') && kept.ends_with("99: Ready\n"), "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 3);
    }

    #[test]
    fn linked_kept_file_is_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let (path, other) = (dir.path().join("control.log"), dir.path().join("other"));
        fs::write(&path, line("NEW SERVER 1: Ready")).expect("written");
        fs::write(&other, "untouched").expect("written");
        let kept = dir.path().join("control.log.kept");
        std::os::unix::fs::symlink(&other, &kept).expect("link");
        set_aside(&path, 1 << 20).expect_err("a link");
        fs::remove_file(&kept).expect("removed");
        fs::hard_link(&other, &kept).expect("another name");
        set_aside(&path, 1 << 20).expect_err("another name");
        assert_eq!(fs::read_to_string(&other).expect("there"), "untouched");
    }
}
