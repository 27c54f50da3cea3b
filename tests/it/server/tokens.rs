//! Tokens: created, used, mistyped, and revoked.

use std::process::{Command, Stdio};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::{Answer, EventStream, Host, InProcess, Served, eventually, stderr_of, unix_ms};

/// Makes a token; gives its text.
pub(super) fn create(host: &Served, name: &str, grant: &str) -> String {
    made(host, &json!({"name": name, "grant": grant})).1
}

/// Makes a token; gives its ID and its text.
pub(super) fn made(host: &Served, request: &Value) -> (String, String) {
    let answer = host.api().post("/api/v1/tokens", request);
    assert_eq!(answer.status, 201, "{}", answer.text);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let made = answer.json();
    let id = text(&made["token"]["id"]);
    assert_eq!(answer.header("location"), Some(&*format!("/api/v1/tokens/{id}")));
    (id, text(&made["secret"]))
}

/// What a request is answered with this Authorization header.
fn with(host: &Served, authorization: &str) -> Answer {
    host.api().with_token(None).send(Method::GET, "/api/v1/whoami", &[("authorization", authorization)], None)
}

fn whoami(host: &Served, token: &str) -> Answer {
    with(host, &format!("Bearer {token}"))
}

#[test]
fn token_has_its_grant_and_is_shown_once() {
    let host = InProcess::stopped();
    let (id, secret) = made(&host, &json!({"name": "ci", "grant": "operator", "expires_in_s": 3600}));
    assert!(secret.starts_with(&format!("mpsm_{id}_")) && secret.len() == 5 + 16 + 1 + 64, "{secret}");
    let who = whoami(&host, &secret).ok();
    assert_eq!((&who["grant"], &who["origin"]), (&json!("operator"), &json!("127.0.0.1")));
    assert_eq!(who["subject"], format!("token {id} (ci)"));
    let listed = host.api().get("/api/v1/tokens");
    assert!(!listed.text.contains(&secret[22..]), "{}", listed.text);
    let token = &listed.json()["items"][0];
    assert_eq!((&token["state"], &token["created_by"]), (&json!("active"), &json!("admin token")));
    assert!(unix_ms(&token["last_used_at"]) >= unix_ms(&token["created_at"]));
    assert_eq!(unix_ms(&token["expires_at"]) - unix_ms(&token["created_at"]), 3_600_000);
    assert_eq!(host.api().get(&format!("/api/v1/tokens/{id}")).ok(), *token);
    let as_operator = host.api().with_token(Some(&secret));
    let refused = as_operator.delete("/api/v1/tenants/demo").problem(403, "forbidden");
    assert!(refused["detail"].as_str().unwrap().contains("needs the role admin"), "{refused}");
    as_operator.get("/api/v1/tokens").problem(403, "forbidden");
}

#[test]
fn tokens_and_revocations_survive_a_restart() {
    let mut host = Host::ready();
    let (kept, secret) = made(&host, &json!({"name": "kept", "grant": "viewer"}));
    let (_, gone) = made(&host, &json!({"name": "gone", "grant": "viewer"}));
    assert_eq!(whoami(&host, &secret).status, 200);
    let used = host.api().get(&format!("/api/v1/tokens/{kept}")).ok()["last_used_at"].clone();
    let id = gone[5..21].to_owned();
    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{id}")).status, 204);
    host.end_manager(Signal::TERM);
    host.serve();
    let after = host.api().get(&format!("/api/v1/tokens/{kept}")).ok();
    assert_eq!(after["last_used_at"], used);
    assert_eq!(whoami(&host, &secret).status, 200);
    whoami(&host, &gone).problem(401, "unauthorized");
    assert_eq!(host.api().get(&format!("/api/v1/tokens/{id}")).ok()["state"], "revoked");
}

#[test]
fn revoked_token_is_refused_at_once() {
    let host = InProcess::stopped();
    for round in 0..20 {
        let (id, secret) = made(&host, &json!({"name": "t", "grant": "viewer"}));
        assert_eq!(whoami(&host, &secret).status, 200, "{round}");
        let path = format!("/api/v1/tokens/{id}");
        assert_eq!(host.api().delete(&format!("{path}?dry_run=true")).status, 204);
        assert_eq!(whoami(&host, &secret).status, 200, "a dry run revokes nothing");
        assert_eq!(host.api().delete(&path).status, 204);
        whoami(&host, &secret).problem(401, "unauthorized");
        assert_eq!(host.api().delete(&path).status, 204, "revoked before");
    }
    host.api().delete("/api/v1/tokens/0123456789abcdef").problem(404, "not-found");
    host.api().delete("/api/v1/tokens/nonsense").problem(422, "invalid-request");
}

