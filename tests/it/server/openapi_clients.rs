//! The API's document as generators of clients read it: names, unions, both directions, and its older form.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::openapi::kept;
use crate::document::{self, expanded, openapi_3_0};
use crate::harness::InProcess;

const SCHEMAS: &str = "#/components/schemas/";

fn document() -> Value {
    expanded(document::document())
}

/// The document without the answer that is written as its request is: a host file, with sizes as texts.
fn without_host_file() -> Value {
    let mut document = document();
    let item = document["paths"]["/api/v1/host/spec"].as_object_mut().expect("its path");
    item.remove("get").expect("its answer");
    document
}

fn schemas(document: &Value) -> &Map<String, Value> {
    document["components"]["schemas"].as_object().expect("schemas")
}

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let items = document["paths"].as_object().expect("paths");
    items.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods");
        methods.iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

/// Generators for typed languages give an operation one type of success.
#[test]
fn successes_of_an_operation_have_one_schema() {
    for (name, operation) in operations(&document()) {
        let responses = operation["responses"].as_object().expect("responses").iter();
        let successes = responses.filter(|(status, _)| status.starts_with('2'));
        let schemas =
            successes.map(|(_, response)| response["content"]["application/json"]["schema"].to_string());
        let schemas: BTreeSet<String> = schemas.collect();
        assert!(schemas.len() <= 1, "{name}: {schemas:?}");
    }
}

fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => found.extend(text.strip_prefix(SCHEMAS).map(str::to_owned)),
        Value::Object(fields) => fields.values().for_each(|field| references(field, found)),
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

/// The schemas that a part of every operation leads to.
fn reached(document: &Value, parts: &[&str]) -> BTreeSet<String> {
    let mut next = BTreeSet::new();
    for (_, operation) in operations(document) {
        for part in parts {
            references(&operation[*part], &mut next);
        }
    }
    let mut seen = BTreeSet::new();
    while let Some(name) = next.pop_first() {
        if seen.insert(name.clone()) {
            let mut inside = BTreeSet::new();
            references(&schemas(document)[&name], &mut inside);
            next.extend(inside.into_iter().filter(|name| !seen.contains(name)));
        }
    }
    seen
}

/// Schemas of one word that say what they are in any client: any other needs a second word, such as `LayoutStep`.
const ONE_WORD: [&str; 11] = [
    "Condition",
    "Event",
    "Health",
    "Incident",
    "Layout",
    "Lease",
    "Operation",
    "Problem",
    "Readiness",
    "Replay",
    "Verification",
];

#[test]
fn schema_names_read_well_and_are_used() {
    let document = document();
    for name in schemas(&document).keys() {
        let plain = name.chars().all(|letter| letter.is_ascii_alphanumeric());
        let capital = name.starts_with(|letter: char| letter.is_ascii_uppercase());
        let words = name.chars().filter(char::is_ascii_uppercase).count();
        assert!(
            plain && capital && (words > 1 || ONE_WORD.contains(&name.as_str())),
            "{name}: give it a name in tests/it/document/names.rs"
        );
    }
    let used = reached(&document, &["parameters", "requestBody", "responses"]);
    let unused: Vec<&String> = schemas(&document).keys().filter(|name| !used.contains(*name)).collect();
    assert!(unused.is_empty(), "nothing refers to {unused:?}");
    assert_eq!(document["servers"][0]["url"], "/");
    for (name, written) in [("TenantSpec", true), ("ResolvedTenantSpec", false), ("DaemonSpec", true)] {
        assert_eq!(reached(&document, &["requestBody"]).contains(name), written, "{name}");
    }
}

#[test]
fn union_variants_are_distinguishable() {
    let document = document();
    let mut unions = 0;
    for (name, schema) in schemas(&document) {
        let Some(variants) = schema["oneOf"].as_array() else { continue };
        let mut named = BTreeSet::new();
        for variant in variants {
            references(variant, &mut named);
        }
        // The others are distinguished by their types.
        named.retain(|name| schemas(&document)[name]["type"] == "object");
        if named.len() < 2 {
            continue;
        }
        unions += 1;
        if schema["discriminator"]["propertyName"].is_string() {
            let mapped = schema["discriminator"]["mapping"].as_object().expect("a mapping");
            assert_eq!(mapped.len(), named.len(), "{name}");
            continue;
        }
        let mut required = BTreeSet::new();
        for variant in &named {
            let variant = &schemas(&document)[variant];
            assert_eq!(variant["additionalProperties"], false, "{name}: {variant}");
            assert!(required.insert(variant["required"].to_string()), "{name}: {variant}");
        }
    }
    assert!(unions > 5, "{unions}");
    assert_eq!(schemas(&document)["LayoutStepAdd"]["additionalProperties"], false);
}

