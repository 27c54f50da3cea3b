//! Conditions: statements about an object, each with its reason, as the API shows them.

use serde::{Deserialize, Serialize};

/// Defines a closed set of words, each written as the name of its variant.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$word_doc:meta])* $word:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$word_doc])* $word,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$word),+];

            /// Returns the word as the API writes it.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)+
                }
            }

            /// Returns the word spelled out for people: `GpuMissing` is "GPU missing".
            pub fn words(self) -> String {
                in_words(self.as_str())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// Usual spellings of some of these words.
const USUAL: [(&str, &str); 8] = [
    ("Awaiting read back", "Applying"),
    ("Gpu", "GPU"),
    ("Mig ", "MIG "),
    (" gpu", " GPU"),
    (" mps", " MPS"),
    (" sms", " SMs"),
    (" id ", " ID "),
    (" ids", " IDs"),
];

/// Spells a word of the API out for people: `GpuMissing` becomes "GPU missing".
fn in_words(word: &str) -> String {
    let (first, rest) = word.split_at(1);
    let spaced = rest.chars().flat_map(|letter| {
        let space = letter.is_ascii_uppercase().then_some(' ');
        space.into_iter().chain([letter.to_ascii_lowercase()])
    });
    let spaced = first.chars().chain(spaced).collect::<String>();
    USUAL.iter().fold(spaced, |words, (word, usual)| words.replace(word, usual))
}

words! {
    /// Statement of a condition.
    ConditionType {
        /// Users who belong to no tenant can reach the daemon's socket.
        AnyUserMayConnect,
        /// Any user who reaches the daemon's socket may change its default limits.
        AnyUserMaySetDefaults,
        /// The audit log ends before a row that is known to have been written.
        AuditTruncated,
        /// Processes use its GPU outside MPS.
        Bypass,
        /// The socket is in the tenant's directory. True is good.
        ClientSocket,
        /// More clients of the tenant are connected than it may have.
        ClientsAboveMaximum,
        /// The compute mode of its GPUs is as its spec says. True is good.
        ComputeMode,
        /// The control daemon hung and was replaced.
        DaemonReplaced,
        /// SQLite found the database damaged.
        DatabaseDamaged,
        /// The database's file, or a part of it, is no longer at its place.
        DatabaseLost,
        /// The files for container engines and systemd could not be written.
        EngineFilesNotWritten,
        /// One of its processes is near its limit of open files.
        FileDescriptorsLow,
        /// The daemon died, did not start or could not be read; the reason says why.
        LastFailure,
        /// Its layout is applied. True is good.
        Layout,
        /// The tenant's memory limit leaves no room for a CUDA context.
        LimitBelowContext,
        /// The host file of the start waits for MIG instances, or was refused once they were here.
        HostFileNotApplied,
        /// Only the environment holds the tenant's memory limit, because of a neighbour.
        LimitWeakened,
        /// A client can escape its memory limits.
        LimitsEscapable,
        /// The file system of its logs has no room.
        LogDiskFull,
        /// Its pipe directory changes at the next restart.
        MovesAtRestart,
        /// It does not run in a systemd scope of its own.
        NotIsolated,
        /// Partitions are not handed out, since their IDs differ.
        PartitionsDegraded,
        /// Another program changed partitions.
        PartitionsDrifted,
        /// It can be used. True is good.
        Ready,
        /// It is replaced as soon as no client is connected.
        RestartRequired,
        /// It admits new clients. True is good.
        Schedulable,
        /// Its server had a fatal GPU error.
        ServerFault,
        /// Its server hung and was replaced.
        ServerReplaced,
        /// Another program changed settings.
        SettingsDrifted,
        /// The tenant's share of the SMs is below the minimum that MPS gives every client.
        ShareBelowMinimum,
        /// A control daemon outside this manager serves one of its GPUs.
        SharesGpu,
        /// The manager's unix socket is not at its place.
        SocketLost,
        /// The state directory's file system has no room.
        StateDiskFull,
        /// Clients wait until the clients of another user have ended.
        UsersWaiting,
        /// The NVIDIA driver or its MPS programs are not here yet.
        WaitingForDriver,
        /// The last write to the database failed.
        WritesFail,
    }
}

words! {
    /// Reason why a condition is true or false.
    ConditionReason {
        /// All settings are confirmed: each was read back as desired.
        AppliedAndReadBack,
        /// The clients that a fatal GPU error affects have not ended yet.
        AwaitingClientExit,
        /// Settings that were written have not been read back yet.
        AwaitingReadBack,
        /// It died or did not start, and is started again after a pause.
        BackOff,
        /// It is blocked by something that the manager does not change by itself.
        Blocked,
        /// The daemon cannot hold the tenant's spec.
        CannotBeHeld,
        /// Another program changed it.
        ChangedByOthers,
        /// The compute mode of a GPU differs from the spec.
        ComputeModeDiffers,
        /// The compute mode of a GPU could not be set.
        ComputeModeNotSet,
        /// The limit leaves no room for the CUDA context, which is paid from it.
        ContextPaidFromLimit,
        /// `nvidia-cuda-mps-control` failed or printed nothing.
        ControlProgramFailed,
        /// The daemon is cordoned.
        Cordoned,
        /// It died or did not start five times within a minute.
        CrashLoop,
        /// The tenant's daemon is not ready.
        DaemonNotReady,
        /// The daemon did not answer while its layout was applied.
        DaemonUnreachable,
        /// It died while another program had a session open.
        DiedInSession,
        /// It died or did not start, for no known reason.
        DiedOrDidNotStart,
        /// The tenant's directory could not be made.
        DirectoryNotMade,
        /// The tenant's user cannot reach the daemon's pipe directory.
        DirectoryUnreachable,
        /// A directory of the daemon is missing, unsafe or on a full disk.
        DirectoryUnusable,
        /// The disk has no room.
        DiskFull,
        /// Facts about a process contradict each other, so nothing is changed.
        DoubtfulProcess,
        /// The NVIDIA driver, or one of its programs, is missing.
        DriverMissing,
        /// The tenant has expired.
        Expired,
        /// MPS gives no client fewer SMs.
        FewestSmsOfMps,
        /// A file of the database was removed.
        FileRemoved,
        /// A file of the database was replaced.
        FileReplaced,
        /// No file descriptor could be had.
        FilesExhausted,
        /// A control daemon outside this manager runs there.
        ForeignDaemon,
        /// A GPU of the daemon is missing.
        GpuMissing,
        /// Another daemon of this manager still serves a GPU that belongs to this one now.
        GpuNotReleased,
        /// A control daemon outside this manager serves a GPU of this one.
        GpuSharedWithForeignDaemon,
        /// The file that remembers the end of the audit log cannot be read.
        HeadUnreadable,
        /// It hung, and was replaced.
        Hung,
        /// The layout is refused until an operator acts.
        LayoutBlocked,
        /// The kernel permits no hard link to the socket.
        LinkNotPermitted,
        /// The host is in maintenance.
        Maintenance,
        /// Its `max_clients` was lowered while more were connected.
        MaximumLowered,
        /// A GPU of the daemon is in MIG mode.
        MigEnabled,
        /// It is near its limit.
        NearLimit,
        /// A tenant of the same daemon has no memory limit, so their server has none.
        NeighbourWithoutLimit,
        /// The daemon's control socket is missing.
        NoControlSocket,
        /// The GPUs of the host are not known.
        NoInventory,
        /// The placeholder in the tenant's directory could not be made.
        NoPlaceholder,
        /// It runs in no systemd scope of its own.
        NoScope,
        /// The directory cannot be closed to all but some users, as where its file system has no ACLs.
        NotClosed,
        /// It has not been polled yet.
        NotPolled,
        /// It was set, and is not being read back at present.
        NotReadBack,
        /// It is only observed, and is not running.
        NotRunning,
        /// The driver's MPS is too old to prevent it.
        OldDriver,
        /// It is observed and never written to, as its spec says.
        OnlyObserved,
        /// Its directories belong to another program and are left as they are.
        OtherDirectories,
        /// The tenant's directory is on another file system than the socket.
        OtherFileSystem,
        /// Partitions have other IDs than the recorded ones.
        OtherIds,
        /// Its server still serves another user.
        OtherUser,
        /// Other programs keep the daemon busy.
        OthersInterfere,
        /// The condition is over.
        Over,
        /// A page of the database is corrupt.
        PageCorrupt,
        /// The tenant's partition is emptied for another layout.
        PartitionDrained,
        /// A partition has another ID than the recorded one.
        PartitionIdDiffers,
        /// A process of another tenant is in the partition.
        PartitionInUse,
        /// A partition was not made.
        PartitionNotMade,
        /// The SMs of a partition are not proven.
        PartitionNotProven,
        /// The partitions of the layout are being made.
        PartitionsBeingMade,
        /// Others changed partitions while the layout was applied.
        PartitionsInterfered,
        /// The daemon's pipe directory or its sockets are gone.
        PipeDirectoryLost,
        /// A process uses the GPU outside MPS.
        ProcessOutsideMps,
        /// The control program is of another driver than the one that runs.
        ProgramsOfAnotherDriver,
        /// Another program sent it a quit.
        QuitByOthers,
        /// It was started with other settings than its spec has now.
        RestartRequired,
        /// Settings that others changed were restored.
        Restored,
        /// Rows are missing.
        RowsMissing,
        /// The server ends before it takes a client.
        ServerExits,
        /// The server had a fatal GPU error.
        ServerFault,
        /// The server has hung since a client died while it connected.
        ServerHangs,
        /// The server is being started.
        ServerStarting,
        /// The server serves another user.
        ServesAnotherUser,
        /// Another program holds a control session open.
        SessionHeldOpen,
        /// It was set and read back.
        SetAndReadBack,
        /// Settings that were read back differ from the spec.
        SettingsDiffer,
        /// Another program changed settings, and they stay.
        SettingsDrifted,
        /// The daemon has several GPUs.
        SeveralGpus,
        /// The running daemon has other GPUs, users or another mode than the spec.
        ShapeDiffers,
        /// The daemon's socket cannot be handed to the tenant.
        SocketNotHandedOut,
        /// The daemon's socket could not be linked.
        SocketNotLinked,
        /// The socket was removed.
        SocketRemoved,
        /// The socket was replaced.
        SocketReplaced,
        /// It is being started.
        Starting,
        /// Its GPUs or its control program know no static partitions.
        StaticModeUnsupported,
        /// Its MPS has no MLOPart devices.
        MlopartUnsupported,
        /// Its server gives clients whole GPUs in place of MLOPart devices.
        NoMlopartDevices,
        /// Its control program takes clients of one user at a time.
        MultiUserUnsupported,
        /// It could not be stopped.
        StopFailed,
        /// It is stopped, as its spec says.
        StoppedBySpec,
        /// It is stopped while the host is in maintenance.
        StoppedForMaintenance,
        /// It is being stopped.
        Stopping,
        /// The database does not take the start.
        StoreUnavailable,
        /// The tenant's directory is not safe to hand out.
        TenantDirectoryUnsafe,
        /// The state could not be determined.
        Undetermined,
        /// An answer could not be understood.
        Unreadable,
        /// It does not answer.
        Wedged,
        /// A write failed.
        WriteFailed,
    }
}

impl ConditionType {
    /// Returns a condition of this type that reports a problem.
    pub fn problem(self, reason: ConditionReason, message: impl Into<String>) -> Condition {
        Condition::new(self, !self.is_good(), reason, message)
    }

    /// Returns true for a fault of the manager with which it cannot record an incident.
    pub fn hides_incidents(self) -> bool {
        matches!(self, Self::DatabaseDamaged | Self::DatabaseLost | Self::StateDiskFull | Self::WritesFail)
    }

    /// Returns true if the condition is good while it is true; all other conditions are good while they are false.
    fn is_good(self) -> bool {
        matches!(
            self,
            Self::Ready | Self::Schedulable | Self::ComputeMode | Self::Layout | Self::ClientSocket
        )
    }
}

/// A statement about an object, with its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Condition {
    /// Type of the condition, as `Ready`.
    #[serde(rename = "type")]
    #[schema(value_type = String)]
    pub kind: ConditionType,
    /// True if the statement holds.
    pub status: bool,
    /// Reason in one word, as `AwaitingReadBack`.
    #[schema(value_type = String)]
    pub reason: ConditionReason,
    /// A sentence for an operator, with the remedy where there is one.
    pub message: String,
}

