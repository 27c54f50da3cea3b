//! Attribution: which tenant a process belongs to.

use serde::{Deserialize, Serialize};

use super::client::{ClientFacts, ClientId, Lease, MountedDirectories};
use super::tenant::Tenant;
use super::{DaemonName, TenantDirectory, TenantName};

/// Evidence of which tenant a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signs {
    /// The process.
    pub id: ClientId,
    /// Its parent processes, nearest first.
    pub ancestors: Vec<ClientId>,
    /// Its user.
    pub uid: Option<u32>,
    /// The tenants' directories that are mounted in the container that it is in.
    pub mounted: MountedDirectories,
    /// `MPS_MANAGER_TENANT` in the environment it was started with.
    pub hint: Option<String>,
}

impl From<&ClientFacts> for Signs {
    fn from(client: &ClientFacts) -> Self {
        let ClientFacts { id, ancestors, uid, mounted, hint, .. } = client;
        Self {
            id: *id,
            ancestors: ancestors.clone(),
            uid: *uid,
            mounted: mounted.clone(),
            hint: hint.clone(),
        }
    }
}

/// Evidence by which a client was attributed to its tenant, the surest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AttributedBy {
    /// It, or a parent of it, was started by `mps-manager run`.
    Lease,
    /// Its container has the directory of this tenant mounted, and of no other tenant of the daemon.
    Container,
    /// Only one tenant of the daemon has its user, and other tenants have others.
    Uid,
    /// Its environment says so; a hint that the process could have forged.
    Environment,
    /// Not known.
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
    /// Its directory.
    pub directory: TenantDirectory,
}

impl Candidate {
    /// The tenants of a daemon.
    pub fn of(tenants: &[Tenant], daemon: &DaemonName) -> Vec<Self> {
        let on_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == *daemon);
        let candidate = |tenant: &Tenant| Self {
            tenant: tenant.name.clone(),
            daemon: daemon.clone(),
            uid: tenant.spec.uid,
            directory: tenant.directory.clone(),
        };
        on_daemon.map(candidate).collect()
    }
}

/// Returns the tenant of the daemon whose directory is mounted in the container of a process. `None` if several are mounted, since the
/// process could have connected through any of them.
fn tenant_of_container<'c>(
    client: &Signs,
    daemon: &DaemonName,
    candidates: &'c [Candidate],
) -> Option<&'c TenantName> {
    let MountedDirectories::Seen(directories) = &client.mounted else { return None };
    let mut mounted = candidates
        .iter()
        .filter(|candidate| candidate.daemon == *daemon && directories.contains(&candidate.directory));
    match (mounted.next(), mounted.next()) {
        (Some(only), None) => Some(&only.tenant),
        _ => None,
    }
}

/// Finds the tenant of a process that is, or may become, a client of `daemon`.
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
    if let Some(tenant) = tenant_of_container(client, daemon, candidates) {
        return (Some(tenant.clone()), AttributedBy::Container);
    }
    let on_daemon = || candidates.iter().filter(|candidate| candidate.daemon == *daemon);
    let mut same_user = on_daemon().filter(|candidate| Some(candidate.uid) == client.uid);
    // A user that every tenant shares proves nothing, root least of all.
    if let (Some(only), None) = (same_user.next(), same_user.next())
        && on_daemon().count() > 1
        && only.uid != 0
    {
        return (Some(only.tenant.clone()), AttributedBy::Uid);
    }
    let hinted = on_daemon().find(|candidate| Some(candidate.tenant.as_str()) == client.hint.as_deref());
    match hinted {
        // One that hides its container's evidence is not believed.
        Some(candidate)
            if Some(candidate.uid) == client.uid && client.mounted != MountedDirectories::Hidden =>
        {
            (Some(candidate.tenant.clone()), AttributedBy::Environment)
        }
        _ => (None, AttributedBy::Unattributed),
    }
}

/// The tenant of a process in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PartitionOccupant {
    /// All evidence agrees on it.
    Of(TenantName),
    /// The evidence disagrees, as this text explains.
    Disputed(String),
    /// There is no evidence.
    Unknown,
}

