use std::collections::BTreeMap;
use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;
use crate::gpu::Gpu;
use crate::layout::text::LayoutFormat;
use crate::testing::h200;

const FILE: &str = "
version: v1
layouts:
  halves:
    steps:
      - add: {gpu: 0, partition: left, chunks: 7, tenants: [web]}
      - add: {gpu: 0, partition: right, chunks: 7}
daemons:
  gpu0: {gpus: [0]}
  gpu1: {gpus: ['1'], mode: static}
tenants:
  web: {daemon: gpu0, uid: 0, device_memory_limit: 4G}
bindings:
  gpu1: {layout: halves, gpu_map: {0: 1}}
";

fn gpus() -> Vec<Gpu> {
    (0..4).map(h200).collect()
}

fn read(text: &str) -> HostFile {
    text::read(text, LayoutFormat::Yaml).expect("a host file")
}

/// Returns the state of the host once everything was applied.
fn applied(spec: &HostSpec, before: &StoredHost) -> StoredHost {
    let mut stored = before.clone();
    for (name, (layout, note)) in &spec.layouts {
        let earlier = stored.layouts.get(name).filter(|newest| newest.layout == *layout).cloned();
        let version = before.next_versions.get(name).copied().unwrap_or(1);
        let new = StoredLayout { version, layout: layout.clone(), note: note.clone() };
        stored.layouts.insert(name.clone(), earlier.unwrap_or(new));
    }
    for (name, spec) in &spec.daemons {
        let layout = stored.daemons.get(name).and_then(|daemon| daemon.layout.clone());
        stored.daemons.insert(name.clone(), DaemonSpec { layout, ..spec.clone() });
    }
    stored.tenants.extend(spec.tenants.clone());
    for (name, active) in &spec.bindings {
        stored.daemons.get_mut(name).expect("the daemon").layout = Some(active.clone());
    }
    stored
}

fn on(text: &str, stored: &StoredHost) -> Result<Vec<HostChange>, FileErrors> {
    let spec = resolve(&read(text), stored, &gpus(), false)?;
    Ok(changes(&spec, stored, &gpus(), false))
}

fn stored() -> StoredHost {
    let empty = StoredHost::default();
    applied(&resolve(&read(FILE), &empty, &gpus(), false).expect("a good file"), &empty)
}

fn shown(changes: &[HostChange]) -> Vec<String> {
    changes.iter().map(|change| change.to_string().lines().collect::<Vec<_>>().join("|")).collect()
}

#[test]
fn files_of_others_are_recognised() {
    let plugin = "version: v1\nflags:\n  migStrategy: none\nsharing:\n  mps:\n    resources:\n    - name: nvidia.com/gpu\n      replicas: 4\n";
    let refused = text::read(plugin, LayoutFormat::Yaml).expect_err("another format");
    let reason = refused[0].reason.to_string();
    assert!(reason.contains("NVIDIA's device plugin") && reason.contains("unknown field flags"), "{reason}");
    let refused =
        text::read("apiVersion: v1\nkind: ConfigMap\ndata: {}\n", LayoutFormat::Yaml).expect_err("a wrapper");
    assert!(refused[0].reason.to_string().starts_with("this is a ConfigMap"), "{refused:?}");
}

#[test]
fn unknown_field_is_shown_with_a_caret() {
    let text = FILE.replace("mode: static", "modus: static");
    let errors = text::read(&text, LayoutFormat::Yaml).expect_err("unknown");
    let message = errors[0].to_string();
    assert!(message.contains("modus") && message.contains('^') && message.contains("line 10"), "{message}");
    let json = serde_json::json!({"version": "v1", "daemons": {"gpu0": {"gpus": ["0"], "modus": 1}}});
    let errors = text::read(&json.to_string(), LayoutFormat::Json).expect_err("unknown");
    assert_eq!(errors[0].pointer, "/daemons/gpu0/modus");
    // The layout of a daemon stands under bindings.
    for message in [message, errors[0].to_string()] {
        assert!(message.contains("this takes gpus, mode, mlopart, multi_user, "), "{message}");
    }
}

