//! Plans of thread-percentage layouts, the chunks of GPUs in which they are counted, and the verification of their tenants.

use std::collections::BTreeMap;
use std::time::Duration;

use super::engine::the_daemon;
use super::layout::OutlookError;
use super::{Engine, OperationFailure, Result};
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::active::ActiveLayout;
use crate::domain::layout::blocked::Blocked;
use crate::domain::layout::document::PartitionShare;
use crate::domain::layout::percentage::own_share::own_shares;
use crate::domain::layout::percentage::plan::plan;
use crate::domain::layout::percentage::{PlannedShare, shares};
use crate::domain::layout::plan::Plan;
use crate::domain::layout::status::LayoutStatus;
use crate::domain::layout::{Enforcement, Layout};
use crate::domain::operation::Operation;
use crate::domain::tenant::Tenant;
use crate::domain::{DaemonName, GpuUuid};
use crate::gpu::probe::CensusRequest;
use crate::store::{self, StoreError, transact};

/// Longest wait for a CUDA process that counts chunks.
const COUNTING: Duration = Duration::from_secs(30);

impl Engine {
    /// The chunks of GPUs, as they were counted once, or as a CUDA process counts them now.
    ///
    /// That process is a client of the daemon that has them; where the daemon does not run, or its percentage prevents it,
    /// it is outside MPS for a moment.
    pub async fn chunks_of(
        &self,
        daemon: &DaemonName,
        gpus: &[GpuUuid],
    ) -> Result<BTreeMap<GpuUuid, ChunkCensus>, OutlookError> {
        let mut chunks = store::probe_results::chunks(&mut *self.store.read().await?).await?;
        chunks.retain(|gpu, _| gpus.contains(gpu));
        let uncounted: Vec<GpuUuid> = gpus.iter().filter(|gpu| !chunks.contains_key(gpu)).cloned().collect();
        if uncounted.is_empty() {
            return Ok(chunks);
        }
        let handle = self.fleet.get(daemon);
        let status = handle.as_ref().map(|handle| handle.observed().status);
        let running = status.filter(|status| status.pid.is_some());
        let request = CensusRequest {
            pipe_directory: running.map(|status| status.pipe_directory.clone().into()),
            uid: handle.map_or(self.manager_uid, |handle| handle.server_uid()),
            gpus: uncounted,
            timeout: COUNTING,
        };
        let counted = self.fleet.context().prober.census(&request).await;
        let counted = counted.map_err(|error| OutlookError::Unfit(error.to_string()))?;
        chunks.extend(counted.clone());
        self.remember_chunks(counted).await?;
        Ok(chunks)
    }

    async fn remember_chunks(&self, counted: BTreeMap<GpuUuid, ChunkCensus>) -> Result<(), StoreError> {
        let clock = self.clock;
        transact!(self.store, |db| {
            for (gpu, census) in &counted {
                store::probe_results::put_chunks(&mut *db, gpu, census, clock.unix_ms()).await?;
            }
            Ok(())
        })
    }

    /// Plans the changes that a thread-percentage layout makes to a daemon, and returns them with the SMs per chunk of each GPU.
    pub(super) async fn plan_shares(
        &self,
        daemon: &DaemonName,
        active: &ActiveLayout,
        layout: &Layout,
        before: Option<&ActiveLayout>,
        tenants: &[Tenant],
    ) -> Result<(Plan, BTreeMap<GpuUuid, u32>), OutlookError> {
        let desired = self.shares(active, layout).await?;
        let before = match before {
            Some(before) => {
                let content = store::layouts::content(&mut *self.store.read().await?, before).await?;
                self.shares(before, &content).await?
            }
            None => Vec::new(),
        };
        let mut gpus: Vec<GpuUuid> = desired.iter().chain(&before).map(|share| share.gpu.clone()).collect();
        gpus.sort();
        gpus.dedup();
        let census = self.chunks_of(daemon, &gpus).await?;
        let mut planned = plan(&desired, &before, &census);
        let of_daemon = tenants.iter().filter(|tenant| tenant.spec.daemon == *daemon);
        let shares = own_shares(layout, of_daemon.map(|tenant| (&tenant.name, &tenant.spec)));
        planned.blocked.extend(shares.map(Blocked::OwnShare));
        let chunk_sms = census.into_iter().map(|(gpu, counted)| (gpu, counted.chunk_sms)).collect();
        Ok((planned, chunk_sms))
    }

    /// Verifies the tenants of a daemon's layout of thread percentages, each with a CUDA client. Returns the shares that clients saw, and
    /// the difference if one saw other SMs. A client that could not run proves nothing: the journal has the reason.
    pub(super) async fn verify_shares(
        &self,
        operation: &Operation,
        layout: Option<&LayoutStatus>,
    ) -> Result<(Vec<PartitionShare>, Option<String>)> {
        let layout = layout.filter(|layout| layout.enforcement == Enforcement::Percentage);
        let partitions = layout.map_or(&[][..], |layout| &layout.partitions);
        let mut reader = self.store.read().await?;
        let tenants = store::tenants::of_daemon(&mut reader, the_daemon(operation)?).await?;
        drop(reader);
        let (mut verified, mut differs) = (Vec::new(), None);
        for Tenant { name, .. } in tenants {
            if !partitions.iter().any(|partition| partition.tenants.contains(&name)) {
                continue;
            }
            let verifying = async {
                let result = self.verify(&name).await;
                let outcome = match &result {
                    Ok(None) => "a CUDA client saw its SMs".to_owned(),
                    Ok(Some(other)) => other.clone(),
                    Err(why) => format!("not verified: {why}"),
                };
                Ok::<_, OperationFailure>((result, outcome))
            };
            match self.step(operation.id, &format!("verify {name}"), verifying).await? {
                Ok(None) => verified.push(name),
                Ok(Some(other)) => {
                    differs = Some(format!("tenant {name}: {other}"));
                    break;
                }
                Err(_) => {}
            }
        }
        let checked = partitions
            .iter()
            .filter(|partition| partition.tenants.iter().any(|name| verified.contains(name)));
        Ok((PartitionShare::of(checked).unwrap_or_default(), differs))
    }

    /// The shares of a layout; none where static partitions make it hold.
    pub async fn shares(
        &self,
        active: &ActiveLayout,
        layout: &Layout,
    ) -> Result<Vec<PlannedShare>, OutlookError> {
        if layout.enforcement == Enforcement::Static {
            return Ok(Vec::new());
        }
        let gpus = self.gpus().await?;
        let gpus = store::gpus::all(&mut *self.store.read().await?, gpus).await?;
        shares(layout, &active.gpu_map, &gpus).map_err(|error| OutlookError::Unfit(error.to_string()))
    }
}
