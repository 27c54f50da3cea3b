//! Layouts whose partitions are thread percentages: found where nothing was measured, proven by CUDA clients after every
//! start of the daemon, and handed out to nobody before.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::foreign::{condition, delete};
use crate::harness::{Client, Host, eventually, said, signal};

/// Partitions of so many chunks of GPU 0, each with a tenant of its name.
fn layout(partitions: &[(&str, u32)]) -> Value {
    let add = |(name, chunks): &(&str, u32)| json!({"add": {"gpu": 0, "partition": name, "chunks": chunks, "tenants": [name]}});
    json!({"enforcement": "percentage", "steps": partitions.iter().map(add).collect::<Vec<_>>()})
}

/// A host of two GPUs whose last one has a daemon of this layout, with a tenant for each partition.
fn host_with(profile: &str, partitions: &[(&str, u32)]) -> Host {
    let mut host = Host::of(profile, "fresh_patience_s = 2");
    host.serve();
    host.await_ready();
    let gpu = last(&host);
    delete_tenants(&host);
    delete(&host, &format!("gpu{gpu}"));
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!(
        "INSERT INTO layouts (name, created_at) VALUES ('main', 0);
         INSERT INTO layout_versions (layout, version, content, author, created_at) VALUES ('main', 1, '{}', 'a test', 0);",
        layout(partitions)
    ));
    host.serve();
    let uuid = &host.api().get(&format!("/api/v1/gpus/{gpu}")).ok()["uuid"];
    let active = json!({"name": "main", "version": 1, "gpu_map": {"0": uuid}});
    let spec = json!({"gpus": [gpu.to_string()], "layout": active});
    assert_eq!(host.api().put("/api/v1/daemons/shared", &spec).status, 201);
    for (name, _) in partitions {
        let spec = json!({"daemon": "shared", "device_memory_limit": "2G", "max_clients": 2});
        assert_eq!(host.api().tenant(name, &spec).status, 201);
    }
    host
}

fn delete_tenants(host: &Host) {
    for tenant in ["demo", "batch"] {
        assert_eq!(host.api().delete(&format!("/api/v1/tenants/{tenant}")).status, 204);
    }
}

fn last(host: &Host) -> usize {
    host.api().get("/api/v1/gpus").ok()["items"].as_array().expect("items").len() - 1
}

/// Waits until the layout is in force, and gives its status.
fn applied(host: &Host) -> Value {
    let daemon = host.await_phase("shared", "ready");
    let layout = &daemon["status"]["layout"];
    assert_eq!(
        (&layout["state"], &layout["enforcement"]),
        (&json!("applied"), &json!("percentage")),
        "{daemon}"
    );
    layout.clone()
}

/// Chunks, percentage and SMs of each partition.
fn partitions(layout: &Value) -> Vec<(u64, f64, u64)> {
    let of = |partition: &Value| {
        let (chunks, sms) = (partition["chunks"].as_u64(), partition["sms"].as_u64());
        (chunks.expect("chunks"), partition["percentage"].as_f64().expect("a percentage"), sms.expect("SMs"))
    };
    layout["partitions"].as_array().expect("partitions").iter().map(of).collect()
}

/// The SMs that a CUDA program of a tenant sees.
fn sees(host: &Host, tenant: &str) -> u64 {
    let client = Client::start(host.client_command(tenant, &[]));
    client.seen["devices"][0]["sms"].as_u64().unwrap_or_else(|| panic!("{}", client.seen))
}

/// How many CUDA clients managers have sent to look.
fn sent(host: &Host) -> usize {
    host.log().matches("a CUDA client looks").count()
}

fn server_percentage(host: &Host) -> Value {
    host.daemon("shared")["status"]["effective"]["servers"][0]["active_thread_percentage"].clone()
}

const THREE: [(&str, u32); 3] = [("seven", 7), ("five", 5), ("three", 3)];

#[test]
fn three_partitions_of_an_h200_give_exactly_their_sms_also_after_the_daemons_death() {
    let host = host_with("h200x2@13.0", &THREE);
    let planned = [(7, 42.5, 56), (5, 30.4, 40), (3, 18.2, 24)];
    assert_eq!(partitions(&applied(&host)), planned);
    let seen = || THREE.map(|(tenant, _)| sees(&host, tenant));
    assert_eq!(seen(), [56, 40, 24]);
    assert_eq!(server_percentage(&host), json!(42.5), "nobody gets more by leaving the environment out");
    let effective = |tenant: &str| {
        let tenant = host.api().get(&format!("/api/v1/tenants/{tenant}")).ok();
        let threads = &tenant["status"]["effective"]["threads"];
        (threads["active_thread_percentage"].clone(), threads["enforced_by"].clone())
    };
    assert_eq!(effective("seven"), (json!(42.5), json!("server")));
    assert_eq!(effective("five"), (json!(30.4), json!("environment")));

    let before = host.daemon_pid("shared");
    signal(before, Signal::KILL);
    eventually("another daemon is ready", || {
        let daemon = host.daemon("shared");
        let another = daemon["status"]["pid"] != before && daemon["status"]["phase"] == "ready";
        another.then_some(())
    });
    assert_eq!(partitions(&applied(&host)), planned, "proven again");
    assert_eq!(seen(), [56, 40, 24]);
}

