//! History of tenants' use and of GPUs' vitals: kept from observations that are made anyway, and stored by the minute.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::health::HostFault;
use crate::domain::history::{
    EVERY_MS, HeldByTenant, HistoryLine, HistoryPoint, HistorySpan, Measure, SPAN_MS, STORED, Samples,
    coarsened, ended_periods, samples,
};
use crate::domain::{GpuUuid, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::{Backend, Result, Service, ServiceError};
use crate::store::{self, StoreError, transact};

/// Faults of the host with which nothing is stored that can be missed.
const UNWRITABLE: [HostFault; 4] =
    [HostFault::DatabaseLost, HostFault::DatabaseDamaged, HostFault::WritesFail, HostFault::StateDiskFull];

/// Subject of a history: a tenant or a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HistoryOf<'n> {
    /// A tenant, with its use of each GPU.
    Tenant(&'n TenantName),
    /// A GPU, with its use by each tenant.
    Gpu(&'n GpuUuid),
}

impl HistoryOf<'_> {
    fn has(self, line: &HistoryLine) -> bool {
        match self {
            Self::Tenant(name) => line.tenant.as_ref() == Some(name),
            Self::Gpu(gpu) => line.gpu.as_ref() == Some(gpu),
        }
    }
}

/// History of a tenant or of a GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HistoryView {
    /// The span up to now.
    pub span: HistorySpan,
    /// Seconds between two points. A longer pause between them has no data: the manager did not run, or the driver was not queried.
    #[schema(minimum = 5, example = 60)]
    pub step_s: u32,
    /// One line of points for each measure. A tenant's have its name, and a GPU where they are of one GPU; a GPU's vitals have no tenant.
    pub series: Vec<HistorySeries>,
}

/// Points of one measure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct HistorySeries {
    /// Quantity that is measured, which determines the unit of the values.
    pub measure: Measure,
    /// The tenant; `null` for vitals of a GPU.
    pub tenant: Option<TenantName>,
    /// The GPU; `null` for all GPUs of a tenant.
    pub gpu: Option<GpuUuid>,
    /// The points, the oldest first.
    pub points: Vec<HistoryPoint>,
}

/// A measure with its points.
pub type MeasureLine = (Measure, Vec<HistoryPoint>);

impl Service {
    /// Returns the history of a tenant or of a GPU.
    pub async fn history(
        &self,
        ctx: &RequestContext,
        of: HistoryOf<'_>,
        span: HistorySpan,
    ) -> Result<HistoryView> {
        let right = match of {
            HistoryOf::Tenant(name) => Right::ViewTenant(name),
            HistoryOf::Gpu(_) => Right::View,
        };
        let backend = self.with(&ctx.require(right)?);
        if let HistoryOf::Tenant(name) = of
            && !backend.stored_tenants().await?.iter().any(|tenant| tenant.name == *name)
        {
            return Err(ServiceError::NotFound { kind: "tenant", name: name.to_string() });
        }
        let lines = backend.history_lines(of, span).await?.into_iter();
        let series = lines.map(|(HistoryLine { tenant, gpu, measure }, points)| HistorySeries {
            measure,
            tenant,
            gpu,
            points,
        });
        let step_s = u32::try_from(span.step_ms() / 1000).unwrap_or(u32::MAX);
        Ok(HistoryView { span, step_s, series: series.collect() })
    }

    /// Returns the vitals of all GPUs in the last hour, from memory.
    pub fn vitals_history(&self, ctx: &RequestContext) -> Result<BTreeMap<GpuUuid, Vec<MeasureLine>>> {
        let backend = self.with(&ctx.require(Right::View)?);
        let lines = backend.recent.history().lines(|line| line.tenant.is_none());
        let mut gpus: BTreeMap<GpuUuid, Vec<_>> = BTreeMap::new();
        for (line, points) in lines {
            if let Some(gpu) = line.gpu {
                gpus.entry(gpu).or_default().push((line.measure, points));
            }
        }
        Ok(gpus)
    }
}

