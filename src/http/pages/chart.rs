//! Charts of a span up to now: tables in the page, and JSON for the script that draws them.

use serde::{Deserialize, Serialize};

use super::format::{Amount, Moment};
use crate::domain::TenantName;
use crate::domain::count::counted;
use crate::domain::history::{HistorySpan, Measure};
use crate::domain::incident::IncidentFilter;
use crate::http::extract::Call;
use crate::service::ServiceError;
use crate::service::history::{HistoryOf, HistorySeries, HistoryView};
use crate::service::incidents::IncidentView;
use crate::service::page::Page;

/// Intervals of the table.
const ROWS: i64 = 12;
/// Most incidents that are marked.
const MARKS: u32 = 20;

/// The query of a page with charts.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SpanQuery {
    #[serde(default)]
    pub(super) span: HistorySpan,
}

/// Charts of one subject over the same time.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// Address of the page of its subject.
    #[serde(skip)]
    page: String,
    #[serde(skip)]
    pub(super) span: HistorySpan,
    /// Time at which it begins: the start of its span, or of its data if that is later, in unix milliseconds.
    from: i64,
    /// Time at which it was drawn, in unix milliseconds.
    now: i64,
    /// Time between two points, in milliseconds.
    every_ms: i64,
    pub(super) panels: Vec<Panel>,
    pub(super) incidents: Vec<IncidentMark>,
}

/// The lines of one measure.
#[derive(Debug, Serialize)]
pub(super) struct Panel {
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    #[serde(skip)]
    pub(super) measure: Measure,
    pub(super) limit: Option<ChartLimit>,
    pub(super) lines: Vec<ChartLine>,
}

/// A value that the lines of a panel should stay below.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ChartLimit {
    pub(super) name: &'static str,
    pub(super) value: f64,
}

/// Values of a tenant or of a GPU: time in unix milliseconds, and value.
#[derive(Debug, Serialize)]
pub(super) struct ChartLine {
    pub(super) name: String,
    #[serde(skip)]
    pub(super) tenant: Option<TenantName>,
    /// Class of its colour.
    #[serde(skip)]
    pub(super) class: String,
    points: Vec<(i64, f64)>,
}

/// An incident that was opened in the span.
#[derive(Debug, Serialize)]
pub(super) struct IncidentMark {
    at: i64,
    #[serde(skip)]
    pub(super) incident: IncidentView,
}

impl IncidentMark {
    /// The time at which it was opened.
    pub(super) fn opened(&self) -> Moment {
        Moment(self.at)
    }
}

impl Chart {
    /// Reads the charts of a tenant or of a GPU, whose page is at `page`, with the limits of some measures.
    pub(super) async fn of(
        call: &Call,
        of: HistoryOf<'_>,
        page: String,
        span: HistorySpan,
        limits: &[(Measure, Option<ChartLimit>)],
    ) -> Result<Self, ServiceError> {
        let Call { app, ctx } = call;
        let mut view = app.service.history(ctx, of, span).await?;
        let (tenant, gpu) = match of {
            HistoryOf::Tenant(name) => (Some(name.clone()), None),
            HistoryOf::Gpu(gpu) => (None, Some(gpu.clone())),
        };
        // A page shows a tenant as a whole.
        view.series.retain(|series| gpu.is_some() || series.gpu.is_none());
        let colours = app.service.tenant_colours(ctx).await?;
        let colour = |tenant: &TenantName| colours.get(tenant).unwrap_or_default();
        let mut chart = Self::new(call.now(), page, &view, colour);
        for panel in &mut chart.panels {
            let limit = limits.iter().find(|(measure, _)| *measure == panel.measure);
            panel.limit = limit.and_then(|(_, limit)| limit.clone());
        }
        let from = match &tenant {
            Some(name) => app.service.first_event_of_tenant(ctx, name).await?,
            None => None,
        };
        let since = Some(chart.from);
        let filter = IncidentFilter { tenant, gpu, since, from_event: from, ..IncidentFilter::default() };
        let incidents = app.service.incidents(ctx, filter, &Page::first(MARKS)).await?.items.into_iter();
        let marks = incidents.map(|incident| IncidentMark { at: incident.opened_at, incident });
        chart.incidents = marks.filter(|mark| mark.at >= chart.from).collect();
        Ok(chart)
    }

