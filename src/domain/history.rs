//! Clients and memory of tenants in the last hour: a history of bounded size for charts.
//!
//! A tenant is in it from its first client until an hour after its last.

use std::collections::{BTreeMap, VecDeque};

use super::{GpuUuid, TenantName};

/// Time between two points, in milliseconds.
pub const EVERY_MS: i64 = 5_000;
/// Span of the history, in milliseconds.
pub const SPAN_MS: i64 = 60 * 60 * 1000;
/// Points of a line at most: one more than the span has, for a timer that is early.
const POINTS: usize = 721;
/// Lines at most; a line is of a tenant, or of a tenant on one GPU.
const LINES: usize = 512;

/// A tenant's use at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Point {
    /// Time, in unix milliseconds.
    pub at: i64,
    /// Clients that were connected.
    pub clients: u32,
    /// Memory that they held, in bytes, as far as the driver reported it.
    pub memory: u64,
}

/// A tenant's present use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldByTenant {
    /// Its clients.
    pub clients: u32,
    /// For each GPU, the number of them on it and the bytes that they hold.
    pub gpus: BTreeMap<GpuUuid, (u32, u64)>,
}

impl HeldByTenant {
    /// Returns the bytes that they hold on all GPUs.
    pub fn memory(&self) -> u64 {
        self.gpus.values().fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }
}

/// A line's owner, and its GPU where it is of one.
type Key = (TenantName, Option<GpuUuid>);

/// History of all tenants' use in the last hour.
#[derive(Debug, Default)]
pub struct History {
    lines: BTreeMap<Key, VecDeque<Point>>,
}

impl History {
    /// Adds a point for the present use, and drops points that are older than the span.
    pub fn record(&mut self, now: i64, held: &BTreeMap<TenantName, HeldByTenant>) {
        for (tenant, held) in held {
            let memory = held.memory();
            self.add((tenant.clone(), None), Point { at: now, clients: held.clients, memory });
            for (gpu, (clients, memory)) in &held.gpus {
                let point = Point { at: now, clients: *clients, memory: *memory };
                self.add((tenant.clone(), Some(gpu.clone())), point);
            }
        }
        self.lines.retain(|_, points| {
            // A tenant that is gone has nothing.
            if points.back().is_some_and(|last| last.at != now) {
                push(points, Point { at: now, clients: 0, memory: 0 });
            }
            while points.front().is_some_and(|first| first.at <= now - SPAN_MS) {
                points.pop_front();
            }
            points.iter().any(|point| point.clients > 0 || point.memory > 0)
        });
    }

    fn add(&mut self, key: Key, point: Point) {
        let full = self.lines.len() >= LINES;
        match self.lines.get_mut(&key) {
            Some(points) => push(points, point),
            None if full => {}
            None => {
                self.lines.insert(key, VecDeque::from([point]));
            }
        }
    }

    /// Drops the history of a tenant: another tenant that gets its name starts over.
    pub fn forget(&mut self, tenant: &TenantName) {
        self.lines.retain(|(name, _), _| name != tenant);
    }

    /// Returns the points of a tenant, the oldest first.
    pub fn of_tenant(&self, tenant: &TenantName) -> Vec<Point> {
        let points = self.lines.get(&(tenant.clone(), None));
        points.map(|points| points.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns the points of each tenant on a GPU, by name.
    pub fn of_gpu(&self, gpu: &GpuUuid) -> Vec<(TenantName, Vec<Point>)> {
        let on_gpu = self.lines.iter().filter(|((_, of), _)| of.as_ref() == Some(gpu));
        on_gpu.map(|((name, _), points)| (name.clone(), points.iter().copied().collect())).collect()
    }
}

fn push(points: &mut VecDeque<Point>, point: Point) {
    if points.len() >= POINTS {
        points.pop_front();
    }
    points.push_back(point);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    fn name(text: &str) -> TenantName {
        TenantName::parse(text).expect("name")
    }

    fn held(tenants: &[(&str, u32, u64)]) -> BTreeMap<TenantName, HeldByTenant> {
        let holding = |(tenant, clients, memory): &(&str, u32, u64)| {
            let gpus = BTreeMap::from([(h200(0).uuid, (*clients, *memory))]);
            (name(tenant), HeldByTenant { clients: *clients, gpus })
        };
        tenants.iter().map(holding).collect()
    }

    #[test]
    fn tenant_history_outlasts_last_client_one_hour() {
        let mut history = History::default();
        history.record(0, &held(&[("web", 2, 100)]));
        history.record(EVERY_MS, &held(&[]));
        let point = |at, clients, memory| Point { at, clients, memory };
        assert_eq!(history.of_tenant(&name("web")), [point(0, 2, 100), point(EVERY_MS, 0, 0)]);
        assert_eq!(history.of_gpu(&h200(0).uuid).len(), 1);
        assert!(history.of_gpu(&h200(1).uuid).is_empty());
        history.record(SPAN_MS - 1, &held(&[]));
        assert_eq!(history.of_tenant(&name("web")).len(), 3);
        history.record(SPAN_MS, &held(&[]));
        assert!(history.of_tenant(&name("web")).is_empty(), "nothing was held in the last hour");
        assert!(history.lines.is_empty());
    }

    #[test]
    fn history_is_bounded_in_lines_and_points() {
        let mut history = History::default();
        let many: Vec<String> = (0..1000).map(|number| format!("t{number}")).collect();
        let many: Vec<(&str, u32, u64)> = many.iter().map(|name| (name.as_str(), 1, 1)).collect();
        history.record(0, &held(&many));
        assert_eq!(history.lines.len(), LINES);
        for time in 0..2000 {
            history.record(time, &held(&[("t0", 1, 1)]));
        }
        assert_eq!(history.of_tenant(&name("t0")).len(), POINTS);
    }

    #[test]
    fn a_forgotten_tenant_leaves_nothing() {
        let mut history = History::default();
        history.record(0, &held(&[("web", 1, 1), ("batch", 1, 1)]));
        history.forget(&name("web"));
        assert!(history.of_tenant(&name("web")).is_empty());
        assert_eq!(history.of_gpu(&h200(0).uuid).len(), 1);
    }
}
