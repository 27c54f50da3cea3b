use std::collections::BTreeMap;

use super::own_share::own_shares;
use super::plan::plan;
use super::*;
use crate::gpu::{ChunkCensus, ComputeCapability};
use crate::layout::blocked::Blocked;
use crate::layout::plan::{Action, Chunks, PlannedStep, Reason};
use crate::percentage::sms_for;
use crate::testing::{h200, spec};

fn layout(json: &str) -> Layout {
    let layout: Layout = serde_json::from_str(json).expect("a layout");
    layout.check().expect("a good one");
    layout
}

/// Partitions a, b, … of so many chunks on GPU 0, each with a tenant of its name.
fn of(chunks: &[u32]) -> Vec<PlannedShare> {
    shares(&partitions(chunks), &GpuMap::from([(0, h200(0).uuid)]), &[h200(0)]).expect("shares")
}

fn partitions(chunks: &[u32]) -> Layout {
    let add = |(number, chunks): (usize, &u32)| {
        let name = char::from(b'a' + u8::try_from(number).expect("few"));
        format!(r#"{{"add":{{"gpu":0,"partition":"{name}","chunks":{chunks},"tenants":["{name}"]}}}}"#)
    };
    let steps: Vec<String> = chunks.iter().enumerate().map(add).collect();
    layout(&format!(r#"{{"enforcement":"percentage","steps":[{}]}}"#, steps.join(",")))
}

fn census() -> BTreeMap<GpuUuid, ChunkCensus> {
    BTreeMap::from([(h200(0).uuid, ChunkCensus { sms: 132, chunk_sms: 8, chunks: 15, left_over_sms: 12 })])
}

/// A GPU on which the formula was not measured.
fn unmeasured(name: &str, sms: u32, major: u32) -> Gpu {
    let compute_capability = Some(ComputeCapability { major, minor: 0 });
    Gpu { name: name.into(), sms: Some(sms), compute_capability, ..h200(0) }
}

/// Free and used chunks.
type Count = (u32, u32);

fn summary(step: &PlannedStep) -> (Action, &str, u32, u32, Count, Count) {
    let chunks = |chunks: Chunks| (chunks.free, chunks.used);
    let name = step.partition.as_ref().map_or("", |name| name.as_str());
    (step.action, name, step.chunks, step.sms, chunks(step.before), chunks(step.after))
}

#[test]
fn h200_percentage_gives_exact_sms_per_chunk() {
    for chunks in 1..=15 {
        let [share] = &of(&[chunks])[..] else { panic!("one share") };
        assert_eq!((share.sms, sms_for(share.percentage, 132)), (8 * chunks, 8 * chunks), "{chunks} chunks");
    }
    let [seven, five, three] = &of(&[7, 5, 3])[..] else { panic!("three shares") };
    let of = |share: &PlannedShare| (share.sms, share.percentage.to_string());
    assert_eq!(of(seven), (56, "42.5".into()));
    assert_eq!(of(five), (40, "30.4".into()));
    assert_eq!(of(three), (24, "18.2".into()));
}

#[test]
fn sms_that_no_percentage_gives_are_refused() {
    let layout = |chunks: u32| {
        layout(&format!(
            r#"{{"enforcement":"percentage","sku":"NVIDIA A100-SXM4-80GB","steps":[{{"add":{{"gpu":0,"partition":"a","chunks":{chunks}}}}}]}}"#
        ))
    };
    let map = GpuMap::from([(0, h200(0).uuid)]);
    let a100 = unmeasured("NVIDIA A100-SXM4-80GB", 108, 8);
    let given = shares(&layout(7), &map, std::slice::from_ref(&a100)).expect("shares");
    assert_eq!((given[0].sms, sms_for(given[0].percentage, 108)), (28, 28), "7 chunks of 4 SMs");
    let error = shares(&layout(1), &map, std::slice::from_ref(&a100)).expect_err("too few").to_string();
    assert!(error.contains("no thread percentage gives 4 of the 108 SMs"), "{error}");
    let unknown = Gpu { compute_capability: None, ..a100 };
    let error = shares(&layout(7), &map, &[unknown]).expect_err("no size").to_string();
    assert!(error.contains("compute capability"), "{error}");
}

#[test]
fn percentage_plan_has_no_commands_or_ids() {
    let plan = plan(&of(&[7, 5, 3]), &[], &census());
    assert!(plan.reserves_nothing && plan.blocked.is_empty());
    let steps: Vec<_> = plan.steps.iter().map(summary).collect();
    assert_eq!(
        steps,
        [
            (Action::Add, "a", 7, 56, (15, 0), (8, 7)),
            (Action::Add, "b", 5, 40, (8, 7), (3, 12)),
            (Action::Add, "c", 3, 24, (3, 12), (0, 15)),
        ]
    );
    assert!(plan.steps.iter().all(|step| step.command().is_none() && step.id.is_none()), "{:?}", plan.steps);
    assert_eq!((plan.gpus[0].left_over_sms, plan.gpus[0].sms), (12, 132));
    let json = serde_json::to_value(&plan).expect("JSON");
    assert_eq!((&json["reserves_nothing"], &json["steps"][0]["percentage"]), (&true.into(), &42.5.into()));
}

#[test]
fn unchanged_shares_are_kept_others_recreated() {
    let plan = plan(&of(&[7, 4]), &of(&[7, 5, 3]), &census());
    let steps: Vec<_> = plan.steps.iter().map(summary).collect();
    assert_eq!(
        steps,
        [
            (Action::Keep, "a", 7, 56, (0, 15), (0, 15)),
            (Action::Remove, "c", 3, 24, (0, 15), (3, 12)),
            (Action::Remove, "b", 5, 40, (3, 12), (8, 7)),
            (Action::Add, "b", 4, 32, (8, 7), (4, 11)),
        ]
    );
    assert_eq!(plan.taken, [0]);
    let reasons: Vec<_> = plan.steps.iter().map(|step| step.reason).collect();
    assert_eq!(reasons, [Reason::Layout, Reason::NotInLayout, Reason::MadeAgain, Reason::Layout]);
    assert!(super::plan::plan(&of(&[7]), &of(&[7]), &census()).is_empty());
}

#[test]
fn too_many_chunks_name_the_fitting_number() {
    let plan = plan(&of(&[9, 7, 6]), &[], &census());
    let [blocked] = &plan.blocked[..] else { panic!("{:?}", plan.blocked) };
    let text = blocked.to_string();
    assert!(
        text.contains("partition b (step 2) asks for 7 chunks") && text.contains("give at most 6"),
        "{text}"
    );
    let uncounted = super::plan::plan(&of(&[1]), &[], &BTreeMap::new());
    assert_eq!(uncounted.blocked, [Blocked::NotListed { gpu: h200(0).uuid }]);
}

#[test]
fn a_tenant_has_its_share_from_one_place() {
    let names = ["a", "b", "z"].map(|name| TenantName::parse(name).expect("name"));
    let specs = [
        r#"{"daemon":"gpu0", "uid": 0,"device_memory_limit":"4G"}"#,
        r#"{"daemon":"gpu0", "uid": 0,"active_thread_percentage":25}"#,
        r#"{"daemon":"gpu0", "uid": 0,"sms":32}"#,
    ]
    .map(spec);
    let layout = partitions(&[7, 5]);
    let own_share = own_shares(&layout, names.iter().zip(&specs)).next().expect("b has its own");
    assert_eq!((own_share.tenant.as_str(), own_share.field.as_str()), ("b", "active_thread_percentage"));
    assert!(own_share.to_string().contains("bound to partition b"), "{own_share}");
    assert_eq!(own_shares(&partitions(&[7]), names.iter().zip(&specs)).next(), None, "z is not bound");
}
