//! A simulated host in a directory of its own, and a manager in a process of its own: what tests and benches share.
//!
//! Daemons outlive their manager by design, so what runs on a host is found by its directory, which is in the
//! environment of every process that belongs to it.

mod answer;
pub(crate) mod process;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

pub(crate) use answer::Answer;

pub(crate) const MANAGER: &str = env!("CARGO_BIN_EXE_mps-manager");

/// What plays the simulated host's programs, its clients too: it starts faster than the manager.
pub(crate) const SIMULATED: &str = env!("CARGO_BIN_EXE_simulated-mps");

/// How long anything may take before it is said that it never will.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Pauses between questions, and the end of patience.
///
/// The last question begins after the deadline: one that took until then, or a machine that stood still, says nothing.
pub(crate) struct Patience {
    deadline: Instant,
    pause: Duration,
    longest_pause: Duration,
    questions: usize,
    longest: Duration,
}

impl Patience {
    pub(crate) fn new(longest_pause: Duration) -> Self {
        // Each question costs the host something, and most are answered soon or after one of its pauses.
        let pause = longest_pause.min(Duration::from_millis(5));
        Self {
            deadline: Instant::now() + TIMEOUT,
            pause,
            longest_pause,
            questions: 0,
            longest: Duration::ZERO,
        }
    }

    /// Counts a question without an answer, and returns the pause before the next; panics if there is no next.
    pub(crate) fn pause(&mut self, began: Instant, what: impl FnOnce() -> String) -> Duration {
        self.questions += 1;
        self.longest = self.longest.max(began.elapsed());
        assert!(
            began < self.deadline,
            "never happened: {} ({} questions, of which the longest took {:?})",
            what(),
            self.questions,
            self.longest
        );
        let pause = self.pause;
        self.pause = (pause * 3 / 2).min(self.longest_pause);
        pause
    }
}

/// Asks again and again until there is an answer, with pauses of at most this long.
pub(crate) fn eventually_within<T>(
    longest_pause: Duration,
    mut ask: impl FnMut() -> Option<T>,
    what: impl Fn() -> String,
) -> T {
    let mut patience = Patience::new(longest_pause);
    loop {
        let began = Instant::now();
        if let Some(answer) = ask() {
            return answer;
        }
        std::thread::sleep(patience.pause(began, &what));
    }
}

/// Writes the configuration of a host of this kind, with further lines.
pub(crate) fn write_config(dir: &Path, profile: &str, lines: &str) {
    let text = format!(
        "listen = \"127.0.0.1:0\"\nstate_dir = \"{0}/state\"\nruntime_dir = \"{0}/run\"\nsim = \"{profile}\"\n{lines}\n",
        dir.display()
    );
    fs::write(dir.join("config.toml"), text).expect("written");
}

/// A command with nothing of this process's own environment, on this host.
pub(crate) fn command(dir: &Path, program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("MPS_MANAGER_RUNTIME_DIR", dir.join("run"))
        // Marks what belongs to this host.
        .env("MPS_TEST_DIRECTORY", dir)
        .stdin(Stdio::null());
    command
}

/// Starts a manager with further arguments; it logs there.
pub(crate) fn start(dir: &Path, program: &Path, more: &[&str], log: Stdio) -> Child {
    let mut serve = command(dir, program, &["serve", "--config"]);
    serve
        .arg(dir.join("config.toml"))
        .args(more)
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("the manager starts")
}

/// Waits until a manager listens, and gives its URL; `None` if it ends before.
pub(crate) fn url(manager: &mut Child) -> Option<String> {
    let first = BufReader::new(manager.stdout.take().expect("piped")).lines().next()?.ok()?;
    first.split(' ').find(|word| word.contains("://")).map(str::to_owned)
}

/// What gives its bearer every right over TCP.
pub(crate) fn admin_token(dir: &Path) -> String {
    fs::read_to_string(dir.join("state/admin.token")).expect("a token").trim().to_owned()
}

/// A CUDA program with exactly the environment that the API gives for a tenant.
pub(crate) fn client_command(environment: &Value, arguments: &[&str]) -> Command {
    let mut command = Command::new(SIMULATED);
    command.args(["sim", "client", "--json"]).args(arguments).env_clear();
    for (name, value) in environment["variables"].as_object().expect("variables") {
        command.env(name, value.as_str().expect("text"));
    }
    command
}
