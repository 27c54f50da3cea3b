//! The host file over the API and the command line: compared, applied, refused as a whole, exported.

use std::fs;
use std::path::{Path, PathBuf};

use reqwest::Method;
use serde_json::{Value, json};

use super::log_pages::page;
use super::openapi::kept_and_printed;
use crate::document::host_file_schema;
use crate::harness::{Answer, InProcess, Served, eventually};

const SPEC: &str = "/api/v1/host/spec";
pub(super) const YAML: &str = "application/yaml";

pub(super) fn put(host: &Served, text: &str, query: &str) -> Answer {
    host.api().send_text(Method::PUT, &format!("{SPEC}{query}"), YAML, text.to_owned())
}

/// The host as a YAML file.
pub(super) fn exported(host: &Served) -> String {
    let answer = host.api().send(Method::GET, SPEC, &[("accept", YAML)], None);
    assert_eq!((answer.status, answer.header("content-type")), (200, Some(YAML)), "{}", answer.text);
    answer.text
}

/// What a file would change, a line each.
pub(super) fn changes(host: &Served, text: &str, query: &str) -> Vec<String> {
    let changes = put(host, text, &format!("?dry_run=true{query}")).ok();
    let word = |change: &Value, field: &str| change[field].as_str().expect("a word").to_owned();
    let one = |change: &Value| {
        let fields = change["fields"].as_array().expect("fields").iter().map(|field| word(field, "field"));
        let head = format!("{} {} {}", word(change, "action"), word(change, "kind"), word(change, "name"));
        std::iter::once(head).chain(fields).collect::<Vec<_>>().join(" ")
    };
    changes["changes"].as_array().expect("changes").iter().map(one).collect()
}

fn operations(host: &Served) -> Vec<Value> {
    host.api().get("/api/v1/operations").ok()["items"].as_array().expect("a list").clone()
}

/// The newest row of the audit log.
fn newest_record(host: &Served) -> Value {
    let row = host.api().get("/api/v1/audit?limit=1").ok()["items"][0]["id"].clone();
    assert!(row.is_u64(), "{row}");
    row
}

fn pointers(problem: &Value) -> Vec<&str> {
    let errors = problem["errors"].as_array().expect("errors").iter();
    errors.map(|error| error["pointer"].as_str().expect("a pointer")).collect()
}

const FILE: &str = "
version: v1
layouts:
  prod:
    steps:
      - add: {gpu: 0, partition: big, chunks: 7, tenants: [web]}
      - add: {gpu: 0, partition: small, chunks: 5}
daemons:
  gpu0: {gpus: [0], multi_user: true}
  gpu1: {gpus: [1], mode: static}
tenants:
  web: {daemon: gpu1, uid: 0, device_memory_limit: 4G}
  jobs: {daemon: gpu0, uid: 0, device_memory_limit: 1G, priority: below_normal}
bindings:
  gpu1: {layout: prod, gpu_map: {0: 1}}
";

/// The same with another partition of so many chunks.
fn with_partition(chunks: u32) -> String {
    let last = "partition: small, chunks: 5}\n";
    assert!(FILE.contains(last));
    FILE.replace(last, &format!("{last}      - add: {{gpu: 0, partition: more, chunks: {chunks}}}\n"))
}

