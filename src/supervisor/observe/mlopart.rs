//! MLOPart devices of a server, by its list of devices.

use crate::domain::GpuUuid;
use crate::domain::daemon::{Server, ServerStatus};
use crate::domain::mlopart::MlopartDevice;
use crate::mps::Capability;
use crate::mps::parse::{DeviceSection, Devices};

/// Servers whose devices are read: those of a server never change.
#[derive(Clone, Copy)]
pub(crate) struct MlopartReading<'s> {
    /// True if the daemon's servers are to have MLOPart devices.
    pub(crate) are_desired: bool,
    /// Servers of the poll before.
    pub(crate) before: &'s [Server],
}

impl<'s> MlopartReading<'s> {
    /// Returns what is to be read where the control program can have such devices.
    pub(crate) fn of(capability: &Capability, are_desired: bool, before: &'s [Server]) -> Option<Self> {
        capability.lacks_mlopart().is_none().then_some(Self { are_desired, before })
    }

    fn known(&self, server: &Server) -> Option<&Server> {
        let is_it = |before: &&Server| (before.pid, before.start_time) == (server.pid, server.start_time);
        self.before.iter().find(is_it)
    }

    /// Returns true if a server that takes clients was not read before, or had no devices yet that it is to have.
    pub(super) fn is_due(&self, servers: &[Server]) -> bool {
        let is_read = |before: &Server| {
            before.status == ServerStatus::Active
                && (!self.are_desired || before.mlopart_devices.is_some())
                && !before.lacks_mlopart()
        };
        let mut active = servers.iter().filter(|server| server.status == ServerStatus::Active);
        active.any(|server| !self.known(server).is_some_and(is_read))
    }

    /// Fills in the devices of the servers that take clients.
    pub(super) fn fill(&self, servers: &mut [Server], listed: &Devices, gpus: &[GpuUuid]) {
        self.keep(servers);
        for server in servers.iter_mut().filter(|server| server.status == ServerStatus::Active) {
            let of_server = listed.sections.iter().filter(|section| section.server == Some(server.pid));
            let devices: Vec<MlopartDevice> =
                of_server.flat_map(|section| mlopart_devices(section, gpus)).collect();
            server.mlopart_devices = (self.are_desired || !devices.is_empty()).then_some(devices);
        }
    }

    /// Keeps the devices of servers that were read before.
    pub(super) fn keep(&self, servers: &mut [Server]) {
        for server in servers {
            server.mlopart_devices = self.known(server).and_then(|before| before.mlopart_devices.clone());
        }
    }
}

/// Returns the MLOPart devices in a server's list: each follows the GPU that it is a part of, which has no number there.
fn mlopart_devices(section: &DeviceSection, gpus: &[GpuUuid]) -> Vec<MlopartDevice> {
    let (mut gpu, mut number) = (None, 0);
    let mut devices = Vec::new();
    for row in &section.devices {
        let uuid = row.uuid.as_str();
        if row.ordinal.is_none() {
            gpu = gpus.iter().find(|gpu| gpu.as_str().starts_with(uuid));
            number = 0;
        } else if let Some(gpu) = gpu.filter(|_| row.attributes.contains('D')) {
            devices.push(MlopartDevice { gpu: gpu.clone(), number, uuid: uuid.to_owned() });
            number += 1;
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mps::parse;

    /// The table of NVIDIA's documentation, cut after the second GPU.
    const DOCUMENTED: &str = "Server 908527\n\
        Device Ordinal PCI IDs UUID Name Attributes\n\
        N/A 0000:20.00.00 GPU-1d925fce-3b7d NVIDIA B300 M\n\
        0 0000:20.00.00 GPU-3b861d38-5e0c NVIDIA B300 MLOPart 0 MD\n\
        1 0000:20.00.00 GPU-d74bb67a-2db6 NVIDIA B300 MLOPart 1 MD\n\
        N/A 0000:48.00.00 GPU-468af2de-d4f0 NVIDIA B300 M\n\
        2 0000:48.00.00 GPU-5b669fd8-1170 NVIDIA B300 MLOPart 0 MD\n\
        3 0000:48.00.00 GPU-1e489f1a-6f85 NVIDIA B300 MLOPart 1 MD\n";

    fn gpu(start: &str) -> GpuUuid {
        GpuUuid::parse(&format!("GPU-{start}-f857-9f73-e438010e48cb")).expect("a UUID")
    }

    fn devices(text: &str, gpus: &[GpuUuid]) -> Vec<(String, String)> {
        let listed = parse::device_query(text.as_bytes()).expect("a list");
        let devices = mlopart_devices(&listed.sections[0], gpus);
        devices.into_iter().map(|device| (device.name().to_string(), device.uuid)).collect()
    }

    #[test]
    fn documented_devices_are_those_of_their_gpus() {
        let gpus = [gpu("1d925fce-3b7d"), gpu("468af2de-d4f0")];
        let named =
            |at: usize, number: u32, uuid: &str| (gpus[at].with_mlo(number).to_string(), uuid.to_owned());
        assert_eq!(
            devices(DOCUMENTED, &gpus),
            [
                named(0, 0, "GPU-3b861d38-5e0c"),
                named(0, 1, "GPU-d74bb67a-2db6"),
                named(1, 0, "GPU-5b669fd8-1170"),
                named(1, 1, "GPU-1e489f1a-6f85"),
            ]
        );
        // Of a GPU that is not the daemon's there are none.
        assert_eq!(devices(DOCUMENTED, &gpus[1..]).len(), 2);
    }

    #[test]
    fn whole_gpus_are_no_mlopart_devices() {
        let whole = "Server 7\nDevice Ordinal  PCI IDs  UUID  Name  Attributes\n\
                     0  0000:00.06.00  GPU-1d925fce-3b7d-f857-9f73-e438010e48cb  NVIDIA H200  N/A\n";
        assert_eq!(devices(whole, &[gpu("1d925fce-3b7d")]), []);
    }
}
