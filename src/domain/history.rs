//! History of tenants' use and of GPUs' vitals, of bounded size.
//!
//! ```text
//! samples ─ 5 s ─▶ History, in memory: an hour ─ 1 min ─▶ stored minutes: six hours
//!                                              └ 10 min ▶ stored periods of ten minutes: seven days
//! ```
//!
//! A tenant is in the hour from its first client until an hour after its last. After a restart, the stored minutes stand for the points
//! of the hour.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::vitals::GpuVitals;
use super::{GpuUuid, TenantName};

/// Time between two points in memory, in milliseconds.
pub const EVERY_MS: i64 = 5_000;
/// Span of the points in memory, in milliseconds.
pub const SPAN_MS: i64 = HOUR_MS;
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
/// The stored periods, each with the time for which it is kept, in milliseconds.
pub const STORED: [(i64, i64); 2] = [(MINUTE_MS, 6 * HOUR_MS), (10 * MINUTE_MS, 7 * DAY_MS)];
/// Points of a line in memory at most: one more than the span has, for a timer that is early.
const POINTS: usize = 721;
/// Lines at most; the vitals of GPUs come before those of tenants.
pub const LINES: usize = 1024;

/// Quantity that a line of the history measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Memory that clients hold, in bytes, as far as the driver reports it.
    Memory,
    /// Clients that are connected.
    Clients,
    /// Share of the time in which any kernel ran on the GPU, in percent.
    Utilization,
    /// Power draw of the GPU, in watts.
    Power,
    /// Temperature of the GPU, in degrees Celsius.
    Temperature,
    /// Clock of the SMs, in MHz.
    SmClock,
}

api_words!(Measure: Memory "memory", Clients "clients", Utilization "utilization", Power "power", Temperature "temperature",
    SmClock "sm_clock");

impl Measure {
    /// Returns true if tenants have it, too.
    pub const fn is_of_tenants(self) -> bool {
        matches!(self, Self::Memory | Self::Clients)
    }

    /// Returns the unit of its values.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Memory => "bytes",
            Self::Clients => "clients",
            Self::Utilization => "%",
            Self::Power => "W",
            Self::Temperature => "°C",
            Self::SmClock => "MHz",
        }
    }

    /// Returns the value of a period that a chart shows: the highest of those that have a limit, the mean of the others.
    pub fn shown(self, point: &HistoryPoint) -> f64 {
        match self {
            Self::Memory | Self::Clients | Self::Temperature => point.max,
            Self::Utilization | Self::Power | Self::SmClock => point.mean,
        }
    }
}

/// Span of a history up to now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub enum HistorySpan {
    /// An hour, with a point every 5 s.
    #[default]
    #[serde(rename = "1h")]
    Hour,
    /// Six hours, by the minute.
    #[serde(rename = "6h")]
    SixHours,
    /// A day, by ten minutes.
    #[serde(rename = "24h")]
    Day,
    /// Seven days, by the hour.
    #[serde(rename = "7d")]
    Week,
}

api_words!(HistorySpan: Hour "1h", SixHours "6h", Day "24h", Week "7d");

impl HistorySpan {
    /// Returns its length, in milliseconds.
    pub const fn ms(self) -> i64 {
        match self {
            Self::Hour => HOUR_MS,
            Self::SixHours => 6 * HOUR_MS,
            Self::Day => DAY_MS,
            Self::Week => 7 * DAY_MS,
        }
    }

    /// Returns the time between two of its points, in milliseconds.
    pub const fn step_ms(self) -> i64 {
        match self {
            Self::Hour => EVERY_MS,
            Self::SixHours => MINUTE_MS,
            Self::Day => 10 * MINUTE_MS,
            Self::Week => HOUR_MS,
        }
    }

    /// Returns the stored period that it is made of; `None` for the points in memory.
    pub const fn stored_ms(self) -> Option<i64> {
        match self {
            Self::Hour => None,
            Self::SixHours => Some(MINUTE_MS),
            Self::Day | Self::Week => Some(10 * MINUTE_MS),
        }
    }
}

