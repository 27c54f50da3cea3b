//! Sharing of a GPU: its tenants with their SMs, memory and processes, and what is left to give.

use std::collections::BTreeMap;

use super::admission::memory_of;
use super::daemon::{AdmissionMode, Daemon, Effective, Mode};
use super::gpu::{ComputeCapability, Gpu};
use super::layout::status::PartitionStatus;
use super::partitions::GpuPartitions;
use super::percentage::sms_for;
use super::resolution::percentage_of;
use super::tenant::{EnforcedBy, Tenant};
use super::{GpuUuid, PartitionName, TenantName, ThreadPercentage, shares};

/// Processes on a GPU, and the bytes that they hold there, as far as the driver reports them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Their number.
    pub processes: u32,
    /// Their memory, in bytes.
    pub bytes: u64,
}

impl Held {
    /// Adds a process.
    pub fn add(&mut self, bytes: Option<u64>) {
        self.processes += 1;
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or(0));
    }
}

/// A tenant on a GPU that it sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantOnGpu {
    /// The tenant.
    pub name: TenantName,
    /// Number of its colour in pictures.
    pub colour: u8,
    /// SMs that each of its processes sees; `None` where that is not known.
    pub sms: Option<u32>,
    /// Holder of its share of the SMs.
    pub sms_by: EnforcedBy,
    /// Its partition, if its daemon has static partitions.
    pub partition: Option<PartitionName>,
    /// Memory that all of its processes may hold, in bytes; `None` without a limit.
    pub limit: Option<u64>,
    /// Its processes.
    pub held: Held,
}

/// SMs that are not given to anyone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SmsLeft {
    /// Some tenant has a share of the whole GPU, or its number of SMs is not known.
    Undivided,
    /// The shares of the tenants, which may overlap, leave this many; below 0 they do overlap.
    Shared(i64),
    /// Chunks without a partition, and their SMs.
    Static {
        /// The chunks.
        chunks: u32,
        /// Their SMs.
        sms: u32,
    },
}

/// Resources of a GPU that are left to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// The SMs.
    pub sms: SmsLeft,
    /// The memory, in bytes: what the admission of its daemon allows beyond the limits. Below 0 the limits exceed it; `None` where the size
    /// of its memory is not known.
    pub bytes: Option<i64>,
}

/// A GPU of a daemon, and those who share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuSharing {
    /// The tenants that see it, by name.
    pub tenants: Vec<TenantOnGpu>,
    /// Clients of no known tenant.
    pub strangers: Held,
    /// Resources that are left to give.
    pub left: Left,
}

impl GpuSharing {
    /// Returns what is left once a tenant has these SMs of the GPU's `total` and the limits leave these bytes.
    #[must_use]
    pub fn left_with(
        &self,
        tenant: Option<&TenantName>,
        sms: Option<u32>,
        total: Option<u32>,
        bytes: Option<i64>,
    ) -> Left {
        let others = self.tenants.iter().filter(|other| Some(&other.name) != tenant).map(|other| other.sms);
        let given = others.chain([sms]).map(|sms| sms.filter(|sms| Some(*sms) != total).map(i64::from));
        let sms = match self.left.sms {
            SmsLeft::Static { .. } => self.left.sms,
            _ => match (total, given.sum::<Option<i64>>()) {
                (Some(total), Some(given)) => SmsLeft::Shared(i64::from(total) - given),
                _ => SmsLeft::Undivided,
            },
        };
        Left { sms, bytes }
    }
}

/// The sharing of each GPU that a daemon has.
#[derive(Debug, Default)]
pub struct SharedGpus {
    gpus: Vec<Gpu>,
    sharing: BTreeMap<GpuUuid, GpuSharing>,
}

impl SharedGpus {
    /// The sharing as it follows from these GPUs of the host.
    #[must_use]
    pub fn new(gpus: Vec<Gpu>, sharing: BTreeMap<GpuUuid, GpuSharing>) -> Self {
        Self { gpus, sharing }
    }

    /// Returns true if it follows from these GPUs, whose use of memory changes at each reading and does not matter to it.
    pub fn is_of(&self, gpus: &[Gpu]) -> bool {
        let is_same = |(one, other): (&Gpu, &Gpu)| {
            (&one.uuid, one.sms, one.compute_capability, one.memory_total)
                == (&other.uuid, other.sms, other.compute_capability, other.memory_total)
        };
        self.gpus.len() == gpus.len() && self.gpus.iter().zip(gpus).all(is_same)
    }

