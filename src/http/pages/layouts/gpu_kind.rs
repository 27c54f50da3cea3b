//! Preview of a layout on a kind of GPU: computed without querying a daemon, for every page that shows one.
//!
//! Only chunks are counted. The IDs are known only to MPS, and blockers on a daemon are found by its plan.

use crate::domain::count::counted;
use crate::domain::daemon::Mode;
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::{Layout, LayoutStep};
use crate::domain::{DaemonName, PartitionName, TenantName};
use crate::http::AppState;
use crate::http::pages::sm_map::SmMap;
use crate::http::problem::Problem;
use crate::service::access::context::RequestContext;
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;
use crate::service::page::{MAX_LIMIT, Page};

/// A kind of GPU on which a layout is previewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GpuKind {
    /// The daemon that has such GPUs.
    pub(super) daemon: Option<DaemonName>,
    /// The mode of that daemon.
    pub(super) mode: Option<Mode>,
    pub(super) sku: String,
    pub(super) sms: u32,
    pub(super) chunk_sms: u32,
    pub(super) chunks: u32,
    /// True if a daemon has listed the chunks, or a CUDA client has counted them; otherwise there may be fewer, since the SMs
    /// of a chunk differ from die to die.
    pub(super) counted: bool,
}

impl GpuKind {
    fn of(gpu: &GpuView, daemon: Option<&DaemonView>, census: Option<&ChunkCensus>) -> Option<Self> {
        let (sms, chunk_sms) = (gpu.sms?, gpu.compute_capability?.chunk_sms());
        let listings =
            daemon.and_then(|daemon| daemon.status.as_ref()?.effective.as_ref()?.partitions.as_ref());
        let listed = listings.and_then(|listings| listings.iter().find(|listing| listing.gpu == gpu.uuid));
        let counted = listed.map(|listed| listed.free_chunks + listed.used_chunks);
        let counted = counted.or_else(|| census.map(|census| census.chunks));
        Some(Self {
            daemon: daemon.map(|daemon| daemon.name.clone()),
            mode: daemon.map(|daemon| daemon.spec.mode),
            sku: gpu.name.clone()?,
            sms,
            chunk_sms,
            chunks: counted.unwrap_or(sms / chunk_sms.max(1)),
            counted: counted.is_some(),
        })
    }

    /// Its name in a choice.
    pub(super) fn called(&self) -> String {
        let most = if self.counted { "" } else { "at most " };
        let kind = format!("{}, {most}{} of {} SMs", self.sku, counted(self.chunks, "chunk"), self.chunk_sms);
        match (&self.daemon, self.mode) {
            (Some(daemon), Some(Mode::Static)) => format!("{daemon} (static): {kind}"),
            (Some(daemon), _) => format!("{daemon} (shared): {kind}"),
            (None, _) => format!("no daemon: {kind}"),
        }
    }

    /// Its name in an address.
    pub(super) fn key(&self) -> &str {
        self.daemon.as_ref().map_or("", DaemonName::as_str)
    }
}

/// The kinds of all GPUs of this host.
pub(super) async fn of_host(app: &AppState, ctx: &RequestContext) -> Result<Vec<GpuKind>, Problem> {
    let page = Page::first(MAX_LIMIT);
    let daemons = app.service.daemons(ctx, &page).await?.items;
    let gpus = app.service.gpu_views(ctx).await?;
    let censuses = app.service.chunk_counts(ctx).await?;
    let of = |gpu: &GpuView| {
        let daemon = daemons.iter().find(|daemon| daemon.spec.gpus.contains(&gpu.uuid));
        GpuKind::of(gpu, daemon, censuses.get(&gpu.uuid))
    };
    Ok(gpus.iter().filter_map(of).collect())
}

/// The kinds to choose from: one for each daemon, static mode first, otherwise that of the first GPU.
pub(super) async fn all(app: &AppState, ctx: &RequestContext) -> Result<Vec<GpuKind>, Problem> {
    let mut gpu_kinds = of_host(app, ctx).await?;
    if gpu_kinds.iter().any(|gpu_kind| gpu_kind.daemon.is_some()) {
        gpu_kinds.retain(|gpu_kind| gpu_kind.daemon.is_some());
    }
    gpu_kinds.sort_by_key(|gpu_kind| (gpu_kind.mode != Some(Mode::Static), gpu_kind.daemon.clone()));
    gpu_kinds.dedup_by(|one, other| one.daemon == other.daemon);
    Ok(gpu_kinds)
}

