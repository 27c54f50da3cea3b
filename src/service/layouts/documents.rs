//! Layouts as documents: taken in, and given out with what their steps gave.

use std::collections::BTreeMap;

use super::{LayoutView, check_free, invalid, no_version, put_if_new, view};
use crate::clock::unix_ms;
use crate::domain::access::{Actor, Right};
use crate::domain::gpu::Gpu;
use crate::domain::layout::document::{Document, Entry, Fingerprint, PROTOCOL, Provenance, Recorded, Share};
use crate::domain::layout::shell;
use crate::domain::layout::status::{LayoutState, LayoutStatus};
use crate::domain::layout::text::{self, Format};
use crate::domain::layout::{Enforcement, GpuMap, Version};
use crate::domain::{DaemonName, LayoutName, PartitionId};
use crate::host::process;
use crate::operations::Seen;
use crate::service::daemons::not_found as no_daemon;
use crate::service::{Service, ServiceError, WriteOptions, fate, unavailable};
use crate::store::{self, layouts::NewVersion};

/// Layouts that one import takes at most.
const MOST: usize = 500;
/// Layouts, and steps of them, that are written in one transaction: it holds the only writer for as long.
const PART: usize = 20;
const PART_STEPS: usize = 512;

/// A text that layouts are taken from.
#[derive(Debug, Clone)]
pub enum LayoutText {
    /// A document.
    Document {
        /// The text.
        text: String,
        /// How it is written.
        format: Format,
    },
    /// A shell script, and what its layout is to be called.
    Script {
        /// The text.
        text: String,
        /// The name.
        name: LayoutName,
    },
}

impl LayoutText {
    fn read(self) -> Result<Document, ServiceError> {
        match self {
            Self::Document { text, format } => text::read(&text, format).map_err(|error| invalid("", error)),
            Self::Script { text, name } => {
                let layout =
                    shell::read(&text).map_err(|error| ServiceError::field("", error.to_string()))?;
                Ok(text::bare(name, &layout, Some("from a shell script".to_owned())))
            }
        }
    }
}

impl Service {
    /// Takes every layout of a text as a new version where it says something new.
    ///
    /// A text that is refused changes nothing. Many layouts are written in several transactions, between which others write: an
    /// import that fails on the way is completed by doing it again, since what is there already says nothing new.
    pub async fn import_layouts(
        &self,
        actor: &Actor,
        text: LayoutText,
        options: WriteOptions,
    ) -> Result<Vec<LayoutView>, ServiceError> {
        actor.may(Right::Operate)?;
        let author = actor.subject.to_string();
        let service = self.clone();
        self.to_the_end(async move {
            let layouts = text.read()?.layouts;
            check_import(&layouts)?;
            let mut views = Vec::with_capacity(layouts.len());
            for part in parts(layouts) {
                let (author, fate) = (author.clone(), fate(&options));
                let written = service.write(move |db| {
                    Box::pin(async move {
                        let mut views = Vec::with_capacity(part.len());
                        for (name, entry) in part {
                            let newest = take(&mut *db, &name, &entry, &author).await?;
                            views.push(view(&mut *db, newest).await?);
                        }
                        Ok::<_, ServiceError>((views, fate))
                    })
                });
                views.extend(written.await?);
            }
            Ok(views)
        })
        .await
    }

