//! The console's forms as a browser sends them: what a refusal names, and what a form writes.

use serde_json::{Value, json};

use super::layouts::{add, in_static_mode, write};
use crate::harness::{Answer, InProcess, Served, eventually, unix_ms};

/// Sends a form as an admin's browser does.
pub(super) fn send(host: &Served, path: &str, fields: &[(&str, &str)]) -> Answer {
    send_as(host, &host.token(), path, fields)
}

fn send_as(host: &Served, token: &str, path: &str, fields: &[(&str, &str)]) -> Answer {
    let cookie = super::sessions::cookie(host, token);
    let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAccept: text/html\r\nSec-Fetch-Site: same-origin\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\nCookie: {cookie}\r\n\r\n{form}",
        form.len()
    );
    Answer::to_bytes(&host.url(), request.as_bytes())
}

/// The error summary of a refused form.
fn summary(answer: &Answer, status: u16) -> &str {
    assert_eq!(answer.status, status, "{}", answer.text);
    let begun = answer.text.split_once("<div class=\"refusal\" role=\"alert\" tabindex=\"-1\" autofocus>");
    let (_, rest) = begun.unwrap_or_else(|| panic!("no summary: {}", answer.text));
    rest.split_once("</div>").expect("its end").0
}

/// Whether a summary links to a field, which the page has.
fn names(answer: &Answer, status: u16, field: &str, why: &str) {
    let shown = summary(answer, status);
    let line = shown.split("<li>").find(|line| line.contains(&format!("href=\"#{field}\"")));
    let line = line.unwrap_or_else(|| panic!("{field} is not named: {shown}"));
    assert!(line.contains(why), "{field}: {line}");
    assert!(answer.text.contains(&format!("id=\"{field}\"")), "there is no field {field}");
}

#[test]
fn refused_form_names_all_wrong_fields() {
    let host = InProcess::stopped();
    let base = [("daemon", "gpu1"), ("uid", "0"), ("share", "default")];
    let with = |more: &[(&'static str, &'static str)]| send(&host, "/tenants", &[&base[..], more].concat());
    let answer = with(&[("name", "Not A Name"), ("device_memory_limit", "400G")]);
    names(&answer, 422, "name", "Not A Name");
    names(&answer, 422, "device_memory_limit", "400 GiB");
    let answer = with(&[
        ("name", "web"),
        ("device_memory_limit", "lots"),
        ("max_clients", "two"),
        ("priority", "high"),
        ("expires_at", "soon"),
        ("labels", "team"),
    ]);
    for (field, why) in [
        ("device_memory_limit", "lots"),
        ("max_clients", "two"),
        ("priority", "high"),
        ("expires_at", "for example 2d"),
        ("labels", "team=search"),
    ] {
        names(&answer, 422, field, why);
    }
    // What only the service finds is named beside what the form finds.
    let sms = [("daemon", "gpu1"), ("uid", "0"), ("share", "sms"), ("sms", "33"), ("name", "w")];
    let sms = send(
        &host,
        "/tenants",
        &[&sms[..], &[("device_memory_limit", "400G"), ("max_clients", "x")]].concat(),
    );
    assert!([409, 422].contains(&sms.status), "{}", sms.text);
    for field in ["max_clients", "device_memory_limit", "sms"] {
        names(&sms, sms.status, field, "");
    }
    let daemon =
        [("name", "Gpu 0"), ("gpus", "9"), ("defaults.device_memory_limit", "x"), ("wedge_grace_s", "y")];
    let answer = send(&host, "/daemons/-/new", &daemon);
    for field in ["name", "defaults.device_memory_limit", "wedge_grace_s"] {
        names(&answer, 422, field, "");
    }
    let token = send(&host, "/tokens/new", &[("name", "A B"), ("grant", "king"), ("expires_in_s", "soon")]);
    for field in ["name", "grant", "expires_in_s"] {
        names(&token, 422, field, "");
    }
    let layout = [("name", "A B"), ("text", "steps:\r\n  - add: {gpu: 0, partition: Web, chunks: 7}")];
    let answer = send(&host, "/layouts/-/new", &layout);
    names(&answer, 422, "name", "");
    names(&answer, 422, "text", "line 2 column");
    let reserved = [("name", "import"), ("text", "steps: []")];
    names(&send(&host, "/layouts/-/new", &reserved), 422, "name", "choose another name");
}