#[test]
fn a_bound_tenant_says_nothing_of_its_own_share() {
    let host = host_with("h200x2@13.0", &THREE);
    applied(&host);
    for (field, value) in [("sms", json!(32)), ("active_thread_percentage", json!(25))] {
        let mut spec = json!({"daemon": "shared", "device_memory_limit": "2G"});
        spec[field] = value;
        let refused = host.api().tenant("five", &spec).problem(409, "conflict");
        let detail = refused["detail"].as_str().expect("words");
        assert!(detail.contains("tenant five") && detail.contains(field), "{detail}");
        assert!(detail.contains("partition five"), "{detail}");
    }
    assert_eq!(host.api().get("/api/v1/tenants/five").ok()["generation"], 1, "nothing was changed");
    // A tenant that is in no partition may; the server follows, and the partitions stay as they are.
    let spec = json!({"daemon": "shared", "device_memory_limit": "2G", "sms": 66});
    assert_eq!(host.api().tenant("beside", &spec).status, 201);
    eventually("the server holds as much", || (server_percentage(&host) == json!(50.0)).then_some(()));
    assert_eq!((sees(&host, "beside"), sees(&host, "three")), (66, 24));
}

#[test]
fn where_nothing_was_measured_clients_find_the_percentages_and_the_next_start_takes_one_each() {
    for (profile, sms) in [("a100x2@13.0", [28, 48]), ("l40sx2@12.8", [28, 48])] {
        let mut host = host_with(profile, &[("seven", 7), ("twelve", 12)]);
        let found = partitions(&applied(&host));
        assert_eq!(found.iter().map(|(_, _, sms)| *sms).collect::<Vec<_>>(), sms, "{profile}");
        assert_eq!([sees(&host, "seven"), sees(&host, "twelve")], sms, "{profile}");
        assert_eq!(server_percentage(&host), json!(found[1].1), "{profile}: lowered once they are found");
        assert!(sent(&host) <= 20, "{profile}: {}", sent(&host));
        let effective = host.api().get("/api/v1/tenants/seven").ok()["status"]["effective"].clone();
        assert_eq!(effective["threads"]["measured_on_this_gpu"], false, "{profile}");

        let before = sent(&host);
        host.end_manager(Signal::KILL);
        host.serve();
        assert_eq!(
            partitions(&applied(&host)),
            found,
            "{profile}: nothing is believed, and the same is found"
        );
        assert_eq!(sent(&host) - before, 2, "{profile}: one for each size");
    }
}

#[test]
fn sms_that_no_percentage_gives_block_the_daemon_and_name_what_there_is() {
    // One chunk of an A100 is 4 SMs, and no client sees fewer than 8.
    let host = host_with("a100x2@13.0", &[("tiny", 1)]);
    let daemon = host.await_phase("shared", "blocked");
    let ready = condition(&daemon, "Ready").expect("a condition");
    assert_eq!(ready["reason"], "PartitionNotProven", "{ready}");
    let message = ready["message"].as_str().expect("words");
    assert!(message.contains("gives a CUDA client 4 SMs") && message.contains("8 above"), "{message}");
    assert_eq!(daemon["status"]["layout"]["state"], "failed");
    let refused = host.api().get("/api/v1/tenants/tiny/environment").problem(409, "conflict");
    assert!(refused["detail"].as_str().expect("words").contains("partition tiny"), "{refused}");
    assert_ne!(host.run("tiny", &["true"]).status.code(), Some(0));
}

#[test]
fn nobody_is_handed_a_share_before_a_client_has_seen_it() {
    let mut host = host_with("h200x2@13.0", &THREE);
    applied(&host);
    // A device has 127 connections: there is none left for a client that looks.
    let busy = ["32", "32", "32", "30"].map(|connections| {
        let mut command = host.client_command("seven", &["--spin", "600"]);
        command.env("CUDA_DEVICE_MAX_CONNECTIONS", connections);
        Client::start(command)
    });
    assert!(busy.iter().all(|client| client.seen["error"].is_null()), "{}", busy[3].seen);
    host.end_manager(Signal::KILL);
    host.serve();
    let daemon = host.await_phase("shared", "blocked");
    let ready = condition(&daemon, "Ready").expect("a condition");
    assert_eq!(ready["reason"], "PartitionNotSeen", "{ready}");
    assert!(ready["message"].as_str().expect("words").contains("MAX_CONNECTIONS_REACHED"), "{ready}");
    let layout = &daemon["status"]["layout"];
    let unproven = |partition: &Value| partition["percentage"].is_null() && partition["sms"].is_null();
    assert!(layout["partitions"].as_array().expect("partitions").iter().all(unproven), "{layout}");
    let refused = host.api().get("/api/v1/tenants/five/environment").problem(409, "conflict");
    let detail = refused["detail"].as_str().expect("words");
    assert!(detail.contains("partition five of tenant five is not proven"), "{detail}");
    assert_ne!(host.run("five", &["true"]).status.code(), Some(0));

    drop(busy);
    // It is looked again without anybody's asking.
    applied(&host);
    let output = host.run("five", &[crate::harness::MANAGER, "sim", "client", "--json"]);
    assert!(output.status.success(), "{}", said(&output));
    let seen: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(seen["devices"][0]["sms"], 40);
}
