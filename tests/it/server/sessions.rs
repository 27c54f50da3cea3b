//! Sessions of browsers: opened, used from the same site only, and ended.

use std::io::{BufRead as _, BufReader};

use reqwest::Method;
use rustix::process::Signal;
use serde_json::json;

use super::tokens::as_user;
use crate::harness::{Answer, EventStream, Host, InProcess, Served, signal, unix_ms};

const NAME: &str = "mps_manager_session";
/// What a browser says of a request that a page of this server sent.
const SAME_SITE: (&str, &str) = ("sec-fetch-site", "same-origin");

/// Logs in with a token; gives the cookie as a browser sends it.
pub(super) fn cookie(host: &Served, token: &str) -> String {
    cookie_of(&log_in(host, token))
}

fn log_in(host: &Served, token: &str) -> Answer {
    let answer = host.api().with_token(None).post("/api/v1/session", &json!({"token": token}));
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer
}

fn cookie_of(answer: &Answer) -> String {
    let set = answer.header("set-cookie").expect("a cookie");
    let (pair, attributes) = set.split_once(';').expect("attributes");
    for attribute in ["Path=/", "HttpOnly", "SameSite=Strict"] {
        assert!(attributes.split(';').any(|given| given.trim() == attribute), "{set}");
    }
    assert!(pair.starts_with(NAME), "{set}");
    pair.to_owned()
}

fn send(host: &Served, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
    host.api().with_token(None).send(method, path, headers, None)
}

fn whoami(host: &Served, cookie: &str) -> Answer {
    send(host, Method::GET, "/api/v1/whoami", &[("cookie", cookie)])
}

fn token(host: &Served, grant: &str) -> (String, String) {
    token_named(host, "browser", grant)
}

fn token_named(host: &Served, name: &str, grant: &str) -> (String, String) {
    let made = host.api().post("/api/v1/tokens", &json!({"name": name, "grant": grant})).ok();
    let text = |value: &serde_json::Value| value.as_str().expect("text").to_owned();
    (text(&made["token"]["id"]), text(&made["secret"]))
}

#[test]
fn session_acts_as_its_token_until_logout() {
    let host = InProcess::stopped();
    let (id, secret) = token(&host, "viewer");
    let opened = log_in(&host, &secret);
    assert!(!opened.text.contains(&secret[22..]));
    let cookie = cookie_of(&opened);
    assert_eq!(whoami(&host, &cookie).ok()["subject"], format!("token {id} (browser)"));
    let shown = send(&host, Method::GET, "/api/v1/session", &[("cookie", &cookie)]).ok();
    assert_eq!(shown["grant"], "viewer");
    assert_eq!(unix_ms(&shown["ends_at"]) - unix_ms(&shown["last_used_at"]), 1_800_000);
    send(&host, Method::POST, "/api/v1/daemons/gpu1/cordon", &[("cookie", &cookie), SAME_SITE])
        .problem(403, "forbidden");
    // Among others, as a browser sends it.
    assert_eq!(whoami(&host, &format!("a=1; {cookie}; b=2")).status, 200);
    let other = log_in(&host, &secret);
    let out = send(&host, Method::DELETE, "/api/v1/session", &[("cookie", &cookie), SAME_SITE]);
    assert_eq!(out.status, 204);
    assert!(out.header("set-cookie").unwrap().contains("Max-Age=0"));
    whoami(&host, &cookie).problem(401, "unauthorized");
    assert_eq!(whoami(&host, &cookie_of(&other)).status, 200, "another session of the same token continues");
    host.api().get("/api/v1/session").problem(404, "not-found");
}

#[test]
fn a_session_ends_with_its_token() {
    let host = InProcess::stopped();
    let (id, secret) = token(&host, "operator");
    let cookie = cookie(&host, &secret);
    assert_eq!(whoami(&host, &cookie).status, 200);
    assert_eq!(host.api().delete(&format!("/api/v1/tokens/{id}")).status, 204);
    whoami(&host, &cookie).problem(401, "unauthorized");
}

