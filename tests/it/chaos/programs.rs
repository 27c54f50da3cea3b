//! CUDA programs that come and go: under `run`, and plain ones with the tenant's environment.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use super::GIVEN;
use super::story::Story;
use crate::harness::{Host, MANAGER, environment, eventually};

/// How a program was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    Run,
    Plain,
}

pub(super) struct Program {
    child: Child,
    place: PathBuf,
    pub(super) tenant: String,
    pub(super) how: How,
    /// The daemon that it is a client of, as far as that is known: its tenant may move to another one at any time.
    daemon: Option<String>,
    seen: Option<Value>,
}

/// All programs that were started and not ended.
#[derive(Default)]
pub(super) struct Programs {
    all: Vec<Program>,
    started: usize,
    environments: BTreeMap<String, Vec<(String, String)>>,
}

/// Longer than any story.
const FOR_EVER: &str = "36000";

impl Programs {
    /// Learns a tenant's environment, with which programs start even while no manager lives.
    pub(super) fn learn(&mut self, tenant: &str, environment: &Value) {
        let variables = environment["variables"].as_object().expect("variables");
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let variables = variables.iter().map(|(name, value)| (name.clone(), text(value))).collect();
        self.environments.insert(tenant.to_owned(), variables);
    }

    pub(super) fn forget_environments(&mut self) {
        self.environments.clear();
    }

    pub(super) fn run(&mut self, host: &Host, tenant: &str, story: &Story) {
        let words = [MANAGER, "sim", "client", "--json", "--spin", FOR_EVER, "--alloc", "256"];
        let command = host.run_command(tenant, &words);
        self.start(host.dir(), command, tenant, How::Run, None, story);
    }

    /// Nothing happens for a tenant whose environment is not known. Gives the process.
    pub(super) fn plain(&mut self, host: &Host, tenant: &str, story: &Story) -> Option<u32> {
        let variables = self.environments.get(tenant)?.clone();
        let pipe = variables.iter().find(|(name, _)| name == "CUDA_MPS_PIPE_DIRECTORY");
        let daemon = daemon_of(Path::new(&pipe.expect("a pipe directory").1));
        let mut command = Command::new(MANAGER);
        command
            .args(["sim", "client", "--json", "--spin", FOR_EVER, "--alloc", "256"])
            .env_clear()
            .env("MPS_TEST_DIRECTORY", host.dir())
            .envs(variables)
            .stdin(Stdio::null());
        Some(self.start(host.dir(), command, tenant, How::Plain, daemon, story))
    }

    fn start(
        &mut self,
        dir: &Path,
        mut command: Command,
        tenant: &str,
        how: How,
        daemon: Option<String>,
        story: &Story,
    ) -> u32 {
        self.started += 1;
        let place = dir.join(format!("program-{}", self.started));
        let child = command
            .stdout(File::create(place.with_extension("out")).expect("made"))
            .stderr(File::create(place.with_extension("err")).expect("made"))
            .spawn()
            .expect("the program starts");
        let pid = child.id();
        story.log(format!("program {pid} of {tenant} starts ({how:?})"));
        self.all.push(Program { child, place, tenant: tenant.to_owned(), how, daemon, seen: None });
        pid
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// The process of a program that has its contexts, by a number taken modulo how many there are.
    pub(super) fn pick(&mut self, number: usize) -> Option<u32> {
        self.tend();
        let connected: Vec<u32> = self.connected().map(Program::pid).collect();
        (!connected.is_empty()).then(|| connected[number % connected.len()])
    }

    /// The processes of those that have their contexts on a daemon and have not ended.
    pub(super) fn of(&mut self, daemon: &str) -> Vec<u32> {
        self.tend();
        let of = |program: &&mut Program| program.seen.is_some() && program.daemon.as_deref() == Some(daemon);
        let running = self
            .all
            .iter_mut()
            .filter(of)
            .filter_map(|program| program.exited().is_none().then(|| program.pid()));
        running.collect()
    }

    pub(super) fn connected(&self) -> impl Iterator<Item = &Program> {
        self.all.iter().filter(|program| program.seen.is_some())
    }

    /// Learns from the list of clients which daemon each one is on.
    pub(super) fn locate(&mut self, clients: &[Value]) {
        for program in &mut self.all {
            if let Some(client) = clients.iter().find(|client| client["pid"] == program.pid()) {
                program.daemon = client["daemon"].as_str().map(str::to_owned);
            }
        }
    }

    /// Ends a program and forgets it.
    pub(super) fn end(&mut self, pid: u32, with: Signal, story: &Story) {
        let Some(at) = self.all.iter().position(|program| program.pid() == pid) else { return };
        let mut program = self.all.swap_remove(at);
        story.log(format!("program {pid} is ended with {with:?}"));
        super::strike::send(pid, with);
        eventually("the program ends", || program.child.try_wait().expect("waited for"));
        program.clean();
    }

    /// Reads what they have said.
    fn tend(&mut self) {
        for program in &mut self.all {
            program.tend();
        }
    }

    /// Waits until each has its contexts or has ended; those that ended must have had a reason to. `dead` are the
    /// daemons that were struck, `doomed` the programs.
    pub(super) fn wait_until_connected(
        &mut self,
        dead: &[&str],
        doomed: &[u32],
        manager_died: bool,
        story: &Story,
    ) {
        eventually("every program has its contexts or has ended", || {
            self.tend();
            let waits = |program: &mut Program| program.seen.is_none() && program.exited().is_none();
            (!self.all.iter_mut().any(waits)).then_some(())
        });
        let mut left = Vec::new();
        for mut program in std::mem::take(&mut self.all) {
            match program.exited() {
                None if program.seen.as_ref().is_some_and(|seen| seen["mps"] == false) => {
                    // No pipe to be found at that moment: it has the whole GPU, as with the real driver. A tenant that moves
                    // has a placeholder for a moment, which dies with the manager (docs/limits.md).
                    assert!(
                        program.is_of(dead) || (manager_died && program.may_move()),
                        "{program:?} runs outside MPS, and its daemon lives"
                    );
                    story.count("programs that found no daemon and ran outside MPS");
                    super::strike::send(program.pid(), Signal::KILL);
                    program.child.wait().expect("it ends");
                    program.clean();
                }
                None => left.push(program),
                Some(status) => {
                    program.check_end(status, dead, doomed);
                    story.log(format!("program {} has ended: {status}", program.pid()));
                    if status.code() == Some(2) {
                        let reason = program.refusal(manager_died);
                        story.count(&format!("programs that `run` refused: {reason}"));
                    } else {
                        story.count("programs that died with a daemon, a server or by a kill");
                    }
                    program.clean();
                }
            }
        }
        self.all = left;
    }
}

impl Program {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tend(&mut self) {
        if self.seen.is_some() {
            return;
        }
        let text = fs::read_to_string(self.place.with_extension("out")).unwrap_or_default();
        let Some(seen) = text.strip_suffix('\n').and_then(|line| serde_json::from_str::<Value>(line).ok())
        else {
            return;
        };
        if seen["error"].is_null() {
            let pipe = environment(self.pid(), "CUDA_MPS_PIPE_DIRECTORY");
            let linked = pipe.and_then(|pipe| daemon_of(Path::new(&pipe)));
            self.daemon = match self.how {
                How::Run => linked,
                // Moved while it connected: the list of clients will show it.
                How::Plain => {
                    self.daemon.take().filter(|daemon| linked.as_ref().is_none_or(|it| it == daemon))
                }
            };
            self.seen = Some(seen);
        }
    }

