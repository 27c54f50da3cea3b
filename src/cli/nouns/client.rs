use super::Noun;
use crate::cli::output::{ListField, TableCell, age, word};
use crate::domain::memory::Bytes;
use crate::service::tenants::clients::ClientView;
use crate::words::bytes;
use crate::words::tenant::with_workload;

type Field = ListField<ClientView>;

/// Clients: processes that are connected to servers.
pub(in crate::cli) static CLIENT: Noun<ClientView> = Noun {
    candidate: |client| Some((client.id.to_string(), client.command.clone())),
    ..Noun::new(
        ["client", "clients", "/api/v1/clients"],
        |client| client.id.to_string(),
        &[
            Field::both("CLIENT", "Client", |client| client.id.to_string().into()),
            Field::detail("PID", |client| client.pid.to_string().into()),
            Field::both("TENANT", "Tenant", |client| TableCell::optional(tenant_of(client))),
            Field::both("BY", "Known by", |client| word(client.attributed_by).into()).rank(6),
            Field::both("DAEMON", "Daemon", |client| client.daemon.as_str().into()).rank(3),
            Field::detail("Server", |client| client.server.to_string().into()),
            Field::column("UID", |client| TableCell::optional(client.uid)).rank(4),
            Field::detail("User", |client| TableCell::optional(client.uid.map(|uid| format!("uid {uid}")))),
            Field::column("MEMORY", |client| TableCell::optional(memory(client))).rank(1),
            Field::both("AGE", "Age", |client| age(client.since).into()).rank(5),
            Field::column("PARENT", |client| if client.orphaned { "ended" } else { "" }.into()).rank(7),
            Field::detail("Parent", |client| {
                let has_ended = "has ended: it may be left over";
                if client.orphaned { has_ended } else { "lives, or a service or container keeps it" }.into()
            }),
            Field::both("COMMAND", "Command", |client| client.command.as_str().into()).cut().rank(2),
            Field::wide("SERVER", |client| client.server.to_string().into()),
            Field::wide("GPUS", |client| TableCell::joined(client.memory.iter().map(|memory| &memory.gpu))),
            Field::rows(|client| {
                let memory = client.memory.iter();
                memory.map(|used| ("Memory", format!("{} on {}", bytes(used.used_bytes), used.gpu))).collect()
            }),
        ],
    )
};

/// Formats the client's memory on all GPUs as the driver reports it; `None` if it reports none.
fn memory(client: &ClientView) -> Option<String> {
    let reported: Vec<u64> = client.memory.iter().filter_map(|memory| memory.used_bytes).collect();
    (!reported.is_empty()).then(|| Bytes(reported.iter().sum()).to_string())
}

/// Returns the tenant of a client, with the workload that the tenant was made for.
pub(in crate::cli) fn tenant_of(client: &ClientView) -> Option<String> {
    client.tenant.as_ref().map(|tenant| with_workload(tenant, client.workload.as_ref()))
}