#[test]
fn host_becomes_what_its_file_says() {
    let host = InProcess::ready();
    let first = exported(&host);
    assert_eq!(changes(&host, &first, "&prune=true"), Vec::<String>::new(), "{first}");
    assert_eq!(
        changes(&host, FILE, "&prune=true"),
        [
            "create layout prod enforcement steps",
            "change daemon gpu0 multi_user",
            "change daemon gpu1 mode",
            "create tenant jobs daemon device_memory_limit priority uid",
            "create tenant web daemon device_memory_limit uid",
            "create binding gpu1 gpu_map layout",
            "delete tenant batch",
            "delete tenant demo",
        ]
    );
    assert_eq!(exported(&host), first, "a dry run changes nothing");
    let operation = host.api().succeeds(&put(&host, FILE, "?prune=true"));
    assert_eq!(operation["request"]["kind"], "apply_spec");
    assert_eq!(super::layouts::partitions(&host).len(), 2);
    let layout = &host.daemon("gpu1")["spec"]["layout"];
    assert_eq!((&layout["name"], &layout["version"]), (&json!("prod"), &json!(1)));
    host.api().get("/api/v1/tenants/demo").problem(404, "not-found");
    let events = host.api().get("/api/v1/events?limit=1000").ok().to_string();
    for kind in ["tenant.created", "tenant.deleted", "daemon.changed", "layout.version_written"] {
        assert!(events.contains(&format!("\"{kind}\"")), "{kind}");
    }
    let audit = host.api().get("/api/v1/audit?limit=1000").ok().to_string();
    for target in ["tenants/web", "tenants/demo", "daemons/gpu1", "layouts/prod"] {
        assert!(audit.contains(target), "{target}");
    }

    // The same again is nothing: no operation, no row, no event.
    let before = (operations(&host).len(), newest_record(&host));
    let again = put(&host, FILE, "?prune=true");
    assert_eq!((again.status, &again.json()["changes"]), (200, &json!([])));
    assert_eq!((operations(&host).len(), newest_record(&host)), before);
    assert_eq!(changes(&host, &exported(&host), "&prune=true"), Vec::<String>::new());

    // Another layout on the running daemon is an operation of its own, and the daemon keeps what stays.
    let other = with_partition(2);
    assert_eq!(changes(&host, &other, ""), ["change layout prod steps", "change binding gpu1 layout"]);
    let made = super::layouts::partitions(&host);
    host.api().succeeds(&put(&host, &other, ""));
    let now = super::layouts::partitions(&host);
    assert_eq!((&now[..2], now.len()), (&made[..], 3));
    assert_eq!(host.daemon("gpu1")["spec"]["layout"]["version"], 2);
    assert_eq!(changes(&host, &exported(&host), "&prune=true"), Vec::<String>::new());
}

#[test]
fn impossible_part_refuses_the_whole() {
    let host = InProcess::ready();
    let before = exported(&host);
    let refused = |text: &str, query: &str| {
        for query in
            [query.to_owned(), format!("{query}{}dry_run=true", if query.is_empty() { "?" } else { "&" })]
        {
            let answer = put(&host, text, &query);
            if query.ends_with("dry_run=true") {
                return answer;
            }
            assert!(answer.status >= 400, "{}", answer.text);
        }
        unreachable!("the loop returns")
    };
    // Invalid on any host.
    let problem = refused(&FILE.replace("mode: static", "modus: static"), "").problem(422, "invalid-request");
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("modus") && detail.contains('^'), "{detail}");
    // Invalid on this host: every fault is listed.
    let text = FILE
        .replace("gpus: [1], mode", "gpus: [0], mode")
        .replace("daemon: gpu0, uid", "daemon: nowhere, uid");
    let problem = refused(&text, "").problem(422, "invalid-request");
    assert_eq!(pointers(&problem), ["/daemons/gpu1/gpus", "/tenants/jobs/daemon", "/bindings/gpu1/gpu_map"]);
    // Refused by admission, in the transaction.
    let text = "
version: v1
daemons: {gpu0: {gpus: [0], admission: reserved}, gpu1: {gpus: [1]}}
tenants:
  a: {daemon: gpu0, uid: 0, device_memory_limit: 100G, max_clients: 2}
  b: {daemon: gpu1, uid: 0, sms: 7}
";
    let problem = refused(text, "?prune=true").problem(409, "host-file-refused");
    assert_eq!(pointers(&problem), ["/daemons/gpu0", "/daemons/gpu1"], "{problem}");
    // Refused by the plan of a layout on a running daemon.
    let running = FILE.replace("gpu0: {gpus: [0], multi_user: true}", "gpu0: {gpus: [0]}");
    host.api().succeeds(&put(&host, &running, ""));
    let after = exported(&host);
    assert_ne!(after, before);
    let text = with_partition(9).replace("gpu0: {gpus: [0], multi_user: true}", "gpu0: {gpus: [0]}");
    let problem = refused(&text, "").problem(422, "invalid-request");
    assert_eq!(pointers(&problem), ["/bindings/gpu1/layout"], "{problem}");
    // Refused because of clients.
    let _client = host.run_client("demo");
    let problem = refused(FILE, "").problem(409, "host-file-refused");
    assert_eq!(pointers(&problem), ["/daemons/gpu0/multi_user"], "{problem}");
    let problem = refused(&running, "?prune=true").problem(409, "host-file-refused");
    assert_eq!(pointers(&problem), ["/tenants"], "{problem}");
    // Refused because something else changed meanwhile.
    let headers = [("if-match", "\"00\""), ("content-type", YAML)];
    host.api().send(Method::PUT, SPEC, &headers, Some(running.clone())).problem(412, "precondition-failed");
    assert_eq!(exported(&host), after);
    let unknown = host.api().send_text(Method::PUT, SPEC, "text/plain", running);
    unknown.problem(415, "not-a-document");
}

