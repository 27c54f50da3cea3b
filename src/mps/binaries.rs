//! Where NVIDIA's two programs are, and what a child of ours gets to know.
//!
//! The directory is the only seam between a real host and a simulated one: both have programs of these names.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub use crate::host::signal::{CONTROL, SERVER};

/// The two programs, by absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The control program.
    pub control: PathBuf,
    /// The server program.
    pub server: PathBuf,
}

/// The control program, and what it is run with.
#[derive(Debug, Clone)]
pub struct InstalledProgram {
    /// The program, by absolute path.
    pub path: PathBuf,
    /// The directory of its server program, which a daemon searches for in its `PATH` alone.
    pub server_directory: Option<PathBuf>,
    /// More variables for daemons and for the control processes that ask them, over what they need anyway.
    pub extra_env: Vec<(OsString, OsString)>,
}

/// Why the programs were not found.
#[derive(Debug, thiserror::Error)]
pub enum BinariesError {
    /// The directory that was named lacks one.
    #[error(
        "{}: {reason}; the directory should hold {CONTROL}, and {SERVER} or a neighbour sbin with it", path.display()
    )]
    Directory {
        /// The program that was searched for.
        path: PathBuf,
        /// Reason why it cannot be used.
        reason: &'static str,
    },
    /// No directory was named and `PATH` has none.
    #[error(
        "{name} is in no directory of PATH: install the NVIDIA driver's MPS programs or name the directory that holds them"
    )]
    NotInPath {
        /// The program that was searched for.
        name: &'static str,
    },
}

impl Binaries {
    /// Finds both programs in `dir`, or in `PATH` where no directory is given.
    ///
    /// Both come from one directory, or the server from the `sbin` beside the control program's `bin`, as Debian's packages have
    /// it: a mixture of two drivers would be no MPS at all.
    pub fn locate(dir: Option<&Path>) -> Result<Self, BinariesError> {
        if let Some(dir) = dir {
            let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
            return Self::in_directory(&dir);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::in_path(&path)
    }

    fn in_path(path: &OsStr) -> Result<Self, BinariesError> {
        let directories: Vec<PathBuf> = std::env::split_paths(path).filter(|dir| dir.is_absolute()).collect();
        if let Some(binaries) = directories.iter().find_map(|dir| Self::in_directory(dir).ok()) {
            return Ok(binaries);
        }
        let control = directories.iter().any(|dir| check(&dir.join(CONTROL)).is_ok());
        Err(BinariesError::NotInPath { name: if control { SERVER } else { CONTROL } })
    }

    fn in_directory(dir: &Path) -> Result<Self, BinariesError> {
        let control = dir.join(CONTROL);
        check(&control).map_err(|reason| BinariesError::Directory { path: control.clone(), reason })?;
        let beside = dir.join(SERVER);
        let apart =
            dir.parent().filter(|_| dir.ends_with("bin")).map(|parent| parent.join("sbin").join(SERVER));
        match (check(&beside), apart.filter(|apart| check(apart).is_ok())) {
            (Ok(()), _) => Ok(Self { control, server: beside }),
            (Err(_), Some(server)) => Ok(Self { control, server }),
            (Err(reason), None) => Err(BinariesError::Directory { path: beside, reason }),
        }
    }

    /// The control program, with what else its processes need in their environment.
    pub fn installed(&self, extra_env: Vec<(OsString, OsString)>) -> InstalledProgram {
        InstalledProgram {
            path: self.control.clone(),
            server_directory: self.server.parent().map(Path::to_owned),
            extra_env,
        }
    }
}

impl InstalledProgram {
    /// Returns the environment of this program's processes, from that of this process, with the program's own server first in `PATH`.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut environment = base_environment();
        if let Some(directory) = &self.server_directory {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let all = std::iter::once(directory.clone()).chain(std::env::split_paths(&path));
            // A directory with a colon in its name cannot be in PATH at all.
            if let Ok(joined) = std::env::join_paths(all) {
                environment.retain(|(key, _)| key != "PATH");
                environment.push(("PATH".into(), joined));
            }
        }
        environment.extend(self.extra_env.iter().cloned());
        environment
    }
}

