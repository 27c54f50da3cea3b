//! Layouts over the API: written, planned, applied, compared, and refused.

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, InProcess, Manager, Served, Simulated, Trap, eventually, signal};

/// The UUID of a GPU.
pub(super) fn uuid(host: &Served, index: u32) -> String {
    host.api().get(&format!("/api/v1/gpus/{index}")).ok()["uuid"].as_str().expect("a UUID").to_owned()
}

/// A host whose second daemon is in static mode.
pub(super) fn host<M: Manager>() -> Simulated<M> {
    static_host("h200x2")
}

/// The same of a profile.
pub(super) fn static_host<M: Manager>(profile: &str) -> Simulated<M> {
    let host = Simulated::ready_of(profile, "");
    in_static_mode(&host);
    host
}

/// The same whose control program has a trap in it, with more lines of configuration.
pub(super) fn trapped_host<M: Manager>(trap: &Trap, lines: &str) -> Simulated<M> {
    let mut host = Simulated::new(&format!("{}\n{lines}", trap.config()));
    trap.install(&host);
    host.serve();
    host.await_ready();
    in_static_mode(&host);
    host
}

pub(super) fn in_static_mode(host: &Served) {
    let spec = json!({"gpus": ["1"], "mode": "static"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    host.await_phase("gpu1", "ready");
}

/// A step that makes a partition of the GPU in the first role.
pub(super) fn add(partition: &str, chunks: u32) -> Value {
    json!({"add": {"gpu": 0, "partition": partition, "chunks": chunks}})
}

pub(super) fn remove(partition: &str) -> Value {
    json!({"remove": {"partition": partition}})
}

/// Writes a version of a layout, and gives its number.
pub(super) fn write(host: &Served, name: &str, steps: &[Value]) -> u64 {
    let written =
        host.api().put(&format!("/api/v1/layouts/{name}"), &json!({"layout": {"steps": steps}})).ok();
    written["newest"]["version"].as_u64().expect("a version")
}

/// A request about the second daemon, with these fields beside.
pub(super) fn target(more: &Value) -> Value {
    let mut target = json!({"daemon": "gpu1", "gpu_map": {"0": "1"}});
    let fields = more.as_object().expect("fields").clone();
    target.as_object_mut().expect("fields").extend(fields);
    target
}

pub(super) fn post(host: &Served, name: &str, verb: &str, more: &Value) -> Answer {
    host.api().post(&format!("/api/v1/layouts/{name}/{verb}"), &target(more))
}

pub(super) fn apply(host: &Served, name: &str, more: &Value) -> Value {
    host.api().succeeds(&post(host, name, "apply", more))
}

pub(super) fn matches(host: &Served, name: &str) -> bool {
    post(host, name, "assert", &json!({})).ok()["matches"] == true
}

/// Name and ID of each partition that the daemon has.
pub(super) fn partitions(host: &Served) -> Vec<(String, String)> {
    let listed = host.api().get("/api/v1/daemons/gpu1/partitions?fresh=true").ok();
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let items = listed["items"].as_array().expect("a list").iter();
    items.map(|item| (text(&item["partition"]), text(&item["id"]))).collect()
}

fn steps(operation: &Value) -> Vec<&str> {
    operation["steps"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| step["name"].as_str().expect("a name"))
        .collect()
}

#[test]
fn layout_versions_name_their_author() {
    let host = InProcess::stopped();
    let put = |chunks: u32| {
        let body = json!({"layout": {"steps": [add("web", chunks)]}, "note": "for the web"});
        host.api().put("/api/v1/layouts/prod", &body)
    };
    let first = put(7);
    assert_eq!((first.status, first.revision()), (201, "\"1\"".to_owned()));
    let newest = &first.json()["newest"];
    assert_eq!((&newest["author"], &newest["note"]), (&json!("admin token"), &json!("for the web")));
    assert_eq!(put(7).ok()["newest"], *newest, "the same again is no new version");
    let second = put(8).ok();
    assert_eq!((&second["newest"]["version"], &second["daemons"]), (&json!(2), &json!([])));
    let old = host.api().get("/api/v1/layouts/prod/versions/1").ok();
    assert_eq!(old, *newest);
    let listed = host.api().get("/api/v1/layouts/prod/versions?limit=1").ok();
    assert_eq!(listed["items"][0]["version"], 2);
    let cursor = listed["next_cursor"].as_str().unwrap();
    let rest = host.api().get(&format!("/api/v1/layouts/prod/versions?cursor={cursor}")).ok();
    assert_eq!((&rest["items"][0]["version"], &rest["next_cursor"]), (&json!(1), &json!(null)));

    // By the socket it is the user who wrote it.
    let by_socket = host.api().over(&host.runtime("api.sock"));
    let written = by_socket.put("/api/v1/layouts/other", &json!({"layout": {"steps": []}})).ok();
    let author = format!("uid {}", rustix::process::geteuid().as_raw());
    assert_eq!(written["newest"]["author"], author);
    let names: Vec<Value> = host.api().get("/api/v1/layouts").ok()["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|layout| layout["newest"]["name"].clone())
        .collect();
    assert_eq!(names, ["other", "prod"]);

    let body = json!({"layout": {"steps": [add("web", 9)]}}).to_string();
    let stale = [("if-match", "\"1\"")];
    let path = "/api/v1/layouts/prod";
    host.api().send(Method::PUT, path, &stale, Some(body.clone())).problem(412, "precondition-failed");
    let dry = host.api().put(&format!("{path}?dry_run=true"), &serde_json::from_str(&body).unwrap()).ok();
    assert_eq!(dry["newest"]["version"], 3);
    assert_eq!(host.api().get(path).ok()["newest"]["version"], 2);
    assert_eq!(host.api().delete(path).status, 204);
    host.api().get(path).problem(404, "not-found");
    host.api().get("/api/v1/layouts/prod/versions/1").problem(404, "not-found");
}

#[test]
fn apply_is_refused_when_plan_changed() {
    let host: InProcess = host();
    write(&host, "prod", &[add("web", 7)]);
    let seen = post(&host, "prod", "plan", &json!({})).ok()["digest"].clone();
    assert_eq!(post(&host, "prod", "plan", &json!({})).ok()["digest"], seen, "the same is the same");
    // Another program takes chunks meanwhile: what would be carried out now is not what was seen.
    write(&host, "other", &[add("mine", 2)]);
    apply(&host, "other", &json!({}));
    let before = host.daemon("gpu1")["spec"].clone();
    let refused = post(&host, "prod", "apply", &json!({"plan": seen})).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("has changed since it was shown"), "{refused}");
    assert_eq!(host.daemon("gpu1")["spec"], before);
    let none = post(&host, "prod", "apply", &json!({"plan": "7"})).problem(422, "invalid-request");
    assert_eq!(none["errors"][0]["pointer"], "/plan");
    let now = post(&host, "prod", "plan", &json!({})).ok()["digest"].clone();
    assert_ne!(now, seen);
    apply(&host, "prod", &json!({"plan": now}));
    assert!(matches(&host, "prod"));

    // Who comes and goes meanwhile changes nothing of what is done.
    host.api().tenant("web", &json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"})).ok();
    let bound = json!({"add": {"gpu": 0, "partition": "web", "chunks": 7, "tenants": ["web"]}});
    write(&host, "prod", &[bound.clone(), add("more", 2)]);
    apply(&host, "prod", &json!({}));
    write(&host, "prod", &[bound.clone(), add("more", 2), add("last", 1)]);
    let seen = post(&host, "prod", "plan", &json!({})).ok()["digest"].clone();
    let _client = host.run_client("web");
    let plan = eventually("the plan names the client", || {
        let plan = post(&host, "prod", "plan", &json!({})).ok();
        let held = plan["steps"].as_array()?.iter().any(|step| step["clients"] != json!([]));
        held.then_some(plan)
    });
    assert_eq!(plan["digest"], seen);
    apply(&host, "prod", &json!({"plan": seen}));
}

#[test]
fn a_layout_is_planned_applied_and_compared() {
    let host: InProcess = host();
    let gpu = uuid(&host, 1);
    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "max_clients": 4});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    let mut web = add("web", 7);
    web["add"]["tenants"] = json!(["parts", "later"]);
    assert_eq!(write(&host, "prod", &[web.clone(), add("gap", 2), add("batch", 5), remove("gap")]), 1);
    let plan = post(&host, "prod", "plan", &json!({})).ok();
    let planned: Vec<_> =
        plan["steps"].as_array().unwrap().iter().map(|step| step["action"].clone()).collect();
    assert_eq!(planned, ["add", "add", "add", "remove"]);
    assert_eq!(plan["steps"][0]["command"], format!("sm_partition add {gpu} 7"));
    assert_eq!(plan["gpus"][0]["after"], json!({"free": 3, "used": 12}));
    assert_eq!((&plan["gpus"][0]["left_over_sms"], &plan["in_force"]), (&json!(12), &json!(false)));
    let tenants = plan["tenants"].as_array().unwrap();
    assert_eq!((&tenants[0]["tenant"], &tenants[0]["known"]), (&json!("later"), &json!(false)));
    assert_eq!((&tenants[1]["tenant"], &tenants[1]["partitions"][0]["sms"]), (&json!("parts"), &json!(56)));
    let body = target(&json!({})).to_string();
    let path = "/api/v1/layouts/prod/plan";
    let text = host.api().send(Method::POST, path, &[("accept", "text/plain")], Some(body)).text;
    for line in
        ["--- daemon gpu1", "+ web: 7 chunks, 56 SMs", "- gap: 2 chunks, 16 SMs", "there is no such tenant"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
    let differs = post(&host, "prod", "assert", &json!({})).ok();
    assert_eq!((&differs["matches"], &differs["differences"][0]["kind"]), (&json!(false), &json!("spec")));

    let operation = apply(&host, "prod", &json!({"note": "at last"}));
    assert_eq!(
        steps(&operation),
        ["plan", "write the layout", "add web", "add gap", "add batch", "remove gap", "read back"]
    );
    let made = partitions(&host);
    assert_eq!(made.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["web", "batch"]);
    assert_eq!(operation["steps"][2]["outcome"], format!("{gpu}/{}", made[0].1));
    assert!(matches(&host, "prod"));
    assert_eq!(host.api().get("/api/v1/layouts/prod").ok()["daemons"], json!(["gpu1"]));
    let daemon = host.await_phase("gpu1", "ready");
    assert_eq!(daemon["spec"]["layout"]["gpu_map"], json!({"0": gpu}));
    let plan = post(&host, "prod", "plan", &json!({})).ok();
    assert_eq!((&plan["in_force"], &plan["needs_recreate"]), (&json!(true), &json!(false)));
    let again = apply(&host, "prod", &json!({}));
    assert_eq!(steps(&again), ["plan", "write the layout", "read back"], "nothing had to be done");

    // By its name, by its ID, and by both.
    let by = |name: &str| {
        let name = name.replace('/', "%2F").replace('+', "%2B");
        host.api().get(&format!("/api/v1/daemons/gpu1/partitions/{name}"))
    };
    let web = by("web").ok();
    assert_eq!(
        (&web["id"], &web["sms"], &web["tenants"]),
        (&json!(made[0].1), &json!(56), &json!(["parts", "later"]))
    );
    assert_eq!(by(&made[0].1).ok(), web);
    assert_eq!(by(&format!("{gpu}/{}", made[0].1)).ok(), web);
    by("gap").problem(404, "not-found");

    // One is added: what stays is not touched.
    write(&host, "prod", &[add("web", 7), add("gap", 2), add("batch", 5), remove("gap"), add("more", 3)]);
    assert!(!matches(&host, "prod"));
    let plan = post(&host, "prod", "plan", &json!({})).ok();
    assert_eq!(plan["needs_recreate"], false);
    apply(&host, "prod", &json!({}));
    let now = partitions(&host);
    assert_eq!(now[..2], made[..]);
    assert_eq!(now[2].0, "more");
}

#[test]
fn refused_plan_changes_nothing() {
    let host: InProcess = host();
    write(&host, "prod", &[add("web", 7), add("batch", 5)]);
    apply(&host, "prod", &json!({}));
    let before =
        (partitions(&host), host.daemon("gpu1")["spec"].clone(), host.logged("gpu1", "sm_partition"));
    let operations = || host.api().get("/api/v1/operations").ok()["items"].as_array().unwrap().len();
    let asked = operations();

    write(&host, "large", &[add("web", 7), add("batch", 5), add("more", 4)]);
    let problem = post(&host, "large", "apply", &json!({})).problem(409, "layout-blocked");
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("asks for 4 chunks") && detail.contains("3 are free"), "{detail}");
    assert_eq!(problem["errors"][0]["pointer"], "/version");

    // The order would change the IDs of what stays.
    write(&host, "turned", &[add("batch", 5), add("web", 7)]);
    let problem = post(&host, "turned", "apply", &json!({})).problem(409, "layout-blocked");
    assert_eq!(problem["errors"].as_array().unwrap().len(), 2);
    assert!(
        problem["errors"][0]["detail"]
            .as_str()
            .unwrap()
            .contains("mps-manager layout apply LAYOUT --daemon NAME --recreate"),
        "{problem}"
    );
    assert_eq!(post(&host, "turned", "plan", &json!({})).ok()["needs_recreate"], true);

    // A client holds a partition that would have to go.
    let tenant = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "max_clients": 4});
    assert_eq!(host.api().tenant("parts", &tenant).status, 201);
    host.await_ready();
    let client = host.stranger("gpu1", &format!("{}/{}", uuid(&host, 1), before.0[1].1));
    let id = host.listed(client.pid())["id"].as_str().unwrap().to_owned();
    write(&host, "smaller", &[add("web", 7)]);
    let problem = post(&host, "smaller", "apply", &json!({"recreate": true})).problem(409, "layout-blocked");
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.contains(&id) && detail.contains("batch"), "{detail}");
    drop(client);

    write(&host, "elsewhere", &[add("web", 1)]);
    for (name, body, status, kind) in [
        ("prod", json!({"daemon": "gpu9"}), 404, "not-found"),
        ("nothing", json!({"daemon": "gpu1"}), 404, "not-found"),
        ("prod", json!({"daemon": "gpu1", "version": 9}), 404, "not-found"),
        ("prod", json!({"daemon": "gpu0"}), 409, "conflict"),
        ("elsewhere", json!({"daemon": "gpu1"}), 422, "invalid-request"),
        ("prod", json!({"daemon": "gpu1", "gpu_map": {"1": "1"}}), 422, "invalid-request"),
        ("prod", json!({"daemon": "gpu1", "gpu_map": {"0": "7"}}), 422, "invalid-request"),
    ] {
        for verb in ["plan", "apply", "assert"] {
            host.api().post(&format!("/api/v1/layouts/{name}/{verb}"), &body).problem(status, kind);
        }
    }
    assert_eq!((partitions(&host), host.logged("gpu1", "sm_partition")), (before.0, before.2));
    assert_eq!((operations(), &host.daemon("gpu1")["spec"]), (asked, &before.1));
}

