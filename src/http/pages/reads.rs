//! Reads that several pages make for their caller.

use super::gpus::{GpuDisplayNames, GpuRow};
use crate::domain::DaemonName;
use crate::domain::event::{Event, EventFilter};
use crate::http::extract::Call;
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::{ClientFilter, ClientView};

impl Call {
    /// The present time, in unix milliseconds.
    pub(super) fn now(&self) -> i64 {
        self.ctx.clock.unix_ms()
    }

    /// All GPUs of the host.
    pub(super) async fn gpus(&self) -> Result<Vec<GpuRow>, ServiceError> {
        Ok(self.app.service.gpu_views(&self.ctx).await?.into_iter().map(GpuRow::of).collect())
    }

    /// The display names of all GPUs; users without access to the host get none.
    pub(super) async fn gpu_names(&self) -> GpuDisplayNames {
        GpuDisplayNames::of(&self.gpus().await.unwrap_or_default())
    }

    /// All daemons, in the order of their names.
    pub(super) async fn daemons(&self) -> Result<Vec<DaemonView>, ServiceError> {
        let mut daemons = self.app.service.daemons(&self.ctx, &Page::first(MAX_LIMIT)).await?.items;
        daemons.sort_by_cached_key(|daemon| daemon.name.natural_key());
        Ok(daemons)
    }

    /// The names of all daemons, for a filter or a form.
    pub(super) async fn daemon_names(&self) -> Result<Vec<DaemonName>, ServiceError> {
        Ok(self.daemons().await?.into_iter().map(|daemon| daemon.name).collect())
    }

    /// All connected clients that match a filter.
    pub(super) async fn clients(&self, filter: ClientFilter) -> Result<Vec<ClientView>, ServiceError> {
        let all = Page::first(MAX_LIMIT);
        Ok(self.app.service.clients(&self.ctx, &filter, false, &all).await?.items)
    }

    /// The newest events that match a filter, at most this many.
    pub(super) async fn newest_events(
        &self,
        filter: EventFilter,
        most: u32,
    ) -> Result<Vec<Event>, ServiceError> {
        let newest = Page::first(most);
        Ok(self.app.service.events(&self.ctx, filter, Order::NewestFirst, &newest).await?.items)
    }
}
