//! Checks on the management mode of a daemon.

use super::InvalidValue;
use super::daemon::{DaemonSpec, Management};

/// Present state of a daemon whose spec is to be replaced.
#[derive(Debug, Clone, Copy)]
pub struct CurrentDaemon<'s> {
    /// Its present spec.
    pub spec: &'s DaemonSpec,
    /// True if it has tenants.
    pub has_tenants: bool,
    /// True if its control process runs and matches its spec.
    pub runs_as_specified: bool,
}

/// Refuses a spec that would release or observe a daemon if that is impossible.
pub fn check_management(current: Option<CurrentDaemon<'_>>, spec: &DaemonSpec) -> Result<(), InvalidValue> {
    if spec.management == Management::Managed {
        return Ok(());
    }
    let refused = |reason: &str| Err(InvalidValue(reason.to_owned()));
    let Some(current) = current else {
        return refused(
            "there is no daemon of that name to observe: adopt one that runs (`mps-manager daemon adopt NAME --process PROCESS --observe`)",
        );
    };
    let started_with = |spec: &DaemonSpec| (spec.gpus.clone(), spec.mode, spec.multi_user);
    if started_with(spec) != started_with(current.spec) {
        return refused(
            "a daemon that is only observed is never changed: leave its gpus, mode and multi_user as they are",
        );
    }
    if current.spec.management == Management::Observed {
        return Ok(());
    }
    if current.has_tenants {
        return refused(
            "it serves tenants, whose limits nobody would keep if it were only observed: delete or move them first",
        );
    }
    if !current.runs_as_specified {
        return refused(
            "it does not run as its spec says, so there is nothing to observe: start or restart it first, or delete it",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GpuUuid;
    use crate::daemon::Mode;

    #[test]
    fn daemon_with_tenants_cannot_become_observed() {
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("uuid");
        let managed = DaemonSpec::of(vec![gpu]);
        let observed = DaemonSpec { management: Management::Observed, ..managed.clone() };
        let standing = CurrentDaemon { spec: &managed, has_tenants: false, runs_as_specified: true };
        assert!(check_management(None, &managed).is_ok());
        assert!(check_management(Some(standing), &observed).is_ok());
        let changed = DaemonSpec { multi_user: true, ..observed.clone() };
        let partitioned = DaemonSpec { mode: Mode::Static, ..observed.clone() };
        for (current, spec, message) in [
            (None, &observed, "adopt one"),
            (Some(CurrentDaemon { has_tenants: true, ..standing }), &observed, "serves tenants"),
            (Some(CurrentDaemon { runs_as_specified: false, ..standing }), &observed, "nothing to observe"),
            (Some(standing), &changed, "never changed"),
            (Some(standing), &partitioned, "never changed"),
            (Some(CurrentDaemon { spec: &observed, ..standing }), &changed, "never changed"),
        ] {
            let error = check_management(current, spec).expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
        let unchanged = CurrentDaemon { spec: &observed, has_tenants: true, runs_as_specified: false };
        assert!(check_management(Some(unchanged), &observed).is_ok(), "it is so already");
    }
}
