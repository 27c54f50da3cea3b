//! Strip charts of the last hour: drawn here for whoever has no script, and told in JSON to the script that draws them better.

use std::fmt::Write as _;

use serde::Serialize;

use super::words::{Amount, Moment};
use crate::clock::unix_ms;
use crate::domain::count::counted;
use crate::domain::history::{EVERY_MS, Point, SPAN_MS};
use crate::domain::{GpuUuid, TenantName};

/// The size of a panel that is drawn here; what stands beside it is laid out by the style sheet.
const WIDTH: i64 = 720;
const HEIGHT: u64 = 120;
/// Colours that lines have; further ones begin again.
const COLOURS: usize = 8;
/// Rows of the table that tells the same: every five minutes.
const ROWS: i64 = 13;

/// Charts of one thing, one above the other, over the same hour.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// Where the script asks for it again.
    #[serde(skip)]
    pub(super) href: String,
    /// When it was drawn, in unix milliseconds.
    now: i64,
    /// How far back it goes, in milliseconds.
    span_ms: i64,
    /// Time between two points, in milliseconds.
    every_ms: i64,
    pub(super) panels: Vec<Panel>,
}

/// Lines of one unit.
#[derive(Debug, Serialize)]
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// `bytes` or `clients`.
    unit: Unit,
    pub(super) lines: Vec<Line>,
}

/// A tenant's figures: when, in unix milliseconds, and how much.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    /// The number of its colour: of its tenant's partition on the same page, or of its place.
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
    fn told(self, value: u64) -> String {
        match self {
            Self::Bytes => Amount(value).to_string(),
            Self::Clients => counted(value, "client"),
        }
    }
}

impl Chart {
    fn new(href: String, lines: &[(TenantName, Vec<Point>)]) -> Self {
        let of = |value: fn(&Point) -> u64| {
            let line = |(place, (name, points)): (usize, &(TenantName, Vec<Point>))| Line {
                name: name.to_string(),
                colour: place,
                points: points.iter().map(|point| (point.at, value(point))).collect(),
            };
            let shown = lines.iter().filter(|(_, points)| !points.is_empty());
            shown.enumerate().map(line).collect::<Vec<_>>()
        };
        let memory = of(|point| point.memory);
        let clients = of(|point| u64::from(point.clients));
        // Their place is kept while there is nothing to draw.
        let panels = vec![
            Panel { id: "memory", title: "Memory", unit: Unit::Bytes, lines: memory },
            Panel { id: "clients", title: "Clients", unit: Unit::Clients, lines: clients },
        ];
        Self { href, now: unix_ms(), span_ms: SPAN_MS, every_ms: EVERY_MS, panels }
    }

