//! Charts of the last hour: a table in the page, and JSON for the script that draws it.

use serde::Serialize;

use super::format::{Amount, Moment};
use super::strip::Colours;
use crate::domain::count::counted;
use crate::domain::history::{EVERY_MS, Point, SPAN_MS};
use crate::domain::{GpuUuid, TenantName};

/// Number of line colours; further lines repeat them.
const COLOURS: usize = 8;
/// Rows of the table: one every five minutes.
const ROWS: i64 = 13;

/// Charts of one subject, stacked, over the same hour.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// Address from which the script fetches it again.
    #[serde(skip)]
    pub(super) href: String,
    /// Time at which it was drawn, in unix milliseconds.
    now: i64,
    /// The period it covers, in milliseconds.
    span_ms: i64,
    /// Time between two points, in milliseconds.
    every_ms: i64,
    pub(super) panels: Vec<Panel>,
}

/// The lines of one unit.
#[derive(Debug, Serialize)]
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// `bytes` or `clients`.
    unit: Unit,
    pub(super) lines: Vec<ChartLine>,
}

/// A tenant's values: time in unix milliseconds, and value.
#[derive(Debug, Serialize)]
pub(super) struct ChartLine {
    pub(super) name: String,
    /// Number of its colour: that of its tenant's partition on the same page, or of its position.
    #[serde(skip)]
    colour: usize,
    points: Vec<(i64, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Bytes,
    Clients,
}

impl Unit {
    fn format(self, value: u64) -> String {
        match self {
            Self::Bytes => Amount(value).to_string(),
            Self::Clients => counted(value, "client"),
        }
    }
}

impl Chart {
    fn new(now: i64, href: String, lines: &[(TenantName, Vec<Point>)]) -> Self {
        // The present values are read after the time of the page, and belong into the newest row.
        let newest = lines.iter().filter_map(|(_, points)| points.last()).map(|point| point.at).max();
        let now = now.max(newest.unwrap_or_default());
        let of = |value: fn(&Point) -> u64| {
            let line = |(place, (name, points)): (usize, &(TenantName, Vec<Point>))| ChartLine {
                name: name.to_string(),
                colour: place,
                points: points.iter().map(|point| (point.at, value(point))).collect(),
            };
            let drawn = lines.iter().filter(|(_, points)| !points.is_empty());
            drawn.enumerate().map(line).collect::<Vec<_>>()
        };
        let memory = of(|point| point.memory);
        let clients = of(|point| u64::from(point.clients));
        // Panels keep their space while they are empty.
        let panels = vec![
            Panel { id: "memory", title: "Memory", unit: Unit::Bytes, lines: memory },
            Panel { id: "clients", title: "Clients", unit: Unit::Clients, lines: clients },
        ];
        Self { href, now, span_ms: SPAN_MS, every_ms: EVERY_MS, panels }
    }

    /// Gives tenants the colours that they have on the map beside the chart; other lines get the remaining colours.
    #[must_use]
    pub(super) fn coloured(mut self, colours: &Colours) -> Self {
        for panel in &mut self.panels {
            let mut taken = Vec::new();
            let mut others = Vec::new();
            for line in &mut panel.lines {
                let colour = colours.iter().find(|(name, _)| name.as_str() == line.name);
                let colour = colour.map(|(_, colour)| usize::from(*colour));
                match colour.filter(|colour| !taken.contains(colour)) {
                    Some(colour) => {
                        line.colour = colour;
                        taken.push(colour);
                    }
                    None => others.push(line),
                }
            }
            let mut left = (0..).filter(|colour| !taken.contains(colour));
            for line in others {
                line.colour = left.next().unwrap_or_default();
            }
        }
        self
    }

    pub(super) fn of_tenant(now: i64, name: &TenantName, points: Vec<Point>) -> Self {
        Self::new(now, format!("/tenants/{name}/history"), &[(name.clone(), points)])
    }

    pub(super) fn of_gpu(now: i64, gpu: &GpuUuid, lines: &[(TenantName, Vec<Point>)]) -> Self {
        Self::new(now, format!("/gpus/{gpu}/history"), lines)
    }

