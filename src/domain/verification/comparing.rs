//! Comparison of each setting as configured with what the client saw.

use super::{ComparisonVerdict, SettingComparison, SettingValue, VerifiedSetting as Setting};
use crate::memory::{Bytes, MIB};
use crate::resolution::context_bytes;
use crate::{GpuUuid, Priority};

/// Tolerance of memory around the value that a client is expected to see, in bytes.
///
/// A context takes about 27.5 MiB and 3.7 MiB for each SM, which fits the measurements on an H200 within 2 MiB (FACTS.md,
/// "Limits"). It takes another 2 MiB if the daemon has several GPUs, and the driver hands memory out in blocks of 2 MiB. This leaves
/// room for other versions of the driver, and is far below any limit under which a client can start beside its context.
pub const TOLERANCE: u64 = 64 * MIB;

/// Values that a client of the tenant should see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expectation {
    /// Its GPUs.
    pub gpus: Vec<ExpectedGpu>,
    /// Its priority.
    pub priority: Priority,
}

/// Values that a client should see of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedGpu {
    /// The GPU.
    pub uuid: GpuUuid,
    /// SMs; `None` if their number is not known.
    pub sms: Option<u32>,
    /// True if the size of contexts and the SMs of percentages were measured on this kind of GPU.
    pub is_measured: bool,
    /// Its memory limit there; `None` is the whole GPU.
    pub limit: Option<u64>,
    /// The least memory of the GPU that was free while the client ran, by the driver; `None` if it is not known.
    pub free: Option<u64>,
    /// The SMs of the whole GPU if a partition decides how many the client sees: no formula gives the size of a context there. On an L40S
    /// it was 426 MiB in partitions of 4 and of 8 SMs (recording 27), so it is assumed to be between nothing and that of the whole GPU.
    pub partition_of: Option<u32>,
}

/// Values that the client saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientSight {
    /// True if it was a client of MPS; `None` if the driver is too old to report it.
    pub mps: Option<bool>,
    /// The GPUs that it saw.
    pub gpus: Vec<SeenGpu>,
    /// Reason why it could not see all GPUs, if it could not.
    pub failure: Option<String>,
}

/// Values that the client saw of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGpu {
    /// The GPU.
    pub uuid: GpuUuid,
    /// SMs.
    pub sms: u32,
    /// Memory of the whole device in bytes, as CUDA reports it.
    pub total: u64,
    /// Free memory in bytes, after its context was allocated.
    pub free: u64,
    /// The largest single allocation that succeeded, up to the limit, in bytes; `None` if it did not try.
    pub largest: Option<u64>,
}

/// Compares all settings.
pub fn compare(expected: &Expectation, sight: &ClientSight) -> Vec<SettingComparison> {
    let mut compared = vec![mps(sight), gpus(expected, sight)];
    for wanted in &expected.gpus {
        if let Some(gpu) = sight.gpus.iter().find(|gpu| gpu.uuid == wanted.uuid) {
            compared.push(sms(wanted, gpu));
            compared.push(memory(wanted, gpu));
            compared.extend(wanted.limit.map(|limit| allocation(wanted, limit, gpu)));
        }
    }
    let why = "no client can see its priority: it is a hint to the GPU";
    let priority = SettingValue::Priority(expected.priority);
    compared.push(of(Setting::Priority, None, Some(priority), None).not_seen(why));
    compared
}

fn of(
    setting: Setting,
    gpu: Option<&GpuUuid>,
    expected: Option<SettingValue>,
    seen: Option<SettingValue>,
) -> SettingComparison {
    SettingComparison {
        setting,
        gpu: gpu.cloned(),
        expected,
        seen,
        verdict: ComparisonVerdict::Holds,
        reason: None,
        remedy: None,
    }
}

impl SettingComparison {
    fn not_seen(self, why: &str) -> Self {
        Self { verdict: ComparisonVerdict::NotSeen, reason: Some(why.to_owned()), ..self }
    }

    fn differs(self, why: impl Into<String>, remedy: &str) -> Self {
        let (reason, remedy) = (Some(why.into()), Some(remedy.to_owned()));
        Self { verdict: ComparisonVerdict::Differs, reason, remedy, ..self }
    }
}

const RESTART: &str = "Check the daemon's page for settings that others changed. A restart of the daemon sets all of them again; a \
                       tenant asks the host's operator for it.";