impl Condition {
    /// Builds a condition.
    pub fn new(
        kind: ConditionType,
        status: bool,
        reason: ConditionReason,
        message: impl Into<String>,
    ) -> Self {
        Self { kind, status, reason, message: message.into() }
    }

    /// Returns true if the condition reports a problem.
    pub fn needs_attention(&self) -> bool {
        self.kind.is_good() != self.status
    }
}

/// Returns the `Ready` condition, which says whether the object can be used.
pub fn ready(conditions: &[Condition]) -> Option<&Condition> {
    conditions.iter().find(|condition| condition.kind == ConditionType::Ready)
}

/// End of a reason for which a tenant or a daemon is not ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasonOutlook {
    /// It passes by itself within moments.
    Passes,
    /// It comes from the daemon, whose own condition has the reason.
    OfDaemon,
    /// An operator wants it.
    Wanted,
    /// Waiting does not remove it: somebody has to act.
    NeedsAction,
    /// It may pass or need somebody.
    Open,
}

impl ConditionReason {
    /// Returns whether the reason passes by itself, is wanted, or needs somebody.
    pub const fn outlook(self) -> ReasonOutlook {
        match self {
            Self::AwaitingReadBack => ReasonOutlook::Passes,
            Self::DaemonNotReady => ReasonOutlook::OfDaemon,
            Self::Cordoned | Self::Maintenance | Self::Expired | Self::PartitionDrained => {
                ReasonOutlook::Wanted
            }
            Self::DirectoryUnreachable
            | Self::PartitionInUse
            | Self::PartitionNotProven
            | Self::ServerExits => ReasonOutlook::NeedsAction,
            _ => ReasonOutlook::Open,
        }
    }

