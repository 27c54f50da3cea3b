//! What stands between a daemon and the unit of the manager that started it.

use serde::{Deserialize, Serialize};

/// How the names of the scopes begin that the manager makes.
const SCOPE: &str = "mps-manager-";

/// Where a daemon runs, as its process shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Isolation {
    /// Its session; a terminal's or a service's signals end there.
    pub session: Option<u32>,
    /// Whether that is another session than the manager's.
    pub own_session: bool,
    /// Its cgroup, whose limits and out-of-memory handling hold for it.
    pub cgroup: Option<String>,
    /// Its systemd scope, when it has one of its own: then nothing that is done to the manager's unit reaches it.
    pub scope: Option<String>,
    /// Why it has no scope of its own, and what that means.
    pub reason: Option<String>,
}

/// What is known of a process's place: its session and its cgroup.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLocation<'a> {
    /// Its session.
    pub session: Option<u32>,
    /// Its cgroup.
    pub cgroup: Option<&'a str>,
}

/// The name of the scope for one start of a daemon; `token` is what marks the start.
pub fn scope_name(daemon: &super::DaemonName, token: &str) -> String {
    format!("{SCOPE}{daemon}-{}.scope", token.get(..8).unwrap_or(token))
}

/// Judges where a daemon runs; `why_not` is why it was started without a scope, as far as that is known.
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
