//! Every page and every form, as every caller, beside the tables of `docs/access.md`; and what each form leaves on record.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::access_matrix::{CALLERS, World, names_the_other, table};
use super::layouts::{add, write};
use crate::architecture::sources;
use crate::harness::{Answer, Client, eventually};

/// What is open to everybody.
const OPEN: [&str; 4] = ["/login", "/logout", "/assets/{digest}/{name}", "/favicon.ico"];
/// The forms that only ask what something would come to.
const CHANGES_NOTHING: [&str; 3] = ["/tenants/-/predict", "/layouts/-/check", "/file"];
/// Another host, which does not answer.
const SAVED: &str = "name=gpu02&url=http://127.0.0.1:9&token=secret";
/// A form that leads to the log-in.
const LEAVES: &str = "/settings/log-out-everywhere";

/// The rows of the table: the method, the page, and the request that it stands for.
fn pages() -> Vec<(&'static str, &'static str, String)> {
    let text = include_str!("../../../docs/access.md");
    let (_, rows) = text.split_once("| page | as |").expect("the table");
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with("| `"));
    let row = |line: &'static str| {
        let (page, stands_for) = line.trim_matches(['|', ' ']).split_once(" | ").expect("two cells");
        let (method, path) = page.trim_matches('`').split_once(' ').expect("a method and a path");
        (method, path, stands_for.trim_matches('`').to_owned())
    };
    rows.map(row).collect()
}

/// Every path that the router of pages is given.
fn routes() -> BTreeSet<String> {
    let mut files: Vec<PathBuf> = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/pages"), &mut files);
    let mut found = BTreeSet::new();
    // What declares routes for the other files has the path of none.
    for file in files.into_iter().filter(|file| !file.ends_with("pages/routes.rs")) {
        let text = std::fs::read_to_string(&file).expect("a file");
        for call in text.replace(".form_route(", ".route(").split(".route(").skip(1) {
            let path = call.trim_start().strip_prefix('"').and_then(|rest| rest.split_once('"'));
            let (path, _) =
                path.unwrap_or_else(|| panic!("{}: a route whose path is no literal", file.display()));
            found.insert(path.to_owned());
        }
    }
    found
}

/// A user in a browser.
struct Browser<'w> {
    world: &'w World,
    caller: &'static str,
    cookie: Option<String>,
}

impl<'w> Browser<'w> {
    fn of(world: &'w World, caller: &'static str) -> Self {
        let mut browser = Self { world, caller, cookie: None };
        browser.log_in();
        browser
    }

    fn log_in(&mut self) {
        let token = self.world.tokens.get(self.caller);
        self.cookie = token.map(|token| super::sessions::cookie(&self.world.host, token));
    }

    fn send(&self, method: &str, path: &str, form: &str) -> Answer {
        let mut head = vec![format!("{method} {path} HTTP/1.1"), "Host: localhost".to_owned()];
        head.extend(
            ["Connection: close", "Accept: text/html", "Sec-Fetch-Site: same-origin"].map(str::to_owned),
        );
        head.extend(self.cookie.iter().map(|cookie| format!("Cookie: {cookie}")));
        if method == "POST" {
            head.push("Content-Type: application/x-www-form-urlencoded".to_owned());
            head.push(format!("Content-Length: {}", form.len()));
        }
        Answer::to_bytes(&self.world.host.url(), format!("{}\r\n\r\n{form}", head.join("\r\n")).as_bytes())
    }

    /// Whether an answer is what the table says of the caller.
    fn is_answered(&self, method: &str, page: &str, expected: &str, answer: &Answer) -> bool {
        let to_log_in = || answer.header("location").is_some_and(|to| to.starts_with("/login"));
        match (expected, self.cookie.is_some()) {
            ("401", false) if method == "GET" => answer.status == 303 && to_log_in(),
            ("yes", _) => {
                answer.status < 500
                    && !matches!(answer.status, 401 | 403 | 404)
                    && to_log_in() == (page == LEAVES)
            }
            ("own", _) => {
                answer.status == 200
                    && (self.caller != "tenant, other" || !names_the_other(self.world, &answer.text))
            }
            (status, _) => status == answer.status.to_string(),
        }
    }
}

/// How much of what other forms are about is taken away by one.
fn taken_away(page: &str) -> usize {
    ["/hosts/", "/daemons/", "/foreign-daemons/", "/settings/"]
        .iter()
        .position(|part| page.starts_with(part))
        .map_or(0, |at| at + 1)
}

/// What is there for one request only, since a form takes it away.
struct Once {
    path: String,
    form: String,
    _client: Option<Client>,
}

