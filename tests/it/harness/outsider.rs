//! What others do to a daemon: sessions held open, limits on files, file systems without room.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Resource, Rlimit, prlimit};
use serde_json::Value;

use super::{Served, eventually};
use crate::host::process::raw;

/// A control process of another program that has sent a command and stays.
pub(crate) struct Held {
    process: Child,
    input: Option<ChildStdin>,
}

impl Held {
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A small file system of its own, unmounted with this value.
pub(crate) struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Makes the directory where it is to be. `None` where this test may not mount anything.
    pub(crate) fn mount(at: &Path, mebibytes: u32) -> Option<Self> {
        fs::create_dir_all(at).expect("a directory to mount at");
        let options = format!("size={mebibytes}m,mode=755");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(at).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Some(Self(at.to_owned()));
        }
        eprintln!(
            "SKIPPED: a file system cannot be mounted here, which takes root in a mount namespace of its own"
        );
        None
    }

    /// Takes all the room that is left, until the file that is returned is removed.
    pub(crate) fn fill(&self) -> PathBuf {
        let filler = self.0.join("filler");
        let mut file = fs::File::create(&filler).expect("a file");
        let written = io::copy(&mut io::repeat(0), &mut file);
        assert_eq!(written.expect_err("no disk is endless").kind(), io::ErrorKind::StorageFull);
        filler
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

impl Served {
    /// Every process that has the device file of a GPU open, looked up by the test itself.
    pub(crate) fn holders(&self, gpu: usize) -> Vec<u32> {
        let device = fs::metadata(self.runtime(&format!("sim/dev/nvidia{gpu}"))).expect("a device file");
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let Ok(open) = fs::read_dir(entry.path().join("fd")) else { continue };
            let mut open = open.flatten().filter_map(|file| fs::metadata(file.path()).ok());
            if open.any(|file| (file.dev(), file.ino()) == (device.dev(), device.ino())) {
                found.push(pid);
            }
        }
        found
    }

    /// Opens a session with a daemon and holds it.
    pub(crate) fn hold(&self, daemon: &str) -> Held {
        eventually("a session is had", || self.try_hold(daemon))
    }

    /// Tries once to open a session and to hold it.
    pub(crate) fn try_hold(&self, daemon: &str) -> Option<Held> {
        let mut process = self
            .program("nvidia-cuda-mps-control", daemon)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the control program starts");
        let mut input = process.stdin.take().expect("piped");
        let mut output = process.stdout.take().expect("piped");
        // More than a block of output, so that some of it comes though it is a pipe.
        let long = format!("{}\n", "x".repeat(900));
        let sent = input.write_all(long.repeat(6).as_bytes()).is_ok();
        let held = Held { process, input: Some(input) };
        // A caller that is dropped may get no answer at all, and waits forever.
        let granted = sent && readable(&output) && output.read(&mut [0; 8]).is_ok_and(|count| count > 0);
        granted.then_some(held)
    }

    /// A condition of a daemon.
    pub(crate) fn condition(&self, daemon: &str, kind: &str) -> Option<Value> {
        let daemon = self.daemon(daemon);
        let conditions = daemon["status"]["conditions"].as_array().expect("conditions");
        conditions.iter().find(|condition| condition["type"] == kind).cloned()
    }

    /// Waits until a daemon is not ready for this reason, and gives the message.
    pub(crate) fn await_reason(&self, daemon: &str, reason: &str) -> String {
        eventually(&format!("{daemon} is not ready: {reason}"), || {
            let ready = self.condition(daemon, "Ready").expect("Ready");
            let is = ready["reason"] == reason && ready["status"] == false;
            is.then(|| ready["message"].as_str().expect("a message").to_owned())
        })
    }
}

/// Whether something comes within a moment.
fn readable(output: &impl AsFd) -> bool {
    let moment = Timespec { tv_sec: 0, tv_nsec: 150_000_000 };
    let mut fds = [PollFd::new(output, PollFlags::IN)];
    retry_on_intr(|| poll(&mut fds, Some(&moment))).is_ok_and(|ready| ready > 0)
}

/// Sets how many files a process may have open; gives what it was.
pub(crate) fn limit_files(pid: u32, soft: Option<u64>) -> Option<u64> {
    let present = rustix::process::getrlimit(Resource::Nofile);
    let new = Rlimit { current: soft, maximum: present.maximum };
    prlimit(Some(raw(pid)), Resource::Nofile, new).expect("a process of the test's own user").current
}

/// The limit that leaves a process one file to open: the manager can let a caller in, and start no program.
pub(crate) fn limit_of_one_more(pid: u32) -> u64 {
    let taken = |number: &u64| std::fs::symlink_metadata(format!("/proc/{pid}/fd/{number}")).is_ok();
    let free =
        (0..u64::from(u32::MAX)).find(|number| !taken(number)).expect("no process has every number open");
    free + 1
}

/// How many files a process has open.
pub(crate) fn open_files(pid: u32) -> u64 {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process of the test's own user");
    files.count() as u64
}
