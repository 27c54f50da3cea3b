//! `mps-manager lease`: the leases of a tenant.

use std::process::ExitCode;

use clap::Subcommand;
use clap_complete::engine::ArgValueCandidates;
use serde_json::json;

use super::completion;
use super::fetch::all;
use super::output::{ListColumn, ListLayout, TableCell, age};
use super::server::{CallArgs, ask};
use crate::domain::TenantName;
use crate::domain::client::ClientId;
use crate::service::tenants::leases::HeldLease;

/// Commands on leases.
#[derive(Debug, Subcommand)]
pub(super) enum LeaseCommand {
    /// List the leases of a tenant
    #[command(after_help = "Examples:
  mps-manager lease list web")]
    List {
        /// The tenant
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        tenant: TenantName,
        #[command(flatten)]
        call: CallArgs,
    },
    /// Revoke a lease; its process keeps running
    #[command(after_help = "Examples:
  mps-manager lease revoke web 19080-1234567")]
    Revoke {
        /// The tenant
        #[arg(add = ArgValueCandidates::new(completion::tenants))]
        tenant: TenantName,
        /// The lease's ID, as `list` prints it
        id: ClientId,
        #[command(flatten)]
        call: CallArgs,
    },
}

const LAYOUT: ListLayout<HeldLease> = ListLayout {
    noun: "leases",
    name: |lease| lease.id.to_string(),
    columns: &[
        ListColumn::new("LEASE", |lease| lease.id.to_string().into()),
        ListColumn::ranked(4, ListColumn::new("KIND", |lease| lease.kind.as_str().into())),
        ListColumn::new("CLIENT", |lease| if lease.is_client { "yes" } else { "no" }.into()),
        ListColumn::ranked(3, ListColumn::new("UID", |lease| TableCell::optional(lease.uid))),
        ListColumn::ranked(5, ListColumn::new("AGE", |lease| age(lease.granted_at).into())),
        ListColumn::ranked(1, ListColumn::cut("COMMAND", |lease| lease.command.as_str().into())),
    ],
};

pub(super) fn run(command: LeaseCommand) -> Result<ExitCode, String> {
    ask(async move {
        match command {
            LeaseCommand::List { tenant, call } => {
                let leases: Vec<HeldLease> =
                    all(&call.client()?, &format!("/api/v1/tenants/{tenant}/leases")).await?;
                LAYOUT.print(&leases, call.format());
            }
            LeaseCommand::Revoke { tenant, id, call } => {
                call.client()?.delete(&format!("/api/v1/tenants/{tenant}/leases/{id}")).await?;
                let sentence =
                    format!("lease {id} of tenant {tenant} was revoked; its process keeps running");
                call.format().announce(&sentence, &id.to_string(), &json!({ "id": id, "revoked": true }));
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
