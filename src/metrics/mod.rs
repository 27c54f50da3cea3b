//! The metrics of `/metrics`: counted where things happen, and rendered only here.
//!
//! ```text
//!   http, wire, store, operations, control sessions ── count ──▶ handles ───────────┐
//!   fleet (last poll) ─────────────────┐                                            ├─▶ render ──▶ text
//!   CommittedSnapshot (stored state) ──┴─▶ MetricsSnapshot, made for each request ──┘
//! ```
//!
//! Invariant: rendering reads memory only. No daemon, driver or database is queried, so a hung one is reported instead of waited
//! for. Labels are bounded by the configuration, and series of deleted resources disappear with the next request, since they are
//! computed from present state. `docs/metrics.md` is the catalogue.

mod collector;
pub mod control;
mod daemons;
pub mod events;
mod families;
pub mod http;
pub mod incidents;
pub mod operations;
mod process;
pub mod snapshot;
pub mod store;
mod tenants;
mod text;
mod vitals;
pub mod wire;

use prometheus_client::registry::Registry;

use self::events::EventCounts;
use self::http::Http;
use self::incidents::IncidentCounts;
use self::operations::Operations;
use self::process::Process;
use self::snapshot::MetricsSnapshot;
use self::store::Commits;
pub use self::text::MetricsFormat;
use self::wire::Wire;

/// Prefix of every name, except those of the process, which all exporters share.
const PREFIX: &str = "mps_manager";

/// All counters and histograms; cheap to clone.
#[derive(Clone, Default)]
pub struct Metrics {
    /// Connections.
    pub wire: Wire,
    /// Requests.
    pub http: Http,
    /// Operations.
    pub operations: Operations,
    /// Events.
    pub events: EventCounts,
    /// Incidents.
    pub incidents: IncidentCounts,
}

impl Metrics {
    /// Everything as text.
    pub fn render(
        &self,
        snapshot: MetricsSnapshot,
        commits: &Commits,
        format: MetricsFormat,
    ) -> Result<String, std::fmt::Error> {
        let mut registry = Registry::default();
        let prefixed = registry.sub_registry_with_prefix(PREFIX);
        self.wire.register(prefixed);
        self.http.register(prefixed);
        self.operations.register(prefixed);
        self.events.register(prefixed);
        self.incidents.register(prefixed);
        commits.register(prefixed);
        prefixed.register_collector(Box::new(snapshot));
        registry.register_collector(Box::new(Process));
        let mut out = String::new();
        prometheus_client::encoding::text::encode(&mut out, &registry)?;
        Ok(match format {
            MetricsFormat::OpenMetrics => out,
            MetricsFormat::Prometheus => text::prometheus(&out),
        })
    }
}
