//! The target of an action as the audit log records it: the route of the request, with those parameters of its path that are well-formed.
//!
//! A caller may have put a secret into a path, in any spelling. So a part of a path is shown only if it is the kind of name or ID that
//! the route expects in its place, and never because it looks harmless.

use percent_encoding::percent_decode_str;
use uuid::Uuid;

use crate::GpuUuid;
use crate::client::ClientId;
use crate::token::{TokenId, without_secrets};
use crate::{DaemonName, LayoutName, TenantName};

/// The target of an action.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A daemon.
    Daemon(DaemonName),
    /// A tenant.
    Tenant(TenantName),
    /// A layout.
    Layout(LayoutName),
    /// The lease of a process for a tenant.
    Lease(TenantName, ClientId),
    /// A token.
    Token(TokenId),
    /// An object without a stored spec: its path.
    Other(String),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Daemon(name) => write!(f, "daemons/{name}"),
            Self::Tenant(name) => write!(f, "tenants/{name}"),
            Self::Layout(name) => write!(f, "layouts/{name}"),
            Self::Lease(tenant, holder) => write!(f, "tenants/{tenant}/leases/{holder}"),
            Self::Token(id) => write!(f, "tokens/{id}"),
            Self::Other(path) => f.write_str(path),
        }
    }
}

impl Target {
    /// Returns the target of a request, given its route and its path, as `/api/v1/tenants/{name}/leases` and `/api/v1/tenants/web/leases`.
    pub fn of_request(route: &str, path: &str) -> Self {
        let shown = shown_path(route, path);
        let below = shown.strip_prefix("/api/v1/").unwrap_or(&shown).trim_matches('/');
        let mut parts = below.split('/');
        let (kind, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let is_lease = parts.next() == Some("leases");
        let lease = parts.next().filter(|_| is_lease).and_then(|id| ClientId::parse(id).ok());
        let target = match kind {
            "daemons" => DaemonName::parse(name).map(Self::Daemon).ok(),
            "tenants" => TenantName::parse(name).ok().map(|name| match lease {
                Some(holder) => Self::Lease(name, holder),
                None => Self::Tenant(name),
            }),
            "layouts" => LayoutName::parse(name).ok().filter(LayoutName::is_free).map(Self::Layout),
            "tokens" => TokenId::parse(name).map(Self::Token).ok(),
            _ => None,
        };
        target.unwrap_or_else(|| Self::Other(below.to_owned()))
    }

    /// Returns the target with possible secrets removed, for an attempt that was refused: no object of that name need exist, so a
    /// well-formed name may be the text of a secret.
    #[must_use]
    pub fn without_secrets(self) -> Self {
        match without_secrets(&self.to_string()) {
            std::borrow::Cow::Borrowed(_) => self,
            std::borrow::Cow::Owned(shown) => Self::Other(shown),
        }
    }
}

/// Returns a path with each well-formed parameter as it was given, and each other one as the route has it, as in `tokens/{id}`.
pub fn shown_path(route: &str, path: &str) -> String {
    let mut shown = String::with_capacity(path.len().min(route.len() + 128));
    let (mut before, mut given) = ("", path.split('/'));
    for (number, part) in route.split('/').enumerate() {
        if number > 0 {
            shown.push('/');
        }
        let given = given.next().unwrap_or_default();
        match percent_decode_str(given).decode_utf8() {
            Ok(text) if part.starts_with('{') && is_of_kind(before, &text) => shown.push_str(&text),
            _ => shown.push_str(part),
        }
        before = part;
    }
    shown
}

/// Returns true if a text can follow this part of a route.
fn is_of_kind(before: &str, text: &str) -> bool {
    match before {
        // The names of partitions are those of tenants, letter by letter.
        "daemons" | "layouts" | "tenants" | "partitions" => TenantName::parse(text).is_ok(),
        "tokens" => TokenId::parse(text).is_ok(),
        "clients" | "foreign-daemons" | "leases" => ClientId::parse(text).is_ok(),
        "operations" | "replays" => Uuid::parse_str(text).is_ok(),
        "events" | "incidents" | "versions" => {
            text.len() <= 20 && text.bytes().all(|byte| byte.is_ascii_digit())
        }
        "gpus" => GpuUuid::parse(text).is_ok() || is_short_name(text),
        _ => false,
    }
}

/// Returns true if a text can be an index, a PCI address or the beginning of a UUID, and is too short to reveal a secret.
fn is_short_name(text: &str) -> bool {
    let digits = text.strip_prefix("GPU-").unwrap_or(text);
    digits.len() <= 16
        && digits.bytes().all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b'-' | b':' | b'.'))
}