#[test]
fn invalid_layout_is_refused_by_pointer() {
    let host = InProcess::stopped();
    let bound = |partition: &str| {
        let mut step = add(partition, 2);
        step["add"]["tenants"] = json!(["demo"]);
        step
    };
    for (layout, pointer, message) in [
        (json!({"steps": [add("a", 2), add("a", 3)]}), "/layout/steps/1/add/partition", "made twice"),
        (json!({"steps": [bound("a"), bound("b")]}), "/layout/steps/1/add/tenants/0", "one partition a GPU"),
        (json!({"steps": [add("a", 0)]}), "/layout/steps/0/add/chunks", "at least 1"),
        (json!({"steps": [remove("a")]}), "/layout/steps/0/remove/partition", "no partition a"),
        (json!({"steps": [], "colour": 1}), "/layout/colour", "unknown field"),
        (json!({"steps": [], "sku": ""}), "/layout/sku", "not a product name"),
        (json!({"steps": [], "sku": "a\u{1b}b"}), "/layout/sku", "not a product name"),
        (json!({"steps": [], "sku": "x".repeat(97)}), "/layout/sku", "at most 96 characters"),
    ] {
        let problem = host.api().put("/api/v1/layouts/bad", &json!({"layout": layout}));
        let error = &problem.problem(422, "invalid-request")["errors"][0];
        assert_eq!(error["pointer"], pointer, "{error}");
        assert!(error["detail"].as_str().unwrap().contains(message), "{error}");
    }
    host.api().get("/api/v1/layouts/bad").problem(404, "not-found");
}

