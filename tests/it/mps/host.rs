//! A simulated host of a test's own, gone with everything that runs on it when the test ends.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mps_manager::domain::GpuUuid;
use mps_manager::domain::daemon::Mode;
use mps_manager::host::{Signal, process};
use mps_manager::mps::process::{StartSpec, Started, TOKEN_ENV, check_directories, start};
use mps_manager::mps::{self, Binaries, Control, InstalledProgram, parse};
use mps_manager::sim::world::create_for;
use tokio::time::Instant;

use crate::harness::{SIMULATED, scratch};

/// How long anything may take before a test says that it never will.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

const WORLD: &str = "MPS_SIM_WORLD";

pub(crate) fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

pub(crate) struct Host {
    dir: tempfile::TempDir,
    pub(crate) binaries: Binaries,
    pub(crate) gpus: Vec<GpuUuid>,
}

impl Host {
    /// Makes a host of a profile, such as `h200x2`, in a short directory.
    pub(crate) fn new(profile: &str) -> Self {
        let dir = scratch::directory("mps");
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("mode");
        let world = dir.path().join("w");
        create_for(&world, profile, Path::new(SIMULATED)).expect("a world");
        let binaries = Binaries::locate(Some(&world.join("bin"))).expect("the simulated programs");
        let described = std::fs::read(world.join("world.json")).expect("the host");
        let described: serde_json::Value = serde_json::from_slice(&described).expect("JSON");
        let gpus = described["gpus"].as_array().expect("a list").iter();
        let gpus =
            gpus.map(|gpu| GpuUuid::parse(gpu["uuid"].as_str().expect("text")).expect("a UUID")).collect();
        Self { dir, binaries, gpus }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        vec![(WORLD.into(), self.dir.path().join("w").into())]
    }

    /// The control program, run as one of this host.
    pub(crate) fn program(&self) -> InstalledProgram {
        self.binaries.installed(self.environment())
    }

    /// The way to a daemon.
    pub(crate) fn control(&self, spec: &StartSpec) -> Control {
        Control::new(&self.program(), spec.pipe_directory.clone())
    }

    /// A daemon named `name` over the first GPU, with directories of its own.
    pub(crate) fn spec(&self, name: &str) -> StartSpec {
        let spec = StartSpec {
            launcher: None,
            pipe_directory: self.dir.path().join(name).join("pipe"),
            log_directory: self.dir.path().join(name).join("log"),
            gpus: vec![self.gpus[0].clone()],
            mode: Mode::Shared,
            multi_user: None,
            token: format!("{}-{name}", self.dir.path().display()),
            deadline: TIMEOUT,
        };
        check_directories(&spec.pipe_directory, &spec.log_directory, None).expect("directories");
        spec
    }

    pub(crate) async fn start(&self, name: &str) -> (StartSpec, Started) {
        let spec = self.spec(name);
        let started = start(&self.program(), &spec).await.expect("a daemon");
        (spec, started)
    }

    /// A CUDA program on one of the daemons, in MPS's way found by its pipe directory.
    pub(crate) fn client(&self, pipe_directory: &Path, arguments: &[&str]) -> Client {
        let child = Command::new(SIMULATED)
            .args(["sim", "client"])
            .args(arguments)
            .env_clear()
            .envs(self.environment())
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe_directory)
            .stdout(Stdio::null())
            .spawn()
            .expect("a client");
        Client(child)
    }
}

impl Drop for Host {
    /// Kills what still runs on this host, each process verified to be of it.
    fn drop(&mut self) {
        let world: PathBuf = self.dir.path().join("w");
        for id in process::find_by_env(WORLD, &world.to_string_lossy()) {
            crate::harness::send(id, Signal::KILL);
        }
    }
}

/// A client that is killed and reaped with this value.
pub(crate) struct Client(Child);

impl Client {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = process::identify(self.pid()).expect("the client lives");
        assert!(crate::harness::send(id, signal), "the client lives");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("asked").is_some()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Sends one command in a session of its own.
pub(crate) async fn ask(control: &Control, command: mps::Command) -> Vec<u8> {
    let mut session = control.session(deadline()).expect("a session");
    let reply = session.send(&command).await.expect("a reply");
    session.close().await;
    reply
}

/// Starts a server and waits until it takes clients.
pub(crate) async fn server(control: &Control) -> u32 {
    let uid = rustix::process::getuid().as_raw();
    parse::silent(&ask(control, mps::Command::StartServer { uid }).await).expect("started");
    let until = deadline();
    loop {
        assert!(Instant::now() < until, "no server became active");
        let servers = parse::server_list(&ask(control, mps::Command::GetServerList).await).expect("servers");
        if let [server] = servers.as_slice() {
            let status = ask(control, mps::Command::GetServerStatus { server: *server }).await;
            let active = Some(mps_manager::domain::daemon::ServerStatus::Active);
            if parse::server_status(&status) == Ok(active) {
                return *server;
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the daemon lists a client.
pub(crate) async fn connected(control: &Control, client: u32) {
    let until = deadline();
    loop {
        assert!(Instant::now() < until, "client {client} never connected");
        let reply = ask(control, mps::Command::Ps { server: None }).await;
        let listed = |rows: &[parse::ClientRow]| rows.iter().any(|row| row.pid == client);
        if matches!(parse::clients(&reply), Ok(parse::Clients::Listed { rows, .. }) if listed(&rows)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a condition; `what` describes it where it never holds.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let until = deadline();
    while !condition() {
        assert!(Instant::now() < until, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The token of a daemon, as its environment shows it.
pub(crate) fn token_of(pid: u32) -> Option<String> {
    let environ = process::environ(pid)?;
    environ.into_iter().find(|(key, _)| key == TOKEN_ENV)?.1.into_string().ok()
}
