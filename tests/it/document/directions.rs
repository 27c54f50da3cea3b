//! Schemas of answers beside those of requests.
//!
//! A request may leave out what has a default, and may spell a size as a text; an answer always has the field, and the size in
//! bytes. With one schema for both, readers of answers would expect what never comes, and many generators of clients
//! cannot read a number that may be a text. So what only comes in answers says so: its fields are required unless they are left
//! out, and texts of requests are not in it. A schema that goes both ways and holds such a text has a second one for answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

const SCHEMAS: &str = "#/components/schemas/";

/// Fields that an answer leaves out where there is nothing to say, by the name of their schema in the document. A test holds this
/// to the code.
pub(super) const LEFT_OUT: [(&str, &str); 41] = [
    ("DaemonStatus", "provisioning"),
    ("DaemonView", "removed"),
    ("EffectiveThreads", "partitions"),
    ("EnvironmentView", "container_refused"),
    ("EventSubject", "client"),
    ("EventSubject", "daemon"),
    ("EventSubject", "gpu"),
    ("EventSubject", "layout"),
    ("EventSubject", "operation"),
    ("EventSubject", "partition"),
    ("EventSubject", "server"),
    ("EventSubject", "tenant"),
    ("MemoryReading", "unreadable"),
    ("MpsServer", "mlopart_devices"),
    ("OperationRequestApplyLayout", "drain"),
    ("PartitionStatus", "percentage"),
    ("PartitionStatus", "withheld"),
    ("PlannedStep", "percentage"),
    ("Problem", "errors"),
    ("Readiness", "read_only"),
    ("ResolvedDaemonDefaults", "active_thread_percentage"),
    ("ResolvedDaemonDefaults", "device_memory_limit"),
    ("ResolvedDaemonDefaults", "priority"),
    ("ResolvedDaemonSpec", "compute_mode"),
    ("ResolvedDaemonSpec", "layout"),
    ("ResolvedDaemonSpec", "mlopart"),
    ("ResolvedDaemonSpec", "users"),
    ("ResolvedTenantSpec", "active_thread_percentage"),
    ("ResolvedTenantSpec", "device_memory_limit"),
    ("ResolvedTenantSpec", "expires_at"),
    ("ResolvedTenantSpec", "max_clients"),
    ("ResolvedTenantSpec", "priority"),
    ("ResolvedTenantSpec", "sms"),
    ("ResolvedTenantSpec", "visible_devices"),
    ("TenantStatus", "draining"),
    ("TenantStatus", "provisioning"),
    ("TenantStatus", "verification"),
    ("TenantStatus", "weakens"),
    ("TenantView", "removed"),
    ("VerificationResult", "devices"),
    ("VerificationResult", "stale"),
];

/// Schemas whose answers are written as requests are: a host file comes back as people write it, sizes and GPUs included.
const AS_WRITTEN: [&str; 1] = ["HostFile"];

/// Gives answers their own schemas, and drops unreferenced ones.
pub(super) fn split(document: &mut Value) {
    let (requests, answers) = directions(document);
    let Some(schemas) = document.pointer("/components/schemas").and_then(Value::as_object).cloned() else {
        return;
    };
    // What holds a text that no answer has, itself or somewhere inside.
    let spelled: BTreeSet<String> =
        schemas.iter().filter(|(_, schema)| spellings(schema)).map(|(name, _)| name.clone()).collect();
    let holds_text = |name: &String| !reachable(&schemas, [name.clone()]).is_disjoint(&spelled);
    let shared = answers.iter().filter(|name| requests.contains(*name) && holds_text(name));
    let twins: BTreeMap<String, String> =
        shared.map(|name| (name.clone(), twin_name(name, spelled.contains(name)))).collect();
    let mut all = Map::new();
    for (name, schema) in schemas {
        let mut answer = schema.clone();
        redirect(&mut answer, &twins);
        if spelled.contains(&name) {
            answer = without_spellings(&answer);
        }
        match twins.get(&name) {
            Some(twin) => {
                always_sent(twin, &mut answer);
                all.insert(twin.clone(), answer);
                all.insert(name, schema);
            }
            None if answers.contains(&name) && !requests.contains(&name) => {
                always_sent(&name, &mut answer);
                all.insert(name, answer);
            }
            None => {
                all.insert(name, schema);
            }
        }
    }
    super::for_each_operation(document, |_, _, operation| {
        if let Some(responses) = operation.get_mut("responses") {
            redirect(responses, &twins);
        }
    });
    let (requests, answers) = {
        document["components"]["schemas"] = Value::Object(all.clone());
        directions(document)
    };
    all.retain(|name, _| requests.contains(name) || answers.contains(name));
    document["components"]["schemas"] = Value::Object(all);
}