    /// A layout with what its steps gave on a daemon that has it in force now.
    pub async fn export_layout(
        &self,
        actor: &Actor,
        name: &LayoutName,
        daemon: &DaemonName,
    ) -> Result<Document, ServiceError> {
        actor.may(Right::View)?;
        let mut reader = self.parts.store.read().await?;
        let holder = store::daemons::get(&mut reader, daemon).await?.ok_or_else(|| no_daemon(daemon))?;
        let active = holder.spec.layout.filter(|active| active.name == *name).ok_or_else(|| {
            ServiceError::Conflict(format!(
                "daemon {daemon} does not hold layout {name}: apply it there first"
            ))
        })?;
        let wanted = active.version_ref();
        let version = store::layouts::version(&mut reader, &wanted).await?;
        let version = version.ok_or_else(|| no_version(&wanted))?;
        drop(reader);
        let patience = self.parts.patience;
        let seen = self.parts.engine.look_for_layout(daemon, &active, &version.layout, patience).await?;
        let given = match version.layout.enforcement {
            Enforcement::Static => given(&seen).map(|ids| (ids, Vec::new())),
            Enforcement::Percentage => {
                proven_shares(&seen, holder.generation).map(|shares| (Vec::new(), shares))
            }
        };
        let (ids, shares) = given.map_err(|why| {
            ServiceError::Conflict(format!(
                "layout {wanted} is not in force on daemon {daemon} as it is on record, so there is nothing to export: {why}"
            ))
        })?;
        refuse_other_program(daemon, &seen)?;
        // What is here now is what these IDs depend on, since the control process that runs now has given them (or its clients
        // have seen these SMs): under the driver and on the GPUs that are here, by the program that is installed. Nothing of an
        // earlier process is ever exported, so nothing has to be remembered of what was here when it ran.
        let fingerprint = self.fingerprint(daemon, &active.gpu_map, version.layout.enforcement).await?;
        let recorded = Recorded { ids, shares, fingerprint, provenance: Self::provenance(daemon, &version) };
        let Version { name, layout, note, .. } = version;
        let entry = Entry::of(&layout, note, Some(recorded));
        Ok(Document::sealed(BTreeMap::from([(name, entry)])))
    }

    /// What a layout's IDs depend on, as it is on these GPUs of a daemon.
    pub(in crate::service) async fn fingerprint(
        &self,
        daemon: &DaemonName,
        map: &GpuMap,
        enforcement: Enforcement,
    ) -> Result<Fingerprint, ServiceError> {
        let driver = self.asked(crate::gpu::Inventory::known_driver).await?.map_err(unavailable)?;
        let gpus = self.gpus().await?;
        let mut prints = Vec::new();
        for uuid in map.values() {
            let gpu = gpus.iter().find(|gpu| gpu.uuid == *uuid).ok_or_else(|| {
                ServiceError::Conflict(format!(
                    "GPU {uuid} is not in this host: replace it, or map the layout to another"
                ))
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
                "a layout without steps is on no GPU, so there is nothing to record of one".into(),
            )
        })?;
        match prints.iter().find(|print| **print != first) {
            None => Ok(first),
            Some(other) => {
                let what: Vec<String> = first.differences(other).iter().map(ToString::to_string).collect();
                Err(ServiceError::Conflict(format!(
                    "the GPUs of the layout are not alike ({}), so one fingerprint cannot stand for them: use a layout a GPU",
                    what.join("; ")
                )))
            }
        }
    }

    /// SMs of a chunk and chunks of a GPU while it is empty: as the daemon lists them, or where it has no static
    /// partitions as CUDA's splitter counts them.
    async fn chunks(
        &self,
        daemon: &DaemonName,
        gpu: &Gpu,
        enforcement: Enforcement,
    ) -> Result<(u32, u32), ServiceError> {
        if enforcement == Enforcement::Percentage {
            let gpus = std::slice::from_ref(&gpu.uuid);
            let counted = self.parts.engine.chunks_of(daemon, gpus).await?;
            let counted = counted.get(&gpu.uuid).ok_or_else(|| {
                ServiceError::Unavailable(format!("nobody could count the chunks of GPU {}", gpu.uuid))
            })?;
            return Ok((counted.chunk_sms, counted.chunks));
        }
        let unknown = || {
            ServiceError::Unavailable(format!(
                "the chunks of GPU {} are not known, since daemon {daemon} has not listed them: wait until it is ready",
                gpu.uuid
            ))
        };
        let handle = self.parts.fleet.get(daemon).ok_or_else(unknown)?;
        let seen = handle.observed().status.effective.and_then(|seen| seen.partitions).ok_or_else(unknown)?;
        let listed = seen.iter().find(|listed| listed.gpu == gpu.uuid).ok_or_else(unknown)?;
        let chunk_sms = gpu.compute_capability.ok_or_else(unknown)?.chunk_sms();
        Ok((chunk_sms, listed.free_chunks + listed.used_chunks))
    }