#[test]
fn name_of_a_valid_token_is_taken() {
    let host = InProcess::stopped();
    let request = json!({"name": "ci", "grant": "viewer"});
    let (id, _) = made(&host, &request);
    let problem = host.api().post("/api/v1/tokens", &request).problem(409, "conflict");
    let detail = problem["detail"].as_str().expect("words");
    assert!(detail.contains(&id) && detail.contains("named ci too"), "{problem}");
    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{id}")).status, 204);
    made(&host, &request);
}

#[test]
fn tenant_token_ends_with_its_tenant() {
    let host = InProcess::stopped();
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    assert_eq!(host.api().tenant("web", &spec).status, 201);
    let secret = create(&host, "web", "tenant:web");
    assert_eq!(host.api().with_token(Some(&secret)).get("/api/v1/tenants/web").status, 200);
    assert_eq!(host.api().delete("/api/v1/tenants/web").status, 204);
    whoami(&host, &secret).problem(401, "unauthorized");
    assert_eq!(host.api().tenant("web", &spec).status, 201);
    whoami(&host, &secret).problem(401, "unauthorized");
}

#[test]
fn new_token_request_is_validated() {
    let host = InProcess::stopped();
    let cases = [
        (json!({"name": "t", "grant": "root"}), "/grant"),
        (json!({"name": "t", "grant": "tenant:nobody"}), "/grant"),
        (json!({"name": "T", "grant": "viewer"}), "/name"),
        (json!({"name": "t", "grant": "viewer", "expires_in_s": 59}), "/expires_in_s"),
        (json!({"name": "t", "grant": "viewer", "expires_in_s": 1_000_000_000_000_u64}), "/expires_in_s"),
    ];
    for (request, pointer) in cases {
        let problem = host.api().post("/api/v1/tokens", &request).problem(422, "invalid-request");
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{problem}");
    }
    let dry = host.api().post("/api/v1/tokens?dry_run=true", &json!({"name": "t", "grant": "viewer"}));
    assert_eq!((dry.status, &dry.json()["secret"]), (200, &Value::Null));
    assert_eq!(host.api().get("/api/v1/tokens").ok()["items"], json!([]));
}

#[test]
fn invalid_tokens_get_the_same_answer() {
    let host = InProcess::stopped();
    let (_, secret) = made(&host, &json!({"name": "t", "grant": "viewer"}));
    let last = if secret.ends_with('0') { "1" } else { "0" };
    let forged = format!("{}{last}", &secret[..secret.len() - 1]);
    let unknown = format!("mpsm_{}_{}", "0".repeat(16), &secret[22..]);
    let answers =
        [&forged, &unknown, &secret[..secret.len() - 1], &secret[5..], "mpsm_", &secret.to_uppercase()]
            .map(|token| whoami(&host, token));
    for answer in &answers {
        answer.problem(401, "unauthorized");
        assert_eq!(answer.text, answers[0].text);
    }
    // None of these is the kind of thing that is looked up.
    for header in [
        format!("Basic {secret}"),
        format!("Token {secret}"),
        secret.clone(),
        "Bearer".to_owned(),
        "Bearer  ".to_owned(),
    ] {
        with(&host, &header).problem(401, "unauthorized");
    }
    assert_eq!(with(&host, &format!("bearer {secret}")).status, 200, "a scheme has no case");
}

#[test]
fn malformed_authorization_headers_are_refused() {
    let host = InProcess::stopped();
    let (_, secret) = made(&host, &json!({"name": "t", "grant": "viewer"}));
    let long = whoami(&host, &format!("{secret}{}", "0".repeat(4000))).problem(401, "unauthorized");
    assert!(long["detail"].as_str().unwrap().contains("too long"), "{long}");
    let bearer = format!("Bearer {secret}");
    let twice = [("authorization", &*bearer), ("authorization", &*bearer)];
    let nobody = host.api().with_token(None);
    let twice = nobody.send(Method::GET, "/api/v1/whoami", &twice, None).problem(401, "unauthorized");
    assert!(twice["detail"].as_str().unwrap().contains("several"), "{twice}");
    let strange = b"GET /api/v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer gr\xfcn\r\n\r\n";
    let strange = Answer::to_bytes(&host.url(), strange);
    assert!(strange.status == 401 && strange.text.contains("not printable ASCII"), "{}", strange.text);
    // A query is in logs and histories: a token in one is ignored.
    for path in [format!("/api/v1/host?token={secret}"), format!("/api/v1/host?access_token={secret}")] {
        nobody.get(&path).problem(401, "unauthorized");
    }
}

