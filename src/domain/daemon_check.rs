//! Checks of a daemon's spec that hold on any host.

use super::InvalidValue;
use super::daemon::{AdmissionMode, DEFAULT_LIMIT, DaemonSpec, Mode};
use super::gpu::{Gpu, full_name, lacks_mlopart};
use super::{DeviceMemoryLimit, GpuUuid};

/// Most users that may be added to those of tenants: some file systems keep an ACL in one block.
const MOST_USERS: usize = 256;
/// Paths of fields that are refused in combination with others.
const DEFAULT_PERCENTAGE: &str = "defaults/active_thread_percentage";
const STRATEGY: &str = "provisioning/strategy";

impl DaemonSpec {
    /// Refuses a spec that is invalid on any host; an error comes with its field. `host` has the GPUs, for their names in messages.
    pub fn check(&self, host: &[Gpu]) -> Result<(), (&'static str, InvalidValue)> {
        if self.users.len() > MOST_USERS {
            let given = self.users.len();
            let message = format!(
                "{given} users are more than {MOST_USERS}, which an ACL holds on every file system: set any_user"
            );
            return Err(("users", InvalidValue(message)));
        }
        if self.gpus.is_empty() {
            return Err(("gpus", InvalidValue("a daemon needs at least one GPU: name one in gpus".into())));
        }
        let mut named = std::collections::BTreeSet::new();
        if let Some(twice) = self.gpus.iter().find(|uuid| !named.insert(*uuid)) {
            let text = format!("{} is named twice: name each GPU once", full_name(twice, host));
            return Err(("gpus", InvalidValue(text)));
        }
        if let Some(beyond) =
            self.defaults.device_memory_limit.as_ref().and_then(|limit| limit.names_beyond(&self.gpus))
        {
            let offered: Vec<String> = self.gpus.iter().map(|gpu| full_name(gpu, host)).collect();
            let text = format!(
                "the default limit names {}, which is not among the daemon's GPUs: choose among {}",
                full_name(beyond, host),
                offered.join(", ")
            );
            return Err((DEFAULT_LIMIT, InvalidValue(text)));
        }
        self.check_instances()?;
        self.check_mlopart(host)?;
        // MPS ignores thread percentages in static mode.
        if let (Mode::Static, Some(percentage)) = (self.mode, self.defaults.active_thread_percentage) {
            let text = format!(
                "in static mode MPS ignores thread percentages ({percentage} given), and a client has the SMs of its \
                 partition: leave it out, or set mode to shared"
            );
            return Err((DEFAULT_PERCENTAGE, InvalidValue(text)));
        }
        self.check_provisioning()?;
        super::compute_mode::check(self.compute_mode).map_err(|reason| ("compute_mode", reason))
    }

    /// Refuses what a daemon with a MIG instance cannot have.
    fn check_instances(&self) -> Result<(), (&'static str, InvalidValue)> {
        let Some(instance) = self.gpus.iter().find(|gpu| gpu.is_mig()) else { return Ok(()) };
        let refused =
            |field, text: &str| Err((field, InvalidValue(format!("{instance} is a MIG instance: {text}"))));
        if self.gpus.len() > 1 {
            let text = "a CUDA process, and so an MPS server, sees one alone (NVIDIA's MIG user guide): give each device a daemon of its own";
            return refused("gpus", text);
        }
        if self.mode == Mode::Static {
            let text = "NVIDIA documents static SM partitions for whole GPUs only: set mode to shared, and give shares by percentage or by \
                        sms";
            return refused("mode", text);
        }
        if self.compute_mode.is_some() {
            let text = "in MIG mode the compute mode is default and cannot be changed (NVML's documentation): leave compute_mode out. \
                        Processes outside MPS are reported as bypasses and not kept out";
            return refused("compute_mode", text);
        }
        Ok(())
    }

