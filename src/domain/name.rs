//! Names of things: `[a-z][a-z0-9_-]{0,62}`, ending in a letter or digit.
//!
//! Kubernetes and Docker write `web-prod`, and MPS version 3 allows its named servers `web_prod` only. So both are accepted, but two
//! names that differ only in `-` and `_` cannot exist at the same time: each needs a distinct name under a newer daemon.

use std::fmt::Write as _;

use super::InvalidValue;

/// Longest name, in bytes.
pub const MAX_LEN: usize = 63;

/// The rule for all names.
pub const RULE: &str = "1 to 63 lower-case letters, digits, hyphens and underscores, beginning with a letter and ending with a letter or \
     digit";

fn check(kind: &str, text: &str) -> Result<(), InvalidValue> {
    let well_formed = text.len() <= MAX_LEN
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-');
    if well_formed {
        return Ok(());
    }
    let shown: String = text.chars().take(80).collect();
    Err(InvalidValue(format!("{shown:?} is not a {kind} name: use {RULE}")))
}

fn natural_key(mut rest: &str) -> String {
    let mut key = String::new();
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[start..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - start);
        let (before, number) = (&rest[..start], &rest[start..start + digits]);
        let _ = write!(key, "{before}{number:0>20}");
        rest = &rest[start + digits..];
    }
    key + rest
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(
            Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash,
            serde::Serialize, serde::Deserialize, utoipa::ToSchema,
        )]
        #[serde(try_from = "String", into = "String")]
        #[schema(value_type = String, pattern = "^[a-z]([a-z0-9_-]{0,61}[a-z0-9])?$", example = "demo")]
        pub struct $name(String);

        impl $name {
            /// Parses a name; refuses any text that breaks the module's rule.
            pub fn parse(text: &str) -> Result<Self, InvalidValue> {
                check($kind, text)?;
                Ok(Self(text.to_owned()))
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Returns the name with underscores for hyphens: two names that agree in it cannot exist at the same time.
            pub fn folded(&self) -> String {
                self.0.replace('-', "_")
            }

            /// Returns a sort key with which gpu2 comes before gpu10: the name with its numbers at full width.
            pub fn natural_key(&self) -> String {
                natural_key(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidValue;

            fn try_from(text: String) -> Result<Self, InvalidValue> {
                check($kind, &text)?;
                Ok(Self(text))
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidValue;

            fn from_str(text: &str) -> Result<Self, InvalidValue> {
                Self::parse(text)
            }
        }
    };
}

name! {
    /// The name of a control daemon that this manager knows.
    DaemonName, "daemon"
}
name! {
    /// The name of a tenant.
    TenantName, "tenant"
}
name! {
    /// The name of a partition layout.
    LayoutName, "layout"
}
name! {
    /// The name of a template of a host file.
    TemplateName, "template"
}
name! {
    /// The name of a partition within its layout.
    PartitionName, "partition"
}
name! {
    /// The name of a token, which says its purpose.
    TokenName, "token"
}
name! {
    /// The name that a user of the command line gives a server.
    ContextName, "context"
}
name! {
    /// The name that an admin gives another host.
    HostName, "host"
}

/// Words that the API's paths have in the place of a layout's name: a layout of that name could be created, but never read or deleted.
const TAKEN: &[&str] = &["import"];

impl LayoutName {
    /// Returns true if a layout can have this name.
    pub fn is_free(&self) -> bool {
        !TAKEN.contains(&self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_documented_alphabet() {
        for good in ["a", "gpu0", "web_prod", "web-prod", "a_1", "a--b", &"x".repeat(63)] {
            assert_eq!(TenantName::parse(good).expect("good").as_str(), good);
        }
    }

    #[test]
    fn refuses_everything_else_and_says_why() {
        for bad in ["", "A", "1a", "_a", "-a", "a-", "a_", "a b", "ä", "a/b", "..", "a.b", &"x".repeat(64)] {
            let error = TenantName::parse(bad).expect_err("bad").to_string();
            assert!(error.contains("tenant name"), "{error}");
        }
    }

    #[test]
    fn numbers_of_daemons_sort_as_numbers() {
        let mut names = ["gpu10", "gpu2", "gpu1-b12", "gpu1-b3", "a", "gpu"]
            .map(|name| DaemonName::parse(name).expect("a name"));
        names.sort_by_cached_key(DaemonName::natural_key);
        assert_eq!(names.map(String::from), ["a", "gpu", "gpu1-b3", "gpu1-b12", "gpu2", "gpu10"]);
    }
}
