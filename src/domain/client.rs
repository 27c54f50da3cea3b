//! Clients: processes connected to a server, and whose they are.

use serde::{Deserialize, Serialize};

use super::tenant::Tenant;
use super::{DaemonName, GpuUuid, InvalidValue, TenantName};

/// Names one process for ever: its PID and its start time, as `1234-567890`.
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
                "A process for ever: its process ID and its start time in clock ticks since boot.",
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
    /// Memory it holds on each GPU, in bytes, as the driver tells.
    pub memory: Vec<(GpuUuid, Option<u64>)>,
    /// Its parent processes, nearest first.
    pub ancestors: Vec<ClientId>,
    /// `MPS_MANAGER_TENANT` in the environment it was started with.
    pub hint: Option<String>,
    /// `CUDA_MPS_SM_PARTITION` in the environment it was started with: its own choice, which nobody checks.
    pub sm_partition: Option<String>,
}

/// What tells whose a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signs {
    /// The process.
    pub id: ClientId,
    /// Its parent processes, nearest first.
    pub ancestors: Vec<ClientId>,
    /// Its user.
    pub uid: Option<u32>,
    /// `MPS_MANAGER_TENANT` in the environment it was started with.
    pub hint: Option<String>,
}

impl From<&ClientFacts> for Signs {
    fn from(client: &ClientFacts) -> Self {
        let ClientFacts { id, ancestors, uid, hint, .. } = client;
        Self { id: *id, ancestors: ancestors.clone(), uid: *uid, hint: hint.clone() }
    }
}

/// How it is known that a process is a tenant's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseKind {
    /// The process asked for itself through the unix socket, as `mps-manager run` does. It may be signalled.
    #[default]
    Own,
    /// An operator named it. It counts and holds up a drain, and is signalled only once MPS lists it as a client.
    Recorded,
}

impl LeaseKind {
    /// The word in the store and in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Recorded => "recorded",
        }
    }

    /// Reads the word of the store.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        [Self::Own, Self::Recorded]
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| InvalidValue(format!("{text:?} is no kind of lease: it is own or recorded")))
    }
}

/// What to do about a client that is stopped (SIGSTOP, a debugger): asking MPS to end one hangs its daemon.
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

/// A lease as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The process and its tenant.
    pub lease: Lease,
    /// How that is known.
    pub kind: LeaseKind,
    /// The command line of the process when it was granted, shortened; empty where an earlier release granted it.
    pub command: String,
    /// When it was granted, in unix milliseconds.
    pub created_at: i64,
}

/// The right of a process that `run` started to be a client of its tenant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The process that asked; `run` becomes its command without changing either number.
    pub holder: ClientId,
    /// Whose it is.
    pub tenant: TenantName,
}

/// How many places of its tenant's `max_clients` are taken.
///
/// Each client takes one, however it came. A lease takes one until a client is seen in the family of its holder:
/// the process was let in and may connect at any moment. `clients` are processes with their ancestors.
pub fn places_taken(clients: &[(ClientId, Vec<ClientId>)], holders: &[ClientId]) -> usize {
    let family =
        |holder: &ClientId| clients.iter().any(|(id, ancestors)| id == holder || ancestors.contains(holder));
    clients.len() + holders.iter().filter(|holder| !family(holder)).count()
}

/// How it is known whose a client is, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttributedBy {
    /// It, or a parent of it, was started by `mps-manager run`.
    Lease,
    /// Only one tenant of the daemon has its user, and other tenants have others.
    Uid,
    /// Its environment says so; a hint that the process could have forged.
    Environment,
    /// Nothing tells.
    Unattributed,
}

/// A tenant as attribution sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub tenant: TenantName,
    /// The daemon that serves it.
    pub daemon: DaemonName,
    /// Its user.
    pub uid: u32,
}

