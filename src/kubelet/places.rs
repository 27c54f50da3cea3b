//! Places that a node offers, by class, from the daemons of its manager.
//!
//! A daemon that divides its GPUs among a number of clients has that many places on each. Places that give a process the same resources
//! form one class, which is a resource of Kubernetes. Places follow from specs alone, so that they stay while a daemon is down.

use std::collections::BTreeMap;

use crate::domain::condition::{Condition, ConditionReason, ConditionType};
use crate::domain::count::counted;
use crate::domain::daemon::{DaemonSpec, Mode};
use crate::domain::percentage::ThreadPercentage;
use crate::domain::provisioning::{ShareBasis, SharingTenant, SmShare, TenantWeight};
use crate::domain::{DaemonName, GpuUuid, MemoryLimit};
use crate::service::daemons::DaemonView;
use crate::service::host::GpuView;

/// Room for one process on a GPU: a device of the kubelet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DevicePlace {
    /// Its device ID: the GPU's UUID and the place's number on it.
    pub(super) id: String,
    pub(super) gpu: GpuUuid,
    pub(super) number: u32,
    pub(super) daemon: DaemonName,
    /// The share of a process there.
    pub(super) share: ThreadPercentage,
    /// Reason why no process can be placed there now.
    pub(super) fault: Option<String>,
}

/// All places of a node by class, in a stable order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct NodeOffer {
    pub(super) classes: BTreeMap<String, Vec<DevicePlace>>,
    /// Messages about places that are not offered, each with the reason.
    pub(super) remarks: Vec<String>,
}

impl NodeOffer {
    /// Computes the offer of these daemons.
    pub(super) fn of(daemons: &[DaemonView], gpus: &[GpuView]) -> Self {
        let mut offer = Self::default();
        let mut daemons: Vec<&DaemonView> = daemons.iter().collect();
        daemons.sort_by(|one, other| one.name.cmp(&other.name));
        for daemon in daemons {
            offer.add(daemon, gpus);
        }
        offer
    }

    fn add(&mut self, daemon: &DaemonView, gpus: &[GpuView]) {
        let Some((clients, share)) = share(&daemon.spec) else { return };
        let fault = fault(daemon);
        // With MLOPart devices a place is on one of these.
        let part_of =
            |view: &&GpuView| view.mlopart.as_ref().is_some_and(|part| daemon.spec.gpus.contains(&part.gpu));
        let parts = gpus.iter().filter(part_of).map(|view| &view.uuid);
        let devices: Vec<&GpuUuid> =
            if daemon.spec.mlopart { parts.collect() } else { daemon.spec.gpus.iter().collect() };
        for gpu in devices {
            let gpu_view = gpus.iter().find(|gpu_view| gpu_view.uuid == *gpu);
            let limit = daemon.spec.defaults.device_memory_limit.as_ref().and_then(|limit| limit.on(gpu));
            let total = gpu_view.and_then(|gpu_view| gpu_view.memory_total);
            if let (Some(limit), Some(total)) = (limit, total)
                && limit.bytes() > total
            {
                self.remarks.push(format!(
                    "daemon {} offers no place on {gpu}: its default memory limit, {limit}, is larger than the GPU",
                    daemon.name
                ));
                continue;
            }
            // The SMs of an MLOPart device are known once a client has seen them, and the name of a class must not change then.
            let sms = gpu_view.and_then(|gpu_view| gpu_view.sms).filter(|_| !daemon.spec.mlopart);
            let sms = SmShare::of(gpu.clone(), share, sms).predicted_sms;
            let is_missing = gpu_view.is_none_or(|gpu_view| !gpu_view.present);
            let fault = is_missing.then(|| "its GPU is missing".to_owned()).or_else(|| fault.clone());
            let place = |number: u32| DevicePlace {
                id: format!("{gpu}-{number}"),
                gpu: gpu.clone(),
                number,
                daemon: daemon.name.clone(),
                share,
                fault: fault.clone(),
            };
            let class = self.classes.entry(class_name(share, sms, limit)).or_default();
            class.extend((0..clients).map(place));
        }
    }

    /// Marks the places on GPUs of which another device plugin offers replicas: pods of that plugin would run there outside of every limit.
    pub(super) fn beside(mut self, replicated: &BTreeMap<GpuUuid, String>) -> Self {
        for place in self.classes.values_mut().flatten().filter(|place| place.fault.is_none()) {
            place.fault = replicated.get(&place.gpu.whole()).map(|resource| {
                format!(
                    "another device plugin {} {} too, as {resource}: take {} out of its configuration for this node, or take it off the \
                     node",
                    if place.gpu.is_mig() { "offers" } else { "shares" },
                    place.gpu,
                    if place.gpu.is_mig() { "the instance" } else { "sharing" },
                )
            });
        }
        self
    }

