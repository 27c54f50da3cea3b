//! The metrics of a request: about the manager itself, and those of daemons and tenants.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;

use super::families::{Families, length, number, seconds, truth};
use super::snapshot::MetricsSnapshot;
use super::{daemons, tenants, vitals};
use crate::domain::incident::IncidentKind;

impl Collector for MetricsSnapshot {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut families = Families::new(encoder);
        self.of_the_manager(&mut families)?;
        daemons::encode(self, &mut families)?;
        vitals::encode(self, &mut families)?;
        tenants::encode(self, &mut families)
    }
}

impl MetricsSnapshot {
    fn of_the_manager(&self, families: &mut Families<'_>) -> fmt::Result {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        families.gauges(
            "build_info",
            "Always 1, with the version of the manager",
            [([("version", version)], 1.0)],
        )?;
        families.gauge(
            "read_only",
            "1 while nothing is managed, as the database belongs to another machine or the driver is waited for",
            truth(self.read_only),
        )?;
        families.gauge(
            "maintenance",
            "1 while the host is in maintenance, or on its way there or back",
            truth(self.committed.maintenance),
        )?;
        families.gauges(
            "operations_unfinished",
            "Operations that have not ended, by state (pending, running)",
            self.committed
                .unfinished
                .iter()
                .map(|(state, count)| ([("state", (*state).to_owned())], number(*count))),
        )?;
        families.gauges(
            "incidents_open",
            "Incidents that have not ended, by kind and severity",
            IncidentKind::ALL.iter().map(|kind| {
                let labels =
                    [("kind", kind.as_str().to_owned()), ("severity", kind.severity().as_str().to_owned())];
                (labels, number(self.committed.open_incidents.get(kind).copied().unwrap_or(0)))
            }),
        )?;
        families.gauge(
            "store_queue_length",
            "Changes that wait for the database's writer",
            length(self.queue),
        )?;
        families.gauge_in(
            Unit::Bytes,
            "store_file_size",
            "Size of the database, its log not included",
            number(self.committed.database_bytes),
        )?;
        families.gauge_in(
            Unit::Seconds,
            "store_read_timestamp",
            "When what is configured was read for these metrics, as Unix time; it is read after each commit, and each half minute",
            seconds(self.committed.read_at),
        )?;
        let tls = self.listening.tls.as_ref();
        families.gauge_in(
            Unit::Seconds,
            "tls_certificate_expiry_timestamp",
            "When the certificate that is served expires, as Unix time; absent without TLS",
            tls.map(|tls| seconds(tls.not_after)),
        )?;
        families.gauge(
            "tls_certificate_reload_failed",
            "1 while the certificate's files cannot be used, and the one from before is served; absent without TLS",
            tls.map(|tls| truth(tls.reload_error.is_some())),
        )?;
        families.gauge(
            "listening_insecure",
            "1 while callers beyond this host are served without TLS",
            truth(self.listening.insecure),
        )
    }
}