fn mps(sight: &ClientSight) -> SettingComparison {
    let compared = of(Setting::Mps, None, Some(SettingValue::Flag(true)), sight.mps.map(SettingValue::Flag));
    match sight.mps {
        Some(true) => compared,
        None => compared.not_seen("the driver does not report whether a process is a client of MPS"),
        Some(false) => compared.differs(
            "the process ran outside MPS, where no limit counts: it did not find the daemon's sockets",
            "Check that the tenant's user reaches the daemon's pipe directory, and restart the daemon.",
        ),
    }
}

fn gpus(expected: &Expectation, sight: &ClientSight) -> SettingComparison {
    let list = |mut uuids: Vec<GpuUuid>| {
        uuids.sort_unstable();
        SettingValue::Gpus(uuids)
    };
    let wanted = list(expected.gpus.iter().map(|gpu| gpu.uuid.clone()).collect());
    let got = list(sight.gpus.iter().map(|gpu| gpu.uuid.clone()).collect());
    let same = wanted == got;
    let compared = of(Setting::Gpus, None, Some(wanted), Some(got));
    match &sight.failure {
        _ if same => compared,
        Some(failure) => compared.differs(
            format!("the client could not use all of them: {failure}"),
            "Check the GPU that it did not see, and restart the daemon once that GPU works.",
        ),
        None => compared.differs(
            "the client sees other GPUs than the tenant has",
            "Restart the daemon: its server gives out the GPUs that it was started with.",
        ),
    }
}

fn sms(expected: &ExpectedGpu, gpu: &SeenGpu) -> SettingComparison {
    let number = |sms: u32| SettingValue::Number(sms.into());
    let compared = of(Setting::Sms, Some(&expected.uuid), expected.sms.map(number), Some(number(gpu.sms)));
    let Some(wanted) = expected.sms else {
        return compared.not_seen("it is not known how many SMs it should see here");
    };
    if wanted == gpu.sms {
        return compared;
    }
    let why = match (wanted < gpu.sms, expected.is_measured) {
        _ if expected.uuid.mlo().is_some() => {
            "the client has other SMs than that share of its MLOPart device: it is documented nowhere what a percentage is of there, or the share \
             is not in force"
        }
        (true, _) => "the client has more SMs than the tenant's share: the share is not in force",
        (false, true) => {
            "the client has fewer SMs than the tenant's share: its server holds a smaller thread percentage, or another partition"
        }
        (false, false) => {
            "the client has fewer SMs than predicted: its server holds a smaller share, or this kind of GPU, which was not measured, \
             gives other numbers"
        }
    };
    compared.differs(why, RESTART)
}

/// Returns the tolerance of memory on a GPU; if contexts were not measured on its kind, it is larger by a whole context.
fn tolerance(expected: &ExpectedGpu, context: u64) -> u64 {
    TOLERANCE + if expected.is_measured { 0 } else { context }
}

/// Returns the least and the most memory of a context.
fn contexts(expected: &ExpectedGpu, gpu: &SeenGpu) -> (u64, u64) {
    // It is computed from the SMs that the client has, not from those that it should have: a difference in SMs is reported on its own.
    let context = context_bytes(gpu.sms);
    expected.partition_of.map_or((context, context), |total| (0, context_bytes(total).max(context)))
}

fn memory(expected: &ExpectedGpu, gpu: &SeenGpu) -> SettingComparison {
    let (context, most_context) = contexts(expected, gpu);
    let tolerance = tolerance(expected, most_context);
    let left = |of: u64| of.saturating_sub(context);
    let wanted = expected.limit.or(expected.free).map(left);
    let compared_with = |wanted: Option<u64>| {
        let (wanted, free) = (wanted.map(SettingValue::Number), SettingValue::Number(gpu.free));
        of(Setting::DeviceMemoryLimit, Some(&expected.uuid), wanted, Some(free))
    };
    let compared = compared_with(wanted);
    if let Some(limit) = expected.limit
        && gpu.free > left(limit).saturating_add(tolerance)
    {
        return compared.differs(
            format!(
                "the client may take more than the limit of {} leaves it: the limit is not in force",
                Bytes(limit)
            ),
            RESTART,
        );
    }
    let Some(free) = expected.free else {
        let spread = tolerance + (most_context - context);
        let near = wanted.is_some_and(|wanted| gpu.free.saturating_add(spread) >= wanted);
        return if near {
            compared
        } else {
            compared.not_seen("the driver does not report what is free on the GPU, so it is not known whether a limit is smaller")
        };
    };
    let least = expected.limit.map_or(free, |limit| limit.min(free));
    let least = least.saturating_sub(most_context).saturating_sub(tolerance);
    if gpu.free < least {
        return compared.differs(
            "the client may take less than it should: a smaller limit than the tenant's is in force",
            RESTART,
        );
    }
    if expected.limit.is_some_and(|limit| free < limit) {
        let why = format!(
            "the GPU has {} free, less than the limit: a full GPU hides whether it is in force",
            Bytes(free)
        );
        return compared.not_seen(&why);
    }
    compared
}