#[test]
fn answers_hold_numbers_where_requests_may_hold_texts() {
    let document = without_host_file();
    let is_mixed = |schema: &Value| {
        let types: BTreeSet<&str> =
            schema["oneOf"].as_array().into_iter().flatten().filter_map(|one| one["type"].as_str()).collect();
        types.contains("string") && types.contains("integer")
    };
    let mixed = |names: &BTreeSet<String>| -> Vec<String> {
        names.iter().filter(|name| is_mixed(&schemas(&document)[*name])).cloned().collect()
    };
    assert_eq!(mixed(&reached(&document, &["responses"])), [] as [String; 0]);
    assert_eq!(mixed(&reached(&document, &["requestBody"])), ["DeviceMemoryLimit", "MemoryLimit"]);
}

#[test]
fn nullable_fields_of_answers_are_always_sent() {
    let document = without_host_file();
    let requests = reached(&document, &["parameters", "requestBody"]);
    let mut nullable = 0;
    for name in reached(&document, &["responses"]).difference(&requests) {
        let schema = &schemas(&document)[name];
        let required: BTreeSet<&str> =
            schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        for (field, inner) in schema["properties"].as_object().into_iter().flatten() {
            let may_be_null = inner.to_string().contains("\"null\"");
            assert!(!may_be_null || required.contains(field.as_str()), "{name}.{field}");
            nullable += usize::from(may_be_null);
        }
    }
    assert!(nullable > 60, "{nullable}");
}

/// A generator makes a field or an argument of each, in the case of its language.
#[test]
fn no_two_parameters_become_one_name() {
    let document = document();
    for (name, operation) in operations(&document) {
        let mut seen = BTreeMap::new();
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let text = parameter["name"].as_str().expect("a name");
            let plain: String = text
                .chars()
                .filter(char::is_ascii_alphanumeric)
                .map(|one| one.to_ascii_lowercase())
                .collect();
            if let Some(other) = seen.insert(plain, text) {
                panic!("{name}: {other} and {text}");
            }
        }
    }
}

#[test]
fn every_post_documents_its_idempotency_key() {
    let document = document();
    let mut posts = 0;
    for (name, operation) in operations(&document).filter(|(name, _)| name.starts_with("post ")) {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let takes = parameters.iter().filter(|parameter| parameter["name"] == "Idempotency-Key").count();
        let refuses = operation["responses"]["422"].to_string().contains("idempotency-key-refused");
        assert_eq!(takes + usize::from(refuses), 1, "{name}: see src/http/repeats.rs");
        posts += 1;
    }
    assert!(posts > 20, "{posts}");
}

#[test]
fn the_older_form_is_valid_openapi_3_0() {
    let older = openapi_3_0(&document::document());
    let schema: Value =
        serde_json::from_str(include_str!("../../fixtures/openapi/3.0-schema.json")).expect("JSON");
    let validator = jsonschema::draft4::new(&schema).expect("a schema");
    let errors: Vec<String> = validator
        .iter_errors(&older)
        .take(5)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{}", errors.join("\n"));
    // What the schema of 3.0 leaves open, and 3.0 has not.
    let text = older.to_string();
    for gone in ["\"type\":[", "\"type\":\"null\"", "\"const\":", "\"propertyNames\":", "\"examples\":["] {
        assert!(!text.contains(gone), "{gone}");
    }
    let read: openapiv3::OpenAPI = serde_json::from_value(older.clone()).expect("a reader of 3.0 reads it");
    assert_eq!(read.operations().count(), operations(&document()).count());
    // The same operations with the same answers.
    for ((name, new), (_, old)) in operations(&document()).zip(operations(&expanded(older.clone()))) {
        let statuses = |operation: &Value| -> Vec<String> {
            operation["responses"].as_object().expect("responses").keys().cloned().collect()
        };
        assert_eq!(statuses(new), statuses(old), "{name}");
    }
}

#[test]
fn the_older_form_is_kept_served_and_printed() {
    let generated = openapi_3_0(&document::document());
    kept("openapi/v1-3.0.json", &format!("{generated}\n"));
    if std::env::var_os("MPS_MANAGER_WRITE_OPENAPI").is_none() {
        let host = InProcess::stopped();
        assert_eq!(host.api().with_token(None).get("/openapi-3.0.json").json(), generated);
        let printed = host.cli(&["openapi", "--as", "3.0"]).stdout;
        assert_eq!(serde_json::from_slice::<Value>(&printed).expect("JSON"), generated);
    }
}