    fn new(now: i64, page: String, view: &HistoryView, colour: impl Fn(&TenantName) -> u8) -> Self {
        let of_gpu = view.series.iter().any(|series| series.gpu.is_some());
        let measures = Measure::ALL.into_iter().filter(|measure| of_gpu || measure.is_of_tenants());
        let panel = |measure: Measure| {
            let lines = view.series.iter().filter(|series| series.measure == measure);
            let lines = lines.filter(|series| !series.points.is_empty());
            Panel {
                id: measure.as_str(),
                title: title(measure),
                measure,
                limit: None,
                lines: lines.map(|series| ChartLine::of(series, &colour)).collect(),
            }
        };
        let panels: Vec<Panel> = measures.map(panel).collect();
        let times = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
        // The present values are read after the time of the page, and belong into the newest row.
        let now = now.max(times().map(|(at, _)| *at).max().unwrap_or_default());
        let first = times().map(|(at, _)| *at).min().unwrap_or(now);
        let span = view.span.ms();
        // Not blank before the first point, nor all of a few seconds.
        let from = first.clamp(now - span, now - span / ROWS);
        let every_ms = view.span.step_ms();
        Self { page, span: view.span, from, now, every_ms, panels, incidents: Vec::new() }
    }

    /// Address from which the script fetches it again.
    pub(super) fn href(&self) -> String {
        format!("{}/history?span={}", self.page, self.span.as_str())
    }

    /// The spans to choose from, each with the address of the page.
    pub(super) fn spans(&self) -> impl Iterator<Item = (HistorySpan, String)> + '_ {
        let address = |span: HistorySpan| match span {
            HistorySpan::Hour => format!("{}#charts", self.page),
            span => format!("{}?span={}#charts", self.page, span.as_str()),
        };
        HistorySpan::ALL.into_iter().map(move |span| (span, address(span)))
    }

    /// The span in words.
    pub(super) const fn words(&self) -> &'static str {
        match self.span {
            HistorySpan::Hour => "the last hour",
            HistorySpan::SixHours => "the last 6 hours",
            HistorySpan::Day => "the last 24 hours",
            HistorySpan::Week => "the last 7 days",
        }
    }

    /// The times of the table rows, the last one and evenly spaced earlier ones.
    pub(super) fn moments(&self) -> impl Iterator<Item = Moment> + '_ {
        (0..=ROWS).map(|row| Moment(self.now - row * (self.now - self.from) / ROWS))
    }

    /// The place of an incident on the axis of time, in percent.
    pub(super) fn place(&self, mark: &IncidentMark) -> String {
        let permille = (mark.at - self.from) * 1000 / (self.now - self.from).max(1);
        format!("{}.{}%", permille / 10, permille % 10)
    }

    /// The value of a line at a time; a dash if it was not polled yet, or not recently.
    pub(super) fn value(&self, panel: &Panel, line: &ChartLine, moment: Moment) -> String {
        let before = line.points.partition_point(|(at, _)| *at <= moment.0);
        let last = before.checked_sub(1).map(|place| line.points[place]);
        let last = last.filter(|(at, _)| moment.0 - at <= 3 * self.every_ms);
        last.map_or_else(|| "–".to_owned(), |(_, value)| in_words(panel.measure, value))
    }
}

impl Panel {
    /// The latest value of a line.
    pub(super) fn latest(&self, line: &ChartLine) -> String {
        in_words(self.measure, line.points.last().map_or(0.0, |(_, value)| *value))
    }

    /// The limit in words.
    pub(super) fn limit_words(&self, limit: &ChartLimit) -> String {
        in_words(self.measure, limit.value)
    }
}

impl ChartLine {
    fn of(series: &HistorySeries, colour: impl Fn(&TenantName) -> u8) -> Self {
        let value = |point| series.measure.shown(point);
        let tenant = series.tenant.clone();
        Self {
            name: tenant.as_ref().map_or_else(|| "this GPU".to_owned(), ToString::to_string),
            class: tenant
                .as_ref()
                .map_or_else(|| "line-gpu".to_owned(), |tenant| format!("line-{}", colour(tenant))),
            tenant,
            points: series.points.iter().map(|point| (point.at, value(point))).collect(),
        }
    }
}

