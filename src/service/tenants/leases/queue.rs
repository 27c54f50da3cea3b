//! Processes that wait for a place: first come, first served.
//!
//! A process keeps its turn while its requests follow each other, so that no request has to be as long as the wait.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::domain::client::ClientId;
use crate::domain::occupancy::Lacking;
use crate::domain::{DaemonName, TenantName};

/// A process that does not come back loses its turn after this time.
const FORGOTTEN: Duration = Duration::from_secs(5);

#[derive(Debug)]
struct Waiter {
    holder: ClientId,
    tenant: TenantName,
    daemon: DaemonName,
    lacking: Lacking,
    seen: Instant,
}

/// The processes that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(in crate::service) struct LaunchQueue(Mutex<Vec<Waiter>>);

impl LaunchQueue {
    /// How many processes wait before this one for a place that it could take, and what the first of them lacks: those of its tenant,
    /// and those that lack a place on a GPU of its daemon.
    pub(super) fn ahead(
        &self,
        holder: ClientId,
        tenant: &TenantName,
        daemon: &DaemonName,
    ) -> Option<(usize, Lacking)> {
        let waiters = self.waiters();
        let before = waiters.iter().take_while(|one| one.holder != holder);
        let mut before = before.filter(|one| {
            one.tenant == *tenant || (one.daemon == *daemon && one.lacking == Lacking::GpuPlace)
        });
        let first = before.next()?.lacking;
        Some((before.count() + 1, first))
    }

    /// Puts a process at the end, unless it waits already.
    pub(super) fn wait(&self, holder: ClientId, tenant: &TenantName, daemon: &DaemonName, lacking: Lacking) {
        let mut waiters = self.waiters();
        match waiters.iter_mut().find(|one| one.holder == holder && one.tenant == *tenant) {
            Some(waiter) => (waiter.seen, waiter.lacking) = (Instant::now(), lacking),
            None => waiters.push(Waiter {
                holder,
                tenant: tenant.clone(),
                daemon: daemon.clone(),
                lacking,
                seen: Instant::now(),
            }),
        }
    }

    /// Takes a process out that got its place, or gave up.
    pub(super) fn leave(&self, holder: ClientId) {
        self.waiters().retain(|one| one.holder != holder);
    }

    fn waiters(&self) -> MutexGuard<'_, Vec<Waiter>> {
        let mut waiters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.retain(|one| one.seen.elapsed() < FORGOTTEN);
        waiters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32) -> ClientId {
        ClientId { pid, start_time: 1 }
    }

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).expect("a name")
    }

    fn daemon(name: &str) -> DaemonName {
        DaemonName::parse(name).expect("a name")
    }

    #[tokio::test(start_paused = true)]
    async fn order_of_arrival_is_kept() {
        let queue = LaunchQueue::default();
        let gpu0 = daemon("gpu0");
        queue.wait(process(1), &tenant("a"), &gpu0, Lacking::GpuPlace);
        queue.wait(process(2), &tenant("b"), &gpu0, Lacking::GpuPlace);
        queue.wait(process(1), &tenant("a"), &gpu0, Lacking::GpuPlace);
        assert_eq!(queue.ahead(process(1), &tenant("a"), &gpu0).map_or(0, |(count, _)| count), 0);
        assert_eq!(queue.ahead(process(2), &tenant("b"), &gpu0).map_or(0, |(count, _)| count), 1);
        assert_eq!(
            queue.ahead(process(9), &tenant("c"), &gpu0).map_or(0, |(count, _)| count),
            2,
            "a newcomer"
        );
        assert_eq!(queue.ahead(process(9), &tenant("c"), &daemon("gpu1")).map_or(0, |(count, _)| count), 0);
        queue.leave(process(1));
        assert_eq!(queue.ahead(process(2), &tenant("b"), &gpu0).map_or(0, |(count, _)| count), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn full_tenant_holds_up_no_other() {
        let queue = LaunchQueue::default();
        let gpu0 = daemon("gpu0");
        queue.wait(process(1), &tenant("a"), &gpu0, Lacking::TenantPlace);
        assert_eq!(queue.ahead(process(2), &tenant("b"), &gpu0).map_or(0, |(count, _)| count), 0);
        assert_eq!(queue.ahead(process(2), &tenant("a"), &gpu0).map_or(0, |(count, _)| count), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_stays_away_loses_its_turn() {
        let queue = LaunchQueue::default();
        let gpu0 = daemon("gpu0");
        queue.wait(process(1), &tenant("a"), &gpu0, Lacking::GpuPlace);
        tokio::time::advance(FORGOTTEN).await;
        assert_eq!(queue.ahead(process(2), &tenant("b"), &gpu0).map_or(0, |(count, _)| count), 0);
    }
}