impl Candidate {
    /// The tenants of a daemon.
    pub fn of(tenants: &[Tenant], daemon: &DaemonName) -> Vec<Self> {
        let here = tenants.iter().filter(|tenant| tenant.spec.daemon == *daemon);
        here.map(|tenant| Self { tenant: tenant.name.clone(), daemon: daemon.clone(), uid: tenant.spec.uid })
            .collect()
    }
}

/// Finds whose a process that is, or may become, a client of `daemon` is.
pub fn attribute(
    client: &Signs,
    daemon: &DaemonName,
    leases: &[Lease],
    candidates: &[Candidate],
) -> (Option<TenantName>, AttributedBy) {
    let chain = std::iter::once(&client.id).chain(&client.ancestors);
    if let Some(lease) = chain.into_iter().find_map(|id| leases.iter().find(|lease| lease.holder == *id)) {
        return (Some(lease.tenant.clone()), AttributedBy::Lease);
    }
    let here = || candidates.iter().filter(|candidate| candidate.daemon == *daemon);
    let mut of_user = here().filter(|candidate| Some(candidate.uid) == client.uid);
    // A user that every tenant shares tells nothing, root least of all.
    if let (Some(only), None) = (of_user.next(), of_user.next())
        && here().count() > 1
        && only.uid != 0
    {
        return (Some(only.tenant.clone()), AttributedBy::Uid);
    }
    let hinted = here().find(|candidate| Some(candidate.tenant.as_str()) == client.hint.as_deref());
    match hinted {
        Some(candidate) if Some(candidate.uid) == client.uid => {
            (Some(candidate.tenant.clone()), AttributedBy::Environment)
        }
        _ => (None, AttributedBy::Unattributed),
    }
}

/// Whose a process in a partition is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Occupant {
    /// Whatever tells it says so.
    Of(TenantName),
    /// What tells it disagrees, as these words say.
    Disputed(String),
    /// Nothing tells.
    Unknown,
}

