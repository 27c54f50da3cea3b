//! Replies at volume: recordings with mutations, the words of their grammar, and bytes.
#![allow(
    clippy::format_push_string,
    clippy::format_collect,
    reason = "what a program prints reads best as one format"
)]

use proptest::collection::vec;
use proptest::prelude::*;

use super::recordings::replies;
use super::*;
use crate::domain::{GpuUuid, MemoryLimit, PartitionId, ThreadPercentage};
use crate::fuzz::{Inputs, values};

/// Refusals that may come in place of any reply.
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

fn pid() -> impl Strategy<Value = u32> {
    1..=4_194_304_u32
}

fn uuid() -> impl Strategy<Value = GpuUuid> {
    "GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
        .prop_map(|text| GpuUuid::parse(&text).expect("a UUID"))
}

/// As many letters of a UUID as a list shows.
fn prefix(length: usize) -> impl Strategy<Value = String> {
    uuid().prop_map(move |uuid| uuid.as_str()[..length].to_owned())
}

fn id() -> impl Strategy<Value = PartitionId> {
    "[A-Za-z0-9+/]{36}".prop_map(|text| PartitionId::parse(&text).expect("an ID"))
}

/// A name as a process or a product may have it: anything on one line, without blanks around it.
const NAME: &str = "x([ -~]|\\PC){0,40}x";

fn pci() -> impl Strategy<Value = (u8, u8)> {
    (any::<u8>(), 0..32_u8)
}

#[test]
fn printed_lists_are_read_back() {
    values(vec(pid(), 0..=20), |pids| {
        let printed: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
        assert_eq!(server_list(printed.as_bytes()).as_ref(), Ok(pids));
        assert_eq!(client_list(printed.as_bytes()).as_ref(), Ok(pids));
    });
}

#[test]
fn printed_ps_rows_are_read_back() {
    let row = (pid(), any::<u64>(), pid(), prefix(22), any::<u64>(), NAME).prop_map(
        |(pid, id, server, device_prefix, namespace, command)| ClientRow {
            pid,
            id,
            server,
            device_prefix,
            namespace,
            command,
            attributes: String::new(),
        },
    );
    values(vec(row, 0..=8), |rows| {
        let mut printed = WORDS[22].to_owned();
        for ClientRow { pid, id, server, device_prefix, namespace, command, .. } in rows {
            printed.push_str(&format!(
                "{pid:<9} {id:<9} {server:<14} {device_prefix:<25} {namespace:<14} {command:<15}\n"
            ));
        }
        let expected = Clients::Listed { rows: rows.clone(), bad: Vec::new() };
        assert_eq!(clients(printed.as_bytes()), Ok(expected), "{printed}");
    });
}

#[test]
fn printed_device_lists_are_read_back() {
    let row = (any::<Option<u32>>(), pci(), uuid(), NAME).prop_map(|(ordinal, (bus, slot), uuid, name)| {
        DeviceRow {
            ordinal,
            pci: format!("0000:{bus:02x}.{slot:02x}.00"),
            uuid: UuidPrefix::parse(uuid.as_str()).expect("a UUID"),
            // Columns are parted by two blanks or a comma, and products have neither in their names.
            name: name.replace([' ', ','], "_"),
            attributes: "N/A".to_owned(),
        }
    });
    let section = (pid(), vec(row, 0..=4))
        .prop_map(|(server, devices)| DeviceSection { server: Some(server), devices });
    values(vec(section, 0..=3), |servers| {
        let mut sections = servers.clone();
        sections.insert(0, DeviceSection { server: None, devices: Vec::new() });
        for separator in [",", "   "] {
            let mut printed = String::new();
            for DeviceSection { server, devices } in &sections {
                printed.push_str(&server.map_or("Default\n".to_owned(), |pid| format!("Server {pid}\n")));
                printed.push_str("Device Ordinal\n");
                for DeviceRow { ordinal, pci, uuid, name, attributes } in devices {
                    let ordinal = ordinal.map_or("N/A".to_owned(), |ordinal| ordinal.to_string());
                    let fields = [&ordinal, pci, uuid.as_str(), name, attributes].map(ToString::to_string);
                    printed.push_str(&fields.join(separator));
                    printed.push('\n');
                }
                printed.push('\n');
            }
            let expected = Devices { sections: sections.clone(), bad: Vec::new() };
            assert_eq!(device_query(printed.as_bytes()), Ok(expected), "{printed}");
        }
    });
}

#[test]
fn printed_context_lists_are_read_back() {
    let context = (pid(), any::<u32>()).prop_map(|(pid, context)| DeviceContext { pid, context });
    let device = (any::<u32>(), pci(), NAME, vec(context, 0..=5)).prop_map(
        |(ordinal, (bus, slot), name, contexts)| DeviceClients {
            ordinal,
            bus: format!("{bus:02x}:{slot:02x}.0"),
            name,
            contexts,
        },
    );
    values(vec(device, 0..=4), |devices| {
        let mut printed = String::new();
        for device in devices {
            printed.push_str(&format!("[{}] {}, {}\n", device.ordinal, device.bus, device.name));
            for context in &device.contexts {
                printed.push_str(&format!("{}.{}\n", context.pid, context.context));
            }
        }
        assert_eq!(device_client_list(printed.as_bytes()).as_ref(), Ok(devices), "{printed}");
    });
}

#[test]
fn printed_lspart_is_read_back_in_both_shapes() {
    let device = (prefix(12), any::<[u32; 4]>()).prop_map(
        |(device_prefix, [free_chunks, used_chunks, free_sms, used_sms])| PartitionDevice {
            device_prefix,
            free_chunks,
            used_chunks,
            free_sms,
            used_sms,
        },
    );
    let partition = (prefix(12), id(), any::<[u32; 2]>(), any::<Option<bool>>()).prop_map(
        |(device_prefix, id, [chunks, sms], in_use)| Partition { device_prefix, id, chunks, sms, in_use },
    );
    values(
        (vec(device, 1..=4), vec(partition, 0..=5))
            .prop_map(|(devices, partitions)| Partitions { devices, partitions }),
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

#[test]
fn printed_values_are_read_back() {
    values((1..=1000_u16, 1..=crate::domain::memory::MAX_MIB), |(tenths, mib)| {
        let tenths = ThreadPercentage::from_tenths(*tenths).expect("in range");
        let limit = MemoryLimit::from_mib(*mib).expect("in range");
        assert_eq!(percentage(format!("{tenths}\n").as_bytes()), Ok(tenths));
        // MPS prints whole GiB as such (recording 03).
        let whole = if mib.is_multiple_of(1024) { format!("{}G\n", mib / 1024) } else { format!("{mib}M\n") };
        assert_eq!(memory_limit(whole.as_bytes()), Ok(Some(LimitReading::Whole(limit))));
    });
}