    /// The sharing of a GPU; `None` if no daemon has it.
    pub fn get(&self, gpu: &GpuUuid) -> Option<&GpuSharing> {
        self.sharing.get(gpu)
    }
}

/// A daemon with everything that tells who shares its GPUs.
#[derive(Debug, Clone, Copy)]
pub struct SharedDaemon<'d> {
    /// The daemon.
    pub daemon: &'d Daemon,
    /// Its tenants, by name.
    pub tenants: &'d [&'d Tenant],
    /// Its settings as read back, if it was read.
    pub effective: Option<&'d Effective>,
    /// The partitions of its layout.
    pub partitions: &'d [PartitionStatus],
    /// The GPUs of the host.
    pub gpus: &'d [Gpu],
}

impl SharedDaemon<'_> {
    /// Returns who shares a GPU of this daemon; `held` returns the processes of a tenant on it, and of no tenant for `None`.
    pub fn on(&self, gpu: &Gpu, held: impl Fn(Option<&TenantName>) -> Held) -> GpuSharing {
        let spec = &self.daemon.spec;
        let basis = shares::basis(spec, self.tenants.iter().map(|tenant| &tenant.spec), self.gpus);
        let basis = basis.ok().flatten();
        // A share of an MLOPart device is not one of its GPU.
        let total = gpu.sms.filter(|_| !spec.mlopart || gpu.mlopart.is_some());
        let mut tenants = Vec::new();
        let mut is_divided = total.is_some();
        for tenant in self.tenants.iter().filter(|tenant| tenant.spec.sees(&gpu.uuid)) {
            let percentage = percentage_of(&tenant.spec, spec, basis.as_ref(), self.gpus).ok();
            let partition = self.partition_of(&tenant.name, &gpu.uuid);
            let share = percentage.filter(|_| spec.mode == Mode::Shared);
            is_divided &= share.is_some_and(|share| share != ThreadPercentage::FULL);
            tenants.push(TenantOnGpu {
                name: tenant.name.clone(),
                colour: tenant.directory.colour(),
                sms: match share {
                    Some(share) => total.map(|total| sms_for(share, total)),
                    None => partition.and_then(|partition| partition.sms),
                },
                sms_by: share.map_or(EnforcedBy::None, |share| self.holder_of(share)),
                partition: partition.map(|partition| partition.partition.clone()),
                limit: memory_of(&tenant.spec, spec, &gpu.uuid),
                held: held(Some(&tenant.name)),
            });
        }
        let limits = tenants.iter().filter_map(|tenant| tenant.limit).fold(0, u64::saturating_add);
        // The MLOPart devices of a GPU share its memory: what is left is that of the GPU.
        let memory_total = gpu.memory_total.filter(|_| gpu.mlopart.is_none());
        let capacity = memory_total.map(|total| match spec.admission {
            AdmissionMode::Open => total,
            AdmissionMode::Reserved => spec.memory_overcommit.budget(total),
        });
        let sms_left = match (self.listed(&gpu.uuid), spec.mode, gpu.sms) {
            (Some(listed), Mode::Static, _) => {
                let chunk_sms = gpu.compute_capability.map_or(0, ComputeCapability::chunk_sms);
                let sms = (listed.free_chunks * chunk_sms).min(listed.free_sms);
                SmsLeft::Static { chunks: listed.free_chunks, sms }
            }
            (_, Mode::Shared, Some(total)) if is_divided => {
                let given: u64 = tenants.iter().filter_map(|tenant| tenant.sms).map(u64::from).sum();
                SmsLeft::Shared(i64::from(total).saturating_sub_unsigned(given))
            }
            _ => SmsLeft::Undivided,
        };
        GpuSharing {
            tenants,
            strangers: held(None),
            left: Left { sms: sms_left, bytes: capacity.map(|capacity| difference(capacity, limits)) },
        }
    }

    /// The partitions of a GPU as the daemon lists them.
    pub fn listed(&self, gpu: &GpuUuid) -> Option<&GpuPartitions> {
        self.effective?.partitions.as_ref()?.iter().find(|listed| listed.gpu == *gpu)
    }

    fn partition_of(&self, tenant: &TenantName, gpu: &GpuUuid) -> Option<&PartitionStatus> {
        self.partitions.iter().find(|partition| partition.gpu == *gpu && partition.tenants.contains(tenant))
    }

    /// Returns the holder of a share: the server, whose share is the largest of the daemon's tenants, or the environment alone.
    fn holder_of(&self, share: ThreadPercentage) -> EnforcedBy {
        let server = self.effective.and_then(|effective| effective.servers.first());
        match server.and_then(|server| server.active_thread_percentage) {
            _ if share == ThreadPercentage::FULL => EnforcedBy::None,
            Some(of_server) if of_server == share => EnforcedBy::Server,
            _ => EnforcedBy::Environment,
        }
    }
}

