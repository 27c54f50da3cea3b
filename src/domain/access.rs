//! Access control: an actor, its grant, and the right that a use case needs.
//!
//! Every decision is made here and nowhere else. An object that a tenant may not see is hidden, not forbidden: a refusal would
//! reveal that it exists.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::token::TokenId;
use super::{InvalidValue, TenantName, TokenName};

/// Role on the whole host; each role includes the rights of the roles before it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything but tokens and the audit.
    Viewer,
    /// Acts on clients, daemons and layouts.
    Operator,
    /// Creates, changes and deletes daemons, tenants and tokens.
    Admin,
}

api_words!(Role: Viewer "viewer", Operator "operator", Admin "admin");

/// Grant of an actor: a role on the host, or one tenant.
///
/// As text it is `viewer`, `operator`, `admin`, or `tenant:NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Grant {
    /// A role on the whole host.
    Host(Role),
    /// One tenant: the actor sees the tenant and everything that belongs to it, and acts on that.
    Tenant(TenantName),
}

impl Grant {
    /// Parses a role's name, or `tenant:` and a tenant's.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        if let Some(role) = Role::ALL.into_iter().find(|role| role.as_str() == text) {
            return Ok(Self::Host(role));
        }
        if let Some(tenant) = text.strip_prefix("tenant:") {
            return TenantName::parse(tenant).map(Self::Tenant);
        }
        let shown: String = text.chars().take(80).collect();
        Err(InvalidValue(format!(
            "{shown:?} is not a role: use viewer, operator, admin, or tenant: and the name of a tenant"
        )))
    }

    /// Returns the tenant that the grant is bound to, if any.
    pub fn tenant(&self) -> Option<&TenantName> {
        match self {
            Self::Host(_) => None,
            Self::Tenant(tenant) => Some(tenant),
        }
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(role) => f.write_str(role.as_str()),
            Self::Tenant(tenant) => write!(f, "tenant:{tenant}"),
        }
    }
}

impl TryFrom<String> for Grant {
    type Error = InvalidValue;

    fn try_from(text: String) -> Result<Self, InvalidValue> {
        Self::parse(&text)
    }
}

impl From<Grant> for String {
    fn from(grant: Grant) -> Self {
        grant.to_string()
    }
}

impl std::str::FromStr for Grant {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        Self::parse(text)
    }
}

/// Right that a use case needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right<'a> {
    /// To see objects of the host.
    View,
    /// To act on clients, daemons and layouts.
    Operate,
    /// To create, change and delete daemons, tenants and tokens.
    Administer,
    /// To see what every authenticated caller may see: a list shows each caller their own items.
    ViewOwn,
    /// To see a tenant and everything that belongs to it.
    ViewTenant(&'a TenantName),
    /// To start and end processes of a tenant.
    UseTenant(&'a TenantName),
}

impl Right<'_> {
    /// Returns the least role on the host that has the right.
    fn role(self) -> Role {
        match self {
            Self::View | Self::ViewOwn | Self::ViewTenant(_) => Role::Viewer,
            Self::Operate | Self::UseTenant(_) => Role::Operator,
            Self::Administer => Role::Admin,
        }
    }
}

/// Reason why an actor lacks a right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The actor may not do this, but may know that the object exists.
    #[error(
        "this needs the role {needed}, and {subject} has {granted}: ask an admin for a token with that role"
    )]
    Forbidden {
        /// Least role that has the right.
        needed: &'static str,
        /// Actor that made the request.
        subject: String,
        /// Its grant.
        granted: Grant,
    },
    /// The tenant is hidden: for this actor it does not exist.
    #[error("there is no tenant {0}")]
    Hidden(TenantName),
}

/// The identity of an actor, by how it authenticated.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Principal {
    /// The manager itself.
    Manager,
    /// The holder of the token of the first start.
    AdminToken,
    /// The holder of a token, or a session that was opened with it.
    Token {
        /// The token.
        id: TokenId,
        /// Name of the token, which says its purpose.
        name: TokenName,
    },
    /// A user of this host, through the unix socket.
    User(u32),
    /// An unauthenticated caller, where that is enough.
    Anybody,
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Manager => write!(f, "manager"),
            Self::AdminToken => write!(f, "admin token"),
            Self::Token { id, name } => write!(f, "token {id} ({name})"),
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Anybody => write!(f, "anybody"),
        }
    }
}

/// Grants of the users of this host, by user ID and by group ID.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UserMap {
    /// Grants by user ID.
    pub users: BTreeMap<u32, Grant>,
    /// Grants by group ID.
    pub groups: BTreeMap<u32, Grant>,
}

impl UserMap {
    /// Returns the grant of a user with these groups, or `None` if it has none.
    ///
    /// A grant to the user precedes grants to groups. Of several groups the greatest role counts, and a role on the host
    /// precedes a tenant. Groups of different tenants grant nothing, since it is not clear which tenant is meant.
    pub fn grant(&self, uid: u32, groups: &[u32]) -> Option<Grant> {
        if let Some(grant) = self.users.get(&uid) {
            return Some(grant.clone());
        }
        let granted: Vec<&Grant> = groups.iter().filter_map(|group| self.groups.get(group)).collect();
        let roles = granted.iter().filter_map(|grant| match grant {
            Grant::Host(role) => Some(*role),
            Grant::Tenant(_) => None,
        });
        if let Some(role) = roles.max() {
            return Some(Grant::Host(role));
        }
        let (first, rest) = granted.split_first()?;
        rest.iter().all(|other| other == first).then(|| (*first).clone())
    }
}