#[test]
fn form_for_new_never_replaces_existing() {
    let host = InProcess::ready();
    let client = host.run_client("demo");
    let before = host.api().get("/api/v1/tenants/demo").ok()["spec"].clone();
    for daemon in ["gpu0", "gpu1"] {
        let fields = [("name", "demo"), ("daemon", daemon), ("uid", "0"), ("device_memory_limit", "1G")];
        let answer = send(&host, "/tenants", &fields);
        names(&answer, 422, "name", "there is a tenant demo already, on daemon gpu0");
        let predicted = send(&host, "/tenants/-/predict", &fields);
        assert!(
            predicted.text.contains("there is a tenant demo already, on daemon gpu0"),
            "{}",
            predicted.text
        );
    }
    assert_eq!(host.api().get("/api/v1/tenants/demo").ok()["spec"], before);
    drop(client);
    let answer =
        send(&host, "/daemons/-/new", &[("name", "gpu0"), ("gpus", "1"), ("memory_overcommit", "1")]);
    names(&answer, 422, "name", "there is a daemon gpu0 already");
    write(&host, "prod", &[add("web", 7)]);
    let layout = [("name", "prod"), ("text", "steps: []")];
    names(&send(&host, "/layouts/-/new", &layout), 422, "name", "there is a layout prod already");
    assert_eq!(host.api().get("/api/v1/layouts/prod").ok()["newest"]["version"], 1);
}

#[test]
fn layout_is_checked_beside_its_text() {
    let host = InProcess::ready();
    in_static_mode(&host);
    let checked = |on: &str, text: &str| {
        let answer = send(&host, "/layouts/-/check", &[("name", "prod"), ("on", on), ("text", text)]);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.text
    };
    let fits = checked("gpu1", "steps:\n  - add: {gpu: 0, partition: web, chunks: 7}");
    assert!(fits.contains("No problems found") && fits.contains("7 of 15 chunks used, 8 left"), "{fits}");
    assert!(fits.contains("Plan for gpu1") && fits.contains("required by the layout"), "{fits}");
    let shared = checked("gpu0", "steps:\n  - add: {gpu: 0, partition: web, chunks: 7}");
    assert!(shared.contains("No plan") && shared.contains("daemon gpu0 is in shared mode"), "{shared}");
    let large = checked("gpu1", "# large\nsteps:\n  - add: {gpu: 0, partition: web, chunks: 70}");
    assert!(large.contains("line 3, chunks: needs 70 chunks, and gpu1 has 15 free"), "{large}");
    let twice = checked("gpu1", "steps:\n  - remove: {partition: web}");
    assert!(twice.contains("line 2, partition: there is no partition web at this step"), "{twice}");
    let unreadable = checked("gpu1", "steps:\n  - add: {gpu: 0");
    assert!(unreadable.contains("<li>line 2 column ") && !unreadable.contains("sm-map"), "{unreadable}");
    let many: String = (0..513)
        .map(|n| format!("  - add: {{gpu: {n}, partition: p{n}, chunks: 70}}\n"))
        .collect::<Vec<_>>()
        .concat();
    let many = checked("gpu1", &format!("steps:\n{many}"));
    assert!(many.contains("513 steps: give at most 512") && !many.contains("sm-map"), "{many}");
    assert_eq!(host.api().get("/api/v1/layouts").ok()["items"], json!([]), "nothing is stored");
}

#[test]
fn prediction_warns_of_what_cannot_work() {
    let host = InProcess::stopped();
    let spec = json!({"gpus": ["1"], "mode": "static"});
    let predicted = |daemon: &str, limit: &str| {
        let fields = [
            ("name", "web"),
            ("daemon", daemon),
            ("uid", "0"),
            ("device_memory_limit", limit),
            ("max_clients", "2"),
        ];
        let answer = send(&host, "/tenants/-/predict", &fields);
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer.text
    };
    assert!(predicted("gpu0", "4G").contains("No problems found"));
    let over = predicted("gpu0", "100G");
    assert!(over.contains("limits exceed memory by") && over.contains("of 139.8 GiB)"), "{over}");
    assert!(!over.contains("No problems found"), "{over}");
    assert_eq!(host.api().put("/api/v1/daemons/gpu1", &spec).status, 200);
    let unplaced = predicted("gpu1", "4G");
    assert!(unplaced.contains("no process can start until one does"), "{unplaced}");
    assert!(!unplaced.contains("No problems found"), "{unplaced}");
}

