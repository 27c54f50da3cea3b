//! Vitals of the GPUs, read where the GPUs are polled.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::GpuUuid;
use crate::domain::gpu::Gpu;
use crate::domain::vitals::GpuVitals;
use crate::host::kernel_log::{self, kernel_address};
use crate::service::{Backend, Result, unavailable};

/// Number of polls from one reading of the kernel's log to the next: a reading takes some milliseconds.
const POLLS: u32 = 12;

/// Counts the Xids in the kernel's log since its creation, by PCI address.
pub(super) struct XidCounter {
    polls: u32,
    /// Time of the last message that was counted, or of the beginning, since the start of the host.
    read_until: Duration,
    /// `None` once the log could not be read: then the number is not known any more.
    counts: Option<BTreeMap<String, u64>>,
}

impl XidCounter {
    pub(super) fn new() -> Self {
        Self { polls: 0, read_until: kernel_log::uptime(), counts: Some(BTreeMap::new()) }
    }

    /// Adds the messages since the last reading, at every twelfth call.
    async fn update(&mut self, log: &Path) {
        let is_due = self.polls.is_multiple_of(POLLS);
        self.polls = self.polls.wrapping_add(1);
        let Some(mut counts) = self.counts.take_if(|_| is_due) else { return };
        let log = log.to_owned();
        let logged = tokio::task::spawn_blocking(move || kernel_log::xids(&log)).await;
        let Ok(Ok(logged)) = logged else { return };
        let last = logged.iter().map(|xid| xid.logged).max();
        for xid in logged.into_iter().filter(|xid| xid.logged > self.read_until) {
            *counts.entry(xid.pci).or_default() += 1;
        }
        self.read_until = self.read_until.max(last.unwrap_or_default());
        self.counts = Some(counts);
    }

    fn of(&self, gpu: &Gpu) -> Option<u64> {
        let (counts, address) = (self.counts.as_ref()?, gpu.pci_bus_id.as_deref()?);
        Some(counts.get(&kernel_address(address)).copied().unwrap_or(0))
    }
}

impl Backend {
    /// Returns the GPUs that the driver lists now, after their vitals were read.
    pub(super) async fn poll_gpus(&self, xids: &mut XidCounter) -> Result<Vec<Gpu>> {
        let polled = self.query_inventory(|inventory| {
            let gpus = inventory.gpus()?;
            let uuids: Vec<GpuUuid> = gpus.iter().map(|gpu| gpu.uuid.clone()).collect();
            // GPUs without vitals are GPUs all the same.
            Ok((gpus, inventory.vitals(&uuids).unwrap_or_default()))
        });
        let polled = polled.await.and_then(|polled| polled.map_err(unavailable));
        xids.update(&self.parts.fleet.context().kernel_log).await;
        let mut read = BTreeMap::new();
        if let Ok((gpus, vitals)) = &polled {
            for (uuid, vitals) in vitals {
                let xids = gpus.iter().find(|gpu| gpu.uuid == *uuid).and_then(|gpu| xids.of(gpu));
                read.insert(uuid.clone(), GpuVitals { xids, ..vitals.clone() });
            }
        }
        self.vitals.send_replace(Arc::new(read));
        Ok(polled?.0)
    }

    /// Returns the vitals of a GPU at the last poll; `None` while the driver is not queried.
    pub(super) fn vitals_of(&self, gpu: &GpuUuid) -> Option<GpuVitals> {
        self.parts.inventory.live().then(|| self.vitals.borrow().get(gpu).cloned()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    #[tokio::test]
    async fn xids_are_counted_once_and_by_gpu() {
        let folder = tempfile::tempdir_in("/tmp").expect("directory");
        let log = folder.path().join("kernel.log");
        let line = |pci: &str, uptime: u64| format!("4,1,{uptime},-;NVRM: Xid (PCI:{pci}): 31, pid=1\n");
        let uptime = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1000
        };
        std::fs::write(&log, line("0000:06:00", 1)).expect("written");
        let mut xids = XidCounter::new();
        xids.update(&log).await;
        assert_eq!((xids.of(&h200(0)), xids.of(&h200(1))), (Some(0), Some(0)), "an old one counts nothing");
        std::fs::write(&log, line("0000:06:00", uptime()) + &line("0000:06:00", uptime())).expect("written");
        for _ in 0..2 * POLLS {
            xids.update(&log).await;
        }
        assert_eq!((xids.of(&h200(0)), xids.of(&h200(1))), (Some(2), Some(0)));
        std::fs::remove_file(&log).expect("removed");
        for _ in 0..POLLS {
            xids.update(&log).await;
        }
        assert_eq!(xids.of(&h200(0)), None, "not known any more");
    }
}