fn twin_name(name: &str, is_size: bool) -> String {
    if is_size { format!("{name}Bytes") } else { format!("Resolved{name}") }
}

/// The schemas that requests may hold, and those that answers may.
pub(super) fn directions(document: &Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut requests, mut answers) = (BTreeSet::new(), BTreeSet::new());
    let items = document["paths"].as_object().into_iter().flat_map(Map::values);
    for operation in items.filter_map(Value::as_object).flat_map(Map::values) {
        named(&operation["parameters"], &mut requests);
        named(&operation["requestBody"], &mut requests);
        named(&operation["responses"], &mut answers);
    }
    named(&document["components"]["responses"], &mut answers);
    answers.retain(|name| !AS_WRITTEN.contains(&name.as_str()));
    let none = Map::new();
    let schemas = document.pointer("/components/schemas").and_then(Value::as_object).unwrap_or(&none);
    (reachable(schemas, requests), reachable(schemas, answers))
}

/// These schemas, and whatever they refer to.
fn reachable(schemas: &Map<String, Value>, from: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut next: Vec<String> = from.into_iter().collect();
    while let Some(name) = next.pop() {
        let Some(schema) = schemas.get(&name) else { continue };
        if seen.insert(name) {
            let mut inside = BTreeSet::new();
            named(schema, &mut inside);
            next.extend(inside);
        }
    }
    seen
}

/// The schemas that a value refers to.
fn named(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) => found.extend(text.strip_prefix(SCHEMAS).map(str::to_owned)),
        Value::Object(fields) => fields.values().for_each(|field| named(field, found)),
        Value::Array(items) => items.iter().for_each(|item| named(item, found)),
        _ => {}
    }
}

fn redirect(value: &mut Value, twins: &BTreeMap<String, String>) {
    match value {
        Value::String(text) => {
            if let Some(twin) = text.strip_prefix(SCHEMAS).and_then(|name| twins.get(name)) {
                *text = format!("{SCHEMAS}{twin}");
            }
        }
        Value::Object(fields) => fields.values_mut().for_each(|field| redirect(field, twins)),
        Value::Array(items) => items.iter_mut().for_each(|item| redirect(item, twins)),
        _ => {}
    }
}

/// Whether a schema takes a text beside something else, for people who write it.
fn spellings(schema: &Value) -> bool {
    let Some(variants) = schema["oneOf"].as_array() else { return false };
    let texts = variants.iter().filter(|variant| variant["type"] == "string").count();
    texts > 0 && variants.iter().any(|variant| variant["type"] != "string" && variant["type"] != "null")
}

fn without_spellings(schema: &Value) -> Value {
    let variants = schema["oneOf"].as_array().into_iter().flatten();
    let rest: Vec<Value> = variants.filter(|variant| variant["type"] != "string").cloned().collect();
    let mut left = match rest.as_slice() {
        [only] => only.clone(),
        _ => json!({"oneOf": rest}),
    };
    if let Some(description) = schema.get("description") {
        left["description"] = description.clone();
    }
    left
}

