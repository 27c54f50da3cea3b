//! The command line: one file or folder per noun.

mod adopt_ours;
mod audit;
mod backup;
mod bootstrap;
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
mod fleet;
mod foreign;
mod gpu;
mod help;
mod host;
mod host_file;
mod identity;
mod incident;
mod kubelet_plugin;
mod layout;
mod lease;
mod maintenance;
mod manual;
mod nouns;
mod operation;
mod option_order;
mod output;
mod record;
mod replay;
mod run;
mod running;
mod serve;
mod server;
mod session;
mod short_id;
mod sim_down;
mod spec_changes;
mod spec_fields;
mod status;
mod suggestions;
mod tenant;
mod token;
mod top;
mod values;
mod verify;
mod vet;
mod wait;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use self::nouns::TENANT;
use self::output::{
    ColourChoice, CommandResult, ERROR, EXIT_CODES, OutputArgs, choose_colour, complain, line,
};
use self::serve::Serve;
use self::server::{CallArgs, ask};
use crate::config::Config;
use crate::domain::{MemoryLimit, TenantName};
use crate::{gpu as host_gpu, http, sim};

/// Owns the NVIDIA MPS control daemons of a GPU host.
#[derive(Debug, Parser)]
#[command(name = "mps-manager", version, max_term_width = 100, after_help = EXIT_CODES)]
pub struct Cli {
    /// When to colour results and help: auto, always or never
    #[arg(
        long,
        global = true,
        value_name = "WHEN",
        value_enum,
        default_value_t,
        hide_default_value = true,
        hide_possible_values = true
    )]
    color: ColourChoice,
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve this host, or a simulated one
    #[command(after_help = "Examples:
  mps-manager serve --sim h200x2 --rm                 a simulated host, removed at the end
  mps-manager serve --config /etc/mps-manager/config.toml
  mps-manager serve --listen 0.0.0.0:8640 --apply host.yaml")]
    Serve(Serve),
    /// Show the host, its daemons, its tenants and incidents; exit 1 when something is not ready or an incident is open
    Status(status::StatusArgs),
    /// Watch GPUs, tenants and clients in the terminal
    Top(top::TopArgs),
    /// Work with control daemons
    #[command(subcommand, alias = "daemons")]
    Daemon(daemon::DaemonCommand),
    /// Work with tenants: named consumers with limits
    #[command(subcommand, alias = "tenants")]
    Tenant(tenant::TenantCommand),
    /// Work with GPUs
    #[command(subcommand, alias = "gpus")]
    Gpu(gpu::GpuCommand),
    /// Show the host, and confirm a database that came from another machine
    #[command(subcommand, alias = "hosts")]
    Host(host::HostCommand),
    /// List incidents, show one, and acknowledge it
    #[command(subcommand, alias = "incidents")]
    Incident(incident::IncidentCommand),
    /// Work with partition layouts
    #[command(subcommand, alias = "layouts")]
    Layout(layout::LayoutCommand),
    /// Show what a host file would change; exit 1 if it would change something
    Diff(host_file::DiffArgs),
    /// Make the host what a file says; exit 1 if that is refused or fails
    Apply(host_file::ApplyArgs),
    /// Print the host as a file that `apply` takes: its daemons, tenants and layouts
    Export(host_file::ExportArgs),
    /// Show replays of layouts
    #[command(subcommand, alias = "replays")]
    Replay(replay::ReplayCommand),
    /// Work with operations: actions that take time
    #[command(subcommand, alias = "operations")]
    Operation(operation::OperationCommand),
    /// Work with clients: processes that are connected to servers
    #[command(subcommand)]
    Client(clients::ClientCommand),
    /// List clients: short for `client list`
    #[command(
        visible_alias = "ps",
        after_help = "Examples:
  mps-manager clients
  mps-manager ps --tenant web"
    )]
    Clients(clients::ClientListArgs),
    /// Terminate clients: short for `client terminate`
    #[command(
        visible_alias = "kill",
        after_help = "Examples:
  mps-manager terminate 19080
  mps-manager kill --tenant web --yes"
    )]
    Terminate(clients::TerminateArgs),
    /// Start a command with a tenant's environment, as the tenant's user
    Run(run::RunArgs),
    /// Print the environment of a tenant's processes
    Env(environment::EnvironmentArgs),
    /// Verify a tenant's limits with a CUDA client; exit 1 if one differs, 2 if the client could not run
    #[command(after_help = "Examples:
  mps-manager verify web
  mps-manager verify web -o json")]
    Verify {
        /// The tenant
        #[arg(add = TENANT.complete())]
        tenant: TenantName,
        #[command(flatten)]
        call: CallArgs,
    },
    /// List events, and follow new ones
    Events(events::EventsArgs),
    /// Work with leases: permissions for one process to run as a tenant's client
    #[command(subcommand, alias = "leases")]
    Lease(lease::LeaseCommand),
    /// Show control daemons that another program started
    #[command(subcommand)]
    Foreign(foreign::ForeignCommand),
    /// Release GPUs and the driver for maintenance, and take them again
    #[command(subcommand)]
    Maintenance(maintenance::MaintenanceCommand),
    /// Work with tokens
    #[command(subcommand, alias = "tokens")]
    Token(token::TokenCommand),
    /// Work with sessions of browsers
    #[command(subcommand, alias = "sessions")]
    Session(session::SessionCommand),
    /// Print a link that logs a browser in once, within 15 minutes
    #[command(after_help = "Examples:
  mps-manager login-url")]
    LoginUrl(CallArgs),
    /// Show who you are, and what you may do
    #[command(after_help = "Examples:
  mps-manager whoami
  mps-manager whoami --context lab")]
    Whoami(CallArgs),
    /// Work with the audit log
    #[command(subcommand)]
    Audit(audit::AuditCommand),
    /// Save how to reach servers, and choose one
    #[command(subcommand, alias = "contexts")]
    Context(context::ContextCommand),
    /// Check whether this host is ready for a manager; exit 1 on warnings or failures
    #[command(after_help = "Examples:
  mps-manager doctor
  mps-manager doctor --sim h200x2")]
    Doctor(doctor::Doctor),
    /// Record what static SM partitions answer on an idle GPU, as a file to send; or check such a file
    Record(record::RecordArgs),
    /// Make a service with a host file of a fresh host: a daemon and a tenant per GPU
    Bootstrap(bootstrap::BootstrapArgs),
    /// Serve the kubelet of a Kubernetes node: places on this host's daemons as resources
    KubeletPlugin(kubelet_plugin::KubeletPluginArgs),
    /// Copy the database to a file, also while the manager is running
    #[command(after_help = "Examples:
  mps-manager backup /var/backups/mps-manager.db")]
    Backup(backup::BackupArgs),
    /// Replace the database with a backup, while no manager is running
    #[command(after_help = "Examples:
  mps-manager restore /var/backups/mps-manager.db")]
    Restore(backup::Restore),
    /// Work with configuration files
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print the version
    #[command(after_help = "Examples:
  mps-manager version
  mps-manager version -o json")]
    Version(OutputArgs),
    /// Print the OpenAPI document
    #[command(after_help = "Examples:
  mps-manager openapi > openapi.json
  mps-manager openapi --as 3.0 > openapi-3.0.json")]
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
        #[arg(value_parser = completion::SHELLS)]
        shell: String,
    },
    /// Write the manual pages to a directory
    #[command(hide = true)]
    Man {
        /// The directory
        directory: PathBuf,
    },
    /// Report what a CUDA client sees, from a child process; prints JSON
    #[command(after_help = "Examples:
  mps-manager run --tenant web -- mps-manager cuda-probe")]
    CudaProbe(host_gpu::probe::ProbeArgs),
    /// Parts of the simulated host
    #[command(subcommand)]
    Sim(SimCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print the effective configuration, or what is wrong with it
    #[command(after_help = "Examples:
  mps-manager config check --config /etc/mps-manager/config.toml")]
    Check {
        /// The configuration file
        #[arg(long)]
        config: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// A client of the simulated GPUs that behaves like a recorded real one
    #[command(after_help = "Examples:
  mps-manager run --tenant demo -- mps-manager sim client --spin 60")]
    Client(sim::client::ClientArgs),
    /// End a trial: the manager of a simulated host if it runs, its MPS processes and clients, and its directories
    #[command(after_help = "Examples:
  mps-manager sim down
  mps-manager sim down --runtime-dir /tmp/mps/run --state-dir /tmp/mps/state")]
    Down(sim_down::SimDown),
}

/// Runs the command line.
pub fn main() -> ExitCode {
    completion::answer_shell::<Cli>();
    let words = option_order::behind_the_command(Cli::command, std::env::args_os().collect());
    let cli = match parsed(&words) {
        Ok(cli) => cli,
        Err(text) => return printed(&text),
    };
    choose_colour(cli.color);
    dispatch(cli.command).unwrap_or_else(|error| {
        complain(&error.to_string());
        ExitCode::from(ERROR)
    })
}

/// Prints help, the version, or an error about the arguments.
fn printed(text: &clap::Error) -> ExitCode {
    let code = u8::try_from(text.exit_code()).unwrap_or(ERROR);
    ExitCode::from(if text.print().is_ok() { code } else { ERROR })
}

/// Reads the arguments; an error suggests nothing that could do harm.
fn parsed(words: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = help::in_groups(Cli::command()).color(help_colour(words.to_vec()));
    let matches = command.try_get_matches_from_mut(words);
    let cli = matches
        .and_then(|matches| Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command)));
    cli.map_err(|error| suggestions::with_safe_ones(error, &Cli::command(), words))
}

