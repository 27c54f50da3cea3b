//! `mps-manager lease`: the leases of a tenant.

use std::process::ExitCode;

use clap::Subcommand;
use serde_json::json;

use super::fetch::all;
use super::nouns::{LEASES, TENANT};
use super::server::CallArgs;
use crate::client::ClientError;
use crate::domain::TenantName;
use crate::domain::client::ClientId;

/// Commands on leases.
#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// List the leases of a tenant
    #[command(after_help = "Examples:
  mps-manager lease list web")]
    List {
        /// The tenant
        #[arg(add = TENANT.complete())]
        tenant: TenantName,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Revoke a lease; its process keeps running
    #[command(after_help = "Examples:
  mps-manager lease revoke web 19080-1234567")]
    Revoke {
        /// The tenant
        #[arg(add = TENANT.complete())]
        tenant: TenantName,
        /// The lease's ID, as `list` prints it
        id: ClientId,
        #[command(flatten)]
        call: CallArgs,
    },
}

pub(super) async fn run(command: LeaseCommand) -> Result<ExitCode, ClientError> {
    match command {
        LeaseCommand::List { tenant, call } => {
            let path = format!("{}/leases", TENANT.path_of(&tenant));
            LEASES.print(&all(&call.client()?, &path).await?, call.format());
        }
        LeaseCommand::Revoke { tenant, id, call } => {
            call.client()?.delete(&format!("{}/leases/{id}", TENANT.path_of(&tenant))).await?;
            let sentence = format!("lease {id} of tenant {tenant} was revoked; its process keeps running");
            call.format().announce(&sentence, &id.to_string(), &json!({ "id": id, "revoked": true }));
        }
    }
    Ok(ExitCode::SUCCESS)
}