/// A line of the history: a measure of a tenant, of a tenant on one GPU, or of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HistoryLine {
    /// The tenant; `None` for the vitals of a GPU.
    pub tenant: Option<TenantName>,
    /// The GPU; `None` for all that a tenant has.
    pub gpu: Option<GpuUuid>,
    /// Quantity that is measured.
    pub measure: Measure,
}

/// Values of a period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HistoryPoint {
    /// End of the period.
    #[serde(with = "super::rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: i64,
    /// Mean of the values in it.
    pub mean: f64,
    /// Highest of them.
    pub max: f64,
}

impl HistoryPoint {
    /// Returns the point of one value.
    const fn of(at: i64, value: f64) -> Self {
        Self { at, mean: value, max: value }
    }

    /// Returns the point of several periods; `None` without any.
    fn over(at: i64, points: impl Iterator<Item = Self>) -> Option<Self> {
        let (mut count, mut sum, mut max) = (0_u32, 0.0, 0.0_f64);
        for point in points {
            (count, sum, max) = (count + 1, sum + point.mean, max.max(point.max));
        }
        (count > 0).then(|| Self { at, mean: sum / f64::from(count), max })
    }
}

/// Joins points to periods of `step_ms` each.
pub fn coarsened(points: &[HistoryPoint], step_ms: i64) -> Vec<HistoryPoint> {
    let period = |point: &HistoryPoint| (point.at - 1).div_euclid(step_ms);
    let periods = points.chunk_by(|one, next| period(one) == period(next));
    periods.filter_map(|points| HistoryPoint::over(points.last()?.at, points.iter().copied())).collect()
}

/// Returns the stored periods that ended after one time and by another, each with its length and its end.
pub fn ended_periods(after: i64, until: i64) -> impl Iterator<Item = (i64, i64)> {
    let end = move |(length, _): (i64, i64)| (length, until - until.rem_euclid(length));
    STORED.into_iter().map(end).filter(move |(_, end)| *end > after)
}

/// A tenant's present use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldByTenant {
    /// Its clients.
    pub clients: u32,
    /// For each GPU, the number of them on it and the bytes that they hold.
    pub gpus: BTreeMap<GpuUuid, (u32, u64)>,
}

/// Values of all lines at one moment.
pub type Samples = BTreeMap<HistoryLine, f64>;

/// Returns the values of tenants' use and of GPUs' vitals.
#[allow(clippy::cast_precision_loss, reason = "bytes of one host are exact")]
pub fn samples(held: &BTreeMap<TenantName, HeldByTenant>, vitals: &BTreeMap<GpuUuid, GpuVitals>) -> Samples {
    let mut samples = Samples::new();
    for (tenant, held) in held {
        let bytes = held.gpus.values().fold(0, |sum: u64, (_, bytes)| sum.saturating_add(*bytes));
        let on_gpus = held.gpus.iter().map(|(gpu, (clients, bytes))| (Some(gpu), *clients, *bytes));
        for (gpu, clients, bytes) in on_gpus.chain([(None, held.clients, bytes)]) {
            for (measure, value) in [(Measure::Clients, f64::from(clients)), (Measure::Memory, bytes as f64)]
            {
                samples
                    .insert(HistoryLine { tenant: Some(tenant.clone()), gpu: gpu.cloned(), measure }, value);
            }
        }
    }
    for (gpu, vitals) in vitals {
        let figures = [
            (Measure::Utilization, vitals.utilization_percent.map(f64::from)),
            (Measure::Power, vitals.power_watts),
            (Measure::Temperature, vitals.temperature_celsius.map(f64::from)),
            (Measure::SmClock, vitals.sm_clock_mhz.map(f64::from)),
        ];
        for (measure, value) in figures {
            let line = HistoryLine { tenant: None, gpu: Some(gpu.clone()), measure };
            samples.extend(value.map(|value| (line, value)));
        }
    }
    samples
}

/// History of the last hour.
#[derive(Debug, Default)]
pub struct History {
    lines: BTreeMap<HistoryLine, VecDeque<(i64, f64)>>,
}

