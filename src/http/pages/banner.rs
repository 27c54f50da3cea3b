//! The banner above a page: incidents that concern what it shows, in the words that everything else uses for them.

use super::format::{Badge, Tone};
use crate::domain::event::Severity;
use crate::domain::incident::{IncidentFilter, IncidentKind, IncidentState};
use crate::domain::{DaemonName, GpuUuid};
use crate::http::extract::Call;
use crate::http::problem::Problem;
use crate::service::incidents::{IncidentView, WorstIncidents};

/// Most incidents in a banner.
const SHOWN: u32 = 5;

/// An incident as pages show it.
pub(super) struct IncidentRow {
    pub(super) incident: IncidentView,
    tone: Tone,
}

impl IncidentRow {
    pub(super) fn of(incident: IncidentView, now: i64) -> Self {
        let serious = incident.severity >= Severity::Error;
        let tone = match (incident.needs_attention(now), incident.state) {
            (true, IncidentState::Open) if serious => Tone::Bad,
            (true, _) => Tone::Warn,
            (false, _) => Tone::Quiet,
        };
        Self { incident, tone }
    }

    /// Its state.
    pub(super) fn badge(&self) -> Badge {
        Badge::new(incident_state(self.incident.state), self.tone)
    }
}

/// The word of a state.
pub(super) fn incident_state(of: IncidentState) -> &'static str {
    match of {
        IncidentState::Open => "open",
        IncidentState::Recovered => "recovered",
    }
}

/// Incidents that a page shows above everything else, open and severe ones first; empty when all is well.
pub(super) struct Banner {
    pub(super) rows: Vec<IncidentRow>,
    /// Number of incidents, including those that are not shown.
    pub(super) total: u64,
    /// Number of open incidents among all of them.
    pub(super) open: u64,
    /// Address of the list of all of them.
    pub(super) list: String,
}

impl Banner {
    /// Reads the open incidents, and those of the last hour that were not acknowledged.
    pub(super) async fn of(call: &Call, about: IncidentFilter) -> Result<Self, Problem> {
        let Call { app, ctx } = call;
        let now = call.now();
        let list = match (&about.daemon, &about.tenant) {
            (Some(daemon), _) => format!("/incidents?daemon={daemon}"),
            (None, Some(tenant)) => format!("/incidents?tenant={tenant}"),
            (None, None) => "/incidents".to_owned(),
        };
        let WorstIncidents { incidents, total, open } =
            app.service.worst_incidents(ctx, about, SHOWN).await?;
        let rows = incidents.into_iter().map(|incident| IncidentRow::of(incident, now)).collect();
        Ok(Self { rows, total, open, list })
    }

    /// The tone of the worst of them.
    pub(super) fn tone(&self) -> Option<Tone> {
        self.rows.iter().map(|row| row.tone).min()
    }

    /// Returns the number of incidents that are not shown.
    pub(super) fn more(&self) -> u64 {
        self.total.saturating_sub(u64::try_from(self.rows.len()).unwrap_or(u64::MAX))
    }

    /// Returns true if it shows an open incident of one of these kinds for the daemon.
    pub(super) fn covers(&self, daemon: &DaemonName, kinds: &[IncidentKind]) -> bool {
        self.open_rows().any(|incident| incident.daemon == *daemon && kinds.contains(&incident.kind))
    }

    /// Returns true if it shows an open incident of this kind for the GPU.
    pub(super) fn covers_gpu(&self, gpu: &GpuUuid, kind: IncidentKind) -> bool {
        self.open_rows().any(|incident| incident.kind == kind && incident.gpus.contains(gpu))
    }

    fn open_rows(&self) -> impl Iterator<Item = &IncidentView> {
        let incidents = self.rows.iter().map(|row| &row.incident);
        incidents.filter(|incident| incident.state == IncidentState::Open)
    }
}
