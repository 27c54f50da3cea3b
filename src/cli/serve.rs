//! `serve`: its options, and the manager itself.

use std::io::IsTerminal as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::output::CommandResult;
use crate::app::ServeOptions;
use crate::config::{Config, ConfigError, LogFormat};
use crate::{app, telemetry};

#[derive(Debug, Parser)]
pub(super) struct Serve {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address of the API
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Listen beyond loopback without TLS: anyone on the network can read what is sent, tokens included
    #[arg(long)]
    insecure_listen: bool,
    /// The directory of the database and the admin token
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The directory of sockets, pipe directories and logs
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Run on a simulated host of this profile, for example h200x2
    #[arg(long, value_name = "PROFILE", add = ArgValueCandidates::new(completion::profiles))]
    sim: Option<String>,
    /// The directory of NVIDIA's two programs
    #[arg(long, value_name = "DIR")]
    mps_dir: Option<PathBuf>,
    /// Where the driver or its MPS programs are missing, answer requests and wait for them
    #[arg(long)]
    wait_for_driver: bool,
    /// The format of log lines
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormat>,
    /// Apply this host file at the start, and stop if it is refused
    #[arg(long, value_name = "HOST.yaml")]
    apply: Option<PathBuf>,
    #[command(flatten)]
    options: ServeOptions,
    /// On a terminal: log everything that `log_filter` lets through, and not only warnings
    #[arg(short, long)]
    verbose: bool,
}

impl Serve {
    /// Resolves relative paths against a directory.
    pub(super) fn within(mut self, directory: Option<&Path>) -> Self {
        let Some(directory) = directory else { return self };
        let paths = [
            &mut self.config,
            &mut self.state_dir,
            &mut self.runtime_dir,
            &mut self.mps_dir,
            &mut self.apply,
        ];
        for path in paths.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        self
    }

    /// Reads the configuration file, and applies the options of the command line to it.
    pub(super) fn config(self) -> Result<Config, ConfigError> {
        let mut config = self.config.map_or_else(|| Ok(Config::default()), |path| Config::read(&path))?;
        config.listen = self.listen.unwrap_or(config.listen);
        config.insecure_listen |= self.insecure_listen;
        config.state_dir = self.state_dir.unwrap_or(config.state_dir);
        config.runtime_dir = self.runtime_dir.unwrap_or(config.runtime_dir);
        config.sim = self.sim.or(config.sim);
        config.mps_dir = self.mps_dir.or(config.mps_dir);
        config.wait_for_driver = self.wait_for_driver.then_some(true).or(config.wait_for_driver);
        config.log_format = self.log_format.unwrap_or(config.log_format);
        config.check()
    }
}

pub(super) fn run(args: Serve) -> CommandResult {
    let host_file = args.apply.as_deref().map(super::host_file::checked).transpose()?.map(|(file, _)| file);
    let options = args.options;
    let is_quiet = !args.verbose && std::io::stderr().is_terminal();
    let config = args.config()?;
    // A person at the terminal reads the address and what goes wrong; a filter that was chosen stays.
    let is_chosen = config.log_filter != Config::default().log_filter;
    let filter = if is_quiet && !is_chosen { "warn" } else { &config.log_filter };
    telemetry::start(config.log_format, filter)?;
    // The work is waiting for processes and sockets: two threads suffice on any host. Where they have one CPU, a second
    // thread would only take turns with the first, a slice of some milliseconds each.
    let threads = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().min(2));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
    runtime.block_on(app::serve(config, options, host_file))?;
    Ok(ExitCode::SUCCESS)
}
