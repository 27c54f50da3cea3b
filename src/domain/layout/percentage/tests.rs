use std::collections::BTreeMap;

use super::own_share::own_shares;
use super::plan::plan;
use super::proof::{ProvenShare, Proving, ShareFailure};
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
        let percentage = share.percentage.expect("the formula was measured on an H200");
        assert_eq!((share.sms, sms_for(percentage, 132)), (8 * chunks, 8 * chunks), "{chunks} chunks");
    }
    let [seven, five, three] = &of(&[7, 5, 3])[..] else { panic!("three shares") };
    let of = |share: &PlannedShare| (share.sms, share.percentage.map(|percentage| percentage.to_string()));
    assert_eq!(of(seven), (56, Some("42.5".into())));
    assert_eq!(of(five), (40, Some("30.4".into())));
    assert_eq!(of(three), (24, Some("18.2".into())));
}

#[test]
fn elsewhere_no_percentage_is_claimed() {
    let layout = layout(
        r#"{"enforcement":"percentage","sku":"NVIDIA A100-SXM4-80GB","steps":[{"add":{"gpu":0,"partition":"a","chunks":7}}]}"#,
    );
    let map = GpuMap::from([(0, h200(0).uuid)]);
    let a100 = unmeasured("NVIDIA A100-SXM4-80GB", 108, 8);
    let found = shares(&layout, &map, std::slice::from_ref(&a100)).expect("shares");
    assert_eq!((found[0].sms, found[0].percentage), (28, None), "7 chunks of 4 SMs");
    let unknown = Gpu { compute_capability: None, ..a100 };
    let error = shares(&layout, &map, &[unknown]).expect_err("no size").to_string();
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
    let found = own_shares(&layout, names.iter().zip(&specs)).next().expect("b has its own");
    assert_eq!((found.tenant.as_str(), found.field.as_str()), ("b", "active_thread_percentage"));
    assert!(found.to_string().contains("bound to partition b"), "{found}");
    assert_eq!(own_shares(&partitions(&[7]), names.iter().zip(&specs)).next(), None, "z is not bound");
}

/// Proves shares on a GPU with this number of SMs under each percentage; returns the number of probes and the result.
fn prove(mut proving: Proving, sms: impl Fn(u32) -> u32) -> (usize, Result<Vec<ProvenShare>, ShareFailure>) {
    for clients in 0..200 {
        match proving.next() {
            Ok(None) => return (clients, Ok(proving.proven())),
            Ok(Some(percentage)) => {
                let under = sms(percentage.tenths().into());
                let seen = proving.gpus().into_iter().map(|gpu| (gpu.clone(), under)).collect();
                proving.probed(percentage, seen);
            }
            Err(failure) => return (clients, Err(failure)),
        }
    }
    panic!("it asks forever");
}

fn tenths(percentage: u32) -> ThreadPercentage {
    ThreadPercentage::from_tenths(u16::try_from(percentage).expect("small")).expect("in range")
}

#[test]
fn measured_percentage_needs_one_probe_per_size() {
    let shares = of(&[5, 3, 5, 1]);
    let proving = Proving::new(&shares, &[], &[]);
    assert_eq!(proving.server_percentage(), shares[0].percentage, "5 chunks are the most");
    let (clients, proven) = prove(proving.clone(), |p| sms_for(tenths(p), 132));
    let proven = proven.expect("as measured");
    assert_eq!(clients, 3);
    let sizes: Vec<_> = proven.iter().map(|proven| (proven.chunks, proven.seen[&h200(0).uuid])).collect();
    assert_eq!(sizes, [(1, 8), (3, 24), (5, 40)]);
    // A server that holds 20 %.
    let (_, failed) = prove(proving, |p| sms_for(tenths(p.min(200)), 132));
    let failure = failed.expect_err("40 cannot be seen");
    assert!(matches!(&failure, ShareFailure::Differs { planned: 40, seen: 26, .. }), "{failure:?}");
}

