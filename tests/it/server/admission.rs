//! Which tenants a daemon takes, with the arithmetic shown.

use serde_json::{Value, json};

use super::log_pages::page;
use crate::harness::InProcess;

#[test]
fn open_daemon_takes_tenants_without_limits() {
    let host = InProcess::stopped();
    for name in ["t1", "t2", "t3"] {
        let written = host.api().tenant(name, &json!({"daemon": "gpu1", "uid": 0}));
        assert_eq!(written.status, 201, "{}", written.text);
        assert_eq!(written.json()["spec"].get("max_clients"), None);
    }
    let large = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "100 GiB", "max_clients": 40});
    assert_eq!(host.api().tenant("large", &large).status, 201);
    let gpu = host.api().get("/api/v1/gpus/1").ok();
    assert_eq!((&gpu["memory_limits"], &gpu["tenants_without_limit"]), (&json!(4000_u64 << 30), &json!(3)));
}

#[test]
fn tenant_without_limit_names_whom_it_weakens() {
    let host = InProcess::ready();
    let weakened = |name: &str| {
        let tenant = host.api().get(&format!("/api/v1/tenants/{name}")).ok();
        let conditions = tenant["status"]["conditions"].as_array().expect("conditions").clone();
        conditions.into_iter().find(|condition| condition["type"] == "LimitWeakened")
    };
    assert_eq!(weakened("demo"), None);
    let plain = json!({"daemon": "gpu0", "uid": 0});
    let rehearsed = host.api().put("/api/v1/tenants/plain?dry_run=true", &plain).ok();
    assert_eq!(rehearsed["status"]["weakens"], json!(["batch", "demo"]));
    assert_eq!(weakened("demo"), None, "it was a dry run");

    let written = host.api().tenant("plain", &plain);
    assert_eq!((written.status, &written.json()["status"]["weakens"]), (201, &json!(["batch", "demo"])));
    let condition = weakened("demo").expect("it is reported");
    assert_eq!(condition["reason"], "NeighbourWithoutLimit");
    assert!(
        condition["message"].as_str().expect("text").starts_with("tenant plain has no memory limit"),
        "{condition}"
    );
    let overview = page(&host, "/");
    let weakened_here = "Only the environment holds the memory limit of tenants batch and demo";
    assert!(overview.contains(weakened_here), "{overview}");
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "", "the server has no limit");
    let enforced = |name: &str| {
        let tenant = host.api().get(&format!("/api/v1/tenants/{name}?fresh=true")).ok();
        tenant["status"]["effective"]["device_memory_limits"][0]["enforced_by"].clone()
    };
    assert_eq!((enforced("plain"), enforced("batch")), (json!("none"), json!("environment")));

    // A default limit of the daemon keeps a floor.
    let spec = json!({"gpus": ["0"], "defaults": {"device_memory_limit": "8G"}});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &spec).status, 200);
    assert_eq!(weakened("demo"), None);
    assert!(!page(&host, "/").contains(weakened_here));
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(enforced("batch"), "server");
}

/// A daemon whose tenants reserve what they may use.
fn reserved(extra: &Value) -> Value {
    let mut spec = json!({"gpus": ["1"], "admission": "reserved"});
    let fields = spec.as_object_mut().expect("an object");
    fields.extend(extra.as_object().expect("an object").clone());
    spec
}

#[test]
fn reserved_memory_is_refused_with_the_sum() {
    let host = InProcess::stopped();
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &reserved(&json!({}))).status, 200);
    let half = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "30G", "max_clients": 3});
    assert_eq!(host.api().tenant("first", &half).status, 201);
    let too_much = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "50G", "max_clients": 1});
    let problem = host.api().tenant("second", &too_much).problem(409, "not-admitted");
    let detail = problem["detail"].as_str().unwrap();
    for part in ["first 30 GiB × 3", "second 50 GiB × 1", "140 GiB", "139.8 GiB", "memory_overcommit"] {
        assert!(detail.contains(part), "{part} in {detail}");
    }
    assert_eq!(problem["errors"][0]["pointer"], "/device_memory_limit");
    for (spec, field) in [
        (json!({"daemon": "gpu1", "uid": 0, "max_clients": 1}), "device_memory_limit"),
        (json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"}), "max_clients"),
    ] {
        let problem = host.api().tenant("second", &spec).problem(409, "not-admitted");
        assert_eq!(problem["errors"][0]["pointer"], format!("/{field}"), "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("tenant second states no {field}")), "{detail}");
    }

    let wider = reserved(&json!({"memory_overcommit": 20.25}));
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &wider).status, 200);
    assert_eq!(host.api().tenant("second", &too_much).status, 201);
    let narrower = host.api().put("/api/v1/daemons/gpu1", &reserved(&json!({}))).problem(409, "conflict");
    assert!(narrower["detail"].as_str().unwrap().contains("140 GiB"), "{narrower}");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).status, 200, "open takes it");
}

#[test]
fn open_daemon_with_plain_tenants_becomes_not_reserved() {
    let host = InProcess::stopped();
    assert_eq!(host.api().tenant("plain", &json!({"daemon": "gpu1", "uid": 0})).status, 201);
    let problem = host.api().put("/api/v1/daemons/gpu1", &reserved(&json!({}))).problem(409, "conflict");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("tenant plain states no device_memory_limit"), "{detail}");
    assert_eq!(host.daemon("gpu1")["spec"]["admission"], "open");
}

#[test]
fn reserved_clients_stay_within_the_ceiling() {
    let host = InProcess::stopped();
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &reserved(&json!({}))).status, 200);
    let forty = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G", "max_clients": 40});
    assert_eq!(host.api().tenant("first", &forty).status, 201);
    let problem = host.api().tenant("second", &forty).problem(409, "not-admitted");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("60 clients") && detail.contains("= 80") && detail.contains("by 20"), "{detail}");
    assert_eq!(problem["errors"][0]["pointer"], "/max_clients");
}

#[test]
fn single_user_daemon_refuses_second_user() {
    let host = InProcess::ready();
    let of = |uid: u32| json!({"daemon": "gpu1", "device_memory_limit": "1G", "uid": uid});
    assert_eq!(host.api().tenant("first", &of(65_534)).status, 201);
    let problem = host.api().tenant("second", &of(65_533)).problem(409, "not-admitted");
    assert_eq!(problem["errors"][0]["pointer"], "/uid");
    assert!(problem["detail"].as_str().unwrap().contains("multi_user"), "{problem}");
    let shared = json!({"gpus": ["1"], "multi_user": true});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &shared).status, 200);
    assert_eq!(host.api().tenant("second", &of(65_533)).status, 201);
    host.await_ready();
    host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).problem(409, "conflict");
}

#[test]
fn a_tenant_that_moves_takes_its_share_along() {
    let host = InProcess::ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "8G");
    let moved = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "8G", "sms": 66});
    assert_eq!(host.api().tenant("batch", &moved).status, 200);
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "4G");
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "25.0");
}
