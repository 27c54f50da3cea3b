//! Becoming the daemon of a pipe directory.
//!
//! `-d` runs this binary again, with the same name, arguments and environment, in a session of its own, and
//! returns once that one listens. One daemon a directory: it holds `control_lock` by flock for life, so what a
//! killed daemon left behind is taken over and what a living one owns is not.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{CWD, FlockOperation, Mode as FileMode, flock, mkfifoat};

use super::super::log::{Log, Voice};
use super::super::wire::Listener;
use super::super::world::World;
use super::super::{CONTROL, SERVER};
use super::daemon::Daemon;
use super::options::Mode;
use super::{log_directory, pipe_directory};

/// Set for the process that is to become the daemon.
const STAGE: &str = "MPS_SIM_STAGE";
/// The user whose clients a server takes.
const USER: &str = "MPS_SIM_USER";

/// Set for a server whose clients are of several users.
const SEVERAL_USERS: &str = "MPS_SIM_MULTIUSER";

/// What a daemon owns in its pipe directory.
pub(super) struct Instance {
    pub(super) pipe: PathBuf,
    pub(super) privileged: Listener,
    pub(super) open: Listener,
    pub(super) log: Log,
    /// Held for life.
    _lock: File,
}

pub(super) fn start(argv0: &OsStr, args: &[OsString], world: World, mode: Mode) -> ExitCode {
    let result = if mode.foreground {
        serve(world, mode, || {})
    } else if std::env::var_os(STAGE).is_some() {
        background(world, mode)
    } else {
        return launch(argv0, args, &world);
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the background process and waits for its word that it listens.
fn launch(argv0: &OsStr, args: &[OsString], world: &World) -> ExitCode {
    let spawned = Command::new(world.bin().join(CONTROL))
        .arg0(argv0)
        .args(args)
        .env(STAGE, "daemon")
        // The daemon's environment shows its host, also where only the link said so.
        .env(super::super::world::WORLD_VARIABLE, world.dir())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{}: {error}", world.bin().join(CONTROL).display());
            return ExitCode::FAILURE;
        }
    };
    let mut listens = [0];
    let mut stdout = child.stdout.take().expect("its stdout is a pipe");
    if stdout.read_exact(&mut listens).is_ok() {
        return ExitCode::SUCCESS;
    }
    let _ = child.wait();
    ExitCode::FAILURE
}

fn background(world: World, mode: Mode) -> Result<ExitCode, Failure> {
    rustix::process::setsid().map_err(Failure::errno("setsid"))?;
    serve(world, mode, || {
        let mut stdout = io::stdout();
        let _ = stdout.write_all(b"R").and_then(|()| stdout.flush());
        if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    })
}

fn serve(world: World, mode: Mode, listening: impl FnOnce()) -> Result<ExitCode, Failure> {
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
    log.line(Voice::Control, &format!("CUDA MPS Control binary version: {}", world.host().binary_version));
    let instance = Instance {
        privileged: Listener::bind(&pipe.join("control_privileged"), 0o755).map_err(Failure::io(&pipe))?,
        open: Listener::bind(&pipe.join("control"), 0o666).map_err(Failure::io(&pipe))?,
        log,
        _lock: lock,
        pipe,
    };
    prepare(&instance.pipe).map_err(Failure::io(&instance.pipe))?;
    listening();
    Ok(Daemon::new(world, mode, instance).run())
}

/// Takes the directory, or says that another daemon has it.
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

/// The FIFO and the PID file, with the modes recorded.
fn prepare(pipe: &Path) -> io::Result<()> {
    let fifo = pipe.join("log");
    let _ = fs::remove_file(&fifo);
    mkfifoat(CWD, &fifo, FileMode::from_raw_mode(0o777))?;
    fs::set_permissions(&fifo, Permissions::from_mode(0o777))?;
    let file = pid_file(pipe);
    fs::write(&file, std::process::id().to_string())?;
    fs::set_permissions(&file, Permissions::from_mode(0o666))
}

fn pid_file(pipe: &Path) -> PathBuf {
    pipe.join("nvidia-cuda-mps-control.pid")
}

impl Instance {
    /// What `quit` removes; the sockets and the lock stay.
    pub(super) fn leave(&self) {
        let _ = fs::remove_file(pid_file(&self.pipe));
        let _ = fs::remove_file(self.pipe.join("log"));
    }
}

/// Starts a server process, a child of this one, and calls it by a path if this one was (recordings 06 and 10).
pub(super) fn spawn_server(world: &World, mode: Mode, uid: u32) -> io::Result<std::process::Child> {
    let stdout = if mode.foreground { Stdio::inherit() } else { Stdio::null() };
    let own = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    Command::new(world.bin().join(SERVER))
        .arg0(own.with_file_name(SERVER))
        .env(super::super::world::WORLD_VARIABLE, world.dir())
        .env(STAGE, if mode.foreground { "foreground" } else { "server" })
        .env(USER, uid.to_string())
        .env(SEVERAL_USERS, if mode.multiuser { "1" } else { "0" })
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe_directory())
        .env("CUDA_MPS_LOG_DIRECTORY", log_directory())
        .stdin(Stdio::null())
        .stdout(stdout)
        .spawn()
}

/// Whether a server is to repeat its log on stdout.
pub(crate) fn echoes() -> bool {
    std::env::var_os(STAGE).is_some_and(|stage| stage == "foreground")
}

/// In a server: whether its daemon was started with `-M`, and it runs as the daemon's user.
pub(crate) fn multiuser() -> bool {
    std::env::var_os(SEVERAL_USERS).is_some_and(|several| several == "1")
}

/// In a server: the user whose clients it takes.
pub(crate) fn user() -> u32 {
    std::env::var(USER).ok().and_then(|uid| uid.parse().ok()).unwrap_or(0)
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

    fn errno(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |error| Self::Io(what.to_owned(), error.into())
    }
}