#[test]
fn expiry_takes_durations_and_times() {
    let host = InProcess::stopped();
    let write = |name: &str, expiry: &str| {
        let fields = [("name", name), ("daemon", "gpu0"), ("uid", "0"), ("expires_at", expiry)];
        send(&host, "/tenants", &fields)
    };
    for (number, (expiry, ms)) in
        [("2d", 172_800_000), ("36h", 129_600_000), ("1h 30m", 5_400_000)].into_iter().enumerate()
    {
        let name = format!("t{number}");
        assert_eq!(write(&name, expiry).status, 303, "{expiry}");
        let tenant: Value = host.api().get(&format!("/api/v1/tenants/{name}")).ok();
        let lasts = unix_ms(&tenant["spec"]["expires_at"]) - unix_ms(&tenant["created_at"]);
        assert!((ms - 60_000..=ms).contains(&lasts), "{expiry}: {lasts}");
    }
    assert_eq!(write("exact", "2999-01-02T03:04:05Z").status, 303);
    assert_eq!(
        host.api().get("/api/v1/tenants/exact").ok()["spec"]["expires_at"],
        "2999-01-02T03:04:05.000Z"
    );
    names(&write("past", "2001-01-02T03:04:05Z"), 422, "expires_at", "has passed");
    let token =
        send(&host, "/tokens/new", &[("name", "short"), ("grant", "viewer"), ("expires_in_s", "36h")]);
    assert_eq!(token.status, 200, "{}", token.text);
    let tokens = host.api().get("/api/v1/tokens").ok();
    let short =
        tokens["items"].as_array().unwrap().iter().find(|one| one["name"] == "short").unwrap().clone();
    assert_eq!(unix_ms(&short["expires_at"]) - unix_ms(&short["created_at"]), 129_600_000);
}

#[test]
fn too_large_layout_is_refused_at_saving() {
    let host = InProcess::stopped();
    let save = |name: &str, sku: &str, chunks: &str, again: bool| {
        let sku = if sku.is_empty() { String::new() } else { format!("sku: {sku}\n") };
        let text = format!("{sku}steps:\n- add: {{gpu: 0, partition: a, chunks: {chunks}}}");
        let mut fields = vec![("name", name), ("text", text.as_str())];
        fields.extend(again.then_some(("for_other_hosts", "true")));
        send(&host, "/layouts/-/new", &fields)
    };
    for again in [false, true] {
        names(&save("large", "NVIDIA H200", "99", again), 422, "text", "needs 99 chunks");
    }
    let warned = save("large", "", "99", false);
    names(&warned, 422, "for_other_hosts", "no GPU of this host has room: line 2, chunks: needs 99 chunks");
    host.api().get("/api/v1/layouts/large").problem(404, "not-found");
    assert_eq!(save("large", "", "99", true).status, 303);
    assert_eq!(save("elsewhere", "NVIDIA GB300", "99", false).status, 303, "of other GPUs nothing is known");
    assert_eq!(save("small", "NVIDIA H200", "2", false).status, 303);
}

#[test]
fn lowered_max_clients_is_reported() {
    let host = InProcess::ready();
    let clients = [host.run_client("batch"), host.run_client("batch")];
    eventually("both are connected", || {
        let tenant = host.api().get("/api/v1/tenants/batch?fresh=true").ok();
        (tenant["status"]["clients"] == 2).then_some(())
    });
    let mut spec = host.api().get("/api/v1/tenants/batch").ok()["spec"].clone();
    spec["max_clients"] = json!(1);
    let written = host.api().tenant("batch", &spec).ok();
    let above = |tenant: &Value| {
        let conditions = tenant["status"]["conditions"].as_array().unwrap().iter();
        conditions.clone().find(|one| one["type"] == "ClientsAboveMaximum").map(|one| one["message"].clone())
    };
    let message = above(&written).expect("it is in the answer");
    assert!(
        message.as_str().unwrap().starts_with("2 clients are connected, and max_clients is 1"),
        "{message}"
    );
    let listed = String::from_utf8(host.cli(&["tenant", "list"]).stdout).unwrap();
    assert!(listed.contains("2/1 over"), "{listed}");
    let page = super::log_pages::page(&host, "/tenants");
    assert!(page.contains("<span class=\"state warn\">2 of 1</span>"), "{page}");
    drop(clients);
    eventually("it is over", || {
        let tenant = host.api().get("/api/v1/tenants/batch?fresh=true").ok();
        above(&tenant).is_none().then_some(())
    });
}

/// The value of a hidden field of a page.
fn hidden<'p>(page: &'p str, name: &str) -> &'p str {
    let (_, rest) =
        page.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("no {name}: {page}"));
    rest.split_once('"').expect("its end").0
}

