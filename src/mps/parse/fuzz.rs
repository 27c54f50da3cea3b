//! Replies at volume: recordings with mutations, the words of their grammar, and bytes.
#![allow(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "what a program prints reads best as one format"
)]

use fastrand::Rng;

use super::recordings::replies;
use super::*;
use crate::domain::{GpuUuid, MemoryLimit, PartitionId, ThreadPercentage};
use crate::fuzz::{Inputs, text as random_text, values};

/// What every reply may be instead of a value.
const REFUSALS: [&str; 6] = [
    "Unknown command \"lspart\"\n",
    "Insufficient privileges for UID 65534. Control deamon settings can only be modified by the user who started it or by the root user.\n",
    "Not enough privilege to execute quit command\n",
    "Server 1 not found\n",
    "Server not found\n",
    "A server PID is required\n",
];
const WORDS: [&str; 34] = [
    "\n",
    "\r\n",
    "  ",
    "GPU-",
    "GPU-74d43ed3",
    "GPU-514466a0-8e68-f857-9f73-e438010e48cb",
    "MIG-1",
    "-",
    "/",
    "[",
    "] ",
    ", ",
    "668",
    "668.1",
    "[0] 00:00.0, NVIDIA H200\n",
    ".",
    "G",
    "M",
    "%",
    "Server ",
    " not found",
    "Default\n",
    "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        \n",
    "Device Ordinal,PCI IDs,UUID,Name,Attributes\n",
    "Device Ordinal  PCI IDs        UUID     Name     Attributes\n",
    "Yes",
    "No",
    "\"",
    "Unknown command \"",
    "ACTIVE",
    "Partition ",
    " created",
    "Failed to fulfill the requested SM partition of 20 chunks, error CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION",
    "in use",
];
const PARTITIONS: [&str; 6] = [
    "GPU        PARTITION FREE USED\n-------\nGPU-aa 15 0 132 0\n",
    "heading\nheading\nGPU-aa 5 10 52 80\nGPU-aa D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAA 10 80 Yes\n",
    "GPU-74d43ed3 - 10 0 92 92 -\n",
    "GPU-74d43ed3 - 0 8 74 56 -\nGPU-74d43ed3 Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA - 7 - 56 Yes\n",
    "GPU-74d43ed3-0000-0000-0000-000000000000/Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\n",
    "Partition GPU-74d43ed3-0000-0000-0000-000000000000/Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA created\n",
];

/// Holds a parser to what all of them promise: no panic, and an error that shows what came and no more than a little of it.
fn hold<T>(word: &str, parse: impl Fn(&[u8]) -> Result<T, ParseError>) {
    let mut samples = replies(word);
    samples.extend(REFUSALS.iter().chain(&PARTITIONS).map(ToString::to_string));
    Inputs::new(samples, &WORDS).check(|reply| {
        let Err(error) = parse(reply) else { return true };
        let text = error.to_string();
        // 400 characters of four bytes, each of which may be escaped as `\u{10ffff}`.
        assert!(text.len() <= 100 + SHOWN * 10, "{} bytes of words", text.len());
        let raw = String::from_utf8_lossy(reply);
        let kept = match &error {
            ParseError::NotUnderstood { reply, .. } => reply,
            ParseError::Refused { text } | ParseError::InsufficientPrivileges { text } => text,
            ParseError::UnknownCommand { word } => word,
            ParseError::ServerNotFound { server } => &server.to_string(),
        };
        let kept = kept.strip_suffix('…').unwrap_or(kept);
        // The number of a server may be written in more than one way.
        assert!(
            raw.contains(kept) || matches!(error, ParseError::ServerNotFound { .. }),
            "{kept:?} is not what came"
        );
        false
    });
}

#[test]
fn server_lists() {
    hold("get_server_list", server_list);
}

#[test]
fn server_statuses() {
    hold("get_server_status", server_status);
}

#[test]
fn percentages() {
    hold("get_default_active_thread_percentage", percentage);
}

#[test]
fn memory_limits() {
    hold("get_default_device_pinned_mem_limit", memory_limit);
}

