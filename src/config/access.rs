//! `[access]`: what the users of this host may do, and how long a session in a browser lasts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::domain::access::{Grant, UserMap};
use crate::domain::session::SessionLimits;
use crate::host::user;

/// Access of the users and groups of this host, as the file grants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Grants of users through the unix socket, by name or number: a role, or `tenant:` and a tenant's name.
    pub users: BTreeMap<String, Grant>,
    /// Grants of the members of groups, by name or number, like those of users.
    pub groups: BTreeMap<String, Grant>,
    /// Seconds after which an unused session ends.
    pub session_idle_s: u32,
    /// Seconds after which a session ends in any case.
    pub session_max_s: u32,
    /// Names under which the API is reached on loopback, beside addresses and `localhost`.
    pub hosts: Vec<String>,
    /// True if anyone who reaches the API may read `/metrics`, and nothing else, without a token.
    pub open_metrics: bool,
}

impl Default for AccessConfig {
    fn default() -> Self {
        Self {
            users: BTreeMap::new(),
            groups: BTreeMap::new(),
            session_idle_s: 30 * 60,
            session_max_s: 12 * 60 * 60,
            hosts: Vec::new(),
            open_metrics: false,
        }
    }
}

impl AccessConfig {
    /// Returns the times after which sessions end.
    pub fn session_limits(&self) -> SessionLimits {
        let ms = |seconds: u32| i64::from(seconds) * 1000;
        SessionLimits { idle_ms: ms(self.session_idle_s), max_ms: ms(self.session_max_s) }
    }

    /// Returns the grants by number. The error has the key, and the reason: a name that this host does not know, or two keys of one number.
    pub(super) fn resolved(&self) -> Result<UserMap, (String, String)> {
        let by_number =
            |key: &str, granted: &BTreeMap<String, Grant>, find: fn(&str) -> Result<u32, String>| {
                let number = |(name, grant): (&String, &Grant)| {
                    let resolved = name.parse().or_else(|_| find(name));
                    resolved
                        .map(|number| (number, grant.clone()))
                        .map_err(|why| (format!("access.{key}.{name}"), why))
                };
                let numbers: Vec<(u32, Grant)> = granted.iter().map(number).collect::<Result<_, _>>()?;
                let mut map = BTreeMap::new();
                for (number, grant) in numbers {
                    if map.insert(number, grant).is_some() {
                        let why = format!("two keys mean the same number, {number}: leave one of them");
                        return Err((format!("access.{key}"), why));
                    }
                }
                Ok(map)
            };
        Ok(UserMap {
            users: by_number("users", &self.users, user::number_of_user)?,
            groups: by_number("groups", &self.groups, user::number_of_group)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<AccessConfig, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn unknown_users_and_groups_are_refused_by_name() {
        let access = read(
            "users = { root = \"viewer\", \"1000\" = \"tenant:web\" }\ngroups = { \"7\" = \"operator\" }",
        );
        let map = access.expect("read").resolved().expect("known");
        assert_eq!(map.users.keys().copied().collect::<Vec<_>>(), [0, 1000]);
        assert_eq!(map.grant(1, &[7]), Some(Grant::parse("operator").expect("grant")));
        for (text, key) in [
            ("users = { no_such_user_here = \"viewer\" }", "access.users.no_such_user_here"),
            ("groups = { no_such_group_here = \"viewer\" }", "access.groups.no_such_group_here"),
            ("users = { root = \"viewer\", \"0\" = \"admin\" }", "access.users"),
        ] {
            let (named, why) = read(text).expect("read").resolved().expect_err("refused");
            assert_eq!(named, key, "{why}");
        }
    }

    #[test]
    fn unknown_role_is_refused_with_known_roles() {
        let error = read("users = { \"1000\" = \"root\" }").expect_err("no role");
        assert!(
            error.contains("\"root\" is not a role") && error.contains("viewer, operator, admin"),
            "{error}"
        );
        assert!(read("user = {}").is_err());
    }
}
