//! Finds the running manager of a runtime directory by its socket, and its configuration.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::Parser as _;
use rustix::net::sockopt::socket_peercred;

use super::serve::Serve;
use crate::config::{self, Config};
use crate::host::{Identity, process};

/// A running manager.
pub(super) struct RunningManager {
    /// Its process.
    pub(super) process: Identity,
    /// Its configuration, or why that cannot be read now.
    pub(super) config: Result<Config, String>,
    /// The directory of its database, from the file it has open.
    pub(super) state_dir: Option<PathBuf>,
}

/// The manager that listens in a runtime directory; `None` if there is none, or an untrusted one.
pub(super) fn manager(runtime_dir: &Path) -> Option<RunningManager> {
    let stream = UnixStream::connect(config::socket_in(runtime_dir)).ok()?;
    let peer = socket_peercred(&stream).ok()?;
    if !config::trusted_managers().ok()?.includes(peer.uid.as_raw()) {
        return None;
    }
    let pid = u32::try_from(peer.pid.as_raw_nonzero().get()).ok()?;
    let process = process::identify(pid)?;
    let serve = serve_of(&process::command(pid)?)?;
    let directory = fs::read_link(format!("/proc/{pid}/cwd")).ok();
    let config = serve.within(directory.as_deref()).config().map_err(|error| error.to_string());
    Some(RunningManager { process, config, state_dir: state_dir(pid) })
}

/// The options of `serve` on a command line.
fn serve_of(words: &[String]) -> Option<Serve> {
    let command = words.get(1..).filter(|command| command.first().is_some_and(|name| name == "serve"))?;
    Serve::try_parse_from(command).ok()
}

/// The directory of the database that a process has open.
fn state_dir(pid: u32) -> Option<PathBuf> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.flatten();
    let mut files = open.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    let database = files.find(|file| file.file_name().is_some_and(|name| name == crate::app::DATABASE))?;
    database.parent().map(Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_of_a_manager_is_parsed() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let serve =
            serve_of(&words("/usr/bin/mps-manager serve --sim h200x2 --state-dir s --runtime-dir /r"));
        let serve = serve.expect("a manager").within(Some(Path::new("/home/me")));
        let config = serve.config().expect("a configuration");
        assert_eq!(config.sim.as_deref(), Some("h200x2"));
        assert_eq!((config.state_dir, config.runtime_dir), ("/home/me/s".into(), "/r".into()));
        for command in ["mps-manager status", "nginx -g daemon", "mps-manager serve --nonsense"] {
            assert!(serve_of(&words(command)).is_none(), "{command}");
        }
    }
}