#[test]
fn priorities() {
    hold("get_default_client_priority", priority);
}

#[test]
fn silences() {
    hold("set_", silent);
}

#[test]
fn client_rows() {
    hold("ps", clients);
}

#[test]
fn client_lists() {
    hold("get_client_list", client_list);
}

#[test]
fn device_client_lists() {
    hold("get_device_client_list", device_client_list);
}

#[test]
fn device_queries() {
    hold("device_query", device_query);
}

#[test]
fn terminations() {
    hold("terminate_client", terminate);
}

#[test]
fn partition_lists() {
    hold("lspart", lspart);
}

#[test]
fn partition_additions() {
    hold("sm_partition", sm_partition_add);
}

#[test]
fn partition_removals() {
    hold("sm_partition", sm_partition_remove);
}

fn pid(rng: &mut Rng) -> u32 {
    rng.u32(1..=4_194_304)
}

fn uuid(rng: &mut Rng) -> GpuUuid {
    let (a, b) = (rng.u64(..), rng.u64(..));
    let text = format!(
        "GPU-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xffff,
        b >> 48,
        b & 0xffff_ffff_ffff
    );
    GpuUuid::parse(&text).expect("a UUID")
}

/// A name as a process or a product may have it: anything on one line, without blanks around it.
fn name(rng: &mut Rng) -> String {
    format!("x{}x", random_text(rng, 40, |letter| !letter.is_control()))
}

fn some<T>(rng: &mut Rng, most: usize, make: impl Fn(&mut Rng) -> T) -> Vec<T> {
    (0..rng.usize(..=most)).map(|_| make(rng)).collect()
}

#[test]
fn what_lists_print_is_read_back() {
    values(
        |rng| some(rng, 20, pid),
        |pids| {
            let printed: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
            assert_eq!(server_list(printed.as_bytes()).as_ref(), Ok(pids));
            assert_eq!(client_list(printed.as_bytes()).as_ref(), Ok(pids));
        },
    );
}

#[test]
fn what_ps_prints_is_read_back() {
    let row = |rng: &mut Rng| ClientRow {
        pid: pid(rng),
        id: rng.u64(..),
        server: pid(rng),
        device_prefix: uuid(rng).as_str()[..22].to_owned(),
        namespace: rng.u64(..),
        command: name(rng),
    };
    values(
        |rng| some(rng, 8, row),
        |rows| {
            let mut printed = WORDS[22].to_owned();
            for ClientRow { pid, id, server, device_prefix, namespace, command } in rows {
                printed.push_str(&format!(
                    "{pid:<9} {id:<9} {server:<14} {device_prefix:<25} {namespace:<14} {command:<15}\n"
                ));
            }
            let expected = Clients::Listed { rows: rows.clone(), bad: Vec::new() };
            assert_eq!(clients(printed.as_bytes()), Ok(expected), "{printed}");
        },
    );
}

#[test]
fn what_device_lists_print_is_read_back() {
    let row = |rng: &mut Rng| DeviceRow {
        ordinal: rng.u32(..),
        pci: format!("0000:{:02x}.{:02x}.00", rng.u8(..), rng.u8(..32)),
        uuid: uuid(rng),
        // Columns are parted by two blanks or a comma, and products have neither in their names.
        name: name(rng).replace([' ', ','], "_"),
        attributes: "N/A".to_owned(),
    };
    let section = |rng: &mut Rng| DeviceSection { server: Some(pid(rng)), devices: some(rng, 4, row) };
    values(
        |rng| some(rng, 3, section),
        |servers| {
            let mut sections = servers.clone();
            sections.insert(0, DeviceSection { server: None, devices: Vec::new() });
            for separator in [",", "   "] {
                let mut printed = String::new();
                for DeviceSection { server, devices } in &sections {
                    printed.push_str(&server.map_or("Default\n".to_owned(), |pid| format!("Server {pid}\n")));
                    printed.push_str("Device Ordinal\n");
                    for DeviceRow { ordinal, pci, uuid, name, attributes } in devices {
                        let fields = [&ordinal.to_string(), pci, uuid.as_str(), name, attributes]
                            .map(ToString::to_string);
                        printed.push_str(&fields.join(separator));
                        printed.push('\n');
                    }
                    printed.push('\n');
                }
                let expected = Devices { sections: sections.clone(), bad: Vec::new() };
                assert_eq!(device_query(printed.as_bytes()), Ok(expected), "{printed}");
            }
        },
    );
}

