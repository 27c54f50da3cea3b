//! The API's document: from the code, valid, and kept in the repository.
//!
//! `MPS_MANAGER_WRITE_OPENAPI=1 cargo test --test it openapi` writes the file again after a change.

use std::collections::BTreeSet;
use std::path::Path;

use mps_manager::domain::layout::text;
use serde_json::{Value, json};

use crate::document::{METHODS, expanded, layout_document_schema};
use crate::harness::InProcess;

fn document() -> Value {
    expanded(crate::document::document())
}

fn operations(document: &Value) -> Vec<(String, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    paths
        .iter()
        .flat_map(|(path, item)| {
            METHODS.iter().filter_map(move |method| Some((format!("{method} {path}"), item.get(method)?)))
        })
        .collect()
}

#[test]
fn served_printed_and_stored_documents_are_equal() {
    let generated = crate::document::document();
    let text = serde_json::to_string_pretty(&generated).expect("JSON") + "\n";
    kept("openapi/v1.json", &text);

    // What is served and printed was taken from the file when the program was built: after a change it takes another build.
    if std::env::var_os("MPS_MANAGER_WRITE_OPENAPI").is_none() {
        let host = InProcess::stopped();
        assert_eq!(host.api().get("/openapi.json").json(), generated);
        assert_eq!(String::from_utf8(host.cli(&["openapi"]).stdout).expect("text"), text);
    }
}

#[test]
fn reference_page_is_made_of_the_document() {
    let page = crate::document::page(&crate::document::document());
    kept("web/assets/docs/reference.html", &page);
    for (_, operation) in operations(&document()) {
        let id = operation["operationId"].as_str().expect("an ID");
        assert_eq!(page.matches(&format!(" id=\"{id}\"")).count(), 1, "{id}");
    }
    // Each link within it leads somewhere.
    for link in page.split("href=\"#").skip(1) {
        let id = link.split('"').next().expect("an end");
        assert!(page.contains(&format!(" id=\"{id}\"")), "{id}");
    }
}

/// Holds a generated file to what is generated now, or writes it again if that is asked for.
pub(super) fn kept(name: &str, generated: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("MPS_MANAGER_WRITE_OPENAPI").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, generated).unwrap();
    }
    let kept = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(kept == generated, "{name} is out of date: MPS_MANAGER_WRITE_OPENAPI=1 writes it again");
}

/// The same of a file that a command prints as it was when the program was built.
pub(super) fn kept_and_printed(name: &str, generated: &Value, command: &[&str]) {
    let text = format!("{generated:#}\n");
    kept(name, &text);
    if std::env::var_os("MPS_MANAGER_WRITE_OPENAPI").is_none() {
        let printed = InProcess::new("").cli(command).stdout;
        assert_eq!(String::from_utf8(printed).expect("text"), text, "{command:?}");
    }
}

#[test]
fn layout_schema_and_reader_accept_same_documents() {
    let schema = layout_document_schema();
    kept_and_printed("openapi/layouts-v1.schema.json", &schema, &["layout", "schema"]);
    let validator = jsonschema::draft202012::new(&schema).expect("a valid schema");
    let step = json!({"add": {"gpu": 0, "partition": "big", "chunks": 7, "tenants": ["web"]}});
    let document = |steps: Value| json!({"version": "v1", "layouts": {"web_prod": {"steps": steps}}});
    let good = [
        document(json!([])),
        document(
            json!([{"add": {"gpu": 0, "partition": "big", "chunks": 7}}, {"remove": {"partition": "big"}}]),
        ),
        json!({"version": "v1", "layouts": {"a": {"enforcement": "percentage", "sku": "NVIDIA H200", "note": "x", "steps": [step]}}}),
    ];
    let bad = [
        json!({"version": "v1"}),
        json!({"version": "v1", "layouts": {"a": {"steps": [], "colour": 1}}}),
        document(json!([{"add": {"gpu": 0, "partition": "Big", "chunks": 7}}])),
        document(json!([{"add": {"gpu": 0, "partition": "big", "chunks": 0}}])),
        document(json!([{"add": {"gpu": 0, "partition": "big"}}])),
        document(json!([{"move": {"partition": "big"}}])),
        json!({"version": "v1", "layouts": {}, "checksum": "md5:1"}),
    ];
    for (values, takes) in [(&good[..], true), (&bad[..], false)] {
        for value in values {
            assert_eq!(validator.is_valid(value), takes, "{value}");
        }
    }
    for value in good {
        text::read(&value.to_string(), text::LayoutFormat::Json).expect("the reader takes it too");
    }
}

