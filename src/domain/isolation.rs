//! Isolation of a daemon from the systemd unit of the manager that started it.

use serde::{Deserialize, Serialize};

/// Prefix of the names of the manager's scopes.
const SCOPE: &str = "mps-manager-";

/// Session, cgroup and scope in which a daemon runs, as `/proc` shows them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Isolation {
    /// Its session: signals from a terminal or a service do not leave their own session.
    pub session: Option<u32>,
    /// True if that is another session than the manager's.
    pub own_session: bool,
    /// Its cgroup, whose limits and out-of-memory handling apply to it.
    pub cgroup: Option<String>,
    /// Its systemd scope, if it has one of its own: then nothing that is done to the manager's unit affects it.
    pub scope: Option<String>,
    /// Reason why it has no scope of its own, and the consequences.
    pub reason: Option<String>,
}

/// Session and cgroup of a process, as far as they are known.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLocation<'a> {
    /// Its session.
    pub session: Option<u32>,
    /// Its cgroup.
    pub cgroup: Option<&'a str>,
}

/// Returns the name of the scope for one start of a daemon; `token` identifies the start.
pub fn scope_name(daemon: &super::DaemonName, token: &str) -> String {
    format!("{SCOPE}{daemon}-{}.scope", token.get(..8).unwrap_or(token))
}

/// Returns the isolation of a daemon; `why_not` is the reason why it was started without a scope, if that is known.
pub fn isolation(daemon: ProcessLocation, manager: ProcessLocation, why_not: Option<&str>) -> Isolation {
    let scope = daemon.cgroup.and_then(|path| {
        path.split('/')
            .find(|part| part.starts_with(SCOPE) && part.strip_suffix(".scope").is_some())
            .map(str::to_owned)
    });
    let reason = scope.is_none().then(|| {
        let why = why_not.unwrap_or("it was started without a scope; a restart gives it one");
        match daemon.cgroup {
            None => format!("{why}; its cgroup cannot be read"),
            // The root has no limits.
            Some("/") => format!("{why}; it is in the root cgroup"),
            Some(path) if daemon.cgroup == manager.cgroup => format!(
                "{why}; it shares the cgroup {path} with the manager, so that the limits and the out-of-memory handling of \
                 the manager reach it"
            ),
            Some(path) => format!("{why}; it is in the cgroup {path}, whose limits hold for it"),
        }
    });
    Isolation {
        session: daemon.session,
        own_session: daemon.session.is_some() && daemon.session != manager.session,
        cgroup: daemon.cgroup.map(str::to_owned),
        scope,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANAGER: ProcessLocation =
        ProcessLocation { session: Some(10), cgroup: Some("/system.slice/mps-manager.service") };

    fn judged(session: u32, cgroup: &str, why_not: Option<&str>) -> Isolation {
        isolation(ProcessLocation { session: Some(session), cgroup: Some(cgroup) }, MANAGER, why_not)
    }

    #[test]
    fn only_its_own_scope_counts_as_isolation() {
        let name = scope_name(&crate::DaemonName::parse("gpu0").expect("name"), "0123456789abcdef");
        assert_eq!(name, "mps-manager-gpu0-01234567.scope");
        let apart = judged(20, &format!("/system.slice/{name}"), None);
        assert_eq!((apart.scope, apart.reason, apart.own_session), (Some(name), None, true));
        let login = judged(20, "/user.slice/user-0.slice/session-3.scope", None);
        assert_eq!(login.scope, None);
        assert!(login.reason.is_some_and(|reason| reason.contains("session-3.scope")));
    }

    #[test]
    fn missing_scope_is_explained() {
        let shared = judged(10, "/system.slice/mps-manager.service", Some("systemd-run failed: no"));
        let reason = shared.reason.expect("a reason");
        assert!(reason.starts_with("systemd-run failed: no") && reason.contains("out-of-memory"), "{reason}");
        assert!(!shared.own_session);
        assert!(
            judged(20, "/", Some("no systemd")).reason.is_some_and(|reason| reason.contains("root cgroup"))
        );
        let adopted = judged(20, "/elsewhere", None).reason.expect("a reason");
        assert!(adopted.contains("restart gives it one"), "{adopted}");
    }
}
