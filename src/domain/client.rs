//! Clients: processes connected to a server, and their leases.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{GpuUuid, InvalidValue, MemoryLimit, TenantDirectory, TenantName, ThreadPercentage};

/// Identifies one process forever: its PID and its start time, as `1234-567890`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClientId {
    /// Process ID.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}

impl ClientId {
    /// Parses `PID-START`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        text.split_once('-')
            .and_then(|(pid, start)| Some(Self { pid: pid.parse().ok()?, start_time: start.parse().ok()? }))
            // As it would be written here: no sign, no leading zero, no number that no kernel gives.
            .filter(|id| id.to_string() == text && (1..1_000_000_000).contains(&id.pid))
            .filter(|id| id.start_time < 1_000_000_000_000_000_000)
            .ok_or_else(|| {
                let shown: String = text.chars().take(40).collect();
                InvalidValue(format!(
                    "{shown:?} is not a client ID: it is a process ID, a hyphen and a start time, as the list of clients gives it"
                ))
            })
    }
}

impl utoipa::PartialSchema for ClientId {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::schema::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .description(Some(
                "Identifies one process forever: its process ID and its start time in clock ticks since boot.",
            ))
            .pattern(Some("^[1-9][0-9]{0,8}-(0|[1-9][0-9]{0,17})$"))
            .examples([serde_json::json!("1234-567890")])
            .into()
    }
}

impl utoipa::ToSchema for ClientId {
    fn name() -> std::borrow::Cow<'static, str> {
        "ClientId".into()
    }
}

impl std::str::FromStr for ClientId {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text)
    }
}

impl TryFrom<String> for ClientId {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<ClientId> for String {
    fn from(id: ClientId) -> Self {
        id.to_string()
    }
}

impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.pid, self.start_time)
    }
}

/// Memory of a client on one GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ClientMemory {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Bytes it holds there, the context included; `null` if the driver does not report them.
    pub used_bytes: Option<u64>,
}

/// The tenants' directories that are mounted, each on its own, in the mount namespace of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountedDirectories {
    /// These directories, according to its mounts or those of a process beside it.
    Seen(Vec<TenantDirectory>),
    /// The process hides its mounts.
    Hidden,
}

impl Default for MountedDirectories {
    fn default() -> Self {
        Self::Seen(Vec::new())
    }
}

/// Longest stored command line, in characters.
const MAX_COMMAND: usize = 512;

/// Returns a command line for the store: shortened, and without tokens.
pub fn stored_command(command: &str) -> String {
    crate::token::without_secrets(command).chars().take(MAX_COMMAND).collect()
}

/// A client as its daemon, the driver and /proc show it.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientFacts {
    /// Its process.
    pub id: ClientId,
    /// The server it is connected to, by process ID.
    pub server: u32,
    /// Its user, from /proc.
    pub uid: Option<u32>,
    /// Its command line, from /proc; the daemon's word where /proc has none.
    pub command: String,
    /// When it started, in unix milliseconds.
    pub since: i64,
    /// Memory it holds on each GPU, in bytes, as reported by the driver.
    pub memory: Vec<(GpuUuid, Option<u64>)>,
    /// The ID of the container that it is in.
    pub container: Option<String>,
    /// The tenants' directories that are mounted in the container that it is in.
    pub mounted: MountedDirectories,
    /// Its parent processes, nearest first.
    pub ancestors: Vec<ClientId>,
    /// `MPS_MANAGER_TENANT` in the environment it was started with.
    pub hint: Option<String>,
    /// `CUDA_MPS_SM_PARTITION` in the environment it was started with: its own choice, which MPS does not check.
    pub sm_partition: Option<String>,
    /// Device connections that it takes: `CUDA_DEVICE_MAX_CONNECTIONS` in the environment it was started with, or else the usual number.
    pub connections: u32,
    /// `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` in the environment it was started with, or else 100; `None` where that cannot be read.
    pub active_thread_percentage: Option<ThreadPercentage>,
    /// The memory limits of GPUs in the environment it was started with; `None` where that cannot be read.
    pub memory_limits: Option<BTreeMap<GpuUuid, MemoryLimit>>,
}

/// Origin of a lease: the process itself, or an operator.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// The process requested it itself through the unix socket, as `mps-manager run` does. It may be signalled.
    #[default]
    Own,
    /// An operator named it. It counts and holds up a drain, and is signalled only once MPS lists it as a client.
    Recorded,
}

api_words!(LeaseKind: Own "own", Recorded "recorded");

/// Policy for a client that is stopped (SIGSTOP, a debugger): a request to MPS to end such a client hangs its daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppedPolicy {
    /// Send nothing and fail.
    #[default]
    Refuse,
    /// Continue it (SIGCONT), then end it in the safe order.
    Continue,
    /// Kill it (SIGKILL) without asking MPS first.
    Kill,
}

/// A lease as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The process and its tenant.
    pub lease: Lease,
    /// Origin of the lease.
    pub kind: LeaseKind,
    /// True if an operator recorded the process, even if it also requested a lease itself; then only an operator can revoke the lease.
    pub by_operator: bool,
    /// The command line of the process when it was granted, shortened.
    pub command: String,
    /// When it was granted, in unix milliseconds.
    pub created_at: i64,
}

/// The right of a process that `run` started to be a client of its tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The process that requested it; `run` becomes its command without changing either number.
    pub holder: ClientId,
    /// The tenant whose client the process may be.
    pub tenant: TenantName,
}

/// Returns the number of places of a tenant's `max_clients` that are taken.
///
/// Each client takes one, with or without a lease. A lease takes one until a client is seen in the family of its holder:
/// the process was admitted and may connect at any moment. `clients` are processes with their ancestors.
pub fn places_taken(clients: &[(ClientId, Vec<ClientId>)], holders: &[ClientId]) -> usize {
    let family =
        |holder: &ClientId| clients.iter().any(|(id, ancestors)| id == holder || ancestors.contains(holder));
    clients.len() + holders.iter().filter(|holder| !family(holder)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_client_ids_are_parsed() {
        assert_eq!(ClientId::parse("1234-0"), Ok(ClientId { pid: 1234, start_time: 0 }));
        let longest = "999999999-999999999999999999";
        assert_eq!(ClientId::parse(longest).map(|id| id.to_string()).as_deref(), Ok(longest));
        for bad in
            ["", "1", "1-", "-1", "0-5", "01-5", "+1-5", "1-05", "1-+5", "1000000000-5", "1-5 ", "1-2-3"]
        {
            assert!(ClientId::parse(bad).is_err(), "{bad:?}");
        }
        assert!(ClientId::parse("1-1000000000000000000").is_err());
    }

    #[test]
    fn clients_and_unconnected_leases_take_places() {
        let id = |pid| ClientId { pid, start_time: 1 };
        let shell_with_two = [(id(11), vec![id(10)]), (id(12), vec![id(10)])];
        assert_eq!(places_taken(&shell_with_two, &[id(10)]), 2);
        assert_eq!(
            places_taken(&shell_with_two, &[id(10), id(20)]),
            3,
            "one was admitted and has not connected"
        );
        assert_eq!(places_taken(&[(id(10), vec![])], &[id(10)]), 1);
        assert_eq!(places_taken(&[], &[id(10)]), 1);
    }

    #[test]
    fn ids_are_parsed_strictly() {
        assert_eq!(ClientId::parse("12-34").expect("good"), ClientId { pid: 12, start_time: 34 });
        for bad in ["", "12", "12-", "-34", "a-b", "12-34-56"] {
            assert!(ClientId::parse(bad).is_err(), "{bad}");
        }
    }
}
