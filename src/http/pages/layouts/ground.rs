//! What a layout comes to on a kind of GPU: pure, for every page that shows one before anybody has asked a daemon.
//!
//! Only chunks are counted. Which IDs the steps give is known to nobody but MPS, and what stands in the way on a daemon is
//! its plan's.

use crate::domain::access::Actor;
use crate::domain::count::counted;
use crate::domain::daemon::Mode;
use crate::domain::gpu::ChunkCensus;
use crate::domain::layout::Step;
use crate::domain::{DaemonName, PartitionName, TenantName};
use crate::http::AppState;
use crate::http::pages::sm_map::SmMap;
use crate::http::problem::Problem;
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;
use crate::service::page::{MAX_LIMIT, Page};

/// A kind of GPU that a layout is looked at on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Ground {
    /// The daemon whose GPUs they are.
    pub(super) daemon: Option<DaemonName>,
    /// The mode of that daemon.
    pub(super) mode: Option<Mode>,
    pub(super) sku: String,
    pub(super) sms: u32,
    pub(super) chunk_sms: u32,
    pub(super) chunks: u32,
    /// Whether a daemon has listed the chunks, or a CUDA client has counted them; which SMs make one differs from die to die, so
    /// otherwise there may be fewer.
    pub(super) counted: bool,
}

impl Ground {
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

    /// What it is called where one is chosen.
    pub(super) fn called(&self) -> String {
        let most = if self.counted { "" } else { "at most " };
        let kind = format!("{}, {most}{} of {} SMs", self.sku, counted(self.chunks, "chunk"), self.chunk_sms);
        match (&self.daemon, self.mode) {
            (Some(daemon), Some(Mode::Static)) => format!("{daemon} (static): {kind}"),
            (Some(daemon), _) => format!("{daemon} (shared): {kind}"),
            (None, _) => format!("no daemon: {kind}"),
        }
    }

    /// What names it in an address.
    pub(super) fn key(&self) -> &str {
        self.daemon.as_ref().map_or("", DaemonName::as_str)
    }
}

/// What this host offers to look at a layout on: its daemons, those in static mode first, or else its first GPU.
pub(super) async fn all(app: &AppState, actor: &Actor) -> Result<Vec<Ground>, Problem> {
    let page = Page::first(MAX_LIMIT);
    let daemons = app.service.daemons(actor, &page).await?.items;
    let gpus = app.service.gpu_views(actor).await?;
    let censuses = app.service.chunk_censuses(actor).await?;
    let of = |daemon: &DaemonView| {
        let first = daemon.spec.gpus.first()?;
        let gpu = gpus.iter().find(|gpu| gpu.uuid == *first)?;
        Ground::of(gpu, Some(daemon), censuses.get(first))
    };
    let mut grounds: Vec<Ground> = daemons.iter().filter_map(of).collect();
    grounds.sort_by_key(|ground| ground.mode != Some(Mode::Static));
    if grounds.is_empty() {
        grounds.extend(gpus.iter().find_map(|gpu| Ground::of(gpu, None, censuses.get(&gpu.uuid))));
    }
    Ok(grounds)
}

/// The ground of that daemon, or else the first that fits the product name.
pub(super) fn choose<'g>(grounds: &'g [Ground], daemon: &str, sku: Option<&str>) -> Option<&'g Ground> {
    let named = grounds.iter().find(|ground| !daemon.is_empty() && ground.key() == daemon);
    let fits = || grounds.iter().find(|ground| sku.is_none_or(|sku| ground.sku == sku));
    named.or_else(fits).or_else(|| grounds.first())
}

/// What a layout comes to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) roles: Vec<RoleOutcome>,
    /// Steps that ask for more than is free, with the reason.
    pub(super) too_many: Vec<(usize, String)>,
}

/// What it comes to on the GPU of one role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RoleOutcome {
    pub(super) role: u32,
    pub(super) map: SmMap,
    pub(super) used: u32,
    pub(super) chunks: u32,
    /// Whether it is known how many chunks there are; otherwise it is so many at most.
    pub(super) counted: bool,
}

