//! Preview of a layout on a kind of GPU: computed without querying a daemon, for every page that shows one.
//!
//! Only chunks are counted. The IDs are known only to MPS, and blockers on a daemon are found by its plan.

use crate::domain::count::counted;
use crate::domain::daemon::Mode;
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::{AddStep, Invalid, Layout, LayoutStep, Role};
use crate::domain::{DaemonName, InvalidValue};
use crate::http::extract::Call;
use crate::http::pages::strip::SmStrip;
use crate::service::ServiceError;
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;
use crate::service::tenants::TenantColours;

/// A kind of GPU on which a layout is previewed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct GpuKind {
    /// The daemon that has such GPUs.
    pub(super) daemon: Option<DaemonName>,
    /// The mode of that daemon.
    pub(super) mode: Option<Mode>,
    pub(super) sku: String,
    pub(super) sms: u32,
    pub(super) chunk_sms: u32,
    pub(super) chunks: u32,
    /// True if the daemon has listed the chunks of its GPUs, or a CUDA client has counted them; otherwise there may be fewer,
    /// since the SMs of a chunk differ from die to die.
    pub(super) counted: bool,
    pub(super) colours: TenantColours,
}

impl GpuKind {
    fn of(
        gpu: &GpuView,
        daemon: Option<&DaemonView>,
        census: Option<&ChunkCensus>,
        colours: &TenantColours,
    ) -> Option<Self> {
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
            colours: colours.clone(),
        })
    }

    /// Its name in a choice.
    pub(super) fn called(&self) -> String {
        let most = if self.counted { "" } else { "at most " };
        let kind = format!("{}, {most}{} of {} SMs", self.sku, counted(self.chunks, "chunk"), self.chunk_sms);
        match (&self.daemon, self.mode) {
            (Some(daemon), Some(mode)) => format!("{daemon} ({}): {kind}", mode.as_str()),
            _ => format!("no daemon: {kind}"),
        }
    }

    /// Its name in an address.
    pub(super) fn key(&self) -> &str {
        self.daemon.as_ref().map_or("", DaemonName::as_str)
    }
}

/// The kinds of all GPUs of this host.
pub(super) async fn of_host(call: &Call) -> Result<Vec<GpuKind>, ServiceError> {
    let daemons = call.daemons().await?;
    let gpus = call.app.service.gpu_views(&call.ctx).await?;
    let censuses = call.app.service.chunk_counts(&call.ctx).await?;
    let colours = call.app.service.tenant_colours(&call.ctx).await?;
    let of = |gpu: &GpuView| {
        let daemon = daemons.iter().find(|daemon| daemon.spec.gpus.contains(&gpu.uuid));
        GpuKind::of(gpu, daemon, censuses.get(&gpu.uuid), &colours)
    };
    Ok(gpus.iter().filter_map(of).collect())
}

/// The kinds to choose from, static mode first: for each daemon that of its first GPU, or one if there is no daemon.
pub(super) async fn all(call: &Call) -> Result<Vec<GpuKind>, ServiceError> {
    let mut gpu_kinds = of_host(call).await?;
    if gpu_kinds.iter().any(|gpu_kind| gpu_kind.daemon.is_some()) {
        gpu_kinds.retain(|gpu_kind| gpu_kind.daemon.is_some());
    }
    gpu_kinds.sort_by_key(|gpu_kind| (gpu_kind.mode != Some(Mode::Static), gpu_kind.daemon.clone()));
    gpu_kinds.dedup_by(|later, first| {
        first.counted &= later.counted || later.daemon != first.daemon;
        later.daemon == first.daemon
    });
    Ok(gpu_kinds)
}

/// Returns the steps for which even the largest GPU has no room; nothing if the GPUs are not known.
pub(super) fn too_large(layout: &Layout, gpu_kinds: &[GpuKind]) -> Vec<Invalid> {
    let is_meant = |gpu_kind: &&GpuKind| layout.sku.as_ref().is_none_or(|sku| *sku == gpu_kind.sku);
    let largest = gpu_kinds.iter().filter(is_meant).max_by_key(|gpu_kind| gpu_kind.chunks);
    LayoutPreview::on(layout, largest).too_many
}

/// The kind of that daemon, otherwise the first with the product name.
pub(super) fn choose<'g>(gpu_kinds: &'g [GpuKind], daemon: &str, sku: Option<&str>) -> Option<&'g GpuKind> {
    let named = gpu_kinds.iter().find(|gpu_kind| !daemon.is_empty() && gpu_kind.key() == daemon);
    let fits = || gpu_kinds.iter().find(|gpu_kind| sku.is_none_or(|sku| gpu_kind.sku == sku));
    named.or_else(fits).or_else(|| gpu_kinds.first())
}

/// The preview of a layout.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct LayoutPreview {
    /// The kind of its GPUs; `None` if none is known.
    pub(super) gpu_kind: Option<GpuKind>,
    pub(super) roles: Vec<RolePreview>,
    /// Steps that need more chunks than are free.
    pub(super) too_many: Vec<Invalid>,
}

/// The preview for the GPU of one role.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RolePreview {
    pub(super) role: Role,
    pub(super) strip: SmStrip,
    pub(super) used: u32,
    pub(super) free: u32,
}

impl LayoutPreview {
    /// Previews a layout on the GPUs of this daemon, or else on those of its product.
    pub(super) fn of(layout: &Layout, daemon: &str, gpu_kinds: &[GpuKind]) -> Self {
        Self::on(layout, choose(gpu_kinds, daemon, layout.sku.as_deref()))
    }