#[test]
fn changed_step_is_applied_with_recreate() {
    let host = InProcess::ready();
    host.api().succeeds(&put(&host, FILE, "?prune=true"));
    let text = FILE.replace("partition: big, chunks: 7", "partition: big, chunks: 9");
    let problem = put(&host, &text, "").problem(409, "host-file-refused");
    assert!(pointers(&problem).iter().all(|pointer| *pointer == "/bindings/gpu1"), "{problem}");
    let detail = problem["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("apply the file with `mps-manager apply --recreate`"), "{detail}");
    let path = file(&host, &text);
    assert_eq!(run(&host, "diff", &path, &[]).0, Some(2));
    assert_eq!(run(&host, "diff", &path, &["--recreate"]).0, Some(1));
    let (code, said) = run(&host, "apply", &path, &["--recreate"]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(host.daemon("gpu1")["spec"]["layout"]["version"], 2);
    assert_eq!(changes(&host, &text, "&prune=true"), Vec::<String>::new());
}

#[test]
fn running_daemon_keeps_its_layout() {
    let host = InProcess::ready();
    host.api().succeeds(&put(&host, FILE, "?prune=true"));
    let (unbound, _) = FILE.split_once("bindings:").expect("bindings");
    let problem = put(&host, unbound, "?prune=true").problem(409, "host-file-refused");
    assert!(problem["detail"].as_str().unwrap().contains("or keep `bindings.gpu1` in the file"), "{problem}");
    // In the other mode it has no use for it.
    let shared = unbound.replace(", mode: static", "");
    let problem = put(&host, &shared, "").problem(409, "host-file-refused");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("needs mode static: leave `bindings.gpu1` out of the file"), "{detail}");
    host.api().succeeds(&put(&host, &shared, "?prune=true"));
    assert_eq!(host.daemon("gpu1")["spec"]["layout"], Value::Null);
}

#[test]
fn pruned_daemon_and_its_layout_go() {
    let host = InProcess::ready();
    host.api().succeeds(&put(&host, FILE, "?prune=true"));
    let pid = host.daemon_pid("gpu1");
    let less = "version: v1\ndaemons: {gpu0: {gpus: [0], multi_user: true}}\ntenants: {jobs: {daemon: gpu0, uid: 0}}";
    assert_eq!(
        changes(&host, less, "&prune=true"),
        [
            "change tenant jobs device_memory_limit priority",
            "delete tenant web",
            "delete daemon gpu1",
            "delete layout prod",
        ]
    );
    let operation = host.api().succeeds(&put(&host, less, "?prune=true"));
    assert!(!crate::harness::is_alive(pid), "{operation}");
    host.api().get("/api/v1/daemons/gpu1").problem(404, "not-found");
    host.api().get("/api/v1/layouts/prod").problem(404, "not-found");
    // The operation is the cause of what it deleted, and not the manager.
    let events = |query: &str| host.events(&format!("&type={query}"));
    let id = operation["id"].as_str().expect("an ID");
    let started = &events(&format!("operation.started&operation={id}"))[0];
    for deleted in ["layout.deleted", "operation.requested&daemon=gpu1"] {
        let newest = events(deleted).pop().expect("an event");
        assert_eq!(newest["cause"], json!({ "by": "event", "id": started["id"] }), "{newest}");
    }
    assert_eq!(changes(&host, &exported(&host), "&prune=true"), Vec::<String>::new());
    // GPU 1 is free again.
    let more = format!("{less}\nlayouts: {{}}").replace("daemons: {", "daemons: {other: {gpus: [1]}, ");
    host.api().succeeds(&put(&host, &more, ""));
    host.await_phase("other", "ready");
}

#[test]
fn template_beyond_the_memory_warns_or_refuses() {
    let host = InProcess::stopped();
    let text = "
version: v1
templates:
  jobs: {daemons: [gpu0], clients_per_gpu: 10, device_memory_limit: 16G, gpu_models: {H200: {clients_per_gpu: 2}}}
daemons:
  gpu0: {gpus: [0]}
";
    let warned = put(&host, text, "?dry_run=true").ok();
    let places: Vec<&str> = warned["warnings"]
        .as_array()
        .expect("warnings")
        .iter()
        .map(|warning| warning["pointer"].as_str().expect("a pointer"))
        .collect();
    assert_eq!(places, ["/templates/jobs", "/templates/jobs/gpu_models/H200"], "{warned}");
    let (code, said) = run(&host, "diff", &file(&host, text), &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("warning: /templates/jobs: 10 clients of 16 GiB each come to 160 GiB"), "{said}");
    assert!(said.contains("if NVIDIA H200 is meant, write that"), "{said}");

    let reserved = text.replace("gpus: [0]}", "gpus: [0], admission: reserved}");
    let problem = put(&host, &reserved, "").problem(409, "host-file-refused");
    assert_eq!(pointers(&problem), ["/templates/jobs"], "{problem}");
    assert_eq!(host.daemon("gpu0")["spec"]["admission"], "open");
}

#[test]
fn host_capacity_is_sum_of_its_daemons() {
    let host = InProcess::ready();
    let capacity = || host.api().get("/api/v1/host").ok()["capacity"].clone();
    assert_eq!(capacity(), Value::Null);
    assert!(!page(&host, "/").contains("that the GPUs are divided among"));
    let text = "
version: v1
templates:
  jobs: {daemons: [gpu0, gpu1], clients_per_gpu: 4}
daemons:
  gpu0: {gpus: [0]}
  gpu1: {gpus: [1]}
";
    host.api().succeeds(&put(&host, text, ""));
    assert_eq!(capacity(), 8);
    assert!(page(&host, "/").contains("of 8 that the GPUs are divided among"));
    let output = host.cli(&["status"]);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains(": 2 GPUs, capacity 8 clients, driver "), "{shown}");
}

