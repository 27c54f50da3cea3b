//! Compares what clients hold with their limits, and writes events where one holds more.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::domain::event::{DomainEvent, MemoryBreach};
use crate::domain::gpu::GpuProcess;
use crate::domain::incident::breach::{BreachTracker, LimitEvidence, MemoryUse};
use crate::domain::incident::{Incident, IncidentKind, IncidentTopic};
use crate::domain::{DaemonName, GpuUuid, MemoryLimit};
use crate::gpu::Inventory;
use crate::host::process::program_of;
use crate::service::{Backend, ServiceError};

/// Pause in which further readings are waited for.
const TOGETHER: Duration = Duration::from_millis(50);
/// Pause before what was seen beyond its limit is read again: a client that ends is listed a moment longer.
const AGAIN: Duration = Duration::from_millis(250);

impl Backend {
    /// Looks for clients beyond their limits whenever they hold something else, and at intervals, for as long as the store is open.
    pub async fn watch_breaches(self: Arc<Self>, every: Duration) {
        let mut tracker = BreachTracker::with(self.reported_breaches().await);
        let mut readings = self.parts.fleet.context().memory_readings.subscribe();
        let mut sms = BTreeMap::new();
        loop {
            let _ = tokio::time::timeout(every, readings.changed()).await;
            // What several daemons read at about the same time is compared once.
            tokio::time::sleep(TOGETHER).await;
            readings.mark_unchanged();
            let mut next = tracker.clone();
            let compare = async { Ok((self.compare_memory(&mut next, &mut sms).await?, next)) };
            if !self.record_changes(&mut tracker, "a breach of a memory limit", compare).await {
                return;
            }
        }
    }

    /// Compares once, and again a moment later what was seen beyond its limit.
    async fn compare_memory(
        &self,
        tracker: &mut BreachTracker,
        sms: &mut BTreeMap<GpuUuid, u32>,
    ) -> Result<Vec<DomainEvent>, ServiceError> {
        let mut uses = self.memory_uses(sms).await?;
        let mut events = tracker.observe(&uses);
        let suspected = tracker.suspected_on();
        if suspected.is_empty() {
            return Ok(events);
        }
        tokio::time::sleep(AGAIN).await;
        let on = suspected.clone();
        let read = move |inventory: &dyn Inventory| -> Option<BTreeMap<GpuUuid, Vec<GpuProcess>>> {
            on.into_iter().map(|gpu| inventory.processes(&gpu).ok().map(|listed| (gpu, listed))).collect()
        };
        // What the driver does not report now decides nothing.
        let Some(listed) = self.query_inventory(read).await? else { return Ok(events) };
        uses.retain_mut(|usage| {
            let Some(listed) = listed.get(&usage.gpu) else { return true };
            let now = listed.iter().find(|process| process.pid == usage.client.pid);
            usage.used = now.and_then(|process| process.used_memory).unwrap_or(usage.used);
            now.is_some()
        });
        events.extend(tracker.observe(&uses));
        Ok(events)
    }

    /// The breaches that are reported and not over.
    async fn reported_breaches(&self) -> Vec<MemoryBreach> {
        let breach = |incident: Incident| {
            let IncidentTopic::Client { client, operation: None } = incident.topic else { return None };
            let suspect = incident.suspects.into_iter().next();
            Some(MemoryBreach {
                daemon: incident.daemon,
                client,
                tenant: suspect.as_ref().and_then(|suspect| suspect.tenant.clone()),
                program: suspect.and_then(|suspect| suspect.program),
                gpu: incident.gpus.into_iter().next()?,
                used: 0,
                limit: 0,
            })
        };
        self.open_incidents(IncidentKind::Breach).await.into_iter().filter_map(breach).collect()
    }

    /// Returns the memory that each client with a limit holds on each GPU, beside the limit: that of its tenant, or without a tenant that
    /// of its server.
    async fn memory_uses(&self, sms: &mut BTreeMap<GpuUuid, u32>) -> Result<Vec<MemoryUse>, ServiceError> {
        let clients = self.attributed().await?;
        if clients.is_empty() {
            return Ok(Vec::new());
        }
        // How many SMs a GPU has does not change, and the driver takes its time to list them.
        if clients.iter().flat_map(|client| &client.memory).any(|held| !sms.contains_key(&held.gpu)) {
            let gpus = self.held_gpus().await?.into_iter();
            sms.extend(gpus.filter_map(|gpu| Some((gpu.uuid, gpu.sms?))));
        }
        let tenants = self.stored_tenants().await?;
        let daemons = self.stored_daemons().await?;
        let mut memory_uses = Vec::new();
        for client in clients.iter() {
            let tenant = tenants.iter().find(|tenant| Some(&tenant.name) == client.tenant.as_ref());
            let daemon = daemons.iter().find(|daemon| daemon.name == client.daemon);
            // The server's limit follows from all tenants of its daemon.
            let of_daemon = tenants.iter().filter(|other| other.spec.daemon == client.daemon);
            let written = of_daemon.map(|other| other.updated_at);
            let changed_at = written.chain(daemon.map(|daemon| daemon.updated_at)).max().unwrap_or(i64::MIN);
            // The driver reports memory of the GPU, and a limit is one of each MLOPart device: what it covers is not documented.
            let is_divided = daemon.is_some_and(|daemon| daemon.spec.mlopart);
            for held in client.memory.iter().filter(|_| !is_divided) {
                let Some(used) = held.used_bytes else { continue };
                let own = tenant.zip(daemon);
                let own = own.and_then(|(tenant, daemon)| tenant.spec.memory_limit(&daemon.spec, &held.gpu));
                let limit = own.map(MemoryLimit::bytes);
                let limit = limit.or_else(|| self.server_limit(&client.daemon, client.server, &held.gpu));
                let Some((present, sms)) = limit.zip(sms.get(&held.gpu).copied()) else { continue };
                let environment = client.started_with.memory_limits.as_ref();
                let environment = environment.and_then(|limits| limits.get(&held.gpu)).copied();
                let limit = LimitEvidence {
                    present,
                    changed_at,
                    environment: environment.map(MemoryLimit::bytes),
                    started_at: client.since,
                };
                memory_uses.push(MemoryUse {
                    daemon: client.daemon.clone(),
                    client: client.id,
                    tenant: client.tenant.clone(),
                    program: program_of(&client.command),
                    gpu: held.gpu.clone(),
                    sms,
                    used,
                    limit,
                });
            }
        }
        Ok(memory_uses)
    }

    /// The limit of a server on a GPU, as it was read last.
    fn server_limit(&self, daemon: &DaemonName, server: u32, gpu: &GpuUuid) -> Option<u64> {
        let status = self.parts.fleet.get(daemon)?.observed().status;
        let server = status.effective.as_ref()?.servers.iter().find(|listed| listed.pid == server)?;
        server.memory_limits.iter().find(|reading| reading.gpu == *gpu)?.bytes
    }
}
