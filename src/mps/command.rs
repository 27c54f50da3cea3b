//! Commands of the control daemon, as values that can only be written right.
//!
//! MPS answers a value that it misreads with silence or with the old value (FACTS.md, "The control interface"), so
//! no text of a caller ever becomes part of a line: everything here is a number or one of the checked values of
//! the domain.

use std::fmt;

use crate::domain::layout::plan::{add_command, remove_command};
use crate::domain::partitions::PartitionRef;
use crate::domain::{GpuUuid, MemoryLimit, Priority, ThreadPercentage};

/// A GPU, as a command names one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum DeviceSelector {
    /// By the daemon's own numbering, which follows its `CUDA_VISIBLE_DEVICES`.
    Ordinal(u32),
    /// By UUID, which the memory limit commands take as well (recording 07).
    Uuid(GpuUuid),
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ordinal(ordinal) => write!(f, "{ordinal}"),
            Self::Uuid(uuid) => write!(f, "{uuid}"),
        }
    }
}

/// Effect of a command that is sent a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it only reads.
    Read,
    /// Nothing more than once would: it sets an absolute value.
    AbsoluteSet,
    /// Something else: compare before and after, and send it again only if nothing happened.
    Once,
}

/// A command of the control daemon, in the words of 13.0 and, for partitions, of 13.1.
///
/// Servers and clients are named by PID.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are the words of the line above them")]
pub enum Command {
    /// `get_server_list`
    GetServerList,
    /// `get_server_status PID`
    GetServerStatus { server: u32 },
    /// `get_client_list PID`
    GetClientList { server: u32 },
    /// `get_device_client_list [PID]`
    GetDeviceClientList { server: Option<u32> },
    /// `ps [-p PID]`, where the PID is a server's (recording 03)
    Ps { server: Option<u32> },
    /// `device_query [PID]`; without a PID the daemon's own list and then each server's
    DeviceQuery { server: Option<u32> },
    /// `get_default_active_thread_percentage`
    GetDefaultThreadPercentage,
    /// `set_default_active_thread_percentage`: for servers started later; prints the value now in force
    SetDefaultThreadPercentage(ThreadPercentage),
    /// `get_active_thread_percentage PID`
    GetThreadPercentage { server: u32 },
    /// `set_active_thread_percentage PID`: for clients that connect later; prints the value now in force
    SetThreadPercentage { server: u32, percentage: ThreadPercentage },
    /// `get_default_device_pinned_mem_limit`
    GetDefaultMemoryLimit { device: DeviceSelector },
    /// `set_default_device_pinned_mem_limit`: for servers started later; prints nothing whatever it did
    SetDefaultMemoryLimit {
        device: DeviceSelector,
        /// `None` takes the limit away.
        limit: Option<MemoryLimit>,
    },
    /// `get_device_pinned_mem_limit PID`
    GetMemoryLimit { server: u32, device: DeviceSelector },
    /// `set_device_pinned_mem_limit PID`: for clients that connect later; prints nothing whatever it did
    SetMemoryLimit {
        server: u32,
        device: DeviceSelector,
        /// `None` takes the limit away.
        limit: Option<MemoryLimit>,
    },
    /// `get_default_client_priority`
    GetDefaultPriority,
    /// `set_default_client_priority`: reaches a running server at once
    SetDefaultPriority(Priority),
    /// `start_server -uid UID [-mlopart]`: replaces a running server of another uid, and with `-mlopart` one without (13.1; not recorded)
    StartServer { uid: u32, mlopart: bool },
    /// `shutdown_server PID`, which `--help` does not list
    ShutdownServer { server: u32 },
    /// `terminate_client`: hangs the whole daemon while the client is stopped
    TerminateClient { server: u32, client: u32 },
    /// `quit [-t SECONDS]`: without a time it waits for the clients forever
    Quit { timeout: Option<u32> },
    /// `lspart` (13.1; not recorded)
    Lspart,
    /// `sm_partition add GPU CHUNKS` (13.1; not recorded)
    SmPartitionAdd { gpu: GpuUuid, chunks: u32 },
    /// `sm_partition rm GPU/ID` (13.1; not recorded)
    SmPartitionRemove { partition: PartitionRef },
}