#[test]
fn faults_of_a_file_are_all_found() {
    let text = "
version: v1
layouts:
  import: {steps: []}
  big: {steps: [{add: {gpu: 0, partition: p, chunks: 17}}]}
daemons:
  gpu0: {gpus: [0], layout: {name: big, version: 1}}
  gpu-0: {gpus: [1]}
  gpu_0: {gpus: [2]}
";
    let errors = text::read(text, LayoutFormat::Yaml).expect_err("faults");
    let places: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    assert_eq!(places, ["/layouts/import", "/daemons/gpu0/layout", "/daemons/gpu_0"]);
    let text = "
version: v1
layouts:
  big: {steps: [{add: {gpu: 0, partition: p, chunks: 17}}]}
daemons:
  a: {gpus: [0]}
  b: {gpus: [0, 1]}
  c: {gpus: [9]}
  d: {gpus: [3], mode: static}
tenants:
  web: {daemon: nowhere, uid: 0}
  two: {daemon: a, uid: 0, sms: 8, active_thread_percentage: 5}
bindings:
  d: {layout: big, gpu_map: {0: 3}}
  a: {layout: none}
  e: {layout: big}
";
    let errors = resolve(&read(text), &StoredHost::default(), &gpus(), false).expect_err("faults");
    assert!(!errors.conflict, "{errors:?}");
    let errors = errors.errors;
    let places: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
    let wanted = [
        "/daemons/c/gpus",
        "/daemons/b/gpus",
        "/tenants/two/sms",
        "/tenants/web/daemon",
        "/bindings/a/layout",
        "/bindings/d/layout",
        "/bindings/e",
    ];
    assert_eq!(places, wanted, "{errors:#?}");
    assert!(errors[1].to_string().contains("also held by daemon a"), "{}", errors[1]);
    assert!(errors[5].to_string().contains("it needs 17 chunks at once"), "{}", errors[5]);
}

#[test]
fn changes_are_listed_field_by_field() {
    let all = shown(&on(FILE, &StoredHost::default()).expect("changes"));
    assert_eq!(all.len(), 5, "{all:?}");
    assert!(all[0].starts_with("+ layout halves|"), "{all:?}");
    assert_eq!(all[1], "+ daemon gpu0|    + gpus: [\"0\"]");
    assert_eq!(all[4], "+ binding gpu1|    + gpu_map: {\"0\":\"1\"}|    + layout: \"halves version 1\"");
    let stored = stored();
    assert_eq!(on(FILE, &stored).expect("no changes"), []);
    let mut stored =
        StoredHost { next_versions: BTreeMap::from([(LayoutName::parse("halves").unwrap(), 2)]), ..stored };
    let edited = FILE
        .replace("4G", "8G")
        .replace("chunks: 7}", "chunks: 8}")
        .replace("[0]}", "[0], schedulable: false}");
    assert_eq!(
        shown(&on(&edited, &stored).expect("changes"))[1..],
        [
            "~ daemon gpu0|    ~ schedulable: (default) -> false",
            "~ tenant web|    ~ device_memory_limit: \"4G\" -> \"8G\"",
            "~ binding gpu1|    ~ layout: \"halves version 1\" -> \"halves version 2\"",
        ]
    );
    // What is gone from the file stays, unless it is pruned: in the reverse order.
    let less = read("version: v1\ndaemons: {gpu0: {gpus: [0]}, gpu1: {gpus: [1], mode: static}}");
    stored.next_versions.clear();
    let spec = resolve(&less, &stored, &gpus(), true).expect("a good file");
    assert_eq!(changes(&spec, &stored, &gpus(), false), []);
    assert_eq!(
        shown(&changes(&spec, &stored, &gpus(), true)),
        ["- binding gpu1", "- tenant web", "- layout halves"]
    );
}

#[test]
fn tenants_that_expire_are_in_no_file() {
    let expires =
        FILE.replace("web: {daemon: gpu0", "web: {daemon: gpu0, expires_at: '2099-01-01T00:00:00Z'");
    let errors = text::read(&expires, LayoutFormat::Yaml).expect_err("a file says what stays");
    assert_eq!(errors[0].pointer, "/tenants/web/expires_at");
    assert!(errors[0].to_string().contains("mps-manager tenant ensure web --ttl 48h"), "{}", errors[0]);

    let mut stored = stored();
    let permanent = text::write(&export(&stored, &gpus()), LayoutFormat::Yaml);
    let mut job = stored.tenants[&TenantName::parse("web").unwrap()].clone();
    job.expires_at = Some(4_070_908_800_000);
    stored.tenants.insert(TenantName::parse("job-1").unwrap(), job.clone());
    assert_eq!(text::write(&export(&stored, &gpus()), LayoutFormat::Yaml), permanent);
    // Pruning leaves it, unless its daemon goes.
    let pruned = |text: &str, stored: &StoredHost| {
        let spec = resolve(&read(text), stored, &gpus(), true).expect("a good file");
        shown(&changes(&spec, stored, &gpus(), true))
    };
    assert_eq!(pruned(FILE, &stored), [""; 0]);
    assert_eq!(
        pruned("version: v1\ndaemons: {gpu0: {gpus: [0]}}", &stored),
        ["- tenant web", "- daemon gpu1", "- layout halves"]
    );
    let gone = pruned("version: v1\ndaemons: {gpu1: {gpus: [1], mode: static}}", &stored);
    assert_eq!(
        gone,
        ["- binding gpu1", "- tenant job-1", "- tenant web", "- daemon gpu0", "- layout halves"]
    );
    // In the file it stays from now on.
    stored.tenants.insert(TenantName::parse("web").unwrap(), job);
    let kept = pruned(FILE, &stored);
    assert_eq!(kept, ["~ tenant web|    ~ expires_at: \"2099-01-01T00:00:00.000Z\" -> (default)"]);
}

