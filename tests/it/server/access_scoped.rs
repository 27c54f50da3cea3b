//! What a user bound to a tenant sees: nothing of other tenants, present or past.

use std::collections::BTreeMap;

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::metrics::Metrics;
use super::sessions::cookie;
use super::tokens::{create, made};
use crate::document::expanded;
use crate::harness::{Answer, EventStream, Host, InProcess, Served, eventually};

#[test]
fn recreated_tenant_sees_nothing_of_its_predecessor() {
    let host = InProcess::ready();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("web", &spec).status, 201);
    let former = host.api().with_token(Some(&create(&host, "former", "tenant:web")));
    let mut client = host.client("web");
    let id = host.listed(client.pid())["id"].as_str().expect("an ID").to_owned();
    let accepted = former.post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    former.succeeds(&accepted);
    client.ended();
    let past = former.get("/api/v1/events?limit=1000").ok()["items"].as_array().expect("items").clone();
    assert!(past.len() > 3, "{past:#?}");
    let gone = host.api();
    eventually("the tenant is forgotten", || {
        (gone.delete("/api/v1/tenants/web").status == 204).then_some(())
    });
    assert_eq!(host.api().tenant("web", &spec).status, 201);

    let (_, secret) = made(&host, &json!({"name": "latter", "grant": "tenant:web"}));
    let latter = host.api().with_token(Some(&secret));
    for query in
        ["", "&order=oldest", "&since=1970-01-01T00:00:00Z", "&tenant=web", "&gpu=1", "&type=tenant.,token."]
    {
        let reported = latter.get(&format!("/api/v1/events?limit=1000{query}")).ok();
        let reported = reported["items"].as_array().expect("items").clone();
        assert!(!reported.is_empty() || query == "&gpu=1", "{query}");
        assert!(reported.iter().all(|event| !past.contains(event)), "{query}: {reported:#?}");
        let first = reported.iter().map(|event| event["id"].as_i64()).min().flatten();
        let begun = reported.iter().find(|event| event["id"].as_i64() == first).cloned();
        assert!(begun.is_none_or(|begun| begun["type"] == "tenant.created"), "{query}: {reported:#?}");
    }
    for event in &past {
        latter.get(&format!("/api/v1/events/{}", event["id"])).problem(404, "not-found");
    }
    let mut stream = EventStream::open(&host.url(), &secret, "", Some(0)).expect("sent").expect("a stream");
    assert_eq!(stream.next()["type"], "tenant.created");
    assert_eq!(latter.get("/api/v1/operations").ok()["items"], json!([]));
    let operation = accepted.json()["id"].as_str().expect("an ID").to_owned();
    latter.get(&format!("/api/v1/operations/{operation}")).problem(404, "not-found");
    // To those of the host all of it is still there.
    assert_eq!(host.api().get(&format!("/api/v1/operations/{operation}")).ok()["state"], "succeeded");
    assert!(
        past.iter().all(|event| host.api().get(&format!("/api/v1/events/{}", event["id"])).status == 200)
    );
}

