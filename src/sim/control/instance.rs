//! Becoming the daemon of a pipe directory.
//!
//! A directory has one daemon, which holds `control_lock` by flock for life: so a directory of a killed daemon is taken over, and that of a
//! living one is not.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode as FileMode, flock, mkfifoat};

use super::super::log::{Log, Voice};
use super::super::profile::{GUARDED_SINCE, SPEAKING_SINCE};
use super::super::wire::Listener;
use super::super::world::World;
use super::environment::{log_directory, pipe_directory};
use super::options::Mode;

/// Files and sockets of a daemon in its pipe directory.
pub(super) struct Instance {
    pub(super) pipe: PathBuf,
    pub(super) privileged: Listener,
    pub(super) open: Listener,
    pub(super) log: Log,
    /// Held for life.
    _lock: File,
}

/// Locks the directory; fails if another daemon has it.
fn lock(pipe: &Path, logs: &Path) -> Result<File, Failure> {
    let path = pipe.join("control_lock");
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .map_err(Failure::io(&path))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if let Ok(log) = Log::open(&logs.join("server.log"), false) {
            log.line(Voice::Other, &format!("Using log directory: {}", logs.display()));
        }
        return Err(Failure::AlreadyRunning);
    }
    let _ = file.set_permissions(Permissions::from_mode(0o666));
    Ok(file)
}

/// Makes the FIFO, and from 12.4 on the PID file, with the recorded modes.
fn prepare(pipe: &Path, version: u32) -> io::Result<()> {
    let fifo = pipe.join("log");
    let _ = fs::remove_file(&fifo);
    mkfifoat(CWD, &fifo, FileMode::from_raw_mode(0o777))?;
    fs::set_permissions(&fifo, Permissions::from_mode(0o777))?;
    if version < GUARDED_SINCE {
        return Ok(());
    }
    let file = pid_file(pipe);
    fs::write(&file, std::process::id().to_string())?;
    fs::set_permissions(&file, Permissions::from_mode(0o666))
}

fn pid_file(pipe: &Path) -> PathBuf {
    pipe.join("nvidia-cuda-mps-control.pid")
}

impl Instance {
    /// Takes a pipe directory for this daemon, and listens there.
    pub(super) fn open(world: &World, mode: Mode) -> Result<Self, Failure> {
        let pipe = pipe_directory();
        let logs = log_directory();
        for dir in [&pipe, &logs] {
            fs::create_dir_all(dir).map_err(Failure::io(dir))?;
        }
        let lock = lock(&pipe, &logs)?;
        let log = Log::open(&logs.join("control.log"), mode.foreground).map_err(Failure::io(&logs))?;
        log.line(
            Voice::Control,
            &format!("Starting control daemon using socket {}", pipe.join("control").display()),
        );
        log.line(
            Voice::Control,
            &format!(
                "To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY={}",
                pipe.display()
            ),
        );
        let version = world.host().binary_version;
        if version >= SPEAKING_SINCE {
            log.line(Voice::Control, &format!("CUDA MPS Control binary version: {version}"));
        }
        let instance = Self {
            privileged: Listener::bind(&pipe.join("control_privileged"), 0o755)
                .map_err(Failure::io(&pipe))?,
            open: Listener::bind(&pipe.join("control"), 0o666).map_err(Failure::io(&pipe))?,
            log,
            _lock: lock,
            pipe,
        };
        prepare(&instance.pipe, version).map_err(Failure::io(&instance.pipe))?;
        Ok(instance)
    }

    /// Removes the files that `quit` removes; the sockets and the lock stay.
    pub(super) fn leave(&self) {
        let _ = fs::remove_file(pid_file(&self.pipe));
        let _ = fs::remove_file(self.pipe.join("log"));
    }
}

/// Why there is no daemon.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error("An instance of this daemon is already running")]
    AlreadyRunning,
    #[error("{0}: {1}")]
    Io(String, io::Error),
}

impl Failure {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        move |error| Self::Io(path.display().to_string(), error)
    }

    pub(super) fn errno(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io(what.to_owned(), error.into())
    }
}
