//! Tenants: written, read back, seen by a client.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Api, InProcess, eventually};

fn quarter() -> Value {
    json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25})
}

/// Waits until a tenant's present generation was read back, and gives the tenant.
fn applied(api: &Api, name: &str) -> Value {
    eventually("the tenant is applied", || {
        let tenant = api.get(&format!("/api/v1/tenants/{name}")).ok();
        (tenant["status"]["observed_generation"] == tenant["generation"]).then_some(tenant)
    })
}

#[test]
fn put_creates_then_replaces_under_its_etag() {
    let host = InProcess::stopped();
    let put = |headers: &[(&str, &str)], spec: &Value| {
        host.api().send(Method::PUT, "/api/v1/tenants/web", headers, Some(spec.to_string()))
    };
    let created = put(&[("if-none-match", "*")], &quarter());
    assert_eq!((created.status, created.revision()), (201, "\"1\"".to_owned()));
    assert_eq!(created.json()["spec"]["device_memory_limit"], 4_u64 << 30);
    put(&[("if-none-match", "*")], &quarter()).problem(412, "precondition-failed");

    let same = put(&[], &quarter());
    assert_eq!((same.status, same.revision()), (200, "\"1\"".to_owned()), "nothing changed");
    let mut spec = quarter();
    spec["max_clients"] = json!(2);
    let changed = put(&[("if-match", "\"1\"")], &spec);
    assert_eq!((changed.status, changed.revision()), (200, "\"2\"".to_owned()));
    let late = put(&[("if-match", "\"1\"")], &quarter()).problem(412, "precondition-failed");
    assert!(late["detail"].as_str().unwrap().contains("now \"2\""), "{late}");
    let read = host.api().get("/api/v1/tenants/web");
    assert_eq!(read.revision(), "\"2\"");
    assert_eq!(read.json()["spec"]["max_clients"], 2);

    let gone = |tag: &str| host.api().send(Method::DELETE, "/api/v1/tenants/web", &[("if-match", tag)], None);
    gone("\"1\"").problem(412, "precondition-failed");
    assert_eq!(gone("\"2\"").status, 204);
    host.api().get("/api/v1/tenants/web").problem(404, "not-found");
    put(&[("if-match", "\"2\"")], &quarter()).problem(412, "precondition-failed");
}

#[test]
fn one_of_many_concurrent_changes_wins() {
    let host = InProcess::stopped();
    assert_eq!(host.api().tenant("web", &quarter()).status, 201);
    let answers: Vec<u16> = std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=8)
            .map(|number| {
                let host = &host;
                scope.spawn(move || {
                    let mut spec = quarter();
                    spec["labels"] = json!({"writer": number.to_string()});
                    let headers = [("if-match", "\"1\"")];
                    host.api()
                        .send(Method::PUT, "/api/v1/tenants/web", &headers, Some(spec.to_string()))
                        .status
                })
            })
            .collect();
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    assert_eq!(answers.iter().filter(|status| **status == 200).count(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|status| **status == 412).count(), 7, "{answers:?}");
    assert_eq!(host.api().get("/api/v1/tenants/web").ok()["generation"], 2);
}

#[test]
fn dry_run_answers_without_writing() {
    let host = InProcess::ready();
    let before = host.daemon("gpu1")["generation"].clone();
    let changes = host.changes("gpu1");
    let dry = host.api().put("/api/v1/tenants/web?dry_run=true", &quarter());
    assert_eq!(dry.status, 200);
    assert_eq!(dry.json()["spec"]["active_thread_percentage"], 25.0);
    assert_eq!(host.api().send(Method::DELETE, "/api/v1/tenants/demo?dry_run=true", &[], None).status, 204);
    let refused = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "900G"});
    host.api().put("/api/v1/tenants/web?dry_run=true", &refused).problem(409, "not-admitted");

    host.api().get("/api/v1/tenants/web").problem(404, "not-found");
    assert_eq!(host.api().get("/api/v1/tenants/demo").status, 200);
    // A poll that begins now comes after anything that the dry runs could have caused.
    host.api().get("/api/v1/daemons/gpu1?fresh=true").ok();
    assert_eq!(host.daemon("gpu1")["generation"], before);
    assert_eq!(host.changes("gpu1"), changes);
}