/// A form that can be sent, about something that is there.
fn filled(world: &World, page: &str) -> Once {
    let host = &world.host;
    let get = |path: &str| host.api().get(path).ok();
    let (mut path, mut client) = (world.path(page), None);
    let form = match page {
        "/tenants" => "name=made&daemon=gpu0&device_memory_limit=64M".to_owned(),
        "/tenants/-/predict" => "daemon=gpu0&device_memory_limit=1G".to_owned(),
        "/tenants/{name}/edit" => {
            let now = get("/api/v1/tenants/demo");
            format!(
                "daemon=gpu0&uid={}&device_memory_limit=1G&max_clients=8&revision={}",
                now["spec"]["uid"], now["generation"]
            )
        }
        "/tenants/{name}/delete" => {
            host.api()
                .tenant("leaves", &json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "64M"}))
                .ok();
            path = page.replace("{name}", "leaves");
            String::new()
        }
        "/daemons/-/new" => "name=made&gpus=0&mode=shared".to_owned(),
        "/daemons/{name}/edit" => {
            let now = get("/api/v1/daemons/gpu1");
            let gpu = now["spec"]["gpus"][0].as_str().expect("a GPU").to_owned();
            format!(
                "gpus={gpu}&mode=static&management=managed&drift_policy=report&revision={}",
                now["revision"]
            )
        }
        "/daemons/{name}/drain" => "timeout_s=1".to_owned(),
        "/daemons/{name}/stop" | "/daemons/{name}/restart" | "/daemons/{name}/delete" => {
            "grace_s=0".to_owned()
        }
        "/foreign-daemons/{id}/adopt" => "name=theirs&management=observed".to_owned(),
        "/clients/{id}/terminate" => {
            let process = host.client("demo");
            let id = host.listed(process.pid())["id"].as_str().expect("an ID").to_owned();
            path = page.replace("{id}", &id);
            client = Some(process);
            String::new()
        }
        "/tenants/{name}/leases/{id}/revoke" => {
            let mut spec = get("/api/v1/tenants/demo")["spec"].clone();
            (spec["max_clients"], spec["device_memory_limit"]) = (json!(8), json!("1G"));
            assert!(host.api().tenant("demo", &spec).status < 300);
            let process = host.run_client("demo");
            let id = host.listed(process.pid())["id"].as_str().expect("an ID").to_owned();
            path = page.replace("{name}", "demo").replace("{id}", &id);
            client = Some(process);
            String::new()
        }
        "/layouts/-/new" => {
            format!("name=made_{}&text=steps:+[]", mps_manager::clock::Clock::system().new_id().simple())
        }
        "/layouts/-/import" => {
            "kind=document&text=version: v1%0Alayouts: {brought: {steps: []}}".replace(' ', "+")
        }
        "/layouts/{name}/edit" => {
            let version = &get("/api/v1/layouts/prod")["newest"]["version"];
            format!("revision={version}&text=steps:+[{{add:+{{gpu:+0,+partition:+web,+chunks:+7}}}}]")
        }
        "/layouts/{name}/apply" | "/layouts/{name}/replay-to" => "daemon=gpu1".to_owned(),
        "/layouts/{name}/delete" => {
            write(host, "leaves", &[add("web", 7)]);
            path = page.replace("{name}", "leaves");
            "version=1".to_owned()
        }
        "/replays/new" => "do=start&kind=layout&layout=prod&daemon=gpu1".to_owned(),
        "/tokens/new" => "name=made&grant=viewer".to_owned(),
        "/hosts/-/new" => SAVED.to_owned(),
        "/settings/confirm-host" => "machine_id=another".to_owned(),
        "/settings/maintenance" => "gpus=0&timeout_s=1&on_timeout=terminate".to_owned(),
        _ => String::new(),
    };
    Once { path, form, _client: client }
}