#[test]
fn every_operation_is_documented_with_problems() {
    let document = document();
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    let operations = operations(&document);
    assert!(operations.len() > 20, "{}", operations.len());
    let mut ids = BTreeSet::new();
    for (name, operation) in &operations {
        let id = operation["operationId"].as_str().unwrap_or_else(|| panic!("{name} has no operationId"));
        assert!(ids.insert(id), "{id} twice");
        let tag = operation["tags"][0].as_str().unwrap_or_else(|| panic!("{name} has no tag"));
        assert!(tags.contains(tag), "{name}: {tag} is not described");
        assert!(operation["summary"].is_string(), "{name} has no summary");
        let responses = operation["responses"].as_object().unwrap();
        let problems = responses.iter().filter(|(_, response)| {
            response["content"]["application/problem+json"]["schema"]["$ref"]
                == "#/components/schemas/Problem"
        });
        assert!(problems.count() > 0, "{name} answers no problem");
        for (status, response) in responses {
            let words = response["description"].as_str().unwrap_or_default();
            assert!(!words.is_empty(), "{name} {status} has no description");
        }
    }
}

#[test]
fn every_reference_leads_somewhere() {
    fn check(document: &Value, value: &Value) {
        match value {
            Value::Object(fields) => {
                if let Some(reference) = fields.get("$ref").and_then(Value::as_str) {
                    let pointer = reference.strip_prefix('#').expect("a reference into the document");
                    assert!(document.pointer(pointer).is_some(), "{reference} leads nowhere");
                }
                fields.values().for_each(|field| check(document, field));
            }
            Value::Array(items) => items.iter().for_each(|item| check(document, item)),
            _ => {}
        }
    }
    let document = crate::document::document();
    check(&document, &document);
    assert_eq!(document["openapi"].as_str().unwrap().split('.').next(), Some("3"));
}

#[test]
fn every_path_parameter_is_described() {
    let document = document();
    for (name, operation) in operations(&document) {
        let path = name.split(' ').nth(1).unwrap();
        let wanted: BTreeSet<&str> =
            path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let described: BTreeSet<&str> = parameters
            .iter()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        assert_eq!(described, wanted, "{name}");
    }
}

/// Each kind of problem is explained, in the document, and made by the code: no more and no less.
#[test]
fn every_kind_of_problem_is_documented() {
    use mps_manager::http::problem::{ProblemKind, TYPE_PREFIX};
    let rows = ProblemKind::ALL.iter().map(|kind| kind.row());
    let known: BTreeSet<(String, u16)> =
        rows.map(|(kind, status, _)| (kind.to_owned(), status.as_u16())).collect();
    assert_eq!(known.len(), ProblemKind::ALL.len(), "a kind twice");

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let words = std::fs::read_to_string(root.join("docs/problems.md")).expect("docs/problems.md");
    let explained: BTreeSet<(String, u16)> = words
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').map(str::trim).skip(1);
            let kind = cells.next()?.strip_prefix('`')?.strip_suffix('`')?;
            Some((kind.to_owned(), cells.next()?.parse().ok()?))
        })
        .collect();
    assert_eq!(explained, known, "docs/problems.md and the code");

    let document = document();
    for (name, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            if response["content"].get("application/problem+json").is_none() {
                continue;
            }
            let kinds = response["x-problem-types"].as_array().unwrap_or_else(|| panic!("{name} {status}"));
            assert!(!kinds.is_empty(), "{name} {status} is of no kind");
            for kind in kinds {
                let kind = kind.as_str().unwrap().strip_prefix(TYPE_PREFIX).expect("a kind of ours");
                assert!(
                    known.contains(&(kind.to_owned(), status.parse().unwrap())),
                    "{name} {status} {kind}"
                );
            }
        }
    }
}

