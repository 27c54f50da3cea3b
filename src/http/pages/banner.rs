//! The banner above a page: incidents that concern what it shows, in the words that everything else uses for them.

use super::format::{Badge, Tone};
use crate::domain::access::Right;
use crate::domain::event::Severity;
use crate::domain::incident::{IncidentFilter, IncidentKind, IncidentState};
use crate::domain::{DaemonName, GpuUuid};
use crate::http::extract::Call;
use crate::http::problem::Problem;
use crate::service::incidents::{IncidentView, WorstIncidents};

/// Most incidents in a banner.
const MOST: u32 = 20;
/// Most incidents of the same weight that a banner shows at once; the others are behind their count.
const SHOWN: usize = 3;

/// An incident as pages show it.
pub(super) struct IncidentRow {
    pub(super) incident: IncidentView,
    tone: Tone,
}

/// Weight of an incident among others, the heaviest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum IncidentWeight {
    /// It lasts.
    Open,
    /// It has ended, and clients lost their work.
    LostWork,
    /// It has ended without lost work.
    Repaired,
}

impl IncidentWeight {
    /// Its class in the style sheet.
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::LostWork => "lost-work",
            Self::Repaired => "repaired",
        }
    }
}

/// The incidents of one weight in a banner.
pub(super) struct WeightGroup<'b> {
    weight: IncidentWeight,
    pub(super) shown: Vec<&'b IncidentRow>,
    /// Further ones, which are shown on request.
    pub(super) folded: Vec<&'b IncidentRow>,
}

impl WeightGroup<'_> {
    /// The number of further ones in words.
    pub(super) fn more(&self) -> String {
        let (more, one) = (self.folded.len(), self.folded.len() == 1);
        match self.weight {
            IncidentWeight::Open => format!("{more} more {} open", if one { "is" } else { "are" }),
            IncidentWeight::LostWork => format!("{more} more cost clients their work in the last hour"),
            IncidentWeight::Repaired => {
                format!(
                    "{more} more {} repaired in the last hour, without lost work",
                    if one { "was" } else { "were" }
                )
            }
        }
    }
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

    /// Its weight among others.
    pub(super) fn weight(&self) -> IncidentWeight {
        match self.incident.state {
            IncidentState::Open => IncidentWeight::Open,
            IncidentState::Recovered if self.incident.affected.is_empty() => IncidentWeight::Repaired,
            IncidentState::Recovered => IncidentWeight::LostWork,
        }
    }

    /// Its classes in the style sheet.
    pub(super) fn classes(&self) -> String {
        format!("{} {}", self.tone.class(), self.weight().class())
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
    /// Address of the page that has the banner.
    pub(super) back: String,
    /// True if the user may acknowledge incidents.
    acknowledges: bool,
}

/// The IDs of the incidents among some that nobody has acknowledged.
pub(super) fn unacknowledged(rows: &[IncidentRow]) -> Vec<i64> {
    let new = rows.iter().filter(|row| row.incident.acknowledged.is_none());
    new.map(|row| row.incident.id).collect()
}

impl Banner {
    /// Reads the open incidents, and those of the last hour that were not acknowledged.
    pub(super) async fn of(call: &Call, about: IncidentFilter) -> Result<Self, Problem> {
        let Call { app, ctx } = call;
        let now = call.now();
        let (list, back) = match (&about.daemon, &about.tenant, &about.gpu) {
            (Some(daemon), ..) => (format!("/incidents?daemon={daemon}"), format!("/daemons/{daemon}")),
            (None, Some(tenant), _) => (format!("/incidents?tenant={tenant}"), format!("/tenants/{tenant}")),
            (None, None, Some(gpu)) => ("/incidents".to_owned(), format!("/gpus/{gpu}")),
            (None, None, None) => ("/incidents".to_owned(), "/".to_owned()),
        };
        let acknowledges = ctx.require(Right::Operate).is_ok();
        let WorstIncidents { incidents, total, open } = app.service.worst_incidents(ctx, about, MOST).await?;
        let rows = incidents.into_iter().map(|incident| IncidentRow::of(incident, now)).collect();
        Ok(Self { rows, total, open, list, back, acknowledges })
    }

    /// The incidents by their weights.
    pub(super) fn groups(&self) -> Vec<WeightGroup<'_>> {
        let weights = [IncidentWeight::Open, IncidentWeight::LostWork, IncidentWeight::Repaired];
        let group = |weight| {
            let mut shown: Vec<_> = self.rows.iter().filter(|row| row.weight() == weight).collect();
            let folded = if shown.len() > SHOWN { shown.split_off(SHOWN) } else { Vec::new() };
            WeightGroup { weight, shown, folded }
        };
        weights.into_iter().map(group).filter(|group| !group.shown.is_empty()).collect()
    }

    /// The IDs of those that the user may acknowledge together.
    pub(super) fn to_acknowledge(&self) -> Vec<i64> {
        if self.acknowledges { unacknowledged(&self.rows) } else { Vec::new() }
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