#[test]
fn effective_status_matches_the_daemon() {
    let host = InProcess::ready();
    assert_eq!(host.api().tenant("web", &quarter()).status, 201);
    let tenant = applied(host.api(), "web");
    let effective = &tenant["status"]["effective"];
    let on = &effective["device_memory_limits"][0];
    assert_eq!((&on["bytes"], &on["enforced_by"]), (&json!(4_u64 << 30), &json!("server")));
    assert_eq!(effective["threads"]["enforced_by"], "server");
    assert_eq!(effective["threads"]["predicted_sms"], 32);

    let server = host.server_pid("gpu1");
    assert_eq!(host.control("gpu1", &format!("get_device_pinned_mem_limit {server} 0")), "4G");
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "4G");
    assert_eq!(host.control("gpu1", &format!("get_active_thread_percentage {server}")), "25.0");
    let daemon = host.api().get("/api/v1/daemons/gpu1?fresh=true").ok();
    let seen = &daemon["status"]["effective"];
    assert_eq!(seen["default_memory_limits"][0]["bytes"], 4_u64 << 30);
    assert_eq!(seen["servers"][0]["memory_limits"][0]["in_server_log"], true, "{seen}");
}

#[test]
fn status_shows_what_enforces_each_value() {
    let host = InProcess::ready();
    // The server has the largest of its tenants' values; the smaller ones live in the environment.
    let demo = applied(host.api(), "demo");
    let effective = &demo["status"]["effective"];
    assert_eq!(effective["device_memory_limits"][0]["enforced_by"], "environment");
    assert_eq!(effective["threads"]["enforced_by"], "environment");
    assert_eq!(effective["priority"], json!({"priority": "normal", "enforced_by": "none"}));
    let batch = applied(host.api(), "batch");
    let effective = &batch["status"]["effective"];
    assert_eq!(effective["device_memory_limits"][0]["enforced_by"], "server");
    assert_eq!(effective["threads"]["enforced_by"], "server");
    assert_eq!(effective["threads"]["predicted_sms"], 66);
    assert_eq!(effective["priority"]["enforced_by"], "environment");

    assert_eq!(host.api().tenant("free", &json!({"daemon": "gpu1", "uid": 0})).status, 201);
    let free = applied(host.api(), "free");
    let effective = &free["status"]["effective"];
    let on = &effective["device_memory_limits"][0];
    assert_eq!((&on["bytes"], &on["enforced_by"]), (&json!(null), &json!("none")));
    assert_eq!(effective["threads"]["enforced_by"], "none");
}

#[test]
fn client_in_given_environment_sees_its_share() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let device = &client.seen["devices"][0];
    assert_eq!(client.seen["mps"], true);
    assert_eq!(client.seen["devices"].as_array().unwrap().len(), 1);
    assert_eq!(device["sms"], 32);
    let free = device["memory_free"].as_u64().unwrap();
    assert!(free < 4 << 30 && free > 3 << 30, "{free}");
    assert!(device["memory_total"].as_u64().unwrap() > 100 << 30, "the total stays the whole GPU");
}

