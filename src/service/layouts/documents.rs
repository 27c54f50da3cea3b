//! Layout documents: imported, and exported with the IDs that their steps gave.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{LayoutView, check_free, invalid, no_version, put_if_new, view};
use crate::clock::Clock;
use crate::domain::access::Right;
use crate::domain::gpu::Gpu;
use crate::domain::layout::document::{
    Document, DocumentLayout, Fingerprint, PROTOCOL, PartitionShare, Provenance, Recorded,
};
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::layout::text::{self, LayoutFormat};
use crate::domain::layout::{Enforcement, GpuMap, Version};
use crate::domain::{DaemonName, LayoutName, PartitionId};
use crate::host::process;
use crate::operations::PolledDaemon;
use crate::service::access::context::RequestContext;
use crate::service::error::{Found as _, conflict, field};
use crate::service::{Backend, Result, Service, ServiceError, WriteOptions, transaction_end, unavailable};
use crate::store::{self, layouts::NewVersion, transact};

/// Most layouts in one import.
const MAX_LAYOUTS: usize = 500;
/// Layouts, and steps, written in one transaction, which blocks the only writer for as long.
const BATCH_LAYOUTS: usize = 20;
const BATCH_STEPS: usize = 512;

impl Service {
    /// Imports every layout of a document, as a new version if it differs.
    ///
    /// A refused document changes nothing. Many layouts are written in several transactions, with other writes in between: an
    /// import that fails halfway is completed by repeating it, since layouts that are stored already do not differ.
    pub async fn import_layouts(
        &self,
        ctx: &RequestContext,
        text: String,
        format: LayoutFormat,
        options: WriteOptions,
    ) -> Result<Vec<LayoutView>> {
        let permit = ctx.require(Right::Operate)?;
        let backend = self.with(&permit);
        backend.refuse_read_only().await?;
        let author = ctx.actor.subject.to_string();
        let layouts = text::read(&text, format).map_err(|error| invalid("", error))?.layouts;
        check_import(&layouts)?;
        let mut views = Vec::with_capacity(layouts.len());
        for part in parts(layouts) {
            let (author, transaction_end, clock) = (author.clone(), transaction_end(&options), ctx.clock);
            let written = transact!(backend, write(&permit), |db| {
                let mut views = Vec::with_capacity(part.len());
                for (name, entry) in part {
                    let newest = take(&mut *db, &name, &entry, &author, clock).await?;
                    views.push(view(&mut *db, newest).await?);
                }
                Ok((views, transaction_end))
            });
            views.extend(written?);
        }
        Ok(views)
    }

    /// A layout with the results of its steps on a daemon where it is in force now.
    pub async fn export_layout(
        &self,
        ctx: &RequestContext,
        name: &LayoutName,
        daemon: &DaemonName,
    ) -> Result<Document> {
        let backend = self.with(&ctx.require(Right::View)?);
        let mut reader = backend.parts.store.read().await?;
        let holder = store::daemons::get(&mut reader, daemon).await?.found("daemon", daemon)?;
        let active =
            holder.spec.layout.filter(|active| active.name == *name).ok_or_else(|| {
                conflict!("daemon {daemon} does not have layout {name}: apply it there first")
            })?;
        let wanted = active.version_ref();
        let version = store::layouts::version(&mut reader, &wanted).await?;
        let version = version.ok_or_else(|| no_version(&wanted))?;
        drop(reader);
        let timeout = backend.parts.timeout;
        let polled = backend
            .parts
            .engine
            .poll_for_layout(daemon, &active, &version.layout, Duration::ZERO, timeout)
            .await?;
        let given = match version.layout.enforcement {
            Enforcement::Static => given(&polled).map(|ids| (ids, Vec::new())),
            Enforcement::Percentage => shares(&polled, holder.generation).map(|shares| (Vec::new(), shares)),
        };
        let (ids, shares) = given.map_err(|why| {
            conflict!(
                "layout {wanted} is not in force on daemon {daemon} as recorded, so there is nothing to export: {why}"
            )
        })?;
        refuse_other_program(daemon, &polled)?;
        // The fingerprint is that of the present hardware, driver and program, because the present control process gave these
        // IDs. Nothing of an earlier process is exported.
        let fingerprint = backend.fingerprint(daemon, &active.gpu_map, version.layout.enforcement).await?;
        let recorded =
            Recorded { ids, shares, fingerprint, provenance: backend.provenance(daemon, &version) };
        let Version { name, layout, note, .. } = version;
        let entry = DocumentLayout::of(&layout, note, Some(recorded));
        Ok(Document::sealed(BTreeMap::from([(name, entry)])))
    }
}

