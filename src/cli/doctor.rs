//! `doctor`: what this host lacks for a manager.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap_complete::engine::ArgValueCandidates;

use super::completion;
use super::fetch::all;
use super::output::{
    CommandResult, DIFFERS, OutputArgs, OutputFormat, TableCell, line, print_cells, terminal_width, wrapped,
};
use super::running;
use super::server::{block_on, runtime_dir};
use crate::app::doctor::{self, ManagerReport};
use crate::client::Client;
use crate::config::{self, Config};
use crate::domain::checkup::{Check, CheckVerdict, Checkup};
use crate::service::daemons::DaemonView;
use crate::service::host::HostView;

/// Time within which a manager must report.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The width of the column of outcomes.
const STATUS: usize = 7;
/// Text is not broken into lines narrower than this.
const NARROWEST: usize = 20;

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The configuration file of the manager; by default, that of the running manager
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the database is
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// The directory of sockets, pipe directories and logs [env: `MPS_MANAGER_RUNTIME_DIR`]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Check the simulated host of this profile, for example h200x2
    #[arg(long, value_name = "PROFILE", add = ArgValueCandidates::new(completion::profiles))]
    sim: Option<String>,
    /// The directory of NVIDIA's two programs
    #[arg(long, value_name = "DIR")]
    mps_dir: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

pub(super) fn run(args: Doctor) -> CommandResult {
    let directory = runtime_dir(args.runtime_dir.clone());
    // Options that differ from a running manager's say which host is meant.
    let named = args.config.is_some() || args.state_dir.is_some();
    let running = if named { None } else { running::manager(&directory) };
    let (read, known_state) = match running {
        Some(running) => (running.config, running.state_dir),
        None => {
            let read = args.config.as_ref().map_or_else(|| Ok(Config::default()), |path| Config::read(path));
            (read.map_err(|error| error.to_string()), None)
        }
    };
    // An invalid file is a finding; everything else is checked with defaults.
    let (mut config, mut refused) = match read {
        Ok(config) => (config, None),
        Err(error) => (Config::default(), Some(error)),
    };
    config.state_dir = args.state_dir.or(known_state).unwrap_or(config.state_dir);
    if !named || args.runtime_dir.is_some() {
        config.runtime_dir = directory;
    }
    config.sim = args.sim.or(config.sim);
    config.mps_dir = args.mps_dir.or(config.mps_dir);
    if let Some(profile) = &config.sim {
        doctor::refuse_unknown(profile)?;
    }
    let config = match config.clone().check() {
        Ok(config) => config,
        Err(error) => {
            refused.get_or_insert_with(|| error.to_string());
            config
        }
    };
    let checkup = block_on(async {
        let report = report(&config).await;
        Box::pin(doctor::examine(config, refused, report)).await
    })?;
    match args.output.format {
        OutputFormat::Name => {
            for check in checkup.checks.iter().filter(|check| check.outcome.status == CheckVerdict::Fail) {
                line!("{}", check.id);
            }
        }
        format => {
            if !format.print_value(&checkup) {
                print(&checkup);
            }
        }
    }
    Ok(if checkup.is_well() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERS) })
}

/// Asks the running manager for its conditions; `None` if nothing listens at its socket.
async fn report(config: &Config) -> Option<Result<ManagerReport, String>> {
    let socket = config.socket();
    UnixStream::connect(&socket).ok()?;
    let asked = async {
        let trusted = config::trusted_managers()?;
        let client = Client::over_socket(&socket, trusted).map_err(|error| error.to_string())?;
        let host: HostView = client.get("/api/v1/host").await.map_err(|error| error.to_string())?;
        let daemons: Vec<DaemonView> =
            all(&client, "/api/v1/daemons").await.map_err(|error| error.to_string())?;
        let conditions =
            |daemon: DaemonView| (daemon.name.to_string(), daemon.status.map(|status| status.conditions));
        let daemons = daemons.into_iter().map(conditions).collect();
        Ok(ManagerReport { host: host.conditions, daemons })
    };
    let answer = tokio::time::timeout(TIMEOUT, asked).await;
    Some(answer.unwrap_or_else(|_| Err(format!("no answer within {} s", TIMEOUT.as_secs()))))
}

fn print(checkup: &Checkup) {
    let width = doctor::CHECKS.iter().map(|(id, _)| id.len()).max().unwrap_or_default();
    let columns = terminal_width().map(|columns| columns.saturating_sub(STATUS + width + 4));
    let columns = columns.filter(|columns| *columns >= NARROWEST);
    let row = |status: &str, id: &str, text: &str| {
        let mut head = Some((TableCell::state(status), id));
        for text in wrapped(text, columns) {
            let (status, id) = head.take().unwrap_or_else(|| ("".into(), ""));
            print_cells(&[(status, STATUS), (id.into(), width), (text.into(), 0)]);
        }
    };
    for Check { id, outcome } in &checkup.checks {
        let several = outcome.findings.iter();
        let mut findings: Vec<(&str, Option<&str>)> =
            several.map(|finding| (finding.seen.as_str(), Some(finding.remedy.as_str()))).collect();
        if findings.is_empty() {
            findings.push((outcome.seen.as_str(), outcome.remedy.as_deref()));
        }
        let mut head = Some((outcome.status.as_str(), *id));
        for (description, remedy) in findings {
            let (status, id) = head.take().unwrap_or_default();
            row(status, id, description);
            if let Some(remedy) = remedy {
                row("", "", &format!("-> {remedy}"));
            }
        }
    }
    let counts = [CheckVerdict::Ok, CheckVerdict::Warn, CheckVerdict::Fail, CheckVerdict::Skipped]
        .map(|verdict| format!("{} {}", checkup.count(verdict), verdict.as_str()));
    line!("\n{}", counts.join(", "));
}