#[test]
fn tenant_cannot_discover_the_hosts_gpus() {
    let host = InProcess::ready();
    let gpus = host.api().get("/api/v1/gpus").ok()["items"].as_array().expect("items").clone();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    // demo is on the first; the other is none of its.
    let (own, other) = (text(&gpus[0]["uuid"]), text(&gpus[1]["uuid"]));
    let address = text(&gpus[1]["pci_bus_id"]);
    let (_, secret) = made(&host, &json!({"name": "t", "grant": "tenant:demo"}));
    let demo = host.api().with_token(Some(&secret));
    let absent = demo.get("/api/v1/events?gpu=GPU-00000000-0000-0000-0000-000000000000");
    assert_eq!(absent.status, 200, "{}", absent.text);
    let halves: Vec<String> = (5..other.len()).map(|end| other[..end].to_owned()).collect();
    // What can be no GPU's name is refused by its form alone, which says nothing of the host.
    let refused = demo.get("/api/v1/events?gpu=nonsense");
    refused.problem(422, "invalid-request");
    assert!(!refused.text.contains(&other), "{}", refused.text);
    let guesses = halves.into_iter().chain([other, address, "1".into(), "7".into()]);
    for guess in guesses.filter(|guess| !own.starts_with(guess)) {
        let answer = demo.get(&format!("/api/v1/events?gpu={guess}"));
        assert_eq!((answer.status, &answer.text), (200, &absent.text), "{guess}");
        let query = format!("?gpu={guess}");
        let stream = EventStream::open(&host.url(), &secret, &query, None).expect("sent");
        assert!(stream.is_ok(), "{guess}");
    }
    let client = host.client("demo");
    let id = text(&host.listed(client.pid())["id"]);
    let ended = demo.succeeds(&demo.post(&format!("/api/v1/clients/{id}/terminate"), &json!({})));
    let whole = host.api().get(&format!("/api/v1/operations/{}", text(&ended["id"]))).ok();
    assert_eq!(ended["steps"], whole["steps"], "nothing of what went well is kept from it");
    let of = |name: &str| demo.get(&format!("/api/v1/events?gpu={name}")).ok()["items"].clone();
    let reported = eventually("its own GPU is reported to it", || {
        let reported = of(&own);
        reported.as_array().is_some_and(|reported| !reported.is_empty()).then_some(reported)
    });
    assert!(reported.to_string().contains(&own), "{reported}");
    assert_eq!((of("0"), of(&own[..12])), (reported.clone(), reported), "by whatever names it");
    // A host user sees what is wrong.
    host.api().get("/api/v1/events?gpu=7").problem(422, "invalid-request");
}

#[test]
fn ended_session_names_its_expired_token() {
    let mut host = Host::ready();
    let (id, secret) = made(&host, &json!({"name": "short", "grant": "tenant:demo", "expires_in_s": 3600}));
    let _open = cookie(&host, &secret);
    // The table of those who may come in has lost it, and the session is still there.
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!("UPDATE tokens SET expires_at = unixepoch() * 1000 + 20000 WHERE id = '{id}'"));
    host.serve();
    let known = || host.api().get(&format!("/api/v1/tokens/{id}")).ok()["state"].clone();
    eventually("it has expired", || (known() == "expired").then_some(()));
    // Another token that is made takes up those that can be used now.
    create(&host, "another", "viewer");
    assert_eq!(host.api().delete(&format!("/api/v1/sessions?token={id}")).status, 204);
    let reported = host.events("&type=session.ended");
    let [event] = reported.as_slice() else { panic!("{reported:#?}") };
    assert_eq!(event["details"], json!({"kind": "token", "id": id, "name": "short"}));
    assert_eq!(event["subject"], json!({"tenant": "demo"}));
    assert!(event["message"].as_str().expect("text").contains(&id), "{event}");
}

/// Whether a number stands in a text, and not only its digits in a longer one.
fn has_number(text: &str, number: u32) -> bool {
    text.split(|letter: char| !letter.is_ascii_digit()).any(|digits| digits == number.to_string())
}

/// The request that follows events.
const STREAM: &str = "/api/v1/events/stream";

/// Every request of the document that reads or posts, with the tenant's own things in its path.
fn requests(host: &Served, names: &BTreeMap<&str, String>) -> Vec<(Method, String)> {
    let document = expanded(host.api().get("/openapi.json").json());
    let mut found = Vec::new();
    for (template, item) in document["paths"].as_object().expect("paths") {
        for method in [Method::GET, Method::POST] {
            let operation = &item[method.as_str().to_lowercase()];
            if operation.is_null() {
                continue;
            }
            let mut before = "";
            let parts = template.split('/').map(|part| {
                let name = part.starts_with('{').then(|| names.get(before).cloned());
                before = part;
                name.map_or_else(|| part.to_owned(), |name| name.unwrap_or_else(|| "1".to_owned()))
            });
            let path = parts.collect::<Vec<_>>().join("/");
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            for flag in ["fresh", "dry_run"] {
                if parameters.iter().any(|parameter| parameter["name"] == flag) {
                    found.push((method.clone(), format!("{path}?{flag}=true")));
                }
            }
            found.push((method, path));
        }
    }
    found
}

