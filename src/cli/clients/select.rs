//! Selection of clients.

use std::collections::BTreeSet;

use clap::Args;

use super::super::nouns::{CLIENT, DAEMON, Filter, GPU, TENANT, tenant_of};
use crate::client::{Client, ClientError};
use crate::domain::count::counted;
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::service::host::GpuView;
use crate::service::tenants::clients::ClientView;

/// Clients by what they belong to.
#[derive(Debug, Clone, Args)]
pub(super) struct ClientSelector {
    /// Only those of this tenant
    #[arg(long, add = TENANT.complete())]
    tenant: Option<TenantName>,
    /// Only those of this daemon
    #[arg(long, add = DAEMON.complete())]
    daemon: Option<DaemonName>,
    /// Only those on this GPU, by index or UUID; of an MLOPart device, those whose tenant sees it
    #[arg(long, add = GPU.complete())]
    gpu: Option<String>,
}

impl ClientSelector {
    /// Returns true if any filter is given.
    pub(super) fn is_given(&self) -> bool {
        self.tenant.is_some() || self.daemon.is_some() || self.gpu.is_some()
    }

    /// Reads the selected clients from a poll that begins now; a name that does not exist is an error.
    pub(super) async fn clients(&self, client: &Client) -> Result<Vec<ClientView>, ClientError> {
        let tenant = self.tenant.as_ref().map(ToString::to_string);
        let daemon = self.daemon.as_ref().map(ToString::to_string);
        let mut clients = polled(client, [("tenant", tenant), ("daemon", daemon)]).await?;
        if let Some(gpu) = &self.gpu {
            let gpu: GpuView = client.get(&GPU.path_of(gpu)).await?;
            let devices = with_instances(client, &gpu).await?;
            clients.retain(|client| client.memory.iter().any(|memory| devices.contains(&memory.gpu)));
            if gpu.mlopart.is_some() {
                // The driver says only on which GPU a client is, its tenant on which devices.
                let tenants = TENANT
                    .read(client, &[("daemon", gpu.daemon.as_ref().map(ToString::to_string))], 0)
                    .await?;
                let sees: BTreeSet<TenantName> = tenants
                    .into_iter()
                    .filter(|tenant| tenant.spec.sees(&gpu.uuid))
                    .map(|tenant| tenant.name)
                    .collect();
                clients.retain(|client| client.tenant.as_ref().is_some_and(|tenant| sees.contains(tenant)));
            }
        }
        Ok(clients)
    }
}

/// Returns the devices on which the driver lists clients of a GPU: itself, and in MIG mode its instances.
async fn with_instances(client: &Client, gpu: &GpuView) -> Result<Vec<GpuUuid>, ClientError> {
    let mut devices = vec![gpu.uuid.whole()];
    if gpu.mig.is_none() && gpu.mig_enabled == Some(true) {
        let instances = GPU.read(client, &[], 0).await?.into_iter();
        let of_gpu = instances.filter(|one| one.mig.as_ref().is_some_and(|mig| mig.parent == gpu.uuid));
        devices.extend(of_gpu.map(|instance| instance.uuid));
    }
    Ok(devices)
}

/// Reads the clients that pass the filters, from a poll that begins now.
pub(super) async fn polled<const N: usize>(
    client: &Client,
    filters: [Filter; N],
) -> Result<Vec<ClientView>, ClientError> {
    let fresh = [("fresh", Some("true".to_owned()))];
    CLIENT.read(client, &fresh.into_iter().chain(filters).collect::<Vec<_>>(), 0).await
}

/// Finds the client with this ID, or with this PID if only one client has it.
pub(super) fn resolve<'c>(clients: &'c [ClientView], named: &str) -> Result<&'c ClientView, String> {
    if let Some(client) = clients.iter().find(|client| client.id.to_string() == named) {
        return Ok(client);
    }
    let mut matching: Vec<&ClientView> =
        clients.iter().filter(|client| client.pid.to_string() == named).collect();
    matching.dedup_by_key(|client| client.id);
    match matching[..] {
        [client] => Ok(client),
        [] => Err(format!("there is no client {named}: `mps-manager client list` shows them")),
        _ => {
            let candidate = |client: &&ClientView| {
                let tenant = tenant_of(client).unwrap_or_else(|| "no tenant".to_owned());
                format!("\n  {}  {tenant}  {}  {}", client.id, client.daemon, client.command)
            };
            let candidates: String = matching.iter().map(candidate).collect();
            Err(format!(
                "{} have PID {named}, give the ID of one:{candidates}",
                counted(matching.len(), "client")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn client(id: &str, pid: u32) -> ClientView {
        let view = json!({
            "id": id, "pid": pid, "daemon": "gpu0", "server": 9, "tenant": "web", "attributed_by": "lease",
            "uid": 0, "command": "train", "since": "2026-11-25T05:03:49Z", "memory": [],
        });
        serde_json::from_value(view).expect("a client")
    }

    #[test]
    fn pid_names_a_client_if_unambiguous() {
        let clients = [client("7-1", 7), client("8-1", 8), client("8-2", 8)];
        assert_eq!(resolve(&clients, "7").expect("one").id.to_string(), "7-1");
        assert_eq!(resolve(&clients, "8-2").expect("an ID").id.to_string(), "8-2");
        let several = resolve(&clients, "8").expect_err("two");
        assert!(several.starts_with("2 clients have PID 8") && several.contains("8-1  web"), "{several}");
        assert!(resolve(&clients, "9").expect_err("none").contains("there is no client 9"));
    }
}