impl History {
    /// Adds present values, and drops points that are older than the span.
    pub fn record(&mut self, now: i64, samples: Samples) {
        for (line, value) in samples {
            self.add(line, now, value);
        }
        self.lines.retain(|line, points| {
            // A tenant that is gone has nothing; a GPU that is gone has unknown vitals.
            let is_usage = line.tenant.is_some();
            if is_usage && points.back().is_some_and(|(last, _)| *last != now) {
                push(points, now, 0.0);
            }
            while points.front().is_some_and(|(first, _)| *first <= now - SPAN_MS) {
                points.pop_front();
            }
            points.iter().any(|(_, value)| !is_usage || *value > 0.0)
        });
    }

    fn add(&mut self, line: HistoryLine, at: i64, value: f64) {
        let is_full = self.lines.len() >= LINES;
        match self.lines.get_mut(&line) {
            Some(points) => push(points, at, value),
            None if is_full => {}
            None => {
                self.lines.insert(line, VecDeque::from([(at, value)]));
            }
        }
    }

    /// Adds stored points, the oldest first, to an empty history.
    pub fn restore(&mut self, stored: BTreeMap<HistoryLine, Vec<HistoryPoint>>) {
        for (line, points) in stored {
            for point in points {
                self.add(line.clone(), point.at, line.measure.shown(&point));
            }
        }
    }

    /// Drops the history of a tenant: another tenant that gets its name starts over.
    pub fn forget(&mut self, tenant: &TenantName) {
        self.lines.retain(|line, _| line.tenant.as_ref() != Some(tenant));
    }

    /// Returns the points of the lines that pass, the oldest first.
    pub fn lines(&self, passes: impl Fn(&HistoryLine) -> bool) -> BTreeMap<HistoryLine, Vec<HistoryPoint>> {
        let lines = self.lines.iter().filter(|(line, _)| passes(line));
        let point = |(at, value): &(i64, f64)| HistoryPoint::of(*at, *value);
        lines.map(|(line, points)| (line.clone(), points.iter().map(point).collect())).collect()
    }

    /// Returns a point of each line that has any after one time and until another.
    pub fn fold(&self, after: i64, until: i64) -> Vec<(HistoryLine, HistoryPoint)> {
        let over = |points: &VecDeque<(i64, f64)>| {
            let within = points.iter().filter(|(at, _)| (after + 1..=until).contains(at));
            HistoryPoint::over(until, within.map(|(at, value)| HistoryPoint::of(*at, *value)))
        };
        self.lines.iter().filter_map(|(line, points)| Some((line.clone(), over(points)?))).collect()
    }
}