fn allocation(expected: &ExpectedGpu, limit: u64, gpu: &SeenGpu) -> SettingComparison {
    let (context, most_context) = contexts(expected, gpu);
    let most = limit.saturating_sub(context);
    let (wanted, largest) = (SettingValue::Number(most), gpu.largest.map(SettingValue::Number));
    let compared = of(Setting::LargestAllocation, Some(&expected.uuid), Some(wanted), largest);
    match gpu.largest {
        None => compared.not_seen(
            "none was tried: all processes that the tenant may have are there, the GPU has no more free than others may need, or the driver \
             does not report how much is free",
        ),
        Some(largest) if largest > most.saturating_add(tolerance(expected, most_context)) => compared.differs(
            format!("an allocation went through that the limit of {} forbids: the limit is not in force", Bytes(limit)),
            RESTART,
        ),
        Some(_) if limit > gpu.total => compared.not_seen(&format!(
            "the device has {} in all, less than the limit: nothing shows whether it is in force",
            Bytes(gpu.total)
        )),
        Some(_) => compared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::h200;

    const GIB: u64 = 1 << 30;

    fn wanted() -> Expectation {
        let gpu = ExpectedGpu {
            uuid: h200(0).uuid,
            sms: Some(32),
            is_measured: true,
            limit: Some(4 * GIB),
            free: Some(100 * GIB),
            partition_of: None,
        };
        Expectation { gpus: vec![gpu], priority: Priority::Normal }
    }

    fn client_sight() -> ClientSight {
        let free = 4 * GIB - context_bytes(32);
        let gpu =
            SeenGpu { uuid: h200(0).uuid, sms: 32, total: 150_109_880_320, free, largest: Some(free - MIB) };
        ClientSight { mps: Some(true), gpus: vec![gpu], failure: None }
    }

    fn verdicts(expected: &Expectation, sight: &ClientSight) -> Vec<(Setting, ComparisonVerdict)> {
        let all = compare(expected, sight);
        for comparison in &all {
            assert_eq!(
                comparison.verdict == ComparisonVerdict::Differs,
                comparison.remedy.is_some(),
                "{comparison:?}"
            );
            assert_eq!(
                comparison.verdict == ComparisonVerdict::Holds,
                comparison.reason.is_none(),
                "{comparison:?}"
            );
        }
        all.into_iter().map(|comparison| (comparison.setting, comparison.verdict)).collect()
    }

    fn differing(expected: &Expectation, sight: &ClientSight) -> Vec<Setting> {
        let all = verdicts(expected, sight).into_iter();
        all.filter(|(_, verdict)| *verdict == ComparisonVerdict::Differs)
            .map(|(setting, _)| setting)
            .collect()
    }

    fn unseen(expected: &Expectation, sight: &ClientSight) -> Vec<Setting> {
        let all = verdicts(expected, sight).into_iter();
        all.filter(|(_, verdict)| *verdict == ComparisonVerdict::NotSeen)
            .map(|(setting, _)| setting)
            .collect()
    }

    #[test]
    fn matching_settings_hold_except_unseen_priority() {
        assert_eq!(differing(&wanted(), &client_sight()), []);
        assert_eq!(unseen(&wanted(), &client_sight()), [Setting::Priority]);
        assert_eq!(verdicts(&wanted(), &client_sight()).len(), 6);
    }

    #[test]
    fn context_in_a_partition_is_not_computed() {
        // An L40S as recorded: a limit of 1 GiB left 598.69 MiB of it at 4 SMs.
        let mut expected = wanted();
        (expected.gpus[0].sms, expected.gpus[0].limit) = (Some(4), Some(GIB));
        (expected.gpus[0].is_measured, expected.gpus[0].partition_of) = (false, Some(142));
        let mut sight = client_sight();
        (sight.gpus[0].sms, sight.gpus[0].free, sight.gpus[0].largest) = (4, 627_771_309, Some(600 * MIB));
        assert_eq!(differing(&expected, &sight), []);
        expected.gpus[0].limit = Some(3 * GIB);
        assert_eq!(differing(&expected, &sight), [Setting::DeviceMemoryLimit], "a smaller limit is in force");
        expected.gpus[0].limit = Some(GIB / 4);
        let too_much = [Setting::DeviceMemoryLimit, Setting::LargestAllocation];
        expected.gpus[0].is_measured = true;
        assert_eq!(differing(&expected, &sight), too_much, "no limit is");
    }

    #[test]
    fn each_ineffective_setting_is_named() {
        let with = |change: &dyn Fn(&mut SeenGpu)| {
            let mut sight = client_sight();
            change(&mut sight.gpus[0]);
            differing(&wanted(), &sight)
        };
        assert_eq!(with(&|gpu| gpu.free = 100 * GIB), [Setting::DeviceMemoryLimit], "no limit at all");
        assert_eq!(with(&|gpu| gpu.free = GIB), [Setting::DeviceMemoryLimit], "a smaller one");
        assert_eq!(with(&|gpu| gpu.largest = Some(4 * GIB)), [Setting::LargestAllocation]);
        let all = |gpu: &mut SeenGpu| {
            let left = 4 * GIB - context_bytes(132);
            (gpu.sms, gpu.free, gpu.largest) = (132, left, Some(left));
        };
        assert_eq!(with(&all), [Setting::Sms], "its larger context is no fault of the limit");
        let outside = ClientSight { mps: Some(false), ..client_sight() };
        assert_eq!(differing(&wanted(), &outside), [Setting::Mps]);
        let other_gpu = SeenGpu { uuid: h200(1).uuid, ..client_sight().gpus[0].clone() };
        assert_eq!(
            differing(&wanted(), &ClientSight { gpus: vec![other_gpu], ..client_sight() }),
            [Setting::Gpus]
        );
    }

    #[test]
    fn unverifiable_settings_are_reported_unseen() {
        let mut expected = wanted();
        expected.gpus[0].sms = None;
        assert_eq!(unseen(&expected, &client_sight()), [Setting::Sms, Setting::Priority]);
        let mut full = wanted();
        full.gpus[0].free = Some(GIB);
        let mut sight = client_sight();
        (sight.gpus[0].free, sight.gpus[0].largest) = (GIB - context_bytes(32), None);
        let hidden = [Setting::DeviceMemoryLimit, Setting::LargestAllocation, Setting::Priority];
        assert_eq!(unseen(&full, &sight), hidden, "others have nearly all of the GPU");
        full.gpus[0].free = None;
        assert_eq!(unseen(&full, &sight), hidden, "nobody knows what they have");
        assert_eq!(unseen(&wanted(), &ClientSight { mps: None, ..client_sight() })[0], Setting::Mps);
        let mut beyond = wanted();
        (beyond.gpus[0].limit, beyond.gpus[0].free) = (Some(200 * GIB), None);
        assert_eq!(unseen(&beyond, &client_sight()), hidden, "no device has as much");
    }

    #[test]
    fn unlimited_client_sees_the_whole_gpu() {
        let mut expected = wanted();
        expected.gpus[0].limit = None;
        let mut sight = client_sight();
        sight.gpus[0].largest = None;
        sight.gpus[0].free = 100 * GIB - context_bytes(32);
        assert_eq!(differing(&expected, &sight), []);
        sight.gpus[0].free = 8 * GIB;
        assert_eq!(differing(&expected, &sight), [Setting::DeviceMemoryLimit], "another program limits it");
    }

    #[test]
    fn unmeasured_gpu_gets_context_sized_tolerance() {
        let mut expected = wanted();
        let mut sight = client_sight();
        sight.gpus[0].free -= TOLERANCE + 32 * MIB;
        assert_eq!(differing(&expected, &sight), [Setting::DeviceMemoryLimit]);
        expected.gpus[0].is_measured = false;
        assert_eq!(differing(&expected, &sight), []);
    }
}