#[test]
fn token_sessions_end_at_once_without_others() {
    let host = InProcess::stopped();
    let ((id, mine), (_, theirs)) = (token(&host, "viewer"), token_named(&host, "theirs", "viewer"));
    let (one, two, other) = (cookie(&host, &mine), cookie(&host, &mine), cookie(&host, &theirs));
    let all = "/api/v1/sessions";
    let named = format!("{all}?token={id}");
    send(&host, Method::DELETE, &named, &[("cookie", &other), SAME_SITE]).problem(403, "forbidden");
    assert_eq!(send(&host, Method::DELETE, all, &[("cookie", &one), SAME_SITE]).status, 204);
    for ended in [&one, &two] {
        whoami(&host, ended).problem(401, "unauthorized");
    }
    assert_eq!(whoami(&host, &other).status, 200);
    let again = cookie(&host, &mine);
    assert_eq!(host.api().delete(&named).status, 204, "an admin may name a token");
    host.api().delete(&format!("{all}?token=0123456789abcdef")).problem(404, "not-found");
    whoami(&host, &again).problem(401, "unauthorized");
    let admins = cookie(&host, &host.token());
    assert_eq!(host.api().delete(&format!("{all}?token=admin")).status, 204);
    whoami(&host, &admins).problem(401, "unauthorized");
}

#[test]
fn session_survives_restart_but_not_token_change() {
    let mut host = Host::ready();
    let (_, secret) = token(&host, "viewer");
    let (tokens, admins) = (cookie(&host, &secret), cookie(&host, &host.token()));
    let ended = cookie(&host, &secret);
    assert_eq!(send(&host, Method::DELETE, "/api/v1/session", &[("cookie", &ended), SAME_SITE]).status, 204);
    host.end_manager(Signal::TERM);
    host.serve();
    for cookie in [&tokens, &admins] {
        assert_eq!(whoami(&host, cookie).status, 200);
    }
    whoami(&host, &ended).problem(401, "unauthorized");
    host.end_manager(Signal::TERM);
    std::fs::remove_file(host.state("admin.token")).unwrap();
    host.serve();
    assert_eq!(whoami(&host, &tokens).status, 200);
    whoami(&host, &admins).problem(401, "unauthorized");
}

#[test]
fn session_ends_when_idle_or_too_old() {
    let mut host = Host::ready();
    let (_, secret) = token(&host, "viewer");
    let (idle, old, fresh) = (cookie(&host, &secret), cookie(&host, &secret), cookie(&host, &secret));
    host.end_manager(Signal::TERM);
    let ago = |seconds: i64| format!("unixepoch() * 1000 - {}", seconds * 1000);
    let digest = |cookie: &str| {
        use sha2::Digest as _;
        hex::encode(sha2::Sha256::digest(cookie.split_once('=').unwrap().1))
    };
    host.execute_sql(&format!(
        "UPDATE sessions SET last_used_at = {} WHERE digest = x'{}'",
        ago(1801),
        digest(&idle)
    ));
    host.execute_sql(&format!(
        "UPDATE sessions SET created_at = {} WHERE digest = x'{}'",
        ago(43_201),
        digest(&old)
    ));
    host.execute_sql(&format!(
        "UPDATE sessions SET last_used_at = {} WHERE digest = x'{}'",
        ago(1700),
        digest(&fresh)
    ));
    host.serve();
    whoami(&host, &idle).problem(401, "unauthorized");
    whoami(&host, &old).problem(401, "unauthorized");
    assert_eq!(whoami(&host, &fresh).status, 200);
    host.end_manager(Signal::TERM);
    assert_eq!(
        host.query_sql("SELECT CAST(count(*) AS TEXT) FROM sessions"),
        ["1"],
        "those that are over are forgotten"
    );
}

#[test]
fn a_page_of_another_site_changes_nothing() {
    let host = InProcess::stopped();
    let cookie = cookie(&host, &host.token());
    let cordon = "/api/v1/daemons/gpu1/cordon";
    let address = host.url();
    let foreign = "http://evil.example";
    let cases: [(&[(&str, &str)], bool); 12] = [
        (&[SAME_SITE], true),
        (&[("origin", &address)], true),
        (&[("sec-fetch-site", "none")], true),
        (&[], false),
        (&[("sec-fetch-site", "cross-site")], false),
        (&[("sec-fetch-site", "same-site")], false),
        (&[("sec-fetch-site", "cross-site"), ("origin", &address)], false),
        (&[("origin", foreign)], false),
        (&[("origin", "null")], false),
        (&[("origin", "")], false),
        (&[("sec-fetch-site", "")], false),
        (&[("sec-fetch-site", ""), ("origin", "")], false),
    ];
    for (proof, taken) in cases {
        let mut headers = vec![("cookie", &*cookie)];
        headers.extend(proof);
        let answer = send(&host, Method::POST, cordon, &headers);
        if taken {
            assert_eq!(answer.status, 200, "{proof:?} {}", answer.text);
            assert_eq!(host.api().post("/api/v1/daemons/gpu1/uncordon", &json!({})).status, 200);
        } else {
            answer.problem(403, "cross-site");
            assert_eq!(host.daemon("gpu1")["spec"]["schedulable"], true, "{proof:?}");
        }
    }
    // Logging in as another user is such a change, too.
    let body = Some(json!({"token": host.token()}).to_string());
    let nobody = host.api().with_token(None);
    nobody.send(Method::POST, "/api/v1/session", &[("origin", foreign)], body).problem(403, "cross-site");
    // A program with a token is no browser.
    assert_eq!(host.api().post(cordon, &json!({})).status, 200);
    // Reading is no change: the browser does not show the answer to another site.
    let read =
        send(&host, Method::GET, "/api/v1/whoami", &[("cookie", &cookie), ("sec-fetch-site", "cross-site")]);
    assert_eq!(read.header("cross-origin-resource-policy"), Some("same-origin"));
}