#[test]
fn environment_is_given_as_json_and_shell() {
    let host = InProcess::ready();
    let view = host.api().get("/api/v1/tenants/demo/environment").ok();
    assert_eq!(view["cdi_device"], "mps-manager.dev/tenant=demo", "however soon");
    let uuid = host.api().get("/api/v1/gpus/0").ok()["uuid"].as_str().unwrap().to_owned();
    let variables = &view["variables"];
    assert_eq!(variables["CUDA_VISIBLE_DEVICES"], uuid.as_str());
    assert_eq!(variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"], format!("{uuid}=4096M"));
    assert_eq!(variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "25.0");
    let pipe = variables["CUDA_MPS_PIPE_DIRECTORY"].as_str().unwrap();
    assert_eq!(std::path::Path::new(pipe).parent(), Some(host.runtime("tenants").as_path()));
    assert_eq!(view["container"]["mount"], pipe);
    assert_eq!(view["container"]["host_ipc"], false);
    for name in [
        "CUDA_MPS_SM_PARTITION",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
        "CUDA_DEVICE_ORDER",
    ] {
        assert!(view["unset"].as_array().unwrap().contains(&json!(name)), "{name}");
    }

    let headers = [("accept", "text/x-shellscript")];
    let shell = host.api().send(Method::GET, "/api/v1/tenants/demo/environment", &headers, None);
    let printed = host.cli(&["env", "demo"]);
    assert_eq!(shell.text, String::from_utf8(printed.stdout).unwrap());
    let as_json = host.cli(&["env", "demo", "--format", "json"]);
    assert_eq!(serde_json::from_slice::<Value>(&as_json.stdout).unwrap(), view);
    // A shell that reads the lines, whatever it had before, ends with exactly these values.
    let script = format!("export CUDA_MPS_SM_PARTITION=x\n{}env", shell.text);
    let output = std::process::Command::new("sh").args(["-c", &script]).env_clear().output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for (name, value) in variables.as_object().unwrap() {
        assert!(text.contains(&format!("{name}={}\n", value.as_str().unwrap())), "{name} in {text}");
    }
    assert!(!text.contains("CUDA_MPS_SM_PARTITION"));
    host.api().get("/api/v1/tenants/nobody/environment").problem(404, "not-found");
}

#[test]
fn many_tenants_come_in_pages_that_miss_none() {
    let host = InProcess::ready();
    for number in 0..45 {
        let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "64M", "labels": {"n": number.to_string()}});
        assert_eq!(host.api().tenant(&format!("t{number:02}"), &spec).status, 201);
    }
    let (mut names, mut pages, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let page = host.api().get(&format!("/api/v1/tenants?daemon=gpu1&limit=10{cursor}")).ok();
        names.extend(page["items"].as_array().unwrap().iter().map(|tenant| tenant["name"].clone()));
        pages += 1;
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let expected: Vec<Value> = (0..45).map(|number| json!(format!("t{number:02}"))).collect();
    assert_eq!((names, pages), (expected, 5));
    host.api().get("/api/v1/tenants?limit=0").problem(422, "invalid-request");
    host.api().get("/api/v1/tenants?cursor=%25%25").problem(422, "invalid-request");
    // Forty-five bursts of changes later the daemon holds the last of them.
    host.await_ready();
    assert_eq!(host.control("gpu1", "get_default_device_pinned_mem_limit 0"), "64M");
}

#[test]
fn tenant_with_running_client_is_not_deleted() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let refused = host.api().delete("/api/v1/tenants/demo").problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("processes running (1)"), "{refused}");
    let moved =
        json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "4G", "active_thread_percentage": 25});
    let refused = host.api().tenant("demo", &moved).problem(409, "conflict");
    assert!(refused["detail"].as_str().unwrap().contains("from daemon gpu0 to gpu1"), "{refused}");
    drop(client);
    eventually("the tenant is free", || {
        host.clients();
        (host.api().delete("/api/v1/tenants/demo").status == 204).then_some(())
    });
}

#[test]
fn clients_with_older_limits_are_counted() {
    let host = InProcess::ready();
    let read = || host.api().get("/api/v1/tenants/demo?fresh=true").ok();
    let older = || read()["status"]["effective"]["clients_with_other_limits"].clone();
    let _client = host.client("demo");
    assert_eq!(older(), 0);
    let mut spec = read()["spec"].clone();
    spec["device_memory_limit"] = json!("2G");
    assert_eq!(host.api().tenant("demo", &spec).status, 200);
    eventually("the new limit is in force", || (older() == 1).then_some(()));
    let shown = host.cli(&["tenant", "get", "demo"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("1 client was started with other limits, which it keeps until it ends"),
        "{shown}"
    );
    spec["device_memory_limit"] = json!("1G");
    spec["active_thread_percentage"] = json!(10);
    assert_eq!(host.api().tenant("demo", &spec).status, 200);
    eventually("it still has its first limits", || (older() == 1).then_some(()));
}