/// Returns a difference of bytes, which may be below 0.
pub(super) fn difference(of: u64, and: u64) -> i64 {
    i64::try_from(i128::from(of) - i128::from(and)).unwrap_or(if of < and { i64::MIN } else { i64::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DaemonName;
    use crate::testing::{h200, tenant};

    fn sharing(extra: &str, tenants: &[(&str, &str)]) -> GpuSharing {
        let json = format!("{{\"gpus\":[\"{}\"]{extra}}}", h200(0).uuid);
        let (name, spec) = (DaemonName::parse("gpu0"), serde_json::from_str(&json));
        let (name, spec) = (name.expect("a name"), spec.expect("a daemon"));
        let daemon = Daemon { name, spec, revision: 1, generation: 1, created_at: 0, updated_at: 0 };
        let tenants: Vec<Tenant> = tenants.iter().map(|(name, json)| tenant(name, json)).collect();
        let tenants: Vec<&Tenant> = tenants.iter().collect();
        let shared = SharedDaemon {
            daemon: &daemon,
            tenants: &tenants,
            effective: None,
            partitions: &[],
            gpus: &[h200(0)],
        };
        shared.on(&h200(0), |_| Held::default())
    }

    #[test]
    fn memory_beyond_limits_is_left() {
        let total = i64::try_from(h200(0).memory_total.expect("known")).expect("a size");
        assert_eq!(sharing("", &[]).left.bytes, Some(total));
        let two = [
            ("web", r#"{"daemon":"gpu0","uid":0,"device_memory_limit":"10G","max_clients":4}"#),
            ("batch", r#"{"daemon":"gpu0","uid":0,"device_memory_limit":"20G"}"#),
        ];
        assert_eq!(sharing("", &two).left.bytes, Some(total - (60 << 30)));
        let reserved = sharing(r#","admission":"reserved","memory_overcommit":2.0"#, &two);
        assert_eq!(reserved.left.bytes, Some(2 * total - (60 << 30)));
        let much = [("web", r#"{"daemon":"gpu0","uid":0,"device_memory_limit":"100G","max_clients":4}"#)];
        assert_eq!(sharing("", &much).left.bytes, Some(total - (400 << 30)), "more than there is was given");
    }

    #[test]
    fn sms_are_left_where_all_have_shares() {
        assert_eq!(sharing("", &[]).left.sms, SmsLeft::Shared(132));
        let web = ("web", r#"{"daemon":"gpu0","uid":0,"sms":66}"#);
        let batch = ("batch", r#"{"daemon":"gpu0","uid":0,"sms":32}"#);
        assert_eq!(sharing("", &[web, batch]).left.sms, SmsLeft::Shared(34));
        let large = ("large", r#"{"daemon":"gpu0","uid":0,"sms":98}"#);
        assert_eq!(sharing("", &[web, batch, large]).left.sms, SmsLeft::Shared(-64), "shares may overlap");
        let whole = ("whole", r#"{"daemon":"gpu0","uid":0}"#);
        assert_eq!(sharing("", &[web, whole]).left.sms, SmsLeft::Undivided);
    }

    #[test]
    fn edited_tenant_counts_with_its_new_share() {
        let web = ("web", r#"{"daemon":"gpu0","uid":0,"sms":66}"#);
        let now = sharing("", &[web, ("batch", r#"{"daemon":"gpu0","uid":0,"sms":32}"#)]);
        let web = TenantName::parse("web").expect("a name");
        let left = |tenant, sms| now.left_with(tenant, sms, Some(132), Some(7)).sms;
        assert_eq!(left(Some(&web), Some(48)), SmsLeft::Shared(52));
        assert_eq!(left(None, Some(48)), SmsLeft::Shared(-14), "a new one comes beside the others");
        assert_eq!(left(Some(&web), Some(132)), SmsLeft::Undivided, "no share of its own");
        assert_eq!(now.left_with(None, None, None, Some(7)).bytes, Some(7));
    }

    #[test]
    fn unread_partitions_leave_nothing_known() {
        let sharing = sharing(r#","mode":"static""#, &[("web", r#"{"daemon":"gpu0","uid":0}"#)]);
        assert_eq!((sharing.left.sms, sharing.tenants[0].sms), (SmsLeft::Undivided, None));
    }
}
