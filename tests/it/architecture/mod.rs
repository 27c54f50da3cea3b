//! Which folder may use which: the directions of `docs/architecture.md`, held.

mod circles;
mod code_lines;
mod source_tree;
mod type_names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of `src` that are packages of their own: the domain is pure and at the bottom, and the simulated host imports nothing of the
/// rest, so that it can disagree with it. The compiler holds both to it, as long as they depend on no other package of ours.
const PACKAGES: [&str; 2] = ["domain", "sim"];

/// Compiled for tests only, which every part has.
const FOR_TESTS: [&str; 2] = ["fuzz", "testing"];

/// What each part of `src` may use of the others. Not named: whatever may be used by the outer shell only.
fn allowed() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("host", &[][..]),
        ("clock", &[]),
        ("fuzz", &[]),
        ("store", &["domain", "host", "metrics"]),
        ("mps", &["domain", "host", "metrics"]),
        ("gpu", &["domain", "host"]),
        ("supervisor", &["clock", "domain", "gpu", "host", "metrics", "mps"]),
        ("operations", &["clock", "domain", "gpu", "host", "metrics", "store", "supervisor"]),
        ("service", &["clock", "domain", "gpu", "host", "metrics", "operations", "store", "supervisor"]),
        // Counted by everybody, rendered in one place.
        ("metrics", &["domain"]),
        // A value has one word, on a page and in a terminal.
        ("words", &["domain", "service"]),
        ("http", &["clock", "config", "domain", "metrics", "service", "words"]),
        ("config", &["domain", "host"]),
        ("telemetry", &["config", "domain"]),
        ("lifecycle", &[]),
        // The outer shell: the command line speaks the API's own types, and `app` puts everything together.
        ("client", &["host", "http"]),
        ("kubelet", &["client", "clock", "domain", "host", "http", "lifecycle", "service"]),
        (
            "cli",
            &[
                "app",
                "client",
                "clock",
                "config",
                "domain",
                "gpu",
                "host",
                "http",
                "kubelet",
                "service",
                "sim",
                "telemetry",
                "words",
            ],
        ),
        (
            "app",
            &[
                "client",
                "clock",
                "config",
                "domain",
                "gpu",
                "host",
                "http",
                "lifecycle",
                "metrics",
                "mps",
                "operations",
                "service",
                "sim",
                "store",
                "supervisor",
            ],
        ),
        ("main", &["cli", "sim"]),
        ("bin", &["sim"]),
    ])
}

pub(crate) fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The part of `src` that a file belongs to.
fn part(source: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let inside = source.strip_prefix(root).expect("a file of src");
    let first = inside.components().next().expect("a name").as_os_str().to_string_lossy().into_owned();
    first.trim_end_matches(".rs").to_owned()
}

/// The text without comments, in which a name says nothing.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The parts that a text names: `crate::part`, and each name in `crate::{part, other::Thing}`.
fn used(text: &str) -> BTreeSet<String> {
    let name = |text: &str| -> String {
        text.chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
    };
    let mut found = BTreeSet::new();
    for prefix in ["crate::", "mps_manager::"] {
        for (at, _) in text.match_indices(prefix) {
            let rest = &text[at + prefix.len()..];
            let Some(list) = rest.strip_prefix('{') else {
                found.insert(name(rest));
                continue;
            };
            let (mut depth, mut item) = (0, String::new());
            for letter in list.chars() {
                match letter {
                    '{' => depth += 1,
                    '}' if depth == 0 => break,
                    '}' => depth -= 1,
                    ',' if depth == 0 => {
                        found.insert(name(item.trim()));
                        item.clear();
                        continue;
                    }
                    _ => {}
                }
                item.push(letter);
            }
            found.insert(name(item.trim()));
        }
    }
    found.remove("");
    found
}

/// The longest that a file may be: past that a second idea lives in it.
const LONGEST: usize = 600;

/// Each source file of the package.
fn all_sources() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    }
    files
}

#[test]
fn no_source_file_is_too_long() {
    let files = all_sources();
    let lines = |file: &PathBuf| fs::read_to_string(file).expect("text").lines().count();
    let long: Vec<_> = files.iter().filter(|file| lines(file) > LONGEST).collect();
    assert!(long.is_empty(), "more than {LONGEST} lines: {long:?}");
}

/// The tests of a file whose names have more than eight words.
fn long_test_names(text: &str) -> Vec<&str> {
    let mut long = Vec::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[") {
            is_test |= line.ends_with("test]") || line.contains("::test(");
            continue;
        }
        if is_test && let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            long.extend((name.split('_').count() > 8).then_some(name));
        }
        is_test = false;
    }
    long
}

#[test]
fn test_names_have_at_most_eight_words() {
    let text = "#[test]\n#[ignore]\nfn a_b_c_d_e_f_g_h() {}\n#[tokio::test]\nasync fn a_b_c_d_e_f_g_h_i() {}\nfn a_b_c_d_e_f_g_h_i_j() {}";
    assert_eq!(long_test_names(text), ["a_b_c_d_e_f_g_h_i"]);
    for file in all_sources() {
        let text = fs::read_to_string(&file).expect("text");
        assert_eq!(long_test_names(&text), Vec::<&str>::new(), "{}", file.display());
    }
}