    /// The same with the colours that a map beside it gives to tenants; further lines take those that are left.
    #[must_use]
    pub(super) fn coloured(mut self, colours: &[(TenantName, usize)]) -> Self {
        for panel in &mut self.panels {
            let mut taken = Vec::new();
            let mut others = Vec::new();
            for line in &mut panel.lines {
                let own =
                    colours.iter().find(|(name, _)| name.as_str() == line.name).map(|(_, colour)| *colour);
                match own.filter(|own| !taken.contains(own)) {
                    Some(own) => {
                        line.colour = own;
                        taken.push(own);
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

    pub(super) fn of_tenant(name: &TenantName, points: Vec<Point>) -> Self {
        Self::new(format!("/tenants/{name}/history"), &[(name.clone(), points)])
    }

    pub(super) fn of_gpu(gpu: &GpuUuid, lines: &[(TenantName, Vec<Point>)]) -> Self {
        Self::new(format!("/gpus/{gpu}/history"), lines)
    }

    /// The moments of the table: the last one and those before it, as far apart as its rows are to be.
    #[allow(clippy::unused_self, reason = "as templates call it")]
    pub(super) fn moments(&self) -> impl Iterator<Item = Moment> + '_ {
        (0..ROWS).map(|row| Moment(self.now - row * SPAN_MS / (ROWS - 1)))
    }

    /// The points of a line as it is drawn here: the hour from left to right.
    pub(super) fn drawn(&self, panel: &Panel, line: &Line) -> String {
        let (begin, top) = (self.now - SPAN_MS, panel.top());
        let mut points = String::new();
        for (at, value) in line.points.iter().filter(|(at, _)| *at >= begin) {
            let x = (at - begin).min(SPAN_MS) * WIDTH / SPAN_MS;
            let height = u128::from(*value) * u128::from(HEIGHT) / u128::from(top);
            let y = HEIGHT - u64::try_from(height).unwrap_or(HEIGHT);
            let _ = write!(points, "{x},{y} ");
        }
        points
    }
}

impl Panel {
    /// The value at the upper edge: the greatest, and never 0.
    fn top(&self) -> u64 {
        let values = self.lines.iter().flat_map(|line| line.points.iter().map(|(_, value)| *value));
        values.max().unwrap_or(0).max(1)
    }

    /// The same in words.
    pub(super) fn upper(&self) -> String {
        self.unit.told(self.top())
    }

    /// What a line comes to now.
    pub(super) fn latest(&self, line: &Line) -> String {
        self.unit.told(line.points.last().map_or(0, |(_, value)| *value))
    }

    /// What a line came to at a moment; a dash where nobody had looked yet, or not lately.
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as templates call it")]
    pub(super) fn value(&self, line: &Line, moment: &Moment) -> String {
        let before = line.points.partition_point(|(at, _)| *at <= moment.0);
        let last = before.checked_sub(1).map(|place| line.points[place]);
        let last = last.filter(|(at, _)| moment.0 - at <= 3 * EVERY_MS);
        last.map_or_else(|| "–".to_owned(), |(_, value)| self.unit.told(value))
    }

    /// The whole of it for whoever does not see it.
    pub(super) fn told(&self) -> String {
        if self.lines.is_empty() {
            return format!("{} in the last hour: there was no client", self.title);
        }
        let lines: Vec<String> =
            self.lines.iter().map(|line| format!("{} {} now", line.name, self.latest(line))).collect();
        format!("{} in the last hour, at most {}: {}", self.title, self.upper(), lines.join(", "))
    }

    /// The class that gives a line its colour.
    #[allow(clippy::unused_self, reason = "as templates call it")]
    pub(super) fn class(&self, line: &Line) -> String {
        format!("line-{}", line.colour % COLOURS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_from_left_to_right_and_the_greatest_value_is_at_the_top() {
        let name = TenantName::parse("web").expect("name");
        let point = |at, memory| Point { at, clients: 1, memory };
        let mut chart = Chart::of_tenant(&name, vec![point(0, 0), point(SPAN_MS, 4 << 30)]);
        chart.now = SPAN_MS;
        let memory = &chart.panels[0];
        assert_eq!(chart.drawn(memory, &memory.lines[0]), "0,120 720,0 ");
        assert_eq!(memory.told(), "Memory in the last hour, at most 4 GiB: web 4 GiB now");
        assert_eq!(chart.panels[1].told(), "Clients in the last hour, at most 1 client: web 1 client now");
        chart.now = 2 * SPAN_MS;
        assert_eq!(chart.drawn(&chart.panels[0], &chart.panels[0].lines[0]), "0,0 ", "an hour is shown");
        let json = serde_json::to_value(&chart).expect("JSON");
        assert_eq!(json["panels"][0]["lines"][0]["points"][1], serde_json::json!([SPAN_MS, 4u64 << 30]));
        let none = Chart::of_tenant(&name, Vec::new());
        assert_eq!(none.panels[0].told(), "Memory in the last hour: there was no client");
    }

    #[test]
    fn lines_have_the_colours_of_the_map() {
        let name = |text: &str| TenantName::parse(text).expect("name");
        let points = vec![Point { at: 0, clients: 1, memory: 1 }];
        let gpu = GpuUuid::parse("GPU-514466a0-8e68-f857-9f73-e438010e48cb").expect("a UUID");
        let lines: Vec<_> =
            ["batch", "notebooks", "others", "web"].map(|one| (name(one), points.clone())).into();
        let colours = [(name("web"), 0), (name("batch"), 1), (name("notebooks"), 2)];
        let chart = Chart::of_gpu(&gpu, &lines).coloured(&colours);
        let panel = &chart.panels[0];
        let classes: Vec<String> = panel.lines.iter().map(|line| panel.class(line)).collect();
        assert_eq!(classes, ["line-1", "line-2", "line-3", "line-0"]);
    }

    #[test]
    fn the_table_has_what_was_seen_last_before_each_moment() {
        let name = TenantName::parse("web").expect("name");
        let point = |at, clients| Point { at, clients, memory: 0 };
        let mut chart = Chart::of_tenant(&name, vec![point(1_000, 1), point(1_000 + SPAN_MS, 2)]);
        chart.now = 2_000 + SPAN_MS;
        let clients = &chart.panels[1];
        let told: Vec<String> = chart.moments().map(|at| clients.value(&clients.lines[0], &at)).collect();
        assert_eq!(told.len(), 13);
        assert_eq!((told[0].as_str(), told[1].as_str(), told[12].as_str()), ("2 clients", "–", "1 client"));
    }
}
