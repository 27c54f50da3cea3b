//! Shares that a daemon's strategy gives: shown, recomputed when tenants come and go, and seen by CUDA clients.

use serde_json::{Value, json};

use super::tokens::create;
use super::verification::verify;
use crate::harness::{Client, InProcess, Served, eventually};

/// Gives gpu1 a strategy.
fn strategy(host: &Served, provisioning: &Value) {
    let spec = json!({"gpus": ["1"], "provisioning": provisioning});
    let written = host.api().put("/api/v1/daemons/gpu1", &spec);
    assert_eq!(written.status, 200, "{}", written.text);
}

fn plain() -> Value {
    json!({"daemon": "gpu1", "uid": 0})
}

/// The shares of gpu1's tenants, by name.
fn shares(host: &Served) -> Vec<(String, f64)> {
    named(&host.daemon("gpu1")["status"]["provisioning"])
}

fn named(provisioning: &Value) -> Vec<(String, f64)> {
    let shares = provisioning["shares"].as_array().expect("shares").iter();
    let share = |share: &Value| {
        let name = share["tenant"].as_str().expect("a name").to_owned();
        (name, share["active_thread_percentage"].as_f64().expect("a number"))
    };
    shares.map(share).collect()
}

fn all(host: &Served, names: &[&str], percentage: f64) -> bool {
    let expected: Vec<_> = names.iter().map(|name| ((*name).to_owned(), percentage)).collect();
    shares(host) == expected
}

fn sms(client: &Client) -> &Value {
    &client.seen["devices"][0]["sms"]
}

#[test]
fn uniform_shares_follow_tenants() {
    let host = InProcess::ready();
    strategy(&host, &json!({"strategy": "uniform"}));
    for name in ["a", "b", "c", "d"] {
        assert_eq!(host.api().tenant(name, &plain()).status, 201);
    }
    host.await_ready();
    assert!(all(&host, &["a", "b", "c", "d"], 25.0));
    let before = host.client("a");
    assert_eq!(sms(&before), 32);
    assert_eq!(verify(&host, "b")["outcome"], "verified");

    let rehearsed = host.api().put("/api/v1/tenants/e?dry_run=true", &plain()).ok();
    let provisioning = &rehearsed["status"]["provisioning"];
    assert_eq!((&provisioning["clients"], &provisioning["clients_from"]), (&json!(5), &json!("tenants")));
    assert!(
        named(provisioning).iter().all(|(_, percentage)| (percentage - 20.0).abs() < 1e-9),
        "{provisioning}"
    );
    assert!(all(&host, &["a", "b", "c", "d"], 25.0), "it was a dry run");

    let written = host.api().tenant("e", &plain());
    assert_eq!(written.status, 201);
    // The answer says who still has the old share.
    let of_a = written.json()["status"]["provisioning"]["shares"][0].clone();
    assert_eq!((&of_a["active_thread_percentage"], &of_a["clients_with_another"]), (&json!(20.0), &json!(1)));
    host.await_ready();
    assert!(all(&host, &["a", "b", "c", "d", "e"], 20.0));
    let verified = host.api().get("/api/v1/tenants/b").ok()["status"]["verification"]["last"].clone();
    assert_eq!((&verified["outcome"], &verified["stale"]), (&json!("verified"), &json!("share_changed")));
    for name in ["a", "b", "c", "d", "e"] {
        let ready = || {
            let tenant = host.api().get(&format!("/api/v1/tenants/{name}?fresh=true")).ok();
            let conditions = tenant["status"]["conditions"].as_array().expect("conditions").clone();
            conditions
                .into_iter()
                .find(|condition| condition["type"] == "Ready" && condition["status"] == true)
        };
        eventually("the tenant is ready", ready);
    }
    let after = host.client("a");
    assert_eq!((sms(&before), sms(&after)), (&json!(32), &json!(26)), "a running client keeps its share");
    assert_eq!(host.control("gpu1", "get_default_active_thread_percentage"), "20.0");
    let share = || host.daemon("gpu1")["status"]["provisioning"]["shares"][0]["clients_with_another"].clone();
    assert_eq!(share(), 1);
    drop(before);
    eventually("it has ended", || (share() == 0).then_some(()));

    drop(after);
    eventually("no client is left", || (host.api().delete("/api/v1/tenants/e").status == 204).then_some(()));
    host.await_ready();
    assert!(all(&host, &["a", "b", "c", "d"], 25.0), "the others get more");
    assert_eq!(sms(&host.client("b")), 32);
}

