//! Every operation of the document, as every caller, beside the table of `docs/access.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::layouts::{add, apply, in_static_mode, write};
use super::openapi::kept;
use crate::document::expanded;
use crate::harness::{Answer, Client, Foreign, Host, eventually, signal};

/// The columns of the table, in its order.
pub(super) const CALLERS: [&str; 6] =
    ["nobody", "viewer", "operator", "admin", "tenant, own", "tenant, other"];

/// What the table begins with.
const HEAD: &str = "| request | nobody |";

/// The rows of the table by request, each with what it says of each caller.
pub(super) fn table() -> BTreeMap<String, Vec<String>> {
    let text = include_str!("../../../docs/access.md");
    let (_, rows) = text.split_once(HEAD).expect("the table");
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with("| `"));
    let cells = rows.map(|line| {
        let mut cells =
            line.trim_matches('|').split('|').map(|cell| cell.trim().trim_matches('`').to_owned());
        let request = cells.next().expect("a request");
        (request, cells.collect())
    });
    cells.collect()
}

/// What the table says of each caller, by the right that an operation declares as `x-right`.
fn row(right: &str) -> [&'static str; 6] {
    match right {
        "public" => ["yes"; 6],
        "log-in" | "own-account" => ["401", "yes", "yes", "yes", "yes", "yes"],
        "own-items" => ["401", "yes", "yes", "yes", "own", "own"],
        "view" => ["401", "yes", "yes", "yes", "403", "403"],
        "operate" => ["401", "403", "yes", "yes", "403", "403"],
        "administer" => ["401", "403", "403", "yes", "403", "403"],
        "view-tenant" | "view-client" | "view-event" | "view-incident" | "view-operation" => {
            ["401", "yes", "yes", "yes", "yes", "404"]
        }
        "use-tenant" | "end-client" => ["401", "403", "yes", "yes", "yes", "404"],
        other => panic!("{other}: say here what it allows, and to which role"),
    }
}

#[test]
fn access_table_is_generated_from_declared_rights() {
    let document = crate::document::document();
    let mut rows = String::new();
    for (path, item) in document["paths"].as_object().expect("paths") {
        for method in ["get", "put", "patch", "post", "delete"] {
            let Some(operation) = item.get(method) else { continue };
            let cells = row(operation["x-right"].as_str().expect("a right")).join(" | ");
            writeln!(rows, "| `{} {path}` | {cells} |", method.to_uppercase()).expect("a string takes it");
        }
    }
    let (before, table) = include_str!("../../../docs/access.md").split_once(HEAD).expect("the table");
    let (rule, table) = table.split_once("| `").expect("rows");
    let (_, after) = table.split_once("\n\n").expect("more below the table");
    kept("docs/access.md", &format!("{before}{HEAD}{rule}{rows}\n{after}"));
}

/// Things that exist, so that a 404 hides one.
pub(super) struct World {
    pub(super) host: Host,
    foreign: Foreign,
    _client: Client,
    pub(super) tokens: BTreeMap<&'static str, String>,
    /// What stands for each parameter of a path, by operation ID or by name.
    pub(super) names: BTreeMap<&'static str, String>,
}

