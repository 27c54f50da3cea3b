//! Daemons past their manager: asked and changed with NVIDIA's own program, and read by their logs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::{Served, eventually};

impl Served {
    /// The directory of a daemon's own two; one that was adopted under the name it has here keeps those it had.
    pub(crate) fn home(&self, daemon: &str) -> PathBuf {
        let (own, theirs) = (self.runtime("daemons").join(daemon), self.foreign_home(daemon));
        if !own.exists() && theirs.exists() { theirs } else { own }
    }

    /// Sends lines straight to a daemon with the control program, until the daemon has taken them all.
    pub(crate) fn control(&self, daemon: &str, lines: &str) -> String {
        let end = "zz-direct";
        eventually("the daemon takes a direct caller", || {
            let output = self.control_once(daemon, &format!("{lines}\n{end}\n"));
            output.strip_suffix(&format!("Unknown command \"{end}\"\n")).map(|reply| reply.trim().to_owned())
        })
    }

    /// One call of the control program, which fails when others use the daemon.
    pub(crate) fn control_once(&self, daemon: &str, lines: &str) -> String {
        let input = self.dir().join(format!("lines-{}", getrandom::u64().expect("random bytes")));
        fs::write(&input, lines).expect("written");
        let output = self
            .program("nvidia-cuda-mps-control", daemon)
            .stdin(fs::File::open(&input).expect("readable"))
            .output()
            .expect("the control program runs");
        fs::remove_file(&input).expect("removed");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// A program of the simulated MPS in the directories of a daemon.
    pub(crate) fn program(&self, name: &str, daemon: &str) -> Command {
        let mut command = Command::new(self.runtime("sim/bin").join(name));
        command
            .env_clear()
            .env("MPS_SIM_WORLD", self.runtime("sim"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.home(daemon).join("pipe"))
            .env("CUDA_MPS_LOG_DIRECTORY", self.home(daemon).join("log"));
        command
    }

    /// How often a daemon's control.log has this text.
    pub(crate) fn logged(&self, daemon: &str, text: &str) -> usize {
        let log = self.home(daemon).join("log/control.log");
        fs::read_to_string(log).unwrap_or_default().matches(text).count()
    }

    /// How many commands that change something a daemon was sent.
    pub(crate) fn changes(&self, daemon: &str) -> usize {
        [
            "Cmd:set_",
            "Cmd:start_server",
            "Cmd:terminate_client",
            "Cmd:quit",
            "Cmd:shutdown_server",
            "Cmd:sm_partition",
        ]
        .iter()
        .map(|text| self.logged(daemon, text))
        .sum()
    }
}