/// Finds the tenant of a process in a partition of `daemon`. A single piece of evidence may be older than the rest: a user stays
/// when a tenant goes, and so does an environment. So all of them have to agree.
pub fn occupant(
    client: &Signs,
    daemon: &DaemonName,
    leases: &[Lease],
    candidates: &[Candidate],
) -> PartitionOccupant {
    let (Some(owner), by) = attribute(client, daemon, leases, candidates) else {
        return PartitionOccupant::Unknown;
    };
    let by = match by {
        AttributedBy::Lease => "lease",
        AttributedBy::Container => "container",
        AttributedBy::Uid => "user",
        AttributedBy::Environment | AttributedBy::Unattributed => "environment",
    };
    let disputed = |whose: &str, sign: &str| {
        PartitionOccupant::Disputed(format!("of tenant {owner} by its {by} and of {whose} by its {sign}"))
    };
    if let Some(hint) = client.hint.as_deref().filter(|hint| !hint.is_empty() && *hint != owner.as_str()) {
        let whose = TenantName::parse(hint)
            .map_or_else(|_| "no possible tenant".to_owned(), |hinted| format!("tenant {hinted}"));
        return disputed(&whose, "environment");
    }
    let by_container = tenant_of_container(client, daemon, candidates);
    if let Some(another) = by_container.filter(|tenant| **tenant != owner) {
        return disputed(&format!("tenant {another}"), "container");
    }
    // Root's processes may be anybody's.
    let uid = client.uid.filter(|uid| *uid != 0);
    let mut same_user = candidates
        .iter()
        .filter(|candidate| candidate.daemon == *daemon && Some(candidate.uid) == uid)
        .map(|candidate| &candidate.tenant)
        .peekable();
    match same_user.peek().copied() {
        Some(another) if !same_user.any(|tenant| *tenant == owner) => {
            disputed(&format!("tenant {another}"), "user")
        }
        _ => PartitionOccupant::Of(owner),
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
            container: None,
            mounted: MountedDirectories::default(),
            ancestors: vec![ClientId { pid: 9, start_time: 4 }],
            hint: hint.map(Into::into),
            sm_partition: None,
            connections: 2,
            active_thread_percentage: None,
            memory_limits: None,
        }
    }

    /// The directory of a tenant with a name of one letter.
    fn directory(tenant: &str) -> TenantDirectory {
        TenantDirectory::parse(&tenant.repeat(TenantDirectory::LENGTH)).expect("a directory")
    }

    /// Three tenants, of which two have the same user.
    fn candidates(daemon: &DaemonName) -> Vec<Candidate> {
        let candidate = |(tenant, uid)| Candidate {
            tenant: name(tenant),
            daemon: daemon.clone(),
            uid,
            directory: directory(tenant),
        };
        [("a", 1000), ("b", 1001), ("c", 1001)].map(candidate).into()
    }

    #[test]
    fn lease_beats_user_and_user_beats_hint() {
        let daemon = DaemonName::parse("gpu0").expect("name");
        let candidates = candidates(&daemon);
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
    fn single_mounted_directory_beats_user_and_hint() {
        let daemon = DaemonName::parse("gpu0").expect("name");
        let mut candidates = candidates(&daemon);
        let elsewhere = DaemonName::parse("gpu1").expect("name");
        candidates.push(Candidate {
            tenant: name("d"),
            daemon: elsewhere.clone(),
            uid: 1000,
            directory: directory("d"),
        });
        let who = |mounted: &[&str], daemon: &DaemonName, leases: &[Lease]| {
            let mounted = MountedDirectories::Seen(mounted.iter().map(|tenant| directory(tenant)).collect());
            let client = ClientFacts { mounted, ..client(1000, Some("c")) };
            attribute(&Signs::from(&client), daemon, leases, &candidates)
        };
        let by_container = |tenant| (Some(name(tenant)), AttributedBy::Container);
        assert_eq!(who(&["b"], &daemon, &[]), by_container("b"));
        assert_eq!(who(&["b", "d", "e"], &daemon, &[]), by_container("b"), "one of this daemon");
        assert_eq!(who(&["b", "d"], &elsewhere, &[]), by_container("d"));
        for mounted in [&["b", "c"][..], &["d"], &["e"], &[]] {
            let by_user = (Some(name("a")), AttributedBy::Uid);
            assert_eq!(who(mounted, &daemon, &[]), by_user, "{mounted:?}");
        }
        let lease = Lease { holder: ClientId { pid: 9, start_time: 4 }, tenant: name("c") };
        assert_eq!(who(&["b"], &daemon, &[lease]), (Some(name("c")), AttributedBy::Lease));
    }

    #[test]
    fn client_that_hides_its_mounts_is_not_believed() {
        let daemon = DaemonName::parse("gpu0").expect("name");
        let mut candidates = candidates(&daemon);
        let hidden = ClientFacts { mounted: MountedDirectories::Hidden, ..client(1001, Some("c")) };
        let who = |candidates: &[Candidate]| attribute(&Signs::from(&hidden), &daemon, &[], candidates);
        assert_eq!(who(&candidates), (None, AttributedBy::Unattributed));
        candidates.retain(|candidate| candidate.tenant != name("b"));
        assert_eq!(who(&candidates), (Some(name("c")), AttributedBy::Uid), "its user is certain");
    }

    #[test]
    fn occupant_needs_all_evidence_to_agree() {
        let daemon = DaemonName::parse("gpu0").expect("name");
        let candidates = candidates(&daemon);
        let lease = [Lease { holder: ClientId { pid: 9, start_time: 4 }, tenant: name("b") }];
        let who = |uid: u32, hint: Option<&str>, leases: &[Lease]| {
            occupant(&Signs::from(&client(uid, hint)), &daemon, leases, &candidates)
        };
        let disputed = |words: &str| PartitionOccupant::Disputed(words.to_owned());
        for (uid, hint, leases, expected) in [
            (1001, Some("b"), &lease[..], PartitionOccupant::Of(name("b"))),
            // Root, and a user that no tenant has, prove nothing.
            (0, None, &lease, PartitionOccupant::Of(name("b"))),
            (7, Some(""), &lease, PartitionOccupant::Of(name("b"))),
            (
                1001,
                Some("c"),
                &lease,
                disputed("of tenant b by its lease and of tenant c by its environment"),
            ),
            (1000, Some("b"), &lease, disputed("of tenant b by its lease and of tenant a by its user")),
            (1000, None, &[], PartitionOccupant::Of(name("a"))),
            (1000, Some("a"), &[], PartitionOccupant::Of(name("a"))),
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
            (1001, Some("gone"), &[], PartitionOccupant::Unknown),
            (1001, Some("b"), &[], PartitionOccupant::Of(name("b"))),
        ] {
            assert_eq!(who(uid, hint, leases), expected, "{uid} {hint:?} {leases:?}");
        }
        let contained = |mounted: &str, uid: u32, hint: Option<&str>, leases: &[Lease]| {
            let mounted = MountedDirectories::Seen(vec![directory(mounted)]);
            let client = ClientFacts { mounted, ..client(uid, hint) };
            occupant(&Signs::from(&client), &daemon, leases, &candidates)
        };
        assert_eq!(contained("b", 1001, Some("b"), &lease), PartitionOccupant::Of(name("b")));
        assert_eq!(contained("c", 0, None, &[]), PartitionOccupant::Of(name("c")));
        let by_lease = "of tenant b by its lease and of tenant c by its container";
        assert_eq!(contained("c", 1001, None, &lease), disputed(by_lease));
        let by_hint = "of tenant b by its container and of tenant c by its environment";
        assert_eq!(contained("b", 1001, Some("c"), &[]), disputed(by_hint));
        let by_user = "of tenant b by its container and of tenant a by its user";
        assert_eq!(contained("b", 1000, None, &[]), disputed(by_user));
    }
}