    /// Returns the reason for the tenants of a daemon that is not ready, with its meaning where they can act on it.
    pub fn text_for_tenants(self) -> String {
        self.meaning_for_tenants().map_or_else(|| self.to_string(), |meaning| format!("{self}; {meaning}"))
    }

    /// Returns the meaning of the reason for these tenants, without naming any user or process.
    fn meaning_for_tenants(self) -> Option<&'static str> {
        Some(match self {
            Self::ServerFault => {
                "its server had a fatal GPU error and takes no client until those that it affects have ended, so end yours if their \
                 CUDA calls fail"
            }
            Self::ServerHangs => "its server hangs since a client died while it connected, and is replaced",
            Self::ServerStarting | Self::Starting => "its server is being started",
            Self::ServerExits => {
                "its server ends before it takes a client, so nothing runs on its GPUs for now"
            }
            Self::Stopping | Self::StoppedBySpec => "it is stopped or being stopped",
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_read_as_words() {
        for (reason, words) in [
            (ConditionReason::AwaitingReadBack, "Applying"),
            (ConditionReason::GpuMissing, "GPU missing"),
            (ConditionReason::FewestSmsOfMps, "Fewest SMs of MPS"),
            (ConditionReason::PartitionIdDiffers, "Partition ID differs"),
            (ConditionReason::OtherIds, "Other IDs"),
            (ConditionReason::MigEnabled, "MIG enabled"),
            (ConditionReason::Wedged, "Wedged"),
        ] {
            assert_eq!(reason.words(), words);
        }
        assert_eq!(ConditionType::SharesGpu.words(), "Shares GPU");
    }
}