#[test]
fn what_lists_of_contexts_print_is_read_back() {
    let context = |rng: &mut Rng| DeviceContext { pid: pid(rng), context: rng.u32(..) };
    let device = |rng: &mut Rng| DeviceClients {
        ordinal: rng.u32(..),
        bus: format!("{:02x}:{:02x}.0", rng.u8(..), rng.u8(..32)),
        name: name(rng),
        contexts: some(rng, 5, context),
    };
    values(
        |rng| some(rng, 4, device),
        |devices| {
            let mut printed = String::new();
            for device in devices {
                printed.push_str(&format!("[{}] {}, {}\n", device.ordinal, device.bus, device.name));
                for context in &device.contexts {
                    printed.push_str(&format!("{}.{}\n", context.pid, context.context));
                }
            }
            assert_eq!(device_client_list(printed.as_bytes()).as_ref(), Ok(devices), "{printed}");
        },
    );
}

#[test]
fn what_lspart_prints_is_read_back_in_both_shapes() {
    let device = |rng: &mut Rng| PartitionDevice {
        device_prefix: uuid(rng).as_str()[..12].to_owned(),
        free_chunks: rng.u32(..),
        used_chunks: rng.u32(..),
        free_sms: rng.u32(..),
        used_sms: rng.u32(..),
    };
    let partition = |rng: &mut Rng| Partition {
        device_prefix: uuid(rng).as_str()[..12].to_owned(),
        id: id(rng),
        chunks: rng.u32(..),
        sms: rng.u32(..),
        in_use: rng.choice([None, Some(true), Some(false)]).flatten(),
    };
    values(
        |rng| Partitions {
            devices: some(rng, 3, device).into_iter().chain([device(rng)]).collect(),
            partitions: some(rng, 5, partition),
        },
        |listed| {
            for dash in ["", " -"] {
                let mut printed = String::from("DEVICE PARTITION\n------\n");
                for PartitionDevice { device_prefix, free_chunks, used_chunks, free_sms, used_sms } in
                    &listed.devices
                {
                    printed.push_str(&format!(
                        "{device_prefix}{dash} {free_chunks} {used_chunks} {free_sms} {used_sms}{dash}\n"
                    ));
                }
                for Partition { device_prefix, id, chunks, sms, in_use } in &listed.partitions {
                    let used = in_use.map_or("", |used| if used { " Yes" } else { " No" });
                    printed.push_str(&format!("{device_prefix} {id}{dash} {chunks}{dash} {sms}{used}\n"));
                }
                assert_eq!(lspart(printed.as_bytes()).as_ref(), Ok(listed), "{printed}");
            }
        },
    );
}

fn id(rng: &mut Rng) -> PartitionId {
    let base64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let text: String = (0..36).map(|_| char::from(base64[rng.usize(..base64.len())])).collect();
    PartitionId::parse(&text).expect("an ID")
}

#[test]
fn what_values_print_is_read_back() {
    values(
        |rng| {
            let tenths = ThreadPercentage::from_tenths(rng.u16(1..=1000)).expect("in range");
            (tenths, MemoryLimit::from_mib(rng.u64(1..=crate::domain::memory::MAX_MIB)).expect("in range"))
        },
        |(tenths, limit)| {
            assert_eq!(percentage(format!("{tenths}\n").as_bytes()), Ok(*tenths));
            // MPS prints whole GiB as such (recording 03).
            let mib = limit.mib();
            let whole =
                if mib.is_multiple_of(1024) { format!("{}G\n", mib / 1024) } else { format!("{mib}M\n") };
            assert_eq!(memory_limit(whole.as_bytes()), Ok(Some(LimitReading::Whole(*limit))));
        },
    );
}