fn check(path: &Path) -> Result<(), &'static str> {
    let metadata = fs::metadata(path).map_err(|_| "no such program")?;
    if !metadata.is_file() {
        return Err("not a file");
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Err("not executable");
    }
    Ok(())
}

/// Returns the part of this process's environment that every child gets: paths of programs and libraries, and nothing about GPUs.
///
/// A `CUDA_…` variable of the manager would otherwise become a setting of a daemon (recording 05, "daemon-level env").
pub(super) fn base_environment() -> Vec<(OsString, OsString)> {
    let mut environment: Vec<(OsString, OsString)> = ["PATH", "LD_LIBRARY_PATH"]
        .iter()
        .filter_map(|key| Some((OsString::from(key), std::env::var_os(key)?)))
        .collect();
    environment.push(("LC_ALL".into(), "C".into()));
    environment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(dir: &Path, name: &str, mode: u32) {
        fs::write(dir.join(name), "#!/bin/sh\n").expect("written");
        fs::set_permissions(dir.join(name), fs::Permissions::from_mode(mode)).expect("mode");
    }

    #[test]
    fn missing_program_is_named() {
        let dir = tempfile::tempdir().expect("directory");
        let message = |dir: &Path| Binaries::locate(Some(dir)).expect_err("refused").to_string();
        assert!(message(dir.path()).contains("nvidia-cuda-mps-control: no such program"));
        put(dir.path(), CONTROL, 0o755);
        assert!(message(dir.path()).contains("nvidia-cuda-mps-server: no such program"));
        put(dir.path(), SERVER, 0o644);
        assert!(message(dir.path()).contains("nvidia-cuda-mps-server: not executable"));
        put(dir.path(), SERVER, 0o755);
        let binaries = Binaries::locate(Some(dir.path())).expect("both");
        assert_eq!(binaries.control, dir.path().join(CONTROL));
    }

    #[test]
    fn server_may_be_in_the_sbin_beside() {
        let root = tempfile::tempdir().expect("directory");
        let (bin, sbin) = (root.path().join("bin"), root.path().join("sbin"));
        fs::create_dir(&bin).and_then(|()| fs::create_dir(&sbin)).expect("made");
        put(&bin, CONTROL, 0o755);
        put(&sbin, SERVER, 0o755);
        let path = std::env::join_paths([&bin]).expect("path");
        for binaries in [Binaries::locate(Some(&bin)), Binaries::in_path(&path)] {
            assert_eq!(binaries.expect("both").server, sbin.join(SERVER));
        }
        let program = Binaries::locate(Some(&bin)).expect("both").installed(Vec::new());
        let environment = program.environment();
        let (_, path) = environment.iter().find(|(key, _)| key == "PATH").expect("a path");
        assert_eq!(std::env::split_paths(path).next(), Some(sbin));
        // Another directory's neighbour may be another driver's.
        put(root.path(), CONTROL, 0o755);
        assert!(Binaries::locate(Some(root.path())).is_err());
    }

    #[test]
    fn both_come_from_one_directory_of_the_path() {
        let (half, whole) =
            (tempfile::tempdir().expect("directory"), tempfile::tempdir().expect("directory"));
        put(half.path(), CONTROL, 0o755);
        let path = |dirs: &[&Path]| std::env::join_paths(dirs).expect("path");
        let error = Binaries::in_path(&path(&[half.path(), whole.path()])).expect_err("no server");
        assert!(matches!(error, BinariesError::NotInPath { name: SERVER }));
        put(whole.path(), CONTROL, 0o755);
        put(whole.path(), SERVER, 0o755);
        let binaries = Binaries::in_path(&path(&[half.path(), whole.path()])).expect("found");
        assert_eq!(binaries.control.parent(), Some(whole.path()));
        assert!(matches!(Binaries::in_path(OsStr::new("")), Err(BinariesError::NotInPath { name: CONTROL })));
    }
}