#[test]
fn an_expired_token_is_refused() {
    let mut host = Host::ready();
    let (id, secret) = made(&host, &json!({"name": "t", "grant": "viewer", "expires_in_s": 60}));
    assert_eq!(whoami(&host, &secret).status, 200);
    host.end_manager(Signal::TERM);
    host.execute_sql(&format!("UPDATE tokens SET expires_at = 1 WHERE id = '{id}'"));
    host.serve();
    whoami(&host, &secret).problem(401, "unauthorized");
    assert_eq!(host.api().get(&format!("/api/v1/tokens/{id}")).ok()["state"], "expired");
}

#[test]
fn other_tenants_resources_are_not_found() {
    let host = InProcess::ready();
    let client = host.client("demo");
    let id = host.listed(client.pid())["id"].as_str().unwrap().to_owned();
    let other = host.api().with_token(Some(&create(&host, "t", "tenant:batch")));
    let same = |method: Method, path: &str, name: &str, absent: &str, body: Option<String>| {
        let hidden = other.send(method.clone(), &path.replace("NAME", name), &[], body.clone());
        let missing = other.send(method, &path.replace("NAME", absent), &[], body);
        hidden.problem(404, "not-found");
        assert_eq!(hidden.text.replace(name, absent), missing.text, "{path}");
        assert_eq!(hidden.header_names(), missing.header_names());
    };
    let lease = Some(json!({"pid": std::process::id()}).to_string());
    same(Method::GET, "/api/v1/tenants/NAME", "demo", "nope", None);
    same(Method::GET, "/api/v1/tenants/NAME/environment", "demo", "nope", None);
    same(Method::GET, "/api/v1/tenants/NAME/clients", "demo", "nope", None);
    same(Method::POST, "/api/v1/tenants/NAME/leases", "demo", "nope", lease);
    let gone = format!(
        "{}-{}",
        "9".repeat(id.find('-').unwrap().min(6)),
        "1".repeat(id.len() - id.find('-').unwrap() - 1)
    );
    same(Method::GET, "/api/v1/clients/NAME", &id, &gone, None);
    same(Method::POST, "/api/v1/clients/NAME/terminate", &id, &gone, None);
    assert!(host.clients().iter().any(|listed| listed["id"] == *id), "it is still there");
    assert_eq!(other.get("/api/v1/clients").ok()["items"], json!([]));
    assert_eq!(other.get("/api/v1/clients?tenant=demo").ok()["items"], json!([]));
    let tenants = other.get("/api/v1/tenants").ok()["items"].clone();
    assert_eq!((tenants.as_array().unwrap().len(), &tenants[0]["name"]), (1, &json!("batch")));
    assert_eq!(other.get("/api/v1/tenants?daemon=gpu1").ok()["items"], json!([]));
}

#[test]
fn tenant_terminates_its_own_client() {
    let host = InProcess::ready();
    let mut client = host.client("demo");
    let id = host.listed(client.pid())["id"].as_str().unwrap().to_owned();
    let own = host.api().with_token(Some(&create(&host, "t", "tenant:demo")));
    let accepted = own.post(&format!("/api/v1/clients/{id}/terminate"), &json!({}));
    own.succeeds(&accepted);
    client.ended();
    let operation = accepted.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(own.get("/api/v1/operations").ok()["items"][0]["id"], *operation);
    let other = host.api().with_token(Some(&create(&host, "u", "tenant:batch")));
    other.get(&format!("/api/v1/operations/{operation}")).problem(404, "not-found");
    assert_eq!(other.get("/api/v1/operations").ok()["items"], json!([]));
    own.post(&format!("/api/v1/operations/{operation}/cancel"), &json!({})).problem(403, "forbidden");
}

#[test]
fn stream_ends_with_its_token() {
    let host = InProcess::stopped();
    let (id, secret) = made(&host, &json!({"name": "reader", "grant": "viewer"}));
    let mut stream = EventStream::open(&host.url(), &secret, "", None).expect("sent").expect("a stream");
    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{id}")).status, 204);
    eventually("the stream ends", || {
        let ended = stream.read(1000).is_err_and(|error| error.kind() == std::io::ErrorKind::UnexpectedEof);
        ended.then_some(())
    });
    let again = EventStream::open(&host.url(), &secret, "", None).expect("sent");
    assert!(matches!(again, Err((401, _))));
}