#[test]
fn rebound_host_name_is_refused() {
    let host = InProcess::stopped_with("[access]\nhosts = [\"gpu7.example\"]");
    let get = |name: &str| send(&host, Method::GET, "/healthz", &[("host", name)]);
    for name in ["localhost", "LOCALHOST:1", "127.0.0.1:8640", "[::1]:8640", "10.0.0.1", "gpu7.example:443"] {
        assert_eq!(get(name).status, 200, "{name}");
    }
    for name in
        ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "gpu7.example.evil", "a b"]
    {
        get(name).problem(421, "wrong-host");
    }
}

#[test]
fn every_answer_has_strict_headers() {
    let host = InProcess::stopped();
    let answers = [
        host.api().get("/api/v1/host"),
        host.api().with_token(None).get("/api/v1/host"),
        host.api().get("/healthz"),
        host.api().get("/nowhere"),
        host.api().get("/login"),
        send(&host, Method::GET, "/healthz", &[("host", "evil.example")]),
        host.api().send(Method::POST, "/api/v1/session", &[("origin", "http://evil.example")], None),
    ];
    for answer in answers {
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "same-origin"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{} {}", answer.status, answer.text);
        }
        assert!(answer.header("x-request-id").is_some(), "{} {}", answer.status, answer.text);
        let policy = answer.header("content-security-policy").expect("a policy");
        assert!(
            policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
    }
}

/// Sends the form of the log-in page.
fn submit(host: &Served, form: &str) -> Answer {
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    host.api().with_token(None).send(Method::POST, "/login", &headers, Some(form.to_owned()))
}

#[test]
fn login_link_works_once_and_survives_viewing() {
    let host = Host::ready();
    let printed = String::from_utf8(host.cli(&["login-url"]).stdout).unwrap();
    let url = printed.trim();
    let (page, code) = url.split_once("?code=").expect("a code");
    assert_eq!(page, format!("{}/login", host.url()));
    for _ in 0..3 {
        let shown = send(&host, Method::GET, &format!("/login?code={code}"), &[]);
        assert!(shown.status == 200 && shown.text.contains(&format!("value=\"{code}\"")), "{}", shown.text);
        assert!(shown.header("set-cookie").is_none() && !shown.text.contains("<script"));
    }
    let logged_in = submit_unfollowed(&host, &format!("code={code}"));
    assert_eq!((logged_in.status, logged_in.header("location")), (303, Some("/")));
    let cookie = cookie_of(&logged_in);
    let home = send(&host, Method::GET, "/", &[("cookie", &cookie)]);
    assert!(home.text.contains("admin token") && home.text.contains("Overview"), "{}", home.text);
    let again = submit(&host, &format!("code={code}"));
    assert!(again.status == 401 && again.text.contains("used before"), "{}", again.text);
    let out =
        host.api().with_token(None).send(Method::POST, "/logout", &[("cookie", &cookie), SAME_SITE], None);
    assert!(out.text.contains("Log in"), "{}", out.text);
    whoami(&host, &cookie).problem(401, "unauthorized");
}

/// The same, and the answer itself, not where it leads.
fn submit_unfollowed(host: &Served, form: &str) -> Answer {
    let head = format!(
        "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/x-www-form-urlencoded\r\n\
         Content-Length: {}\r\n\r\n{form}",
        form.len()
    );
    Answer::to_bytes(&host.url(), head.as_bytes())
}