    /// Refuses what a daemon with MLOPart devices cannot have.
    fn check_mlopart(&self, host: &[Gpu]) -> Result<(), (&'static str, InvalidValue)> {
        if let Some(device) = self.gpus.iter().find(|gpu| gpu.mlo().is_some()) {
            let text = format!(
                "{device} is an MLOPart device: name its GPU, and set mlopart, with which tenants name devices"
            );
            return Err(("gpus", InvalidValue(text)));
        }
        if !self.mlopart {
            let mut limited = self.defaults.device_memory_limit.iter().flat_map(DeviceMemoryLimit::gpus);
            let Some(device) = limited.find(|gpu| gpu.mlo().is_some()) else { return Ok(()) };
            let text = format!(
                "{device} is an MLOPart device, and its clients get whole GPUs: name the GPU, or set mlopart"
            );
            return Err((DEFAULT_LIMIT, InvalidValue(text)));
        }
        let refused = |field, text: &str| Err((field, InvalidValue(text.to_owned())));
        if self.gpus.iter().any(GpuUuid::is_mig) {
            return refused("mlopart", "a MIG instance has no MLOPart devices: leave mlopart out");
        }
        if self.mode == Mode::Static {
            return refused(
                "mlopart",
                "in static mode MPS ignores -mlopart: leave mlopart out, or set mode to shared",
            );
        }
        if self.layout.is_some() {
            return refused(
                "mlopart",
                "a layout gives SMs of whole GPUs: leave mlopart out, or delete the daemon's layout first",
            );
        }
        if self.admission == AdmissionMode::Reserved {
            let text = "the MLOPart devices of a GPU share its memory, so none of it can be reserved: set admission to open";
            return refused("admission", text);
        }
        let mut own = host.iter().filter(|gpu| self.gpus.contains(&gpu.uuid));
        match own.find_map(lacks_mlopart) {
            Some(why) => refused("mlopart", &format!("{why}: leave mlopart out")),
            None => Ok(()),
        }
    }

    /// Refuses a strategy beside something else that gives tenants their SMs.
    fn check_provisioning(&self) -> Result<(), (&'static str, InvalidValue)> {
        self.provisioning.check()?;
        if !self.provisioning.is_active() {
            return Ok(());
        }
        let strategy = self.provisioning.strategy.as_str();
        if self.mode == Mode::Static {
            let text = format!(
                "in static mode MPS ignores thread percentages, which strategy {strategy} gives, and a client has the SMs of its partition: \
                 set the strategy to none, or mode to shared"
            );
            return Err((STRATEGY, InvalidValue(text)));
        }
        if let Some(percentage) = self.defaults.active_thread_percentage {
            let text = format!(
                "strategy {strategy} gives a percentage to each tenant that states none, and so does the default of {percentage} %: leave one \
                 of them out"
            );
            return Err((DEFAULT_PERCENTAGE, InvalidValue(text)));
        }
        if let Some(layout) = &self.layout {
            let text = format!(
                "layout {} gives the tenants of this daemon their SMs, and strategy {strategy} would give them others: set the strategy to \
                 none, or delete the daemon's layout first",
                layout.name
            );
            return Err((STRATEGY, InvalidValue(text)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::GpuRef;
    use crate::testing::h200;

    #[test]
    fn unlisted_mlopart_device_is_no_daemons() {
        let host = [Gpu { compute_capability: None, ..h200(0) }];
        let spec = DaemonSpec::of(vec![GpuRef("0/mlo0".into())]).resolve_gpus(&host).expect("a device");
        let (field, reason) = spec.check(&host).expect_err("no GPU");
        assert!(field == "gpus" && reason.to_string().contains("name its GPU, and set mlopart"), "{reason}");
    }

    #[test]
    fn strategy_excludes_other_sources_of_shares() {
        for (extra, field) in [
            (r#""mode":"static","provisioning":{"strategy":"uniform"}"#, STRATEGY),
            (
                r#""defaults":{"active_thread_percentage":50},"provisioning":{"strategy":"uniform"}"#,
                DEFAULT_PERCENTAGE,
            ),
            (
                r#""layout":{"name":"l","version":1,"gpu_map":{}},"provisioning":{"strategy":"weighted"}"#,
                STRATEGY,
            ),
            (r#""provisioning":{"expected_clients":61}"#, "provisioning/expected_clients"),
            (r#""defaults":{"device_memory_limit":{"1":"1G"}}"#, DEFAULT_LIMIT),
        ] {
            let spec: DaemonSpec<GpuRef> =
                serde_json::from_str(&format!("{{\"gpus\":[\"0\"],{extra}}}")).expect(extra);
            let host = [h200(0), h200(1)];
            let spec = spec.resolve_gpus(&host).expect("known GPUs");
            let (refused, reason) = spec.check(&host).expect_err(extra);
            assert_eq!(refused, field, "{extra}");
            let text = format!("names GPU 1 ({}), which", host[1].uuid);
            assert_eq!(field == DEFAULT_LIMIT, reason.to_string().contains(&text), "{reason}");
        }
    }
}