/// The title of a panel.
pub(super) const fn title(of: Measure) -> &'static str {
    match of {
        Measure::Memory => "Memory",
        Measure::Clients => "Clients",
        Measure::Utilization => "Utilisation",
        Measure::Power => "Power",
        Measure::Temperature => "Temperature",
        Measure::SmClock => "SM clock",
    }
}

/// A value with its unit.
pub(super) fn in_words(measure: Measure, value: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "no value is negative")]
    let whole = value.round() as u64;
    match measure {
        Measure::Memory => Amount(whole).to_string(),
        Measure::Clients => counted(whole, "client"),
        measure => format!("{whole} {}", measure.unit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::history::HistoryPoint;
    use crate::testing::h200;

    const HOUR: i64 = 3_600_000;

    /// A chart of a tenant's clients and memory at these times, and of a GPU's power.
    fn chart(now: i64, points: &[(i64, f64)], span: HistorySpan) -> Chart {
        let point = |(at, value): &(i64, f64)| HistoryPoint { at: *at, mean: *value / 2.0, max: *value };
        let series = |measure, tenant: Option<&str>| HistorySeries {
            measure,
            tenant: tenant.map(|name| TenantName::parse(name).expect("name")),
            gpu: Some(h200(0).uuid),
            points: points.iter().map(point).collect(),
        };
        let all = [(Measure::Memory, Some("web")), (Measure::Clients, Some("web")), (Measure::Power, None)];
        let series = all.into_iter().map(|(measure, tenant)| series(measure, tenant)).collect();
        Chart::new(now, "/gpus/0".to_owned(), &HistoryView { span, step_s: 5, series }, |_| 6)
    }

    fn panel<'c>(chart: &'c Chart, id: &str) -> &'c Panel {
        chart.panels.iter().find(|panel| panel.id == id).expect("a panel")
    }

    #[test]
    fn chart_holds_points_and_latest_values() {
        let chart = chart(HOUR, &[(5_000, 1.0), (HOUR, 4.0)], HistorySpan::Hour);
        let latest = |id: &str| panel(&chart, id).latest(&panel(&chart, id).lines[0]);
        assert_eq!(
            (latest("clients"), latest("power"), latest("memory")),
            ("4 clients".into(), "2 W".into(), "4 B".into())
        );
        let json = serde_json::to_value(&chart).expect("JSON");
        assert_eq!(json["panels"][0]["lines"][0]["points"][1], serde_json::json!([HOUR, 4.0]));
        assert!(panel(&chart, "temperature").lines.is_empty());
        assert_eq!(panel(&chart, "clients").lines[0].class, "line-6");
        assert_eq!(chart.href(), "/gpus/0/history?span=1h");
    }

    #[test]
    fn chart_begins_with_its_data() {
        let week = chart(1000 * HOUR, &[(999 * HOUR, 1.0), (1000 * HOUR, 1.0)], HistorySpan::Week);
        assert_eq!(week.from, 986 * HOUR, "a twelfth of the span at least");
        let week = chart(1000 * HOUR, &[(900 * HOUR, 1.0)], HistorySpan::Week);
        assert_eq!(week.from, 900 * HOUR);
        let week = chart(1000 * HOUR, &[(HOUR, 1.0)], HistorySpan::Week);
        assert_eq!(week.from, 832 * HOUR);
        assert_eq!(chart(HOUR, &[], HistorySpan::Hour).from, HOUR - HOUR / 12);
    }

    #[test]
    fn newest_row_is_read_after_the_page_began() {
        let chart = chart(1_000, &[(1_003, 2.0)], HistorySpan::Hour);
        let newest = chart.moments().next().expect("rows");
        let clients = panel(&chart, "clients");
        assert_eq!(chart.value(clients, &clients.lines[0], newest), "2 clients");
    }

    #[test]
    fn table_has_the_last_value_before_each_time() {
        let chart = chart(2_000 + HOUR, &[(1_000, 1.0), (1_000 + HOUR, 2.0)], HistorySpan::Hour);
        let clients = panel(&chart, "clients");
        let formatted: Vec<String> =
            chart.moments().map(|at| chart.value(clients, &clients.lines[0], at)).collect();
        assert_eq!(formatted.len(), 13);
        assert_eq!(
            (formatted[0].as_str(), formatted[1].as_str(), formatted[12].as_str()),
            ("2 clients", "–", "1 client")
        );
    }
}
