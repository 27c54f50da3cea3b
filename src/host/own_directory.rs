//! A directory for a moment.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// A directory of this process alone, removed at the end with all that is in it.
#[derive(Debug)]
pub struct OwnDirectory(PathBuf);

impl OwnDirectory {
    /// Makes one among the temporary files, of a short name: a pipe directory in it may be 82 bytes long.
    pub fn new() -> io::Result<Self> {
        let number = getrandom::u64().map_err(io::Error::other)?;
        let path = std::env::temp_dir().join(format!("mps-manager-{number:016x}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
