//! `mps-manager lease …`: the leases of a tenant.

use std::process::ExitCode;

use clap::Subcommand;

use super::{OutputFormat, ServerArgs, ask, line, show};
use crate::client::{Client, ClientError};
use crate::domain::TenantName;
use crate::domain::client::ClientId;
use crate::service::tenants::leases::HeldLease;

/// Commands on leases.
#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// List the leases of a tenant
    List {
        #[command(flatten)]
        server: ServerArgs,
        /// The tenant
        tenant: TenantName,
        /// Output format
        #[arg(short, long, value_enum, default_value_t = OutputFormat::Table)]
        output: OutputFormat,
    },
    /// Revoke a lease; its process keeps running
    Revoke {
        #[command(flatten)]
        server: ServerArgs,
        /// The tenant
        tenant: TenantName,
        /// The lease's ID, as `list` prints it
        id: ClientId,
    },
}

pub(super) fn run(command: LeaseCommand) -> Result<ExitCode, String> {
    match command {
        LeaseCommand::List { server, tenant, output } => {
            ask(async move { list(&server.client()?, &tenant, output).await })
        }
        LeaseCommand::Revoke { server, tenant, id } => ask(async move {
            server.client()?.delete(&format!("/api/v1/tenants/{tenant}/leases/{id}")).await?;
            Ok(ExitCode::SUCCESS)
        }),
    }
}

async fn list(client: &Client, tenant: &TenantName, output: OutputFormat) -> Result<ExitCode, ClientError> {
    let leases: Vec<HeldLease> = show::all(client, &format!("/api/v1/tenants/{tenant}/leases")).await?;
    if matches!(output, OutputFormat::Json) {
        line!("{:#}", serde_json::json!(leases));
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = vec![["ID", "KIND", "CLIENT", "UID", "COMMAND"].map(str::to_owned)];
    for lease in leases {
        rows.push([
            lease.id.to_string(),
            lease.kind.as_str().to_owned(),
            if lease.is_client { "yes" } else { "no" }.to_owned(),
            lease.uid.map_or_else(|| "-".into(), |uid| uid.to_string()),
            lease.command.escape_debug().to_string(),
        ]);
    }
    show::table(&rows);
    Ok(ExitCode::SUCCESS)
}
