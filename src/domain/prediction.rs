//! Prediction of the values and the refusals of a tenant on its daemon, before its spec is written.

use super::admission::{AdmissionError, admit, memory_of};
use super::daemon::{AdmissionMode, DaemonSpec, Mode};
use super::device_index::DeviceIndex;
use super::gpu::Gpu;
use super::percentage::is_measured;
use super::provisioning::ProvisioningStatus;
use super::resolution::{Resolved, below_context, context_bytes, gpus_of, resolve};
use super::shares;
use super::sharing::difference;
use super::tenant::{Sharer, TenantSpec};
use super::{DaemonName, GpuUuid, MemoryLimit, TenantName, ThreadPercentage};

/// Predicted values of a tenant for each GPU, and the reasons why it would be refused.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// Mode of its daemon.
    pub mode: Mode,
    /// Its thread percentage; `None` in static mode, and if no percentage gives the requested SMs.
    pub percentage: Option<ThreadPercentage>,
    /// Shares that its daemon's strategy would give all tenants; `None` without a strategy.
    pub provisioning: Option<ProvisioningStatus>,
    /// Clients that a GPU takes with this version of MPS.
    pub ceiling: u32,
    /// Admission mode of its daemon.
    pub admission: AdmissionMode,
    /// Each of its GPUs, or of the MLOPart devices that its daemon's server has.
    pub gpus: Vec<GpuPrediction>,
    /// Refusals, each with the reason and the field of the spec to check first.
    pub refusals: Vec<AdmissionError>,
}

/// Predicted values of a tenant on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuPrediction {
    /// The GPU.
    pub gpu: GpuUuid,
    /// Its place on the host.
    pub index: DeviceIndex,
    /// SMs that it has; `None` where the driver does not report it, or no client has seen an MLOPart device.
    pub total_sms: Option<u32>,
    /// SMs that a client would see; `None` if a partition decides it, or if no percentage gives the requested SMs.
    pub sms: Option<u32>,
    /// True if the prediction was measured on this kind of GPU; else it follows from measurements on another kind.
    pub is_measured: bool,
    /// Its memory limit per process; `None` is the whole GPU.
    pub limit: Option<MemoryLimit>,
    /// Approximate bytes that the context of a client takes from its limit.
    pub context: Option<u64>,
    /// Approximate bytes of the limit that are left to a client.
    pub usable: Option<u64>,
    /// Reason why no client could start, if its context takes all of its limit.
    pub below_context: Option<String>,
    /// Bytes of the GPU; `None` where the driver does not report them.
    pub memory: Option<u64>,
    /// Most bytes of its tenants' limits in total; without reservation, its memory. `None` as for `memory`, and for an MLOPart device, which shares
    /// the memory of its GPU.
    pub allowed: Option<u64>,
    /// Total of the other tenants' limits, in bytes.
    pub others: u64,
    /// Number of other tenants on it without a limit.
    pub others_without_limit: usize,
    /// Limit of this tenant × its `max_clients`, in bytes; `None` without a limit.
    pub own: Option<u64>,
    /// Total of `max_clients` of the tenants on it, this one included.
    pub clients: u64,
}

impl GpuPrediction {
    /// Returns the total of all tenants' limits, in bytes.
    pub fn sum(&self) -> u64 {
        self.others.saturating_add(self.own.unwrap_or(0))
    }

    /// Returns the bytes that are left beside all limits; `None` if the limits exceed the allowed bytes, or if these are not known.
    pub fn left(&self) -> Option<u64> {
        self.allowed?.checked_sub(self.sum())
    }

    /// Returns the bytes that are left beside all limits, below 0 if these exceed the allowed ones.
    pub fn bytes_left(&self) -> Option<i64> {
        self.allowed.map(|allowed| difference(allowed, self.sum()))
    }

    /// Returns the bytes by which the limits exceed the allowed ones.
    pub fn over(&self) -> u64 {
        self.allowed.map_or(0, |allowed| self.sum().saturating_sub(allowed))
    }
}

