//! The command line.

mod adopt_ours;
mod audit;
mod backup;
mod doctor;
mod events;
mod host_file;
mod incident;
mod layout;
mod lease;
mod output;
mod run;
mod running;
mod serve;
mod server;
mod show;
mod sim_down;
mod token;
mod verify;
mod vet;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::output::{DIFFERS, ERROR, OutputFormat, complain, line};
use self::serve::Serve;
use self::server::{ServerArgs, ask, runtime_dir};
use self::show::{EnvFormat, StoppedClientAction};
use crate::config::Config;
use crate::domain::client::ClientId;
use crate::domain::{MemoryLimit, TenantName};
use crate::{gpu, http, sim};

/// Owns the NVIDIA MPS control daemons of a GPU host.
#[derive(Debug, Parser)]
#[command(name = "mps-manager", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve this host, or a simulated one
    Serve(Serve),
    /// Show the host, its daemons, its tenants and incidents; exit 1 when something is not ready or an incident is open
    Status {
        #[command(flatten)]
        server: ServerArgs,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// List the processes connected to the servers
    Clients {
        #[command(flatten)]
        server: ServerArgs,
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<TenantName>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// List events, and follow new ones
    Events(events::EventsArgs),
    /// Work with daemons
    Daemon {
        #[command(subcommand)]
        command: DaemonCommand,
    },
    /// Print the environment of a tenant's processes
    Env {
        #[command(flatten)]
        server: ServerArgs,
        /// The tenant
        tenant: TenantName,
        /// As lines for a shell, or as JSON
        #[arg(long, value_enum, default_value_t = EnvFormat::Sh)]
        format: EnvFormat,
    },
    /// Start a command with a tenant's environment, as the tenant's user
    Run(run::RunArgs),
    /// Verify a tenant's settings with a CUDA client; exit 1 if one differs, 2 if the client could not run
    Verify {
        #[command(flatten)]
        server: ServerArgs,
        /// The tenant
        tenant: TenantName,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// Terminate a client in the safe order
    Terminate {
        #[command(flatten)]
        server: ServerArgs,
        /// The client's ID, as `clients` prints it
        client: ClientId,
        /// What to do if the client is stopped (SIGSTOP, a debugger); by default nothing is sent and this fails
        #[arg(long, value_enum)]
        stopped: Option<StoppedClientAction>,
    },
    /// List and revoke leases
    Lease {
        #[command(subcommand)]
        command: lease::LeaseCommand,
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
    /// Create, list and revoke tokens
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
    /// Print a link that logs a browser in once, within 15 minutes
    LoginUrl {
        #[command(flatten)]
        server: ServerArgs,
    },
    /// Show who the server takes you for, and what you may do
    Whoami {
        #[command(flatten)]
        server: ServerArgs,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// Work with the audit log
    Audit {
        #[command(subcommand)]
        command: audit::AuditCommand,
    },
    /// Check what this host lacks, with or without a running manager; exit 1 on warnings or failures
    Doctor(doctor::Doctor),
    /// Copy the database to a file, also while the manager is running
    Backup(backup::BackupArgs),
    /// Replace the database with a backup, while no manager is running
    Restore(backup::Restore),
    /// Print the OpenAPI document
    Openapi {
        /// The version of OpenAPI
        #[arg(long = "as", value_name = "VERSION", default_value = "3.1", value_parser = ["3.1", "3.0"])]
        form: String,
    },
    /// Work with configuration files
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Report what a CUDA client sees, from a child process; prints JSON
    CudaProbe(gpu::probe::ProbeArgs),
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
enum DaemonCommand {
    /// Take back running daemons after the loss of the state directory
    Adopt(adopt_ours::AdoptOurs),
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
    let cli = Cli::parse();
    let result = match cli.command {
        CliCommand::CudaProbe(args) => return cuda_probe(&args),
        CliCommand::Sim { command: SimCommand::Client(args) } => return sim::client::run(&args),
        CliCommand::Sim { command: SimCommand::Down(args) } => sim_down::run(args),
        CliCommand::Openapi { form } => {
            let document =
                serde_json::from_str(http::DOCUMENT).expect("a test holds that the document is JSON");
            line!("{:#}", if form == "3.0" { http::api::as_openapi_3_0(&document) } else { document });
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Audit { command } => audit::run(command),
        CliCommand::Incident { command } => incident::run(command),
        CliCommand::Layout { command } => layout::run(command),
        CliCommand::Diff(args) => host_file::diff(args),
        CliCommand::Apply(args) => host_file::apply(args),
        CliCommand::Export(args) => host_file::export(args),
        CliCommand::Token { command } => token::run(command),
        CliCommand::LoginUrl { server } => ask(async move { token::login_url(&server.client()?).await }),
        CliCommand::Whoami { server, output } => {
            ask(async move { token::whoami(&server.client()?, output).await })
        }
        CliCommand::Config { command: ConfigCommand::Check { config } } => check_config(config),
        CliCommand::Doctor(args) => doctor::run(args),
        CliCommand::Backup(args) => backup::backup(args),
        CliCommand::Restore(args) => backup::restore(args),
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Status { server, output } => {
            ask(async move { show::status(&server.client()?, output).await })
        }
        CliCommand::Clients { server, tenant, output } => {
            ask(async move { show::clients(&server.client()?, tenant.as_ref(), output).await })
        }
        CliCommand::Daemon { command: DaemonCommand::Adopt(args) } => ask(adopt_ours::run(args)),
        CliCommand::Events(args) => ask(events::run(args)),
        CliCommand::Env { server, tenant, format } => {
            ask(async move { show::environment(&server.client()?, &tenant, format).await })
        }
        CliCommand::Verify { server, tenant, output } => {
            ask(async move { verify::run(&server.client()?, &tenant, output).await })
        }
        CliCommand::Terminate { server, client, stopped } => {
            ask(async move { show::terminate(&server.client()?, client, stopped).await })
        }
        CliCommand::Lease { command } => lease::run(command),
    };
    result.unwrap_or_else(|message| {
        complain(&message);
        ExitCode::from(ERROR)
    })
}

/// The probe; in the process that uses CUDA, the simulated host's CUDA is used if the environment names one.
fn cuda_probe(args: &gpu::probe::ProbeArgs) -> ExitCode {
    match std::env::var_os(sim::world::WORLD_VARIABLE) {
        Some(world) if args.child => {
            sim::client::probe::run(world.as_ref(), args.allocate_up_to.map(MemoryLimit::bytes))
        }
        _ => gpu::probe::run(args),
    }
}

fn check_config(path: Option<PathBuf>) -> Result<ExitCode, String> {
    let config =
        path.map_or_else(|| Ok(Config::default()), |path| Config::read(&path)).and_then(Config::check);
    let config = config.map_err(|error| error.to_string())?;
    line!("{}", toml::to_string(&config).map_err(|error| error.to_string())?.trim_end());
    Ok(ExitCode::SUCCESS)
}
