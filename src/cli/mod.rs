//! The command line.

mod audit;
mod doctor;
mod events;
mod keep;
mod layout;
mod lease;
mod run;
mod running;
mod show;
mod token;
mod verify;
mod vet;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::client::{Client, ClientError};
use crate::config::{self, Config, ConfigError, LogFormat};
use crate::domain::client::ClientId;
use crate::domain::printable::printable_lines;
use crate::domain::{MemoryLimit, TenantName};
use crate::{app, gpu, http, sim, telemetry};

/// Exit code for a negative answer, as `status` of a host that is not ready, and for a conflict with the state of the host.
const DIFFERS: u8 = 1;
/// Exit code of an error.
const ERROR: u8 = 2;
/// The status of a conflict with the state of the host.
const CONFLICT: u16 = 409;

/// Owns the NVIDIA MPS control daemons of a GPU host.
#[derive(Debug, Parser)]
#[command(name = "mps-manager", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve this host, or a simulated one
    Serve(Serve),
    /// Show the host, its daemons and its tenants; exit 1 when something is not ready
    Status {
        #[command(flatten)]
        server: Server,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// List the processes connected to the servers
    Clients {
        #[command(flatten)]
        server: Server,
        /// Only those of this tenant
        #[arg(long)]
        tenant: Option<TenantName>,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// List events, and follow new ones
    Events(events::EventsArgs),
    /// Print the environment of a tenant's processes
    Env {
        #[command(flatten)]
        server: Server,
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
        server: Server,
        /// The tenant
        tenant: TenantName,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Terminate a client in the safe order
    Terminate {
        #[command(flatten)]
        server: Server,
        /// The client's ID, as `clients` prints it
        client: ClientId,
        /// What to do if the client is stopped (SIGSTOP, a debugger); by default nothing is sent and this fails
        #[arg(long, value_enum)]
        stopped: Option<Stopped>,
    },
    /// List and revoke leases
    Lease {
        #[command(subcommand)]
        command: lease::LeaseCommand,
    },
    /// Work with partition layouts
    Layout {
        #[command(subcommand)]
        command: layout::LayoutCommand,
    },
    /// Create, list and revoke tokens
    Token {
        #[command(subcommand)]
        command: token::TokenCommand,
    },
    /// Print a link that logs a browser in once, within 15 minutes
    LoginUrl {
        #[command(flatten)]
        server: Server,
    },
    /// Show who the server takes you for, and what you may do
    Whoami {
        #[command(flatten)]
        server: Server,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Work with the audit log
    Audit {
        #[command(subcommand)]
        command: audit::AuditCommand,
    },
    /// Check what this host lacks, with or without a running manager; exit 1 on warnings or failures
    Doctor(doctor::Doctor),
    /// Copy the database to a file, also while the manager is running
    Backup(keep::Keep),
    /// Replace the database with a backup, while no manager is running
    Restore(keep::Restore),
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

#[derive(Debug, Args)]
struct Serve {
    /// The configuration file
    #[arg(long)]
    config: Option<PathBuf>,
    /// The address of the API
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Listen beyond loopback without TLS: anyone on the network can read what is sent, tokens included
    #[arg(long)]
    insecure_listen: bool,
    /// The directory of the database and the admin token
    #[arg(long)]
    state_dir: Option<PathBuf>,
    /// The directory of sockets, pipe directories and logs
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
    /// Run on a simulated host of this profile, as h200x2
    #[arg(long, value_name = "PROFILE")]
    sim: Option<String>,
    /// The directory of NVIDIA's two programs
    #[arg(long)]
    mps_dir: Option<PathBuf>,
    /// The format of log lines
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
    /// Start with an empty database if the state directory has lost its own
    #[arg(long)]
    new_database: bool,
}

impl Serve {
    /// The same, with relative paths resolved against a directory.
    fn within(mut self, directory: Option<&Path>) -> Self {
        let Some(directory) = directory else { return self };
        let paths = [&mut self.config, &mut self.state_dir, &mut self.runtime_dir, &mut self.mps_dir];
        for path in paths.into_iter().flatten() {
            *path = directory.join(&*path);
        }
        self
    }

    /// The file's configuration with the command line's options.
    fn config(self) -> Result<Config, ConfigError> {
        let mut config = self.config.map_or_else(|| Ok(Config::default()), |path| Config::read(&path))?;
        config.listen = self.listen.unwrap_or(config.listen);
        config.insecure_listen |= self.insecure_listen;
        config.state_dir = self.state_dir.unwrap_or(config.state_dir);
        config.runtime_dir = self.runtime_dir.unwrap_or(config.runtime_dir);
        config.sim = self.sim.or(config.sim);
        config.mps_dir = self.mps_dir.or(config.mps_dir);
        config.log_format = self.log_format.unwrap_or(config.log_format);
        config.check()
    }
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
}

/// How to reach the server.
#[derive(Debug, Args)]
struct Server {
    /// The server's URL; by default the unix socket [env: `MPS_MANAGER_URL`]
    #[arg(long)]
    url: Option<String>,
    /// PEM file with the certificates to verify an https:// server with, instead of the system's [env: `MPS_MANAGER_CA_FILE`]
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The server's runtime directory, where its unix socket is [env: `MPS_MANAGER_RUNTIME_DIR`]
    #[arg(long)]
    runtime_dir: Option<PathBuf>,
}

/// The variable for an option; an empty one counts as unset.
///
/// Not read by clap, whose usage in error messages shows options with a variable as if they were required.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The directory of the socket.
fn runtime_dir(given: Option<PathBuf>) -> PathBuf {
    let of_environment = || variable("MPS_MANAGER_RUNTIME_DIR").map(PathBuf::from);
    given.or_else(of_environment).unwrap_or_else(config::default_runtime_dir)
}

impl Server {
    /// The certificates to verify a server with.
    fn ca_file(&self) -> Option<PathBuf> {
        self.ca_file.clone().or_else(|| variable("MPS_MANAGER_CA_FILE").map(PathBuf::from))
    }

    fn client(&self) -> Result<Client, ClientError> {
        let of_environment = || variable("MPS_MANAGER_URL").map(|value| value.to_string_lossy().into_owned());
        match self.url.clone().or_else(of_environment) {
            Some(url) => {
                let token = std::env::var("MPS_MANAGER_TOKEN").ok();
                Client::over_url(&url, token, self.ca_file().as_deref())
            }
            None => {
                let directory = runtime_dir(self.runtime_dir.clone());
                let trusted = config::trusted_managers().map_err(ClientError::Address)?;
                Client::over_socket(&config::socket_in(&directory), trusted)
            }
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// What to do with a stopped client.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stopped {
    /// Continue it, then end it in the safe order
    Continue,
    /// Kill it without MPS
    Kill,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EnvFormat {
    Sh,
    Json,
}

/// Prints a line with control characters escaped; ends quietly on a closed pipe, as in `mps-manager clients | head -1`.
macro_rules! line {
    ($($argument:tt)*) => { crate::cli::emit(format_args!($($argument)*)) };
}
use line;

/// Exit code of a program that SIGPIPE ended, as shells report it.
const BROKEN_PIPE: i32 = 141;

fn emit(text: std::fmt::Arguments<'_>) {
    use std::io::Write as _;
    let text = text.to_string();
    if writeln!(std::io::stdout(), "{}", printable_lines(&text)).is_err() {
        std::process::exit(BROKEN_PIPE);
    }
}

/// Prints an error to stderr, with control characters escaped.
fn complain(message: &str) {
    eprintln!("mps-manager: {}", printable_lines(message));
}

/// Runs the command line.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command {
        Command::CudaProbe(args) => return cuda_probe(&args),
        Command::Sim { command: SimCommand::Client(args) } => return sim::client::run(&args),
        Command::Openapi { form } => {
            let document = http::api::document();
            line!("{:#}", if form == "3.0" { http::api::as_openapi_3_0(&document) } else { document });
            Ok(ExitCode::SUCCESS)
        }
        Command::Audit { command } => audit::run(command),
        Command::Layout { command } => layout::run(command),
        Command::Token { command } => token::run(command),
        Command::LoginUrl { server } => ask(async move { token::login_url(&server.client()?).await }),
        Command::Whoami { server, output } => {
            ask(async move { token::whoami(&server.client()?, output).await })
        }
        Command::Config { command: ConfigCommand::Check { config } } => check_config(config),
        Command::Doctor(args) => doctor::run(args),
        Command::Backup(keep) => keep::backup(keep),
        Command::Restore(keep) => keep::restore(keep),
        Command::Serve(args) => serve(args),
        Command::Run(args) => run::run(&args),
        Command::Status { server, output } => {
            ask(async move { show::status(&server.client()?, output).await })
        }
        Command::Clients { server, tenant, output } => {
            ask(async move { show::clients(&server.client()?, tenant.as_ref(), output).await })
        }
        Command::Events(args) => ask(events::run(args)),
        Command::Env { server, tenant, format } => {
            ask(async move { show::environment(&server.client()?, &tenant, format).await })
        }
        Command::Verify { server, tenant, output } => {
            ask(async move { verify::run(&server.client()?, &tenant, output).await })
        }
        Command::Terminate { server, client, stopped } => {
            ask(async move { show::terminate(&server.client()?, client, stopped).await })
        }
        Command::Lease { command } => lease::run(command),
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

/// Runs a request to the server to completion.
fn ask(question: impl Future<Output = Result<ExitCode, ClientError>>) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(question).or_else(|error| match error {
        // A conflict is not the caller's error, and the exit code is the same for every verb.
        ClientError::Refused(problem) if problem.status == CONFLICT => {
            complain(&ClientError::Refused(problem).to_string());
            Ok(ExitCode::from(DIFFERS))
        }
        error => Err(error.to_string()),
    })
}

fn check_config(path: Option<PathBuf>) -> Result<ExitCode, String> {
    let config =
        path.map_or_else(|| Ok(Config::default()), |path| Config::read(&path)).and_then(Config::check);
    let config = config.map_err(|error| error.to_string())?;
    line!("{}", toml::to_string(&config).map_err(|error| error.to_string())?.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn serve(args: Serve) -> Result<ExitCode, String> {
    let new_database = args.new_database;
    let config = args.config().map_err(|error| error.to_string())?;
    telemetry::start(config.log_format, &config.log_filter)?;
    // The work is waiting for processes and sockets: two threads suffice on any host.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(app::serve(config, new_database)).map_err(|error| error.to_string())?;
    Ok(ExitCode::SUCCESS)
}
