//! The kinds of incidents: a closed set whose names never change.

use serde::{Deserialize, Serialize};

use super::sentence::SentenceWords;
use crate::condition::ConditionType;
use crate::event::Severity;

// A row gives the name, the severity, the meaning and the remedy of a kind, and the sentences about its incidents: `past` without an end of
// its own, since the daemon was stopped or changed, `open`, and `over`.
macro_rules! kinds {
    (|$($word:ident),+| $(
        $variant:ident = $name:literal, $severity:ident, $meaning:literal, $remedy:literal,
            past $past:literal, open $open:literal, over $over:literal;
    )*) => {
        /// The kind of an incident.
        #[derive(
            Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, utoipa::ToSchema,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum IncidentKind {
            $(
                #[doc = $meaning]
                $variant,
            )*
        }

        impl IncidentKind {
            /// All kinds, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the stable name.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the meaning of this kind in one sentence.
            pub fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning,)*
                }
            }

            /// Returns the severity of incidents of this kind.
            pub fn severity(self) -> Severity {
                match self {
                    $(Self::$variant => Severity::$severity,)*
                }
            }

            /// Describes the daemon in the past, without the end of the incident.
            pub(super) fn past(self) -> &'static str {
                match self {
                    $(Self::$variant => $past,)*
                }
            }

            /// Describes an incident, while it lasts or once it is over.
            pub(super) fn sentence(self, SentenceWords { $($word),+ }: SentenceWords<'_>, is_over: bool) -> String {
                match (self, is_over) {
                    $(
                        (Self::$variant, false) => format!($open),
                        (Self::$variant, true) => format!($over),
                    )*
                }
            }

            /// Returns advice for an operator.
            pub fn remedy(self) -> &'static str {
                match self {
                    $(Self::$variant => $remedy,)*
                }
            }
        }
    };
}