#[test]
fn layout_in_use_is_not_deleted() {
    let host: InProcess = host();
    write(&host, "prod", &[add("web", 7)]);
    apply(&host, "prod", &json!({}));
    let held = host.api().delete("/api/v1/layouts/prod").problem(409, "conflict");
    assert!(held["detail"].as_str().unwrap().contains("gpu1"), "{held}");
    let spec = host.daemon("gpu1")["spec"].clone();
    let mut without = spec.clone();
    without.as_object_mut().unwrap().remove("layout");
    let refused = host.api().put("/api/v1/daemons/gpu1", &without).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("applying another"), "{refused}");
    let mut repairs = spec.clone();
    repairs["layout"]["drift_policy"] = json!("repair");
    assert_eq!(
        host.api().put("/api/v1/daemons/gpu1", &repairs).status,
        200,
        "no partition is changed by that"
    );
    let mut missing = spec;
    missing["layout"]["version"] = json!(9);
    host.api().put("/api/v1/daemons/gpu2", &missing);

    // Without partitions a layout says that there are none.
    write(&host, "nothing", &[]);
    host.api().succeeds(&host.api().post("/api/v1/layouts/nothing/apply", &json!({"daemon": "gpu1"})));
    assert_eq!(partitions(&host), []);
    assert_eq!(host.api().delete("/api/v1/layouts/prod").status, 204);
    host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/stop?grace_s=0", &json!({})));
    let mut stopped = without.clone();
    stopped["desired_state"] = json!("stopped");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &stopped).status, 200);
    assert_eq!(host.api().delete("/api/v1/layouts/nothing").status, 204);
    let mut missing = stopped;
    missing["layout"] = json!({"name": "gone", "version": 1});
    let refused = host.api().put("/api/v1/daemons/gpu1", &missing).problem(422, "invalid-request");
    assert_eq!(refused["errors"][0]["pointer"], "/layout/version");
}

