//! Opening a log to read or empty it.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

/// Opens a log to read: follows no link and waits for no FIFO, since the directory may not be ours alone.
pub(super) fn open(path: &Path) -> io::Result<File> {
    open_to(path, OFlags::RDONLY)
}

/// Opens a log as [`open`] does, to read it or to write it.
pub(super) fn open_to(path: &Path, mode: OFlags) -> io::Result<File> {
    let flags = mode | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a file"));
    }
    Ok(file)
}
