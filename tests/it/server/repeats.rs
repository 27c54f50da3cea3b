//! `Idempotency-Key`: a repeated request is done once, whatever it does.

use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Answer, InProcess, Served};

fn post(host: &Served, path: &str, key: &str, body: Option<&Value>) -> Answer {
    host.api().send(Method::POST, path, &[("idempotency-key", key)], body.map(Value::to_string))
}

#[test]
fn repeated_posts_are_done_once() {
    let host = InProcess::stopped();
    let document = json!({"version": "v1", "layouts": {"lx": {"steps": []}}});
    let requests = [
        ("/api/v1/daemons/gpu0/cordon", None),
        ("/api/v1/daemons/gpu0/uncordon", None),
        ("/api/v1/layouts/import", Some(&document)),
    ];
    let rows = |action: &str| {
        let audit = host.api().get("/api/v1/audit?limit=1000").ok();
        let items = audit["items"].as_array().expect("rows").clone();
        items.iter().filter(|row| row["action"].as_str().is_some_and(|one| one.ends_with(action))).count()
    };
    for (number, (path, body)) in requests.into_iter().enumerate() {
        let key = format!("key-{number}");
        let first = post(&host, path, &key, body);
        assert_eq!(first.status, 200, "{path}: {}", first.text);
        let again = post(&host, path, &key, body);
        assert_eq!((again.status, &again.text), (first.status, &first.text), "{path}");
        for header in ["etag", "content-type", "location"] {
            assert_eq!(again.header(header), first.header(header), "{path} {header}");
        }
        let route = path.replace("gpu0", "{name}").replace("/api/v1", "");
        assert_eq!(rows(&route), 1, "{path}");
        post(&host, &format!("{path}?dry_run=true"), &key, body);
        post(&host, "/api/v1/daemons/gpu1/cordon", &key, None).problem(422, "idempotency-key-reused");
    }
    // A key belongs to the caller that used it, and a request that was refused has used none.
    post(&host, "/api/v1/daemons/gpu9/cordon", "late", None).problem(404, "not-found");
    assert_eq!(post(&host, "/api/v1/daemons/gpu1/cordon", "late", None).status, 200);
    assert_eq!(host.daemon("gpu0")["spec"]["schedulable"], true);
}

#[test]
fn a_repeated_token_has_no_secret() {
    let host = InProcess::stopped();
    let request = json!({"name": "ci", "grant": "viewer"});
    let first = post(&host, "/api/v1/tokens", "one", Some(&request));
    assert_eq!(first.status, 201, "{}", first.text);
    let first = first.json();
    assert!(first["secret"].is_string());
    let again = post(&host, "/api/v1/tokens", "one", Some(&request));
    assert_eq!(again.status, 200, "{}", again.text);
    assert_eq!(
        (&again.json()["secret"], &again.json()["token"]["id"]),
        (&Value::Null, &first["token"]["id"])
    );
    let other = json!({"name": "ci", "grant": "operator"});
    post(&host, "/api/v1/tokens", "one", Some(&other)).problem(422, "idempotency-key-reused");
    let tokens = host.api().get("/api/v1/tokens").ok();
    assert_eq!(tokens["items"].as_array().expect("tokens").len(), 1);

    post(&host, "/api/v1/login-urls", "two", None).problem(422, "idempotency-key-refused");
    let login = json!({"token": host.token()});
    post(&host, "/api/v1/session", "three", Some(&login)).problem(422, "idempotency-key-refused");
}
