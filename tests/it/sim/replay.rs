//! Playing a recording's commands to a simulated host and comparing what comes back.
//!
//! Names of the day (PIDs, UUIDs) are translated, in commands and back in replies; everything else must be equal
//! byte for byte. What is not reproduced stands in one list, and an entry that is reproduced after all, or that
//! no command comes to, fails the test.

use std::collections::BTreeMap;
use std::time::Duration;

use super::host::{Done, Host, NOBODY, can_become_nobody, finish, uid};
use super::transcript::{self, Item, What};
use crate::harness::TIMEOUT;

/// Where the simulated host does not do what a recording shows, and why. `docs/simulated-host.md` repeats it.
pub(super) const NOT_REPRODUCED: &[(&str, usize, &str)] = &[
    (
        "05-h200-x2-device-ordinals-percentages.txt",
        128,
        "its second client runs in a PID namespace of its own, which needs privileges that tests do not have; the \
         IDs count clients of which not all were recorded",
    ),
    (
        "07-h200-x2-limits-by-uuid-other-uid-logs.txt",
        148,
        "three lines of three runs, one of them over a read-only bind mount, which needs privileges",
    ),
];

/// How long a command that the recording shows to hang is given to prove it.
const HANGS: Duration = Duration::from_millis(1500);

pub(super) struct Replay<'a> {
    recording: &'a str,
    items: std::iter::Peekable<std::vec::IntoIter<Item>>,
    host: &'a Host,
    /// Recorded word to simulated word.
    names: BTreeMap<String, String>,
    excused: Vec<usize>,
    failures: Vec<String>,
    pub(super) played: usize,
}

impl<'a> Replay<'a> {
    pub(super) fn new(host: &'a Host, recording: &'a str) -> Self {
        Self {
            recording,
            items: transcript::read(recording).into_iter().peekable(),
            host,
            names: BTreeMap::new(),
            excused: Vec::new(),
            failures: Vec::new(),
            played: 0,
        }
    }

    /// From now on a recorded name stands for a simulated one.
    pub(super) fn name(&mut self, recorded: &str, simulated: &str) {
        self.names.insert(recorded.to_owned(), simulated.to_owned());
    }

    /// Names the GPUs in their order, in full and as `ps` shortens them.
    pub(super) fn gpus(&mut self, recorded: &[&str]) {
        for (recorded, simulated) in recorded.iter().zip(self.host.uuids()) {
            self.name(recorded, &simulated);
            self.name(&recorded[..22], &simulated[..22]);
        }
    }

    /// Plays everything up to and including the next heading that starts so.
    pub(super) fn play_to(&mut self, heading: &str) {
        self.until(|what| matches!(what, What::Heading(text) if text.starts_with(heading)), heading);
    }

    /// Plays commands up to, and not including, the next one that starts so.
    pub(super) fn before(&mut self, command: &str) {
        loop {
            let item = self.items.peek().unwrap_or_else(|| panic!("{}: no {command}", self.recording));
            if matches!(&item.what, What::Command { text, .. } if text.starts_with(command)) {
                return;
            }
            let item = self.items.next().unwrap();
            self.play(item);
        }
    }

    /// Plays the next command, whatever stands before it.
    pub(super) fn one(&mut self) {
        while let Some(item) = self.items.next() {
            let command = matches!(item.what, What::Command { .. });
            self.play(item);
            if command {
                return;
            }
        }
        panic!("{}: no command left", self.recording);
    }

    fn until(&mut self, is: impl Fn(&What) -> bool, what: &str) {
        while let Some(item) = self.items.next() {
            if is(&item.what) {
                return;
            }
            self.play(item);
        }
        panic!("{}: nothing starts with {what:?}", self.recording);
    }

    /// Plays the rest and reports.
    pub(super) fn end(mut self) {
        while let Some(item) = self.items.next() {
            self.play(item);
        }
        for (recording, line, _) in NOT_REPRODUCED {
            if *recording == self.recording && !self.excused.contains(line) {
                self.failures
                    .push(format!("{line}: listed as not reproduced, but no command of it was compared"));
            }
        }
        let count = self.failures.len();
        assert!(count == 0, "{}: {count} differ\n{}", self.recording, self.failures.join("\n"));
        assert!(self.played > 0, "{}: nothing was compared", self.recording);
    }

    fn play(&mut self, item: Item) {
        let line = item.line;
        match item.what {
            What::Command { nobody, text, reply, rc } => {
                if nobody && !can_become_nobody() {
                    return;
                }
                let command = self.translate(&text).replace("-uid 0", &format!("-uid {}", uid()));
                let done = self.run(nobody, &command, if rc == 124 { HANGS } else { TIMEOUT });
                let seen = self.recorded(&format!("{}{}", done.stdout, done.stderr));
                self.compare(line, &text, &format!("{reply}[rc {rc}]"), &format!("{seen}[rc {}]", done.rc));
            }
            What::Client { env, lines } => {
                let env: Vec<_> =
                    env.iter().map(|(name, value)| (name.clone(), self.translate(value))).collect();
                self.client(line, &env, &lines);
            }
            What::Line(text) => {
                if let Some((percentage, seen)) = percentage_line(&text) {
                    let env = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE".to_owned(), percentage)];
                    self.client(line, &env, &[seen]);
                }
            }
            What::Heading(_) => {}
        }
    }

