//! Memory limits that differ from GPU to GPU: written in every spelling, handed out, enforced and verified.

use serde_json::{Value, json};

use super::layouts::uuid;
use super::verification::verify;
use crate::harness::{InProcess, Served, eventually};

/// A host whose one daemon, gpu0, has both GPUs and no tenants.
pub(super) fn of_two_gpus(stopped: bool) -> InProcess {
    let host = if stopped { InProcess::stopped() } else { InProcess::ready() };
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
    for daemon in ["gpu0", "gpu1"] {
        host.api().succeeds(&host.api().delete(&format!("/api/v1/daemons/{daemon}?grace_s=1")));
    }
    let spec = json!({"gpus": ["0", "1"], "desired_state": if stopped { "stopped" } else { "running" }});
    let written = host.api().put("/api/v1/daemons/gpu0", &spec);
    assert_eq!(written.status, 201, "{}", written.text);
    if !stopped {
        host.await_ready();
    }
    host
}

fn limits(tenant: &Value) -> Vec<(Value, Value)> {
    let limits = tenant["status"]["effective"]["device_memory_limits"].as_array().expect("limits").iter();
    limits.map(|limit| (limit["gpu"].clone(), limit["bytes"].clone())).collect()
}

#[test]
fn each_gpu_has_its_own_limit() {
    let host = of_two_gpus(false);
    let (zero, one) = (uuid(&host, 0), uuid(&host, 1));
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": {"0": "1G", &one: "2G"}});
    let written = host.api().tenant("both", &spec);
    assert_eq!(written.status, 201, "{}", written.text);
    let answered = json!({&zero: 1_u64 << 30, &one: 2_u64 << 30});
    assert_eq!(written.json()["spec"]["device_memory_limit"], answered);
    let second = json!({"daemon": "gpu0", "uid": 0, "gpus": ["1"], "device_memory_limit": "1=4G"});
    let second = host.api().tenant("second", &second);
    assert_eq!(second.json()["spec"]["device_memory_limit"], json!({&one: 4_u64 << 30}), "{}", second.text);
    host.await_ready();

    // The server counts GPUs as each client does, and the only one of the second tenant is its first.
    for (ordinal, printed) in [(0, "4G"), (1, "2G")] {
        let command = format!("get_default_device_pinned_mem_limit {ordinal}");
        assert_eq!(host.control("gpu0", &command), printed);
    }
    let read = host.api().get("/api/v1/tenants/both?fresh=true").ok();
    let expected = [(json!(zero), json!(1_u64 << 30)), (json!(one), json!(2_u64 << 30))];
    assert_eq!(limits(&read), expected);

    // No environment names a GPU that its process does not see: that would drop every limit.
    let variable = |tenant: &str| {
        let given = host.api().get(&format!("/api/v1/tenants/{tenant}/environment")).ok();
        given["variables"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].clone()
    };
    assert_eq!(variable("both"), format!("{zero}=1024M,{one}=2048M"));
    assert_eq!(variable("second"), format!("{one}=4096M"));

    for tenant in ["both", "second"] {
        let result = verify(&host, tenant);
        assert_eq!(result["outcome"], "verified", "{result}");
    }
    let client = host.client("both");
    let free: Vec<u64> = client.seen["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["memory_free"].as_u64().unwrap() >> 20)
        .collect();
    assert!(free[0] < 1024 && (1024..2048).contains(&free[1]), "{free:?}");
    let metrics = host.api().get("/metrics").text;
    for (gpu, bytes) in [(&zero, 1_u32 << 30), (&one, 1 << 31)] {
        let line = metrics.lines().find(|line| {
            line.starts_with("mps_manager_tenant_memory_limit_bytes{")
                && line.contains("\"both\"")
                && line.contains(gpu.as_str())
        });
        let value: f64 =
            line.and_then(|line| line.rsplit(' ').next()).expect("a line").parse().expect("a number");
        assert!((value - f64::from(bytes)).abs() < 1.0, "{line:?}");
    }
}

#[test]
fn limit_of_one_gpu_leaves_the_other_open() {
    let host = of_two_gpus(false);
    let (zero, one) = (uuid(&host, 0), uuid(&host, 1));
    let default = json!({"gpus": ["0", "1"], "defaults": {"device_memory_limit": {"1": "8G"}}});
    let written = host.api().put("/api/v1/daemons/gpu0", &default);
    assert_eq!(
        written.json()["spec"]["defaults"]["device_memory_limit"],
        json!({&one: 8_u64 << 30}),
        "{}",
        written.text
    );
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": {"0": "1G"}});
    assert_eq!(host.api().tenant("first", &spec).status, 201);
    // It has no limit on GPU 0, and the default on GPU 1.
    let plain = host.api().tenant("plain", &json!({"daemon": "gpu0", "uid": 0}));
    assert_eq!((plain.status, &plain.json()["status"]["weakens"]), (201, &json!(["first"])));
    host.await_ready();
    let read = |name: &str| host.api().get(&format!("/api/v1/tenants/{name}?fresh=true")).ok();
    let first = eventually("it is applied", || {
        let first = read("first");
        first["status"]["effective"].is_object().then_some(first)
    });
    let weakened = first["status"]["conditions"].as_array().expect("conditions");
    let weakened = weakened.iter().find(|condition| condition["type"] == "LimitWeakened").expect("reported");
    let words = weakened["message"].as_str().expect("text");
    assert!(
        words.starts_with("tenant plain has no memory limit on GPU 0, so the server has none there"),
        "{words}"
    );
    let rehearsed = ["tenant", "set", "m1", "--daemon", "gpu0", "--memory-limit", "1=2G", "--dry-run"];
    let words = String::from_utf8_lossy(&host.cli(&rehearsed).stdout).into_owned();
    let expected = "it has no memory limit on GPU 0, so that of first is held by the environment alone";
    assert!(words.contains(expected), "{words}");
    assert_eq!(limits(&first), [(json!(zero), json!(1_u64 << 30)), (json!(one), json!(8_u64 << 30))]);
    assert_eq!(limits(&read("plain")), [(json!(zero), json!(null)), (json!(one), json!(8_u64 << 30))]);
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 0"), "");
    assert_eq!(host.control("gpu0", "get_default_device_pinned_mem_limit 1"), "8G");
    assert_eq!(verify(&host, "first")["outcome"], "verified");
}

#[test]
fn unknown_gpus_in_limits_are_refused() {
    let host = of_two_gpus(true);
    let api = host.api();
    let spec =
        |limit: Value| json!({"daemon": "gpu0", "uid": 0, "gpus": ["0"], "device_memory_limit": limit});
    for (limit, word) in [
        (json!({"7": "1G"}), "there is no GPU 7: the GPUs of this host are 0 GPU-"),
        (json!({"1": "1G"}), "GPU 1 has a limit, and the tenant does not see it: add it to gpus"),
        (json!({}), "no GPU is named"),
        (json!("0=1G,0=2G"), "two limits"),
        (json!("0=1G,2G"), "GPU=SIZE"),
        (json!({"0": "512K"}), "whole number of MiB"),
        (json!([1]), "one for each GPU"),
    ] {
        let problem = api.tenant("web", &spec(limit.clone())).problem(422, "invalid-request");
        let error = &problem["errors"][0];
        assert!(error["pointer"].as_str().unwrap().starts_with("/device_memory_limit"), "{limit}: {problem}");
        assert!(error["detail"].as_str().unwrap().contains(word), "{limit}: {problem}");
    }
    refuses_gpus_of_others(&host);
}

/// A daemon of the first GPU alone lists what it has.
fn refuses_gpus_of_others(host: &Served) {
    let zero = uuid(host, 0);
    let narrow = json!({"gpus": ["0"], "desired_state": "stopped"});
    assert_eq!(host.api().put("/api/v1/daemons/gpu0", &narrow).status, 200);
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": {"1": "1G"}});
    let problem = host.api().tenant("web", &spec).problem(409, "not-admitted");
    assert_eq!(problem["errors"][0]["pointer"], "/device_memory_limit");
    assert!(
        problem["detail"].as_str().unwrap().ends_with(&format!("choose among GPU 0 ({zero})")),
        "{problem}"
    );
    let default = json!({"gpus": ["0"], "defaults": {"device_memory_limit": "1=1G"}});
    let problem = host.api().put("/api/v1/daemons/gpu0", &default).problem(422, "invalid-request");
    assert_eq!(problem["errors"][0]["pointer"], "/defaults/device_memory_limit");
    host.api().get("/api/v1/tenants/web").problem(404, "not-found");
}