impl World {
    pub(super) fn new() -> Self {
        // Its second daemon is in static mode.
        let host = Host::configured("[limits]\nrequests_per_s = 0");
        in_static_mode(&host);
        write(&host, "prod", &[add("web", 7)]);
        apply(&host, "prod", &json!({}));
        // A daemon with a layout that was started again has replayed it.
        host.api().succeeds(&host.api().post("/api/v1/daemons/gpu1/restart?grace_s=0", &json!({})));
        host.await_ready();
        let foreign = host.foreign("theirs", "0");
        let victim = host.client("demo");
        signal(host.server_pid("gpu0"), Signal::KILL);
        let incident = super::incidents::incident(&host, "server_died", super::incidents::recovered);
        drop(victim);
        host.await_ready();
        let (client, ended) = (host.run_client("demo"), host.client("demo"));
        let grants = [
            ("viewer", "viewer", "viewer"),
            ("operator", "operator", "operator"),
            ("admin", "admin", "admin"),
            ("tenant, own", "own", "tenant:demo"),
            ("tenant, other", "other", "tenant:batch"),
        ];
        let tokens: BTreeMap<&str, String> = grants
            .into_iter()
            .map(|(caller, name, grant)| (caller, super::tokens::create(&host, name, grant)))
            .collect();
        let id = |pid: u32| host.listed(pid)["id"].as_str().expect("an ID").to_owned();
        let own = host.api().with_token(Some(&tokens["tenant, own"]));
        let accepted = own.post(&format!("/api/v1/clients/{}/terminate", id(ended.pid())), &json!({}));
        own.succeeds(&accepted);
        let victim = host.api().post("/api/v1/tokens", &json!({"name": "victim", "grant": "viewer"})).ok();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let replay = eventually("a restart is recorded", || {
            host.api().get("/api/v1/replays").ok()["items"][0]["id"].as_str().map(str::to_owned)
        });
        let event = eventually("something happened to the tenant", || {
            host.api().get("/api/v1/events?tenant=demo").ok()["items"][0]["id"].as_i64()
        });
        let names = BTreeMap::from([
            ("events", event.to_string()),
            ("incidents", incident["id"].to_string()),
            ("gpu", "0".to_owned()),
            ("version", "1".to_owned()),
            ("partition", "web".to_owned()),
            ("daemons", "gpu1".to_owned()),
            ("hosts", "gpu02".to_owned()),
            ("tenants", "demo".to_owned()),
            ("layouts", "prod".to_owned()),
            ("clients", id(client.pid())),
            ("leases", id(client.pid())),
            ("operations", text(&accepted.json()["id"])),
            ("replays", replay),
            ("tokens", text(&victim["token"]["id"])),
            ("foreign-daemons", host.foreign_id(&foreign)),
        ]);
        Self { host, foreign, _client: client, tokens, names }
    }

    /// The path of an operation with things that exist in it.
    pub(super) fn path(&self, template: &str) -> String {
        let mut before = "";
        let parts = template.split('/').map(|part| {
            let name = part.strip_prefix('{').and_then(|part| part.strip_suffix('}'));
            let filled = name.map(|name| {
                let named = self.names.get(name).or_else(|| self.names.get(before));
                named.unwrap_or_else(|| panic!("{template}: nothing stands for {name}: add it to the world"))
            });
            before = part;
            filled.map_or(part, String::as_str)
        });
        parts.collect::<Vec<_>>().join("/")
    }

    /// The body of an operation that takes one, and its media type.
    fn body(&self, operation: &str) -> (&'static str, String) {
        let target = json!({"daemon": "gpu1"});
        let layout = json!({"steps": [add("web", 7)]});
        let value = match operation {
            "confirm_host" => json!({"machine_id": "another"}),
            "replace_gpu" => json!({"with": "1"}),
            "begin_maintenance" => json!({"gpus": ["1"]}),
            "put_daemon" => {
                json!({"gpus": ["1"], "mode": "static", "layout": self.host.daemon("gpu1")["spec"]["layout"]})
            }
            "adopt_daemon" => {
                json!({"process": self.host.foreign_id(&self.foreign), "management": "observed"})
            }
            "put_layout" => json!({"layout": layout}),
            "plan_layout" | "assert_layout" | "apply_layout" => target,
            "create_replay" => json!({"daemon": "gpu1", "layout": "prod"}),
            "patch_tenant" | "patch_daemon" | "create_lease" => json!({}),
            "put_tenant" => json!({"daemon": "gpu0", "uid": 0, "device_memory_limit": "1G"}),
            "acknowledge_incident" => json!({"note": "seen"}),
            "create_token" => json!({"name": "new", "grant": "viewer"}),
            "apply_host_spec" => return ("application/yaml", "version: v1\n".to_owned()),
            "import_layouts" => {
                return ("application/yaml", "version: v1\nlayouts: {new: {steps: []}}\n".to_owned());
            }
            other => panic!("no body for {other}: add one"),
        };
        ("application/json", value.to_string())
    }