    /// Marks all places as unusable while the manager does not answer.
    pub(super) fn without_manager(mut self) -> Self {
        for place in self.classes.values_mut().flatten() {
            place.fault = Some("the manager does not answer".to_owned());
        }
        self
    }

    /// Describes every class in words, for the log.
    pub(super) fn in_words(&self) -> String {
        let words = |(class, places): (&String, &Vec<DevicePlace>)| {
            let mut gpus: Vec<&GpuUuid> = places.iter().map(|place| &place.gpu).collect();
            gpus.dedup();
            format!("{class}: {} on {}", counted(places.len(), "place"), counted(gpus.len(), "device"))
        };
        if self.classes.is_empty() {
            return "nothing: no daemon has expected_clients, which a template's clients_per_gpu sets"
                .to_owned();
        }
        self.classes.iter().map(words).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the number of clients that share each GPU of a daemon, and the share of each; `None` for a daemon without such a number.
///
/// Tenants are not counted, since the name of a class may not depend on them.
fn share(daemon: &DaemonSpec) -> Option<(u32, ThreadPercentage)> {
    let clients = daemon.provisioning.expected_clients?;
    if daemon.mode == Mode::Static {
        // Its tenants have partitions, and no percentage can be stated of them.
        return None;
    }
    if !daemon.provisioning.is_active() {
        // Memory for each and the same SMs for all.
        let share = daemon.defaults.active_thread_percentage.unwrap_or(ThreadPercentage::FULL);
        return Some((clients, share));
    }
    let all = SharingTenant { max_clients: Some(clients), weight: TenantWeight::default() };
    let basis = ShareBasis::new(daemon.provisioning, 0, &[all])?;
    Some((clients, basis.share(TenantWeight::default())))
}

/// Returns the name of the class of places with these resources: `sm33-20g`, or `p25-20g` where the number of SMs is not known.
fn class_name(share: ThreadPercentage, sms: Option<u32>, limit: Option<MemoryLimit>) -> String {
    let threads = match (sms, share.tenths()) {
        (Some(sms), _) => format!("sm{sms}"),
        (None, tenths) if tenths.is_multiple_of(10) => format!("p{}", tenths / 10),
        (None, _) => format!("p{share}"),
    };
    match limit.map(MemoryLimit::mib) {
        None => threads,
        Some(mib) if mib.is_multiple_of(1024) => format!("{threads}-{}g", mib / 1024),
        Some(mib) => format!("{threads}-{mib}m"),
    }
}

/// Why a daemon takes no new process.
fn fault(daemon: &DaemonView) -> Option<String> {
    let name = &daemon.name;
    if !daemon.spec.schedulable {
        return Some(format!("daemon {name} is cordoned"));
    }
    let Some(status) = &daemon.status else { return Some(format!("daemon {name} is not driven")) };
    let wrong = status.conditions.iter().find(|condition| keeps_out(condition))?;
    Some(format!("daemon {name}: {}: {}", wrong.reason, wrong.message))
}

/// Returns true if the condition keeps new processes out. Settings that are being written do not: that happens at each allocation.
fn keeps_out(condition: &Condition) -> bool {
    match condition.kind {
        ConditionType::Ready => {
            let passes = matches!(
                condition.reason,
                ConditionReason::AwaitingReadBack | ConditionReason::SettingsDiffer
            );
            !condition.status && !passes
        }
        ConditionType::Schedulable | ConditionType::Layout => !condition.status,
        ConditionType::ServerFault
        | ConditionType::SettingsDrifted
        | ConditionType::PartitionsDrifted
        | ConditionType::PartitionsDegraded => condition.status,
        _ => false,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::testing::h200;

    fn percentage(tenths: u16) -> ThreadPercentage {
        ThreadPercentage::from_tenths(tenths).expect("a percentage")
    }

    fn limit(text: &str) -> MemoryLimit {
        MemoryLimit::parse(text).expect("a limit")
    }

    /// A daemon of simulated GPUs as the API shows it, without a status.
    pub(in crate::kubelet) fn daemon(name: &str, gpus: &[u32], spec: &str) -> DaemonView {
        let gpus: Vec<GpuUuid> = gpus.iter().map(|index| h200(*index).uuid).collect();
        let mut json: serde_json::Value = serde_json::from_str(spec).expect("JSON");
        json["gpus"] = serde_json::json!(gpus);
        DaemonView {
            name: DaemonName::parse(name).expect("a name"),
            generation: 1,
            created_at: 0,
            updated_at: 0,
            spec: serde_json::from_value(json).expect("a spec"),
            status: None,
            removed: Vec::new(),
            revision: 1,
        }
    }

    fn gpu(index: u32) -> GpuView {
        let gpu = h200(index);
        serde_json::from_value(serde_json::json!({
            "uuid": gpu.uuid, "present": true, "index": index, "pci_bus_id": gpu.pci_bus_id, "name": gpu.name,
            "sms": gpu.sms, "compute_capability": null, "memory_total": gpu.memory_total, "memory_used": 0,
            "compute_mode": null, "mig_enabled": false, "daemon": null, "memory_limits": 0, "memory_capacity": null,
            "tenants_without_limit": 0, "processes": null, "live": true,
        }))
        .expect("a GPU")
    }

    /// The places of two daemons: `a` with GPUs 0 and 1, `b` with GPU 2, four on each GPU.
    pub(in crate::kubelet) fn places() -> Vec<DevicePlace> {
        let spec = r#"{"provisioning": {"strategy": "uniform", "expected_clients": 4}}"#;
        let daemons = [daemon("b", &[2], spec), daemon("a", &[0, 1], spec)];
        let offer = NodeOffer::of(&daemons, &[gpu(0), gpu(1), gpu(2)]);
        offer.classes.into_values().next().expect("a class")
    }

    #[test]
    fn class_is_named_by_its_share() {
        assert_eq!(class_name(percentage(250), Some(32), Some(limit("20G"))), "sm32-20g");
        assert_eq!(class_name(percentage(250), Some(32), Some(limit("1.5G"))), "sm32-1536m");
        assert_eq!(class_name(percentage(250), None, Some(limit("20G"))), "p25-20g");
        assert_eq!(class_name(percentage(125), None, None), "p12.5");
    }

    #[test]
    fn places_have_a_stable_order() {
        let places = places();
        assert_eq!(places.len(), 12);
        let ids: Vec<&str> = places.iter().map(|place| place.id.as_str()).collect();
        let of = |gpu: u32, number: u32| format!("{}-{number}", h200(gpu).uuid);
        assert_eq!((ids[0], ids[5], ids[11]), (&*of(0, 0), &*of(1, 1), &*of(2, 3)));
        assert!(ids.iter().all(|id| id.len() <= 63), "what a kubelet takes");
        assert!(places.iter().all(|place| place.fault.is_some()), "no daemon has a driver");
        assert!(places.iter().all(|place| place.share == percentage(250)));
    }

    #[test]
    fn strategies_that_divide_have_classes() {
        let class = |spec: &str| {
            let offer = NodeOffer::of(&[daemon("a", &[0], spec)], &[gpu(0)]);
            (offer.classes.into_keys().next(), offer.remarks.len())
        };
        let with = |strategy: &str, more: &str| {
            class(&format!(
                r#"{{"provisioning": {{"strategy": "{strategy}", "expected_clients": 4}}{more}}}"#
            ))
        };
        assert_eq!(with("uniform", ""), (Some("sm32".into()), 0));
        assert_eq!(with("weighted", ""), (Some("sm32".into()), 0));
        assert_eq!(with("relaxed", ""), (Some("sm66".into()), 0));
        let limited = |size: &str| format!(r#", "defaults": {{"device_memory_limit": "{size}"}}"#);
        assert_eq!(with("uniform", &limited("20G")), (Some("sm32-20g".into()), 0));
        assert_eq!(with("uniform", &limited("200G")), (None, 1), "larger than the GPU");
        assert_eq!(class(r#"{"provisioning": {"strategy": "uniform"}}"#), (None, 0));
        assert_eq!(class("{}"), (None, 0));
    }

    #[test]
    fn settings_being_written_keep_nobody_out() {
        let condition = |kind, status, reason| keeps_out(&Condition::new(kind, status, reason, ""));
        assert!(!condition(ConditionType::Ready, true, ConditionReason::AppliedAndReadBack));
        assert!(!condition(ConditionType::Ready, false, ConditionReason::AwaitingReadBack));
        assert!(condition(ConditionType::Ready, false, ConditionReason::StoppedBySpec));
        assert!(condition(ConditionType::ServerFault, true, ConditionReason::AwaitingClientExit));
        assert!(condition(ConditionType::Schedulable, false, ConditionReason::Cordoned));
        assert!(condition(ConditionType::PartitionsDrifted, true, ConditionReason::ChangedByOthers));
        assert!(!condition(ConditionType::SettingsDrifted, false, ConditionReason::Restored));
        assert!(!condition(ConditionType::UsersWaiting, true, ConditionReason::ServesAnotherUser));
    }
}