/// Decides on colours for help and for errors about arguments, which are printed before the arguments are parsed.
fn help_colour(words: impl IntoIterator<Item = OsString>) -> clap::ColorChoice {
    let words: Vec<String> = words
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned())
        .take_while(|word| word != "--")
        .collect();
    let given = words.iter().enumerate().find_map(|(index, word)| match word.strip_prefix("--color")? {
        "" => words.get(index + 1).map(String::as_str),
        rest => rest.strip_prefix('='),
    });
    match given {
        Some("always") => clap::ColorChoice::Always,
        Some("never") => clap::ColorChoice::Never,
        _ => clap::ColorChoice::Auto,
    }
}

fn dispatch(command: CliCommand) -> CommandResult {
    match command {
        CliCommand::CudaProbe(args) => Ok(cuda_probe(&args)),
        CliCommand::Sim(SimCommand::Client(args)) => Ok(sim::client::run(&args)),
        CliCommand::Sim(SimCommand::Down(args)) => sim_down::run(args),
        CliCommand::Openapi { form } => {
            let document = if form == "3.0" { &http::DOCUMENT_3_0 } else { &http::DOCUMENT };
            line!("{}", document.trim_end());
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Version(output) => {
            let version = env!("CARGO_PKG_VERSION");
            let value = serde_json::json!({ "version": version });
            output.format.announce(&format!("mps-manager {version}"), version, &value);
            Ok(ExitCode::SUCCESS)
        }
        CliCommand::Completions { shell } => completion::print_script(&shell),
        CliCommand::Man { directory } => manual::write(&Cli::command(), &directory),
        CliCommand::Config(ConfigCommand::Check { config }) => check_config(config),
        CliCommand::Context(command) => context::run(command),
        CliCommand::Doctor(args) => doctor::run(args),
        CliCommand::Record(args) => record::run(&args),
        CliCommand::Bootstrap(args) => bootstrap::run(&args),
        CliCommand::KubeletPlugin(args) => kubelet_plugin::run(args),
        CliCommand::Backup(args) => backup::backup(args),
        CliCommand::Restore(args) => backup::restore(args),
        CliCommand::Serve(args) => serve::run(args),
        CliCommand::Run(args) => run::run(&args),
        CliCommand::Status(args) => ask(status::run(args)),
        CliCommand::Top(args) => ask(top::run(args)),
        CliCommand::Daemon(command) => ask(daemon::run(command)),
        CliCommand::Tenant(command) => ask(tenant::run(command)),
        CliCommand::Gpu(command) => ask(gpu::run(command)),
        CliCommand::Host(command) => ask(host::run(command)),
        CliCommand::Incident(command) => ask(incident::run(command)),
        CliCommand::Layout(command) => ask(layout::run(command)),
        CliCommand::Diff(args) => host_file::diff(args),
        CliCommand::Apply(args) => host_file::apply(args),
        CliCommand::Export(args) => host_file::export(args),
        CliCommand::Replay(command) => ask(replay::run(command)),
        CliCommand::Operation(command) => ask(operation::run(command)),
        CliCommand::Client(command) => ask(clients::run(command)),
        CliCommand::Clients(args) => ask(async move { clients::list(&args).await }),
        CliCommand::Terminate(args) => ask(async move { clients::terminate(&args).await }),
        CliCommand::Lease(command) => ask(lease::run(command)),
        CliCommand::Foreign(command) => ask(foreign::run(command)),
        CliCommand::Maintenance(command) => ask(maintenance::run(command)),
        CliCommand::Token(command) => ask(token::run(command)),
        CliCommand::Session(command) => ask(session::run(command)),
        CliCommand::Audit(command) => audit::run(command),
        CliCommand::LoginUrl(call) => ask(identity::login_url(call)),
        CliCommand::Whoami(call) => ask(identity::whoami(call)),
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

fn check_config(path: Option<PathBuf>) -> CommandResult {
    let config =
        path.map_or_else(|| Ok(Config::default()), |path| Config::read(&path)).and_then(Config::check);
    line!("{}", toml::to_string(&config?)?.trim_end());
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plural_nouns_are_accepted() {
        for words in [["tenants", "list"], ["daemons", "list"], ["tokens", "list"], ["operations", "list"]] {
            Cli::try_parse_from([&["mps-manager"][..], &words].concat()).expect("a command");
        }
    }

    /// Adds the commands without subcommands that `--help` lists.
    fn leaves(command: &clap::Command, path: &str, examples: &mut Vec<(String, String)>) {
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let path = format!("{path} {}", subcommand.get_name());
            if subcommand.has_subcommands() {
                leaves(subcommand, &path, examples);
            } else {
                let after = subcommand.get_after_help().map(ToString::to_string).unwrap_or_default();
                examples.push((path, after));
            }
        }
    }

    #[test]
    fn every_command_has_examples() {
        let mut examples = Vec::new();
        leaves(&Cli::command(), "mps-manager", &mut examples);
        assert!(examples.len() > 70, "{}", examples.len());
        for (path, after) in examples {
            assert!(after.contains("Examples:\n"), "{path} has no examples");
            assert!(after.lines().any(|line| line.contains(&path)), "{path} has examples of other commands");
        }
    }

    #[test]
    fn help_takes_the_colour_that_is_chosen() {
        let of = |words: &[&str]| help_colour(words.iter().map(OsString::from));
        assert_eq!(of(&["mps-manager", "--color", "never", "--help"]), clap::ColorChoice::Never);
        assert_eq!(of(&["mps-manager", "status", "--color=always"]), clap::ColorChoice::Always);
        assert_eq!(of(&["mps-manager", "run", "--", "ls", "--color=always"]), clap::ColorChoice::Auto);
    }

    #[test]
    fn commands_are_consistent() {
        Cli::command().debug_assert();
    }
}
