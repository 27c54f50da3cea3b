//! A control process whose stdout is a terminal: its lines come at once.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::retry_on_intr;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::host::Host;

pub(super) struct Terminal {
    child: Child,
    stdin: Option<ChildStdin>,
    screen: File,
    shown: String,
}

impl Terminal {
    pub(super) fn open(host: &Host) -> Self {
        let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&screen).unwrap();
        unlockpt(&screen).unwrap();
        let name = ptsname(&screen, Vec::new()).unwrap();
        // By name and without NOCTTY it would be the terminal of tests that lead a session, and its end a hangup for them.
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let stdout = File::from(open(name.as_c_str(), flags, Mode::empty()).unwrap());
        let mut command = host.control_program();
        let mut child = command.stdin(Stdio::piped()).stdout(stdout).stderr(Stdio::null()).spawn().unwrap();
        let stdin = child.stdin.take();
        Self { child, stdin, screen: screen.into(), shown: String::new() }
    }

    pub(super) fn say(&mut self, line: &str) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// What stands on the screen once it contains `mark`, or after `timeout` without it.
    pub(super) fn shows(&mut self, mark: &str, timeout: std::time::Duration) -> &str {
        let timeout = Timespec::try_from(timeout).unwrap();
        while !self.shown.contains(mark) {
            let mut fds = [PollFd::new(&self.screen, PollFlags::IN)];
            if retry_on_intr(|| poll(&mut fds, Some(&timeout))).unwrap() == 0 {
                break;
            }
            let mut buffer = [0; 4096];
            match self.screen.read(&mut buffer) {
                Ok(count @ 1..) => self.shown.push_str(&String::from_utf8_lossy(&buffer[..count])),
                _ => break,
            }
        }
        &self.shown
    }

    /// Ends the input and waits for the end.
    pub(super) fn close(mut self) -> i32 {
        self.stdin = None;
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
