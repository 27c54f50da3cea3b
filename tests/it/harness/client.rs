//! A CUDA program on the simulated host.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{SIMULATED, Served, eventually, signal};
use crate::host;

/// A running program, ended and reaped with this value.
pub(crate) struct Client {
    process: Child,
    /// What it saw of its GPUs when it started.
    pub(crate) seen: Value,
}

/// Longer than any test runs.
const FOR_EVER: &str = "600";

impl Client {
    /// Starts a command whose first line is what `sim client --json` prints.
    pub(crate) fn start(mut command: Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the program starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("text");
        let seen = serde_json::from_str(&line).unwrap_or(Value::Null);
        Self { process, seen }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) fn signal(&self, with: Signal) {
        signal(self.pid(), with);
    }

    /// Waits until it has ended by itself or by another's hand.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        eventually("the client ends", || self.process.try_wait().expect("waited for"))
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().expect("waited for").is_none()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Served {
    /// The command of a program with exactly the environment that the API gives for the tenant.
    pub(crate) fn client_command(&self, tenant: &str, arguments: &[&str]) -> Command {
        let environment = self.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
        host::client_command(&environment, arguments)
    }

    /// A program that nobody was asked for, in partitions of its own choice; it works until it is ended.
    pub(crate) fn stranger_command(&self, daemon: &str, partitions: &str) -> Command {
        let mut command = Command::new(SIMULATED);
        command
            .args(["sim", "client", "--json", "--spin", FOR_EVER, "--alloc", "64"])
            .env_clear()
            .env("MPS_SIM_WORLD", self.runtime("sim"))
            .env("CUDA_MPS_PIPE_DIRECTORY", self.home(daemon).join("pipe"))
            .env("CUDA_MPS_SM_PARTITION", partitions);
        command
    }

    /// The same, connected and listed.
    pub(crate) fn stranger(&self, daemon: &str, partitions: &str) -> Client {
        let client = Client::start(self.stranger_command(daemon, partitions));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        self.listed(client.pid());
        client
    }

    /// A program of a tenant that works until it is ended, connected and listed.
    pub(crate) fn client(&self, tenant: &str) -> Client {
        let client = Client::start(self.client_command(tenant, &["--spin", FOR_EVER, "--alloc", "256"]));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        self.listed(client.pid());
        client
    }

    /// A program of a tenant that stops in the moment in which MPS asks it to exit; connected and listed.
    pub(crate) fn stopping_client(&self, tenant: &str) -> Client {
        let client = Client::start(self.client_command(tenant, &["--spin", FOR_EVER, "--stop-terminating"]));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        self.listed(client.pid());
        client
    }

    /// Hangs the server of a daemon by a program of its tenant that dies as it is admitted; gives the server.
    pub(crate) fn hang_server(&self, daemon: &str, tenant: &str) -> u32 {
        let server = self.server_pid(daemon);
        let mut command = self.client_command(tenant, &["--die-connecting", "0"]);
        assert_eq!(command.status().expect("a client").signal(), Some(9));
        let log = self.home(daemon).join("log/server.log");
        super::eventually("the server takes the dead client", || {
            let log = std::fs::read_to_string(&log).ok()?;
            let last = log.lines().rfind(|line| line.ends_with("User did not send valid credentials"))?;
            last.contains(&format!(" {server}] ")).then_some(server)
        })
    }

    /// A program that `run` becomes.
    pub(crate) fn run_client(&self, tenant: &str) -> Client {
        let client = Client::start(self.run_command(
            tenant,
            &[SIMULATED, "sim", "client", "--json", "--spin", FOR_EVER, "--alloc", "256"],
        ));
        assert_eq!(client.seen["error"], json!(null), "{}", client.seen);
        client
    }

    pub(crate) fn run_command(&self, tenant: &str, words: &[&str]) -> Command {
        let mut command = self.command(&["run", "--tenant", tenant, "--"]);
        command.args(words);
        command
    }

    /// Runs a command of a tenant to its end.
    pub(crate) fn run(&self, tenant: &str, words: &[&str]) -> Output {
        self.run_command(tenant, words).output().expect("it runs")
    }

    /// All clients, by a poll that begins now.
    pub(crate) fn clients(&self) -> Vec<Value> {
        let list = self.api().get("/api/v1/clients?fresh=true").ok();
        list["items"].as_array().expect("items").clone()
    }

    /// Waits until a process is listed as a client, and gives its entry.
    pub(crate) fn listed(&self, pid: u32) -> Value {
        eventually("the client is listed", || self.clients().into_iter().find(|client| client["pid"] == pid))
    }
}

/// What a command wrote to stderr.
pub(crate) fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