/// Makes an address as a user of the socket; gives its code.
fn code_of(host: &Served, uid: u32) -> Result<String, String> {
    let (code, output) = as_user(host, uid, "", &["login-url"]);
    match output.trim().split_once("?code=") {
        Some((_, text)) if code == Some(0) => Ok(text.to_owned()),
        _ => Err(output),
    }
}

#[test]
fn login_link_session_follows_current_configuration() {
    if !crate::harness::is_root() {
        return;
    }
    let mut host = Host::configured("[access]\nusers = { \"4242\" = \"admin\" }");
    let logged_in = |host: &Host| {
        let code = code_of(host, 4242).expect("an address");
        cookie_of(&submit_unfollowed(host, &format!("code={code}")))
    };
    let (one, two) = (logged_in(&host), logged_in(&host));
    let who = whoami(&host, &one).ok();
    assert_eq!((&who["subject"], &who["grant"]), (&json!("uid 4242"), &json!("admin")));
    // It is no session of the admin token, and ends with the user's own.
    assert_eq!(host.api().delete("/api/v1/sessions?token=admin").status, 204);
    assert_eq!(send(&host, Method::DELETE, "/api/v1/session", &[("cookie", &two), SAME_SITE]).status, 204);
    assert_eq!((whoami(&host, &one).status, whoami(&host, &two).status), (200, 401));
    let reported = host.events("&type=session.");
    let message = |event: &serde_json::Value| event["message"].as_str().unwrap().to_owned();
    assert!(reported.iter().all(|event| message(event).contains("a session of uid 4242")), "{reported:#?}");

    let config = host.dir().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let granted = |host: &mut Host, users: &str| {
        host.end_manager(Signal::TERM);
        std::fs::write(&config, text.replace("users = { \"4242\" = \"admin\" }", users)).unwrap();
        host.serve();
        whoami(host, &one)
    };
    let viewer = granted(&mut host, "users = { \"4242\" = \"viewer\" }");
    assert_eq!(viewer.ok()["grant"], "viewer");
    granted(&mut host, "users = {}").problem(401, "unauthorized");
    assert_eq!(code_of(&host, 0).map(|code| code.len()), Ok(64), "root could read the admin token");
}

#[test]
fn admin_can_end_sessions_of_a_user() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::configured("[access]\nusers = { \"4242\" = \"admin\" }");
    let logged_in = |uid: u32| {
        let code = code_of(&host, uid).expect("an address");
        cookie_of(&submit_unfollowed(&host, &format!("code={code}")))
    };
    let (users, roots) = (logged_in(4242), logged_in(0));
    let all = "/api/v1/sessions";
    let (_, secret) = token(&host, "operator");
    let operator = host.api().with_token(Some(&secret));
    operator.delete(&format!("{all}?uid=4242")).problem(403, "forbidden");
    host.api().delete(&format!("{all}?uid=4243")).problem(404, "not-found");
    host.api().delete(&format!("{all}?uid=4242&token=admin")).problem(422, "invalid-request");
    assert_eq!([&users, &roots].map(|cookie| whoami(&host, cookie).status), [200; 2]);
    let ended = host.api().delete(&format!("{all}?uid=4242"));
    assert_eq!(ended.status, 204, "{}", ended.text);
    assert_eq!([&users, &roots].map(|cookie| whoami(&host, cookie).status), [401, 200]);
    let row = host.api().get("/api/v1/audit?outcome=done&limit=1").ok()["items"][0].clone();
    assert_eq!((&row["action"], &row["target"]), (&json!("DELETE /api/v1/sessions"), &json!("users/4242")));

    // On the socket, root is who it is in a browser.
    assert_eq!(host.api().over(&host.runtime("api.sock")).delete(all).status, 204);
    whoami(&host, &roots).problem(401, "unauthorized");
    let again = logged_in(0);
    assert_eq!(host.api().delete(&format!("{all}?uid=0")).status, 204);
    whoami(&host, &again).problem(401, "unauthorized");
}

