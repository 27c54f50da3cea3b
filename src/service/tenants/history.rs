//! Usage history of tenants in the last hour, for charts; in memory only, from observations that drivers make anyway.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::access::Right;
use crate::domain::attribution::{Candidate, Signs, attribute};
use crate::domain::history::{EVERY_MS, HeldByTenant, Point, SPAN_MS};
use crate::domain::{GpuUuid, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::{Backend, Result, Service};

impl Service {
    /// The start of a tenant's history, in unix milliseconds: an hour ago, or when this manager started.
    pub fn tenant_history_since(&self, ctx: &RequestContext, name: &TenantName) -> Result<i64> {
        let backend = self.with(&ctx.require(Right::ViewTenant(name))?);
        Ok(backend.history.since.max(backend.parts.clock.unix_ms() - SPAN_MS))
    }

    /// Returns the usage of a tenant in the last hour, oldest first; empty if it had no client.
    pub fn tenant_history(&self, ctx: &RequestContext, name: &TenantName) -> Result<Vec<Point>> {
        let backend = self.with(&ctx.require(Right::ViewTenant(name))?);
        let mut points = backend.history.history().of_tenant(name);
        let present = backend.held_now().remove(name).map(|held| (held.clients, held.memory()));
        with_present(&mut points, backend.parts.clock.unix_ms(), present);
        Ok(points)
    }

    /// Returns the usage of a GPU by each tenant in the last hour, by name.
    pub fn gpu_history(&self, ctx: &RequestContext, gpu: &GpuUuid) -> Result<Vec<(TenantName, Vec<Point>)>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let mut lines: BTreeMap<TenantName, Vec<Point>> =
            backend.history.history().of_gpu(gpu).into_iter().collect();
        let held = backend.held_now();
        for tenant in held.iter().filter(|(_, held)| held.gpus.contains_key(gpu)).map(|(name, _)| name) {
            lines.entry(tenant.clone()).or_default();
        }
        let now = backend.parts.clock.unix_ms();
        for (tenant, points) in &mut lines {
            let present = held.get(tenant).and_then(|held| held.gpus.get(gpu).copied());
            with_present(points, now, present);
        }
        Ok(lines.into_iter().collect())
    }
}

impl Backend {
    /// Records the usage of tenants every few seconds, forever.
    pub async fn keep_history(self: Arc<Self>) {
        let every = Duration::from_millis(EVERY_MS.unsigned_abs());
        let mut timer = tokio::time::interval(every);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            timer.tick().await;
            let held = self.held_now();
            self.history.history().record(self.parts.clock.unix_ms(), &held);
        }
    }

    /// Returns the present usage of each tenant, by the last poll of its daemon and the last snapshot; queries neither daemon nor database.
    fn held_now(&self) -> BTreeMap<TenantName, HeldByTenant> {
        let committed = self.committed.borrow().clone();
        let mut held: BTreeMap<TenantName, HeldByTenant> = BTreeMap::new();
        for (daemon, clients) in self.parts.fleet.of_each(|observed| observed.clients.clone()) {
            if clients.is_empty() {
                continue;
            }
            let candidates = Candidate::of(&committed.tenants, &daemon);
            for client in &clients {
                let (tenant, _) = attribute(&Signs::from(client), &daemon, &committed.leases, &candidates);
                let Some(tenant) = tenant else { continue };
                let held = held.entry(tenant).or_default();
                held.clients += 1;
                for (gpu, used) in &client.memory {
                    let (clients, memory) = held.gpus.entry(gpu.clone()).or_default();
                    *clients += 1;
                    *memory = memory.saturating_add(used.unwrap_or(0));
                }
            }
        }
        held
    }
}

/// Adds the present values if they differ from the last record, so that a chart agrees with the figures beside it.
fn with_present(points: &mut Vec<Point>, now: i64, present: Option<(u32, u64)>) {
    let (clients, memory) = present.unwrap_or_default();
    let last = points.last().map(|last| (last.clients, last.memory)).unwrap_or_default();
    if last != (clients, memory) {
        points.push(Point { at: now, clients, memory });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn present_clients_are_in_the_line_at_once() {
        let mut points = Vec::new();
        with_present(&mut points, 1, None);
        assert_eq!(points, []);
        for now in [2, 3] {
            with_present(&mut points, now, Some((1, 7)));
        }
        with_present(&mut points, 4, None);
        let drawn: Vec<_> = points.iter().map(|point| (point.at, point.clients, point.memory)).collect();
        assert_eq!(drawn, [(2, 1, 7), (4, 0, 0)]);
    }
}