fn push(points: &mut VecDeque<(i64, f64)>, at: i64, value: f64) {
    if points.len() >= POINTS {
        points.pop_front();
    }
    points.push_back((at, value));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    fn name(text: &str) -> TenantName {
        TenantName::parse(text).expect("name")
    }

    fn of(tenant: &str, gpu: Option<GpuUuid>, measure: Measure) -> HistoryLine {
        HistoryLine { tenant: Some(name(tenant)), gpu, measure }
    }

    /// Clients and bytes of tenants on a GPU of 40 % utilization.
    fn held(tenants: &[(&str, u32, u64)]) -> Samples {
        let holding = |(tenant, clients, memory): &(&str, u32, u64)| {
            let gpus = BTreeMap::from([(h200(0).uuid, (*clients, *memory))]);
            (name(tenant), HeldByTenant { clients: *clients, gpus })
        };
        let vitals = GpuVitals { utilization_percent: Some(40), ..GpuVitals::default() };
        samples(&tenants.iter().map(holding).collect(), &BTreeMap::from([(h200(0).uuid, vitals)]))
    }

    fn values(history: &History, line: &HistoryLine) -> Vec<(i64, f64)> {
        let lines = history.lines(|other| other == line);
        lines.into_values().flatten().map(|point| (point.at, point.max)).collect()
    }

    #[test]
    fn tenant_history_outlasts_last_client_one_hour() {
        let mut history = History::default();
        history.record(0, held(&[("web", 2, 100)]));
        history.record(EVERY_MS, held(&[]));
        let memory = of("web", None, Measure::Memory);
        assert_eq!(values(&history, &memory), [(0, 100.0), (EVERY_MS, 0.0)]);
        let on_gpu = of("web", Some(h200(0).uuid), Measure::Clients);
        assert_eq!(values(&history, &on_gpu), [(0, 2.0), (EVERY_MS, 0.0)]);
        history.record(SPAN_MS - 1, held(&[]));
        assert_eq!(values(&history, &memory).len(), 3);
        history.record(SPAN_MS, held(&[]));
        assert!(history.lines.keys().all(|line| line.tenant.is_none()), "nothing was held in the last hour");
        history.record(3 * SPAN_MS, Samples::new());
        assert!(history.lines.is_empty(), "vitals that are not read end");
    }

    #[test]
    fn history_is_bounded_in_lines_and_points() {
        let mut history = History::default();
        let many: Vec<String> = (0..1000).map(|number| format!("t{number}")).collect();
        let many: Vec<(&str, u32, u64)> = many.iter().map(|name| (name.as_str(), 1, 1)).collect();
        history.record(0, held(&many));
        assert_eq!(history.lines.len(), LINES);
        assert!(history.lines.keys().any(|line| line.measure == Measure::Utilization), "vitals come first");
        for time in 0..2000 {
            history.record(time, held(&[("t0", 1, 1)]));
        }
        assert_eq!(values(&history, &of("t0", None, Measure::Memory)).len(), POINTS);
    }

    #[test]
    fn a_forgotten_tenant_leaves_nothing() {
        let mut history = History::default();
        history.record(0, held(&[("web", 1, 1), ("batch", 1, 1)]));
        history.forget(&name("web"));
        let left: Vec<_> = history.lines.keys().filter_map(|line| line.tenant.clone()).collect();
        assert_eq!(left, [name("batch"), name("batch"), name("batch"), name("batch")]);
    }

    #[test]
    fn periods_have_mean_and_highest_value() {
        let mut history = History::default();
        for (at, bytes) in [(60_000, 900), (65_000, 100), (120_000, 300), (125_000, 700)] {
            history.record(at, held(&[("web", 1, bytes)]));
        }
        let fold = |history: &History, after, until| {
            let lines = history.fold(after, until).into_iter();
            lines.filter(|(line, _)| *line == of("web", None, Measure::Memory)).map(|(_, point)| point).next()
        };
        let minute = fold(&history, 60_000, 120_000);
        assert_eq!(minute, Some(HistoryPoint { at: 120_000, mean: 200.0, max: 300.0 }));
        assert_eq!(fold(&history, 180_000, 240_000), None);
        let mut restored = History::default();
        restored
            .restore(BTreeMap::from([(of("web", None, Measure::Memory), vec![minute.expect("a point")])]));
        assert_eq!(fold(&restored, 0, 600_000).map(|point| point.max), Some(300.0));
    }

    #[test]
    fn each_period_ends_once() {
        let ends = |after, until| ended_periods(after, until).collect::<Vec<_>>();
        assert_eq!(ends(5_000, 59_999), []);
        assert_eq!(ends(59_999, 64_000), [(60_000, 60_000)]);
        assert_eq!(ends(64_000, 69_000), []);
        assert_eq!(ends(599_000, 604_000), [(60_000, 600_000), (600_000, 600_000)]);
        assert_eq!(ends(599_000, 1_900_000), [(60_000, 1_860_000), (600_000, 1_800_000)], "after a pause");
    }

    #[test]
    fn ten_minutes_become_hours() {
        let point = |number: i32| HistoryPoint::of(i64::from(number) * 600_000, number.into());
        let hours = coarsened(&(1..=12).map(point).collect::<Vec<_>>(), HOUR_MS);
        let hour = |at, mean, max| HistoryPoint { at, mean, max };
        assert_eq!(hours, [hour(HOUR_MS, 3.5, 6.0), hour(2 * HOUR_MS, 9.5, 12.0)]);
    }
}