    /// The times of the table rows, the last one and evenly spaced earlier ones.
    #[allow(clippy::unused_self, reason = "as templates call it")]
    pub(super) fn moments(&self) -> impl Iterator<Item = Moment> + '_ {
        (0..ROWS).map(|row| Moment(self.now - row * SPAN_MS / (ROWS - 1)))
    }
}

impl Panel {
    /// The latest value of a line.
    pub(super) fn latest(&self, line: &ChartLine) -> String {
        self.unit.format(line.points.last().map_or(0, |(_, value)| *value))
    }

    /// The value of a line at a time; a dash if it was not polled yet, or not recently.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as templates call it")]
    pub(super) fn value(&self, line: &ChartLine, moment: &Moment) -> String {
        let before = line.points.partition_point(|(at, _)| *at <= moment.0);
        let last = before.checked_sub(1).map(|place| line.points[place]);
        let last = last.filter(|(at, _)| moment.0 - at <= 3 * EVERY_MS);
        last.map_or_else(|| "–".to_owned(), |(_, value)| self.unit.format(value))
    }

    /// The class for a line's colour.
    #[allow(clippy::unused_self, reason = "as templates call it")]
    pub(super) fn class(&self, line: &ChartLine) -> String {
        format!("line-{}", line.colour % COLOURS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 0;

    #[test]
    fn chart_holds_points_and_latest_values() {
        let name = TenantName::parse("web").expect("name");
        let point = |at, memory| Point { at, clients: 1, memory };
        let chart = Chart::of_tenant(NOW, &name, vec![point(0, 0), point(SPAN_MS, 4 << 30)]);
        let [memory, clients] = &chart.panels[..] else { panic!("two panels") };
        assert_eq!(memory.latest(&memory.lines[0]), "4 GiB");
        assert_eq!(clients.latest(&clients.lines[0]), "1 client");
        let json = serde_json::to_value(&chart).expect("JSON");
        assert_eq!(json["panels"][0]["lines"][0]["points"][1], serde_json::json!([SPAN_MS, 4u64 << 30]));
        assert!(Chart::of_tenant(NOW, &name, Vec::new()).panels.iter().all(|panel| panel.lines.is_empty()));
    }

    #[test]
    fn lines_have_the_colours_of_the_map() {
        let name = |text: &str| TenantName::parse(text).expect("name");
        let points = vec![Point { at: 0, clients: 1, memory: 1 }];
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("a UUID");
        let lines: Vec<_> =
            ["batch", "notebooks", "others", "web"].map(|one| (name(one), points.clone())).into();
        let colours = [(name("web"), 0), (name("batch"), 1), (name("notebooks"), 2)].into();
        let chart = Chart::of_gpu(NOW, &gpu, &lines).coloured(&colours);
        let panel = &chart.panels[0];
        let classes: Vec<String> = panel.lines.iter().map(|line| panel.class(line)).collect();
        assert_eq!(classes, ["line-1", "line-2", "line-3", "line-0"]);
    }

    #[test]
    fn newest_row_is_read_after_the_page_began() {
        let name = TenantName::parse("web").expect("name");
        let chart = Chart::of_tenant(1_000, &name, vec![Point { at: 1_003, clients: 2, memory: 0 }]);
        let newest = chart.moments().next().expect("rows");
        let clients = &chart.panels[1];
        assert_eq!(clients.value(&clients.lines[0], &newest), "2 clients");
    }

    #[test]
    fn table_has_the_last_value_before_each_time() {
        let name = TenantName::parse("web").expect("name");
        let point = |at, clients| Point { at, clients, memory: 0 };
        let mut chart = Chart::of_tenant(NOW, &name, vec![point(1_000, 1), point(1_000 + SPAN_MS, 2)]);
        chart.now = 2_000 + SPAN_MS;
        let clients = &chart.panels[1];
        let formatted: Vec<String> =
            chart.moments().map(|at| clients.value(&clients.lines[0], &at)).collect();
        assert_eq!(formatted.len(), 13);
        assert_eq!(
            (formatted[0].as_str(), formatted[1].as_str(), formatted[12].as_str()),
            ("2 clients", "–", "1 client")
        );
    }
}
