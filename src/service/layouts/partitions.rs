//! The partitions of a daemon, from its layout and as the daemon lists them.

use serde::{Deserialize, Serialize};

use crate::domain::access::Right;
use crate::domain::client::ClientId;
use crate::domain::layout::status::PartitionStatus;
use crate::domain::partitions::{GpuPartitions, ListedPartition};
use crate::domain::{DaemonName, GpuUuid, PartitionId, PartitionName, TenantName};
use crate::service::access::context::RequestContext;
use crate::service::error::conflict;
use crate::service::page::{Page, Paged};
use crate::service::{Result, Service, ServiceError};

/// A partition of a daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct PartitionView {
    /// Its name in `GET /daemons/{name}/partitions/{partition}`: its name in the layout, or else `<uuid>/<id>`.
    pub key: String,
    /// Its name in the daemon's layout; `null` if the layout did not create it.
    pub partition: Option<PartitionName>,
    /// Its GPU.
    pub gpu: GpuUuid,
    /// Its ID; `null` if it does not exist as the layout created it, or if partitions have no IDs.
    pub id: Option<PartitionId>,
    /// The recorded ID.
    pub expected: Option<PartitionId>,
    /// Its chunks.
    pub chunks: u32,
    /// Its SMs, as listed, or as seen by a CUDA client.
    pub sms: Option<u32>,
    /// The tenants bound to it.
    pub tenants: Vec<TenantName>,
    /// True if a client uses it, as the daemon reports; `null` if the daemon does not report that.
    pub in_use: Option<bool>,
    /// The connected clients that name it.
    pub clients: Vec<ClientId>,
}

impl Service {
    /// The partitions of a daemon: those of its layout, then others that it lists.
    pub async fn partitions(
        &self,
        ctx: &RequestContext,
        daemon: &DaemonName,
        fresh: bool,
        page: &Page,
    ) -> Result<Paged<PartitionView>> {
        ctx.require(Right::View)?;
        let from = page.key::<usize>()?.unwrap_or(0);
        let all = self.all_partitions(ctx, daemon, fresh).await?;
        let numbered = all.into_iter().enumerate().skip(from).collect();
        let paged = page.cut(numbered, |(number, _)| (number + 1).to_string());
        let items = paged.items.into_iter().map(|(_, partition)| partition).collect();
        Ok(Paged { items, next_cursor: paged.next_cursor })
    }

    /// One partition of a daemon, by its name, by its ID, or by `<uuid>/<id>`.
    pub async fn partition(
        &self,
        ctx: &RequestContext,
        daemon: &DaemonName,
        wanted: &str,
        fresh: bool,
    ) -> Result<PartitionView> {
        ctx.require(Right::View)?;
        let all = self.all_partitions(ctx, daemon, fresh).await?;
        let is_wanted = |view: &&PartitionView| {
            let id = view.id.as_ref().map(PartitionId::as_str);
            view.partition.as_ref().is_some_and(|name| name.as_str() == wanted)
                || id == Some(wanted)
                || id.is_some_and(|id| {
                    wanted.strip_prefix(view.gpu.as_str()).and_then(|rest| rest.strip_prefix('/')) == Some(id)
                })
        };
        let matching: Vec<&PartitionView> = all.iter().filter(is_wanted).collect();
        match matching.as_slice() {
            [view] => Ok((*view).clone()),
            [] => Err(ServiceError::NotFound { kind: "partition", name: wanted.chars().take(200).collect() }),
            several => Err(conflict!(
                "{} partitions of daemon {daemon} are called {wanted}, each on another GPU: give <uuid>/<id>",
                several.len()
            )),
        }
    }

    async fn all_partitions(
        &self,
        ctx: &RequestContext,
        daemon: &DaemonName,
        fresh: bool,
    ) -> Result<Vec<PartitionView>> {
        let status = self.daemon(ctx, daemon, fresh).await?.status;
        let listed = status.as_ref().and_then(|status| status.effective.as_ref()?.partitions.clone());
        let listed = listed.unwrap_or_default();
        let layout = status.and_then(|status| status.layout);
        let named = layout.map(|layout| layout.partitions).unwrap_or_default();
        let mut all: Vec<PartitionView> = named.into_iter().map(|state| of_layout(state, &listed)).collect();
        let strange: Vec<PartitionView> = listed
            .iter()
            .flat_map(|gpu| gpu.partitions.iter().map(move |partition| (&gpu.gpu, partition)))
            .filter(|(gpu, partition)| {
                all.iter().all(|view| (&view.gpu, view.id.as_ref()) != (*gpu, Some(&partition.id)))
            })
            .map(|(gpu, partition)| outside_layout(gpu, partition))
            .collect();
        all.extend(strange);
        Ok(all)
    }
}

fn of_layout(status: PartitionStatus, listed: &[GpuPartitions]) -> PartitionView {
    let PartitionStatus { partition, gpu, id, expected, chunks, sms, tenants, .. } = status;
    let of_gpu = listed.iter().find(|listing| listing.gpu == gpu);
    let entry = id.as_ref().and_then(|id| of_gpu?.get(id));
    PartitionView {
        key: partition.to_string(),
        partition: Some(partition),
        in_use: entry.and_then(|entry| entry.in_use),
        clients: entry.map(|entry| entry.clients.clone()).unwrap_or_default(),
        gpu,
        id,
        expected,
        chunks,
        sms,
        tenants,
    }
}

fn outside_layout(gpu: &GpuUuid, listed: &ListedPartition) -> PartitionView {
    PartitionView {
        key: format!("{gpu}/{}", listed.id.as_str()),
        partition: None,
        gpu: gpu.clone(),
        id: Some(listed.id.clone()),
        expected: None,
        chunks: listed.chunks,
        sms: Some(listed.sms),
        tenants: Vec::new(),
        in_use: listed.in_use,
        clients: listed.clients.clone(),
    }
}
