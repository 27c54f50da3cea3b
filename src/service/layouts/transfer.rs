//! Layouts as documents: exported with what they gave, and imported.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{LayoutView, invalid, no_version, not_found, put_if_new, view};
use crate::clock::unix_ms;
use crate::domain::daemon::Daemon;
use crate::domain::layout::document::{Document, Entry, Fingerprint, PROTOCOL, Provenance, Recorded, Share};
use crate::domain::layout::text::{self, Format};
use crate::domain::layout::{Enforcement, Layout, Version, VersionRef};
use crate::domain::partitions::GpuPartitions;
use crate::domain::{DaemonName, GpuUuid, LayoutName};
use crate::gpu::Inventory;
use crate::service::daemons::not_found as no_daemon;
use crate::service::{Service, ServiceError, WriteOptions, fate, unavailable};
use crate::store;
use crate::store::layouts::NewVersion;

/// What is imported.
#[derive(Debug, Clone)]
pub enum Import {
    /// A document.
    Document {
        /// The document.
        text: String,
        /// What it is written in.
        format: Format,
    },
    /// The `sm_partition add` lines of a shell script.
    Script {
        /// The script.
        text: String,
        /// What its layout is to be called.
        name: LayoutName,
    },
}

impl Import {
    fn entries(self) -> Result<BTreeMap<LayoutName, Entry>, ServiceError> {
        match self {
            Self::Document { text, format } => {
                Ok(text::read(&text, format).map_err(|error| invalid("", error))?.layouts)
            }
            Self::Script { text, name } => {
                let layout =
                    text::from_shell(&text).map_err(|error| ServiceError::field("", error.to_string()))?;
                layout.check().map_err(|error| invalid("", error))?;
                let note = Some("imported from a shell script".to_owned());
                Ok(BTreeMap::from([(name, Entry::of(&layout, note, None))]))
            }
        }
    }
}

impl Service {
    /// A layout as a document; with a daemon, in the version that it holds and with what its steps gave there.
    pub async fn export_layout(
        &self,
        name: &LayoutName,
        version: Option<u32>,
        daemon: Option<&DaemonName>,
    ) -> Result<Document, ServiceError> {
        let entry = match daemon {
            Some(daemon) => self.recorded(name, version, daemon).await?,
            None => {
                let mut reader = self.parts.store.read().await?;
                let found = match version {
                    None => {
                        store::layouts::newest(&mut reader, name).await?.ok_or_else(|| not_found(name))?
                    }
                    Some(version) => {
                        let wanted = VersionRef { name: name.clone(), version };
                        let found = store::layouts::version(&mut reader, &wanted).await?;
                        found.ok_or_else(|| no_version(&wanted))?
                    }
                };
                Entry::of(&found.layout, found.note, None)
            }
        };
        Ok(Document::sealed(BTreeMap::from([(name.clone(), entry)])))
    }

