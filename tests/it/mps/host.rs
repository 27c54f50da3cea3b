//! A simulated host of a test's own, gone with everything that runs on it when the test ends.

use std::ffi::OsString;
use std::ops::Deref;
use std::path::Path;
use std::process::{Child, Stdio};

use mps_manager::domain::GpuUuid;
use mps_manager::domain::daemon::Mode;
use mps_manager::host::{Signal, process};
use mps_manager::mps::process::{StartSpec, Started, TOKEN_ENV, check_directories, start};
use mps_manager::mps::{self, Binaries, Control, InstalledProgram, parse};
use tokio::time::Instant;

use crate::harness::{BareHost, SIMULATED, TIMEOUT, eventually_async, signal};

pub(crate) fn deadline() -> Instant {
    Instant::now() + TIMEOUT
}

pub(crate) struct Host {
    bare: BareHost,
    pub(crate) binaries: Binaries,
    pub(crate) gpus: Vec<GpuUuid>,
}

impl Deref for Host {
    type Target = BareHost;

    fn deref(&self) -> &BareHost {
        &self.bare
    }
}

impl Host {
    /// Makes a host of a profile, such as `h200x2`, in a short directory.
    pub(crate) fn new(profile: &str) -> Self {
        let bare = BareHost::new(profile);
        let binaries = Binaries::locate(Some(&bare.world.bin())).expect("the simulated programs");
        let gpus = bare.uuids().iter().map(|uuid| GpuUuid::parse(uuid).expect("a UUID")).collect();
        Self { bare, binaries, gpus }
    }

    /// The control program, run as one of this host.
    pub(crate) fn program(&self) -> InstalledProgram {
        let environment = self.environment().map(|(name, value)| (OsString::from(name), value.into()));
        self.binaries.installed(environment.into())
    }

    /// The way to a daemon.
    pub(crate) fn control(&self, spec: &StartSpec) -> Control {
        Control::new(&self.program(), spec.pipe_directory.clone())
    }

    /// A daemon named `name` over the first GPU, with directories of its own.
    pub(crate) fn spec(&self, name: &str) -> StartSpec {
        let spec = StartSpec {
            launcher: None,
            pipe_directory: self.path(name).join("pipe"),
            log_directory: self.path(name).join("log"),
            gpus: vec![self.gpus[0].clone()],
            mode: Mode::Shared,
            multi_user: None,
            token: format!("{}-{name}", self.path("").display()),
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
        let child = self
            .command(SIMULATED)
            .args(["sim", "client"])
            .args(arguments)
            .env("CUDA_MPS_PIPE_DIRECTORY", pipe_directory)
            .stdout(Stdio::null())
            .spawn()
            .expect("a client");
        Client(child)
    }
}

/// A client that is killed and reaped with this value.
pub(crate) struct Client(Child);

impl Client {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, with: Signal) {
        signal(self.pid(), with);
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
    parse::silent(&ask(control, mps::Command::StartServer { uid, mlopart: false }).await).expect("started");
    eventually_async("a server is active", async || {
        let servers = parse::server_list(&ask(control, mps::Command::GetServerList).await).expect("servers");
        let [server] = servers.as_slice() else { return None };
        let status = ask(control, mps::Command::GetServerStatus { server: *server }).await;
        let active = Some(mps_manager::domain::daemon::ServerStatus::Active);
        (parse::server_status(&status) == Ok(active)).then_some(*server)
    })
    .await
}

/// Waits until the daemon lists a client.
pub(crate) async fn connected(control: &Control, client: u32) {
    eventually_async(&format!("client {client} is connected"), async || {
        let reply = ask(control, mps::Command::Ps { server: None }).await;
        let listed = |rows: &[parse::ClientRow]| rows.iter().any(|row| row.pid == client);
        matches!(parse::clients(&reply), Ok(parse::Clients::Listed { rows, .. }) if listed(&rows))
    })
    .await;
}

/// The token of a daemon, as its environment shows it.
pub(crate) fn token_of(pid: u32) -> Option<String> {
    let environ = process::environ(pid)?;
    environ.into_iter().find(|(key, _)| key == TOKEN_ENV)?.1.into_string().ok()
}
