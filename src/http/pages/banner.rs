//! The banner above a page: incidents that concern what it shows, in the words that everything else uses for them.

use super::format::{Badge, Lasting, Moment, Tone};
use crate::domain::event::Severity;
use crate::domain::incident::{IncidentFilter, IncidentState};
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::http::AppState;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::incidents::IncidentView;
use crate::service::page::Page;

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
        let word = match self.incident.state {
            IncidentState::Open => "open",
            IncidentState::Recovered => "recovered",
        };
        Badge { word, tone: self.tone }
    }

    pub(super) fn opened(&self) -> Moment {
        Moment(self.incident.opened_at)
    }

    pub(super) fn recovered(&self) -> Option<Moment> {
        self.incident.recovered_at.map(Moment)
    }

    pub(super) fn lasted(&self) -> Option<Lasting> {
        self.incident.time_to_recovery_ms.map(Lasting)
    }

    /// The moment at which somebody acknowledged it, and who.
    pub(super) fn acknowledged(&self) -> Option<(Moment, &str)> {
        let acknowledged = self.incident.acknowledged.as_ref()?;
        Some((Moment(acknowledged.at), acknowledged.by.as_deref().unwrap_or("an operator")))
    }

    /// Whether this process is suspected.
    pub(super) fn suspects(&self, pid: u32) -> bool {
        self.incident.suspected.iter().any(|suspect| suspect.pid == pid)
    }
}

/// The incidents that a page shows above everything else; empty when all is well.
pub(super) struct Banner {
    pub(super) rows: Vec<IncidentRow>,
}

impl Banner {
    /// Open incidents, and those of the last hour that nobody acknowledged.
    pub(super) async fn of(
        app: &AppState,
        ctx: &RequestContext,
        about: IncidentFilter,
    ) -> Result<Self, Problem> {
        let now = ctx.clock.unix_ms();
        let incidents = app.service.current_incidents(ctx, about, &Page::first(SHOWN)).await?.items;
        let rows = incidents.into_iter().map(|incident| IncidentRow::of(incident, now)).collect();
        Ok(Self { rows })
    }

    /// About a daemon, from its first event on.
    pub(super) async fn of_daemon(
        app: &AppState,
        ctx: &RequestContext,
        daemon: &DaemonName,
        from_event: Option<i64>,
    ) -> Result<Self, Problem> {
        let daemon = Some(daemon.clone());
        Self::of(app, ctx, IncidentFilter { daemon, from_event, ..IncidentFilter::default() }).await
    }

    /// About a GPU.
    pub(super) async fn of_gpu(app: &AppState, ctx: &RequestContext, gpu: &GpuUuid) -> Result<Self, Problem> {
        Self::of(app, ctx, IncidentFilter { gpu: Some(gpu.clone()), ..IncidentFilter::default() }).await
    }

    /// About a tenant.
    pub(super) async fn of_tenant(
        app: &AppState,
        ctx: &RequestContext,
        tenant: &TenantName,
    ) -> Result<Self, Problem> {
        Self::of(app, ctx, IncidentFilter { tenant: Some(tenant.clone()), ..IncidentFilter::default() }).await
    }

    /// The tone of the worst of them.
    pub(super) fn tone(&self) -> Option<Tone> {
        self.rows.iter().map(|row| row.tone).min()
    }

    /// How many are open.
    pub(super) fn open(&self) -> usize {
        self.rows.iter().filter(|row| row.incident.state == IncidentState::Open).count()
    }
}