impl Backend {
    /// Returns the versions and the hardware on which a layout's IDs depend, for these GPUs of a daemon.
    pub(in crate::service) async fn fingerprint(
        &self,
        daemon: &DaemonName,
        map: &GpuMap,
        enforcement: Enforcement,
    ) -> Result<Fingerprint> {
        let driver = self.query_inventory(crate::gpu::Inventory::known_driver).await?.map_err(unavailable)?;
        let gpus = self.gpus().await?;
        let mut prints = Vec::new();
        for uuid in map.values() {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == *uuid).ok_or_else(|| {
                conflict!("{uuid} is not in this host: replace it, or map the layout to another")
            })?;
            let (chunk_sms, chunk_count) = self.chunks(daemon, gpu, enforcement).await?;
            prints.push(Fingerprint {
                simulated: driver.simulated,
                sku: gpu.name.clone(),
                sms: gpu.sms.unwrap_or(0),
                chunk_sms,
                chunk_count,
                protocol: PROTOCOL,
                binary_version: self.parts.fleet.context().capability.binary_version,
                driver_version: driver.driver_version.clone(),
            });
        }
        let first = prints.first().cloned().ok_or_else(|| {
            ServiceError::Conflict(
                "a layout without steps uses no GPU, so there is no fingerprint to record".into(),
            )
        })?;
        match prints.iter().find(|print| **print != first) {
            None => Ok(first),
            Some(other) => {
                let differs: Vec<String> = first.differences(other).iter().map(ToString::to_string).collect();
                Err(conflict!(
                    "the GPUs of the layout differ ({}), so they have no common fingerprint: use one layout per GPU",
                    differs.join("; ")
                ))
            }
        }
    }

    /// SMs per chunk and chunks per empty GPU: as the daemon lists them or, without static partitions, as CUDA's splitter
    /// counts them.
    async fn chunks(&self, daemon: &DaemonName, gpu: &Gpu, enforcement: Enforcement) -> Result<(u32, u32)> {
        if enforcement == Enforcement::Percentage {
            let gpus = std::slice::from_ref(&gpu.uuid);
            let counted = self.parts.engine.chunks_of(daemon, gpus).await?;
            let counted = counted.get(&gpu.uuid).ok_or_else(|| {
                ServiceError::Unavailable(format!("the chunks of {} could not be counted", gpu.uuid))
            })?;
            return Ok((counted.chunk_sms, counted.chunks));
        }
        let unknown = || {
            ServiceError::Unavailable(format!(
                "the chunks of {} are not known, since daemon {daemon} has not listed them: wait until it is ready",
                gpu.uuid
            ))
        };
        let handle = self.parts.fleet.get(daemon).ok_or_else(unknown)?;
        let gpus = handle
            .of_observed(|observed| observed.status.effective.as_ref()?.partitions.clone())
            .ok_or_else(unknown)?;
        let listed = gpus.iter().find(|listed| listed.gpu == gpu.uuid).ok_or_else(unknown)?;
        let chunk_sms = gpu.compute_capability.ok_or_else(unknown)?.chunk_sms();
        Ok((chunk_sms, listed.free_chunks + listed.used_chunks))
    }

    fn provenance(&self, daemon: &DaemonName, version: &Version) -> Provenance {
        Provenance {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            daemon: daemon.clone(),
            layout_version: version.version,
            author: version.author.clone(),
            exported_at: self.parts.clock.unix_ms(),
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Checks everything that must be refused before anything is written.
fn check_import(layouts: &BTreeMap<LayoutName, DocumentLayout>) -> Result<()> {
    if layouts.len() > MAX_LAYOUTS {
        return Err(field!(
            "/layouts",
            "the document has {} layouts, and an import takes {MAX_LAYOUTS} at most: split it into several documents",
            layouts.len()
        ));
    }
    layouts.keys().try_for_each(check_free)
}

/// Splits layouts into one part per transaction.
fn parts(layouts: BTreeMap<LayoutName, DocumentLayout>) -> Vec<Vec<(LayoutName, DocumentLayout)>> {
    let (mut parts, mut steps): (Vec<Vec<_>>, usize) = (Vec::new(), 0);
    for (name, entry) in layouts {
        let more = entry.layout().steps.len();
        match parts.last_mut() {
            Some(part) if part.len() < BATCH_LAYOUTS && steps + more <= BATCH_STEPS => {
                steps += more;
                part.push((name, entry));
            }
            _ => {
                steps = more;
                parts.push(vec![(name, entry)]);
            }
        }
    }
    parts
}

/// Refuses a control process whose program was replaced: another version is installed now, perhaps with another driver, since
/// the MPS programs come with it.
fn refuse_other_program(daemon: &DaemonName, polled: &PolledDaemon) -> Result<()> {
    let pid = polled.observed.status.pid;
    match pid.and_then(process::runs_what_is_there) {
        Some(true) => Ok(()),
        Some(false) => Err(conflict!(
            "the program of the control process of daemon {daemon} was replaced after it was started, so the version that its IDs \
             belong to is unknown: restart the daemon, which compares the IDs, and then export"
        )),
        None => Err(ServiceError::Unavailable(format!(
            "the program of the control process of daemon {daemon} cannot be read (/proc/{}/exe), so the version that its IDs \
             belong to is unknown",
            pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string())
        ))),
    }
}

/// Returns the ID of each step, if the present control process gave them and they equal the recorded ones; otherwise the reason.
///
/// Partitions that others created or removed since do not matter.
fn given(polled: &PolledDaemon) -> Result<Vec<PartitionId>, String> {
    let desired = &polled.desired;
    let ids = polled.run.as_ref().and_then(|run| run.given(&desired.version, &desired.steps));
    let ids = ids.filter(|ids| desired.expected.as_ref() == Some(ids));
    match (&polled.observed.status.layout, ids) {
        (Some(status), Some(ids)) if matches!(status.state, LayoutState::Applied | LayoutState::Drifted) => {
            Ok(ids)
        }
        (status, _) => Err(blocker(status.as_ref())),
    }
}

/// Returns the share of each partition, if the layout is in force; otherwise the reason.
fn shares(polled: &PolledDaemon, generation: i64) -> Result<Vec<PartitionShare>, String> {
    let status = polled.observed.status.layout.as_ref();
    let of_this = status.filter(|status| {
        status.version_ref().as_ref() == Some(&polled.desired.version)
            && status.generation == generation
            && status.state == LayoutState::Applied
    });
    of_this.and_then(|status| PartitionShare::of(&status.partitions)).ok_or_else(|| blocker(status))
}

/// Returns the reason why a layout is not in force as recorded, by its status.
fn blocker(status: Option<&LayoutStatus>) -> String {
    let waits = "it is still being applied, or its daemon is not running: see the daemon's status".to_owned();
    let Some(status) = status else { return waits };
    if let Some(failure) = &status.failure {
        return failure.message.clone();
    }
    if status.degraded.is_empty() {
        return waits;
    }
    let degraded: Vec<String> = status.degraded.iter().map(ToString::to_string).collect();
    format!("{}. Apply it again with recreate first", degraded.join("; "))
}

/// Imports an entry, as a new version if it differs.
pub(in crate::service) async fn take(
    db: store::Transaction<'_>,
    name: &LayoutName,
    entry: &DocumentLayout,
    author: &str,
    clock: Clock,
) -> Result<Version> {
    let before = store::layouts::newest(&mut *db, name).await?;
    let layout = entry.layout();
    let provenance = entry.recorded.as_ref().map(serde_json::to_value).transpose();
    let provenance = provenance.map_err(|error| ServiceError::Internal(error.to_string()))?;
    let new =
        NewVersion { layout: &layout, author, note: entry.note.as_deref(), provenance: provenance.as_ref() };
    put_if_new(db, name, before.as_ref(), &new, clock.unix_ms()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts(steps: &[usize]) -> BTreeMap<LayoutName, DocumentLayout> {
        let entries = steps.iter().enumerate().map(|(number, steps)| {
            let step =
                |n| serde_json::json!({ "add": { "gpu": 0, "partition": format!("p{n}"), "chunks": 1 } });
            let entry = serde_json::json!({ "steps": (0..*steps).map(step).collect::<Vec<_>>() });
            let name = LayoutName::parse(&format!("l{number:04}")).expect("a name");
            (name, serde_json::from_value(entry).expect("an entry"))
        });
        entries.collect()
    }

    #[test]
    fn an_import_is_written_in_small_parts() {
        let sizes = |steps: &[usize]| parts(layouts(steps)).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), Vec::<usize>::new());
        assert_eq!(sizes(&[1; 45]), [20, 20, 5]);
        assert_eq!(sizes(&[512, 512, 1, 300, 300]), [1, 1, 2, 1]);
        let whole: BTreeMap<_, _> = parts(layouts(&[3; 45])).into_iter().flatten().collect();
        assert_eq!(whole, layouts(&[3; 45]), "nothing is left out");
    }

    #[test]
    fn an_import_of_too_many_layouts_is_refused() {
        check_import(&layouts(&[0; MAX_LAYOUTS])).expect("as many as may be");
        let error = check_import(&layouts(&[0; MAX_LAYOUTS + 1])).expect_err("one more");
        let ServiceError::Invalid(errors) = error else { panic!("a field is refused") };
        assert_eq!(errors[0].pointer, "/layouts");
        assert!(errors[0].detail.contains("501 layouts") && errors[0].detail.contains("split"), "{errors:?}");
    }
}