#[test]
fn default_gpu_map_is_no_change() {
    let text = FILE
        .replace("gpu0: {gpus: [0]}", "gpu0: {gpus: [0], mode: static}")
        .replace("gpu1: {layout: halves, gpu_map: {0: 1}}", "gpu0: {layout: halves}");
    let empty = StoredHost::default();
    let stored = applied(&resolve(&read(&text), &empty, &gpus(), false).expect("a good file"), &empty);
    let next_versions = BTreeMap::from([(LayoutName::parse("halves").unwrap(), 2)]);
    let stored = StoredHost { next_versions, ..stored };
    let edited = text.replace("chunks: 7}", "chunks: 8}");
    assert_eq!(
        shown(&on(&edited, &stored).expect("changes"))[1..],
        ["~ binding gpu0|    ~ layout: \"halves version 1\" -> \"halves version 2\""]
    );
}

#[test]
fn held_gpu_and_pruned_names_are_refused() {
    let stored = stored();
    let refused = |text: &str, prune| {
        let errors = resolve(&read(text), &stored, &gpus(), prune).expect_err("refused").errors;
        errors.iter().map(|error| format!("{}: {error}", error.pointer)).collect::<Vec<_>>().join("\n")
    };
    let text = "version: v1\ndaemons: {new: {gpus: [0]}}";
    assert!(refused(text, false).contains("/daemons/new/gpus: GPU 0 (GPU-"));
    assert!(resolve(&read(text), &stored, &gpus(), false).expect_err("refused").conflict);
    // One that is pruned hands its GPUs on, and so do two that exchange theirs.
    resolve(&read(text), &stored, &gpus(), true).expect("a good file");
    let text = "version: v1\ndaemons: {gpu0: {gpus: [1]}, gpu1: {gpus: [0], mode: static}}";
    resolve(&read(text), &stored, &gpus(), false).expect("a good file");
    let text = "version: v1\ntenants: {web: {daemon: gpu0, uid: 0}}";
    assert!(refused(text, true).contains("/tenants/web/daemon: daemon gpu0 is not in the file"));
    let text = "version: v1\ndaemons: {gpu1: {gpus: [1], mode: static}}\nbindings: {gpu1: {layout: halves, gpu_map: {0: 1}}}";
    assert!(refused(text, true).contains("/bindings/gpu1/layout: layout halves is not in the file"));
}

#[test]
fn layout_is_checked_by_counted_chunks() {
    let spec = resolve(&read(FILE), &StoredHost::default(), &gpus(), false).expect("a good file");
    let (layout, _) = &spec.layouts[&LayoutName::parse("halves").unwrap()];
    let map = BTreeMap::from([(0, h200(1).uuid)]);
    let check = |counted: &[(u32, u32)]| {
        let counted = counted.iter().map(|(gpu, chunks)| (h200(*gpu).uuid, *chunks)).collect();
        fits(layout, &map, &gpus(), &counted)
    };
    check(&[]).expect("nothing was counted");
    check(&[(1, 14)]).expect("just enough");
    check(&[(0, 13), (1, 14)]).expect("the count of the GPU itself");
    for counted in [&[(1, 13)][..], &[(0, 13), (2, 14)]] {
        let error = check(counted).expect_err("too few").to_string();
        assert!(error.contains("needs 14 chunks at once") && error.contains("at most 13"), "{error}");
    }
}

#[test]
fn empty_section_counts_as_absent() {
    let file = read("version: v1\ndaemons:\n  # gpu0: {gpus: [0]}\ntenants:\n");
    assert!(file.daemons.is_empty() && file.tenants.is_empty());
    let errors = text::read("", LayoutFormat::Yaml).expect_err("empty");
    assert!(errors[0].to_string().contains("begin the host file with `version: v1`"), "{errors:?}");
}

