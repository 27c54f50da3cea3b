//! What a daemon can hold, with the arithmetic shown.

use serde_json::json;

use crate::harness::InProcess;

#[test]
fn overcommitted_memory_is_refused_with_the_sum() {
    let host = InProcess::stopped();
    let half = json!({"daemon": "gpu1", "device_memory_limit": "30G", "max_clients": 3});
    assert_eq!(host.api().tenant("first", &half).status, 201);
    let too_much = json!({"daemon": "gpu1", "device_memory_limit": "50G"});
    let problem = host.api().tenant("second", &too_much).problem(409, "not-admitted");
    let detail = problem["detail"].as_str().unwrap();
    for part in ["first 30 GiB × 3", "second 50 GiB × 1", "140 GiB", "139.8 GiB", "memory_overcommit"] {
        assert!(detail.contains(part), "{part} in {detail}");
    }
    assert_eq!(problem["errors"][0]["pointer"], "/device_memory_limit");
    let unlimited = host.api().tenant("second", &json!({"daemon": "gpu1"})).problem(409, "not-admitted");
    assert!(unlimited["detail"].as_str().unwrap().contains("the whole GPU"), "{unlimited}");

    let wider = json!({"gpus": ["1"], "memory_overcommit": 1.5});
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &wider).status, 200);
    assert_eq!(host.api().tenant("second", &too_much).status, 201);
    let narrower = host.api().put("/api/v1/daemons/gpu1", &json!({"gpus": ["1"]})).problem(409, "conflict");
    assert!(narrower["detail"].as_str().unwrap().contains("140 GiB"), "{narrower}");
}

#[test]
fn more_clients_than_the_version_takes_are_refused() {
    let host = InProcess::stopped();
    let forty = json!({"daemon": "gpu1", "device_memory_limit": "1G", "max_clients": 40});
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
    let moved = json!({"daemon": "gpu1", "device_memory_limit": "8G", "sms": 66});
    assert_eq!(host.api().tenant("batch", &moved).status, 200);
    host.await_ready();
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "4G");
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "8G");
    assert_eq!(host.control("gpu0", "get_default_active_thread_percentage"), "25.0");
}
