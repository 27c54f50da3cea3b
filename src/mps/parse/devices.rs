//! `device_query`, as a table and as CSV.

use super::clients::split_attributes;
use super::{ParseError, missing_server, not_understood, shown, text};

/// Fewest characters of a shortened UUID after its `GPU-`: `lspart` was seen with six.
const SHORTEST_UUID: usize = 6;

/// Devices that `device_query` lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Devices {
    /// The daemon's own list, then each server's.
    pub sections: Vec<DeviceSection>,
    /// Lines that were not understood.
    pub bad: Vec<String>,
}

/// The devices of the daemon or of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSection {
    /// PID of the server; `None` for what a server would be started with (`Default`).
    pub server: Option<u32>,
    /// Its devices.
    pub devices: Vec<DeviceRow>,
}

/// A device as the daemon or a server numbers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRow {
    /// The number that memory limit commands take; `None` for a GPU that clients see as MLOPart devices only.
    pub ordinal: Option<u32>,
    /// PCI address in MPS's own spelling, `0000:00.06.00`.
    pub pci: String,
    /// The UUID, which the documentation of MLOPart devices shows shortened.
    pub uuid: UuidPrefix,
    /// The product name.
    pub name: String,
    /// Its attributes: `N/A` wherever it was recorded, `M` for a GPU divided into MLOPart devices, and `MD` for one of these.
    pub attributes: String,
}

/// A UUID of a GPU, a MIG instance or an MLOPart device, or its beginning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UuidPrefix(String);

impl UuidPrefix {
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        (digits.len() >= SHORTEST_UUID && is_hex).then(|| Self(text.to_owned()))
    }

    /// Returns the text as the daemon printed it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Reads `device_query`, with or without `--csv`:
///
/// ```text
/// Default
/// Device Ordinal  PCI IDs        UUID                                      Name                              Attributes
/// 0               0000:00.06.00  GPU-514466a0-8e68-f857-9f73-e438010e48cb  NVIDIA H200                       N/A
///
/// Server 511
/// Device Ordinal  PCI IDs        UUID                                      Name                              Attributes
/// 0               0000:00.06.00  GPU-514466a0-8e68-f857-9f73-e438010e48cb  NVIDIA H200                       N/A
/// ```
/// A server with MLOPart devices, as documented (recording 29), where columns may be one blank apart:
/// ```text
/// Server 908527
/// Device Ordinal PCI IDs UUID Name Attributes
/// N/A 0000:20.00.00 GPU-1d925fce-3b7d NVIDIA B300 M
/// 0 0000:20.00.00 GPU-3b861d38-5e0c NVIDIA B300 MLOPart 0 MD
/// ```
/// ```text
/// Default
/// Device Ordinal,PCI IDs,UUID,Name,Attributes
/// 0,0000:00.06.00,GPU-63d36076-e242-e60f-b1d0-629fff0ef875,NVIDIA H200,N/A
/// ```
pub fn device_query(reply: &[u8]) -> Result<Devices, ParseError> {
    let text = text(reply)?;
    if let Some(server) = missing_server(text) {
        return Err(ParseError::ServerNotFound { server });
    }
    let mut devices = Devices::default();
    for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
        let heading = match line.strip_prefix("Server ") {
            Some(pid) => pid.parse().ok().map(Some),
            None => (line == "Default").then_some(None),
        };
        if let Some(server) = heading {
            devices.sections.push(DeviceSection { server, devices: Vec::new() });
        } else if !line.starts_with("Device Ordinal") {
            let section = devices.sections.last_mut();
            match section.and_then(|section| device_row(line).map(|row| section.devices.push(row))) {
                Some(()) => {}
                None => devices.bad.push(shown(line)),
            }
        }
    }
    if devices.sections.is_empty() {
        return Err(not_understood("a list of devices", reply));
    }
    Ok(devices)
}

fn device_row(line: &str) -> Option<DeviceRow> {
    let fields = if line.contains(',') { comma_separated(line)? } else { in_columns(line)? };
    let [ordinal, pci, uuid, name, attributes] = fields;
    Some(DeviceRow {
        ordinal: if ordinal == "N/A" { None } else { Some(ordinal.parse().ok()?) },
        pci: pci.to_owned(),
        uuid: UuidPrefix::parse(uuid)?,
        name: name.to_owned(),
        attributes: attributes.to_owned(),
    })
}