/// Returns the steps for which even the largest GPU has no room; nothing if the GPUs are not known.
pub(super) fn too_large(layout: &Layout, gpu_kinds: &[GpuKind]) -> Vec<(usize, String)> {
    let is_meant = |gpu_kind: &&GpuKind| layout.sku.as_ref().is_none_or(|sku| *sku == gpu_kind.sku);
    let largest = gpu_kinds.iter().filter(is_meant).max_by_key(|gpu_kind| gpu_kind.chunks);
    largest.map(|largest| preview(layout.steps.iter().enumerate(), largest).too_many).unwrap_or_default()
}

/// The kind of that daemon, otherwise the first with the product name.
pub(super) fn choose<'g>(gpu_kinds: &'g [GpuKind], daemon: &str, sku: Option<&str>) -> Option<&'g GpuKind> {
    let named = gpu_kinds.iter().find(|gpu_kind| !daemon.is_empty() && gpu_kind.key() == daemon);
    let fits = || gpu_kinds.iter().find(|gpu_kind| sku.is_none_or(|sku| gpu_kind.sku == sku));
    named.or_else(fits).or_else(|| gpu_kinds.first())
}

/// The preview of a layout.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LayoutPreview {
    pub(super) roles: Vec<RolePreview>,
    /// Steps that need more than is free, with the reason.
    pub(super) too_many: Vec<(usize, String)>,
}

/// The preview for the GPU of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RolePreview {
    pub(super) role: u32,
    pub(super) map: SmMap,
    pub(super) used: u32,
    pub(super) chunks: u32,
    /// True if the number of chunks is known; otherwise it is an upper limit.
    pub(super) counted: bool,
}

impl RolePreview {
    pub(super) fn free(&self) -> u32 {
        self.chunks.saturating_sub(self.used)
    }
}

struct Placed<'a> {
    role: u32,
    partition: &'a PartitionName,
    chunks: u32,
    tenants: &'a [TenantName],
}