#[test]
fn pruned_daemon_hands_its_gpu_on() {
    let host = InProcess::ready();
    let old = host.daemon_pid("gpu0");
    let text = "version: v1\ndaemons: {renamed: {gpus: [0]}, gpu1: {gpus: [1]}}\ntenants: {demo: {daemon: renamed, uid: 0}}";
    put(&host, text, "").problem(409, "host-file-refused");
    host.api().succeeds(&put(&host, text, "?prune=true"));
    assert!(!crate::harness::is_alive(old));
    host.api().get("/api/v1/daemons/gpu0").problem(404, "not-found");
    host.await_phase("renamed", "ready");
    assert_eq!(changes(&host, text, "&prune=true"), Vec::<String>::new());
}

#[test]
fn two_daemons_exchange_their_gpus() {
    let host = InProcess::ready();
    let gpus = |name: &str| host.daemon(name)["spec"]["gpus"].clone();
    let (first, second) = (gpus("gpu0"), gpus("gpu1"));
    let text = "version: v1\ndaemons: {gpu0: {gpus: [1]}, gpu1: {gpus: [0]}}";
    host.api().succeeds(&put(&host, text, ""));
    assert_eq!((gpus("gpu0"), gpus("gpu1")), (second, first));
    for name in ["gpu0", "gpu1"] {
        host.await_phase(name, "ready");
    }
}