#[test]
fn process_of_another_user_gets_no_lease() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::ready();
    let stranger = Stranger::start();
    eventually("it is another user's", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", stranger.0.id())).ok()?;
        status.contains("Uid:\t4242").then_some(())
    });
    let secret = create(&host, "t", "tenant:demo");
    let own = host.api().with_token(Some(&secret));
    let path = "/api/v1/tenants/demo/leases";
    // A tenant names no process, not even its own user's.
    for pid in [4_000_000, stranger.0.id(), std::process::id()] {
        own.post(path, &json!({"kind": "recorded", "pid": pid})).problem(403, "forbidden");
    }
    let record = |pid: u32| host.api().post(path, &json!({"kind": "recorded", "pid": pid}));
    let refused = record(stranger.0.id()).problem(422, "invalid-request");
    let words = refused["errors"][0]["detail"].as_str().unwrap();
    assert!(words.contains("runs as uid 4242"), "{words}");
    // It takes a lease itself.
    let local = host.api().over(&host.runtime("api.sock")).with_token(Some(&secret));
    assert_eq!(local.post(path, &json!({})).status, 201);
    let full = host.run("demo", &["true"]);
    assert!(stderr_of(&full).contains("1 process running and max_clients is 1"), "{}", stderr_of(&full));
}

/// A process of another user, gone with the test.
struct Stranger(std::process::Child);

impl Stranger {
    fn start() -> Self {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "4242", "--regid", "4242", "--clear-groups", "sleep", "600"]);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv runs"))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn failed_tokens_are_delayed_valid_ones_not() {
    let host = InProcess::stopped();
    let (_, secret) = made(&host, &json!({"name": "t", "grant": "viewer"}));
    let begun = std::time::Instant::now();
    for _ in 0..12 {
        whoami(&host, "wrong").problem(401, "unauthorized");
    }
    // Ten at once, and on loopback the others a second late each.
    assert!(begun.elapsed() >= std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(whoami(&host, &secret).status, 200);
    assert_eq!(host.api().get("/api/v1/host").status, 200);
    // On the socket each user is one by itself, and is refused for a time.
    let socket = host.api().over(&host.runtime("api.sock"));
    let fail = || socket.send(Method::GET, "/api/v1/whoami", &[("authorization", "Bearer wrong")], None);
    let refused = (0..12).map(|_| fail()).find(|answer| answer.status == 429).expect("held back");
    refused.problem(429, "too-many-failures");
    let after: u32 = refused.header("retry-after").expect("a time").parse().expect("seconds");
    assert!((1..=6).contains(&after), "{after}");
    let counted = super::metrics::Metrics::of(&host).get("http_requests_limited_total{scope=\"failures\"}");
    assert!((counted - 1.0).abs() < 0.1, "{counted}");
    assert_eq!(socket.get("/api/v1/whoami").ok()["grant"], "admin");
}

#[test]
fn secrets_reach_neither_log_nor_database() {
    let mut host = Host::new("log_filter = \"trace\"");
    host.serve();
    host.await_ready();
    let (_, secret) = made(&host, &json!({"name": "t", "grant": "admin"}));
    let cookie = super::sessions::cookie(&host, &secret);
    let url = host.api().post("/api/v1/login-urls", &json!({})).ok()["url"].as_str().unwrap().to_owned();
    let wrong = format!("mpsm_{}_{}", "a".repeat(16), "b".repeat(64));
    whoami(&host, &wrong).problem(401, "unauthorized");
    let admin = host.token();
    assert_eq!(whoami(&host, &admin).status, 200);
    // Where a token does not belong.
    let path = format!("/api/v1/tokens/{secret}");
    host.api().delete(&path).problem(422, "invalid-request");
    host.api().get(&path).problem(422, "invalid-request");
    host.api()
        .with_token(None)
        .get(&format!("/api/v1/tenants/{secret}?token={secret}"))
        .problem(401, "unauthorized");
    for part in [secret.replace('_', "%5f"), secret.replace('m', "%6D"), admin.clone(), format!("x{admin}")] {
        for below in
            ["tokens/PART", "tenants/PART", "operations/PART/cancel", "gpus/PART/replace", "nowhere/PART"]
        {
            let path = format!("/api/v1/{}", below.replace("PART", &part));
            for answer in
                [host.api().delete(&path), host.api().post(&path, &json!({})), host.api().get(&path)]
            {
                assert!((400..500).contains(&answer.status), "{path}: {}", answer.text);
            }
        }
    }
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let code = url.split_once("code=").expect("a code").1.to_owned();
    assert_eq!(host.api().with_token(None).get(&format!("/login?code={code}")).status, 200);
    let logged_in =
        host.api().with_token(None).send(Method::POST, "/login", &form, Some(format!("code={code}")));
    assert!(logged_in.text.contains("Logged in") || logged_in.status == 200, "{}", logged_in.text);
    host.end_manager(Signal::TERM);
    let mut kept = host.log().into_bytes();
    for file in ["mps-manager.db", "mps-manager.db-wal"] {
        kept.extend(std::fs::read(host.state(file)).unwrap_or_default());
    }
    let cookie = cookie.split_once('=').expect("a value").1.to_owned();
    for secret in [&secret[22..], &cookie, &code, &"b".repeat(64), &admin] {
        let raw = hex(secret);
        for form in [secret.as_bytes(), &raw] {
            assert!(
                !kept.windows(form.len()).any(|part| part == form),
                "a secret is kept: {}…",
                &secret[..6]
            );
        }
    }
}