impl Command {
    /// The line to send, without its newline.
    pub fn line(&self) -> String {
        let server_or_all = |server: &Option<u32>| server.map(|pid| format!(" {pid}")).unwrap_or_default();
        // MPS takes `0` for "no limit" and has no other word for it (recording 03).
        let limit_or_none =
            |limit: &Option<MemoryLimit>| limit.map_or_else(|| "0".to_owned(), MemoryLimit::as_mps);
        match self {
            Self::GetServerList => "get_server_list".into(),
            Self::GetServerStatus { server } => format!("get_server_status {server}"),
            Self::GetClientList { server } => format!("get_client_list {server}"),
            Self::GetDeviceClientList { server } => {
                format!("get_device_client_list{}", server_or_all(server))
            }
            Self::Ps { server: None } => "ps".into(),
            Self::Ps { server: Some(server) } => format!("ps -p {server}"),
            Self::DeviceQuery { server } => format!("device_query{}", server_or_all(server)),
            Self::GetDefaultThreadPercentage => "get_default_active_thread_percentage".into(),
            Self::SetDefaultThreadPercentage(percentage) => {
                format!("set_default_active_thread_percentage {percentage}")
            }
            Self::GetThreadPercentage { server } => format!("get_active_thread_percentage {server}"),
            Self::SetThreadPercentage { server, percentage } => {
                format!("set_active_thread_percentage {server} {percentage}")
            }
            Self::GetDefaultMemoryLimit { device } => format!("get_default_device_pinned_mem_limit {device}"),
            Self::SetDefaultMemoryLimit { device, limit } => {
                format!("set_default_device_pinned_mem_limit {device} {}", limit_or_none(limit))
            }
            Self::GetMemoryLimit { server, device } => {
                format!("get_device_pinned_mem_limit {server} {device}")
            }
            Self::SetMemoryLimit { server, device, limit } => {
                format!("set_device_pinned_mem_limit {server} {device} {}", limit_or_none(limit))
            }
            Self::GetDefaultPriority => "get_default_client_priority".into(),
            Self::SetDefaultPriority(priority) => {
                format!("set_default_client_priority {}", priority.as_mps())
            }
            Self::StartServer { uid, mlopart } => {
                format!("start_server -uid {uid}{}", if *mlopart { " -mlopart" } else { "" })
            }
            Self::ShutdownServer { server } => format!("shutdown_server {server}"),
            Self::TerminateClient { server, client } => format!("terminate_client {server} {client}"),
            Self::Quit { timeout: None } => "quit".into(),
            Self::Quit { timeout: Some(seconds) } => format!("quit -t {seconds}"),
            Self::Lspart => "lspart".into(),
            // As a plan shows them.
            Self::SmPartitionAdd { gpu, chunks } => add_command(gpu, *chunks),
            Self::SmPartitionRemove { partition } => remove_command(&partition.gpu, &partition.id),
        }
    }

    /// Returns the effect of sending the command again.
    pub fn effect(&self) -> Effect {
        match self {
            Self::GetServerList
            | Self::GetServerStatus { .. }
            | Self::GetClientList { .. }
            | Self::GetDeviceClientList { .. }
            | Self::Ps { .. }
            | Self::DeviceQuery { .. }
            | Self::GetDefaultThreadPercentage
            | Self::GetThreadPercentage { .. }
            | Self::GetDefaultMemoryLimit { .. }
            | Self::GetMemoryLimit { .. }
            | Self::GetDefaultPriority
            | Self::Lspart => Effect::Read,
            Self::SetDefaultThreadPercentage(_)
            | Self::SetThreadPercentage { .. }
            | Self::SetDefaultMemoryLimit { .. }
            | Self::SetMemoryLimit { .. }
            | Self::SetDefaultPriority(_) => Effect::AbsoluteSet,
            Self::StartServer { .. }
            | Self::ShutdownServer { .. }
            | Self::TerminateClient { .. }
            | Self::Quit { .. }
            | Self::SmPartitionAdd { .. }
            | Self::SmPartitionRemove { .. } => Effect::Once,
        }
    }