/// The SMs of a GPU under a percentage in tenths.
type Rule = fn(u32) -> u32;

#[test]
fn unmeasured_percentage_is_found_by_probing() {
    let layout = layout(
        r#"{"enforcement":"percentage","sku":"x","steps":[{"add":{"gpu":0,"partition":"a","chunks":7}},
            {"add":{"gpu":0,"partition":"b","chunks":12}},{"add":{"gpu":0,"partition":"c","chunks":3}}]}"#,
    );
    let gpu = unmeasured("x", 108, 8);
    let shares =
        shares(&layout, &GpuMap::from([(0, gpu.uuid.clone())]), std::slice::from_ref(&gpu)).expect("shares");
    let proving = Proving::new(&shares, &[], &[]);
    assert_eq!(proving.server_percentage(), Some(ThreadPercentage::FULL));
    let rules: [(&str, Rule); 4] = [
        ("as measured", |p| sms_for(tenths(p), 108)),
        ("rounded up to even", |p| (p * 108).div_ceil(1000).next_multiple_of(2)),
        ("in fours", |p| (p * 108 / 1000 / 4 * 4).max(4)),
        ("bent", |p| (p * p * 108 / 1_000_000) & !1),
    ];
    for (rule, sees) in rules {
        let (clients, proven) = prove(proving.clone(), sees);
        let proven = proven.unwrap_or_else(|failure| panic!("{rule}: {failure}"));
        let sizes: Vec<_> = proven.iter().map(|proven| sees(proven.percentage.tenths().into())).collect();
        assert_eq!(sizes, [12, 28, 48], "{rule}");
        assert!(clients <= 30, "{rule}: {clients} clients");
        // Known from before, each takes one client.
        let again = Proving::new(&shares, &[], &proven);
        let most = proven.iter().map(|proven| proven.percentage).max();
        assert_eq!(again.server_percentage(), most, "{rule}");
        assert_eq!(prove(again, sees), (3, Ok(proven.clone())), "{rule}");
        // And proven in this process, none.
        let proving = Proving::new(&shares, &proven, &[]);
        assert_eq!(proving.server_percentage(), most, "{rule}");
        assert_eq!(prove(proving, sees), (0, Ok(proven)), "{rule}");
    }
    let (_, none) = prove(proving, |p| (p * 108 / 1000 / 16 * 16).max(16));
    let failure = none.expect_err("12 is below the least");
    assert!(
        matches!(&failure, ShareFailure::NoPercentage { planned: 12, below: None, above: Some(16), .. }),
        "{failure:?}"
    );
    assert!(failure.to_string().contains("it saw nothing below that and 16 above"), "{failure}");
}

#[test]
fn two_gpus_must_agree_on_one_percentage() {
    let layout = layout(
        r#"{"enforcement":"percentage","steps":[{"add":{"gpu":0,"partition":"a","chunks":7,"tenants":["t"]}},
            {"add":{"gpu":1,"partition":"b","chunks":7,"tenants":["t"]}}]}"#,
    );
    let map = GpuMap::from([(0, h200(0).uuid), (1, h200(1).uuid)]);
    let shares = shares(&layout, &map, &[h200(0), h200(1)]).expect("shares");
    let mut proving = Proving::new(&shares, &[], &[]);
    let percentage = proving.next().expect("no failure").expect("one client");
    proving.probed(percentage, BTreeMap::from([(h200(0).uuid, 56)]));
    let failure = proving.next().expect_err("the client did not see the second GPU");
    assert!(
        matches!(&failure, ShareFailure::Differs { gpu, seen: 0, .. } if *gpu == h200(1).uuid),
        "{failure:?}"
    );
    proving.probed(percentage, BTreeMap::from([(h200(0).uuid, 56), (h200(1).uuid, 56)]));
    assert_eq!((proving.next(), proving.proven().len()), (Ok(None), 1));
}