/// Every field of an answer is sent, but for those that are left out; what is left out is never `null`.
fn always_sent(name: &str, schema: &mut Value) {
    let parts = schema.get_mut("allOf").and_then(Value::as_array_mut).into_iter().flatten();
    for part in parts {
        always_sent(name, part);
    }
    let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    let mut required = Vec::new();
    for (field, inner) in fields.iter_mut() {
        if LEFT_OUT.contains(&(name, field)) {
            *inner = super::not_null(inner);
        } else {
            required.push(json!(field));
        }
    }
    if !required.is_empty() {
        schema["required"] = Value::Array(required);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Value {
        let reference = |name: &str| json!({"$ref": format!("{SCHEMAS}{name}")});
        json!({
            "paths": {"/x": {"put": {
                "requestBody": {"schema": reference("Spec")},
                "responses": {"200": {"schema": reference("View")}},
            }}},
            "components": {"schemas": {
                "Size": {"description": "A size.", "oneOf": [{"type": "integer"}, {"type": "string"}]},
                "Spec": {"type": "object", "properties": {
                    "inner": reference("Inner"), "name": reference("Name"),
                }},
                "Inner": {"type": "object", "properties": {"size": reference("Size"), "on": {"type": "boolean"}}},
                "Name": {"type": "string"},
                "View": {"type": "object", "required": ["inner"], "properties": {
                    "inner": reference("Inner"), "name": reference("Name"), "at": {"type": ["integer", "null"]},
                }},
                "TenantStatus": {"type": "object", "properties": {
                    "verification": {"oneOf": [{"type": "null"}, reference("Name")]},
                }},
                "Forgotten": {"type": "object"},
            }},
        })
    }

    #[test]
    fn answers_have_schemas_of_their_own() {
        let mut document = document();
        split(&mut document);
        let schemas = &document["components"]["schemas"];
        let names: Vec<&String> = schemas.as_object().expect("schemas").keys().collect();
        assert_eq!(names, ["Inner", "Name", "ResolvedInner", "Size", "SizeBytes", "Spec", "View"]);
        assert_eq!(schemas["SizeBytes"], json!({"type": "integer", "description": "A size."}));
        assert_eq!(schemas["View"]["properties"]["inner"]["$ref"], "#/components/schemas/ResolvedInner");
        assert_eq!(schemas["View"]["properties"]["name"]["$ref"], "#/components/schemas/Name");
        assert_eq!(schemas["View"]["required"], json!(["at", "inner", "name"]));
        let inner = &schemas["ResolvedInner"];
        assert_eq!(inner["properties"]["size"]["$ref"], "#/components/schemas/SizeBytes");
        assert_eq!(inner["required"], json!(["on", "size"]));
        // Requests are as they were.
        assert_eq!(schemas["Inner"], self::document()["components"]["schemas"]["Inner"]);
    }

    #[test]
    fn omitted_fields_are_never_null() {
        let mut document = document();
        document["paths"]["/x"]["put"]["responses"]["404"] =
            json!({"$ref": "#/components/schemas/TenantStatus"});
        split(&mut document);
        let status = &document["components"]["schemas"]["TenantStatus"];
        assert_eq!(status["properties"]["verification"], json!({"$ref": "#/components/schemas/Name"}));
        assert_eq!(status.get("required"), None);
    }

    /// The fields that the code leaves out, as the names of their types and their own.
    fn left_out_by_code() -> BTreeSet<(String, String)> {
        fn word(text: &str) -> String {
            text.chars().take_while(char::is_ascii_alphanumeric).collect()
        }
        fn fields(text: &str, found: &mut BTreeSet<(String, String)>) {
            let mut of = None;
            let mut left_out = false;
            let mut described = false;
            let mut called = None;
            let mut variant = String::new();
            for line in text.lines().map(str::trim) {
                described |= line.contains("ToSchema");
                called = line.split("schema(as = ").nth(1).map(word).or(called);
                let named = ["pub struct ", "pub enum "].iter().find_map(|start| line.strip_prefix(start));
                if let Some(rest) = named {
                    let name = called.take().unwrap_or_else(|| word(rest));
                    of = described.then_some(name);
                    described = false;
                }
                // The fields of a variant are those of a schema of their own, and are not said to be public.
                if let Some(name) = line.strip_suffix(" {").filter(|name| *name == word(name)) {
                    variant = name.to_owned();
                }
                left_out |= line.starts_with("#[serde(") && line.contains("skip_serializing_if");
                let field = line.split_once(": ").map(|(field, _)| field).filter(|_| !line.starts_with("//"));
                if let (Some(field), Some(name)) = (field, &of) {
                    if left_out {
                        let name = if field.starts_with("pub ") { name } else { &format!("{name}{variant}") };
                        found.insert((name.clone(), field.trim_start_matches("pub ").to_owned()));
                    }
                    left_out = false;
                }
            }
        }
        fn walk(folder: &std::path::Path, found: &mut BTreeSet<(String, String)>) {
            for entry in std::fs::read_dir(folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    walk(&path, found);
                } else if path.extension().is_some_and(|kind| kind == "rs") {
                    fields(&std::fs::read_to_string(&path).expect("text"), found);
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found
    }

    #[test]
    fn fields_left_out_are_those_of_the_code() {
        let document = super::super::document();
        let (requests, answers) = directions(&document);
        let owned = |(name, field): (&str, &str)| (name.to_owned(), field.to_owned());
        let mut missing: BTreeSet<(String, String)> = LEFT_OUT.into_iter().map(owned).collect();
        let mut unknown = BTreeSet::new();
        for (name, field) in left_out_by_code() {
            let wire = super::super::names::wire_name(&name);
            for name in [wire.clone(), format!("Resolved{wire}")] {
                let schema = &document["components"]["schemas"][&name];
                if schema["properties"].get(&field).is_none()
                    || !answers.contains(&name)
                    || requests.contains(&name)
                {
                    continue;
                }
                if !missing.remove(&(name.clone(), field.clone())) {
                    unknown.insert((name, field.clone()));
                }
            }
        }
        assert!(unknown.is_empty(), "some answers leave these out: add them to LEFT_OUT: {unknown:?}");
        assert!(missing.is_empty(), "no answer leaves these out: take them off LEFT_OUT: {missing:?}");
    }
}