    /// Previews a layout on a kind of GPU; steps that do not fit are listed, and left out of the map.
    pub(super) fn on(layout: &Layout, gpu_kind: Option<&GpuKind>) -> Self {
        let Some(gpu_kind) = gpu_kind else { return Self::default() };
        let (mut placed, mut too_many) = (Vec::<&AddStep>::new(), Vec::new());
        let used = |placed: &[&AddStep], role| {
            placed.iter().filter(|add| add.gpu == role).map(|add| add.chunks).sum::<u32>()
        };
        for (number, step) in layout.steps.iter().enumerate() {
            match step {
                LayoutStep::Remove(remove) => placed.retain(|add| add.partition != remove.partition),
                LayoutStep::Add(add) => {
                    let free = gpu_kind.chunks.saturating_sub(used(&placed, add.gpu));
                    if add.chunks <= free {
                        placed.push(add);
                    } else {
                        let reason = InvalidValue(too_many_chunks(add.chunks, free, gpu_kind));
                        too_many.push(Invalid { pointer: format!("/steps/{number}/add/chunks"), reason });
                    }
                }
            }
        }
        let of_role = |role: Role| {
            let partitions = placed.iter().copied().filter(|add| add.gpu == role);
            let GpuKind { sms, chunk_sms, chunks, colours, .. } = gpu_kind;
            let strip = SmStrip::planned(partitions, *sms, *chunk_sms, *chunks, colours);
            let used = used(&placed, role);
            RolePreview { role, strip, used, free: gpu_kind.chunks.saturating_sub(used) }
        };
        let roles = layout.roles().into_iter().map(of_role).collect();
        Self { gpu_kind: Some(gpu_kind.clone()), roles, too_many }
    }

    /// Returns the sizes that still fit; a layout without steps has one empty GPU.
    pub(super) fn sizes_left(&self) -> Vec<SizesLeft> {
        let Some(GpuKind { chunks, chunk_sms, .. }) = &self.gpu_kind else { return Vec::new() };
        let of =
            |role, free| SizesLeft { role, sizes: (1..=free).map(|size| (size, size * chunk_sms)).collect() };
        match self.roles.as_slice() {
            [] => vec![of(0, *chunks)],
            roles => roles.iter().map(|role| of(role.role, role.free)).collect(),
        }
    }
}

/// Sizes of a partition that still fits on the GPU of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SizesLeft {
    pub(super) role: Role,
    /// Each with its chunks and its SMs.
    pub(super) sizes: Vec<(u32, u32)>,
}

fn too_many_chunks(requested: u32, free: u32, gpu_kind: &GpuKind) -> String {
    let on = gpu_kind.daemon.as_ref().map_or(gpu_kind.sku.as_str(), DaemonName::as_str);
    let remedy = match free {
        0 => "remove a partition before it".to_owned(),
        free => format!("give at most {free}"),
    };
    format!("needs {}, and {on} has {free} free at this step: {remedy}", counted(requested, "chunk"))
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
            colours: TenantColours::default(),
        }
    }

    fn layout(steps: &str) -> Layout {
        serde_json::from_str(&format!(r#"{{"steps": [{steps}]}}"#)).expect("a layout")
    }

    #[test]
    fn removals_free_chunks_for_later_steps() {
        let steps = layout(
            r#"{"add": {"gpu": 0, "partition": "a", "chunks": 10}},
                {"add": {"gpu": 0, "partition": "b", "chunks": 6}},
                {"remove": {"partition": "a"}},
                {"add": {"gpu": 0, "partition": "c", "chunks": 15}},
                {"add": {"gpu": 1, "partition": "d", "chunks": 3, "tenants": ["web"]}},
                {"add": {"gpu": 0, "partition": "e", "chunks": 1}}"#,
        );
        let outcome = LayoutPreview::on(&steps, Some(&gpu_kind()));
        let described: Vec<(&str, &str)> =
            outcome.too_many.iter().map(|one| (one.pointer.as_str(), one.reason.0.as_str())).collect();
        assert_eq!(
            described,
            [
                ("/steps/1/add/chunks", "needs 6 chunks, and gpu1 has 5 free at this step: give at most 5"),
                (
                    "/steps/5/add/chunks",
                    "needs 1 chunk, and gpu1 has 0 free at this step: remove a partition before it"
                ),
            ]
        );
        let used: Vec<(u32, u32, u32)> =
            outcome.roles.iter().map(|role| (role.role, role.used, role.free)).collect();
        assert_eq!(used, [(0, 15, 0), (1, 3, 12)]);
        assert_eq!(outcome.roles[1].strip.cells[0].description(), "d: 24 SMs in 3 chunks, for web");
        let left = outcome.sizes_left();
        assert_eq!((left[0].sizes.len(), left[1].sizes.last()), (0, Some(&(12, 96))));
        assert_eq!(LayoutPreview::on(&layout(""), Some(&gpu_kind())).sizes_left()[0].sizes.len(), 15);
    }

    #[test]
    fn largest_gpu_of_the_product_decides() {
        let small = GpuKind { chunks: 8, ..gpu_kind() };
        let other = GpuKind { chunks: 20, sku: "NVIDIA GB300".to_owned(), ..gpu_kind() };
        let layout = |sku: Option<&str>, chunks: u32| Layout {
            sku: sku.map(str::to_owned),
            ..layout(&format!(r#"{{"add": {{"gpu": 0, "partition": "a", "chunks": {chunks}}}}}"#))
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