    /// Returns true if it must be the only command of its session.
    ///
    /// A termination can hang the daemon and everything behind it; after a quit nothing follows.
    pub fn runs_alone(&self) -> bool {
        matches!(self, Self::TerminateClient { .. } | Self::Quit { .. })
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::PartitionId;

    fn uuid() -> GpuUuid {
        GpuUuid::parse("GPU-9f9440d9-f2a5-ca07-f0dc-0904b990eecc").expect("uuid")
    }

    #[test]
    fn lines_are_spelled_as_recorded() {
        let limit = |text: &str| Some(MemoryLimit::parse(text).expect("limit"));
        let percentage = ThreadPercentage::parse("33.3").expect("percentage");
        let cases = [
            (Command::GetServerList, "get_server_list"),
            (Command::GetServerStatus { server: 511 }, "get_server_status 511"),
            (Command::GetDeviceClientList { server: None }, "get_device_client_list"),
            (Command::GetDeviceClientList { server: Some(511) }, "get_device_client_list 511"),
            (Command::Ps { server: None }, "ps"),
            (Command::Ps { server: Some(1) }, "ps -p 1"),
            (Command::SetDefaultThreadPercentage(percentage), "set_default_active_thread_percentage 33.3"),
            (
                Command::SetThreadPercentage { server: 657, percentage },
                "set_active_thread_percentage 657 33.3",
            ),
            (
                Command::SetMemoryLimit {
                    server: 657,
                    device: DeviceSelector::Ordinal(0),
                    limit: limit("4G"),
                },
                "set_device_pinned_mem_limit 657 0 4096M",
            ),
            (
                Command::SetMemoryLimit { server: 657, device: DeviceSelector::Ordinal(0), limit: None },
                "set_device_pinned_mem_limit 657 0 0",
            ),
            (
                Command::SetDefaultMemoryLimit { device: DeviceSelector::Uuid(uuid()), limit: limit("4G") },
                "set_default_device_pinned_mem_limit GPU-9f9440d9-f2a5-ca07-f0dc-0904b990eecc 4096M",
            ),
            (Command::SetDefaultPriority(Priority::BelowNormal), "set_default_client_priority 1"),
            (Command::StartServer { uid: 1000, mlopart: false }, "start_server -uid 1000"),
            (Command::StartServer { uid: 1000, mlopart: true }, "start_server -uid 1000 -mlopart"),
            (Command::TerminateClient { server: 511, client: 669 }, "terminate_client 511 669"),
            (Command::Quit { timeout: None }, "quit"),
            (Command::Quit { timeout: Some(2) }, "quit -t 2"),
            (
                Command::SmPartitionAdd { gpu: uuid(), chunks: 7 },
                "sm_partition add GPU-9f9440d9-f2a5-ca07-f0dc-0904b990eecc 7",
            ),
            (
                Command::SmPartitionRemove {
                    partition: PartitionRef {
                        gpu: uuid(),
                        id: PartitionId::parse("D/79e+A").expect("an ID"),
                    },
                },
                "sm_partition rm GPU-9f9440d9-f2a5-ca07-f0dc-0904b990eecc/D/79e+A",
            ),
        ];
        for (command, line) in cases {
            assert_eq!(command.line(), line);
        }
    }

    #[test]
    fn read_commands_get_and_write_commands_set() {
        let device = DeviceSelector::Ordinal(0);
        for command in [
            Command::GetDefaultThreadPercentage,
            Command::GetThreadPercentage { server: 1 },
            Command::GetDefaultMemoryLimit { device: device.clone() },
            Command::GetMemoryLimit { server: 1, device: device.clone() },
            Command::GetDefaultPriority,
            Command::GetClientList { server: 1 },
        ] {
            assert!(command.line().starts_with("get_") && command.effect() == Effect::Read, "{command}");
        }
        for command in [
            Command::SetDefaultThreadPercentage(ThreadPercentage::FULL),
            Command::SetDefaultMemoryLimit { device, limit: None },
            Command::SetDefaultPriority(Priority::Normal),
        ] {
            assert!(
                command.line().starts_with("set_") && command.effect() == Effect::AbsoluteSet,
                "{command}"
            );
        }
        assert_eq!(Command::StartServer { uid: 0, mlopart: false }.effect(), Effect::Once);
        assert!(Command::TerminateClient { server: 1, client: 2 }.runs_alone());
        assert!(!Command::StartServer { uid: 0, mlopart: false }.runs_alone());
    }
}
