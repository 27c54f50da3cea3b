//! A manager in the test's own process: all of it but its sockets, on a simulated host of the test's own.

use std::ops::Deref;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use mps_manager::app::{App, Prepared};
use mps_manager::config::Config;
use mps_manager::domain::listening::Listening;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

use super::api::LOCAL;
use super::{Api, Served, admin_token, config_text, process, simulated_directory, speed_up};

/// A manager without sockets, whose requests go straight into its router.
pub(crate) struct InProcess {
    served: Served,
    app: Option<App>,
    runtime: Arc<Runtime>,
    dir: TempDir,
}

impl InProcess {
    /// What a served host starts with, but its daemons are stopped: two GPUs, one daemon each, two example tenants.
    pub(crate) fn stopped() -> Self {
        Self::stopped_with("")
    }

    /// The same with further lines in the configuration.
    pub(crate) fn stopped_with(lines: &str) -> Self {
        let dir = simulated_directory();
        speed_up(&dir.path().join("run"));
        // A manager links those beside its binary, which here is the tests'.
        let programs = dir.path().join("run/sim/programs");
        std::fs::create_dir(&programs).expect("a directory");
        for name in ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"] {
            symlink(env!("CARGO_BIN_EXE_simulated-mps"), programs.join(name)).expect("a link");
        }
        let lines = format!("mps_dir = \"{}\"\n{lines}", programs.display());
        let text = config_text(dir.path(), "h200x2", &lines);
        let config: Config = toml::from_str(&text).expect("a configuration");
        let config = config.check().expect("a configuration");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = Arc::new(runtime.expect("a runtime"));
        let app = runtime.block_on(async {
            let prepared = Prepared::new(&config, false).await.expect("a host").stopped();
            let listening = Listening { address: LOCAL.to_owned(), tls: None, insecure: false };
            let address = LOCAL.parse().expect("an address");
            App::build(&config, prepared, address, listening, CancellationToken::new())
                .await
                .expect("a manager")
        });
        let token = admin_token(dir.path());
        let api = runtime.block_on(async { Api::of_router(app.router(), Arc::clone(&runtime), &token) });
        Self { served: Served { api }, app: Some(app), runtime, dir }
    }
}

impl Deref for InProcess {
    type Target = Served;

    fn deref(&self) -> &Served {
        &self.served
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        if let Some(app) = self.app.take() {
            self.runtime.block_on(app.shutdown());
        }
        process::end_all(self.dir.path());
    }
}
