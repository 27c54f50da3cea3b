//! Thread percentages, one decision at a time, with CUDA clients whose SMs follow a rule.

use super::*;
use crate::domain::condition::ConditionReason;
use crate::domain::daemon::DaemonSpec;
use crate::domain::gpu::Gpu;
use crate::domain::layout::active::{
    ActiveLayout, DesiredLayout, DesiredShares, PartitionPolicy, ProvenLayout,
};
use crate::domain::layout::percentage::shares;
use crate::domain::layout::{GpuMap, Layout};
use crate::domain::percentage::sms_for;
use crate::domain::plan;
use crate::domain::{DaemonName, LayoutName};
use crate::gpu::report::{CudaDevice, Failure, Priorities};
use crate::supervisor::reconcile::layout::percentages::{RETRIES, RETRY_MS};
use crate::testing::h200;

/// Daemon whose clients see the SMs of the formula, or half of the GPU.
pub(super) struct Clients;

impl Daemon for Clients {
    fn desired(&self, generation: i64) -> Desired {
        desired(&h200(0), generation, &[7, 3], None)
    }

    fn start(&mut self) {}

    fn listed(&self) -> Option<Vec<GpuPartitions>> {
        None
    }

    fn run(&mut self, reconciler: &mut LayoutReconciler, desired: &Desired, works: bool) {
        let mut now = 10;
        while let Some((percentage, _)) = due(reconciler, desired) {
            reconciler.probe_sent(percentage, desired, now);
            assert_eq!(super::state(self, reconciler, desired), LayoutState::Applying);
            now += 5;
            let sms = if works { sms_for(percentage, 132) } else { 66 };
            reconciler.probed(&saw(&h200(0), sms), desired, now);
        }
    }
}

fn unmeasured() -> Gpu {
    Gpu { name: "NVIDIA H300".into(), sms: Some(120), ..h200(0) }
}