#[test]
fn weights_divide_a_gpu() {
    let host = InProcess::ready();
    strategy(&host, &json!({"strategy": "weighted"}));
    let weighing = |weight: u32| json!({"daemon": "gpu1", "uid": 0, "weight": weight});
    assert_eq!(host.api().tenant("heavy", &weighing(3)).status, 201);
    let light = host.api().tenant("light", &weighing(1));
    assert_eq!((light.status, &light.json()["spec"]["weight"]), (201, &json!(1)));
    let problem = host.api().tenant("none", &weighing(0)).problem(422, "invalid-request");
    assert!(problem["detail"].as_str().is_some() && problem.to_string().contains("8 SMs"), "{problem}");
    host.await_ready();
    assert_eq!(shares(&host), [("heavy".to_owned(), 75.0), ("light".to_owned(), 25.0)]);
    assert_eq!(host.control("gpu1", "get_default_active_thread_percentage"), "75.0", "the largest");
    let threads = |name: &str| {
        host.api().get(&format!("/api/v1/tenants/{name}?fresh=true")).ok()["status"]["effective"]["threads"]
            .clone()
    };
    assert_eq!(threads("heavy")["enforced_by"], "server");
    assert_eq!(
        (threads("light")["enforced_by"].clone(), threads("light")["predicted_sms"].clone()),
        (json!("environment"), json!(32))
    );
    assert_eq!((sms(&host.client("heavy")), sms(&host.client("light"))), (&json!(98), &json!(32)));

    let printed = |words: &[&str]| String::from_utf8_lossy(&host.cli(words).stdout).into_owned();
    let shown = printed(&["daemon", "get", "gpu1"]);
    for share in ["heavy: weight 3, 75.0 %, 98 SMs\n", "light: weight 1, 25.0 %, 32 SMs\n"] {
        assert!(shown.contains(share), "{shown}");
    }
    let listed = printed(&["tenant", "list", "--daemon", "gpu1", "-o", "wide"]);
    assert!(listed.lines().next().is_some_and(|headings| headings.contains("WEIGHT")), "{listed}");

    // A share of its own is taken off first.
    let own = json!({"daemon": "gpu1", "uid": 0, "active_thread_percentage": 20});
    assert_eq!(host.api().tenant("own", &own).status, 201);
    assert_eq!(
        shares(&host),
        [("heavy".to_owned(), 60.0), ("light".to_owned(), 20.0), ("own".to_owned(), 20.0)]
    );
    let all = json!({"daemon": "gpu1", "uid": 0, "active_thread_percentage": 50, "max_clients": 2});
    let problem = host.api().tenant("own", &all).problem(409, "not-admitted");
    assert_eq!(problem["errors"][0]["pointer"], "/active_thread_percentage");
    assert!(problem["detail"].as_str().unwrap().contains("own 50.0 % × 2 = 100 %"), "{problem}");
}

#[test]
fn tenants_see_their_own_share_alone() {
    let host = InProcess::stopped();
    strategy(&host, &json!({"strategy": "relaxed", "expected_clients": 40}));
    for name in ["a", "b"] {
        assert_eq!(host.api().tenant(name, &plain()).status, 201);
    }
    let whole = host.api().get("/api/v1/tenants/a").ok();
    let provisioning = &whole["status"]["provisioning"];
    assert_eq!(named(provisioning), [("a".to_owned(), 5.0), ("b".to_owned(), 5.0)]);
    assert_eq!(provisioning["clients_from"], "expected_clients");
    let share = &provisioning["shares"][0]["gpus"][0];
    assert_eq!((&share["predicted_sms"], &share["below_minimum"]), (&json!(8), &json!(true)));
    let conditions = whole["status"]["conditions"].as_array().unwrap();
    let small =
        conditions.iter().find(|condition| condition["type"] == "ShareBelowMinimum").expect("it is said");
    assert!(small["message"].as_str().unwrap().contains("lower expected_clients"), "{small}");

    let listed = host.api().get("/api/v1/tenants?daemon=gpu1").ok();
    for tenant in listed["items"].as_array().unwrap() {
        let shares = named(&tenant["status"]["provisioning"]);
        assert_eq!(shares, [(tenant["name"].as_str().unwrap().to_owned(), 5.0)]);
    }
    let token = create(&host, "ours", "tenant:a");
    let own = host.api().with_token(Some(&token)).get("/api/v1/tenants/a").ok();
    assert_eq!(named(&own["status"]["provisioning"]), [("a".to_owned(), 5.0)]);
}

#[test]
fn strategy_excludes_other_shares() {
    let host = InProcess::stopped();
    let refused = |spec: &Value, pointer: &str, word: &str| {
        let problem = host.api().put("/api/v1/daemons/gpu1", spec).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
        assert!(problem["errors"][0]["detail"].as_str().unwrap().contains(word), "{problem}");
    };
    let uniform = json!({"strategy": "uniform"});
    let default =
        json!({"gpus": ["1"], "provisioning": uniform, "defaults": {"active_thread_percentage": 50}});
    refused(&default, "/defaults/active_thread_percentage", "leave one of them out");
    refused(
        &json!({"gpus": ["1"], "provisioning": uniform, "mode": "static"}),
        "/provisioning/strategy",
        "static mode",
    );
    for clients in [0, 61, 1000] {
        let wrong =
            json!({"gpus": ["1"], "provisioning": {"strategy": "uniform", "expected_clients": clients}});
        refused(&wrong, "/provisioning/expected_clients", "no version of MPS takes more than 60");
    }

    // Neither beside a layout nor under one.
    strategy(&host, &uniform);
    let layout = json!({"layout": {"enforcement": "percentage", "steps": [
        {"add": {"gpu": 0, "partition": "p", "chunks": 2}},
    ]}});
    assert_eq!(host.api().put("/api/v1/layouts/main", &layout).status, 201);
    let problem =
        host.api().post("/api/v1/layouts/main/apply", &json!({"daemon": "gpu1"})).problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("set its provisioning to none"), "{problem}");
    let named = json!({"gpus": ["1"], "provisioning": uniform, "layout": {"name": "main", "version": 1}});
    refused(&named, "/provisioning/strategy", "layout main");
}