/// The preview of numbered steps; steps that do not fit are listed, and left out of the map.
pub(super) fn preview<'a>(
    steps: impl IntoIterator<Item = (usize, &'a LayoutStep)>,
    gpu_kind: &GpuKind,
) -> LayoutPreview {
    let (mut placed, mut roles, mut too_many) = (Vec::<Placed<'a>>::new(), Vec::new(), Vec::new());
    for (number, step) in steps {
        match step {
            LayoutStep::Add(add) => {
                if !roles.contains(&add.gpu) {
                    roles.push(add.gpu);
                }
                let used: u32 =
                    placed.iter().filter(|other| other.role == add.gpu).map(|other| other.chunks).sum();
                let free = gpu_kind.chunks.saturating_sub(used);
                if add.chunks > free {
                    too_many.push((number, too_many_chunks(add.chunks, free, gpu_kind)));
                    continue;
                }
                placed.push(Placed {
                    role: add.gpu,
                    partition: &add.partition,
                    chunks: add.chunks,
                    tenants: &add.tenants,
                });
            }
            LayoutStep::Remove(remove) => placed.retain(|other| *other.partition != remove.partition),
        }
    }
    roles.sort_unstable();
    let of_role = |role: u32| {
        let partitions: Vec<(String, u32, Vec<TenantName>)> = placed
            .iter()
            .filter(|one| one.role == role)
            .map(|one| (one.partition.to_string(), one.chunks, one.tenants.to_vec()))
            .collect();
        let used = partitions.iter().map(|(_, chunks, _)| chunks).sum();
        let map = SmMap::planned(&partitions, gpu_kind.sms, gpu_kind.chunk_sms, gpu_kind.chunks);
        RolePreview { role, map, used, chunks: gpu_kind.chunks, counted: gpu_kind.counted }
    };
    LayoutPreview { roles: roles.into_iter().map(of_role).collect(), too_many }
}

fn too_many_chunks(requested: u32, free: u32, gpu_kind: &GpuKind) -> String {
    let on = gpu_kind.daemon.as_ref().map_or_else(|| gpu_kind.sku.clone(), ToString::to_string);
    let requested = counted(requested, "chunk");
    match free {
        0 => {
            format!("needs {requested}, but none is free at this step on {on}: remove a partition before it")
        }
        1 => format!("needs {requested}, but 1 is free at this step on {on}: give 1"),
        _ => format!("needs {requested}, but {free} are free at this step on {on}: give at most {free}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu_kind() -> GpuKind {
        GpuKind {
            daemon: DaemonName::parse("gpu1").ok(),
            mode: Some(Mode::Static),
            sku: "NVIDIA H200".to_owned(),
            sms: 132,
            chunk_sms: 8,
            chunks: 15,
            counted: true,
        }
    }

    fn steps(text: &str) -> Vec<LayoutStep> {
        serde_json::from_str(text).expect("steps")
    }

    #[test]
    fn removals_free_chunks_for_later_steps() {
        let steps = steps(
            r#"[{"add": {"gpu": 0, "partition": "a", "chunks": 10}},
                {"add": {"gpu": 0, "partition": "b", "chunks": 6}},
                {"remove": {"partition": "a"}},
                {"add": {"gpu": 0, "partition": "c", "chunks": 15}},
                {"add": {"gpu": 1, "partition": "d", "chunks": 3, "tenants": ["web"]}},
                {"add": {"gpu": 0, "partition": "e", "chunks": 1}}]"#,
        );
        let outcome = preview(steps.iter().enumerate(), &gpu_kind());
        let described: Vec<(usize, &str)> =
            outcome.too_many.iter().map(|(step, why)| (*step, why.as_str())).collect();
        assert_eq!(
            described,
            [
                (1, "needs 6 chunks, but 5 are free at this step on gpu1: give at most 5"),
                (5, "needs 1 chunk, but none is free at this step on gpu1: remove a partition before it"),
            ]
        );
        let used: Vec<(u32, u32, u32)> =
            outcome.roles.iter().map(|role| (role.role, role.used, role.free())).collect();
        assert_eq!(used, [(0, 15, 0), (1, 3, 12)]);
        assert_eq!(outcome.roles[1].map.groups[0].description(), "d: 24 SMs in 3 chunks, for web");
    }

    #[test]
    fn largest_gpu_of_the_product_decides() {
        let small = GpuKind { chunks: 8, ..gpu_kind() };
        let other = GpuKind { chunks: 20, sku: "NVIDIA GB300".to_owned(), ..gpu_kind() };
        let layout = |sku: Option<&str>, chunks: u32| Layout {
            sku: sku.map(str::to_owned),
            ..serde_json::from_str(&format!(
                r#"{{"steps": [{{"add": {{"gpu": 0, "partition": "a", "chunks": {chunks}}}}}]}}"#
            ))
            .expect("a layout")
        };
        let gpu_kinds = [small, gpu_kind(), other];
        let refused = |sku, chunks| too_large(&layout(sku, chunks), &gpu_kinds).len();
        assert_eq!((refused(Some("NVIDIA H200"), 15), refused(Some("NVIDIA H200"), 16)), (0, 1));
        assert_eq!((refused(None, 20), refused(None, 21)), (0, 1));
        assert_eq!(refused(Some("NVIDIA L40S"), 99), 0, "of other GPUs nothing is known");
        assert!(too_large(&layout(None, 99), &[]).is_empty());
    }

    #[test]
    fn gpu_kind_is_chosen_by_daemon_then_product() {
        let other =
            GpuKind { daemon: DaemonName::parse("gpu0").ok(), sku: "NVIDIA L40S".to_owned(), ..gpu_kind() };
        let gpu_kinds = [gpu_kind(), other];
        let chosen = |daemon, sku| choose(&gpu_kinds, daemon, sku).map(GpuKind::key);
        assert_eq!(chosen("gpu0", None), Some("gpu0"));
        assert_eq!(chosen("", None), Some("gpu1"));
        assert_eq!(chosen("gone", Some("NVIDIA L40S")), Some("gpu0"));
        assert_eq!(chosen("", Some("another")), Some("gpu1"));
        assert_eq!(choose(&[], "gpu0", None), None);
    }
}