#[test]
fn stream_follows_a_tenant_created_later() {
    if !crate::harness::is_root() {
        return;
    }
    let mut host = Host::configured("[access]\nusers = { \"4242\" = \"admin\" }");
    let code = code_of(&host, 4242).expect("an address");
    let cookie = cookie_of(&submit_unfollowed(&host, &format!("code={code}")));
    let config = host.dir().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    host.end_manager(Signal::TERM);
    std::fs::write(&config, text.replace("\"admin\" }", "\"tenant:late\" }")).unwrap();
    host.serve();
    host.await_ready();
    let mut stream = EventStream::open_as(&host.url(), &format!("Cookie: {cookie}"), "", Some(0))
        .expect("sent")
        .expect("a stream");
    let spec = json!({"daemon": "gpu1", "uid": 0, "device_memory_limit": "1G"});
    let mut reported = |kind: &str| {
        let event = stream.next();
        assert_eq!((&event["type"], &event["subject"]["tenant"]), (&json!(kind), &json!("late")), "{event}");
        event["id"].as_i64()
    };
    // Others' events go by before, and between, and none of the tenant's is lost, its end among them.
    for round in 0..2 {
        assert_eq!(host.api().tenant(&format!("other{round}"), &spec).status, 201);
        assert_eq!(host.api().tenant("late", &spec).status, 201);
        let created = reported("tenant.created");
        assert_eq!(host.api().delete("/api/v1/tenants/late").status, 204);
        assert!(reported("tenant.deleted") > created);
    }
}

#[test]
fn login_link_survives_rate_limiting() {
    let host = InProcess::stopped();
    let code = code_of(&host, rustix::process::geteuid().as_raw()).expect("an address");
    let admin = host.token();
    let nobody = host.api().with_token(None);
    let too_many = |_: &u32| nobody.post("/api/v1/session", &json!({"token": admin})).status == 429;
    assert!((0..60).find(too_many).is_some_and(|opened| opened >= 32));
    for attempt in 0..2 {
        let refused = submit(&host, &format!("code={code}"));
        assert_eq!(refused.status, 429, "{attempt}: {}", refused.text);
        assert!(refused.header("content-type").is_some_and(|kind| kind.starts_with("text/html")));
        assert!(refused.header("retry-after").is_some_and(|wait| wait.parse::<u32>().is_ok()));
        assert!(
            refused.text.contains("too many logins") && refused.text.contains(&format!("value=\"{code}\"")),
            "{}",
            refused.text
        );
    }
    // A client that is no browser is refused as any program is.
    let program = nobody.post("/api/v1/session", &json!({"token": admin}));
    program.problem(429, "too-many-requests");
}

#[test]
fn group_admin_logs_in_with_own_token() {
    if !crate::harness::is_root() {
        return;
    }
    let host = Host::configured("[access]\ngroups = { \"4343\" = \"admin\" }");
    let refused = code_of(&host, 4343).expect_err("refused");
    assert!(
        refused.contains("uid 4343 has its role through a group") && refused.contains("token create"),
        "{refused}"
    );
    let (_, output) = as_user(&host, 4343, "", &["token", "create", "me", "--grant", "admin"]);
    let secret = output.lines().find(|line| line.starts_with("mpsm_")).expect("a token");
    assert_eq!(whoami(&host, &cookie(&host, secret)).ok()["grant"], "admin");
}

#[test]
fn login_page_accepts_token_and_escapes_output() {
    let host = InProcess::stopped();
    let (_, secret) = token(&host, "viewer");
    let logged_in = submit_unfollowed(&host, &format!("token={secret}"));
    assert_eq!(whoami(&host, &cookie_of(&logged_in)).ok()["grant"], "viewer");
    for form in ["token=wrong", "code=wrong", "", "token=a&code=b", "%zz"] {
        let refused = submit(&host, form);
        assert!(
            matches!(refused.status, 400 | 401) && refused.text.contains("role=\"alert\""),
            "{form}: {}",
            refused.text
        );
    }
    let shown = send(&host, Method::GET, "/login?code=%22%3E%3Cscript%3Ealert(1)%3C/script%3E", &[]);
    assert!(!shown.text.contains("<script") && shown.text.contains("&#60;script"), "{}", shown.text);
}

#[test]
fn only_first_start_prints_login_link() {
    let host = Host::new("");
    let first = printed(&host);
    let console = |lines: &[String]| {
        lines.iter().find(|line| line.starts_with("Console: ")).expect("the console's address").clone()
    };
    let line = console(&first);
    assert!(line.contains("/login?code=") && line.contains("logs in once"), "{line}");
    let line = console(&printed(&host));
    assert!(!line.contains("code=") && line.contains("mps-manager login-url"), "{line}");
}

/// What the manager prints from its start to its end.
fn printed(host: &Host) -> Vec<String> {
    let mut manager = host.start_manager();
    let mut output = BufReader::new(manager.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let first = output.next().expect("it serves");
    signal(manager.id(), Signal::TERM);
    manager.wait().expect("waited for");
    std::iter::once(first).chain(output).collect()
}
