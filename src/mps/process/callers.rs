//! Other users of a daemon: control processes of others in its pipe directory.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use crate::host::process::variable;
use crate::host::{Identity, process};

use super::super::binaries::CONTROL;
use super::find::is_same_directory;
use super::{DEFAULT_PIPE_DIRECTORY, PIPE_ENV, SOCKET};

/// A control process that is none of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignCaller {
    /// The process.
    pub identity: Identity,
    /// Its user.
    pub uid: Option<u32>,
    /// True if it is stopped (SIGSTOP).
    pub stopped: bool,
    /// The process that started it: PID and command line.
    pub parent: Option<(u32, String)>,
}

/// Control processes that others have in this pipe directory at this moment.
///
/// A caller lives for two milliseconds, so one scan may see none of many. One whose environment may not be read
/// is left out: it is not known which daemon it asks.
pub fn callers(pipe_directory: &Path, daemon: Identity) -> Vec<ForeignCaller> {
    let me = std::process::id();
    process::find_by_command(calls)
        .into_iter()
        .filter(|id| *id != daemon && process::parent(id.pid) != Some(me))
        .filter(|id| calls_daemon(id.pid, pipe_directory))
        .map(|identity| ForeignCaller {
            identity,
            uid: process::uid(identity.pid),
            stopped: process::is_stopped(identity.pid),
            parent: process::parent(identity.pid)
                .map(|pid| (pid, process::command(pid).unwrap_or_default().join(" "))),
        })
        .collect()
}

/// Returns true if a command line is the control program's as a caller: a daemon has options.
fn calls(words: &[String]) -> bool {
    let program =
        words.iter().take(2).position(|word| Path::new(word).file_name() == Some(OsStr::new(CONTROL)));
    program.is_some_and(|index| !words[index + 1..].iter().any(|word| word.starts_with('-')))
}

fn calls_daemon(pid: u32, pipe_directory: &Path) -> bool {
    // No environment at all is one that may not be read.
    if process::environ(pid).is_none() {
        return false;
    }
    let directory = variable(pid, PIPE_ENV).unwrap_or_else(|| OsString::from(DEFAULT_PIPE_DIRECTORY));
    let directory = Path::new(&directory);
    // A tenant's directory has a link to the daemon's socket.
    is_same_directory(directory, pipe_directory)
        || is_same_directory(&directory.join(SOCKET), &pipe_directory.join(SOCKET))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_caller_is_distinguished_from_daemon() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for caller in
            ["nvidia-cuda-mps-control", "/usr/bin/nvidia-cuda-mps-control", "sh /x/nvidia-cuda-mps-control"]
        {
            assert!(calls(&words(caller)), "{caller}");
        }
        for command in [
            "nvidia-cuda-mps-control -d",
            "/bin/nvidia-cuda-mps-control -f -M",
            "vim a nvidia-cuda-mps-control",
            "sleep 1",
            "",
        ] {
            assert!(!calls(&words(command)), "{command}");
        }
    }
}