impl Backend {
    /// Returns the lines of a subject, up to the present values.
    async fn history_lines(
        &self,
        of: HistoryOf<'_>,
        span: HistorySpan,
    ) -> Result<BTreeMap<HistoryLine, Vec<HistoryPoint>>> {
        let now = self.parts.clock.unix_ms();
        let mut lines = match span.stored_ms() {
            None => self.recent.history().lines(|line| of.has(line)),
            Some(period) => {
                let of = match of {
                    HistoryOf::Tenant(name) => (Some(name), None),
                    HistoryOf::Gpu(gpu) => (None, Some(gpu)),
                };
                let mut reader = self.parts.store.read().await?;
                let mut lines = store::history::lines(&mut reader, of, period, now - span.ms()).await?;
                // The period that has not ended yet.
                for (line, point) in self.recent.history().fold(now - now.rem_euclid(period), now - 1) {
                    lines.entry(line).or_default().push(point);
                }
                lines.into_iter().map(|(line, points)| (line, coarsened(&points, span.step_ms()))).collect()
            }
        };
        lines.retain(|line, _| of.has(line));
        // The present values, so that a chart agrees with the figures beside it. A tenant that is not among them has nothing.
        let mut present = self.present_samples(&self.held_now().await?);
        for line in lines.keys().filter(|line| line.tenant.is_some()) {
            present.entry(line.clone()).or_insert(0.0);
        }
        for (line, value) in present.into_iter().filter(|(line, _)| of.has(line)) {
            let points = lines.entry(line).or_default();
            points.pop_if(|last| last.at == now);
            points.push(HistoryPoint { at: now, mean: value, max: value });
        }
        Ok(lines)
    }

    /// Returns the samples of now: of the use of tenants, and of the vitals at the last poll of the GPUs.
    fn present_samples(&self, held: &BTreeMap<TenantName, HeldByTenant>) -> Samples {
        let vitals =
            if self.parts.inventory.live() { Arc::clone(&self.vitals.borrow()) } else { Arc::default() };
        samples(held, &vitals)
    }

    /// Returns the use of each tenant, by the last polls of the daemons.
    async fn held_now(&self) -> Result<BTreeMap<TenantName, HeldByTenant>> {
        let mut held: BTreeMap<TenantName, HeldByTenant> = BTreeMap::new();
        for client in self.attributed().await?.iter() {
            let Some(tenant) = &client.tenant else { continue };
            let held = held.entry(tenant.clone()).or_default();
            held.clients += 1;
            for on_gpu in &client.memory {
                let (clients, memory) = held.gpus.entry(on_gpu.gpu.clone()).or_default();
                *clients += 1;
                *memory = memory.saturating_add(on_gpu.used_bytes.unwrap_or(0));
            }
        }
        Ok(held)
    }

    /// Records the usage of tenants and the vitals of GPUs every few seconds, forever, and stores each period that has ended.
    pub async fn keep_history(self: Arc<Self>) {
        let begun = self.parts.clock.unix_ms();
        if let Err(error) = self.restore_history(begun).await {
            tracing::warn!(%error, "the history before this start could not be read");
        }
        let mut timer = tokio::time::interval(Duration::from_millis(EVERY_MS.unsigned_abs()));
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stored_until = begun;
        loop {
            timer.tick().await;
            let now = self.parts.clock.unix_ms();
            let held = self.held_now().await.unwrap_or_else(|error| {
                tracing::debug!(%error, "the history of the tenants has a gap");
                BTreeMap::new()
            });
            self.recent.history().record(now, self.present_samples(&held));
            let ended: Vec<_> = ended_periods(stored_until, now).collect();
            stored_until = now;
            self.store_periods(ended).await;
        }
    }

    /// Stores the minute that has not ended yet, when the manager stops.
    pub async fn store_last_minute(&self) {
        let (minute, _) = STORED[0];
        self.store_periods(vec![(minute, self.parts.clock.unix_ms())]).await;
    }

    async fn restore_history(&self, now: i64) -> Result<(), StoreError> {
        let mut reader = self.parts.store.read().await?;
        let lines = store::history::lines(&mut reader, (None, None), STORED[0].0, now - SPAN_MS).await?;
        self.recent.history().restore(lines);
        Ok(())
    }

    /// Stores these periods in one transaction; nothing while the database is not writable or belongs to another machine.
    async fn store_periods(&self, ended: Vec<(i64, i64)>) {
        let fold = |(length, end): (i64, i64)| {
            let points = self.recent.history().fold(end - length, end);
            (!points.is_empty()).then_some((length, end, points))
        };
        let periods: Vec<_> = ended.into_iter().filter_map(fold).collect();
        let is_writable = !self.is_read_only()
            && !self.parts.store.is_sealed()
            && !UNWRITABLE.iter().any(|fault| self.parts.health.has(*fault));
        if periods.is_empty() || !is_writable {
            return;
        }
        let stored = transact!(self.parts.store, |db| {
            for (length, end, points) in &periods {
                store::history::add(db, *length, *end, points).await?;
            }
            Ok(())
        });
        if let Err(error) = stored {
            tracing::warn!(%error, "a minute of the history could not be stored");
        }
    }
}