#[test]
fn tenants_fault_is_at_the_tenant() {
    let text = "version: v1\ndaemons: {gpu0: {gpus: [0]}}\ntenants:\n  x: {daemon: gpu0, uid: 0, device_memory_limit: {0: 1G, 1: 2G}}";
    let errors = resolve(&read(text), &StoredHost::default(), &gpus(), false).expect_err("refused").errors;
    assert_eq!(errors[0].pointer, "/tenants/x/device_memory_limit");
    assert!(errors[0].to_string().contains("limits GPU 1 (GPU-"), "{}", errors[0]);
}

const TEMPLATE: &str = "
version: v1
templates:
  notebooks:
    daemons: [gpu0, gpu1]
    clients_per_gpu: 8
    device_memory_limit: 16G
    gpu_models:
      NVIDIA H200: {clients_per_gpu: 4}
daemons:
  gpu0: {gpus: [0]}
  gpu1: {gpus: [1, 2]}
  gpu3: {gpus: [3]}
";

#[test]
fn template_becomes_provisioning_by_gpu_model() {
    let spec = resolve(&read(TEMPLATE), &StoredHost::default(), &gpus(), false).expect("a good file");
    let given = |name: &str| {
        let daemon = &spec.daemons[&DaemonName::parse(name).expect("a name")];
        let limit = daemon.defaults.device_memory_limit.clone();
        (daemon.provisioning.strategy.as_str(), daemon.provisioning.expected_clients, limit.is_some())
    };
    assert_eq!(given("gpu0"), ("uniform", Some(4), true));
    assert_eq!(given("gpu1"), ("uniform", Some(4), true));
    assert_eq!(given("gpu3"), ("none", None, false));
    // Where it was applied it changes nothing.
    let stored = applied(&spec, &StoredHost::default());
    assert_eq!(on(TEMPLATE, &stored).expect("a good file"), []);
}

#[test]
fn wrong_templates_are_refused_at_their_places() {
    let refused = |from: &str, to: &str, pointer: &str, words: &str| {
        let text = TEMPLATE.replace(from, to);
        assert_ne!(text, TEMPLATE);
        let errors = match text::read(&text, LayoutFormat::Yaml) {
            Err(errors) => errors,
            Ok(file) => resolve(&file, &StoredHost::default(), &gpus(), false).expect_err(words).errors,
        };
        assert!(
            errors.iter().any(|error| error.pointer == pointer && error.to_string().contains(words)),
            "{errors:?}"
        );
    };
    let daemons = "/templates/notebooks/daemons";
    refused("[gpu0, gpu1]", "[gpu0, gpu9]", daemons, "there is no daemon gpu9 in the file");
    refused("[gpu0, gpu1]", "[]", daemons, "for no daemon");
    refused("[gpu0, gpu1]", "[gpu0, gpu0]", daemons, "has template notebooks already");
    let clients = "/templates/notebooks/clients_per_gpu";
    refused("clients_per_gpu: 8", "clients_per_gpu: 61", clients, "takes more than 60 on a GPU");
    let both = "gpu0: {gpus: [0], provisioning: {strategy: relaxed}}";
    refused("gpu0: {gpus: [0]}", both, "/daemons/gpu0/provisioning", "take it out of one of them");
    refused(
        "clients_per_gpu: 4",
        "clients_per_gpu: 0",
        "/templates/notebooks/gpu_models/NVIDIA H200/clients_per_gpu",
        "give 1 to 60",
    );
    let mut mixed = gpus();
    mixed[2].name = "NVIDIA A100".to_owned();
    let errors =
        resolve(&read(TEMPLATE), &StoredHost::default(), &mixed, false).expect_err("two models").errors;
    assert_eq!(errors[0].pointer, "/daemons/gpu1/gpus");
    assert!(errors[0].to_string().contains("give each model a daemon of its own"), "{errors:?}");
}

#[test]
fn template_beyond_reserved_memory_is_refused() {
    let text = TEMPLATE.replace("clients_per_gpu: 4", "clients_per_gpu: 9");
    let warnings = |text: &str| {
        let spec = resolve(&read(text), &StoredHost::default(), &gpus(), false).expect("a good file");
        spec.warnings.iter().map(|warning| format!("{}: {warning}", warning.pointer)).collect::<Vec<_>>()
    };
    assert_eq!(warnings(TEMPLATE), [""; 0]);
    let open = warnings(&text);
    assert_eq!(open.len(), 1, "once for all GPUs of the model: {open:?}");
    assert!(open[0].starts_with("/templates/notebooks/gpu_models/NVIDIA H200: "), "{open:?}");
    assert!(open[0].contains("9 clients of 16 GiB each come to 144 GiB"), "{open:?}");

    let refused = |text: &str, words: &str| {
        let errors = resolve(&read(text), &StoredHost::default(), &gpus(), false).expect_err("refused");
        assert!(errors.conflict, "on a larger GPU it is right");
        let [only] = errors.errors.as_slice() else { panic!("{errors:?}") };
        assert!(only.to_string().contains(words), "{only}");
    };
    let reserved = text.replace("{gpus: [0]}", "{gpus: [0], admission: reserved}");
    refused(&reserved, "over-commit 1.0 = 139.8 GiB to reserve");
    let overcommitted =
        reserved.replace("admission: reserved", "admission: reserved, memory_overcommit: 1.5");
    assert_eq!(warnings(&overcommitted).len(), 1, "of the other daemon");
    refused(&text.replace("16G", "150G"), "each client gets 150 GiB");
}