impl RoleOutcome {
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

/// What these steps come to, each with its number; steps that do not fit are told, and left out of the map.
pub(super) fn outcome<'a>(steps: impl IntoIterator<Item = (usize, &'a Step)>, ground: &Ground) -> Outcome {
    let (mut placed, mut roles, mut too_many) = (Vec::<Placed<'a>>::new(), Vec::new(), Vec::new());
    for (number, step) in steps {
        match step {
            Step::Add(add) => {
                if !roles.contains(&add.gpu) {
                    roles.push(add.gpu);
                }
                let used: u32 =
                    placed.iter().filter(|other| other.role == add.gpu).map(|other| other.chunks).sum();
                let free = ground.chunks.saturating_sub(used);
                if add.chunks > free {
                    too_many.push((number, too_many_words(add.chunks, free, ground)));
                    continue;
                }
                placed.push(Placed {
                    role: add.gpu,
                    partition: &add.partition,
                    chunks: add.chunks,
                    tenants: &add.tenants,
                });
            }
            Step::Remove(remove) => placed.retain(|other| *other.partition != remove.partition),
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
        let map = SmMap::planned(&partitions, ground.sms, ground.chunk_sms, ground.chunks);
        RoleOutcome { role, map, used, chunks: ground.chunks, counted: ground.counted }
    };
    Outcome { roles: roles.into_iter().map(of_role).collect(), too_many }
}

fn too_many_words(asked: u32, free: u32, ground: &Ground) -> String {
    let on = ground.daemon.as_ref().map_or_else(|| ground.sku.clone(), ToString::to_string);
    let asked = counted(asked, "chunk");
    match free {
        0 => format!("asks for {asked}, and none is free at this step on {on}: remove a partition before it"),
        1 => format!("asks for {asked}, and 1 is free at this step on {on}: give 1"),
        _ => format!("asks for {asked}, and {free} are free at this step on {on}: give at most {free}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ground() -> Ground {
        Ground {
            daemon: DaemonName::parse("gpu1").ok(),
            mode: Some(Mode::Static),
            sku: "NVIDIA H200".to_owned(),
            sms: 132,
            chunk_sms: 8,
            chunks: 15,
            counted: true,
        }
    }

    fn steps(text: &str) -> Vec<Step> {
        serde_json::from_str(text).expect("steps")
    }

    #[test]
    fn removals_give_back_what_later_steps_take() {
        let steps = steps(
            r#"[{"add": {"gpu": 0, "partition": "a", "chunks": 10}},
                {"add": {"gpu": 0, "partition": "b", "chunks": 6}},
                {"remove": {"partition": "a"}},
                {"add": {"gpu": 0, "partition": "c", "chunks": 15}},
                {"add": {"gpu": 1, "partition": "d", "chunks": 3, "tenants": ["web"]}},
                {"add": {"gpu": 0, "partition": "e", "chunks": 1}}]"#,
        );
        let outcome = outcome(steps.iter().enumerate(), &ground());
        let told: Vec<(usize, &str)> =
            outcome.too_many.iter().map(|(step, why)| (*step, why.as_str())).collect();
        assert_eq!(
            told,
            [
                (1, "asks for 6 chunks, and 5 are free at this step on gpu1: give at most 5"),
                (5, "asks for 1 chunk, and none is free at this step on gpu1: remove a partition before it"),
            ]
        );
        let used: Vec<(u32, u32, u32)> =
            outcome.roles.iter().map(|role| (role.role, role.used, role.free())).collect();
        assert_eq!(used, [(0, 15, 0), (1, 3, 12)]);
        assert_eq!(outcome.roles[1].map.groups[0].told(), "d: 24 SMs in 3 chunks, for web");
    }

    #[test]
    fn a_ground_is_chosen_by_its_daemon_and_else_by_its_product() {
        let other =
            Ground { daemon: DaemonName::parse("gpu0").ok(), sku: "NVIDIA L40S".to_owned(), ..ground() };
        let grounds = [ground(), other];
        let chosen = |daemon, sku| choose(&grounds, daemon, sku).map(Ground::key);
        assert_eq!(chosen("gpu0", None), Some("gpu0"));
        assert_eq!(chosen("", None), Some("gpu1"));
        assert_eq!(chosen("gone", Some("NVIDIA L40S")), Some("gpu0"));
        assert_eq!(chosen("", Some("another")), Some("gpu1"));
        assert_eq!(choose(&[], "gpu0", None), None);
    }
}