/// What is sent to a path that takes something.
fn body(path: &str, pid: u32, secret: &str) -> String {
    let body = match path.split('?').next().unwrap_or_default() {
        path if path.ends_with("/leases") => json!({ "pid": pid }),
        path if path.ends_with("/session") => json!({ "token": secret }),
        _ => json!({}),
    };
    body.to_string()
}

#[test]
fn answers_to_tenants_reveal_no_outsiders() {
    let host = Host::configured("control_deadline_s = 1\nfresh_timeout_s = 3");
    let (_, secret) = made(&host, &json!({"name": "t", "grant": "tenant:demo"}));
    let demo = host.api().with_token(Some(&secret));
    let (client, other) = (host.client("demo"), host.client("batch"));
    let id = host.listed(client.pid())["id"].as_str().expect("an ID").to_owned();
    assert_eq!(demo.get(&format!("/api/v1/clients/{id}")).status, 200, "its own");

    let held = host.hold("gpu0");
    let program = std::env::current_exe().expect("this test");
    let program = program.file_name().and_then(|name| name.to_str()).expect("a name").to_owned();
    let message = host.await_reason("gpu0", "SessionHeldOpen");
    assert!(
        has_number(&message, held.pid()) && message.contains(&program),
        "there is something to redact: {message}"
    );
    let ended = demo.outcome(&demo.post(&format!("/api/v1/clients/{id}/terminate"), &json!({})));
    assert_eq!(ended["state"], "failed", "{ended}");
    let operation = ended["id"].as_str().expect("an ID").to_owned();
    let reported = demo.get("/api/v1/events?limit=1000").ok();
    let failed =
        reported["items"].as_array().expect("items").iter().find(|event| event["type"] == "operation.failed");
    let failure = &failed.expect("reported")["id"];
    let whole = host.api().get(&format!("/api/v1/operations/{operation}")).ok();
    assert_ne!((&whole["error"], &whole["steps"]), (&ended["error"], &ended["steps"]));

    let names = BTreeMap::from([
        ("tenants", "demo".to_owned()),
        ("clients", id),
        ("operations", operation),
        ("events", failure.to_string()),
        ("daemons", "gpu0".to_owned()),
        ("gpus", "0".to_owned()),
    ]);
    let hidden = |text: &str, what: &str| {
        for pid in [held.pid(), std::process::id(), other.pid()] {
            assert!(!has_number(text, pid), "{what} names process {pid}: {text}");
        }
        for word in [&program, "batch", "started by"] {
            assert!(!text.contains(word), "{what} says {word}: {text}");
        }
    };
    let (mut answered, mut refused) = (0, 0);
    for (method, path) in requests(&host, &names) {
        // It has no end, and is read below.
        if path == STREAM {
            continue;
        }
        let sent = (method == Method::POST).then(|| body(&path, client.pid(), &secret));
        let answer = demo.send(method.clone(), &path, &[], sent);
        hidden(&answer.text, &format!("{method} {path}"));
        match answer.status {
            200..=299 => answered += 1,
            409 | 503 | 504 => refused += 1,
            _ => {}
        }
    }
    let mut stream = EventStream::open(&host.url(), &secret, "", Some(0)).expect("sent").expect("a stream");
    loop {
        let event = stream.next();
        hidden(&event.to_string(), STREAM);
        if event["id"] == *failure {
            break;
        }
    }
    assert!(
        answered >= 15 && refused >= 3,
        "{answered} were answered, and of {refused} the daemon stood in the way"
    );
    // The reason is named, and what to do.
    let tenant = demo.get("/api/v1/tenants/demo").ok();
    let conditions = tenant["status"]["conditions"].as_array().expect("conditions");
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").expect("reported");
    let message = ready["message"].as_str().expect("text");
    assert!(message.contains("(SessionHeldOpen)") && message.contains("operator"), "{ready}");
    let local = host.api().over(&host.runtime("api.sock"));
    let lease = local.with_token(Some(&secret)).post("/api/v1/tenants/demo/leases", &json!({}));
    assert!(lease.json()["detail"].as_str().expect("text").contains("(SessionHeldOpen)"), "{}", lease.text);
    // A host user sees all of it.
    let lease =
        host.api().post("/api/v1/tenants/demo/leases", &json!({"kind": "recorded", "pid": client.pid()}));
    assert!(has_number(&lease.text, held.pid()) && lease.text.contains(&program), "{}", lease.text);
}