#[test]
fn unknown_models_of_a_template_are_warned_of() {
    let warning = |model: &str| {
        let text = TEMPLATE
            .replace("NVIDIA H200: {clients_per_gpu: 4}", &format!("{model}: {{clients_per_gpu: 4}}"));
        let spec = resolve(&read(&text), &StoredHost::default(), &gpus(), false).expect("for other hosts");
        let [warning] = spec.warnings.as_slice() else { panic!("{:?}", spec.warnings) };
        assert!(warning.pointer.starts_with("/templates/notebooks/gpu_models/"), "{}", warning.pointer);
        warning.to_string()
    };
    for misspelt in ["H200", "nvidia h200", "NVIDIA H2OO"] {
        assert!(warning(misspelt).ends_with("but of NVIDIA H200: if NVIDIA H200 is meant, write that"));
    }
    assert!(warning("NVIDIA A100-SXM4-40GB").ends_with("unless it is for other hosts"));
}

#[test]
fn newer_file_is_refused_by_its_version() {
    let errors = text::read("version: v2\nfuture: 1\n", LayoutFormat::Yaml).expect_err("newer");
    assert!(errors[0].pointer == "/version" && errors[0].to_string().contains("newer manager"), "{errors:?}");
}

/// Random hosts as files.
fn files() -> impl Strategy<Value = String> {
    let limit = prop_oneof![
        Just(String::new()),
        (1_u32..4096).prop_map(|mib| format!(", device_memory_limit: {mib}M")),
        (1_u32..9).prop_map(|weight| format!(", weight: {weight}"))
    ];
    let tenant = (0_usize..4, limit, 0_u32..3, any::<bool>()).prop_map(|(daemon, limit, uid, low)| {
        let priority = if low { ", priority: below_normal" } else { "" };
        format!("{{daemon: gpu{daemon}, uid: {uid}{limit}{priority}}}")
    });
    let daemon = (any::<bool>(), any::<bool>(), any::<bool>(), 0_u32..3);
    (proptest::collection::vec(daemon, 4), proptest::collection::vec(tenant, 0..6)).prop_map(|(daemons, tenants)| {
        let mut text = "version: v1\nlayouts:\n  one: {steps: [{add: {gpu: 0, partition: p, chunks: 3}}]}\ndaemons:\n".to_owned();
        let mut bindings = String::new();
        for (index, (is_static, many, stopped, policy)) in daemons.iter().enumerate() {
            let mode = if *is_static { "static" } else { "shared" };
            let state = if *stopped { "stopped" } else { "running" };
            let _ = writeln!(text, "  gpu{index}: {{gpus: [{index}], mode: {mode}, multi_user: {many}, desired_state: {state}}}");
            if *is_static && *policy > 0 {
                let policy = if *policy == 1 { "report" } else { "repair" };
                let _ = writeln!(bindings, "  gpu{index}: {{layout: one, gpu_map: {{0: {index}}}, drift_policy: {policy}}}");
            }
        }
        for (index, tenant) in tenants.iter().enumerate() {
            let _ = writeln!(text, "{}  t{index}: {tenant}", if index == 0 { "tenants:\n" } else { "" });
        }
        if bindings.is_empty() { text } else { format!("{text}bindings:\n{bindings}") }
    })
}

proptest! {
    #[test]
    fn export_differs_in_nothing(text in files()) {
        let empty = StoredHost::default();
        let spec = resolve(&read(&text), &empty, &gpus(), true).expect("a good file");
        let stored = applied(&spec, &empty);
        let exported = export(&stored, &gpus());
        for format in [LayoutFormat::Yaml, LayoutFormat::Json] {
            let text = text::write(&exported, format);
            let file = text::read(&text, format).expect(&text);
            let again = resolve(&file, &stored, &gpus(), true).expect(&text);
            prop_assert_eq!(changes(&again, &stored, &gpus(), true), vec![], "{}", text);
        }
    }
}
