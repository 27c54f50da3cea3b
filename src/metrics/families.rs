//! Metric families whose samples are computed on request.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Unit;

/// Labels of one sample, in the order in which they are shown.
pub(super) type Labels<const N: usize> = [(&'static str, String); N];

/// Writes families, each with a sentence that says what it is.
pub(super) struct Families<'e>(DescriptorEncoder<'e>);

impl<'e> Families<'e> {
    pub(super) fn new(encoder: DescriptorEncoder<'e>) -> Self {
        Self(encoder)
    }

    /// Values that go up and down.
    pub(super) fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<N>, f64)>,
    ) -> fmt::Result {
        self.gauges_in(None, name, help, samples)
    }

    /// Values in bytes or seconds, which the name gets as its end.
    pub(super) fn gauges_in<const N: usize>(
        &mut self,
        unit: impl Into<Option<Unit>>,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<N>, f64)>,
    ) -> fmt::Result {
        let unit = unit.into();
        let help = format!("{help}.");
        let mut family = self.0.encode_descriptor(name, &help, unit.as_ref(), MetricType::Gauge)?;
        for (labels, value) in samples {
            let gauge = ConstGauge::new(value);
            match N {
                // Without labels there are no braces.
                0 => return gauge.encode(family),
                _ => gauge.encode(family.encode_family(&labels)?)?,
            }
        }
        Ok(())
    }

    /// One value without labels, if there is any.
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: impl Into<Option<f64>>) -> fmt::Result {
        self.gauges::<0>(name, help, value.into().map(|value| ([], value)))
    }

    /// One value in bytes or seconds, if there is any.
    pub(super) fn gauge_in(
        &mut self,
        unit: Unit,
        name: &str,
        help: &str,
        value: impl Into<Option<f64>>,
    ) -> fmt::Result {
        self.gauges_in::<0>(unit, name, help, value.into().map(|value| ([], value)))
    }

    /// Values that only go up; `_total` is added to the name.
    pub(super) fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<N>, u64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, &format!("{help}."), None, MetricType::Counter)?;
        for (labels, value) in samples {
            ConstCounter::new(value).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    /// Seconds that only become more; `_seconds_total` is added to the name.
    pub(super) fn seconds_total(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let family =
            self.0.encode_descriptor(name, &format!("{help}."), Some(&Unit::Seconds), MetricType::Counter)?;
        ConstCounter::new(value).encode(family)
    }

    /// Times in seconds.
    pub(super) fn histograms<'h, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<N>, &'h Histogram)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(
            name,
            &format!("{help}."),
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (labels, histogram) in samples {
            histogram.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

/// A number of things; past 2^53 it is not exact, and nothing here is as many.
#[allow(clippy::cast_precision_loss, reason = "counts of processes, chunks and bytes of one host")]
pub(super) fn number(value: u64) -> f64 {
    value as f64
}

/// The length of a list.
pub(super) fn length(count: usize) -> f64 {
    number(u64::try_from(count).unwrap_or(u64::MAX))
}

/// A time in seconds, of one in milliseconds.
#[allow(clippy::cast_precision_loss, reason = "exact for 280 000 years")]
pub(super) fn seconds(unix_ms: i64) -> f64 {
    unix_ms as f64 / 1000.0
}

/// 1 or 0.
pub(super) fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}