/// Predicts the values of `tenant` on its daemon beside `others`, which exist already.
pub fn predict(
    daemon: (&DaemonName, &DaemonSpec),
    tenant: (&TenantName, &TenantSpec),
    others: &[Sharer<'_>],
    gpus: &[Gpu],
    ceiling: u32,
) -> Prediction {
    let ((daemon_name, daemon), (name, tenant)) = (daemon, tenant);
    let mut refusals = Vec::new();
    if let Err((field, error)) = tenant.check() {
        refusals.push(AdmissionError { field, detail: error.to_string() });
    }
    let mut all = others.to_vec();
    all.push((name, tenant));
    refusals.extend(admit(daemon_name.as_str(), daemon, &all, gpus, ceiling).err());
    let basis = shares::basis(daemon, all.iter().map(|(_, spec)| *spec), gpus).ok().flatten();
    // Its devices are those below, of which a share is one where their SMs are known.
    let of_devices = |resolved| Resolved { has_parts: false, ..resolved };
    let resolved = resolve(tenant, daemon, basis.as_ref(), gpus).ok().map(of_devices);
    let named = gpus_of(tenant, daemon);
    // With MLOPart devices a client sees these, and not their GPU.
    let is_visible = |gpu: &&Gpu| {
        gpu.mlopart.is_some() == daemon.mlopart && named.iter().any(|named| gpu.uuid.is_of(named))
    };
    let visible: Vec<&Gpu> = gpus.iter().filter(is_visible).collect();
    let outlook = |gpu: &Gpu| outlook(gpu, daemon, tenant, resolved.as_ref(), others);
    Prediction {
        mode: daemon.mode,
        percentage: resolved
            .as_ref()
            .filter(|_| daemon.mode == Mode::Shared)
            .map(|resolved| resolved.percentage),
        provisioning: shares::status(daemon, all.iter().copied(), gpus, |_, _| 0),
        ceiling: visible.iter().map(|gpu| gpu.client_ceiling(ceiling)).min().unwrap_or(ceiling),
        admission: daemon.admission,
        gpus: visible.into_iter().map(outlook).collect(),
        refusals,
    }
}

fn outlook(
    gpu: &Gpu,
    daemon: &DaemonSpec,
    tenant: &TenantSpec,
    resolved: Option<&Resolved>,
    others: &[Sharer<'_>],
) -> GpuPrediction {
    let on_gpu = || others.iter().filter(|(_, other)| other.sees(&gpu.uuid)).map(|(_, o)| *o);
    let sms = resolved.and_then(|resolved| resolved.predicted_sms(gpu.sms?));
    let context = sms.map(context_bytes);
    let limit_set = tenant.memory_limit(daemon, &gpu.uuid);
    let limit = limit_set.map(MemoryLimit::bytes).or(gpu.memory_total);
    let stated = on_gpu().chain([tenant]).filter_map(|tenant| tenant.max_clients);
    let memory = |tenant: &TenantSpec| memory_of(tenant, daemon, &gpu.uuid);
    GpuPrediction {
        gpu: gpu.uuid.clone(),
        index: gpu.index,
        total_sms: gpu.sms,
        sms,
        is_measured: is_measured(gpu),
        limit: limit_set,
        context,
        usable: context.zip(limit).map(|(context, limit)| limit.saturating_sub(context)),
        memory: gpu.memory_total,
        allowed: gpu.memory_total.filter(|_| gpu.mlopart.is_none()).map(|total| match daemon.admission {
            AdmissionMode::Open => total,
            AdmissionMode::Reserved => daemon.memory_overcommit.budget(total),
        }),
        below_context: limit_set.zip(context).and_then(|(limit, context)| below_context(limit, context)),
        others: on_gpu().filter_map(memory).fold(0, u64::saturating_add),
        others_without_limit: on_gpu().filter(|other| memory(other).is_none()).count(),
        own: memory(tenant),
        clients: stated.map(u64::from).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{h200, spec};

    fn of(daemon: &str, tenant: &str, others: &[&str]) -> Prediction {
        let daemon: DaemonSpec =
            serde_json::from_str(&format!("{{\"gpus\":[\"{}\"]{daemon}}}", h200(0).uuid)).expect("daemon");
        let name = |text: &str| TenantName::parse(text).expect("name");
        let others: Vec<_> = others
            .iter()
            .enumerate()
            .map(|(number, json)| (name(&format!("t{number}")), spec(json)))
            .collect();
        let of = DaemonName::parse("gpu0").expect("name");
        let others: Vec<Sharer<'_>> = others.iter().map(|(name, spec)| (name, spec)).collect();
        predict((&of, &daemon), (&name("web"), &spec(tenant)), &others, &[h200(0), h200(1)], 60)
    }

    #[test]
    fn sms_and_memory_are_predicted_for_clients() {
        let prediction = of(
            "",
            r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G","sms":32,"max_clients":2}"#,
            &[r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"10G","max_clients":3}"#],
        );
        let [gpu] = &prediction.gpus[..] else { panic!("the daemon has one GPU: {prediction:?}") };
        assert_eq!((gpu.sms, gpu.total_sms, gpu.is_measured), (Some(32), Some(132), true));
        assert_eq!(gpu.usable, Some((4 << 30) - context_bytes(32)));
        assert_eq!((gpu.others, gpu.own, gpu.clients), (30 << 30, Some(8 << 30), 5));
        assert_eq!(gpu.left(), Some(150_109_880_320 - (38 << 30)));
        assert_eq!((gpu.over(), prediction.refusals.len()), (0, 0));
    }

    #[test]
    fn refused_prediction_still_shows_known_values() {
        let reserved = r#","admission":"reserved""#;
        let prediction =
            of(reserved, r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"100G","max_clients":2}"#, &[]);
        assert_eq!(prediction.refusals[0].field, "device_memory_limit");
        assert_eq!((prediction.gpus[0].left(), prediction.gpus[0].sms), (None, Some(132)));
        assert!(prediction.gpus[0].over() > 0);
        let odd = of("", r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G","sms":33}"#, &[]);
        assert_eq!((odd.refusals[0].field, odd.gpus[0].sms, odd.percentage), ("sms", None, None));
        assert_eq!(odd.gpus[0].own, Some(4 << 30));
    }

    #[test]
    fn a_partition_decides_in_static_mode() {
        let prediction =
            of(r#","mode":"static""#, r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G"}"#, &[]);
        assert_eq!(
            (prediction.percentage, prediction.gpus[0].sms, prediction.gpus[0].usable),
            (None, None, None)
        );
        assert!(prediction.refusals.is_empty(), "{:?}", prediction.refusals);
    }

    #[test]
    fn a_limit_that_the_context_takes_leaves_nothing() {
        let prediction = of("", r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"256M"}"#, &[]);
        assert_eq!(prediction.gpus[0].usable, Some(0));
        let why = prediction.gpus[0].below_context.as_deref().expect("it is reported");
        assert!(why.contains("none can start"), "{why}");
        let enough = of("", r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G"}"#, &[]);
        assert_eq!(enough.gpus[0].below_context, None);
    }
}
