//! Processes that wait for a slot: first come, first served.
//!
//! No request waits. A process repeats its request, and keeps its turn as long as it does. The queue is in memory: after a restart of the
//! manager, who waited before comes back within a second, and is put in the order in which the processes started.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::is_alive;
use crate::domain::client::ClientId;
use crate::domain::occupancy::Lacking;
use crate::domain::{GpuUuid, TenantName};
use crate::host;

/// A process that does not repeat its request loses its turn after this time; `run` repeats it twice a second. One that ends loses it at
/// once, and one whose request is being decided keeps it.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// Time for which processes that waited for an earlier manager may come back, once the first of them has, before one gets a slot.
const RETURN: Duration = Duration::from_secs(1);
/// Time after the manager's start during which older processes may have waited for an earlier one.
const RETURN_EXPECTED: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct Waiter {
    holder: ClientId,
    tenant: TenantName,
    /// The GPUs of its tenant.
    gpus: Vec<GpuUuid>,
    lacking: Lacking,
    seen: Instant,
}

#[derive(Debug, Default)]
struct WaitingLaunches {
    /// In the order of their turns.
    waiters: Vec<Waiter>,
    /// Processes whose requests are being decided.
    deciding: Vec<ClientId>,
    /// The time at which the first process came back that had waited for an earlier manager.
    first_return: Option<Instant>,
}

/// The processes that wait, in the order in which they came.
#[derive(Debug)]
pub(in crate::service) struct LaunchQueue {
    launches: Mutex<WaitingLaunches>,
    is_alive: fn(ClientId) -> bool,
    /// The start of this manager, as an instant and as a start time of processes.
    started: (Instant, u64),
}

impl Default for LaunchQueue {
    fn default() -> Self {
        let start_time = host::process::identify(std::process::id()).map_or(0, |process| process.start_time);
        Self { launches: Mutex::default(), is_alive, started: (Instant::now(), start_time) }
    }
}

/// A request of a process that is being decided.
#[derive(Debug)]
pub(super) struct PendingLaunch<'q> {
    queue: &'q LaunchQueue,
    holder: ClientId,
}

impl Drop for PendingLaunch<'_> {
    fn drop(&mut self) {
        let mut launches = self.queue.launches();
        let WaitingLaunches { waiters, deciding, .. } = &mut *launches;
        if let Some(at) = deciding.iter().position(|holder| *holder == self.holder) {
            deciding.swap_remove(at);
        }
        for waiter in waiters.iter_mut().filter(|waiter| waiter.holder == self.holder) {
            waiter.seen = Instant::now();
        }
    }
}