#[test]
fn static_partitions_need_control_program_support() {
    let mut host = InProcess::of("h200x2@13.0", "");
    host.serve();
    host.await_ready();
    write(&host, "prod", &[add("web", 7)]);
    let refused =
        host.api().post("/api/v1/layouts/prod/apply", &json!({"daemon": "gpu0"})).problem(409, "conflict");
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains("13010") || detail.contains("13.1"), "{detail}");
}

#[test]
fn apply_is_idempotent_under_its_key() {
    let host: InProcess = host();
    write(&host, "prod", &[add("web", 7)]);
    let post = |more: &Value| {
        let body = target(more).to_string();
        let path = "/api/v1/layouts/prod/apply";
        host.api().send(Method::POST, path, &[("idempotency-key", "k")], Some(body))
    };
    let first = post(&json!({}));
    host.api().succeeds(&first);
    write(&host, "prod", &[add("web", 9)]);
    assert_eq!(post(&json!({})).json()["id"], first.json()["id"]);
    post(&json!({"recreate": true})).problem(422, "idempotency-key-reused");
    let dry = host.api().post("/api/v1/layouts/prod/apply?dry_run=true", &target(&json!({"version": 1})));
    assert_eq!((dry.status, &dry.json()["request"]["version"]), (200, &json!(1)));
    assert_eq!(host.api().get("/api/v1/operations").ok()["items"].as_array().unwrap().len(), 1);
}

#[test]
fn reordered_layout_is_recreated_only_on_request() {
    let host: InProcess = host();
    write(&host, "prod", &[add("web", 7), add("batch", 5)]);
    apply(&host, "prod", &json!({}));
    let before = partitions(&host);
    write(&host, "prod", &[add("batch", 5), add("web", 7)]);
    apply(&host, "prod", &json!({"recreate": true}));
    let after = partitions(&host);
    assert_ne!(before.iter().find(|one| one.0 == "web"), after.iter().find(|one| one.0 == "web"));
    assert!(matches(&host, "prod"));
    // What held for that apply alone is over with it.
    assert_eq!(host.query_sql("SELECT daemon FROM layout_changes"), [] as [String; 0]);
    // The next process of the daemon gives the same IDs again, and would report it if it did not.
    let killed = host.daemon_pid("gpu1");
    signal(killed, Signal::KILL);
    eventually("another process is ready", || {
        let status = &host.daemon("gpu1")["status"];
        (status["pid"] != killed && status["phase"] == "ready").then_some(())
    });
    assert_eq!(partitions(&host), after);
    assert!(matches(&host, "prod"));
}
