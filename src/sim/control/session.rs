//! The side of a session that reads commands from stdin: what a caller of the binary sees.
//!
//! It connects with its first command, so an idle session disturbs nobody. Its stdout is that of the C library:
//! at once on a terminal, else kept until it fills a block or the input ends, so that a command that hangs
//! takes every earlier reply with it.

use std::io::{self, BufRead as _, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;

use super::super::profile::SPEAKING_SINCE;
use super::super::protocol::{Hello, ui};
use super::super::wire::Conn;

/// Size of the C library's buffer for output to a pipe.
const BLOCK: usize = 4096;
/// The longest part of a line that versions before 13.0 read at once.
const OLD_LINE: u64 = 4095;

pub(super) fn run(pipe: &Path, version: u32) -> ExitCode {
    let mut output = Output::new();
    let mut session: Option<Conn> = None;
    let mut quitting = false;
    let mut answered = false;
    let mut input = io::stdin().lock();
    let mut line = Vec::new();
    loop {
        line.clear();
        // Before 13.0 a longer line is read as two, recorded (22).
        let most = if version < SPEAKING_SINCE { OLD_LINE } else { u64::MAX };
        match input.by_ref().take(most).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        let conn = match session.take() {
            Some(conn) => conn,
            None => match open(pipe) {
                Some(conn) => conn,
                None => return output.fail("Cannot find MPS control daemon process"),
            },
        };
        let mut packet = vec![ui::COMMAND];
        packet.extend_from_slice(&line);
        if conn.send(&packet).is_err() {
            if quitting {
                return output.finish();
            }
            return output.fail("Cannot send command to MPS control daemon process");
        }
        // If a command ends the daemon, the only trace is the missing answer.
        match answer(&conn, &mut output) {
            Some(quits) => quitting |= quits,
            // Dropped for another session before its first answer, it takes the silence for an answer and waits for the next line
            // (recording 15). The fate of that line is not recorded; here nothing happens (synthetic).
            None if !answered => {
                let _ = io::copy(&mut input, &mut io::sink());
                return output.finish();
            }
            None => return output.finish(),
        }
        answered = true;
        session = Some(conn);
    }
    if !answered && version < SPEAKING_SINCE && open(pipe).is_none() {
        return output.fail("Cannot find MPS control daemon process");
    }
    if let Some(conn) = session.filter(|_| quitting) {
        while let Ok(Some(_)) = conn.recv() {}
    }
    output.finish()
}

/// Connects as the socket modes allow: a user that may write to the privileged socket is privileged.
fn open(pipe: &Path) -> Option<Conn> {
    let conn = Conn::connect(&pipe.join("control_privileged"))
        .or_else(|_| Conn::connect(&pipe.join("control")))
        .ok()?;
    // The daemon greets everybody first.
    let _ = conn.recv();
    // The next send shows if the session was granted: a daemon that is busy with another session has closed this one.
    if conn.send_message(&Hello::Ui).is_ok() {
        let _ = conn.recv();
    }
    Some(conn)
}

/// Prints the answer to one command; `Some(true)` if the daemon quits, `None` if it is gone.
fn answer(conn: &Conn, output: &mut Output) -> Option<bool> {
    let mut quits = false;
    loop {
        let packet = conn.recv().ok()??;
        match packet.bytes[0] {
            ui::TEXT => output.write(&packet.bytes[1..]),
            ui::QUITTING => quits = true,
            ui::END => return Some(quits),
            _ => {}
        }
    }
}

struct Output {
    terminal: bool,
    kept: Vec<u8>,
}

impl Output {
    fn new() -> Self {
        Self { terminal: rustix::termios::isatty(io::stdout()), kept: Vec::new() }
    }

    fn write(&mut self, text: &[u8]) {
        self.kept.extend_from_slice(text);
        if self.terminal || self.kept.len() >= BLOCK {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let mut stdout = io::stdout().lock();
        let _ = stdout.write_all(&self.kept);
        let _ = stdout.flush();
        self.kept.clear();
    }

    fn finish(mut self) -> ExitCode {
        self.flush();
        ExitCode::SUCCESS
    }

    fn fail(mut self, text: &str) -> ExitCode {
        self.flush();
        eprintln!("{text}");
        ExitCode::FAILURE
    }
}