kinds! {
    |daemon, after, lost, suspected, who, gone, ended, board, changed, times, are, were, s|

    GpuFault = "gpu_fault", Error, "A fatal GPU error, as a client's memory fault is, ended the work of every client of a GPU.",
        "Restart the affected work. While the fault is open, end the affected clients that are still connected: no new client is accepted until they are gone.",
        past "had a fatal GPU error",
        open "Fatal GPU fault on {daemon}: {lost}{suspected}. No new client is accepted yet",
        over "Fatal GPU fault on {daemon}: {lost}{suspected}. Recovered {after}";
    ServerDied = "server_died", Error, "An MPS server ended while it had clients.",
        "Restart the affected work; the next client gets a new server. If it happens again, read server.log (`mps-manager daemon logs NAME`, or the daemon's page).",
        past "had no server after a crash",
        open "{daemon}'s server died and is not replaced yet",
        over "{daemon}'s server died and was replaced {after}";
    DaemonDied = "daemon_died", Error, "A control daemon ended without being asked to by this manager.",
        "Restart the affected work; the manager restarts the daemon by itself. If it happens again, read control.log (`mps-manager daemon logs NAME control`, or the daemon's page).",
        past "was down after a crash",
        open "{daemon}'s control daemon {ended}{times} and is not back yet",
        over "{daemon}'s control daemon {ended}{times} and was restarted {after}";
    DaemonWedged = "daemon_wedged", Error, "A control daemon stopped answering.",
        "Continue what is stopped (`kill -CONT` and its process ID), or end it; the detail names it where it is known. If nothing is stopped, the daemon's wedge_policy decides when its server is replaced.",
        past "did not answer",
        open "{daemon} does not answer",
        over "{daemon} stopped answering and recovered {after}";
    CrashLoop = "crash_loop", Critical, "A control daemon crashed or failed to start five times within a minute.",
        "Read control.log (`mps-manager daemon logs NAME control`, or the daemon's page), correct what it names, and start the daemon.",
        past "kept crashing",
        open "{daemon}'s control daemon keeps crashing",
        over "{daemon}'s control daemon crashed again and again, and ran again {after}";
    NoServer = "no_server", Error, "Each server of a daemon ends before it takes a client, so that nothing runs on its GPUs.",
        "The detail has the last line of control.log about it. See that nvidia-smi answers, that libcuda.so.1 is of the driver that runs, and that the server's user may open /dev/nvidia*; then start the daemon.",
        past "had no server",
        open "{daemon} has no server",
        over "{daemon} had no server that stayed, and had one again {after}";
    Drift = "drift", Warning, "Another program changed settings or partitions of a daemon.",
        "Find the program that sends commands to this daemon and stop it. With drift_policy report such a change stays until that setting is set again: `mps-manager daemon set NAME --drift-policy repair` restores them.",
        past "had been changed by another program",
        open "Another program changed {changed} of {daemon}{times}",
        over "Another program changed {changed} of {daemon}{times}, which {are} restored";
    LayoutIdsDiffer = "layout_ids_differ", Error, "A layout gave other partition IDs than are on record.",
        "Compare the host with the one that the layout was recorded on: GPU model, driver and what else is reserved on the GPU. Then apply or replay the layout again.",
        past "had other partition IDs than on record",
        open "{daemon}'s layout gives other partition IDs than on record and is not in force",
        over "{daemon}'s layout gave other partition IDs than on record, and was applied later";
    LayoutDegraded = "layout_degraded", Error, "A change of partitions was undone or restored, and not everything is as it was.",
        "Apply the daemon's layout again.",
        past "had partitions that were not as before",
        open "Some partitions of {daemon} are not as they were",
        over "Some partitions of {daemon} were not as before, and are again";
    Bypass = "bypass", Warning, "Processes use a GPU of a running daemon outside MPS, so that no limit applies to them.",
        "End these processes and start them with mps-manager run, or if they are in a container, hand the tenant's directory to it (docs/integrate/containers.md). Or set the daemon's compute_mode to exclusive_process, which a MIG instance does not have.",
        past "had processes outside MPS on its GPUs",
        open "{who} use{s} a GPU of {daemon} outside MPS{gone}",
        over "{who} used a GPU of {daemon} outside MPS";
    SocketExposed = "socket_exposed", Warning, "A container or another mount namespace has a daemon's own directory mounted, through which every limit can be changed.",
        "Start the container with its tenant's own directory instead (container.mount of `mps-manager env TENANT --format json`, or the tenant's CDI device), and end the one that has the daemon's.",
        past "had its own directory mounted in another mount namespace",
        open "{daemon}'s own directory is mounted in another mount namespace",
        over "{daemon}'s own directory was mounted in another mount namespace";
    ForeignUser = "foreign_user", Warning, "A process of a user who is no tenant's of the daemon is connected to it, or waits to be: it uses what tenants were promised, and a daemon that serves one user at a time serves nobody else meanwhile.",
        "End it with the command in the detail; on a daemon that serves one user at a time the manager ends its clients by itself, unless the daemon's foreign_user_policy is report. A user who may be there is added with `mps-manager daemon set NAME --user` and the ID.",
        past "had a process of a user who is no tenant's",
        open "{who} of a user who is no tenant's {are} at {daemon}",
        over "{who} of a user who is no tenant's {were} at {daemon}";
    GpuShared = "gpu_shared", Warning, "A control daemon that is not this manager's serves a GPU of a daemon: two that run take turns on it, no limit here counts its clients, and a daemon that is to start waits for it.",
        "`mps-manager foreign list` names it, and `foreign get` says who keeps it and what ends it for good; or give it GPUs of its own. A daemon with share_gpus is not reported.",
        past "had a GPU that another control daemon served too",
        open "A GPU of {daemon} is also served by a control daemon that is not this manager's{who}",
        over "A GPU of {daemon} was also served by a control daemon that is not this manager's{who}";
    Breach = "breach", Warning, "A client holds more device memory than its limit allows.",
        "The client may have changed its own MPS environment, which escapes limits that only the environment enforces: `mps-manager client get CLIENT` shows its command, and `mps-manager client terminate CLIENT` ends it.",
        past "had a client above its memory limit",
        open "{who} holds more memory on {daemon} than its limit allows",
        over "{who} held more memory on {daemon} than its limit allows";
    ClientRefused = "client_refused", Warning, "MPS itself refused a client.",
        "Start clients with mps-manager run --wait, which queues them, or lower the number of clients on this GPU; do not raise CUDA_DEVICE_MAX_CONNECTIONS.",
        past "refused clients",
        open "MPS refused a client{who} of {daemon}{times}",
        over "MPS refused a client{who} of {daemon}{times}";
    UnknownOutcome = "unknown_outcome", Warning, "A command was sent that was not answered, so it may or may not have taken effect.",
        "See whether the client is still there (`mps-manager client get CLIENT`); if it is, terminate it again: `mps-manager client terminate CLIENT`.",
        past "had not answered a command",
        open "A command to {daemon} was not answered, so it may or may not have taken effect",
        over "A command to {daemon} was not answered; its client is gone now";
    GpuMissing = "gpu_missing", Error, "A GPU of a daemon is no longer listed by the driver.",
        "`nvidia-smi -L` and the host's kernel log (Xid messages) say why. Reset or replace the GPU, make the MIG instance again, or put another in its place: `mps-manager gpu replace`.",
        past "lacked a GPU",
        open "{board} of {daemon} is no longer listed by the driver",
        over "{board} of {daemon} was missing and came back {after}";
}

impl IncidentKind {
    /// Returns true if the kind is about processes of others, and an incident of it lasts as long as one of them.
    pub(super) fn is_of_processes(self) -> bool {
        matches!(self, Self::Bypass | Self::SocketExposed | Self::ForeignUser | Self::GpuShared)
    }

    /// Returns true if an incident of this kind that happens again soon after its end is the same one.
    pub(super) fn recurs(self) -> bool {
        matches!(self, Self::Drift | Self::Breach | Self::ClientRefused) || self.is_of_processes()
    }

    /// Returns true if an open incident of this kind reports the same fact as this condition of the daemon.
    pub fn shows(self, condition: ConditionType) -> bool {
        matches!(
            (self, condition),
            (Self::Bypass, ConditionType::Bypass)
                | (Self::Drift, ConditionType::SettingsDrifted | ConditionType::PartitionsDrifted)
                | (Self::GpuShared, ConditionType::SharesGpu)
        )
    }

    /// Returns true if clients lose their work by such an incident.
    pub fn loses_work(self) -> bool {
        matches!(
            self,
            Self::GpuFault | Self::ServerDied | Self::DaemonDied | Self::DaemonWedged | Self::CrashLoop
        ) || self == Self::GpuMissing
    }
}

impl std::str::FromStr for IncidentKind {
    type Err = crate::InvalidValue;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|kind| kind.as_str() == text);
        found.copied().ok_or_else(|| {
            let shown: String = text.chars().take(80).collect();
            crate::InvalidValue(format!("{shown:?} is not a kind of incident: docs/incidents.md lists them"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_the_same_everywhere() {
        for kind in IncidentKind::ALL {
            assert_eq!(serde_json::json!(kind), kind.as_str());
            assert_eq!(kind.as_str().parse(), Ok(*kind));
        }
    }
}