#[test]
fn chunks_are_counted_before_a_restart() {
    let host = InProcess::ready();
    let pid = host.daemon_pid("gpu1");
    let text = FILE
        .replace("chunks: 7, tenants", "chunks: 8, tenants")
        .replace("small, chunks: 5", "small, chunks: 8");
    let problem = put(&host, &text, "").problem(409, "host-file-refused");
    assert_eq!(pointers(&problem), ["/bindings/gpu1/layout"], "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("needs 16 chunks at once"), "{problem}");
    assert_eq!((&host.daemon("gpu1")["spec"]["mode"], host.daemon_pid("gpu1")), (&json!("shared"), pid));
}

#[test]
fn repeated_name_in_json_is_refused() {
    let host = InProcess::stopped();
    let text = r#"{"version": "v1", "tenants": {"x": {"daemon": "gpu0", "uid": 0}, "x": {"daemon": "gpu1", "uid": 0}}}"#;
    let path = format!("{SPEC}?dry_run=true");
    let answer = host.api().send_text(Method::PUT, &path, "application/json", text.to_owned());
    assert_eq!(pointers(&answer.problem(422, "invalid-request")), ["/tenants/x"]);
}

fn file(host: &Served, text: &str) -> PathBuf {
    let path = host.dir().join("host.yaml");
    fs::write(&path, text).expect("written");
    path
}

/// The exit code and the output of a command about a file.
fn run(host: &Served, verb: &str, path: &Path, more: &[&str]) -> (Option<i32>, String) {
    let path = path.to_str().expect("text");
    let output = host.cli(&[&[verb, "-f", path], more].concat());
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    (output.status.code(), text.concat())
}

#[test]
fn commands_compare_apply_and_export() {
    let host = InProcess::ready();
    let path = file(&host, FILE);
    let (code, text) = run(&host, "diff", &path, &["--prune"]);
    assert_eq!(code, Some(1), "{text}");
    for line in ["+ layout prod", "~ daemon gpu1\n    ~ mode: (default) -> \"static\"", "- tenant demo"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(run(&host, "apply", &path, &["--prune", "--dry-run"]), (Some(0), text));
    assert_eq!(run(&host, "diff", &path, &["--prune"]).0, Some(1));
    let (code, text) = run(&host, "apply", &path, &["--prune"]);
    assert!(code == Some(0) && text.contains("applied: 8 changes"), "{code:?} {text}");
    for verb in ["diff", "apply"] {
        let (code, text) = run(&host, verb, &path, &["--prune"]);
        assert_eq!(
            (code, text.as_str()),
            (Some(0), "nothing to change: the host is what the file says\n"),
            "{verb}"
        );
    }
    let export = host.cli(&["export"]);
    let path = file(&host, &String::from_utf8(export.stdout).expect("text"));
    assert_eq!(run(&host, "diff", &path, &["--prune"]).0, Some(0));
    let path = file(&host, &FILE.replace("mode: static", "modus: static"));
    let (code, text) = run(&host, "diff", &path, &[]);
    assert!(code == Some(2) && text.contains("modus") && text.contains('^'), "{code:?} {text}");
    let path = file(&host, &FILE.replace("gpus: [1]", "gpus: [7]"));
    let (code, text) = run(&host, "apply", &path, &[]);
    assert!(code == Some(2) && text.contains("there is no GPU 7"), "{code:?} {text}");
    assert!(text.contains("(at /daemons/gpu1/gpus)"), "{text}");
    // Several faults are counted first, by the command and by the server.
    let elsewhere =
        FILE.replace("gpus: [1]", "gpus: [7]").replace("daemon: gpu0, uid", "daemon: nowhere, uid");
    let (code, text) = run(&host, "apply", &file(&host, &elsewhere), &[]);
    assert!(code == Some(2) && text.contains(": 2 faults\n  /daemons/gpu1/gpus: "), "{code:?} {text}");
    let layout = "layout: {name: prod, version: 1}";
    let misplaced = FILE.replace("multi_user: true", layout).replace("mode: static", layout);
    let (code, text) = run(&host, "diff", &file(&host, &misplaced), &[]);
    assert!(code == Some(2) && text.contains(": 2 faults\n  /daemons/gpu0/layout: "), "{code:?} {text}");
}

#[test]
fn serve_applies_a_host_file() {
    let mut host = crate::harness::Host::new("");
    let bad = file(&host, &FILE.replace("mode: static", "modus: static"));
    let said = host.refused(&["--apply", bad.to_str().expect("text")]);
    assert!(said.contains("modus") && said.contains('^'), "{said}");
    let impossible = file(&host, &FILE.replace("gpus: [1]", "gpus: [7]"));
    let said = host.refused(&["--apply", impossible.to_str().expect("text")]);
    assert!(said.contains("/daemons/gpu1/gpus: there is no GPU 7"), "{said}");
    // On a fresh host the file says what there is, and no examples are in its way.
    let good = file(&host, FILE);
    host.serve_with(&["--apply", good.to_str().expect("text")]);
    eventually("the file is applied", || {
        let operations = operations(&host);
        operations
            .iter()
            .find(|one| one["request"]["kind"] == "apply_spec" && one["state"] == "succeeded")
            .cloned()
    });
    assert_eq!(changes(&host, FILE, "&prune=true"), Vec::<String>::new());
    assert_eq!(super::layouts::partitions(&host).len(), 2);
}

#[test]
fn refused_trial_removes_its_directories() {
    let host = crate::harness::Host::new("");
    let path = file(&host, &FILE.replace("gpus: [1]", "gpus: [7]"));
    let said = host.refused(&["--rm", "--apply", path.to_str().expect("text")]);
    assert!(said.contains("nothing of it was applied"), "{said}");
    assert!(!host.state("").exists() && !host.runtime("").exists(), "{said}");
}

#[test]
fn examples_fit_schema_and_host() {
    let schema = host_file_schema();
    kept_and_printed("openapi/host-v1.schema.json", &schema, &["export", "--schema"]);
    let validator = jsonschema::draft202012::new(&schema).expect("a valid schema");
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).expect("YAML");
    for bad in [
        "version: v1\ncolour: 1",
        "version: v1\ndaemons: {a: {gpus: []}}",
        "version: v1\ndaemons: {a: {gpus: [0], layout: {name: x, version: 1}}}",
    ] {
        assert!(!validator.is_valid(&read(bad)), "{bad}");
    }
    assert!(validator.is_valid(&read(FILE)));
    for example in ["host-notebooks.yaml", "host-inference.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(example);
        let text = fs::read_to_string(&path).expect("an example");
        assert!(
            text.starts_with("# yaml-language-server: $schema=../openapi/host-v1.schema.json\n"),
            "{example}"
        );
        let errors: Vec<String> =
            validator.iter_errors(&read(&text)).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{example}: {errors:?}");
        let host = InProcess::ready();
        // A manager that is not root serves its own user only.
        let text = text.replace("uid: 1000", &format!("uid: {}", rustix::process::geteuid().as_raw()));
        host.api().succeeds(&put(&host, &text, "?prune=true"));
        assert_eq!(changes(&host, &text, "&prune=true"), Vec::<String>::new(), "{example}");
        assert_eq!(changes(&host, &exported(&host), "&prune=true"), Vec::<String>::new(), "{example}");
    }
}

/// Slurm's and Kubernetes' tenants are written while a file of others is applied, and layouts and daemons that it leaves alone.
#[test]
fn file_is_applied_beside_writes_of_others() {
    let host = InProcess::ready();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let of = |number: i32| format!("  own{number}: {{daemon: gpu1, uid: 0, max_clients: ROUND}}");
    let tenants = (0..60).map(of).collect::<Vec<_>>().join(
        "
",
    );
    let written = std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            let mut written = 0;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                let path = format!("/api/v1/tenants/churn{}", written % 5);
                let spec = json!({"daemon": "gpu0", "uid": 0, "max_clients": 1 + written % 3});
                assert!(host.api().put(&path, &spec).status < 300);
                let note = json!({"layout": {"steps": []}, "note": written.to_string()});
                assert!(host.api().put("/api/v1/layouts/churn", &note).status < 300);
                let policy = if written % 2 == 0 { "report" } else { "repair" };
                let daemon = json!({"gpus": ["0"], "drift_policy": policy});
                assert!(host.api().put("/api/v1/daemons/gpu0", &daemon).status < 300);
                written += 1;
            }
            written
        });
        for round in 1..=8 {
            let file = format!("version: v1\ntenants:\n{}", tenants.replace("ROUND", &round.to_string()));
            let path = host.dir().join("churn.yaml");
            fs::write(&path, file).expect("written");
            let applied = host.cli(&["apply", "-f", path.to_str().expect("text"), "--yes"]);
            assert!(applied.status.success(), "round {round}: {}", crate::harness::stderr_of(&applied));
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        churn.join().expect("it wrote")
    });
    assert!(written > 20, "{written} writes beside it");
}
