//! Control daemons that this manager did not start: the GPUs that one serves, and the spec that matches its effective settings.

use super::daemon::{DaemonSpec, Defaults, Effective, Management, MemoryReading, Mode};
use super::foreign_owner::ForeignOwner;
use super::gpu::Gpu;
use super::memory::{Bytes, MIB};
use super::{DeviceMemoryLimit, GpuUuid, InvalidValue, MemoryLimit, Priority, ThreadPercentage};

/// Returns the GPUs that a daemon sees with this `CUDA_VISIBLE_DEVICES`, in its own order; all of them if it is unset.
///
/// As in CUDA, the list ends at its first entry that names no GPU, and a GPU that is named twice leaves none.
/// `pci_order` is true if indices are known to follow PCI order; CUDA's own order is that of speed, which is the same
/// only if all GPUs are of one kind.
pub fn visible_gpus(
    variable: Option<&str>,
    pci_order: bool,
    present: &[Gpu],
) -> Result<Vec<GpuUuid>, InvalidValue> {
    // Without the variable CUDA finds the whole GPUs; of MIG instances it finds one, and only if there is nothing else.
    let is_whole = |gpu: &&Gpu| !gpu.mig_enabled && gpu.mig.is_none();
    let whole = present.iter().filter(is_whole).count();
    let found = |gpu: &&Gpu| if whole > 0 { is_whole(gpu) } else { !gpu.mig_enabled };
    let all = || {
        let most = if whole > 0 { whole } else { 1 };
        present.iter().filter(found).take(most).map(|gpu| gpu.uuid.clone()).collect()
    };
    let Some(list) = variable else { return Ok(all()) };
    let one_kind = present.windows(2).all(|pair| pair[0].name == pair[1].name);
    let mut visible: Vec<GpuUuid> = Vec::new();
    for word in list.split(',').map(str::trim) {
        let gpu = if let Ok(index) = word.parse::<u32>() {
            if !pci_order && !one_kind {
                return Err(InvalidValue(format!(
                    "its CUDA_VISIBLE_DEVICES {list:?} counts GPUs by index, and on a host with GPUs of several kinds CUDA's \
                     order is not known to be that of PCI: it should name them by UUID"
                )));
            }
            present.iter().find(|gpu| gpu.index == index)
        } else {
            let mut named =
                present.iter().filter(|gpu| word.len() > 4 && gpu.uuid.as_str().starts_with(word));
            named.next().filter(|_| named.next().is_none())
        };
        match gpu {
            Some(gpu) if visible.contains(&gpu.uuid) => return Ok(Vec::new()),
            Some(gpu) => visible.push(gpu.uuid.clone()),
            None => break,
        }
    }
    Ok(visible)
}

/// Effective state of a daemon that was started outside this manager.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// Its GPUs, in its own order.
    pub gpus: Vec<GpuUuid>,
    /// Its mode.
    pub mode: Mode,
    /// True if it takes clients of several users at once.
    pub multi_user: bool,
    /// Its settings, devices named by ordinal.
    pub effective: Effective,
    /// The GPUs that also have a default limit by UUID.
    pub limited_by_uuid: Vec<GpuUuid>,
}

/// A spec that matches the effective settings, so that applying it changes nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct AdoptedSpec {
    /// The spec.
    pub spec: DaemonSpec,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Derives a spec from effective settings; fails with the reason if no spec can express them.
