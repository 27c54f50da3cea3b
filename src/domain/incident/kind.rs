//! The kinds of incidents: a closed set whose names never change.

use serde::{Deserialize, Serialize};

use crate::condition::ConditionType;

macro_rules! kinds {
    ($($variant:ident = $name:literal, $meaning:literal, $remedy:literal;)*) => {
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
    GpuFault = "gpu_fault", "A fatal GPU error, as a client's memory fault is, ended the work of every client of a GPU.",
        "Restart the affected work. While the fault is open, end the affected clients that are still connected: no new client is accepted until they are gone.";
    ServerDied = "server_died", "An MPS server ended while it had clients.",
        "Restart the affected work; the next client gets a new server. If it happens again, read server.log (`mps-manager daemon logs NAME`, or the daemon's page).";
    DaemonDied = "daemon_died", "A control daemon ended without being asked to by this manager.",
        "Restart the affected work; the manager restarts the daemon by itself. If it happens again, read control.log (`mps-manager daemon logs NAME control`, or the daemon's page).";
    DaemonWedged = "daemon_wedged", "A control daemon stopped answering.",
        "Continue what is stopped (`kill -CONT` and its process ID), or end it; the detail names it where it is known. If nothing is stopped, the daemon's wedge_policy decides when its server is replaced.";
    CrashLoop = "crash_loop", "A control daemon crashed or failed to start five times within a minute.",
        "Read control.log (`mps-manager daemon logs NAME control`, or the daemon's page), correct what it names, and start the daemon.";
    NoServer = "no_server", "Each server of a daemon ends before it takes a client, so that nothing runs on its GPUs.",
        "The detail has the last line of control.log about it. See that nvidia-smi answers, that libcuda.so.1 is of the driver that runs, and that the server's user may open /dev/nvidia*; then start the daemon.";
    Drift = "drift", "Another program changed settings or partitions of a daemon.",
        "Find the program that sends commands to this daemon and stop it. With drift_policy report such a change stays until that setting is set again: `mps-manager daemon set NAME --drift-policy repair` restores them.";
    LayoutIdsDiffer = "layout_ids_differ", "A layout gave other partition IDs than are on record.",
        "Compare the host with the one that the layout was recorded on: GPU model, driver and what else is reserved on the GPU. Then apply or replay the layout again.";
    LayoutDegraded = "layout_degraded", "A change of partitions was undone or restored, and not everything is as it was.",
        "Apply the daemon's layout again.";
    Bypass = "bypass", "Processes use a GPU of a running daemon outside MPS, so that no limit applies to them.",
        "End these processes and start them with mps-manager run, or if they are in a container, hand the tenant's directory to it (docs/integrate/containers.md). Or set the daemon's compute_mode to exclusive_process.";
    SocketExposed = "socket_exposed", "A container or another mount namespace has a daemon's own directory mounted, through which every limit can be changed.",
        "Start the container with its tenant's own directory instead (container.mount of `mps-manager env TENANT --format json`, or the tenant's CDI device), and end the one that has the daemon's.";
    ForeignUser = "foreign_user", "A process of a user who is no tenant's of the daemon is connected to it, or waits to be: it uses what tenants were promised, and a daemon that serves one user at a time serves nobody else meanwhile.",
        "End it with the command in the detail; on a daemon that serves one user at a time the manager ends its clients by itself, unless the daemon's foreign_user_policy is report. A user who may be there is added with `mps-manager daemon set NAME --user` and the ID.";
    GpuShared = "gpu_shared", "A control daemon that is not this manager's serves a GPU of a daemon: two that run take turns on it, no limit here counts its clients, and a daemon that is to start waits for it.",
        "`mps-manager foreign list` names it, and `foreign get` says who keeps it and what ends it for good; or give it GPUs of its own. A daemon with share_gpus is not reported.";
    Breach = "breach", "A client holds more device memory than its limit allows.",
        "The client may have changed its own MPS environment, which escapes limits that only the environment enforces: `mps-manager client get CLIENT` shows its command, and `mps-manager client terminate CLIENT` ends it.";
    ClientRefused = "client_refused", "MPS itself refused a client.",
        "Start clients with mps-manager run --wait, which queues them, or lower the number of clients on this GPU; do not raise CUDA_DEVICE_MAX_CONNECTIONS.";
    UnknownOutcome = "unknown_outcome", "A command was sent that was not answered, so it may or may not have taken effect.",
        "See whether the client is still there (`mps-manager client get CLIENT`); if it is, terminate it again: `mps-manager client terminate CLIENT`.";
    GpuMissing = "gpu_missing", "A GPU of a daemon is no longer listed by the driver.",
        "Check the host's kernel log for Xid messages, reset or replace the GPU, or give the daemon another one.";
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
