//! Vitals of GPUs: a number for each, and a line of the last hour.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::chart::{in_words, title};
use crate::domain::GpuUuid;
use crate::domain::history::{HistoryPoint, Measure, SPAN_MS, coarsened};
use crate::domain::vitals::GpuVitals;
use crate::http::extract::Call;
use crate::service::ServiceError;
use crate::service::host::GpuView;

/// Time between two points of a line, in milliseconds.
const STEP_MS: i64 = 60_000;
/// Size of the picture of a line.
const WIDTH: i64 = 120;
const HEIGHT: f64 = 24.0;

/// A figure of a GPU, and its line in the last hour.
pub(super) struct VitalFigure {
    pub(super) label: &'static str,
    pub(super) value: String,
    pub(super) unit: &'static str,
    /// Value that it is compared with, as `of 700 W`; empty for nothing.
    pub(super) note: String,
    /// True for errors.
    pub(super) is_bad: bool,
    /// Points of each uninterrupted part of the line, as SVG has them.
    pub(super) lines: Vec<String>,
    /// The line in words; empty without one.
    pub(super) description: String,
}

impl Call {
    /// Returns the vitals of these GPUs; a GPU without any has no figures.
    pub(super) fn vitals<'g>(
        &self,
        gpus: impl IntoIterator<Item = &'g GpuView>,
    ) -> Result<BTreeMap<GpuUuid, Vec<VitalFigure>>, ServiceError> {
        let history = self.app.service.vitals_history(&self.ctx)?;
        let now = self.now();
        let figures = |gpu: &GpuView| {
            let lines = history.get(&gpu.uuid).map(Vec::as_slice).unwrap_or_default();
            (
                gpu.uuid.clone(),
                gpu.vitals.as_ref().map(|vitals| figures(vitals, lines, now)).unwrap_or_default(),
            )
        };
        Ok(gpus.into_iter().map(figures).collect())
    }
}

/// Returns the figures that the driver reports.
fn figures(vitals: &GpuVitals, lines: &[(Measure, Vec<HistoryPoint>)], now: i64) -> Vec<VitalFigure> {
    let watts = vitals.power_limit_watts;
    let slowdown = vitals.slowdown_celsius;
    let all = [
        (Measure::Utilization, vitals.utilization_percent.map(f64::from), Some(100.0), String::new()),
        (
            Measure::Power,
            vitals.power_watts,
            watts,
            watts.map(|limit| format!("of {limit:.0} W")).unwrap_or_default(),
        ),
        (
            Measure::Temperature,
            vitals.temperature_celsius.map(f64::from),
            slowdown.map(f64::from),
            slowdown.map(|limit| format!("slows at {limit} °C")).unwrap_or_default(),
        ),
    ];
    let reported = all.into_iter().filter_map(|(measure, value, most, note)| {
        let points = lines.iter().find(|(of, _)| *of == measure).map(|(_, points)| points.as_slice());
        // A picture has no room for more, and would be empty with less in the first minutes.
        let points = match points.unwrap_or_default() {
            few if few.len() < 60 => few.to_vec(),
            points => coarsened(points, STEP_MS),
        };
        Some(VitalFigure {
            label: title(measure),
            value: format!("{:.0}", value?),
            unit: measure.unit(),
            note,
            is_bad: false,
            lines: polylines(measure, &points, most, now),
            description: in_the_last_hour(measure, &points),
        })
    });
    reported.chain(errors(vitals)).collect()
}

/// Returns the number of errors, as far as it is known.
fn errors(vitals: &GpuVitals) -> Option<VitalFigure> {
    let known = [vitals.uncorrected_ecc_errors, vitals.xids];
    let all: u64 = known.iter().flatten().sum();
    known.iter().any(Option::is_some).then(|| VitalFigure {
        label: "Errors",
        value: all.to_string(),
        unit: "",
        note: "ECC, Xid".to_owned(),
        is_bad: all > 0,
        lines: Vec::new(),
        description: String::new(),
    })
}

fn in_the_last_hour(measure: Measure, points: &[HistoryPoint]) -> String {
    let values = || points.iter().map(|point| measure.shown(point));
    if points.is_empty() {
        return String::new();
    }
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    format!("from {} to {} in the last hour", in_words(measure, least), in_words(measure, most))
}

/// Draws the line of an hour up to now, from 0 to `most` or to its highest value.
fn polylines(measure: Measure, points: &[HistoryPoint], most: Option<f64>, now: i64) -> Vec<String> {
    let highest = points.iter().map(|point| measure.shown(point)).fold(most.unwrap_or(1.0), f64::max);
    let parts = points.chunk_by(|one, next| next.at - one.at <= 3 * STEP_MS);
    let draw = |part: &[HistoryPoint]| {
        let mut line = String::new();
        for point in part {
            let x = (point.at - (now - SPAN_MS)) * WIDTH / SPAN_MS;
            let y = HEIGHT - 1.0 - measure.shown(point) / highest * (HEIGHT - 2.0);
            let _ = write!(line, "{x},{y:.1} ");
        }
        line
    };
    parts.map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_lines_and_words() {
        let vitals = GpuVitals {
            utilization_percent: Some(40),
            power_watts: Some(350.4),
            power_limit_watts: Some(700.0),
            xids: Some(3),
            ..GpuVitals::default()
        };
        let point = |minute: i64, value| HistoryPoint { at: minute * STEP_MS, mean: value, max: value };
        let lines = [(Measure::Power, vec![point(30, 350.0), point(31, 700.0), point(60, 0.0)])];
        let figures = figures(&vitals, &lines, 60 * STEP_MS);
        let [busy, power, errors] = figures.as_slice() else { panic!("what the driver reports") };
        assert_eq!((busy.value.as_str(), busy.unit, busy.description.as_str()), ("40", "%", ""));
        assert_eq!((power.value.as_str(), power.note.as_str()), ("350", "of 700 W"));
        assert_eq!((errors.value.as_str(), errors.is_bad), ("3", true));
        assert_eq!(power.lines, ["60,12.0 62,1.0 ", "120,23.0 "], "it is interrupted");
        assert_eq!(power.description, "from 0 W to 700 W in the last hour");
    }
}
