//! `mps-manager env`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::nouns::TENANT;
use super::output::{OutputFormat, line, remark};
use super::server::ServerArgs;
use super::vet::check_environment;
use crate::client::ClientError;
use crate::domain::TenantName;
use crate::domain::environment::container::ContainerAccess;
use crate::domain::environment::{self, cdi, formats};
use crate::host;
use crate::service::tenants::EnvironmentView;

/// The arguments of `env`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  variables=$(mps-manager env web) && eval \"$variables\"
  options=$(mps-manager env web --format docker) && eval \"docker run $options image\"
  variables=$(mps-manager env web --format apptainer) && eval \"$variables\" && apptainer exec image.sif program
  mps-manager env web --format nomad")]
pub(super) struct EnvironmentArgs {
    /// The tenant
    #[arg(add = TENANT.complete())]
    tenant: TenantName,
    /// The form
    #[arg(short, long = "output", visible_alias = "format", value_enum, default_value_t = EnvFormat::Sh)]
    output: EnvFormat,
    #[command(flatten)]
    server: ServerArgs,
}

/// A form of an environment.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum EnvFormat {
    /// Lines for a shell
    Sh,
    /// The server's answer
    Json,
    /// The server's answer as YAML
    Yaml,
    /// Options of `docker run`
    Docker,
    /// A file for `--env-file`
    #[value(aliases = ["env-file", "envfile"])]
    Dotenv,
    /// Options of `docker run` or `podman run` that request the tenant's CDI device
    Cdi,
    /// A service of a Compose file
    Compose,
    /// Lines for a shell, before `apptainer exec` or `singularity exec`
    #[value(alias = "singularity")]
    Apptainer,
    /// Lines for a systemd unit
    Systemd,
    /// Lines for Slurm's task prolog
    #[value(name = "taskprolog")]
    TaskProlog,
    /// Blocks for a task of a Nomad job
    Nomad,
}

pub(super) async fn print(args: &EnvironmentArgs) -> Result<ExitCode, ClientError> {
    let tenant = &args.tenant;
    let view: EnvironmentView =
        args.server.client()?.get(&format!("/api/v1/tenants/{tenant}/environment")).await?;
    // A shell that evaluates the lines would run anything else in them.
    check_environment(&view.variables, &view.unset).map_err(ClientError::Caller)?;
    let text = match args.output {
        EnvFormat::Json => return Ok(printed(OutputFormat::Json, &view)),
        EnvFormat::Yaml => return Ok(printed(OutputFormat::Yaml, &view)),
        output => text(output, tenant, &view).map_err(ClientError::Caller)?,
    };
    let is_for_containers = !matches!(
        args.output,
        EnvFormat::Sh | EnvFormat::Systemd | EnvFormat::TaskProlog | EnvFormat::Dotenv
    );
    if let Some(world) = formats::simulated(&view.variables).filter(|_| is_for_containers) {
        eprintln!("the host is simulated: the text asks for no GPU, and mounts {world}, which plays them");
    }
    line!("{}", text.trim_end());
    Ok(ExitCode::SUCCESS)
}

/// Returns the environment in a form; an error says why it has none.
fn text(output: EnvFormat, tenant: &TenantName, view: &EnvironmentView) -> Result<String, String> {
    let (variables, unset) = (&view.variables, &view.unset);
    let container = || {
        let why = view.container_refused.as_deref().unwrap_or_default();
        view.container.as_ref().ok_or_else(|| format!("tenant {tenant} has no form for containers: {why}"))
    };
    Ok(match output {
        EnvFormat::Sh | EnvFormat::Json | EnvFormat::Yaml => {
            let variables = variables.iter().map(|(name, value)| (name.clone(), value.clone()));
            environment::as_shell(&variables.collect::<Vec<_>>())
        }
        EnvFormat::Docker => formats::as_container_options(variables, container()?),
        EnvFormat::Dotenv => formats::as_env_file(variables, container()?)
            .ok_or("a value has a line break, which an environment file cannot hold")?,
        EnvFormat::Cdi => {
            let container = container()?;
            let device = view.cdi_device.as_ref().ok_or_else(|| {
                format!(
                    "tenant {tenant} has no CDI device: this manager keeps no CDI specification, or could not write it \
                     (mps-manager status; cdi_dir in its configuration)"
                )
            })?;
            if formats::simulated(variables).is_none() {
                remark_unresolved(container);
            }
            cdi::as_options(device, variables, container)
        }
        EnvFormat::Compose => formats::as_compose(variables, container()?),
        EnvFormat::Systemd => formats::as_unit(variables, unset),
        EnvFormat::TaskProlog => formats::as_task_prolog(variables, unset, view.container.as_ref())
            .ok_or("a value has a line break, which a task prolog cannot set")?,
        EnvFormat::Apptainer => formats::as_apptainer(variables, container()?).ok_or(
            "the path of the tenant's directory has a comma or a colon, which Apptainer's list of directories cannot hold: serve with \
             another --runtime-dir",
        )?,
        EnvFormat::Nomad => formats::as_nomad_task(variables, container()?),
    })
}

/// Prints which GPUs no container engine of this host would find. Prints nothing without the tenant's directory: its containers run on
/// another host.
fn remark_unresolved(container: &ContainerAccess) {
    if !Path::new(&container.mount).exists() {
        return;
    }
    let specifications = host::cdi::specifications(&host::cdi::DIRECTORIES.map(PathBuf::from));
    let devices = host::cdi::devices(&specifications, cdi::GPU_KIND).unwrap_or_default();
    if let Some(missing) = cdi::missing(&devices, container.gpus.iter()) {
        let remedy = host::cdi::GENERATE;
        remark(&format!(
            "no CDI specification of this host has {missing}, so an engine will not find it: {remedy}"
        ));
    }
}

fn printed(format: OutputFormat, view: &EnvironmentView) -> ExitCode {
    format.print_value(view);
    ExitCode::SUCCESS
}