fn spec_in_force(in_force: &InForce) -> Result<AdoptedSpec, InvalidValue> {
    refuse_limits_by_uuid(in_force)?;
    let effective = &in_force.effective;
    let mut notes = Vec::new();
    let percentage = effective
        .default_active_thread_percentage
        .ok_or_else(|| InvalidValue("its default active thread percentage is not known".into()))?;
    let priority = effective
        .default_priority
        .ok_or_else(|| InvalidValue("its default client priority is not known".into()))?;
    if in_force.mode == Mode::Static && percentage != ThreadPercentage::FULL {
        return Err(InvalidValue(format!(
            "its default active thread percentage is {percentage}, which MPS ignores in static mode and a spec in that mode \
             cannot hold: set it to 100 first"
        )));
    }
    let limits = default_limits(effective, &mut notes)?;
    for server in &effective.servers {
        if server.active_thread_percentage != Some(percentage) {
            return Err(InvalidValue(format!(
                "its server {} has another active thread percentage ({}) than servers to come ({percentage}), and a spec has \
                 one value for both: set them alike first",
                server.pid,
                server.active_thread_percentage.map_or_else(|| "unknown".into(), |value| value.to_string())
            )));
        }
        for reading in &server.memory_limits {
            refuse_nonsense(reading)?;
            let limit = limits.iter().find(|(gpu, _)| *gpu == reading.gpu).and_then(|(_, limit)| *limit);
            if printed(reading.bytes) != printed(limit.map(MemoryLimit::bytes)) {
                return Err(InvalidValue(format!(
                    "its server {} has another memory limit ({}) than servers to come ({}), and a spec has one value for \
                     both: set them alike first",
                    server.pid,
                    shown(reading.bytes),
                    shown(limit.map(MemoryLimit::bytes))
                )));
            }
        }
    }
    let mut spec = DaemonSpec::of(in_force.gpus.clone());
    spec.mode = in_force.mode;
    spec.multi_user = in_force.multi_user;
    spec.mlopart = effective.mlopart_devices().next().is_some();
    if spec.mlopart && limits.iter().any(|(_, limit)| limit.is_some()) {
        return Err(InvalidValue(
            "its clients get MLOPart devices, on which this manager sets no default limit of the daemon: set the default limits to 0 first".into(),
        ));
    }
    spec.defaults = Defaults {
        device_memory_limit: DeviceMemoryLimit::of(&limits),
        active_thread_percentage: Some(percentage).filter(|value| *value != ThreadPercentage::FULL),
        priority: Some(priority).filter(|value| *value != Priority::Normal),
    };
    Ok(AdoptedSpec { spec, notes })
}

fn refuse_limits_by_uuid(in_force: &InForce) -> Result<(), InvalidValue> {
    match in_force.limited_by_uuid.first() {
        None => Ok(()),
        Some(gpu) => Err(InvalidValue(format!(
            "its default memory limit for {gpu} was set under that UUID, and this manager sets and reads limits by \
             ordinal, which MPS keeps apart: set it by ordinal first"
        ))),
    }
}

/// A control daemon that a caller asks to adopt.
#[derive(Debug, Clone, PartialEq)]
pub struct AdoptionCandidate {
    /// Its user.
    pub uid: Option<u32>,
    /// True if the token of another manager is in its environment.
    pub held: bool,
    /// True if that manager served from this one's runtime directory, so its database was lost.
    pub lost: bool,
    /// Reason why it cannot work with the running driver, if its program belongs to another version.
    pub other_driver: Option<String>,
    /// Its mode.
    pub mode: Mode,
    /// Reason why the control program of this manager could not start it again in this mode.
    pub mode_unsupported: Option<String>,
    /// True if it takes clients of several users at once.
    pub multi_user: bool,
    /// Owner of the daemon, which may start it again.
    pub owner: ForeignOwner,
    /// Reason why its pipe directory cannot be reached from the manager.
    pub unreachable: Option<String>,
    /// Its GPUs in its own order, or the reason why they cannot be determined.
    pub gpus: Result<Vec<GpuUuid>, String>,
    /// Its effective state, or the reason why it could not be read.
    pub in_force: Result<InForce, String>,
}

