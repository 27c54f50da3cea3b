//! What must not come between a change of a daemon's layout and its end, and what a change leaves as it is.

use std::fs;

use serde_json::{Value, json};

use super::layouts::{
    add, apply, host, in_static_mode, matches, partitions, post, trapped_host, uuid, write,
};
use crate::harness::{InProcess, Served, Spring, Trap};

fn spec_of(host: &Served, daemon: &str) -> Value {
    host.daemon(daemon)["spec"].clone()
}

/// A host of four GPUs whose last two belong to one daemon in static mode.
fn pair() -> InProcess {
    let host = InProcess::ready_of("h200x4", "");
    for daemon in ["gpu2", "gpu3"] {
        host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{daemon}?grace_s=0")));
    }
    let spec = json!({"gpus": ["2", "3"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/pair", &spec).status, 201);
    host.await_phase("pair", "ready");
    host
}

#[test]
fn daemon_changes_are_refused_during_layout_apply() {
    let trap = Trap::new();
    let host: InProcess = trapped_host(&trap, "");
    write(&host, "old", &[add("web", 3)]);
    apply(&host, "old", &json!({}));
    write(&host, "new", &[add("web", 3), add("more", 2)]);
    write(&host, "other", &[add("web", 1)]);

    trap.set(Spring::Held, 1);
    let applying = post(&host, "new", "apply", &json!({}));
    trap.sprung();
    let before = spec_of(&host, "gpu1");
    assert_eq!(before["layout"]["name"], "new");
    let shared = json!({"gpus": ["1"], "mode": "shared"});
    let other = json!({"gpus": ["1"], "mode": "static", "layout": {"name": "other", "version": 1, "gpu_map": {"0": uuid(&host, 1)}}});
    for spec in [shared, other] {
        let refused = host.api().put("/api/v1/daemons/gpu1", &spec).problem(409, "conflict");
        assert!(refused["detail"].as_str().unwrap().contains("operation "), "{refused}");
    }
    // What it would go back to stays, and so does what it puts there.
    for layout in ["old", "new"] {
        host.api().delete(&format!("/api/v1/layouts/{layout}")).problem(409, "conflict");
    }
    assert_eq!(host.api().delete("/api/v1/layouts/other").status, 204);
    assert_eq!(spec_of(&host, "gpu1"), before);
    trap.release();
    host.api().succeeds(&applying);
    assert!(matches(&host, "new"));
    assert_eq!(host.api().delete("/api/v1/layouts/old").status, 204);
}

#[test]
fn mode_is_refused_while_layout_needs_another() {
    let host: InProcess = host();
    write(&host, "prod", &[add("web", 7)]);
    apply(&host, "prod", &json!({}));
    let mut spec = spec_of(&host, "gpu1");
    spec["mode"] = json!("shared");
    let refused = host.api().put("/api/v1/daemons/gpu1", &spec).problem(409, "conflict");
    let detail = refused["detail"].as_str().unwrap();
    let remedy = "mps-manager daemon set gpu1 --mode shared --unset layout";
    assert!(
        detail.contains("layout prod of daemon gpu1 needs mode static") && detail.contains(remedy),
        "{detail}"
    );
    let words: Vec<&str> = remedy.split(' ').skip(1).collect();
    let output = host.cli(&words);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(spec_of(&host, "gpu1")["layout"], Value::Null);
}

#[test]
fn layout_role_keeps_its_gpu_unless_remapped() {
    let host = pair();
    let step = |chunks: u32| json!({"add": {"gpu": 2, "partition": "web", "chunks": chunks}});
    write(&host, "main", &[step(3)]);
    let ask = |verb: &str, more: &Value| {
        let mut body = json!({"daemon": "pair"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.api().post(&format!("/api/v1/layouts/main/{verb}"), &body)
    };
    host.api().succeeds(&ask("apply", &json!({"gpu_map": {"2": "3"}})));
    let last = uuid(&host, 3);
    assert_eq!(spec_of(&host, "pair")["layout"]["gpu_map"], json!({"2": last}));
    assert_eq!(ask("assert", &json!({})).ok()["matches"], true);
    assert_eq!(ask("plan", &json!({})).ok()["in_force"], true);
    // A new version of it stays there, too.
    write(&host, "main", &[step(3), json!({"add": {"gpu": 2, "partition": "more", "chunks": 1}})]);
    host.api().succeeds(&ask("apply", &json!({})));
    assert_eq!(spec_of(&host, "pair")["layout"]["gpu_map"], json!({"2": last}));

    let refused = ask("apply", &json!({"gpu_map": {"2": "2"}})).problem(409, "layout-blocked");
    assert_eq!(refused["errors"][0]["pointer"], "/recreate");
    host.api().succeeds(&ask("apply", &json!({"gpu_map": {"2": "2"}, "recreate": true})));
    assert_eq!(spec_of(&host, "pair")["layout"]["gpu_map"], json!({"2": uuid(&host, 2)}));
}

#[test]
fn inline_layout_becomes_version_unless_refused() {
    let host: InProcess = super::layouts::host();
    let with = |steps: &[Value]| json!({"layout": {"steps": steps}, "note": "as it came"});
    post(&host, "fresh", "apply", &with(&[add("web", 17)])).problem(409, "layout-blocked");
    host.api().get("/api/v1/layouts/fresh").problem(404, "not-found");
    let done = host.api().succeeds(&post(&host, "fresh", "apply", &with(&[add("web", 7)])));
    assert_eq!(done["request"]["version"], 1);
    let known = host.api().get("/api/v1/layouts/fresh").ok();
    assert_eq!(
        (&known["newest"]["author"], &known["newest"]["note"]),
        (&json!("admin token"), &json!("as it came"))
    );
    // The same is no new version, also where another was written since.
    write(&host, "fresh", &[add("web", 1)]);
    let again = host.api().succeeds(&post(&host, "fresh", "apply", &with(&[add("web", 7)])));
    assert_eq!(again["request"]["version"], 1);
    assert_eq!(host.api().get("/api/v1/layouts/fresh").ok()["newest"]["version"], 2);
    let both = json!({"layout": {"steps": []}, "version": 1});
    post(&host, "fresh", "apply", &both).problem(422, "invalid-request");
}

#[test]
fn layout_version_numbers_are_never_reused() {
    let host = InProcess::stopped();
    for number in 1..=2 {
        assert_eq!(write(&host, "brief", &[add("web", number)]), u64::from(number));
    }
    assert_eq!(host.api().delete("/api/v1/layouts/brief").status, 204);
    assert_eq!(write(&host, "brief", &[add("web", 1)]), 3);
    assert_eq!(host.api().get("/api/v1/layouts/brief/versions").ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn unchanged_daemon_with_layout_can_be_rewritten() {
    let host = InProcess::ready();
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=0", &json!({})));
    let step = json!({"add": {"gpu": 1, "partition": "web", "chunks": 2}});
    write(&host, "main", &[step]);
    let spec = json!({"gpus": ["1"], "mode": "static", "layout": {"name": "main", "version": 1}});
    for _ in 0..2 {
        let written = host.api().put("/api/v1/daemons/gpu1", &spec).ok();
        assert_eq!(written["spec"]["layout"]["gpu_map"], json!({"1": uuid(&host, 1)}));
        host.await_phase("gpu1", "ready");
    }
}

#[test]
fn replacement_gpu_takes_over_layout_role() {
    let mut host = InProcess::of("h200x4", "");
    host.serve();
    host.await_ready();
    host.api().succeeds(&host.api().delete("/api/v1/daemons/gpu3?grace_s=0"));
    in_static_mode(&host);
    write(&host, "main", &[add("web", 7), add("batch", 2)]);
    apply(&host, "main", &json!({}));
    let made = partitions(&host);
    let (gone, new) = (uuid(&host, 1), uuid(&host, 3));
    fs::write(host.runtime("sim/gpus").join(&gone).join("lost"), "").unwrap();
    host.await_reason("gpu1", "GpuMissing");
    let replaced = host.api().post(&format!("/api/v1/gpus/{gone}/replace"), &json!({"with": new})).ok();
    assert_eq!(replaced["daemon"]["spec"]["layout"]["gpu_map"], json!({"0": new}));
    host.await_phase("gpu1", "ready");
    assert_eq!(partitions(&host), made, "the same die");
    let target = json!({"daemon": "gpu1"});
    assert_eq!(host.api().post("/api/v1/layouts/main/assert", &target).ok()["matches"], true);
}
