//! `top` and `status --watch`, on a terminal and in a pipe.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

use super::stdout_of;
use crate::harness::{InProcess, eventually, signal, stderr_of};

/// A command on a terminal, and everything that it has written there.
struct OnTerminal {
    child: Child,
    screen: File,
    terminal: OwnedFd,
    written: Arc<Mutex<String>>,
}

fn on_terminal(host: &InProcess, words: &[&str], columns: u16) -> OnTerminal {
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&screen).unwrap();
    unlockpt(&screen).unwrap();
    let name = ptsname(&screen, Vec::new()).unwrap();
    let terminal =
        open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let size = Winsize { ws_row: 30, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let end = || Stdio::from(terminal.try_clone().unwrap());
    let mut command = host.command(words);
    let child = command.env("TERM", "xterm").stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
    let screen = File::from(screen);
    let written = Arc::new(Mutex::new(String::new()));
    let (mut reader, shared) = (screen.try_clone().unwrap(), Arc::clone(&written));
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count) = reader.read(&mut bytes) {
            if count == 0 {
                return;
            }
            shared.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    });
    OnTerminal { child, screen, terminal, written }
}

impl OnTerminal {
    fn shows(&self, text: &str) {
        eventually(text, || self.written.lock().unwrap().contains(text).then_some(()));
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.terminal).unwrap().local_modes.contains(rustix::termios::LocalModes::ICANON)
    }

    fn ends(&mut self) -> Option<i32> {
        eventually("it ends", || self.child.try_wait().unwrap()).code()
    }
}

/// What leaves the alternate screen.
const LEAVE: &str = "\u{1b}[?1049l";

#[test]
fn top_draws_and_quits_on_a_terminal() {
    let host = InProcess::stopped();
    for columns in [40, 120] {
        let mut top = on_terminal(&host, &["top", "--interval", "1s"], columns);
        top.shows("GPU 0");
        top.shows("q quit");
        assert!(top.is_raw());
        top.screen.write_all(b"?").unwrap();
        top.shows("close");
        top.screen.write_all(b"q").unwrap();
        assert_eq!(top.ends(), Some(0));
        top.shows(LEAVE);
        assert!(!top.is_raw());
    }
}

#[test]
fn signal_gives_the_terminal_back() {
    let host = InProcess::stopped();
    let mut top = on_terminal(&host, &["top"], 80);
    top.shows("q quit");
    signal(top.child.id(), Signal::TERM);
    assert_eq!(top.ends(), Some(0));
    top.shows(LEAVE);
    assert!(!top.is_raw());
}

#[test]
fn watched_status_leaves_the_scrollback() {
    let host = InProcess::stopped();
    let mut watch = on_terminal(&host, &["status", "--watch", "1s"], 80);
    watch.shows("\u{1b}[?1049h");
    watch.shows("demo");
    signal(watch.child.id(), Signal::INT);
    assert_eq!(watch.ends(), Some(130));
    watch.shows(LEAVE);
    assert!(!watch.written.lock().unwrap().contains("\u{1b}[3J"));
}

#[test]
fn pipe_gets_one_snapshot_of_status() {
    let host = InProcess::ready();
    let status = stdout_of(&host.cli(&["status"]));
    let line = |text: &str| text.lines().next().unwrap().to_owned();
    for words in [&["top"][..], &["status", "--watch"], &["status", "--watch=1s"]] {
        let output = host.cli(words);
        assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
        assert_eq!(line(&stdout_of(&output)), line(&status));
        assert!(stderr_of(&output).contains("terminal"), "{}", stderr_of(&output));
    }
}

/// What is printed on a terminal of this width, without colours.
fn plain_text(host: &InProcess, words: &[&str], columns: u16) -> String {
    let mut command = on_terminal(host, &[words, &["--color", "never"]].concat(), columns);
    assert_eq!(command.ends(), Some(0), "{words:?}");
    // The end of its output may come after its end.
    eventually("a whole line", || command.written.lock().unwrap().ends_with('\n').then_some(()));
    command.written.lock().unwrap().clone()
}

#[test]
fn tables_fit_the_terminal() {
    let host = InProcess::ready();
    let client = host.run_client("demo");
    let mut list = on_terminal(&host, &["client", "list"], 70);
    list.shows("…");
    assert_eq!(list.ends(), Some(0));
    for columns in [40, 70, 80] {
        for words in [
            &["client", "list"][..],
            &["daemon", "list"],
            &["tenant", "list"],
            &["gpu", "list"],
            &["audit", "list"],
            &["events"],
            &["token", "list"],
        ] {
            let text = plain_text(&host, words, columns);
            // Sentences below a table may be longer.
            for line in text.lines().filter(|line| !line.starts_with(['*', 'T'])) {
                assert!(line.chars().count() <= columns.into(), "{words:?} at {columns}: {line:?}");
            }
        }
    }
    drop(client);
}