impl AdoptionCandidate {
    /// Returns the spec under which a manager of this user can adopt the daemon, or the reason why it cannot.
    pub fn adopt(
        &self,
        management: Management,
        manager_uid: u32,
        present: &[Gpu],
    ) -> Result<AdoptedSpec, InvalidValue> {
        let gpus = self.reachable_gpus(present)?;
        if management == Management::Observed {
            let reading = self.in_force.as_ref().ok().and_then(|in_force| spec_in_force(in_force).ok());
            let notes = reading.as_ref().map(|reading| reading.notes.clone()).unwrap_or_default();
            return Ok(AdoptedSpec { spec: self.spec_to_observe(gpus, reading), notes });
        }
        self.refuse_to_manage(manager_uid)?;
        let in_force = self.in_force.as_ref().map_err(|reason| {
            InvalidValue(format!("its settings could not be read, so none can be kept: {reason}"))
        })?;
        let mut adopted = spec_in_force(in_force)
            .map_err(|reason| InvalidValue(format!("{reason}, or observe the daemon")))?;
        if self.owner.is_supervised() || self.owner.tenant.is_some() {
            adopted.notes.push(format!(
                "it is {}: whoever keeps it may end it, or start another in its place when this manager stops it. Better: {}, and create \
                 a daemon here",
                self.owner.words(),
                self.owner.remedy(None)
            ));
        }
        Ok(adopted)
    }

    /// Checks that a daemon which this manager started, and then only observed, can be managed again. Its spec has the desired
    /// settings, so it is refused only where they could not be applied.
    pub fn take_back(&self, manager_uid: u32) -> Result<(), InvalidValue> {
        self.refuse_to_manage(manager_uid)?;
        self.in_force.as_ref().map_or(Ok(()), refuse_limits_by_uuid)
    }

    /// Refuses a daemon that this manager can only observe.
    fn refuse_to_manage(&self, manager_uid: u32) -> Result<(), InvalidValue> {
        if self.uid != Some(manager_uid) {
            return Err(InvalidValue(format!(
                "it runs as uid {} and this manager as uid {manager_uid}, and a control daemon takes changes from its own user \
                 only: observe it, or serve with a manager of that user",
                self.uid.map_or_else(|| "unknown".into(), |uid| uid.to_string())
            )));
        }
        if let Some(why) = &self.other_driver {
            return Err(InvalidValue(why.clone()));
        }
        if self.held && self.lost {
            return Err(InvalidValue(
                "a manager of this host started it and has lost its database since: take all such daemons back with \
                 `mps-manager daemon adopt --all-ours`, or observe it"
                    .into(),
            ));
        }
        if self.held {
            return Err(InvalidValue(
                "another mps-manager started it and may be changing it at any time: observe it, or delete it there and \
                 create it here"
                    .into(),
            ));
        }
        match &self.mode_unsupported {
            None => Ok(()),
            Some(reason) => {
                Err(InvalidValue(format!("it could not be started again: {reason}, or observe it")))
            }
        }
    }

    /// Returns a spec under which it is only observed; it has the effective defaults if a spec can express them.
    fn spec_to_observe(&self, gpus: Vec<GpuUuid>, reading: Option<AdoptedSpec>) -> DaemonSpec {
        DaemonSpec {
            mode: self.mode,
            multi_user: self.multi_user,
            management: Management::Observed,
            defaults: reading.map(|reading| reading.spec.defaults).unwrap_or_default(),
            ..DaemonSpec::of(gpus)
        }
    }

    fn reachable_gpus(&self, present: &[Gpu]) -> Result<Vec<GpuUuid>, InvalidValue> {
        if let Some(reason) = &self.unreachable {
            return Err(InvalidValue(format!("{reason}, so it cannot be queried")));
        }
        let gpus = self.gpus.clone().map_err(InvalidValue)?;
        let index = |uuid: &GpuUuid| present.iter().find(|gpu| gpu.uuid == *uuid).map(|gpu| gpu.index);
        if gpus.is_empty() {
            return Err(InvalidValue("its CUDA_VISIBLE_DEVICES leaves it no GPU of this host".into()));
        }
        if !gpus.is_sorted_by_key(index) {
            return Err(InvalidValue(
                "it numbers its GPUs in another order than that of PCI, which a spec cannot hold: start it with its GPUs in \
                 PCI order"
                    .into(),
            ));
        }
        if let Some(mig) = present.iter().find(|gpu| gpu.mig_enabled && gpus.contains(&gpu.uuid)) {
            return Err(InvalidValue(format!(
                "its GPU {} is in MIG mode, where MPS serves its instances: its CUDA_VISIBLE_DEVICES should name one of them",
                mig.uuid
            )));
        }
        Ok(gpus)
    }
}