    fn exited(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("waited for")
    }

    fn check_end(&self, status: ExitStatus, dead: &[&str], doomed: &[u32]) {
        let by_run = self.how == How::Run && status.code() == Some(2);
        // By a placeholder, whose manager died or whose daemon did not come back in time.
        let text = fs::read_to_string(self.place.with_extension("out")).unwrap_or_default();
        let at_the_socket = text.contains("CUDA_ERROR_MPS_CONNECTION_FAILED");
        // Its environment names the GPU of the daemon from which its tenant moved while it connected: before it asked for its
        // devices, or after that and before its context.
        let of_another_gpu = ["CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_INVALID_DEVICE"];
        let to_another_daemon = self.how == How::Plain
            && self.may_move()
            && of_another_gpu.iter().any(|error| text.contains(error));
        let refused = self.seen.is_none() && (by_run || at_the_socket || to_another_daemon);
        assert!(refused || self.is_of(dead) || doomed.contains(&self.pid()), "{self:?} is lost: {status}");
    }

    /// Whether its daemon is one of these, as far as its daemon is known.
    fn is_of(&self, daemons: &[&str]) -> bool {
        match &self.daemon {
            Some(daemon) if self.seen.is_some() || !self.may_move() => daemons.contains(&daemon.as_str()),
            _ => !daemons.is_empty(),
        }
    }

    /// Whether its tenant is one that writers move from daemon to daemon.
    fn may_move(&self) -> bool {
        !GIVEN.contains(&self.tenant.as_str())
    }

    /// Why `run` refused it, which must be a reason that there was.
    fn refusal(&self, manager_died: bool) -> &'static str {
        let message = fs::read_to_string(self.place.with_extension("err")).unwrap_or_default();
        if message.contains("cannot be reached") {
            assert!(manager_died, "{self:?} did not reach a manager that nobody struck");
            return "could not reach the manager";
        }
        let reasons = ["At capacity", "Conflict", "Not found", "Unavailable at the moment"];
        let reason =
            reasons.into_iter().find(|reason| message.starts_with(&format!("mps-manager: {reason}: ")));
        reason.unwrap_or_else(|| panic!("{self:?} was refused for no reason that there can be"))
    }

    fn clean(&self) {
        for extension in ["out", "err"] {
            let _ = fs::remove_file(self.place.with_extension(extension));
        }
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let message =
            |extension: &str| fs::read_to_string(self.place.with_extension(extension)).unwrap_or_default();
        write!(
            f,
            "program {} of {} on {:?} ({:?}, {:?}, {:?})",
            self.pid(),
            self.tenant,
            self.daemon,
            self.how,
            message("out"),
            message("err")
        )
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in &mut self.all {
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
    }
}

/// The daemon whose socket is linked in this tenant's directory, or whose pipe directory it is.
fn daemon_of(pipe: &Path) -> Option<String> {
    let name = |home: &Path| Some(home.file_name()?.to_str()?.to_owned());
    let above = pipe.parent()?;
    if above.file_name().is_none_or(|name| name != "tenants") {
        return name(above);
    }
    let inode = |path: &Path| fs::metadata(path.join("control")).ok().map(|it| it.ino());
    let linked = inode(pipe)?;
    let daemons = fs::read_dir(above.parent()?.join("daemons")).ok()?;
    let homes = daemons.flatten().map(|entry| entry.path());
    homes.into_iter().find(|home| inode(&home.join("pipe")) == Some(linked)).and_then(|home| name(&home))
}
