//! `device_query`, as a table and as CSV.

use crate::domain::GpuUuid;

use super::{ParseError, missing_server, not_understood, shown, text};

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
    /// The number that memory limit commands take.
    pub ordinal: u32,
    /// PCI address in MPS's own spelling, `0000:00.06.00`.
    pub pci: String,
    /// The UUID.
    pub uuid: GpuUuid,
    /// The product name.
    pub name: String,
    /// `N/A` wherever it was recorded.
    pub attributes: String,
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
    let fields: Vec<&str> = if line.contains(',') {
        line.splitn(5, ',').map(str::trim).collect()
    } else {
        // A name has single blanks, columns are two or more apart.
        line.split("  ").map(str::trim).filter(|field| !field.is_empty()).collect()
    };
    let [ordinal, pci, uuid, name, attributes] = fields.as_slice() else { return None };
    Some(DeviceRow {
        ordinal: ordinal.parse().ok()?,
        pci: (*pci).to_owned(),
        uuid: GpuUuid::parse(uuid).ok()?,
        name: (*name).to_owned(),
        attributes: (*attributes).to_owned(),
    })
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
    fn malformed_device_line_is_kept_separately() {
        let devices = device_query(b"Default\n0,x,MIG-1,NVIDIA H200,N/A\n").expect("a section");
        assert_eq!(devices.bad, ["0,x,MIG-1,NVIDIA H200,N/A"]);
        assert!(device_query(b"").is_err());
        assert_eq!(device_query(b"Server 1 not found\n"), Err(ParseError::ServerNotFound { server: 1 }));
    }
}