/// Returns the default limit of each GPU. Fails if one is not known exactly, since writing the value that the getter prints
/// would change it.
fn default_limits(
    effective: &Effective,
    notes: &mut Vec<String>,
) -> Result<Vec<(GpuUuid, Option<MemoryLimit>)>, InvalidValue> {
    let mut limits = Vec::new();
    for (ordinal, reading) in effective.default_memory_limits.iter().enumerate() {
        refuse_nonsense(reading)?;
        // A server that was given the default logs it exactly.
        let mut logged = effective.servers.iter().filter_map(|server| server.memory_limits.get(ordinal));
        let logged = logged.rfind(|limit| limit.exact && printed(limit.bytes) == printed(reading.bytes));
        let (bytes, exact) = match logged {
            Some(limit) => (limit.bytes, true),
            None => (reading.bytes, reading.exact),
        };
        if !exact {
            return Err(InvalidValue(format!(
                "its default memory limit for {} reads {}: the daemon prints whole GiB, rounded down, and no server of its own has \
                 logged it exactly, so it may be up to 1 GiB more, which keeping what is printed would take away: start a \
                 server (start_server -uid) or connect a client first, and set the limit again if it still is not known",
                reading.gpu,
                shown(bytes)
            )));
        }
        limits.push((reading.gpu.clone(), bytes.map(MemoryLimit::from_bytes).transpose()?));
        if let Some(logged) = logged.filter(|_| !reading.exact) {
            notes.push(format!(
                "its default memory limit for {} reads {}: the daemon prints whole GiB, rounded down, and it is taken for \
                 the {} that its server says it was given",
                reading.gpu,
                shown(reading.bytes),
                shown(logged.bytes)
            ));
        }
    }
    Ok(limits)
}

fn refuse_nonsense(reading: &MemoryReading) -> Result<(), InvalidValue> {
    match &reading.unreadable {
        None => Ok(()),
        Some(text) => Err(InvalidValue(format!(
            "its memory limit for {} reads {text}, which MPS makes of a value that it cannot read and no spec can hold: set a \
             real one first",
            reading.gpu
        ))),
    }
}

/// Returns the value that the getter prints for a limit: whole GiB from 1 GiB on.
fn printed(bytes: Option<u64>) -> Option<u64> {
    const GIB: u64 = 1024 * MIB;
    bytes.map(|bytes| if bytes < GIB { bytes } else { bytes / GIB * GIB })
}