#[test]
fn packages_depend_on_none_of_ours() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let folders = fs::read_dir(&root).expect("src").map(|entry| entry.expect("an entry").path());
    let mut found: Vec<PathBuf> = folders.filter(|folder| folder.join("Cargo.toml").exists()).collect();
    found.sort();
    assert_eq!(found, PACKAGES.map(|name| root.join(name)));
    for package in found {
        let manifest = fs::read_to_string(package.join("Cargo.toml")).expect("text");
        let manifest: toml::Table = manifest.parse().expect("TOML");
        for (name, dependency) in manifest["dependencies"].as_table().expect("dependencies") {
            assert!(dependency.get("path").is_none(), "{} depends on {name}", package.display());
        }
    }
}

#[test]
fn parts_use_only_what_is_below_them() {
    let allowed = allowed();
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 80);
    let mut wrong = Vec::new();
    for file in files {
        let part = part(&file);
        if part == "lib" || PACKAGES.contains(&part.as_str()) {
            continue;
        }
        let may = allowed.get(part.as_str()).unwrap_or_else(|| panic!("{part} has no place in the order"));
        for name in used(&code(&fs::read_to_string(&file).expect("text"))) {
            if name != part && !FOR_TESTS.contains(&name.as_str()) && !may.contains(&name.as_str()) {
                wrong.push(format!("{} uses {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "against the order:\n{}", wrong.join("\n"));
}

#[test]
fn modules_used_by_a_file_are_found() {
    let text = "use crate::a::B;\nuse crate::{c, d::{E, F}, g};\nlet x = crate::h::i(); // crate::not\n";
    let names: Vec<String> = used(&code(text)).into_iter().collect();
    assert_eq!(names, ["a", "c", "d", "g", "h"]);
}

/// What sends a signal: calls of the system's interface, of the crates that wrap it, and of types that hold a child.
const SIGNALLING: [&str; 8] = [
    "pidfd_send_signal",
    "kill_process",
    "kill_process_group",
    "kill_current_process_group",
    "killpg",
    ".kill(",
    ".start_kill(",
    ".kill_on_drop(true)",
];

/// What of a text sends a signal by itself. Unit tests end their own children and are left out; probing with no signal is not
/// sending one.
fn signalling(text: &str) -> Vec<&'static str> {
    let product = code(text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default());
    let product = product.replace("test_kill_process", "");
    SIGNALLING.into_iter().filter(|call| product.contains(call)).collect()
}

#[test]
fn one_file_sends_every_signal() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let tests = |file: &Path| {
        let inside = file.strip_prefix(&root).expect("a file of src");
        inside.iter().any(|part| part == "tests" || part == "tests.rs")
    };
    let found: Vec<String> = files
        .iter()
        .filter(|file| part(file) != "sim" && !tests(file))
        .filter(|file| !signalling(&fs::read_to_string(file).expect("text")).is_empty())
        .map(|file| file.strip_prefix(&root).expect("a file of src").display().to_string())
        .collect();
    assert_eq!(found, ["host/signal.rs"]);
}

#[test]
fn signals_are_found_in_sources() {
    let child = "fn end(c: &mut std::process::Child) {\n    c.kill().expect(\"it\");\n}\n";
    assert_eq!(signalling(child), [".kill("]);
    assert_eq!(signalling("rustix::process::kill_process(pid, Signal::KILL)"), ["kill_process"]);
    assert!(signalling("let lives = test_kill_process(pid).is_ok();").is_empty());
    assert!(signalling("#[cfg(test)]\nmod tests {\n    child.start_kill();\n}\n").is_empty());
}

/// What a use case reads and writes is behind a permit, unless it takes the way of the manager's own tasks.
#[test]
fn no_use_case_goes_without_a_permit() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/service"), &mut files);
    let found: Vec<PathBuf> = files
        .into_iter()
        .filter(|file| code(&fs::read_to_string(file).expect("text")).contains(".without_permit("))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn requests_named_in_messages_exist() {
    let document: serde_json::Value =
        serde_json::from_str(include_str!("../../../openapi/v1.json")).expect("the document");
    let there = |method: &str, path: &str| {
        document["paths"].as_object().expect("paths").iter().any(|(route, methods)| {
            let (route, path): (Vec<_>, Vec<_>) = (route.split('/').collect(), path.split('/').collect());
            let fits = |(one, other): (&&str, &&str)| one.starts_with('{') || one == other;
            methods.get(method.to_lowercase()).is_some()
                && route.len() == path.len()
                && route.iter().zip(&path).all(fits)
        })
    };
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    let mut named = 0;
    for file in files {
        let text = fs::read_to_string(&file).expect("text");
        for (place, _) in text.match_indices(" /api/v1/") {
            let method =
                text[..place].rsplit(|letter: char| !letter.is_ascii_uppercase()).next().unwrap_or("");
            if !["GET", "PUT", "PATCH", "POST", "DELETE"].contains(&method) {
                continue;
            }
            let rest = text[place + 1..]
                .split(|letter: char| !letter.is_ascii_alphanumeric() && !"/_-{}".contains(letter));
            let path = rest.into_iter().next().expect("the path");
            assert!(there(method, path), "{}: {method} {path}", file.display());
            named += 1;
        }
    }
    assert!(named > 10, "{named}");
}