fn comma_separated(line: &str) -> Option<[&str; 5]> {
    line.splitn(5, ',').map(str::trim).collect::<Vec<_>>().try_into().ok()
}

/// Splits a line into columns. A name has blanks, so the attributes are what comes after two of them, or a last word that is one.
fn in_columns(line: &str) -> Option<[&str; 5]> {
    let (ordinal, rest) = line.split_once(' ')?;
    let (pci, rest) = rest.trim_start().split_once(' ')?;
    let (uuid, rest) = rest.trim_start().split_once(' ')?;
    let rest = rest.trim();
    let (name, attributes) = match rest.split_once("  ") {
        Some((name, attributes)) => (name, attributes.trim()),
        None => split_attributes(rest),
    };
    Some([ordinal, pci, uuid, name, attributes])
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "Default\n\
        Device Ordinal  PCI IDs        UUID                                      Name                              Attributes\n\
        0               0000:00.06.00  GPU-63d36076-e242-e60f-b1d0-629fff0ef875  NVIDIA H200                       N/A\n\
        \n\
        Server 856\n\
        Device Ordinal  PCI IDs        UUID                                      Name                              Attributes\n\
        0               0000:00.06.00  GPU-63d36076-e242-e60f-b1d0-629fff0ef875  NVIDIA H200                       N/A\n";
    const CSV: &str = "Default\n\
        Device Ordinal,PCI IDs,UUID,Name,Attributes\n\
        0,0000:00.06.00,GPU-63d36076-e242-e60f-b1d0-629fff0ef875,NVIDIA H200,N/A\n\
        \n\
        Server 856\n\
        Device Ordinal,PCI IDs,UUID,Name,Attributes\n\
        0,0000:00.06.00,GPU-63d36076-e242-e60f-b1d0-629fff0ef875,NVIDIA H200,N/A\n";

    #[test]
    fn the_table_and_the_csv_say_the_same() {
        let table = device_query(TABLE.as_bytes()).expect("table");
        assert_eq!(table, device_query(CSV.as_bytes()).expect("csv"));
        assert_eq!(
            table.sections.iter().map(|section| section.server).collect::<Vec<_>>(),
            [None, Some(856)]
        );
        assert_eq!(table.sections[1].devices[0].name, "NVIDIA H200");
        assert!(table.bad.is_empty());
    }

    #[test]
    fn mlopart_devices_follow_their_gpu() {
        let listed = device_query(
            b"Default\n\
              Device Ordinal PCI IDs UUID Name Attributes\n\
              0 0000:20.00.00 GPU-1d925fce-3b7d NVIDIA B300\n\
              Server 908527\n\
              Device Ordinal PCI IDs UUID Name Attributes\n\
              N/A 0000:20.00.00 GPU-1d925fce-3b7d NVIDIA B300 M\n\
              0 0000:20.00.00 GPU-3b861d38-5e0c NVIDIA B300 MLOPart 0 MD\n\
              1               0000:20.00.00  GPU-d74bb67a-2db6  NVIDIA B300 MLOPart 1  MD\n",
        );
        let listed = listed.expect("two sections");
        let rows = |section: &DeviceSection| {
            let row = |row: &DeviceRow| (row.ordinal, row.name.clone(), row.attributes.clone());
            section.devices.iter().map(row).collect::<Vec<_>>()
        };
        let row = |ordinal, name: &str, attributes: &str| (ordinal, name.to_owned(), attributes.to_owned());
        assert_eq!(rows(&listed.sections[0]), [row(Some(0), "NVIDIA B300", "")]);
        assert_eq!(
            rows(&listed.sections[1]),
            [
                row(None, "NVIDIA B300", "M"),
                row(Some(0), "NVIDIA B300 MLOPart 0", "MD"),
                row(Some(1), "NVIDIA B300 MLOPart 1", "MD"),
            ]
        );
        assert_eq!(listed.sections[1].devices[2].uuid.as_str(), "GPU-d74bb67a-2db6");
        assert!(listed.bad.is_empty());
    }

    #[test]
    fn malformed_device_line_is_kept_separately() {
        let devices = device_query(b"Default\n0,x,MIG-1,NVIDIA H200,N/A\n").expect("a section");
        assert_eq!(devices.bad, ["0,x,MIG-1,NVIDIA H200,N/A"]);
        assert!(device_query(b"").is_err());
        assert_eq!(device_query(b"Server 1 not found\n"), Err(ParseError::ServerNotFound { server: 1 }));
    }
}