    fn run(&self, nobody: bool, command: &str, timeout: Duration) -> Done {
        let mut program = self.host.control_program();
        if nobody {
            use std::os::unix::process::CommandExt as _;
            program.uid(NOBODY).gid(NOBODY);
        }
        finish(&mut program, format!("{command}\n").as_bytes(), timeout)
    }

    /// Runs a client in an environment and compares SMs and free memory of its devices.
    pub(super) fn client(&mut self, line: usize, env: &[(String, String)], lines: &[String]) {
        let env: Vec<_> = env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let seen = self.host.see(&env);
        let mut ours: Vec<String> = match seen["error"].as_str() {
            Some("CUDA_ERROR_NO_DEVICE") => vec!["ERR cudaErrorNoDevice".to_owned()],
            Some(error) => vec![error.to_owned()],
            None => seen["devices"].as_array().unwrap().iter().map(device_line).collect(),
        };
        // The percentage runs print their first device only.
        ours.truncate(lines.len());
        let equal = ours.len() == lines.len() && lines.iter().zip(&ours).all(|(a, b)| alike(a, b));
        let [wanted, got] = [lines.join("\n"), ours.join("\n")];
        self.compare(line, &format!("client {env:?}"), &wanted, if equal { &wanted } else { &got });
    }

    /// Compares two texts in the name of a line of the recording.
    pub(super) fn compare(&mut self, line: usize, what: &str, wanted: &str, got: &str) {
        self.played += 1;
        let reason = NOT_REPRODUCED.iter().find(|entry| entry.0 == self.recording && entry.1 == line);
        match (reason, wanted == got) {
            (None, true) => {}
            (Some(_), false) => self.excused.push(line),
            (Some(_), true) => {
                self.excused.push(line);
                self.failures
                    .push(format!("{line}: {what}\n  is listed as not reproduced, and is reproduced"));
            }
            (None, false) => self
                .failures
                .push(format!("{line}: {what}\n--- recorded\n{wanted}\n--- simulated\n{got}\n---")),
        }
    }

    /// Recorded names to simulated ones.
    pub(super) fn translate(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (from, to)| replace_word(&text, from, to))
    }

    /// Simulated names to recorded ones.
    pub(super) fn recorded(&self, text: &str) -> String {
        self.names.iter().fold(text.to_owned(), |text, (to, from)| replace_word(&text, from, to))
    }
}

/// Replaces whole words; in a column, which goes on after at least two blanks, the width stays.
pub(super) fn replace_word(text: &str, from: &str, to: &str) -> String {
    let part_of_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let mut result = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(from) {
        let (before, after) = (&rest[..at], &rest[at + from.len()..]);
        let whole = !before.ends_with(part_of_word) && !after.starts_with(part_of_word);
        result.push_str(before);
        rest = after;
        if !whole {
            result.push_str(from);
            continue;
        }
        result.push_str(to);
        let blanks = after.len() - after.trim_start_matches(' ').len();
        if blanks >= 2 {
            let width = (from.len() + blanks).saturating_sub(to.len());
            result.push_str(&" ".repeat(width));
            rest = &after[blanks..];
        }
    }
    result.push_str(rest);
    result
}

/// `pct 12.5   dev 0 bus 00 SM 16 free 139.64 GiB`: a run with that percentage in the environment.
fn percentage_line(line: &str) -> Option<(String, String)> {
    let (percentage, seen) = line.strip_prefix("pct100 ").or(line.strip_prefix("pct "))?.split_once("   ")?;
    Some((percentage.to_owned(), seen.trim().to_owned()))
}

fn device_line(device: &serde_json::Value) -> String {
    #[allow(clippy::cast_precision_loss, reason = "sizes of memory are far below 2^53")]
    let free = device["memory_free"].as_u64().unwrap() as f64 / f64::from(1 << 30);
    format!("dev {} SM {} free {free:.2} GiB", device["ordinal"], device["sms"])
}

/// The same device and SMs, and free memory within 0.07 GiB. The bus is not compared: the recorded program
/// prints the bus number, which is 0 for all.
fn alike(recorded: &str, simulated: &str) -> bool {
    let words = |line: &str| {
        let line = line.replace("bus 00 ", "").replace(" cudaErrorMemoryAllocation", "");
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        words
    };
    let (a, b) = (words(recorded), words(simulated));
    a.len() == b.len()
        && a.iter().zip(&b).all(|(a, b)| match (a.parse::<f64>(), b.parse::<f64>()) {
            (Ok(x), Ok(y)) if a.contains('.') => (x - y).abs() <= 0.07,
            _ => a == b,
        })
}
