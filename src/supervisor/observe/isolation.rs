//! The scope in which a daemon is started, and the place where it is found to run.

use crate::domain::DaemonName;
use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::isolation::{Isolation, ProcessLocation, isolation, scope_name};
use crate::host::{self, systemd};
use crate::mps::process::Launcher;

/// Returns the command that starts a daemon in a scope of its own; `None` where systemd is not available for it.
pub(crate) fn launcher(scopes: &systemd::Scopes, daemon: &DaemonName, token: &str) -> Option<Launcher> {
    let description = format!("NVIDIA MPS control daemon {daemon}");
    let (program, arguments) = scopes.launcher(&scope_name(daemon, token), &description)?;
    Some(Launcher { program, arguments })
}

/// Determines where a control process runs. `refused` is the reason why it was started without the scope it should have had.
pub(crate) fn observe(scopes: &systemd::Scopes, pid: u32, refused: Option<&str>) -> Isolation {
    let cgroups = (systemd::cgroup(pid), systemd::cgroup(std::process::id()));
    let daemon = ProcessLocation { session: host::process::session(pid), cgroup: cgroups.0.as_deref() };
    let manager =
        ProcessLocation { session: host::process::session(std::process::id()), cgroup: cgroups.1.as_deref() };
    let why_not = match scopes {
        systemd::Scopes::Unavailable(reason) => Some(reason.as_str()),
        systemd::Scopes::Available { .. } => refused,
    };
    isolation(daemon, manager, why_not)
}

/// Returns a condition if a daemon lacks the scope that it should have. If no scopes are available, the host reports that.
pub(crate) fn condition(scopes: &systemd::Scopes, isolation: &Isolation) -> Option<Condition> {
    let reason = isolation.reason.clone()?;
    matches!(scopes, systemd::Scopes::Available { .. })
        .then(|| ConditionType::NotIsolated.problem(ConditionReason::NoScope, reason))
}
