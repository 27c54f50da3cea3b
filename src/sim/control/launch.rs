//! Starting the daemon.
//!
//! `-d` runs this binary again, with the same name, arguments and environment, in a session of its own, and returns once the new process
//! listens.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use super::daemon::Daemon;
use super::environment::STAGE;
use super::instance::{Failure, Instance};
use super::options::Mode;
use crate::profile::SPEAKING_SINCE;
use crate::world::{CONTROL, WORLD_VARIABLE, World};

/// Message of the background process once it listens.
const LISTENS: &[u8; 1] = b"R";

pub(super) fn start(argv0: &OsStr, args: &[OsString], world: World, mode: Mode) -> ExitCode {
    // Before 13.0 the error that another daemon runs goes to standard output, recorded (22).
    let old = world.host().binary_version < SPEAKING_SINCE;
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
            if old && matches!(error, Failure::AlreadyRunning) {
                println!("{error}");
            } else {
                eprintln!("{error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Starts the background process and waits for its message that it listens.
fn launch(argv0: &OsStr, args: &[OsString], world: &World) -> ExitCode {
    let spawned = Command::new(world.bin().join(CONTROL))
        .arg0(argv0)
        .args(args)
        .env(STAGE, "daemon")
        // Set explicitly, so that the daemon's environment shows its host even if only the program's link named it.
        .env(WORLD_VARIABLE, world.dir())
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
        if listens == *LISTENS {
            return ExitCode::SUCCESS;
        }
        // It sent the reason why it does not listen.
        let mut out = io::stdout();
        let _ = out.write_all(&listens).and_then(|()| io::copy(&mut stdout, &mut out));
    }
    let _ = child.wait();
    ExitCode::FAILURE
}

fn background(world: World, mode: Mode) -> Result<ExitCode, Failure> {
    rustix::process::setsid().map_err(Failure::errno("setsid"))?;
    serve(world, mode, || {
        let mut stdout = io::stdout();
        let _ = stdout.write_all(LISTENS).and_then(|()| stdout.flush());
        if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    })
}

fn serve(world: World, mode: Mode, listening: impl FnOnce()) -> Result<ExitCode, Failure> {
    let instance = Instance::open(&world, mode)?;
    listening();
    Ok(Daemon::new(world, mode, instance).run())
}
