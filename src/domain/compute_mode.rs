//! The compute mode of a GPU: set while a daemon's spec asks for one, and restored to the previous mode afterwards.
//!
//! Each step is derived from the recorded state and the present mode, so that a manager that died between any two steps
//! continues where it was. The previous mode is recorded before anything is set.

use serde::{Deserialize, Serialize};

use super::gpu::ComputeMode;
use super::{DaemonName, GpuUuid, InvalidValue};

/// A compute mode that the manager sets, and the mode before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedComputeMode {
    /// The daemon that wants it.
    pub daemon: DaemonName,
    /// Mode to restore.
    pub previous: ComputeMode,
    /// Mode in the daemon's spec; it may not have been set yet.
    pub desired: ComputeMode,
    /// The boot in which this record was written.
    pub boot_id: String,
}

/// The next step for one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModeStep {
    /// Nothing remains to be done.
    Done,
    /// Record this before anything is set.
    Remember(OwnedComputeMode),
    /// Set this mode.
    Set(ComputeMode),
    /// Delete the record.
    Forget,
}

/// Returns the next step for a GPU whose mode reads `now`; `desired` is the mode in the daemon's spec, if it has one.
pub fn next(
    daemon: &DaemonName,
    desired: Option<ComputeMode>,
    held: Option<&OwnedComputeMode>,
    now: ComputeMode,
    boot_id: &str,
) -> ModeStep {
    let remember = |previous, desired| {
        ModeStep::Remember(OwnedComputeMode {
            daemon: daemon.clone(),
            previous,
            desired,
            boot_id: boot_id.to_owned(),
        })
    };
    match (desired, held) {
        // Any other mode than the one that the manager set comes from another program or from a boot: it is left alone.
        (None, Some(held)) if now == held.desired && now != held.previous => ModeStep::Set(held.previous),
        (None, Some(_)) => ModeStep::Forget,
        (Some(desired), None) => remember(now, desired),
        // The spec asks for another mode now: the first one is undone before, so that a crash in between does not lose the previous mode.
        (Some(desired), Some(held)) if held.desired != desired => {
            next(daemon, None, Some(held), now, boot_id)
        }
        (Some(desired), Some(held)) if held.boot_id != boot_id => {
            // A boot resets the mode; the mode that it has set is then the one to restore.
            remember(if now == desired { held.previous } else { now }, desired)
        }
        (Some(desired), Some(held)) if held.daemon != *daemon => remember(held.previous, desired),
        (Some(desired), Some(_)) if now != desired => ModeStep::Set(desired),
        (Some(_), Some(_)) | (None, None) => ModeStep::Done,
    }
}

/// Refuses a mode in which no daemon could work.
pub fn check(desired: Option<ComputeMode>) -> Result<(), InvalidValue> {
    if desired == Some(ComputeMode::Prohibited) {
        return Err(InvalidValue(
            "prohibited lets no process use the GPU, the MPS server neither: give exclusive_process, which admits the \
             server alone, or default, or leave compute_mode out to leave the GPU's mode as it is"
                .into(),
        ));
    }
    Ok(())
}

/// The compute mode of a daemon's GPU that the manager sets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ComputeModeStatus {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Mode that was last read; `null` while the driver is not queried or the GPU is missing.
    pub mode: Option<ComputeMode>,
    /// Mode before the manager set it, which is restored when the daemon is stopped for good or its spec no longer asks for a mode.
    pub previous: ComputeMode,
}

#[cfg(test)]
mod tests {
    use super::ComputeMode::{Default, ExclusiveProcess, Prohibited};
    use super::*;

    fn name(name: &str) -> DaemonName {
        DaemonName::parse(name).expect("a name")
    }

    /// A GPU whose driver and whose memory outlive any manager.
    #[derive(Clone)]
    struct Host {
        mode: ComputeMode,
        held: Option<OwnedComputeMode>,
        boot: &'static str,
    }

    impl Host {
        fn new(mode: ComputeMode) -> Self {
            Self { mode, held: None, boot: "one" }
        }