#[test]
fn former_lease_owner_is_hidden_from_tenants() {
    let host = Host::ready();
    let local = host.api().over(&host.runtime("api.sock"));
    let demo = local.with_token(Some(&create(&host, "t", "tenant:demo")));
    let process = json!({"kind": "recorded", "pid": std::process::id()});
    assert_eq!(host.api().post("/api/v1/tenants/batch/leases", &process).status, 201);
    let lease = "/api/v1/tenants/demo/leases";
    let refused = demo.post(lease, &json!({}));
    refused.problem(409, "conflict");
    assert!(
        !refused.text.contains("batch") && refused.text.contains("for something else"),
        "{}",
        refused.text
    );
    assert!(host.api().post(lease, &process).text.contains("already admitted for tenant batch"));
}

#[test]
fn one_tenant_cannot_exhaust_journals_or_streams() {
    let host = InProcess::stopped_with("[events]\nstreams = 8");
    let (id, secret) = made(&host, &json!({"name": "t", "grant": "tenant:demo"}));
    let also = create(&host, "u", "tenant:demo");
    let log_in =
        |secret: &str| host.api().with_token(None).post("/api/v1/session", &json!({"token": secret}));
    let answers: Vec<Answer> = (0..60).map(|_| log_in(&secret)).collect();
    let opened = answers.iter().take_while(|answer| answer.status == 201).count();
    assert!((32..=34).contains(&opened), "{opened}");
    let refused = &answers[59];
    refused.problem(429, "too-many-requests");
    let wait: u32 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!((1..=60).contains(&wait), "{wait}");
    let rows = host.api().get(&format!("/api/v1/audit?limit=1000&actor=token%20{id}%20(t)")).ok();
    assert_eq!(rows["items"].as_array().expect("items").len(), opened, "a refusal leaves none");
    assert_eq!(host.events("&type=session.opened").len(), opened);
    assert_eq!(log_in(&also).status, 201, "another token is another matter");

    let open = |secret: &str| EventStream::open(&host.url(), secret, "", None).expect("sent");
    let streams: Vec<_> = (0..8).map_while(|n| open(if n == 0 { &also } else { &secret }).ok()).collect();
    assert_eq!(streams.len(), 2, "a quarter");
    let (status, text) = open(&secret).err().expect("refused");
    assert!(status == 429 && text.contains("a quarter of events.streams"), "{text}");
    assert!(open(&host.token()).is_ok(), "there is room for others");
    let metrics = Metrics::of(&host);
    let limited = |scope: &str| metrics.get(&format!("http_requests_limited_total{{scope=\"{scope}\"}}"));
    let log_ins = u32::try_from(60 - opened).expect("few");
    assert!((limited("log_in") - f64::from(log_ins)).abs() < 0.1, "{}", limited("log_in"));
    // The one that `map_while` ended at, and the one after it.
    assert!((limited("streams") - 2.0).abs() < 0.1, "{}", limited("streams"));
    assert!(limited("actor").abs() < 0.1 && limited("failures").abs() < 0.1);
}