#[cfg(test)]
mod tests {
    use percent_encoding::NON_ALPHANUMERIC;

    use super::*;
    use crate::token::Secret;

    fn shown(route: &str, part: &str) -> String {
        let route = format!("/api/v1/{route}");
        Target::of_request(&route, &route.replace("{id}", part).replace("{name}", part)).to_string()
    }

    #[test]
    fn only_well_formed_path_parts_are_audited() {
        let operation = "01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c";
        for (route, part, expected) in [
            ("tenants/{name}", "web", "tenants/web"),
            ("tenants/{name}/leases", "web", "tenants/web"),
            ("tenants/web/leases/{id}", "12-34", "tenants/web/leases/12-34"),
            ("tenants/web/leases/{id}", "12", "tenants/web"),
            ("tenants/{name}", "%77eb", "tenants/web"),
            ("tenants/{name}", "We b", "tenants/{name}"),
            ("tenants/{name}", "%ff", "tenants/{name}"),
            ("tokens/{id}", "0123456789abcdef", "tokens/0123456789abcdef"),
            ("tokens/{id}", "0123456789abcde", "tokens/{id}"),
            ("clients/{id}/terminate", "12-34", "clients/12-34/terminate"),
            ("clients/{id}/terminate", "12", "clients/{id}/terminate"),
            ("operations/{id}/cancel", operation, "operations/01a1fcfe-0dcb-76bd-b4c1-4212a7eee39c/cancel"),
            ("operations/{id}/cancel", "none", "operations/{id}/cancel"),
            ("gpus/{id}/replace", "0", "gpus/0/replace"),
            ("gpus/{id}/replace", "00000000:06:00.0", "gpus/00000000:06:00.0/replace"),
            ("gpus/{id}/replace", "GPU-5144", "gpus/GPU-5144/replace"),
            ("gpus/{id}/replace", "GPU-none", "gpus/{id}/replace"),
            ("layouts/import", "", "layouts/import"),
            ("sessions", "", "sessions"),
        ] {
            assert_eq!(shown(route, part), expected, "{route} {part}");
        }
    }

    #[test]
    fn secrets_never_reach_the_audit_log() {
        // A secret that is also a valid name.
        let bare = Secret::new([0xab; 32]);
        let token = bare.token(&TokenId::new([0xcd; 8]));
        let digits = bare.reveal();
        let encoded =
            percent_encoding::percent_encode(token.reveal().as_bytes(), NON_ALPHANUMERIC).to_string();
        let parts =
            [digits, token.reveal(), &token.reveal()[..60], &token.reveal().replace('_', "%5f"), &encoded];
        for route in [
            "daemons/{name}",
            "tenants/{name}",
            "layouts/{name}/apply",
            "tokens/{id}",
            "operations/{id}/cancel",
            "clients/{id}/terminate",
            "gpus/{id}/replace",
        ] {
            let path = format!("/api/v1/{route}");
            for part in parts {
                let target = Target::of_request(&path, &path.replace("{id}", part).replace("{name}", part));
                let target = target.without_secrets().to_string();
                assert!(!target.contains(&digits[..16]), "{target}");
                assert!(target.starts_with(&route[..5]), "{target}");
            }
        }
    }
}
