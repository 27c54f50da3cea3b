//! Rules for handing out a daemon's socket: to which tenants, and when. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::socket::{ControlSocket, Handout};
use crate::domain::daemon::Phase;
use crate::domain::plan::{Desired, DesiredVersion, DirectoryTenant, OtherUsers};
use crate::domain::{DaemonName, TenantDirectory};

/// Tenants of a daemon as of a commit.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct DaemonTenants<'d> {
    pub(super) daemon: &'d DaemonName,
    pub(super) version: DesiredVersion,
    /// True if the daemon takes clients.
    pub(super) admits: bool,
    pub(super) directories: &'d BTreeMap<TenantDirectory, DirectoryTenant>,
    /// Users who may pass through the directories besides their tenants' users.
    pub(super) others: &'d OtherUsers,
    /// Directories of tenants that are drained.
    pub(super) draining: &'d BTreeSet<TenantDirectory>,
}

/// Empty set, for daemons without drained tenants.
pub(super) static NONE_DRAINING: BTreeSet<TenantDirectory> = BTreeSet::new();
/// No other users, for daemons that only their tenants' users may reach.
pub(super) static NO_OTHERS: OtherUsers = OtherUsers { users: Vec::new(), everyone: false };

impl<'d> DaemonTenants<'d> {
    /// Describes the tenants of a daemon that takes no clients until another state is announced.
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

/// Returns true if a daemon may take clients at all, in whatever phase it is.
pub(super) fn admits(desired: &Desired) -> bool {
    desired.running && desired.schedulable && desired.maintenance.is_none()
}

/// Returns the handout for the tenants of a daemon that takes clients, by its phase; `control` is its control process.
///
/// The last committed state decides whether it takes any ([`admits`]). An uncordoned daemon is thus open before the caller
/// has the answer, and not only once its driver has read the state. A daemon whose settings are being changed stays as it
/// was: it serves with the previous settings, and no client is held up. A daemon that was started has no settings before they
/// were read back, and is closed until it is ready for the first time. A daemon is closed whenever its server would not give the devices that
/// environments name (`gives_devices`): one with MLOPart devices also without a server, since MPS would start one that has none.
pub(in super::super) fn handout(
    phase: Phase,
    desired: &Desired,
    control: Option<ControlSocket>,
    gives_devices: bool,
) -> Handout {
    match (phase, control) {
        _ if !desired.running => Handout::Refuse,
        (Phase::Applying, _) if !gives_devices => Handout::Wait,
        (Phase::Ready, Some(control)) => Handout::Open(control),
        (Phase::Applying | Phase::Wedged | Phase::Unknown, _) => Handout::Unchanged,
        // The daemon is back in a moment.
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
        let with = |phase, desired: &Desired| handout(phase, desired, Some(control.clone()), true);
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
        let parts = Desired { mlopart: true, ..desired() };
        assert_eq!(
            handout(Phase::Applying, &parts, None, false),
            Handout::Wait,
            "MPS would start another server"
        );
        assert_eq!(handout(Phase::Applying, &parts, None, true), Handout::Unchanged);
        assert_eq!(
            handout(Phase::Applying, &running, None, false),
            Handout::Wait,
            "its server still has them"
        );
        let cordoned = Desired { schedulable: false, ..desired() };
        let maintained = Desired { maintenance: Some(MaintenanceState::Draining), ..desired() };
        for desired in [&stopped, &cordoned, &maintained] {
            assert!(!admits(desired) && admits(&running));
        }
    }
}