impl LaunchQueue {
    /// Notes that a request of this process is being decided, until the answer is dropped.
    pub(super) fn decide(&self, holder: ClientId) -> PendingLaunch<'_> {
        self.launches().deciding.push(holder);
        PendingLaunch { queue: self, holder }
    }

    /// Returns true if a process that wants to wait gets no slot yet, because others that waited before it may still come back after a
    /// restart of the manager.
    pub(super) fn awaits_return(&self, holder: ClientId) -> bool {
        if !self.may_return(holder) {
            return false;
        }
        self.launches().first_return.get_or_insert_with(Instant::now).elapsed() < RETURN
    }

    /// Returns true if a process may have waited for an earlier manager.
    fn may_return(&self, holder: ClientId) -> bool {
        let (at, start_time) = self.started;
        holder.start_time < start_time && at.elapsed() < RETURN_EXPECTED
    }

    /// Counts the processes that wait before this one for a slot that it could take: those of its tenant, and those that lack a slot on one
    /// of these GPUs. Returns also the kind of slot that the first of them lacks; `None` if there are none.
    pub(super) fn ahead(
        &self,
        holder: ClientId,
        tenant: &TenantName,
        gpus: &[GpuUuid],
    ) -> Option<(usize, Lacking)> {
        let launches = self.launches();
        let before = launches.waiters.iter().take_while(|waiter| waiter.holder != holder);
        let mut before = before.filter(|waiter| {
            let same_gpu = || waiter.gpus.iter().any(|gpu| gpus.contains(gpu));
            waiter.tenant == *tenant || (waiter.lacking == Lacking::GpuSlot && same_gpu())
        });
        let first = before.next()?.lacking;
        Some((before.count() + 1, first))
    }

    /// Adds a process after the others, unless it waits already; one that waited for an earlier manager comes before those that started
    /// after it.
    pub(super) fn wait(&self, holder: ClientId, tenant: &TenantName, gpus: Vec<GpuUuid>, lacking: Lacking) {
        let returns = self.may_return(holder);
        let mut launches = self.launches();
        let waiters = &mut launches.waiters;
        match waiters.iter_mut().find(|waiter| waiter.holder == holder && waiter.tenant == *tenant) {
            Some(waiter) => (waiter.seen, waiter.lacking, waiter.gpus) = (Instant::now(), lacking, gpus),
            None => {
                let age = |process: ClientId| (process.start_time, process.pid);
                let after = waiters.iter().position(|waiter| returns && age(waiter.holder) > age(holder));
                let waiter = Waiter { holder, tenant: tenant.clone(), gpus, lacking, seen: Instant::now() };
                waiters.insert(after.unwrap_or(waiters.len()), waiter);
            }
        }
    }

    /// Removes a process that got its slot.
    pub(super) fn leave(&self, holder: ClientId) {
        self.launches().waiters.retain(|waiter| waiter.holder != holder);
    }

    /// Counts the waiting processes of a tenant.
    pub(in crate::service) fn count(&self, tenant: &TenantName) -> u64 {
        let launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let waiting = launches
            .waiters
            .iter()
            .filter(|waiter| waiter.tenant == *tenant && self.keeps_turn(waiter, &launches.deciding));
        u64::try_from(waiting.count()).unwrap_or(u64::MAX)
    }

    /// Counts the waiting processes of each tenant.
    pub(in crate::service) fn counts(&self) -> BTreeMap<TenantName, u64> {
        let mut counts = BTreeMap::new();
        for waiter in &self.launches().waiters {
            *counts.entry(waiter.tenant.clone()).or_default() += 1;
        }
        counts
    }

    fn launches(&self) -> MutexGuard<'_, WaitingLaunches> {
        let mut launches = self.launches.lock().unwrap_or_else(PoisonError::into_inner);
        let WaitingLaunches { waiters, deciding, .. } = &mut *launches;
        waiters.retain(|waiter| self.keeps_turn(waiter, deciding));
        launches
    }

    fn keeps_turn(&self, waiter: &Waiter, deciding: &[ClientId]) -> bool {
        let repeats = waiter.seen.elapsed() < FORGOTTEN || deciding.contains(&waiter.holder);
        repeats && (self.is_alive)(waiter.holder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// That of a manager that started at 100 ticks.
    fn queue() -> LaunchQueue {
        let is_alive = |holder: ClientId| holder.pid != DEAD;
        LaunchQueue { launches: Mutex::default(), is_alive, started: (Instant::now(), 100) }
    }

    const DEAD: u32 = 99;

    fn process(pid: u32) -> ClientId {
        ClientId { pid, start_time: 200 }
    }

    /// One that is older than the manager.
    fn old(pid: u32) -> ClientId {
        ClientId { pid, start_time: pid.into() }
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

    #[tokio::test(start_paused = true)]
    async fn turn_is_kept_while_request_is_decided() {
        let queue = queue();
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::GpuSlot);
        let request = queue.decide(process(1));
        tokio::time::advance(2 * FORGOTTEN).await;
        assert_eq!(ahead(&queue, 2, "b", 0), 1);
        drop(request);
        assert_eq!(ahead(&queue, 2, "b", 0), 1, "it has just been answered");
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(ahead(&queue, 2, "b", 0), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn order_survives_a_restart_of_the_manager() {
        let queue = queue();
        queue.wait(process(1), &tenant("a"), gpu(0), Lacking::TenantSlot);
        for pid in [30, 10, 20] {
            assert!(queue.awaits_return(old(pid)), "others may come back");
            queue.wait(old(pid), &tenant("a"), gpu(0), Lacking::TenantSlot);
        }
        let before = |holder| queue.ahead(holder, &tenant("a"), &gpu(0)).map_or(0, |(count, _)| count);
        assert_eq!([10, 20, 30].map(|pid| before(old(pid))), [0, 1, 2]);
        assert_eq!(before(process(1)), 3, "it came after the restart");
        assert!(!queue.awaits_return(process(1)));
        assert_eq!(queue.counts(), BTreeMap::from([(tenant("a"), 4)]));
        tokio::time::advance(RETURN).await;
        assert!(!queue.awaits_return(old(10)));
    }
}