        /// Takes at most so many steps; true when all is done.
        fn apply(&mut self, desired: Option<ComputeMode>, steps: usize) -> bool {
            for _ in 0..steps {
                match next(&name("gpu0"), desired, self.held.as_ref(), self.mode, self.boot) {
                    ModeStep::Done => return true,
                    ModeStep::Remember(held) => self.held = Some(held),
                    ModeStep::Set(mode) => self.mode = mode,
                    ModeStep::Forget => self.held = None,
                }
            }
            false
        }
    }

    #[test]
    fn previous_mode_is_restored_after_any_crash() {
        for before in [Default, ExclusiveProcess, Prohibited] {
            for first in [Default, ExclusiveProcess] {
                for second in [Some(Default), Some(ExclusiveProcess), None] {
                    for (died, later) in (0..8).flat_map(|died| (0..8).map(move |later| (died, later))) {
                        let mut host = Host::new(before);
                        host.apply(Some(first), died);
                        host.apply(second, later);
                        assert!(host.apply(None, 8), "it comes to an end");
                        assert_eq!(
                            (host.mode, &host.held),
                            (before, &None),
                            "{first:?} {second:?} {died} {later}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn previous_mode_is_remembered_before_change() {
        let mut host = Host::new(Default);
        assert!(!host.apply(Some(ExclusiveProcess), 1));
        assert_eq!((host.mode, host.held.as_ref().map(|held| held.previous)), (Default, Some(Default)));
        assert!(host.apply(Some(ExclusiveProcess), 2));
        assert_eq!(host.mode, ExclusiveProcess);
    }

    #[test]
    fn external_mode_change_is_repaired_never_undone() {
        let mut host = Host::new(Default);
        host.apply(Some(ExclusiveProcess), 8);
        host.mode = Prohibited;
        assert!(host.apply(Some(ExclusiveProcess), 8));
        assert_eq!(host.mode, ExclusiveProcess);
        host.mode = Prohibited;
        assert!(host.apply(None, 8));
        assert_eq!((host.mode, host.held), (Prohibited, None), "theirs");
    }

    #[test]
    fn reboot_restores_own_mode_unless_already_reset() {
        let mut host = Host::new(Prohibited);
        host.apply(Some(ExclusiveProcess), 8);
        let mut kept = Host { boot: "two", ..host.clone() };
        assert!(kept.clone().apply(Some(ExclusiveProcess), 8));
        assert!(kept.apply(None, 8));
        assert_eq!(kept.mode, Prohibited, "the mode outlived the boot");

        let mut reset = Host { boot: "two", mode: Default, ..host.clone() };
        assert!(reset.apply(None, 8));
        assert_eq!((reset.mode, &reset.held), (Default, &None), "the boot has put its own");

        let mut renewed = Host { boot: "two", mode: Default, ..host };
        assert!(renewed.apply(Some(ExclusiveProcess), 8));
        assert_eq!(renewed.mode, ExclusiveProcess);
        let held = renewed.held.clone().expect("held");
        assert_eq!((held.previous, held.boot_id.as_str()), (Default, "two"));
        assert!(renewed.apply(None, 8));
        assert_eq!(renewed.mode, Default, "what this boot had set");
    }

    #[test]
    fn moved_gpu_keeps_its_original_mode() {
        let mut host = Host::new(Default);
        host.apply(Some(ExclusiveProcess), 8);
        let step = next(&name("other"), Some(ExclusiveProcess), host.held.as_ref(), host.mode, host.boot);
        let ModeStep::Remember(held) = step else { panic!("{step:?}") };
        assert_eq!((held.daemon, held.previous), (name("other"), Default));
    }

    #[test]
    fn prohibited_mode_is_refused() {
        assert!(check(Some(Prohibited)).expect_err("refused").to_string().contains("exclusive_process"));
        assert!(check(Some(ExclusiveProcess)).is_ok() && check(None).is_ok());
    }
}
