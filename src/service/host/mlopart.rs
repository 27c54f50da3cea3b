//! MLOPart devices of the daemons' servers, as devices of the host.
//!
//! The driver does not list them: their UUIDs are those that a server lists, and their SMs and memory are those that a client has seen.

use std::collections::BTreeMap;

use crate::domain::device_index::{DeviceIndex, DevicePart};
use crate::domain::environment::THREAD_PERCENTAGE;
use crate::domain::gpu::Gpu;
use crate::domain::mlopart::MlopartDevice;
use crate::domain::verification::VerifiedDevice;
use crate::domain::{DaemonName, GpuUuid};
use crate::service::{Backend, Result};
use crate::store;
use crate::supervisor::Observed;

/// Returns the devices of the servers of a daemon.
fn devices(observed: &Observed) -> Vec<MlopartDevice> {
    let effective = observed.status.effective.as_ref();
    effective.iter().flat_map(|effective| effective.mlopart_devices()).cloned().collect()
}

impl Backend {
    /// Returns the MLOPart devices of a daemon's server; none without one.
    pub(in crate::service) fn mlopart_devices_of(&self, daemon: &DaemonName) -> Vec<MlopartDevice> {
        self.parts.fleet.get(daemon).map(|handle| devices(&handle.observed())).unwrap_or_default()
    }

    /// Adds the MLOPart devices of all servers to the GPUs, each after its GPU.
    pub(in crate::service) async fn with_mlopart(&self, gpus: Vec<Gpu>) -> Result<Vec<Gpu>> {
        let listed: Vec<MlopartDevice> =
            self.parts.fleet.of_each(devices).into_iter().flat_map(|(_, devices)| devices).collect();
        if listed.is_empty() {
            return Ok(gpus);
        }
        let seen = self.seen_by_clients().await?;
        let part = |gpu: &Gpu, device: &MlopartDevice| {
            let uuid = device.name();
            let (sms, memory) = seen.get(&uuid).copied().unzip();
            Gpu {
                index: DeviceIndex { part: Some(DevicePart::Mlo(device.number)), ..gpu.index },
                name: format!("{} MLOPart {}", gpu.name, device.number),
                sms: sms.flatten(),
                memory_total: memory,
                memory_used: None,
                compute_mode: None,
                mlopart: Some(device.clone()),
                uuid,
                ..gpu.clone()
            }
        };
        let with_parts = |gpu: Gpu| {
            let of_gpu = listed.iter().filter(|device| device.gpu == gpu.uuid);
            let parts: Vec<Gpu> = of_gpu.map(|device| part(&gpu, device)).collect();
            [vec![gpu], parts].concat()
        };
        Ok(gpus.into_iter().flat_map(with_parts).collect())
    }

    /// Returns what verified clients saw of MLOPart devices: the memory, and the SMs if no share was in force.
    async fn seen_by_clients(&self) -> Result<BTreeMap<GpuUuid, (Option<u32>, u64)>> {
        let tenants = self.stored_tenants().await?;
        let (Some(first), Some(last)) = (
            tenants.iter().map(|tenant| &tenant.name).min(),
            tenants.iter().map(|tenant| &tenant.name).max(),
        ) else {
            return Ok(BTreeMap::new());
        };
        let mut reader = self.parts.store.read().await?;
        let verifications = store::verifications::between(&mut reader, first, last).await?;
        let mut seen = BTreeMap::new();
        for result in verifications.into_values().filter_map(|verification| verification.last) {
            let is_whole = !result.environment.contains_key(THREAD_PERCENTAGE);
            for VerifiedDevice { gpu, sms, memory_total } in result.devices {
                let entry: &mut (Option<u32>, u64) = seen.entry(gpu).or_insert((None, memory_total));
                entry.0 = entry.0.or(is_whole.then_some(sms));
            }
        }
        Ok(seen)
    }
}