/// Returns the desired state of a daemon whose layout has partitions of these sizes.
fn desired(gpu: &Gpu, generation: i64, chunks: &[u32], others: Option<u16>) -> Desired {
    let add = |(number, chunks)| {
        format!(r#"{{"add":{{"gpu":0,"partition":"p{number}","chunks":{chunks},"tenants":["t{number}"]}}}}"#)
    };
    let steps: Vec<String> = chunks.iter().enumerate().map(add).collect();
    let json =
        format!(r#"{{"enforcement":"percentage","sku":"{}","steps":[{}]}}"#, gpu.name, steps.join(","));
    let layout: Layout = serde_json::from_str(&json).expect("a layout");
    let gpu_map = GpuMap::from([(0, gpu.uuid.clone())]);
    let gpus = std::slice::from_ref(gpu);
    let shares = shares(&layout, &gpu_map, gpus).expect("shares");
    let active = ActiveLayout {
        name: LayoutName::parse("web").expect("a name"),
        version: 1,
        gpu_map,
        drift_policy: PartitionPolicy::Report,
    };
    let mut layout = DesiredLayout::of(&active, &layout, None, None, gpus).expect("resolved");
    let others = others.map(|tenths| ThreadPercentage::from_tenths(tenths).expect("in range"));
    layout.shares = Some(DesiredShares { shares, earlier: Vec::new(), others });
    let name = DaemonName::parse("gpu0").expect("a name");
    let spec = DaemonSpec::of(vec![gpu.uuid.clone()]);
    let mut desired = plan::desired(&name, generation, &spec, &[], gpus, 0, None).expect("a plan");
    desired.layout = Some(layout);
    desired
}

/// Returns the report of an MPS client that sees this many SMs.
fn saw(gpu: &Gpu, sms: u32) -> Report {
    let device = CudaDevice {
        ordinal: 0,
        uuid: gpu.uuid.clone(),
        name: gpu.name.clone(),
        compute_capability: gpu.compute_capability,
        mps: Some(true),
        sms,
        memory_free: 1,
        memory_total: 2,
        context_ms: 1.0,
        priorities: Priorities { least: 0, greatest: -5 },
        splitter: Vec::new(),
        allocation: None,
    };
    Report { mps: Some(true), devices: vec![device], ..failed("") }
}

fn failed(why: &str) -> Report {
    let error = Failure { code: None, name: "timeout".into(), message: why.into() };
    Report {
        schema: 1,
        pid: Some(7),
        driver_version: None,
        cuda_version: None,
        mps: None,
        init_ms: None,
        devices: Vec::new(),
        error: (!why.is_empty()).then_some(error),
    }
}

/// Follows the desired state, and returns the percentage that the server is to hold.
fn follow(known: &mut LayoutReconciler, desired: &mut Desired) -> u16 {
    known.follow(desired, 0);
    desired.percentage.tenths()
}

/// Returns the percentage that a client is to probe, and the time.
fn due(known: &LayoutReconciler, desired: &Desired) -> Option<(ThreadPercentage, i64)> {
    match known.next_step(desired, None)? {
        (at, LayoutAction::Prove(percentage)) => Some((percentage, at)),
        _ => None,
    }
}

fn failure(known: &LayoutReconciler, desired: &Desired) -> Option<LayoutFailure> {
    known.failure(desired, &known.progress(desired, None))
}

fn is_complete(known: &LayoutReconciler, desired: &Desired) -> bool {
    known.progress(desired, None).is_complete()
}

/// Takes the proof that is to be written, and marks it as written, as a driver does at once.
fn record(known: &mut LayoutReconciler, desired: &Desired) -> ProvenLayout {
    let Some(LayoutRecord::Percentages(proven)) = known.to_write(desired) else { panic!("to be written") };
    assert_eq!(known.progress(desired, None), LayoutProgress::Unwritten);
    known.written(LayoutRecord::Percentages(proven.clone()));
    assert_eq!(known.to_write(desired), None, "once");
    proven
}

/// Starts clients until none is due, and returns the server's percentage at each.
fn prove(
    known: &mut LayoutReconciler,
    desired: &mut Desired,
    sms: impl Fn(ThreadPercentage) -> Report,
) -> Vec<u16> {
    let mut held = Vec::new();
    while let Some((percentage, _)) = due(known, desired) {
        held.push(follow(known, desired));
        known.probe_sent(percentage, desired, 0);
        assert_eq!(known.progress(desired, None), LayoutProgress::Probing);
        known.probed(&sms(percentage), desired, 0);
        assert!(held.len() < 100, "it asks forever");
    }
    held.push(follow(known, desired));
    held
}

fn status(known: &LayoutReconciler, desired: &Desired) -> LayoutStatus {
    known.status(desired, None).expect("there is a layout")
}

#[test]
fn daemon_without_percentage_layout_is_unchanged() {
    let (mut known, mut desired) = (LayoutReconciler::default(), desired(&h200(0), 1, &[7], None));
    desired.layout = None;
    known.follow(&mut desired, 0);
    assert!(is_complete(&known, &desired) && known.status(&desired, None).is_none());
    assert_eq!(desired.percentage, ThreadPercentage::FULL, "as planned");
}

#[test]
fn measured_layout_is_proven_under_largest_share() {
    let (mut known, mut target) = (LayoutReconciler::default(), desired(&h200(0), 1, &[7, 5, 3, 5], None));
    assert_eq!(known.progress(&target, None), LayoutProgress::Waiting);
    follow(&mut known, &mut target);
    assert_eq!(status(&known, &target).state, LayoutState::Pending);
    assert!(status(&known, &target).partitions.iter().all(|partition| partition.percentage.is_none()));
    let held = prove(&mut known, &mut target, |p| saw(&h200(0), sms_for(p, 132)));
    assert_eq!(held, [425; 4], "three sizes");
    let written = record(&mut known, &target);
    assert_eq!(written.shares.len(), 3);
    let status = status(&known, &target);
    let seen: Vec<_> = status.partitions.iter().map(|partition| (partition.chunks, partition.sms)).collect();
    assert_eq!(seen, [(7, Some(56)), (5, Some(40)), (3, Some(24)), (5, Some(40))]);
    assert_eq!((status.state, status.enforcement), (LayoutState::Applied, Enforcement::Percentage));
    // A tenant without a partition may have more.
    let mut beside = desired(&h200(0), 2, &[7, 5, 3, 5], Some(600));
    assert_eq!(follow(&mut known, &mut beside), 600);
    assert!(is_complete(&known, &beside), "nothing else has changed");
}

#[test]
fn unmeasured_gpu_keeps_full_percentage_until_proven() {
    let gpu = unmeasured();
    let rule = |p: ThreadPercentage| u32::from(p.tenths()) * 120 / 1000;
    let (mut known, mut target) = (LayoutReconciler::default(), desired(&gpu, 1, &[7, 3], None));
    follow(&mut known, &mut target);
    let held = prove(&mut known, &mut target, |p| saw(&gpu, rule(p)));
    let (last, before) = held.split_last().expect("at least one");
    assert!(before.iter().all(|held| *held == 1000), "{held:?}");
    let proven = known.percentages.proven.clone();
    assert_eq!(proven.iter().map(|proven| rule(proven.percentage)).collect::<Vec<_>>(), [24, 56]);
    assert_eq!(*last, proven[1].percentage.tenths());
    // Another control process: no proof counts, and the percentages that were found are tried first.
    known.process_gone();
    assert_eq!(known.progress(&target, None), LayoutProgress::Waiting);
    follow(&mut known, &mut target);
    assert!(!is_complete(&known, &target));
    assert_eq!(status(&known, &target).partitions[0].percentage, None);
    let held = prove(&mut known, &mut target, |p| saw(&gpu, rule(p)));
    assert_eq!(held, [*last; 3], "two clients, and the server holds no more than before");
    // A request of a caller has the effect of another process.
    known.request(1);
    follow(&mut known, &mut target);
    assert!(!is_complete(&known, &target));
    assert_eq!(prove(&mut known, &mut target, |p| saw(&gpu, rule(p))).len(), 3);
}

#[test]
fn unexpected_sms_fail_until_layout_changes() {
    let (mut known, mut target) = (LayoutReconciler::default(), desired(&h200(0), 1, &[7], None));
    follow(&mut known, &mut target);
    prove(&mut known, &mut target, |_| saw(&h200(0), 66));
    assert_eq!(known.progress(&target, None), LayoutProgress::Failed);
    let failure = status(&known, &target).failure.expect("a failure");
    assert_eq!((failure.reason(), failure.generation), (ConditionReason::PartitionNotProven, 1));
    assert!(
        failure.message.contains("saw 66 SMs") && failure.message.contains("56 were planned"),
        "{}",
        failure.message
    );
    // A smaller layout in the same process needs its own client.
    let mut back = desired(&h200(0), 2, &[3], None);
    assert_eq!(follow(&mut known, &mut back), 182);
    prove(&mut known, &mut back, |p| saw(&h200(0), sms_for(p, 132)));
    record(&mut known, &back);
    assert_eq!((status(&known, &back).state, status(&known, &back).failure), (LayoutState::Applied, None));
    // The first layout is proven once more, because it is desired again.
    let mut again = desired(&h200(0), 3, &[7], None);
    follow(&mut known, &mut again);
    prove(&mut known, &mut again, |p| saw(&h200(0), sms_for(p, 132)));
    record(&mut known, &again);
    assert_eq!(status(&known, &again).partitions[0].sms, Some(56));
}

#[test]
fn failed_probe_is_retried_then_reported() {
    let (mut known, mut target) = (LayoutReconciler::default(), desired(&h200(0), 1, &[7], None));
    follow(&mut known, &mut target);
    for attempt in 1..=RETRIES + 1 {
        let (percentage, at) = due(&known, &target).expect("due");
        assert_eq!(at, if attempt == 1 { 0 } else { 1000 + RETRY_MS }, "{attempt}");
        assert_eq!(failure(&known, &target), None);
        known.probe_sent(percentage, &target, 0);
        known.probed(&failed("it waits"), &target, 1000);
        known.follow(&mut target, 1000);
    }
    let given_up = failure(&known, &target).expect("a failure");
    assert_eq!(given_up.reason(), ConditionReason::PartitionNotSeen);
    let (percentage, at) = due(&known, &target).expect("due again");
    assert_eq!(at, 1000 + Timings::default().blocked_retry());
    assert_eq!(status(&known, &target).state, LayoutState::Failed);
    // A client outside MPS proves nothing, whatever it saw.
    known.probe_sent(percentage, &target, 0);
    known.probed(&Report { mps: Some(false), ..saw(&h200(0), 56) }, &target, 0);
    assert!(failure(&known, &target).expect("still").message.contains("outside MPS"));
    known.probe_sent(percentage, &target, 0);
    known.probed(&saw(&h200(0), 56), &target, 0);
    record(&mut known, &target);
    assert_eq!((failure(&known, &target), is_complete(&known, &target)), (None, true));
}

#[test]
fn probe_of_replaced_daemon_proves_nothing() {
    let (mut known, mut target) = (LayoutReconciler::default(), desired(&h200(0), 1, &[7], None));
    follow(&mut known, &mut target);
    let (percentage, _) = due(&known, &target).expect("due");
    known.probe_sent(percentage, &target, 0);
    known.process_gone();
    follow(&mut known, &mut target);
    known.probed(&saw(&h200(0), 56), &target, 0);
    assert!(!is_complete(&known, &target) && known.percentages.proven.is_empty());
}

#[test]
fn a_static_daemon_cannot_hold_percentages() {
    let (mut known, mut target) = (LayoutReconciler::default(), desired(&h200(0), 1, &[7], None));
    target.mode = Mode::Static;
    follow(&mut known, &mut target);
    assert!(matches!(known.progress(&target, None), LayoutProgress::Refused(_)));
    assert_eq!(failure(&known, &target).expect("a failure").reason(), ConditionReason::LayoutBlocked);
}
