//! Gathers the facts about a host.

mod clients;
mod devices;
mod files;
pub(super) mod neighbours;

use std::fs;
use std::path::Path;

use rustix::process::{Resource, geteuid, getrlimit};

use super::facts::{HostFacts, ManagerReport};
use crate::app::{DATABASE, certificates, trusted};
use crate::clock::Clock;
use crate::config::Config;
use crate::domain::environment::is_managed;
use crate::host::signal::CONTROL;
use crate::host::systemd::{self, Scopes, cgroup, has_mounts_of_its_own};
use crate::host::{self, process, sockets};
use crate::http::server::check_address;
use crate::mps::process::DEFAULT_PIPE_DIRECTORY;
use crate::mps::process::foreign::running;
use crate::service::host::startup::NO_MACHINE_ID;
use crate::store;

impl HostFacts {
    pub(super) async fn gather(
        config: Config,
        fault: Option<String>,
        report: Option<Result<ManagerReport, String>>,
    ) -> Self {
        let world = config.sim.as_ref().map(|_| config.runtime_dir.join("sim"));
        let world = world.as_deref();
        let machine_id = host::machine_id().unwrap_or_else(|| NO_MACHINE_ID.to_owned());
        let remembered =
            store::maintenance::peek_inventory(&config.state_dir.join(DATABASE), &machine_id).await;
        let driver = devices::driver(world, remembered.is_some());
        let programs = devices::programs(&config, world, driver.as_ref().ok()).await;
        let manager = files::manager(&config).await;
        let pid = manager.pid();
        let trust = files::trust(pid);
        let database = files::database(&config.state_dir).await;
        let contents = database.as_ref().ok().and_then(|inspection| inspection.contents.as_ref());
        let daemons = running(world);
        Self {
            state_directory: files::state_directory(&config.state_dir, &trust),
            runtime_directory: files::directory(&config.runtime_dir, &trust, trusted::check_runtime),
            free: files::free(&[&config.state_dir, &config.runtime_dir]),
            pipes: files::pipes(&config, contents),
            has_default_pipes: Path::new(DEFAULT_PIPE_DIRECTORY).symlink_metadata().is_ok(),
            unreachable: files::unreachable(&config, contents, &trust),
            waiting: clients::waiting(&config, &daemons),
            exposed: clients::exposed(&config, contents, &daemons).map_err(|error| error.to_string()),
            open_files: match pid {
                Some(pid) => process::open_files(pid).map(|(_, limit)| limit),
                // The manager raises its own limit as far as it may.
                None => Some(getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX)),
            },
            tasks: tasks(pid.unwrap_or_else(std::process::id)),
            variables: variables(),
            services: systemd::services_that_start(Path::new("/"), CONTROL),
            other_managers: neighbours::other_managers(),
            slurm: neighbours::slurm(world),
            xids: neighbours::xids(world),
            cgroup: neighbours::cgroup(),
            cdi: neighbours::cdi(&config, world),
            scopes: Scopes::detect(geteuid().as_raw()),
            private_mounts: has_mounts_of_its_own(
                &pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string()),
            ),
            bound: bound(&config).await,
            listens: pid.and_then(|pid| sockets::listens(pid, config.listen.port())),
            certificate: certificates::load(config.tls.as_ref())
                .map(|pair| pair.map(|pair| pair.not_after()))
                .map_err(|error| error.to_string()),
            boot_id: host::boot_id().map_err(|error| error.to_string()),
            now_ms: Clock::system().unix_ms(),
            config_fault: fault,
            config,
            machine_id,
            driver,
            programs,
            manager,
            database,
            report,
            daemons,
        }
    }
}

/// Binds the API's address for a moment, if `serve` would.
async fn bound(config: &Config) -> Result<(), String> {
    if check_address(config.listen, config.tls.is_some(), config.insecure_listen).is_err() {
        return Ok(());
    }
    let bound = tokio::net::TcpListener::bind(config.listen).await;
    bound.map(drop).map_err(|error| error.to_string())
}

fn variables() -> Vec<String> {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut managed: Vec<String> = names.filter(|name| is_managed(name)).collect();
    managed.sort();
    managed
}

/// Returns the lowest limit on threads and processes of a process's cgroup and those above it, and the file that sets it; `None` where
/// there is none, or where it may not be read.
fn tasks(pid: u32) -> Option<(u64, String)> {
    let path = cgroup(pid)?;
    let relative = Path::new(path.trim_start_matches('/'));
    let limits =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"].into_iter().flat_map(|root| {
            relative.ancestors().filter_map(move |directory| {
                let file = Path::new(root).join(directory).join("pids.max");
                let limit: u64 = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
                Some((limit, file.display().to_string()))
            })
        });
    limits.min_by_key(|(limit, _)| *limit)
}
