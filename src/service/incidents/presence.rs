//! Presence of a tenant's clients on a GPU, when it faulted and when it did not.

use std::collections::BTreeMap;

use crate::domain::TenantName;
use crate::domain::event::AffectedClient;
use crate::domain::history::{EVERY_MS, HistoryPoint, Measure, SPAN_MS};
use crate::domain::incident::{Incident, IncidentFilter, IncidentKind, StoredIncident, TenantPresence};
use crate::service::{Backend, ServiceError};
use crate::store;

/// Number of the last faults of a GPU that are examined.
const FAULTS: i64 = 10;

/// Presence of the tenants on the GPU of a fault.
#[derive(Debug, Default)]
pub(super) struct PresenceOnGpu {
    faults: Vec<Incident>,
    moments: BTreeMap<TenantName, u32>,
    of_moments: u32,
}

impl PresenceOnGpu {
    /// Reads the presence for a fault, from this fault and earlier ones; it is empty for other incidents.
    pub(super) async fn read(
        backend: &Backend,
        reader: &mut sqlx::SqliteConnection,
        StoredIncident { id, incident }: &StoredIncident,
    ) -> Result<Self, ServiceError> {
        let Some(gpu) = incident.gpus.first().filter(|_| incident.kind == IncidentKind::GpuFault) else {
            return Ok(Self::default());
        };
        let filter =
            IncidentFilter { kind: Some(incident.kind), gpu: Some(gpu.clone()), ..IncidentFilter::default() };
        let faults = store::incidents::page(reader, &filter, Some(id + 1), FAULTS).await?;
        let faults = faults.into_iter().map(|stored| stored.incident).filter(|incident| !incident.is_hint);
        // Before this start there is a point a minute, which is no moment like the others.
        let from = backend.recent.since.max(backend.parts.clock.unix_ms() - SPAN_MS);
        let counts =
            |point: &&HistoryPoint| (from..incident.opened_at).contains(&point.at) && point.max > 0.0;
        let lines = backend.recent.history().lines(|line| {
            line.gpu.as_ref() == Some(gpu) && line.measure == Measure::Clients && line.tenant.is_some()
        });
        let count = |points: Vec<HistoryPoint>| {
            u32::try_from(points.iter().filter(counts).count()).unwrap_or(u32::MAX)
        };
        let held = lines.into_iter().filter_map(|(line, points)| Some((line.tenant?, count(points))));
        Ok(Self {
            faults: faults.collect(),
            moments: held.collect(),
            of_moments: u32::try_from((incident.opened_at - from) / EVERY_MS).unwrap_or(0),
        })
    }

    /// Returns the presence of a client's tenant; `None` for a client of no tenant.
    pub(super) fn of(&self, client: &AffectedClient) -> Option<TenantPresence> {
        let tenant = client.tenant.as_ref()?;
        let was_there =
            |fault: &&Incident| fault.affected.iter().any(|other| other.tenant.as_ref() == Some(tenant));
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let moments = self.moments.get(tenant).copied().unwrap_or(0);
        Some(TenantPresence {
            faults: count(self.faults.iter().filter(was_there).count()),
            of_faults: count(self.faults.len()),
            moments: moments.min(self.of_moments),
            of_moments: self.of_moments,
        })
    }
}
