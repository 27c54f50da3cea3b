//! A simulated host without a manager, gone with every process on it when the test ends.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mps_manager::sim::world::{World, create_for};
use rustix::process::{Pid, Signal};
use serde_json::Value;
use tempfile::TempDir;

use super::{SIMULATED, simulated_directory};
use crate::host::process::{end_all, of_directory, send};

/// The variable that leads a program of NVIDIA's or a client to its simulated host.
const WORLD: &str = "MPS_SIM_WORLD";

pub(crate) struct BareHost {
    dir: TempDir,
    pub(crate) world: World,
}

impl BareHost {
    /// Makes a host of a profile, such as `h200x2`.
    pub(crate) fn new(profile: &str) -> Self {
        let dir = simulated_directory();
        let world = create_for(&dir.path().join("w"), profile, Path::new(SIMULATED)).expect("a world");
        Self { dir, world }
    }

    /// A path in the directory of the host.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The UUIDs of its GPUs.
    pub(crate) fn uuids(&self) -> Vec<String> {
        let text = fs::read(self.world.dir().join("world.json")).expect("the host");
        let host: Value = serde_json::from_slice(&text).expect("JSON");
        let gpus = host["gpus"].as_array().expect("a list").iter();
        gpus.map(|gpu| gpu["uuid"].as_str().expect("text").to_owned()).collect()
    }

    /// What each process on it has in its environment.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 1] {
        [(WORLD, self.world.dir().to_owned())]
    }

    /// A program on it, with the environment of the host and no other.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.world.bin().display()))
            .envs(self.environment())
            .stdin(Stdio::null());
        command
    }

    /// Signals a process on it, which must be there; one of another host that has its PID by now is not hit.
    pub(crate) fn signal(&self, pid: Pid, signal: Signal) {
        let id = of_directory(pid.as_raw_nonzero().get().unsigned_abs(), self.dir.path());
        let id = id.unwrap_or_else(|| panic!("{pid:?} is gone, or not of this host"));
        assert!(send(id, signal), "{pid:?} is there");
    }
}

impl Drop for BareHost {
    fn drop(&mut self) {
        end_all(self.dir.path());
    }
}
