//! Layouts of thread percentages, which need no run.

use super::*;
use crate::domain::daemon::DaemonSpec;
use crate::domain::layout::active::{ActiveLayout, PartitionPolicy};
use crate::domain::layout::percentage;
use crate::domain::layout::{GpuMap, Layout};
use crate::domain::{DaemonName, LayoutName, ThreadPercentage, plan};
use crate::testing::h200;

/// Returns the desired state of a daemon whose layout has partitions of these sizes.
fn desired(chunks: &[u32]) -> Desired {
    let add = |(number, chunks)| {
        format!(r#"{{"add":{{"gpu":0,"partition":"p{number}","chunks":{chunks},"tenants":["t{number}"]}}}}"#)
    };
    let steps: Vec<String> = chunks.iter().enumerate().map(add).collect();
    let json = format!(r#"{{"enforcement":"percentage","steps":[{}]}}"#, steps.join(","));
    let layout: Layout = serde_json::from_str(&json).expect("a layout");
    let (gpus, gpu_map) = ([h200(0)], GpuMap::from([(0, h200(0).uuid)]));
    let shares = percentage::shares(&layout, &gpu_map, &gpus).expect("shares");
    let active = ActiveLayout {
        name: LayoutName::parse("web").expect("a name"),
        version: 1,
        gpu_map,
        drift_policy: PartitionPolicy::Report,
    };
    let layout = DesiredLayout::of(&active, &layout, None, None, &gpus).expect("resolved");
    let name = DaemonName::parse("gpu0").expect("a name");
    let spec = DaemonSpec::of(vec![h200(0).uuid]);
    let mut desired = plan::desired(&name, 1, &spec, &[], &gpus, 0, None).expect("a plan");
    desired.layout = Some(DesiredLayout { shares, ..layout });
    desired
}

#[test]
fn percentage_layout_needs_no_run() {
    let (reconciler, desired) = (LayoutReconciler::default(), desired(&[7, 5]));
    assert_eq!(reconciler.progress(&desired, None), LayoutProgress::Complete);
    assert_eq!((reconciler.next_step(&desired, None), reconciler.unready(&desired)), (None, None));
    let status = reconciler.status(&desired, None).expect("a status");
    assert_eq!((status.state, status.enforcement), (LayoutState::Applied, Enforcement::Percentage));
    let share = |one: &PartitionStatus| (one.sms, one.percentage.map(ThreadPercentage::tenths));
    let shares: Vec<_> = status.partitions.iter().map(share).collect();
    assert_eq!(shares, [(Some(56), Some(425)), (Some(40), Some(304))]);
    let none = Desired { layout: None, ..desired };
    assert_eq!(reconciler.status(&none, None), None);
}

#[test]
fn a_static_daemon_cannot_hold_percentages() {
    let (reconciler, mut desired) = (LayoutReconciler::default(), desired(&[7]));
    desired.mode = Mode::Static;
    let progress = reconciler.progress(&desired, None);
    assert!(matches!(progress, LayoutProgress::Refused(_)));
    let failure = reconciler.failure(&desired, &progress).expect("a failure");
    assert_eq!(failure.reason(), ConditionReason::LayoutBlocked);
}