#[test]
fn host_file_is_compared_and_applied() {
    let host = InProcess::ready();
    let file = "version: v1\ntenants:\n  web: {daemon: gpu0, uid: 0, device_memory_limit: 1G}\n";
    let compared = send(&host, "/file", &[("text", file)]);
    assert_eq!(compared.status, 200, "{}", compared.text);
    for shown in ["Create tenant web", "device_memory_limit: 1G", "Apply 1 change<"] {
        assert!(compared.text.contains(shown), "{shown}: {}", compared.text);
    }
    host.api().get("/api/v1/tenants/web").problem(404, "not-found");
    let tag = hidden(&compared.text, "tag").replace("&#34;", "\"");
    let fields =
        [("text", file), ("tag", tag.as_str()), ("compared_at", hidden(&compared.text, "compared_at"))];
    // Another caller is faster.
    let spec = json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "2G"});
    host.api().tenant("web", &spec).ok();
    let outdated = send(&host, "/host/spec", &fields);
    assert!(summary(&outdated, 412).contains("was changed since"), "{}", outdated.text);
    for shown in [
        "created tenant web on gpu0 with 2 GiB",
        "Change tenant web",
        "device_memory_limit: 1G instead of 2G",
    ] {
        assert!(outdated.text.contains(shown), "{shown}: {}", outdated.text);
    }
    let tag = hidden(&outdated.text, "tag").replace("&#34;", "\"");
    let applied = send(&host, "/host/spec", &[("text", file), ("tag", &tag)]);
    assert_eq!(applied.status, 303, "{}", applied.text);
    assert!(applied.header("location").expect("where").starts_with("/operations/"));
    assert_eq!(host.api().get("/api/v1/tenants/web").ok()["spec"]["device_memory_limit"], 1 << 30);
    assert!(send(&host, "/file", &[("text", file)]).text.contains("The host is what the file says"));
    // What the file does not have goes only with the box, and the button says so.
    let daemon = format!("{file}daemons: {{gpu0: {{gpus: [0]}}}}\n");
    let pruned = send(&host, "/file", &[("text", &daemon), ("prune", "yes")]);
    for shown in ["Delete tenant demo", ", and delete "] {
        assert!(pruned.text.contains(shown), "{shown}: {}", pruned.text);
    }
}

#[test]
fn given_files_are_recognized() {
    let host = InProcess::stopped();
    let given = |text: &str| send(&host, "/file", &[("text", text)]);
    let layouts = "version: v1\nlayouts: {web: {steps: []}}";
    let page = given(layouts).text;
    for shown in ["A layout document", "<strong>web</strong>, 0 steps", "formaction=\"/replays/new\""] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    for path in ["/layouts/-/import", "/replays/new"] {
        let filled = send(&host, path, &[("text", layouts), ("do", "fill")]);
        assert!(
            filled.status == 200 && filled.text.contains("layouts: {web: {steps: []}}"),
            "{}",
            filled.text
        );
    }
    host.api().get("/api/v1/layouts/web").problem(404, "not-found");
    let record = r#"{"format": "mps-manager recording 1", "made_by": "0.1.0", "gpu": {"name": "NVIDIA L40S"}, "commands": []}"#;
    assert!(given(record).text.contains("A record of NVIDIA L40S"));
    for (text, why) in [
        ("", "there is nothing in it"),
        ("kind: Pod", "a layout document (of Export on a layout&#39;s page)"),
        ("version: v1\nlayouts: {web: {}}", "steps"),
        ("version: v1\ndaemons: {gpu0: {gpus: [9]}}", "/daemons/gpu0/gpus"),
    ] {
        let shown = given(text);
        assert!(summary(&shown, 200).contains(why), "{text}: {}", shown.text);
    }
}

#[test]
fn refused_action_leads_back_to_its_subject() {
    let host = InProcess::ready();
    let made = host.api().post("/api/v1/tokens", &json!({"name": "watcher", "grant": "viewer"})).ok();
    let viewer = made["secret"].as_str().expect("a token").to_owned();
    for (token, path, back) in [
        (&viewer, "/daemons/gpu0/start", "href=\"/daemons/gpu0\">To gpu0<"),
        (&host.token(), "/daemons/nobody/start", "href=\"/daemons\">To Daemons<"),
    ] {
        let answer = send_as(&host, token, path, &[]);
        assert!(answer.status >= 400 && answer.text.contains(back), "{path}: {}", answer.text);
    }
}
