//! Processes that wait for a slot: first come, first served.
//!
//! No request waits. A process repeats its request, and keeps its turn as long as it does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::is_alive;
use crate::domain::client::ClientId;
use crate::domain::occupancy::Lacking;
use crate::domain::{GpuUuid, TenantName};

/// A process that does not repeat its request loses its turn after this time, which is longer than a request may take. One that ends
/// loses it at once.
const FORGOTTEN: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Waiter {
    holder: ClientId,
    tenant: TenantName,
    /// The GPUs of its tenant.
    gpus: Vec<GpuUuid>,
    lacking: Lacking,
    seen: Instant,
}

/// The processes that wait, in the order in which they came.
#[derive(Debug)]
pub(in crate::service) struct LaunchQueue {
    waiters: Mutex<Vec<Waiter>>,
    is_alive: fn(ClientId) -> bool,
}

impl Default for LaunchQueue {
    fn default() -> Self {
        Self { waiters: Mutex::default(), is_alive }
    }
}

impl LaunchQueue {
    /// How many processes wait before this one for a slot that it could take, and what the first of them lacks: those of its tenant,
    /// and those that lack a slot on one of these GPUs.
    pub(super) fn ahead(
        &self,
        holder: ClientId,
        tenant: &TenantName,
        gpus: &[GpuUuid],
    ) -> Option<(usize, Lacking)> {
        let waiters = self.waiters();
        let before = waiters.iter().take_while(|one| one.holder != holder);
        let mut before = before.filter(|one| {
            let same_gpu = || one.gpus.iter().any(|gpu| gpus.contains(gpu));
            one.tenant == *tenant || (one.lacking == Lacking::GpuSlot && same_gpu())
        });
        let first = before.next()?.lacking;
        Some((before.count() + 1, first))
    }

    /// Puts a process at the end, unless it waits already.
    pub(super) fn wait(&self, holder: ClientId, tenant: &TenantName, gpus: Vec<GpuUuid>, lacking: Lacking) {
        let mut waiters = self.waiters();
        match waiters.iter_mut().find(|one| one.holder == holder && one.tenant == *tenant) {
            Some(waiter) => (waiter.seen, waiter.lacking, waiter.gpus) = (Instant::now(), lacking, gpus),
            None => {
                waiters.push(Waiter { holder, tenant: tenant.clone(), gpus, lacking, seen: Instant::now() });
            }
        }
    }

    /// Takes out a process that got its slot.
    pub(super) fn leave(&self, holder: ClientId) {
        self.waiters().retain(|one| one.holder != holder);
    }

    fn waiters(&self) -> MutexGuard<'_, Vec<Waiter>> {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.retain(|one| one.seen.elapsed() < FORGOTTEN && (self.is_alive)(one.holder));
        waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> LaunchQueue {
        LaunchQueue { waiters: Mutex::default(), is_alive: |holder| holder.pid != DEAD }
    }

    const DEAD: u32 = 99;

    fn process(pid: u32) -> ClientId {
        ClientId { pid, start_time: 1 }
    }

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).expect("a name")
    }

    fn gpu(number: u32) -> Vec<GpuUuid> {
        let uuid = format!("GPU-514466a0-8e68-f857-9f73-00000000000{number}");
        vec![GpuUuid::parse(&uuid).expect("a UUID")]
    }

    fn ahead(queue: &LaunchQueue, pid: u32, of: &str, on: u32) -> usize {
        queue.ahead(process(pid), &tenant(of), &gpu(on)).map_or(0, |(count, _)| count)
    }

    #[tokio::test(start_paused = true)]
    async fn order_of_arrival_is_kept() {
        let queue = queue();
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::GpuSlot);
        queue.wait(process(2), &tenant("b"), gpu(0), Lacking::GpuSlot);
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::GpuSlot);
        assert_eq!((ahead(&queue, 1, "a", 0), ahead(&queue, 2, "b", 0)), (0, 1));
        assert_eq!(ahead(&queue, 9, "c", 0), 2, "a newcomer");
        queue.leave(process(1));
        assert_eq!(ahead(&queue, 2, "b", 0), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn full_gpu_holds_up_no_other_gpu() {
        let queue = queue();
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::GpuSlot);
        assert_eq!((ahead(&queue, 2, "b", 0), ahead(&queue, 2, "b", 1)), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn full_tenant_holds_up_no_other() {
        let queue = queue();
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::TenantSlot);
        assert_eq!((ahead(&queue, 2, "b", 0), ahead(&queue, 2, "a", 0)), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn turn_ends_with_its_process_or_its_requests() {
        let queue = queue();
        queue.wait(process(DEAD), &tenant("a"), gpu(0), Lacking::GpuSlot);
        assert_eq!(ahead(&queue, 2, "b", 0), 0, "it has ended");
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::GpuSlot);
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(ahead(&queue, 2, "b", 0), 0, "it does not come back");
    }
}