    fn provenance(daemon: &DaemonName, version: &Version) -> Provenance {
        Provenance {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            daemon: daemon.clone(),
            layout_version: version.version,
            author: version.author.clone(),
            exported_at: unix_ms(),
            manager_version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Refuses what could only be refused once some of it is written.
fn check_import(layouts: &BTreeMap<LayoutName, Entry>) -> Result<(), ServiceError> {
    if layouts.len() > MOST {
        return Err(ServiceError::field(
            "/layouts",
            format!(
                "the document has {} layouts, and an import takes {MOST} at most: split it into several documents",
                layouts.len()
            ),
        ));
    }
    layouts.keys().try_for_each(check_free)
}

/// Layouts in parts of which each is written in one transaction.
fn parts(layouts: BTreeMap<LayoutName, Entry>) -> Vec<Vec<(LayoutName, Entry)>> {
    let (mut parts, mut steps): (Vec<Vec<_>>, usize) = (Vec::new(), 0);
    for (name, entry) in layouts {
        let more = entry.layout().steps.len();
        match parts.last_mut() {
            Some(part) if part.len() < PART && steps + more <= PART_STEPS => {
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

/// Refuses a control process of a program that was replaced: it is of another version than the one that is installed, and so
/// perhaps of another driver, since the MPS programs come with it.
fn refuse_other_program(daemon: &DaemonName, seen: &Seen) -> Result<(), ServiceError> {
    let pid = seen.observed.status.pid;
    match pid.and_then(process::runs_what_is_there) {
        Some(true) => Ok(()),
        Some(false) => Err(ServiceError::Conflict(format!(
            "the program that the control process of daemon {daemon} runs was replaced since it was started, so it is not known \
             for which version its IDs are: restart the daemon, which compares them, and export it then"
        ))),
        None => Err(ServiceError::Unavailable(format!(
            "it cannot be read which program the control process of daemon {daemon} runs (/proc/{}/exe), and so not for which \
             version its IDs are",
            pid.map_or_else(|| "PID".to_owned(), |pid| pid.to_string())
        ))),
    }
}

/// The ID of each step, where the steps of the layout gave them in the control process that runs now and those are the ones
/// on record; the reason where not.
///
/// What others have made or removed since changes nothing about that.
fn given(seen: &Seen) -> Result<Vec<PartitionId>, String> {
    let desired = &seen.desired;
    let ids = seen.run.as_ref().and_then(|run| run.given(&desired.version, &desired.steps));
    let ids = ids.filter(|ids| desired.expected.as_ref() == Some(ids));
    match (&seen.observed.status.layout, ids) {
        (Some(status), Some(ids)) if matches!(status.state, LayoutState::Applied | LayoutState::Drifted) => {
            Ok(ids)
        }
        (status, _) => Err(obstacle(status.as_ref())),
    }
}

/// What CUDA clients saw in each partition since the control process was started; the reason where they have not.
fn proven_shares(seen: &Seen, generation: i64) -> Result<Vec<Share>, String> {
    let status = seen.observed.status.layout.as_ref();
    let of_this = status.filter(|status| {
        status.version_ref().as_ref() == Some(&seen.desired.version)
            && status.generation == generation
            && status.state == LayoutState::Applied
    });
    of_this.and_then(|status| Share::seen(&status.partitions)).ok_or_else(|| obstacle(status))
}

/// Why a layout is not in force as it is on record, as far as its status tells.
fn obstacle(status: Option<&LayoutStatus>) -> String {
    let waits = "it is being brought about, or its daemon does not run: see the daemon's status".to_owned();
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

/// Takes an entry as a new version where it says something new.
pub(in crate::service) async fn take(
    db: store::Transaction<'_>,
    name: &LayoutName,
    entry: &Entry,
    author: &str,
) -> Result<Version, ServiceError> {
    let before = store::layouts::newest(&mut *db, name).await?;
    let layout = entry.layout();
    let provenance = entry.recorded.as_ref().map(serde_json::to_value).transpose();
    let provenance = provenance.map_err(|error| ServiceError::Internal(error.to_string()))?;
    let new =
        NewVersion { layout: &layout, author, note: entry.note.as_deref(), provenance: provenance.as_ref() };
    put_if_new(db, name, before.as_ref(), &new).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layouts(steps: &[usize]) -> BTreeMap<LayoutName, Entry> {
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
        check_import(&layouts(&[0; MOST])).expect("as many as may be");
        let error = check_import(&layouts(&[0; MOST + 1])).expect_err("one more");
        let ServiceError::Invalid(errors) = error else { panic!("a field is refused") };
        assert_eq!(errors[0].pointer, "/layouts");
        assert!(errors[0].detail.contains("501 layouts") && errors[0].detail.contains("split"), "{errors:?}");
    }
}