    async fn recorded(
        &self,
        name: &LayoutName,
        version: Option<u32>,
        holder: &DaemonName,
    ) -> Result<Entry, ServiceError> {
        let mut reader = self.parts.store.read().await?;
        let daemon = store::daemons::get(&mut reader, holder).await?.ok_or_else(|| no_daemon(holder))?;
        let held = daemon.spec.layout.as_ref().filter(|active| active.name == *name);
        let held = held.filter(|active| version.is_none_or(|version| active.version == version));
        let Some(active) = held else {
            let wanted =
                version.map_or_else(|| name.to_string(), |version| format!("{name} version {version}"));
            return Err(ServiceError::Conflict(format!(
                "daemon {holder} does not hold layout {wanted}, so there is nothing on record of it: apply it first, or export \
                 it without a daemon"
            )));
        };
        let reference = active.version_ref();
        let found = store::layouts::version(&mut reader, &reference).await?;
        let found = found.ok_or_else(|| no_version(&reference))?;
        let unrecorded = || {
            ServiceError::Conflict(format!(
                "nothing is on record of layout {reference} on daemon {holder} yet: it is exported once it was brought about"
            ))
        };
        let (ids, shares, applied_at) = match found.layout.enforcement {
            Enforcement::Static => {
                let applied = store::layouts::applied(&mut reader, holder).await?;
                let applied = applied.filter(|applied| applied.is_of(active)).ok_or_else(unrecorded)?;
                let at = store::layouts::applied_at(&mut reader, holder).await?.unwrap_or_default();
                (applied.record.ids(), Vec::new(), at)
            }
            Enforcement::Percentage => {
                let proven = store::shares::proven(&mut reader, holder).await?;
                let proven = proven.filter(|proven| proven.version == reference).ok_or_else(unrecorded)?;
                let shares: Option<Vec<Share>> = found
                    .layout
                    .partitions()
                    .map(|add| {
                        let share = proven.shares.iter().find(|share| share.chunks == add.chunks)?;
                        Some(Share {
                            partition: add.partition.clone(),
                            active_thread_percentage: share.percentage,
                            sms: *share.seen.values().next()?,
                        })
                    })
                    .collect();
                let at = store::shares::proven_at(&mut reader, holder).await?.unwrap_or_default();
                (Vec::new(), shares.ok_or_else(unrecorded)?, at)
            }
        };
        drop(reader);
        let gpus: BTreeSet<&GpuUuid> = active.gpu_map.values().collect();
        let handle = self.parts.fleet.get(holder);
        let effective = handle.and_then(|handle| handle.observed().status.effective);
        let listed = effective.and_then(|effective| effective.partitions).unwrap_or_default();
        let fingerprints = self.fingerprints(&daemon, &gpus, found.layout.enforcement, &listed).await?;
        let Version { layout, author, note, version, .. } = found;
        let provenance = Provenance {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            daemon: holder.clone(),
            layout_version: version,
            author,
            applied_at,
            exported_at: unix_ms(),
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let fingerprint = fingerprints.into_iter().next().map(|(_, fingerprint)| fingerprint);
        let fingerprint = fingerprint
            .ok_or_else(|| ServiceError::Internal(format!("layout {reference} is on no GPU of {holder}")))?;
        Ok(Entry::of(&layout, note, Some(Recorded { ids, shares, fingerprint, provenance })))
    }

    /// What IDs and shares on these GPUs of a daemon depend on; of its first GPU where a layout has no steps.
    pub(in crate::service) async fn fingerprints(
        &self,
        daemon: &Daemon,
        gpus: &BTreeSet<&GpuUuid>,
        enforcement: Enforcement,
        listed: &[GpuPartitions],
    ) -> Result<Vec<(GpuUuid, Fingerprint)>, ServiceError> {
        let driver = self.asked(Inventory::known_driver).await?.map_err(unavailable)?;
        let known = self.gpus().await?;
        let counted = store::shares::chunks(&mut *self.parts.store.read().await?).await?;
        let wanted: Vec<&GpuUuid> = if gpus.is_empty() {
            daemon.spec.gpus.iter().take(1).collect()
        } else {
            gpus.iter().copied().collect()
        };
        let unknown = |gpu: &GpuUuid, what: &str| {
            ServiceError::Conflict(format!(
                "{what} of GPU {gpu} are not known, so what is recorded cannot be compared: see that daemon {} runs",
                daemon.name
            ))
        };
        wanted
            .into_iter()
            .map(|uuid| {
                let gpu = known.iter().find(|gpu| gpu.uuid == *uuid);
                let gpu = gpu.ok_or_else(|| unknown(uuid, "the properties"))?;
                let chunk_sms = gpu.compute_capability.map(crate::domain::gpu::ComputeCapability::chunk_sms);
                let listing = listed.iter().find(|listing| listing.gpu == *uuid);
                let (sms, chunk_count) = match (enforcement, listing, counted.get(uuid)) {
                    (Enforcement::Static, Some(listing), _) => (
                        listing.free_sms.saturating_add(listing.used_sms),
                        listing.free_chunks.saturating_add(listing.used_chunks),
                    ),
                    (Enforcement::Percentage, _, Some(census)) => (census.sms, census.chunks),
                    _ => return Err(unknown(uuid, "the chunks")),
                };
                let fingerprint = Fingerprint {
                    simulated: driver.simulated,
                    sku: gpu.name.clone(),
                    sms,
                    chunk_sms: chunk_sms.ok_or_else(|| unknown(uuid, "the SMs of a chunk"))?,
                    chunk_count,
                    protocol: PROTOCOL,
                    binary_version: self.parts.fleet.context().capability.binary_version,
                    driver_version: driver.driver_version.clone(),
                };
                Ok((uuid.clone(), fingerprint))
            })
            .collect()
    }

    /// Takes the layouts of a document, each as a new version where it says something new; all or none.
    pub async fn import_layouts(
        &self,
        import: Import,
        author: String,
        options: WriteOptions,
    ) -> Result<Vec<LayoutView>, ServiceError> {
        let service = self.clone();
        self.to_the_end(async move {
            let entries = import.entries()?;
            let written = service.parts.store.write(move |db| {
                Box::pin(async move {
                    let mut views = Vec::with_capacity(entries.len());
                    for (name, entry) in &entries {
                        let version = put_entry(&mut *db, name, entry, &author).await?;
                        views.push(view(&mut *db, version).await?);
                    }
                    Ok::<_, ServiceError>((views, fate(&options)))
                })
            });
            written.await
        })
        .await
    }
}

/// Writes the layout of a document where it says something new, and gives its version here.
pub(in crate::service) async fn put_entry(
    db: store::Transaction<'_>,
    name: &LayoutName,
    entry: &Entry,
    author: &str,
) -> Result<Version, ServiceError> {
    let before = store::layouts::newest(&mut *db, name).await?;
    let layout: Layout = entry.layout();
    let provenance: Option<Value> =
        entry.recorded.as_ref().and_then(|recorded| serde_json::to_value(&recorded.provenance).ok());
    let new =
        NewVersion { layout: &layout, author, note: entry.note.as_deref(), provenance: provenance.as_ref() };
    put_if_new(db, name, before.as_ref(), &new).await
}
