//! A manager in the test's own process, on a simulated host of the test's own.
//!
//! Requests of [`Api`] go straight into its router; its sockets are there for what a test sends as bytes, for streams and for
//! programs. Its daemons and their clients are processes, as on every simulated host.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::{Arc, Once};

use mps_manager::app::{App, Prepared};
use mps_manager::config::Config;
use mps_manager::domain::listening::HostListening;
use mps_manager::http::server::Listeners;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::simulated::{InProcess, Manager};
use super::{Api, MANAGER, SIMULATED, Served};
use crate::host::admin_token;

/// A manager in the test's own process.
pub(crate) struct ThisProcess {
    running: Option<Running>,
    /// Whether the daemons of a new host are stopped.
    stopped: bool,
    runtime: Arc<Runtime>,
}

struct Running {
    app: App,
    sockets: JoinHandle<Listeners>,
    stop: CancellationToken,
}

impl Manager for ThisProcess {
    fn new() -> (Self, Api) {
        put_simulated_programs_beside_the_tests();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = Arc::new(runtime.expect("a runtime"));
        let api = runtime.block_on(async { Api::on(Arc::clone(&runtime)) });
        (Self { running: None, stopped: false, runtime }, api)
    }

    fn start(&mut self, host: &Served) {
        let text = fs::read_to_string(host.dir().join("config.toml")).expect("a configuration");
        let config: Config = toml::from_str(&text).expect("a configuration");
        let config = config.check().expect("a configuration");
        let (running, address, router) = self.runtime.block_on(async {
            let prepared = Prepared::new(&config, false).await.expect("a host").with_probe(MANAGER.into());
            let prepared = if self.stopped { prepared.stopped() } else { prepared };
            let listeners = Listeners::bind(config.listen, &config.socket()).await.expect("sockets");
            let address = listeners.address().expect("an address");
            let listening = HostListening { address: address.to_string(), tls: None, insecure: false };
            let listening = watch::Sender::new(listening);
            let stop = CancellationToken::new();
            let app = App::build(&config, prepared, address, listening, stop.clone()).await;
            let app = app.expect("a manager");
            let router = app.router();
            let sockets =
                tokio::spawn(app.answer(router.clone(), listeners, config.limits, None, stop.clone()));
            (Running { app, sockets, stop }, address, router)
        });
        self.running = Some(running);
        host.api().aim(&format!("http://{address}"), &admin_token(host.dir()), Some(router));
    }

    fn end(&mut self) {
        let Some(Running { app, sockets, stop }) = self.running.take() else { return };
        stop.cancel();
        self.runtime.block_on(async {
            let _ = sockets.await;
            app.shutdown().await;
        });
    }
}

impl InProcess {
    /// What a ready host has, but its daemons are stopped.
    pub(crate) fn stopped() -> Self {
        Self::stopped_with("")
    }

    /// The same with further lines in the configuration.
    pub(crate) fn stopped_with(lines: &str) -> Self {
        let mut host = Self::new(lines);
        host.manager().stopped = true;
        host.serve();
        host
    }
}

/// A manager finds the simulated programs beside its own binary, which here is that of the tests.
fn put_simulated_programs_beside_the_tests() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let built = Path::new(SIMULATED);
        let tests = std::env::current_exe().expect("the tests' binary");
        let beside = tests.with_file_name("simulated-mps");
        let inode = |path: &Path| fs::metadata(path).ok().map(|file| (file.dev(), file.ino()));
        if inode(&beside) == inode(built) {
            return;
        }
        // Another process of tests may do the same now.
        let new = tests.with_file_name(format!("simulated-mps.{}", std::process::id()));
        fs::hard_link(built, &new).expect("both are below the target directory");
        fs::rename(&new, &beside).expect("a directory of the user's own");
    });
}
