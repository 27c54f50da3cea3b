//! The command line of the control program.

use std::ffi::OsString;

use super::super::profile::{HELPING_SINCE, LIMITS_SINCE, SPEAKING_SINCE, STATIC_PARTITIONS_SINCE};

/// Action of one call of the control program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Call {
    Help,
    Version,
    /// An option that this version does not know: prints the usage, and is no failure.
    Unknown,
    /// An unknown option before 13.0, where it is a failure.
    OldUnknown,
    Daemon(Mode),
    /// Commands from stdin.
    Session,
    /// Commands as arguments do nothing, in silence, as recorded.
    Nothing,
}

/// Options of a daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mode {
    pub(super) foreground: bool,
    pub(super) multiuser: bool,
    pub(super) partitioned: bool,
}

pub(super) fn parse(args: &[OsString], version: u32) -> Call {
    let mut mode = Mode::default();
    let mut daemon = false;
    for arg in args {
        match arg.to_str().unwrap_or("") {
            "-h" | "--help" => return Call::Help,
            "-v" | "--version" if version >= SPEAKING_SINCE => return Call::Version,
            "-d" => daemon = true,
            "--daemon" if version >= SPEAKING_SINCE => daemon = true,
            "-f" => (daemon, mode.foreground) = (true, true),
            "--forground" if version >= SPEAKING_SINCE => (daemon, mode.foreground) = (true, true),
            "-M" | "--multiuser-server" if version >= SPEAKING_SINCE => mode.multiuser = true,
            "-multiuser-server" if version >= HELPING_SINCE => mode.multiuser = true,
            "-q" | "--ready-devices" if version >= SPEAKING_SINCE => {}
            "-S" | "--static-partitioning" if version >= STATIC_PARTITIONS_SINCE => {
                // Documented as a way to start the daemon in itself.
                daemon = true;
                mode.partitioned = true;
            }
            option if option.starts_with('-') && version >= SPEAKING_SINCE => return Call::Unknown,
            option if option.starts_with('-') && version >= HELPING_SINCE => return Call::OldUnknown,
            // Older versions ignore the whole line.
            option if option.starts_with('-') => return Call::Session,
            _ => return Call::Nothing,
        }
    }
    if daemon { Call::Daemon(mode) } else { Call::Session }
}

/// Returns the head of every text; it has the version only when that is requested.
pub(super) fn banner(version: Option<u32>) -> String {
    let version = version.map(|v| format!(" Binary version: {v}")).unwrap_or_default();
    format!(
        "CUDA MPS Control for Linux/Unix/QNX.{version}\nCopyright (C) 2003 - 2025 NVIDIA Corporation.\n\n"
    )
}

/// Returns the help of a version before 13.0; NVIDIA's sentence in it is not copied.
pub(super) fn old_help(version: u32) -> String {
    let year = match version {
        HELPING_SINCE.. => 2024,
        LIMITS_SINCE.. => 2023,
        _ => 2017,
    };
    format!("CUDA MPS Control for Linux/Unix.\nCopyright (C) 2003 - {year} NVIDIA Corporation.\n\n\n")
}

/// Returns the usage, with its option and command words only: NVIDIA's sentences are not copied.
pub(super) fn usage(version: u32) -> String {
    let mut text = banner(None);
    text.push_str("\nnvidia-cuda-mps-control [options] [command]\nOPTIONS:\n");
    indent(
        &mut text,
        &["-h,--help", "-d,--daemon", "-f,--forground", "-M,--multiuser-server", "-q,--ready-devices"],
    );
    if version >= STATIC_PARTITIONS_SINCE {
        indent(&mut text, &["-S,--static-partitioning"]);
    }
    text.push_str("\nCOMMAND:\n");
    indent(
        &mut text,
        &[
            "start_server -uid <user id>",
            "quit",
            "get_server_list",
            "get_server_status <PID>",
            "get_client_list <PID>",
            "get_device_client_list [<PID>]",
            "ps [-p PID]",
            "set_default_active_thread_percentage <percentage>",
            "get_default_active_thread_percentage",
            "set_active_thread_percentage <PID> <percentage>",
            "get_active_thread_percentage <PID>",
            "set_default_device_pinned_mem_limit <dev> <value>",
            "get_default_device_pinned_mem_limit <dev>",
            "set_device_pinned_mem_limit <PID> <dev> <value>",
            "get_device_pinned_mem_limit <PID> <dev>",
            "set_default_client_priority <priority>",
            "get_default_client_priority",
            "terminate_client <server PID> <client PID>",
            "device_query [<PID>] [--csv]",
        ],
    );
    if version >= STATIC_PARTITIONS_SINCE {
        indent(&mut text, &["sm_partition add <dev> <chunks>", "sm_partition rm <partition>", "lspart"]);
    }
    text.push('\n');
    text
}

fn indent(text: &mut String, words: &[&str]) {
    for word in words {
        text.push_str("  ");
        text.push_str(word);
        text.push('\n');
    }
}