#[test]
fn pages_admit_documented_callers_and_are_audited() {
    let world = World::new();
    let (pages, table) = (pages(), table());
    let listed: BTreeSet<String> = pages.iter().map(|(_, path, _)| (*path).to_owned()).collect();
    let mut known = listed.clone();
    known.extend(OPEN.map(str::to_owned));
    assert_eq!(known, routes(), "the table of docs/access.md and the routes of src/http/pages");

    let mut browsers: Vec<Browser<'_>> = CALLERS.iter().map(|caller| Browser::of(&world, caller)).collect();
    let admin = browsers.iter().find(|browser| browser.caller == "admin").expect("one");
    assert_eq!(admin.send("POST", "/hosts/-/new", SAVED).status, 303);
    let (mut cells, mut wrong) = (0, Vec::new());
    // What each caller did: the caller, the action, what it stands for, and whether it was let through.
    let mut deeds: Vec<(&str, String, &str, bool)> = Vec::new();
    // Reads change nothing, so they come first; last comes what the others could no longer use.
    let mut in_order: Vec<_> = pages.iter().collect();
    in_order.sort_by_key(|(method, page, _)| (*method == "POST").then(|| taken_away(page)));
    for (method, page, stands_for) in in_order {
        let row = table.get(stands_for).unwrap_or_else(|| panic!("{page}: there is no {stands_for}"));
        for (browser, expected) in browsers.iter_mut().zip(row) {
            let sent = if *method == "GET" {
                Once { path: world.path(page), form: String::new(), _client: None }
            } else {
                idle(&world);
                filled(&world, page)
            };
            let path =
                if page.ends_with("/export") { format!("{}?daemon=gpu1", sent.path) } else { sent.path };
            let answer = browser.send(method, &path, &sent.form);
            if !browser.is_answered(method, page, expected, &answer) {
                let message: String = answer.text.chars().take(300).collect();
                let caller = browser.caller;
                wrong.push(format!(
                    "{method} {page} as {caller}: expected {expected}, was {} {message}",
                    answer.status
                ));
            }
            if *method == "POST" && browser.cookie.is_some() && !CHANGES_NOTHING.contains(page) {
                deeds.push((browser.caller, format!("POST {page}"), stands_for, answer.status < 400));
            }
            if *page == LEAVES && browser.cookie.is_some() {
                let after = browser.send("GET", "/settings", "");
                assert_eq!(after.status, 303, "its session is over");
                browser.log_in();
            }
            cells += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
    assert!(cells > 400, "{cells}");

    // The other method of each address is none.
    let admin = browsers.iter().find(|browser| browser.caller == "admin").expect("one");
    for path in &listed {
        for method in ["GET", "POST"] {
            if !pages.iter().any(|(known, page, _)| known == &method && page == path) {
                let answer = admin.send(method, &world.path(path), "");
                assert_eq!(answer.status, 405, "{method} {path}");
            }
        }
    }

    let rows = world.host.api().get("/api/v1/audit?limit=1000").ok();
    let rows = rows["items"].as_array().expect("rows");
    let mut done = 0;
    for (caller, action, stands_for, let_through) in &deeds {
        let id = world.tokens[caller].split('_').nth(1).expect("the ID of a token");
        let outcome = if *let_through { "done" } else { "refused" };
        let reported = rows.iter().filter(|row| {
            row["action"] == *action
                && row["outcome"] == outcome
                && row["actor"].as_str().is_some_and(|actor| actor.contains(id))
        });
        let reported: Vec<&Value> = reported.collect();
        assert!(!reported.is_empty(), "nothing says that {action} of {caller} was {outcome}");
        for row in reported {
            let problem = row["problem"].as_str().unwrap_or("urn:mps-manager:problem:");
            assert!(problem.starts_with("urn:mps-manager:problem:"), "{row}");
            if action.starts_with("POST /settings/") || action == "POST /replays/new" {
                let (_, target) = stands_for.split_once("/api/v1/").expect("a request of the API");
                assert_eq!(row["target"], target, "as the API's: {row}");
            }
        }
        done += usize::from(*let_through);
    }
    assert!(done > 30, "only {done} forms did anything");
}

/// Waits until no operation is under way: one at a time runs on a daemon.
fn idle(world: &World) {
    eventually("no operation is under way", || {
        let operations = world.host.api().get("/api/v1/operations?limit=20").ok();
        let busy = operations["items"]
            .as_array()
            .expect("items")
            .iter()
            .any(|one| matches!(one["state"].as_str(), Some("pending" | "running")));
        (!busy).then_some(())
    });
}

#[test]
fn no_page_path_shadows_a_resource_name() {
    let routes = routes();
    let parts = |path: &str| path.split('/').skip(1).map(str::to_owned).collect::<Vec<_>>();
    let named: BTreeSet<String> = routes
        .iter()
        .map(|path| parts(path))
        .filter(|parts| parts.len() > 1 && parts[1] == "{name}")
        .map(|mut parts| parts.remove(0))
        .collect();
    assert_eq!(named, ["daemons", "hosts", "layouts", "tenants"].map(str::to_owned).into());
    for path in &routes {
        let parts = parts(path);
        let beside = parts.get(1).filter(|part| named.contains(&parts[0]) && *part != "{name}");
        assert!(beside.is_none_or(|part| part == "-"), "{path} hides what has that name");
    }
}