/// The address of a caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From inside the manager.
    Manager,
    /// Through the unix socket.
    Socket,
    /// Over TCP, from this address.
    Address(IpAddr),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Manager => write!(f, "manager"),
            Self::Socket => write!(f, "socket"),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

/// Caller of a use case: its identity, its grant and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    /// Its identity.
    pub subject: Principal,
    /// Its grant.
    pub grant: Grant,
    /// Address that it calls from.
    pub origin: Origin,
}

impl Actor {
    /// The manager itself, which may do everything.
    pub fn manager() -> Self {
        Self { subject: Principal::Manager, grant: Grant::Host(Role::Admin), origin: Origin::Manager }
    }

    /// Checks that the actor has a right; the error is the reason why it has not.
    pub fn may(&self, right: Right<'_>) -> Result<(), Denied> {
        let forbidden = || Denied::Forbidden {
            needed: right.role().as_str(),
            subject: self.subject.to_string(),
            granted: self.grant.clone(),
        };
        match (&self.grant, right) {
            (Grant::Host(role), right) if *role >= right.role() => Ok(()),
            (Grant::Tenant(_), Right::ViewOwn) => Ok(()),
            (Grant::Tenant(own), Right::ViewTenant(tenant) | Right::UseTenant(tenant)) => {
                if own == tenant {
                    Ok(())
                } else {
                    Err(Denied::Hidden(tenant.clone()))
                }
            }
            (Grant::Host(_), _) | (Grant::Tenant(_), Right::View | Right::Operate | Right::Administer) => {
                Err(forbidden())
            }
        }
    }

    /// Returns the only tenant that the actor may see, if it is bound to one.
    pub fn scope(&self) -> Option<&TenantName> {
        self.grant.tenant()
    }

    /// Returns true if the actor may see objects of this tenant; objects of no tenant are visible to roles on the host only.
    pub fn sees(&self, tenant: Option<&TenantName>) -> bool {
        self.scope().is_none_or(|own| tenant == Some(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).expect("name")
    }

    fn actor(grant: &str) -> Actor {
        let grant = Grant::parse(grant).expect("grant");
        Actor { subject: Principal::User(1000), grant, origin: Origin::Socket }
    }

    #[test]
    fn roles_have_exactly_their_rights() {
        let (web, batch) = (tenant("web"), tenant("batch"));
        let rights = [
            (Right::View, [true, true, true, false]),
            (Right::ViewOwn, [true, true, true, true]),
            (Right::ViewTenant(&web), [true, true, true, true]),
            (Right::ViewTenant(&batch), [true, true, true, false]),
            (Right::Operate, [false, true, true, false]),
            (Right::UseTenant(&web), [false, true, true, true]),
            (Right::UseTenant(&batch), [false, true, true, false]),
            (Right::Administer, [false, false, true, false]),
        ];
        for (right, expected) in rights {
            let grants = ["viewer", "operator", "admin", "tenant:web"];
            let may = grants.map(|grant| actor(grant).may(right).is_ok());
            assert_eq!(may, expected, "{right:?}");
        }
        assert!(Actor::manager().may(Right::Administer).is_ok());
    }

    #[test]
    fn other_tenant_is_hidden_and_host_forbidden() {
        let batch = tenant("batch");
        let web = actor("tenant:web");
        assert_eq!(web.may(Right::ViewTenant(&batch)), Err(Denied::Hidden(batch.clone())));
        assert_eq!(web.may(Right::UseTenant(&batch)), Err(Denied::Hidden(batch.clone())));
        assert!(matches!(web.may(Right::View), Err(Denied::Forbidden { .. })));
        let refusal = actor("viewer").may(Right::Operate).expect_err("refused").to_string();
        assert!(refusal.contains("operator") && refusal.contains("viewer"), "{refusal}");
        assert!(web.sees(Some(&tenant("web"))) && !web.sees(Some(&batch)) && !web.sees(None));
        assert!(actor("viewer").sees(Some(&batch)) && actor("viewer").sees(None));
    }

    #[test]
    fn user_grant_precedes_highest_group_grant() {
        let grant = |text| Grant::parse(text).expect("grant");
        let map = UserMap {
            users: BTreeMap::from([(1000, grant("viewer"))]),
            groups: BTreeMap::from([
                (10, grant("viewer")),
                (11, grant("operator")),
                (12, grant("tenant:web")),
                (13, grant("tenant:batch")),
            ]),
        };
        let cases = [
            (1000, &[11][..], Some("viewer")),
            (1001, &[10, 11, 12], Some("operator")),
            (1001, &[12], Some("tenant:web")),
            (1001, &[12, 13], None),
            (1001, &[99], None),
            (1001, &[], None),
        ];
        for (uid, groups, expected) in cases {
            assert_eq!(map.grant(uid, groups), expected.map(grant), "{uid} {groups:?}");
        }
    }

    #[test]
    fn only_canonical_grants_are_parsed() {
        for text in ["viewer", "operator", "admin", "tenant:web_1"] {
            assert_eq!(Grant::parse(text).expect("grant").to_string(), text);
        }
        for text in ["", "Admin", "root", "tenant", "tenant:", "tenant:A", "tenant:a/b", " admin"] {
            assert!(Grant::parse(text).is_err(), "{text:?}");
        }
    }
}