#[test]
fn request_schemas_are_closed_and_described() {
    fn check(name: &str, document: &Value, schema: &Value, seen: &mut BTreeSet<String>) {
        if let Some(reference) = schema["$ref"].as_str() {
            if seen.insert(reference.to_owned()) {
                check(reference, document, document.pointer(&reference[1..]).unwrap(), seen);
            }
            return;
        }
        if let Some(fields) = schema["properties"].as_object() {
            // A step is `add` or `remove`: its one field is required, and what is in it is closed.
            let single = fields.len() == 1 && schema["required"].as_array().is_some_and(|all| all.len() == 1);
            assert!(
                single || schema["additionalProperties"] == false,
                "{name} takes unknown fields: {schema}"
            );
            for (field, inner) in fields {
                check(&format!("{name}.{field}"), document, inner, seen);
            }
        }
        for keyword in ["items", "additionalProperties"] {
            if schema[keyword].is_object() {
                check(name, document, &schema[keyword], seen);
            }
        }
        for variant in schema["oneOf"].as_array().into_iter().flatten() {
            check(name, document, variant, seen);
        }
        assert!(schema.get("allOf").is_none(), "{name}: a generator would have to guess");
    }
    let document = document();
    let mut seen = BTreeSet::new();
    for (name, operation) in operations(&document) {
        for (mime, content) in operation["requestBody"]["content"].as_object().into_iter().flatten() {
            check(&format!("{name} {mime}"), &document, &content["schema"], &mut seen);
        }
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let schema = parameter["schema"].to_string();
            assert!(!schema.contains("null"), "{name}: {} is never null: {schema}", parameter["name"]);
            assert!(parameter["description"].is_string(), "{name}: {} has no words", parameter["name"]);
        }
    }
    assert!(seen.len() > 10, "{seen:?}");
}

#[test]
fn response_headers_are_documented() {
    let document = document();
    let mut found = 0;
    for (name, operation) in operations(&document) {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let problem = response["content"].get("application/problem+json").is_some();
            let header = match status.as_str() {
                "202" => "Location",
                "401" => "WWW-Authenticate",
                "503" if problem => "Retry-After",
                _ => continue,
            };
            assert_eq!(response["headers"][header]["required"], true, "{name} {status} {header}");
            found += 1;
        }
    }
    assert!(found > 60, "{found}");
}

/// Of two schemas with one name the document has one only, and whatever names the other gets the wrong one.
#[test]
fn schema_names_are_unique() {
    fn names(text: &str) -> Vec<String> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let mut found = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let Some(rest) = ["pub struct ", "pub enum "].iter().find_map(|start| line.strip_prefix(start))
            else {
                continue;
            };
            // The attributes and words right above it.
            let above: Vec<&str> = lines[..at]
                .iter()
                .rev()
                .take_while(|line| !line.is_empty() && **line != "}")
                .copied()
                .collect();
            if !above.iter().any(|line| line.contains("ToSchema")) {
                continue;
            }
            let renamed = above.iter().find_map(|line| line.split("schema(as = ").nth(1));
            let name = renamed.unwrap_or(rest);
            found.push(name.chars().take_while(char::is_ascii_alphanumeric).collect());
        }
        found
    }
    fn walk(folder: &Path, all: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, all);
            } else if path.extension().is_some_and(|kind| kind == "rs") {
                all.extend(names(&std::fs::read_to_string(&path).expect("text")));
            }
        }
    }
    let mut all = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    assert!(all.len() > 100, "{}", all.len());
    let mut seen = BTreeSet::new();
    let twice: Vec<&String> = all.iter().filter(|name| !seen.insert(*name)).collect();
    assert!(twice.is_empty(), "give one of them another name with #[schema(as = …)]: {twice:?}");
}
