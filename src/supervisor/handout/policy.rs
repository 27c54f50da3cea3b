//! Whose a daemon's socket is, and when it is handed out. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::socket::{ControlSocket, Handout};
use crate::domain::daemon::Phase;
use crate::domain::plan::{Desired, DesiredVersion, DirectoryTenant, OtherUsers};
use crate::domain::{DaemonName, TenantDirectory};

/// The tenants of a daemon as of a commit.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct DaemonTenants<'d> {
    pub(super) daemon: &'d DaemonName,
    pub(super) version: DesiredVersion,
    /// Whether the daemon takes clients.
    pub(super) admits: bool,
    pub(super) directories: &'d BTreeMap<TenantDirectory, DirectoryTenant>,
    /// Who may pass through them beside their tenants' users.
    pub(super) others: &'d OtherUsers,
    /// Those of them that are drained.
    pub(super) draining: &'d BTreeSet<TenantDirectory>,
}

/// Where no tenant is drained.
pub(super) static NONE_DRAINING: BTreeSet<TenantDirectory> = BTreeSet::new();
/// Where nobody else may pass.
pub(super) static NO_OTHERS: OtherUsers = OtherUsers { users: Vec::new(), everyone: false };

impl<'d> DaemonTenants<'d> {
    /// Those of a daemon that takes no clients until anything else is announced of it.
    pub(in super::super) fn refused(
        daemon: &'d DaemonName,
        directories: &'d BTreeMap<TenantDirectory, DirectoryTenant>,
    ) -> Self {
        let version = DesiredVersion::default();
        Self { daemon, version, admits: false, directories, others: &NO_OTHERS, draining: &NONE_DRAINING }
    }
}

impl<'d> From<&'d Desired> for DaemonTenants<'d> {
    fn from(desired: &'d Desired) -> Self {
        Self {
            daemon: &desired.name,
            version: desired.version(),
            admits: admits(desired),
            directories: &desired.directories,
            others: &desired.others,
            draining: &desired.draining,
        }
    }
}

/// Whether a daemon takes clients, in any phase.
pub(super) fn admits(desired: &Desired) -> bool {
    desired.running && desired.schedulable && desired.maintenance.is_none()
}

/// What the processes of a daemon's tenants get while it takes clients, by its phase; `control` is its control process.
///
/// Whether it takes any is decided by what was committed last ([`admits`]): so a daemon that is uncordoned is open before the caller
/// has the answer, and not only once its driver has read it. A daemon whose settings are being changed stays as it was: it serves by those it had, and no client is held up. One that was
/// started holds nothing before it was read back, and is closed until it is ready for the first time.
pub(in super::super) fn handout(phase: Phase, desired: &Desired, control: Option<ControlSocket>) -> Handout {
    match (phase, control) {
        _ if !desired.running => Handout::Refuse,
        (Phase::Ready, Some(control)) => Handout::Open(control),
        (Phase::Applying | Phase::Wedged | Phase::Unknown, _) => Handout::Unchanged,
        // It is back in a moment.
        (Phase::Starting | Phase::BackOff | Phase::Stopping, _) => Handout::Wait,
        _ => Handout::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::maintenance::MaintenanceState;
    use crate::host::Identity;
    use crate::supervisor::reconcile::daemon::tests::desired;

    #[test]
    fn only_a_ready_daemon_is_opened() {
        let control = ControlSocket {
            identity: Identity { pid: 7, start_time: 1 },
            pipe: "/run/pipe".into(),
            foreign: false,
        };
        let with = |phase, desired: &Desired| handout(phase, desired, Some(control.clone()));
        let running = desired();
        let stopped = Desired { running: false, ..desired() };
        assert_eq!(with(Phase::Ready, &running), Handout::Open(control.clone()));
        for phase in [Phase::Applying, Phase::Wedged, Phase::Unknown] {
            assert_eq!(with(phase, &running), Handout::Unchanged, "{phase:?}");
        }
        for phase in [Phase::Starting, Phase::BackOff, Phase::Stopping] {
            assert_eq!(with(phase, &running), Handout::Wait, "{phase:?}");
        }
        for phase in [Phase::Stopped, Phase::Blocked, Phase::CrashLoop, Phase::Observed, Phase::Absent] {
            assert_eq!(with(phase, &running), Handout::Refuse, "{phase:?}");
        }
        for phase in [Phase::Ready, Phase::Applying, Phase::Stopping, Phase::Unknown] {
            assert_eq!(with(phase, &stopped), Handout::Refuse, "{phase:?}");
        }
        let cordoned = Desired { schedulable: false, ..desired() };
        let maintained = Desired { maintenance: Some(MaintenanceState::Draining), ..desired() };
        for desired in [&stopped, &cordoned, &maintained] {
            assert!(!admits(desired) && admits(&running));
        }
    }
}