    /// Sends a request as a caller; gives the status, and the body unless it is a stream.
    fn send(
        &self,
        caller: &str,
        method: &str,
        template: &str,
        operation: &Value,
        spoilt: bool,
    ) -> (u16, String) {
        let id = operation["operationId"].as_str().expect("an ID");
        let token = self.tokens.get(caller);
        let takes = |name: &str| {
            let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
            parameters.iter().any(|parameter| parameter["name"] == name && parameter["in"] == "query")
        };
        let query = match id {
            _ if spoilt => "?colour=red",
            "export_layout" => "?daemon=gpu1",
            _ if takes("dry_run") => "?dry_run=true",
            _ => "",
        };
        let mut head = vec![format!("{} {}{query} HTTP/1.1", method.to_uppercase(), self.path(template))];
        head.push("Host: localhost".to_owned());
        head.push("Connection: close".to_owned());
        let body = if id == "open_session" {
            Some(("application/json", json!({"token": token.map_or("wrong", String::as_str)}).to_string()))
        } else {
            operation.get("requestBody").map(|_| self.body(id))
        };
        let body =
            if spoilt { body.map(|_| ("application/json", "{\"colour\": 1".to_owned())) } else { body };
        match (id, token) {
            ("open_session", _) | (_, None) => {}
            // These are about the session that the request comes with.
            ("get_session" | "end_session", Some(token)) => {
                head.push(format!("Cookie: {}", super::sessions::cookie(&self.host, token)));
                head.push("Sec-Fetch-Site: same-origin".to_owned());
            }
            (_, Some(token)) => head.push(format!("Authorization: Bearer {token}")),
        }
        if let Some((media_type, body)) = &body {
            head.push(format!("Content-Type: {media_type}"));
            head.push(format!("Content-Length: {}", body.len()));
        } else if method != "get" {
            head.push("Content-Length: 0".to_owned());
        }
        let text = format!("{}\r\n\r\n{}", head.join("\r\n"), body.map(|(_, body)| body).unwrap_or_default());
        let answer = Answer::to_bytes(&self.host.url(), text.as_bytes());
        (answer.status, answer.text)
    }
}

