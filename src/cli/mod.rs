//! The command line: one file or folder per noun.

mod adopt_ours;
mod audit;
mod backup;
mod change;
mod clients;
mod completion;
mod confirm;
mod context;
mod daemon;
mod doctor;
mod environment;
mod events;
mod fetch;
mod foreign;
mod gpu;
mod host;
mod host_file;
mod identity;
mod incident;
mod layout;
mod lease;
mod maintenance;
mod manual;
mod operation;
mod output;
mod replay;
mod run;
mod running;
mod serve;
mod server;
mod session;
mod sim_down;
mod status;
mod suggestions;
mod tenant;
mod token;
mod top;
mod verify;
mod vet;
mod wait;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::engine::ArgValueCandidates;

use self::completion::CompletedShell;
use self::output::{ColourChoice, ERROR, EXIT_CODES, choose_colour, complain, line};
use self::serve::Serve;
use self::server::{CallArgs, ask};
use crate::config::Config;
use crate::domain::{MemoryLimit, TenantName};
use crate::{gpu as host_gpu, http, sim};

/// Owns the NVIDIA MPS control daemons of a GPU host.
#[derive(Debug, Parser)]
#[command(name = "mps-manager", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// When to colour results
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_default_value = true,
        help_heading = "Global options"
    )]
    color: ColourChoice,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve this host, or a simulated one
    Serve(Serve),
    /// Show the host, its daemons, its tenants and incidents; exit 1 when something is not ready or an incident is open
    Status(status::StatusArgs),
    /// Watch GPUs, tenants and clients in the terminal
    Top(top::TopArgs),
    /// Work with control daemons
    Daemon {
        #[command(subcommand)]
        command: daemon::DaemonCommand,
    },
    /// Work with tenants: named consumers with limits
    Tenant {
        #[command(subcommand)]
        command: tenant::TenantCommand,
    },
    /// Work with GPUs
    Gpu {
        #[command(subcommand)]
        command: gpu::GpuCommand,
    },
    /// Show the host, and confirm a database that came from another machine
    Host {
        #[command(subcommand)]
        command: host::HostCommand,
    },
    /// List incidents, show one, and acknowledge it
    Incident {
        #[command(subcommand)]
        command: incident::IncidentCommand,
    },
    /// Work with partition layouts
    Layout {
        #[command(subcommand)]
        command: layout::LayoutCommand,
    },
    /// Show what a host file would change; exit 1 if it would change something
    Diff(host_file::DiffArgs),
    /// Make the host what a file says; exit 1 if that is refused or fails
    Apply(host_file::ApplyArgs),
    /// Print the host as a file that `apply` takes: its daemons, tenants and layouts
    Export(host_file::ExportArgs),
    /// Show replays of layouts
    Replay {
        #[command(subcommand)]
        command: replay::ReplayCommand,
    },
    /// Work with operations: actions that take time
    Operation {
        #[command(subcommand)]
        command: operation::OperationCommand,
    },
    /// Work with clients: processes that are connected to servers
    Client {
        #[command(subcommand)]
        command: clients::ClientCommand,
    },
    /// List clients: short for `client list`
    #[command(visible_alias = "ps")]
    Clients(clients::ClientListArgs),
    /// Terminate clients: short for `client terminate`
    #[command(visible_alias = "kill")]
    Terminate(clients::TerminateArgs),
    /// Start a command with a tenant's environment, as the tenant's user
    Run(run::RunArgs),
    /// Print the environment of a tenant's processes
    Env(environment::EnvironmentArgs),
    /// Verify a tenant's limits with a CUDA client; exit 1 if one differs, 2 if the client could not run
    Verify {
        /// The tenant
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        tenant: TenantName,
        #[command(flatten)]
        call: CallArgs,
    },
    /// List events, and follow new ones
    Events(events::EventsArgs),
    /// Work with leases: permissions for one process to run as a tenant's client
    Lease {
        #[command(subcommand)]
        command: lease::LeaseCommand,
    },
    /// Show control daemons that somebody else started
    Foreign {
        #[command(subcommand)]
        command: foreign::ForeignCommand,
    },
    /// Release GPUs and the driver for maintenance, and take them again
    Maintenance {
        #[command(subcommand)]
        command: maintenance::MaintenanceCommand,
    },
    /// Work with tokens
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
    /// Work with sessions of browsers
    Session {
        #[command(subcommand)]
        command: session::SessionCommand,
    },
    /// Print a link that logs a browser in once, within 15 minutes
    LoginUrl {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Show your identity and role
    Whoami {
        #[command(flatten)]
        call: CallArgs,
    },
    /// Work with the audit log
    Audit {
        #[command(subcommand)]
        command: audit::AuditCommand,
    },
    /// Save how to reach servers, and choose one
    Context {
        #[command(subcommand)]
        command: context::ContextCommand,
    },
    /// Check whether this host is ready for a manager; exit 1 on warnings or failures
    Doctor(doctor::Doctor),
    /// Copy the database to a file, also while the manager is running
    Backup(backup::BackupArgs),
    /// Replace the database with a backup, while no manager is running
    Restore(backup::Restore),
    /// Work with configuration files
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Print the OpenAPI document
    Openapi {
        /// The version of OpenAPI
        #[arg(long = "as", value_name = "VERSION", default_value = "3.1", value_parser = ["3.1", "3.0"])]
        form: String,
    },
    /// Print a script with completions for a shell; names of tenants, daemons and layouts come from the server
    #[command(after_help = "Examples:
  source <(mps-manager completions bash)
  mps-manager completions fish > ~/.config/fish/completions/mps-manager.fish")]
    Completions {
        /// The shell
        shell: CompletedShell,
    },
    /// Write the manual pages to a directory
    #[command(hide = true)]
    Man {
        /// The directory
        directory: PathBuf,
    },
    /// Report what a CUDA client sees, from a child process; prints JSON
    CudaProbe(host_gpu::probe::ProbeArgs),
    /// Parts of the simulated host
    Sim {
        #[command(subcommand)]
        command: SimCommand,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration, or what is wrong with it
    Check {
        /// The configuration file
        #[arg(long)]
        config: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// A client of the simulated GPUs that behaves like a recorded real one
    Client(sim::client::ClientArgs),
    /// End a trial: the manager of a simulated host if it runs, its MPS processes and clients, and its directories
    Down(sim_down::SimDown),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    completion::answer_shell::<Cli>();
    let cli = Cli::try_parse().unwrap_or_else(|error| match error.kind() {
        ErrorKind::InvalidSubcommand => suggestions::with_safe_ones(error, &Cli::command()).exit(),
        _ => error.exit(),
    });
    choose_colour(cli.color);
    dispatch(cli.command).unwrap_or_else(|message| {
        complain(&message);
        ExitCode::from(ERROR)
    })
}

fn dispatch(command: CliCommand) -> Result<ExitCode, String> {
    match command {
        CliCommand::CudaProbe(args) => Ok(cuda_probe(&args)),
        CliCommand::Sim { command: SimCommand::Client(args) } => Ok(sim::client::run(&args)),
        CliCommand::Sim { command: SimCommand::Down(args) } => sim_down::run(args),
        CliCommand::Openapi { form } => {
            let document =
                serde_json::from_str(http::DOCUMENT).expect("a test holds that the document is JSON");
            line!("{:#}", if form == "3.0" { http::api::as_openapi_3_0(&document) } else { document });
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Completions { shell } => completion::print_script(shell),
        CliCommand::Man { directory } => manual::write(&Cli::command(), &directory),
        CliCommand::Config { command: ConfigCommand::Check { config } } => check_config(config),
        CliCommand::Context { command } => context::run(command),
        CliCommand::Doctor(args) => doctor::run(args),
        CliCommand::Backup(args) => backup::backup(args),
        CliCommand::Restore(args) => backup::restore(args),
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Status(args) => status::run(args),
        CliCommand::Top(args) => top::run(args),
        CliCommand::Daemon { command } => daemon::run(command),
        CliCommand::Tenant { command } => tenant::run(command),
        CliCommand::Gpu { command } => gpu::run(command),
        CliCommand::Host { command } => host::run(command),
        CliCommand::Incident { command } => incident::run(command),
        CliCommand::Layout { command } => layout::run(command),
        CliCommand::Diff(args) => host_file::diff(args),
        CliCommand::Apply(args) => host_file::apply(args),
        CliCommand::Export(args) => host_file::export(args),
        CliCommand::Replay { command } => replay::run(command),
        CliCommand::Operation { command } => operation::run(command),
        CliCommand::Client { command } => clients::run(command),
        CliCommand::Clients(args) => ask(async move { clients::list(&args).await }),
        CliCommand::Terminate(args) => ask(async move { clients::terminate(&args).await }),
        CliCommand::Lease { command } => lease::run(command),
        CliCommand::Foreign { command } => foreign::run(command),
        CliCommand::Maintenance { command } => maintenance::run(command),
        CliCommand::Token { command } => token::run(command),
        CliCommand::Session { command } => session::run(command),
        CliCommand::Audit { command } => audit::run(command),
        CliCommand::LoginUrl { call } => ask(async move { identity::login_url(&call).await }),
        CliCommand::Whoami { call } => ask(async move { identity::whoami(&call).await }),
        CliCommand::Events(args) => ask(events::run(args)),
        CliCommand::Env(args) => ask(async move { environment::print(&args).await }),
        CliCommand::Verify { tenant, call } => {
            ask(async move { verify::run(&call.client()?, &tenant, call.format()).await })
        }
    }
}

/// The probe; in the process that uses CUDA, the simulated host's CUDA is used if the environment names one.
fn cuda_probe(args: &host_gpu::probe::ProbeArgs) -> ExitCode {
    match std::env::var_os(sim::world::WORLD_VARIABLE) {
        Some(world) if args.child => {
            sim::client::probe::run(world.as_ref(), args.allocate_up_to.map(MemoryLimit::bytes))
        }
        _ => host_gpu::probe::run(args),
    }
}

fn check_config(path: Option<PathBuf>) -> Result<ExitCode, String> {
    let config =
        path.map_or_else(|| Ok(Config::default()), |path| Config::read(&path)).and_then(Config::check);
    let config = config.map_err(|error| error.to_string())?;
    line!("{}", toml::to_string(&config).map_err(|error| error.to_string())?.trim_end());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(word: &str) -> String {
        let error = Cli::try_parse_from(["mps-manager", word]).expect_err(word);
        suggestions::with_safe_ones(error, &Cli::command()).to_string()
    }

    #[test]
    fn harmful_commands_are_not_suggested() {
        for word in ["terminat", "restor", "version", "tenan"] {
            for harmful in ["'terminate'", "'restore'"] {
                assert!(!refusal(word).contains(harmful), "{word}: {}", refusal(word));
            }
        }
        assert!(refusal("tenan").contains("'tenant'"), "{}", refusal("tenan"));
    }

    #[test]
    fn verb_alone_is_shown_with_nouns() {
        assert!(refusal("restart").contains("daemon restart"), "{}", refusal("restart"));
    }

    #[test]
    fn commands_are_consistent() {
        Cli::command().debug_assert();
    }
}