/// The bytes that a secret's text stands for.
fn hex(text: &str) -> Vec<u8> {
    let digit = |byte: u8| {
        char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok()).expect("hexadecimal")
    };
    text.as_bytes().chunks(2).map(|pair| digit(pair[0]) * 16 + digit(pair[1])).collect()
}

/// Runs the command line as a user with these supplementary groups; gives its exit code and all that it printed.
pub(super) fn as_user(host: &Served, uid: u32, groups: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let program = host.dir().join("program");
    if !program.exists() {
        host.program_for_everybody();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
    match groups {
        "" => command.arg("--clear-groups"),
        groups => command.args(["--groups", groups]),
    };
    let output =
        command.arg(program).args(arguments).env("MPS_MANAGER_RUNTIME_DIR", host.runtime("")).output();
    let output = output.expect("setpriv runs");
    (output.status.code(), format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr_of(&output)))
}

#[test]
fn socket_users_and_groups_have_configured_grants() {
    if !crate::harness::is_root() {
        return;
    }
    let lines = "[access]\nusers = { nobody = \"viewer\", \"4242\" = \"tenant:demo\" }\ngroups = { \"4343\" = \"operator\" }";
    let host = Host::configured(lines);
    let who = |uid: u32| as_user(&host, uid, "", &["whoami"]).1;
    assert!(who(65_534).contains("uid 65534: viewer (from socket)"), "{}", who(65_534));
    assert!(who(4242).contains("uid 4242: tenant:demo"), "{}", who(4242));
    assert!(who(4343).contains("uid 4343: operator"), "by its primary group: {}", who(4343));
    let (code, stranger) = as_user(&host, 4444, "", &["whoami"]);
    assert_eq!(code, Some(2), "{stranger}");
    assert!(stranger.contains("uid 4444 has no role here") && stranger.contains("[access]"), "{stranger}");
    let (_, refused) = as_user(&host, 65_534, "", &["token", "list"]);
    assert!(refused.contains("needs the role admin"), "{refused}");
}

#[test]
fn supplementary_group_counts_while_held() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::configured("[access]\ngroups = { \"4343\" = \"operator\" }");
    let whoami = |groups: &str| as_user(&host, 4444, groups, &["whoami"]).1;
    assert!(whoami("17,4343").contains("uid 4444: operator"), "{}", whoami("17,4343"));
    assert!(whoami("17").contains("has no role here"), "{}", whoami("17"));
}

#[test]
fn unknown_user_in_configuration_refuses_start() {
    let host = Host::new("[access]\nusers = { no_such_user_here = \"viewer\" }");
    let message = host.refused(&[]);
    assert!(
        message.contains("access.users.no_such_user_here") && message.contains("knows no user"),
        "{message}"
    );
}

#[test]
fn the_command_line_makes_lists_and_revokes_tokens() {
    let host = InProcess::stopped();
    let made = host.cli(&["token", "create", "ci", "--grant", "operator", "--expires-in", "3600"]);
    let secret = String::from_utf8(made.stdout.clone()).unwrap().trim().to_owned();
    assert!(made.status.success() && secret.starts_with("mpsm_"), "{}", stderr_of(&made));
    assert_eq!(whoami(&host, &secret).ok()["grant"], "operator");
    let listed = host.cli(&["token", "list"]);
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let id = &secret[5..21];
    assert!(text.contains(id) && text.contains("active") && !text.contains(&secret[22..]), "{text}");
    assert!(host.cli(&["token", "revoke", id]).status.success());
    whoami(&host, &secret).problem(401, "unauthorized");
    assert!(String::from_utf8_lossy(&host.cli(&["token", "list"]).stdout).contains("revoked"));
    let wrong = stderr_of(&host.cli(&["token", "revoke", &secret]));
    assert!(wrong.contains("never the token itself"), "{wrong}");
}