fn shown(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "none".to_owned(), |bytes| Bytes(bytes).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::Server;
    use crate::daemon::ServerStatus;
    use crate::testing::h200;

    #[test]
    fn visible_devices_are_read_as_cuda_reads_them() {
        let present = [h200(0), h200(1)];
        let (zero, one) = (present[0].uuid.clone(), present[1].uuid.clone());
        let visible = |variable: Option<&str>| visible_gpus(variable, false, &present).expect("one kind");
        assert_eq!(visible(None), [zero.clone(), one.clone()]);
        assert_eq!(visible(Some("1")), std::slice::from_ref(&one));
        assert_eq!(visible(Some("1, 0")), [one.clone(), zero.clone()]);
        assert_eq!(visible(Some(one.as_str())), std::slice::from_ref(&one));
        assert_eq!(visible(Some("1,7,0")), [one], "it ends at the first that is none");
        for nothing in ["", "-1", "7", "0,0", "GPU-", "banana"] {
            assert_eq!(visible(Some(nothing)), [] as [GpuUuid; 0], "{nothing}");
        }
    }

    #[test]
    fn gpu_index_is_ambiguous_among_mixed_models() {
        let mut present = [h200(0), h200(1)];
        present[1].name = "NVIDIA A100".into();
        assert!(visible_gpus(Some("0"), false, &present).is_err());
        assert_eq!(visible_gpus(Some("0"), true, &present), Ok(vec![present[0].uuid.clone()]));
        let by_name = present[1].uuid.to_string();
        assert_eq!(visible_gpus(Some(&by_name), false, &present), Ok(vec![present[1].uuid.clone()]));
    }

    fn reading(gpu: u32, bytes: Option<u64>, exact: bool) -> MemoryReading {
        MemoryReading { gpu: h200(gpu).uuid, bytes, exact, unreadable: None, in_server_log: None }
    }

    fn in_force(defaults: Vec<MemoryReading>, server: Option<(u16, Vec<MemoryReading>)>) -> InForce {
        let tenths = |tenths| ThreadPercentage::from_tenths(tenths).expect("a percentage");
        let servers = server.map(|(percentage, memory_limits)| Server {
            mlopart_devices: None,
            pid: 7,
            start_time: 1,
            uid: Some(0),
            status: ServerStatus::Active,
            active_thread_percentage: Some(tenths(percentage)),
            memory_limits,
            held_by: Vec::new(),
        });
        InForce {
            gpus: defaults.iter().map(|reading| reading.gpu.clone()).collect(),
            mode: Mode::Shared,
            multi_user: true,
            effective: Effective {
                observed_at: 0,
                control_processes: 1,
                default_active_thread_percentage: Some(tenths(400)),
                default_priority: Some(Priority::BelowNormal),
                default_memory_limits: defaults,
                servers: servers.into_iter().collect(),
                partitions: None,
            },
            limited_by_uuid: Vec::new(),
        }
    }

    #[test]
    fn adopted_spec_holds_effective_settings() {
        let settings = in_force(
            vec![reading(0, Some(1 << 30), false)],
            Some((400, vec![reading(0, Some(1536 * MIB), true)])),
        );
        let AdoptedSpec { spec, notes } = spec_in_force(&settings).expect("a spec can hold it");
        assert!(spec.multi_user);
        assert!(notes[0].contains("reads 1 GiB") && notes[0].contains("the 1.5 GiB that"), "{notes:?}");
        let limit = MemoryLimit::from_mib(1536).expect("a limit");
        assert_eq!(spec.defaults.device_memory_limit, Some(limit.into()), "as the server logged it");
        assert_eq!(spec.defaults.active_thread_percentage.map(ThreadPercentage::tenths), Some(400));
        assert_eq!(spec.defaults.priority, Some(Priority::BelowNormal));
    }

    #[test]
    fn only_exactly_known_limits_are_adopted() {
        let limited = |bytes, exact| in_force(vec![reading(0, Some(bytes), exact)], None);
        let error = spec_in_force(&limited(4 << 30, false)).expect_err("up to 1 GiB more").to_string();
        for words in ["reads 4 GiB", "rounded down", "connect a client"] {
            assert!(error.contains(words), "{error}");
        }
        let read = spec_in_force(&limited(900 * MIB, true)).expect("a spec can hold it");
        let limit = |mib| MemoryLimit::from_mib(mib).expect("a limit");
        assert_eq!(read.spec.defaults.device_memory_limit, Some(limit(900).into()));
        assert!(read.notes.is_empty(), "{:?}", read.notes);
    }

    #[test]
    fn limits_of_several_gpus_are_adopted() {
        let limit = |mib| MemoryLimit::from_mib(mib).expect("a limit");
        let limits = vec![reading(0, Some(900 * MIB), true), reading(1, None, true)];
        let spec =
            spec_in_force(&in_force(limits.clone(), Some((400, limits)))).expect("a spec can hold it").spec;
        let first = DeviceMemoryLimit::PerGpu(vec![(h200(0).uuid, limit(900))]);
        assert_eq!(spec.defaults.device_memory_limit, Some(first));
    }

    #[test]
    fn other_users_daemon_is_only_observed() {
        let present = [h200(0), h200(1)];
        let settings = in_force(vec![reading(0, None, true)], None);
        let good = AdoptionCandidate {
            owner: ForeignOwner::default(),
            uid: Some(0),
            held: false,
            lost: false,
            mode: Mode::Shared,
            other_driver: None,
            mode_unsupported: None,
            multi_user: true,
            unreachable: None,
            gpus: Ok(settings.gpus.clone()),
            in_force: Ok(settings),
        };
        let managed = good.adopt(Management::Managed, 0, &present).expect("all agrees").spec;
        assert_eq!(managed.management, Management::Managed);
        for (candidate, message) in [
            (AdoptionCandidate { uid: Some(1000), ..good.clone() }, "runs as uid 1000"),
            (AdoptionCandidate { uid: None, ..good.clone() }, "uid unknown"),
            (AdoptionCandidate { held: true, ..good.clone() }, "another mps-manager"),
            (AdoptionCandidate { held: true, lost: true, ..good.clone() }, "adopt --all-ours"),
            (
                AdoptionCandidate { other_driver: Some("of driver 535.261.03".into()), ..good.clone() },
                "of driver 535.261.03",
            ),
            (
                AdoptionCandidate { mode_unsupported: Some("needs 13010".into()), ..good.clone() },
                "needs 13010",
            ),
            (AdoptionCandidate { in_force: Err("it hangs".into()), ..good.clone() }, "it hangs"),
        ] {
            let error = candidate.adopt(Management::Managed, 0, &present).expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
            let observed = candidate.adopt(Management::Observed, 0, &present).expect("it can be observed");
            assert_eq!(observed.spec.management, Management::Observed);
        }
        let (zero, one) = (present[0].uuid.clone(), present[1].uuid.clone());
        for (candidate, message) in [
            (AdoptionCandidate { unreachable: Some("elsewhere".into()), ..good.clone() }, "elsewhere"),
            (AdoptionCandidate { gpus: Err("may not be read".into()), ..good.clone() }, "may not be read"),
            (AdoptionCandidate { gpus: Ok(vec![]), ..good.clone() }, "no GPU of this host"),
            (AdoptionCandidate { gpus: Ok(vec![one, zero]), ..good }, "another order"),
        ] {
            for management in [Management::Managed, Management::Observed] {
                let error = candidate.adopt(management, 0, &present).expect_err(message).to_string();
                assert!(error.contains(message), "{error}");
            }
        }
    }

    #[test]
    fn unrepresentable_settings_are_refused_with_reason() {
        let nonsense = MemoryReading { unreadable: Some("17179869183G".into()), ..reading(0, None, false) };
        let partitioned = InForce { mode: Mode::Static, ..in_force(vec![reading(0, None, true)], None) };
        let by_uuid =
            InForce { limited_by_uuid: vec![h200(0).uuid], ..in_force(vec![reading(0, None, true)], None) };
        for (settings, message) in [
            (in_force(vec![nonsense.clone()], None), "17179869183G"),
            (
                in_force(vec![reading(0, None, true)], Some((1000, vec![reading(0, None, true)]))),
                "another active thread percentage (100.0) than servers to come (40.0)",
            ),
            (
                in_force(vec![reading(0, None, true)], Some((400, vec![reading(0, Some(2 << 30), true)]))),
                "another memory limit (2 GiB) than servers to come (none)",
            ),
            (in_force(vec![reading(0, None, true)], Some((400, vec![nonsense]))), "17179869183G"),
            (by_uuid, "under that UUID"),
            (partitioned, "is 40.0, which MPS ignores in static mode"),
        ] {
            let error = spec_in_force(&settings).expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
