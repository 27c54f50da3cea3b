//! Reads that several pages make for their caller.

use std::collections::BTreeSet;

use super::gpus::{GpuDisplayNames, GpuRow, PicturedGpu};
use super::sharing::{SharingPicture, of_a_card};
use crate::domain::audit::ChangeGroup;
use crate::domain::event::{Event, EventFilter};
use crate::domain::{DaemonName, GpuUuid, TenantName};
use crate::http::extract::Call;
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;
use crate::service::events::Order;
use crate::service::page::{MAX_LIMIT, Page};
use crate::service::tenants::clients::{ClientFilter, ClientView};

/// The users of this host among some actors of the audit log.
pub(super) fn uids_of<'a>(actors: impl IntoIterator<Item = &'a str>) -> BTreeSet<u32> {
    actors.into_iter().filter_map(|actor| actor.strip_prefix("uid ")?.parse().ok()).collect()
}

/// Changes of one author, as pages show them.
pub(super) struct ChangeLine {
    /// Time of the newest, in unix milliseconds.
    pub(super) at: i64,
    pub(super) sentence: String,
    /// Link to their rows of the audit.
    pub(super) href: String,
}

impl Call {
    /// The present time, in unix milliseconds.
    pub(super) fn now(&self) -> i64 {
        self.ctx.clock.unix_ms()
    }

    /// All GPUs of the host.
    pub(super) async fn gpus(&self) -> Result<Vec<GpuRow>, ServiceError> {
        Ok(self.app.service.gpu_views(&self.ctx).await?.into_iter().map(GpuRow::of).collect())
    }

    /// All GPUs of the host, each with its MLOPart devices, and with the picture of who shares it if a daemon has it.
    pub(super) async fn pictures(&self) -> Result<Vec<PicturedGpu>, ServiceError> {
        let daemons = self.daemons().await?;
        let is_mlopart = |row: &GpuRow| row.gpu.mlopart.is_some();
        let (devices, mut gpus): (Vec<_>, Vec<_>) = self.gpus().await?.into_iter().partition(is_mlopart);
        for device in devices {
            if let Some(gpu) = gpus.iter_mut().find(|row| device.is_part_of(row.key())) {
                gpu.devices.push(device);
            }
        }
        let sharing = self.app.service.sharing(&self.ctx).await?;
        let colours = self.app.service.tenant_colours(&self.ctx).await?;
        let most = of_a_card(gpus.len());
        let picture = |row: GpuRow| {
            let daemon = daemons.iter().find(|daemon| daemon.spec.gpus.contains(row.key()));
            let both = daemon.zip(sharing.get(row.key()));
            let picture = both
                .map(|(daemon, sharing)| SharingPicture::of(&row.gpu, daemon, sharing, &colours, most, None));
            (row, picture)
        };
        Ok(gpus.into_iter().map(picture).collect())
    }

    /// The pictures of who shares some GPUs of a daemon, with `first` before the other tenants.
    pub(super) async fn pictures_of(
        &self,
        daemon: &DaemonView,
        gpus: &[GpuUuid],
        first: Option<&TenantName>,
    ) -> Result<Vec<(GpuRow, SharingPicture)>, ServiceError> {
        let sharing = self.app.service.sharing(&self.ctx).await?;
        let colours = self.app.service.tenant_colours(&self.ctx).await?;
        let rows = self.gpus().await?.into_iter().filter(|row| gpus.contains(row.key()));
        let picture = |row: GpuRow| {
            let sharing = sharing.get(row.key())?;
            let most = of_a_card(gpus.len());
            let picture = SharingPicture::of(&row.gpu, daemon, sharing, &colours, most, first);
            Some((row, picture))
        };
        Ok(rows.filter_map(picture).collect())
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

    /// The changes since a time, up to another, grouped, with their authors by name; the newest first.
    pub(super) async fn what_changed(
        &self,
        since: i64,
        until: Option<i64>,
        most: usize,
    ) -> Result<Vec<ChangeLine>, ServiceError> {
        let groups = self.app.service.what_changed(&self.ctx, since, until, most).await?;
        let actors = groups.iter().map(|group| group.actor.as_str());
        let names = self.app.service.user_names(uids_of(actors)).await;
        let line = |group: ChangeGroup| {
            let (field, value) = match &group.target {
                Some(target) => ("target", target),
                None => ("actor", &group.actor),
            };
            let query = form_urlencoded::Serializer::new(String::new()).append_pair(field, value).finish();
            let sentence = group.sentence(|uid| names.get(&uid).cloned());
            ChangeLine { at: group.at, sentence, href: format!("/audit?{query}") }
        };
        Ok(groups.into_iter().map(line).collect())
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