#[test]
fn every_route_admits_exactly_documented_callers() {
    let world = World::new();
    let table = table();
    let document = expanded(world.host.api().get("/openapi.json").json());
    let (mut cells, mut wrong, mut met) = (0, Vec::new(), 0);
    for (template, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let request = format!("{} {template}", method.to_uppercase());
            let Some(row) = table.get(&request) else {
                wrong.push(format!("{request} is not in the table of docs/access.md"));
                continue;
            };
            met += 1;
            assert_eq!(row.len(), CALLERS.len(), "{request}");
            for (caller, expected) in CALLERS.iter().zip(row) {
                let (status, body) = world.send(caller, method, template, operation, false);
                let documented = operation["responses"].get(status.to_string()).is_some();
                let allowed = !matches!(status, 401 | 403 | 404) && documented;
                let right = match expected.as_str() {
                    "yes" => allowed,
                    "own" => status == 200 && (*caller == "tenant, own" || !names_the_other(&world, &body)),
                    number => number == status.to_string(),
                };
                // A caller without the right is refused before a query or a body is read.
                let refused = expected.parse::<u16>().ok().filter(|_| {
                    let (session, logs_in) = (template.starts_with("/api/v1/session"), method == "post");
                    !(session && logs_in)
                });
                if let Some(expected) = refused {
                    let (status, body) = world.send(caller, method, template, operation, true);
                    if status != expected {
                        wrong.push(format!(
                            "{request} as {caller}, spoilt: not {expected} but {status} {body}"
                        ));
                    }
                }
                if !right {
                    let body: String = body.chars().take(300).collect();
                    wrong.push(format!(
                        "{request} as {caller}: the table says {expected}, the answer was {status} {body}"
                    ));
                }
                cells += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {cells} cells:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(met, table.len(), "the table has requests that the document has not");
    println!("{cells} cells");
    assert!(cells > 300, "{cells}");
}

/// A parameter that a handler takes and the document does not have is no generated client's.
#[test]
fn parameters_are_taken_where_they_are_declared() {
    let world = World::new();
    let document = expanded(world.host.api().get("/openapi.json").json());
    let declared = |operation: &Value| -> BTreeMap<String, &str> {
        let all = operation["parameters"].as_array().into_iter().flatten();
        let in_query = all.filter(|parameter| parameter["in"] == "query");
        let valid = |parameter: &Value| match parameter["schema"]["type"].as_str() {
            Some("boolean") => "true",
            Some("integer") => "1",
            _ => "x",
        };
        in_query.map(|one| (one["name"].as_str().expect("a name").to_owned(), valid(one))).collect()
    };
    let paths = document["paths"].as_object().expect("paths");
    let operations: Vec<(&String, &String, &Value)> = paths
        .iter()
        .filter(|(path, _)| path.starts_with("/api/v1/"))
        .flat_map(|(path, item)| {
            item.as_object().expect("methods").iter().map(move |(method, one)| (path, method, one))
        })
        .collect();
    let all: BTreeMap<String, &str> =
        operations.iter().flat_map(|(_, _, operation)| declared(operation)).collect();
    let (mut tried, mut taken) = (0, Vec::new());
    for (path, method, operation) in operations {
        let own = declared(operation);
        for (name, value) in all.iter().filter(|(name, _)| !own.contains_key(*name)) {
            let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
            let request = format!("{}?{name}={value}", world.path(path));
            let answer = world.host.api().send(method.clone(), &request, &[], None);
            let refused = ["takes no query", &format!("unknown field {name}:")];
            if answer.status != 422 || !refused.iter().any(|text| answer.text.contains(*text)) {
                taken.push(format!("{method} {request}: {} {}", answer.status, answer.text));
            }
            tried += 1;
        }
    }
    assert!(taken.is_empty(), "{} of {tried}:\n{}", taken.len(), taken.join("\n"));
    assert!(tried > 1000, "{tried}");
}

#[test]
fn conditions_that_would_be_ignored_are_refused() {
    let world = World::new();
    let document = expanded(world.host.api().get("/openapi.json").json());
    let (mut tried, mut ignored) = (0, Vec::new());
    for (path, item) in document["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            if !path.starts_with("/api/v1/") || method == "get" {
                continue;
            }
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let own: Vec<&str> = parameters.filter_map(|one| one["name"].as_str()).collect();
            for (name, value) in [("If-Match", "\"1\""), ("If-Match", "*"), ("If-None-Match", "*")] {
                if own.contains(&name) {
                    continue;
                }
                let method = reqwest::Method::from_bytes(method.to_uppercase().as_bytes()).expect("a method");
                let answer = world.host.api().send(method.clone(), &world.path(path), &[(name, value)], None);
                if answer.status != 422 || !answer.text.contains(&format!("takes no {name},")) {
                    ignored.push(format!("{method} {path} {name}: {} {}", answer.status, answer.text));
                }
                tried += 1;
            }
        }
    }
    assert!(ignored.is_empty(), "{} of {tried}:\n{}", ignored.len(), ignored.join("\n"));
    assert!(tried > 60, "{tried}");
}

/// Whether a response reveals anything of another tenant.
pub(super) fn names_the_other(world: &World, body: &str) -> bool {
    body.contains("\"demo\"")
        || body.contains(&world.names["clients"])
        || body.contains(&world.names["operations"])
}