/// Finds whose a process in a partition of `daemon` is. A single sign may be of another time than the rest: a user stays when a
/// tenant goes, and so does an environment. So each of them has to agree.
pub fn occupant(client: &Signs, daemon: &DaemonName, leases: &[Lease], candidates: &[Candidate]) -> Occupant {
    let (Some(owner), by) = attribute(client, daemon, leases, candidates) else { return Occupant::Unknown };
    let by = match by {
        AttributedBy::Lease => "lease",
        AttributedBy::Uid => "user",
        AttributedBy::Environment | AttributedBy::Unattributed => "environment",
    };
    let disputed = |whose: &str, sign: &str| {
        Occupant::Disputed(format!("of tenant {owner} by its {by} and of {whose} by its {sign}"))
    };
    if let Some(hint) = client.hint.as_deref().filter(|hint| !hint.is_empty() && *hint != owner.as_str()) {
        let whose = TenantName::parse(hint)
            .map_or_else(|_| "no possible tenant".to_owned(), |hinted| format!("tenant {hinted}"));
        return disputed(&whose, "environment");
    }
    // Root's processes may be anybody's.
    let uid = client.uid.filter(|uid| *uid != 0);
    let mut of_user = candidates
        .iter()
        .filter(|candidate| candidate.daemon == *daemon && Some(candidate.uid) == uid)
        .map(|candidate| &candidate.tenant)
        .peekable();
    match of_user.peek().copied() {
        Some(another) if !of_user.any(|tenant| *tenant == owner) => {
            disputed(&format!("tenant {another}"), "user")
        }
        _ => Occupant::Of(owner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> TenantName {
        TenantName::parse(text).expect("name")
    }

    fn client(uid: u32, hint: Option<&str>) -> ClientFacts {
        ClientFacts {
            id: ClientId { pid: 10, start_time: 5 },
            server: 1,
            uid: Some(uid),
            command: "x".into(),
            since: 0,
            memory: vec![],
            ancestors: vec![ClientId { pid: 9, start_time: 4 }],
            hint: hint.map(Into::into),
            sm_partition: None,
        }
    }

    #[test]
    fn an_id_is_read_as_it_is_written_and_in_no_other_way() {
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
    fn a_lease_beats_the_user_and_the_user_beats_the_hint() {
        let daemon = DaemonName::parse("gpu0").expect("name");
        let candidates: Vec<Candidate> = [("a", 1000), ("b", 1001), ("c", 1001)]
            .map(|(tenant, uid)| Candidate { tenant: name(tenant), daemon: daemon.clone(), uid })
            .into();
        let lease = Lease { holder: ClientId { pid: 9, start_time: 4 }, tenant: name("b") };
        let who =
            |client: &ClientFacts, leases: &[Lease]| attribute(&client.into(), &daemon, leases, &candidates);
        assert_eq!(who(&client(1000, Some("c")), &[lease]), (Some(name("b")), AttributedBy::Lease));
        assert_eq!(who(&client(1000, Some("c")), &[]), (Some(name("a")), AttributedBy::Uid));
        assert_eq!(who(&client(1001, Some("c")), &[]), (Some(name("c")), AttributedBy::Environment));
        assert_eq!(who(&client(1001, Some("a")), &[]), (None, AttributedBy::Unattributed));
        let reused = Lease { holder: ClientId { pid: 9, start_time: 99 }, tenant: name("b") };
        assert_eq!(who(&client(0, None), &[reused]), (None, AttributedBy::Unattributed));
    }

    #[test]
    fn an_occupant_is_a_tenants_only_where_all_that_tells_it_agrees() {
        let daemon = DaemonName::parse("gpu0").expect("name");
        let candidates: Vec<Candidate> = [("a", 1000), ("b", 1001), ("c", 1001)]
            .map(|(tenant, uid)| Candidate { tenant: name(tenant), daemon: daemon.clone(), uid })
            .into();
        let lease = [Lease { holder: ClientId { pid: 9, start_time: 4 }, tenant: name("b") }];
        let who = |uid: u32, hint: Option<&str>, leases: &[Lease]| {
            occupant(&Signs::from(&client(uid, hint)), &daemon, leases, &candidates)
        };
        let disputed = |words: &str| Occupant::Disputed(words.to_owned());
        for (uid, hint, leases, expected) in [
            (1001, Some("b"), &lease[..], Occupant::Of(name("b"))),
            // Root, and a user that no tenant has, tell nothing.
            (0, None, &lease, Occupant::Of(name("b"))),
            (7, Some(""), &lease, Occupant::Of(name("b"))),
            (
                1001,
                Some("c"),
                &lease,
                disputed("of tenant b by its lease and of tenant c by its environment"),
            ),
            (1000, Some("b"), &lease, disputed("of tenant b by its lease and of tenant a by its user")),
            (1000, None, &[], Occupant::Of(name("a"))),
            (1000, Some("a"), &[], Occupant::Of(name("a"))),
            (
                1000,
                Some("gone"),
                &[],
                disputed("of tenant a by its user and of tenant gone by its environment"),
            ),
            (
                1000,
                Some("\n"),
                &[],
                disputed("of tenant a by its user and of no possible tenant by its environment"),
            ),
            (1001, Some("gone"), &[], Occupant::Unknown),
            (1001, Some("b"), &[], Occupant::Of(name("b"))),
        ] {
            assert_eq!(who(uid, hint, leases), expected, "{uid} {hint:?} {leases:?}");
        }
    }

    #[test]
    fn every_client_takes_a_place_and_so_does_a_lease_without_one() {
        let id = |pid| ClientId { pid, start_time: 1 };
        let shell_with_two = [(id(11), vec![id(10)]), (id(12), vec![id(10)])];
        assert_eq!(places_taken(&shell_with_two, &[id(10)]), 2);
        assert_eq!(
            places_taken(&shell_with_two, &[id(10), id(20)]),
            3,
            "one was let in and has not connected"
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
